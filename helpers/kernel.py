"""Is this the right kernel, and what a participant sees when a cell fails.

The trap: `from helpers import show, start` finds whatever `helpers` the kernel's search path offers
first: another checkout's, or somebody's package of the same name. So the folder that the notebook
lies in is compared with the one that was imported. Notebook 00 explains kernels.
"""

from __future__ import annotations

import importlib.util
import os
import sys
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


def is_strict() -> bool:
    """Whether failures shall be raised as they are, as the tests want (`COURSE_STRICT=1`)."""
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


def as_lines(error: SmallfilesError) -> list[str]:
    """The sentence, one part a line, with the parts' names in bold."""
    parts = (("Got", error.got), ("Expected", error.expected), ("Next step", error.next_step))
    return [f"\x1b[1m{name:9}\x1b[0m  {text}." for name, text in parts]


def hint(error: BaseException) -> str:
    """What to do about a name or a module that is not there."""
    name = getattr(error, "name", None) or "This name"
    if isinstance(error, ModuleNotFoundError):
        return f"This kernel ({sys.executable}) has no {name}. {CHANGE_KERNEL}."
    return (
        f"{name} is not known yet. If a cell above makes it, run that first: "
        "Run > Run All Above Selected Cell. The set-up cell always comes first."
    )
