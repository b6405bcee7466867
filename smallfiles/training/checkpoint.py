"""Checkpoints: written to a temporary file and renamed, so that a killed job always finds a complete one.

The traps: `torch.load` unpickles, and a pickle is a program. A checkpoint holds tensors and plain values
only, and is read with `weights_only=True`. And torch writes a checksum for each member of the archive but
never compares it, so damaged weights load silently; here it is compared. Notebook 10 resumes.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from smallfiles.atomic import replaced
from smallfiles.errors import DamagedFileError, ResourceError, first_line

NAME = "last.pt"
_IS_FOLDER = 0x10
"""Bit in the attributes of a member of an archive."""


@dataclass(frozen=True)
class State:
    """The state that a training resumes from.

    Args:
        model: Weights.
        optimizer: State of the optimizer.
        loader: Position of the loader (`Loader.state_dict`).
        epochs: Reports of the finished epochs.
        begun: Of the unfinished epoch: samples trained by all ranks, and the sum of their losses.
    """

    model: dict[str, Any]
    optimizer: dict[str, Any]
    loader: dict[str, Any]
    epochs: list[dict[str, Any]]
    begun: tuple[float, float] = (0.0, 0.0)


def save(folder: Path, state: State) -> None:
    """Replace the checkpoint; a reader sees the old one or the new one.

    Args:
        folder: Created if missing.
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
            next_step="Free space or quota there, or name another folder; only the training since the last "
            "checkpoint is lost",
        ) from None


def load(folder: Path) -> State | None:
    """Load the last checkpoint, or return None if there is none.

    Args:
        folder: The folder in which `save` wrote.

    Raises:
        DamagedFileError: The checkpoint is damaged, or another program wrote it.
    """
    path = folder / NAME
    if not path.exists():
        return None
    try:
        _check_members(path)
        state = State(**torch.load(path, map_location="cpu", weights_only=True))
        epoch, batch = state.loader["epoch"], state.loader["batch"]
        sound = len(state.epochs) == epoch >= 0 <= batch and len(state.begun) == 2
        if sound and all(bool(weights.isfinite().all()) for weights in state.model.values()):
            return state
        problem = "does not hold the state of a training"
    except Exception as error:  # a damaged archive raises almost anything
        problem = f"cannot be read: {first_line(error)}"
    raise DamagedFileError(
        f"the checkpoint {path} {problem}",
        expected="one that `train` wrote",
        next_step="Remove it to start over, or name another folder",
    )


def _check_members(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
        folders = [member.filename for member in archive.infolist() if member.external_attr & _IS_FOLDER]
    if damaged is not None:
        raise ValueError(f"{damaged} in it has another checksum than when it was written")
    if folders:  # torch would return uninitialised memory as its content
        raise ValueError(f"{folders[0]} in it is a folder")
