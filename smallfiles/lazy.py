"""Import the names of a package at first use: the help of a verb needs its configuration only.

    if TYPE_CHECKING:
        from smallfiles.pack.run import pack as pack

    __getattr__ = lazy.names(__name__)

Type checkers read the list below `if TYPE_CHECKING:`, and so does this at the first use of a name, so that
each name is written once.

Short, since every package that is slow to import uses it, and it may import nothing itself. The trap: a
module and a name in it that are called the same; the module hides the name once it is imported.
"""

from __future__ import annotations

import ast
import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any


def names(package: str) -> Callable[[str], Any]:
    """Return a `__getattr__` for the names that a package imports from its own modules.

    Args:
        package: Name of the package.
    """

    def find(name: str) -> Any:
        home = _homes(package).get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = importlib.import_module(home)
        except Exception as error:  # a package of others may raise anything while it is imported
            from smallfiles.errors import MissingPackageError  # rarely needed

            raise MissingPackageError.of_import(error, f"{package}.{name}") or error from error
        return getattr(module, name)

    return find


@functools.cache
def _homes(package: str) -> dict[str, str]:
    """Return the module of each name."""
    loader: Any = sys.modules[package].__loader__
    source = loader.get_source(package)
    found = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom))
    return {
        alias.name: node.module
        for node in found
        for alias in node.names
        if node.module is not None and node.module.startswith(f"{package}.")
    }
