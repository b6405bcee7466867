"""The methods of packing that ours are compared with: plain concatenation, and those of a given module.

Concatenation is the least that any packer must do, so its rate is the yardstick on every machine. What
other people's software does lies outside of the toolbox, in a module with two tables that is imported
where the method runs: `METHODS`, functions from paths and labels to one output, and `MODULES`, what each
imports before its clock starts. The trap: an import that is timed makes a quick method look slow.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from smallfiles.sources import Source

Method: TypeAlias = Callable[[Sequence[str], Sequence[int], Path], None]

REFERENCE = "concatenation"


def read_file(path: str) -> bytes:
    """All bytes of a file, as a script would read them."""
    with open(path, "rb") as file:  # noqa: PTH123 - making a Path costs as much as a cached open
        return file.read()


def concatenate(paths: Sequence[str], labels: Sequence[int], out: Path) -> None:
    """Read each file, append to one file."""
    with out.open("wb") as target:
        for path in paths:
            target.write(read_file(path))


def methods(others: str = "") -> dict[str, Method]:
    """By the name that records carry.

    Args:
        others: Name of the module with the tables; "" has concatenation only.
    """
    more = importlib.import_module(others).METHODS if others else {}
    return {REFERENCE: concatenate, **more}


def imported(name: str, others: str) -> Method:
    """A method, with what it imports."""
    modules = importlib.import_module(others).MODULES if others else {}
    if name in modules:
        importlib.import_module(modules[name])
    return methods(others)[name]


def listed(source: Source) -> tuple[list[str], list[int]]:
    """Paths and labels of a data set of plain files, as such scripts take them; captions are 0."""
    paths = [f"{source.store.root}/{path}" for path in source.manifest.paths.to_pylist()]  # type: ignore[attr-defined]
    targets = source.manifest.targets.to_pylist()
    return paths, [max(target, 0) if isinstance(target, int) else 0 for target in targets]
