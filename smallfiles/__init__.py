"""Feed deep learning from many small files: the toolbox.

The rooms follow the data's path: `sources` -> `manifest` -> `pack` -> `staging` -> `formats` -> `images` ->
`loading` -> `training`. Import what you need (`from smallfiles import formats`); nothing heavy is imported
here, so that `smallfiles --help` answers at once on a login node. `PackedFolder`, the class in place of
torchvision's `ImageFolder`, is imported at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smallfiles.loading.packed_folder import PackedFolder as PackedFolder

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name != "PackedFolder":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from smallfiles.loading.packed_folder import PackedFolder

    return PackedFolder
