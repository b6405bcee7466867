"""Checkpoints: written aside and renamed, so that a job killed at its time limit finds a whole one.

The trap: `torch.load` unpickles, and a pickle is a program. A checkpoint holds tensors and plain values only,
and is read with `weights_only=True`. Notebook 10 resumes from one.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from smallfiles.atomic import replaced
from smallfiles.errors import DamagedFileError, ResourceError

NAME = "last.pt"
_MOST = 1 << 31


@dataclass(frozen=True)
class State:
    """What a training goes on from.

    Args:
        model: Weights.
        optimizer: Its state.
        loader: Where the loader was (`Loader.state_dict`).
        epochs: Reports of the epochs that ended.
        begun: Samples of the epoch that did not end, trained on by all ranks, and the sum of their losses.
    """

    model: dict[str, Any]
    optimizer: dict[str, Any]
    loader: dict[str, Any]
    epochs: list[dict[str, Any]]
    begun: tuple[float, float] = (0.0, 0.0)


_PARTS = {each.name for each in fields(State)}


def save(folder: Path, state: State) -> None:
    """Replace the checkpoint; a reader sees the old one or the new one.

    Args:
        folder: Made if missing.
        state: What to write.

    Raises:
        ResourceError: It cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replaced(folder / NAME) as partial, partial.open("wb") as file:
            torch.save(vars(state), file)
    except (OSError, RuntimeError) as error:
        raise ResourceError(
            f"the checkpoint {folder / NAME} cannot be written: {error}",
            expected="a folder with room for it",
            next_step="Free space or quota there, or name another folder; the training so far is lost "
            "only from the last checkpoint on",
        ) from None


def load(folder: Path) -> State | None:
    """The last checkpoint, or None.

    Args:
        folder: Where `save` wrote.

    Raises:
        DamagedFileError: It is none of ours, or damaged.
    """
    path = folder / NAME
    if not path.exists():
        return None
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged archive raises almost anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise unusable(path, f"cannot be read: {reason}") from None
    if not isinstance(found, dict) or set(found) != _PARTS or not _sound(found):
        raise unusable(path, "holds something else than a training")
    return State(**{**found, "begun": tuple(found["begun"])})


def _sound(found: dict[str, Any]) -> bool:
    """Whether the parts are what `save` writes, as far as they are used before weights are compared."""
    loader, begun = found["loader"], found["begun"]
    return (
        all(isinstance(found[name], dict) for name in ("model", "optimizer", "loader"))
        and all(type(loader.get(name)) is int and 0 <= loader[name] < _MOST for name in ("epoch", "batch"))
        and isinstance(found["epochs"], list)
        and all(isinstance(each, dict) for each in found["epochs"])
        and len(found["epochs"]) == loader["epoch"]
        and isinstance(begun, list | tuple)
        and len(begun) == 2
        and all(isinstance(each, int | float) for each in begun)
    )


def unusable(path: Path, what: str) -> DamagedFileError:
    """The error for a checkpoint that cannot be gone on from."""
    return DamagedFileError(
        f"the checkpoint {path} {what}",
        expected="one that `train` wrote",
        next_step="Remove it to begin again, or name another folder",
    )
