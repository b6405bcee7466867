"""Feed deep learning from many small files: the toolbox.

The rooms follow the data's path: `sources` -> `manifest` -> `pack` -> `staging` -> `formats` -> `images` ->
`loading` -> `training`. Import what you need (`from smallfiles import formats`); nothing heavy is imported
here, so that `smallfiles --help` answers at once on a login node. `PackedFolder`, the class in place of
torchvision's `ImageFolder`, is imported at its first use.

The trap: these lines run in any Python, so they must be ones that Python 3.6 understands. All packages of a
clone import this one first.
"""

import sys
from typing import TYPE_CHECKING, Any

if sys.version_info < (3, 11):  # noqa: UP036 - nothing has looked at it before, in a clone
    sys.exit(
        f"error: this is Python {sys.version_info[0]}.{sys.version_info[1]} ({sys.executable}); expected "
        "Python 3.11 or newer. In a clone run make setup, which finds one; then: source .venv/bin/activate"
    )

if TYPE_CHECKING:
    from smallfiles.loading.packed_folder import PackedFolder as PackedFolder

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name != "PackedFolder":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from smallfiles.loading.packed_folder import PackedFolder

    return PackedFolder
