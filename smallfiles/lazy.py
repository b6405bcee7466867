"""Names of a package that are imported when asked for: the help of a verb needs its configuration only.

    __getattr__ = lazy.names(__name__, {"run": ("pack", "plan"), "verify": ("verify",)})

Short, since every package that is slow to import uses it, and it may import nothing itself. The trap: a
module and a name in it that are called the same; the module hides the name once it is imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def names(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """A module's `__getattr__` that finds names in the modules of a package.

    Args:
        package: Its name.
        homes: For each module of it the names that come from there.
    """
    modules = {name: module for module, found in homes.items() for name in found}

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{modules[name]}"), name)

    return find
