"""Check the kernel, and format the errors of cells.

The trap: `from helpers import show, start` imports the first `helpers` on the search path of the kernel:
perhaps that of another checkout, or a package of the same name. So the folder of the notebook is compared
with that of the imported package. Notebook 00 explains kernels.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import sys
import textwrap
from pathlib import Path
from types import TracebackType
from typing import Any

from smallfiles.errors import MissingPackageError, SmallfilesError, UsageError

CHECKOUT = Path(__file__).resolve().parents[1]
NEEDED = ("numpy", "pyarrow", "h5py", "PIL", "torch", "torchvision", "webdataset", "matplotlib", "xxhash")
CHANGE_KERNEL = (
    "Stop this server and start it with `make lab` in the course's folder, or run `make kernel` there "
    'once and choose Kernel > Change Kernel > "Small Files, Big Machines"'
)

_WIDTH = 100  # characters; the narrowest cell that we expect has room for more


def is_strict() -> bool:
    """Whether failures are raised unchanged, for tests (`COURSE_STRICT=1`)."""
    return os.environ.get("COURSE_STRICT", "") not in ("", "0")


def check_kernel(here: Path | None = None) -> None:
    """Refuse a kernel that cannot run the course, before it fails in some library.

    Args:
        here: The notebook's folder; None takes the working folder.

    Raises:
        MissingPackageError: Packages are missing in this kernel's environment.
        UsageError: The kernel imports the helpers of another checkout.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingPackageError(
            f"this kernel ({sys.executable}) has no {' and no '.join(missing[:3])}",
            expected="the environment of the course",
            next_step=CHANGE_KERNEL,
        )
    own = checkout_of(here or Path.cwd())
    if own is not None and own != CHECKOUT:
        raise UsageError(
            f"this kernel imports the helpers of {CHECKOUT}",
            expected=f"those of {own}, where this notebook lies",
            next_step=CHANGE_KERNEL,
        )


def checkout_of(folder: Path) -> Path | None:
    """The checkout of this course that `folder` lies in, if any."""
    real = folder.resolve()
    return next((p for p in (real, *real.parents) if (p / "helpers/kernel.py").is_file()), None)


def install_handlers() -> None:
    """Show failures as sentences in this kernel; does nothing outside a notebook or in strict mode."""
    shell = _shell()
    if shell is not None and not is_strict():
        shell.set_custom_exc((SmallfilesError, NameError, ModuleNotFoundError), _handle)


def _shell() -> Any:
    ipython = sys.modules.get("IPython")  # in a notebook it is always imported
    return ipython.get_ipython() if ipython is not None else None


def _handle(
    shell: Any,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType,
    tb_offset: int | None = None,
) -> None:
    """Show `error`; the cell still counts as failed, so that Run All stops here."""
    if isinstance(error, SmallfilesError):
        lines = as_lines(error)
    else:
        lines = shell.InteractiveTB.structured_traceback(kind, error, trace, tb_offset=tb_offset)
        lines = [*lines, "", hint(error)]
    shell._showtraceback(kind, error, lines)


def as_lines(error: SmallfilesError, without: str = "") -> list[str]:
    """Return the parts of the sentence with their names in bold, broken between words.

    JupyterLab breaks a longer line anywhere, also inside a word.

    Args:
        error: What was raised.
        without: A part of paths to leave out.
    """
    parts = [("Got", error.got), ("Expected", error.expected), ("Next step", error.next_step)]
    if keywords := _keywords(f"{error}"):
        parts.append(("In Python", keywords))
    lines = []
    for name, text in parts:
        first, *others = broken(f"{text}.", without)
        lines += [f"\x1b[1m{name:9}\x1b[0m  {first}", *(f"{'':11}{other}" for other in others)]
    return lines


def broken(text: str, without: str = "") -> list[str]:
    """Return the lines of a text, broken between words, without a part of its paths."""
    text = text.replace(without, "") if without else text
    return textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _keywords(text: str) -> str:
    """Say which keyword each flag of our commands in a text is in Python; empty if there is none."""
    from smallfiles.loading import LoaderConfig
    from smallfiles.pack import PackConfig
    from smallfiles.sources import SourceOptions

    fields = {
        field.name for kind in (SourceOptions, PackConfig, LoaderConfig) for field in dataclasses.fields(kind)
    }
    known = {name: name for name in fields} | {"field": "columns"}
    flags = dict.fromkeys(re.findall(r"(?<![\w-])--([a-z][a-z-]*)", text))
    named = {flag: known.get(flag.replace("-", "_")) for flag in flags}
    return ", ".join(f"--{flag} is the keyword {name}" for flag, name in named.items() if name)


def hint(error: BaseException) -> str:
    """What to do about a name or a module that is not there."""
    name = getattr(error, "name", None) or "This name"
    if isinstance(error, ModuleNotFoundError):
        return f"This kernel ({sys.executable}) has no {name}. {CHANGE_KERNEL}."
    return (
        f"{name} is not known yet. If a cell above makes it, run that first: "
        "Run > Run All Above Selected Cell. The set-up cell always comes first."
    )
