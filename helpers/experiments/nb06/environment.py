"""Import a Python package from a slow file system: as many files, and as one image on the same storage.

The package is copied out of this environment, packed, and both lie in one folder that is seen through
the latency of a parallel file system. Each import is a fresh interpreter.

The trap: compiling. A copy without its `.pyc` files, or on a read-only image without them, is compiled
at each import, and that time has nothing to do with storage; so they are written first. Notebook 06.
"""

from __future__ import annotations

import compileall
import os
import py_compile
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

from pysquashfs import SquashFSError, mount, pack
from pysquashfs.mounting import how_to_mount
from pysquashfs.writer.folder import folder_items
from smallfiles import slowfs
from smallfiles.errors import ResourceError, UsageError
from smallfiles.slowfs import SlowConfig

PACKAGE = "networkx"
STORAGE = SlowConfig(latency_s=0.002)
_LIMIT_S = 120


@dataclass(frozen=True)
class ImportTrial:
    """One import.

    Args:
        name: Where the package lay.
        seconds: Of a whole interpreter, its start included.
        operations: What the slow storage was asked: look-ups, opens, listings; None where it was not slow.
    """

    name: str
    seconds: float
    operations: int | None


@dataclass(frozen=True)
class Environment:
    """A package as a folder and as an image, side by side.

    Args:
        place: The folder that holds both.
        files: How many files the package has.
        folder_bytes: Their size.
        image_bytes: Of the image.
        pack_s: Seconds that packing took.
    """

    place: Path
    files: int
    folder_bytes: int
    image_bytes: int
    pack_s: float

    @property
    def folder(self) -> Path:
        """Goes into PYTHONPATH."""
        return self.place / "packages"

    @property
    def image(self) -> Path:
        """The same as one file."""
        return self.place / "packages.sqfs"


def prepare(place: Path, package: str = PACKAGE) -> Environment:
    """Copy an installed package and pack it.

    Args:
        place: A folder; what is in it is replaced.
        package: Name of an installed package of Python code.

    Raises:
        UsageError: It is not installed, or is no folder of files.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(
            f"{package} is no installed package",
            expected="one that is a folder of modules",
            next_step="Name another one, for example torch's dependency networkx",
        )
    shutil.rmtree(place, ignore_errors=True)
    folder = place / "packages"
    shutil.copytree(next(iter(spec.submodule_search_locations)), folder / package)
    # The time of a source, by which Python knows that its .pyc fits, is not in an image; its hash is.
    compileall.compile_dir(
        folder,
        quiet=2,
        force=True,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    began = perf_counter()
    packed = pack(place / "packages.sqfs", folder_items(folder), compression="gzip")
    return Environment(place, packed.files, packed.bytes, packed.image_bytes, perf_counter() - began)


def import_trials(environment: Environment, storage: SlowConfig = STORAGE) -> tuple[list[ImportTrial], str]:
    """Import from here, from many slow files, and from one slow image.

    Args:
        environment: From `prepare`.
        storage: How slow.

    Returns:
        Trials, and a note on what could not be tried, or "".
    """
    package = next(environment.folder.iterdir()).name
    trials = [ImportTrial("many files, this machine", _seconds(environment.folder, package), None)]
    reason = slowfs.why_not()
    if reason is not None:
        return trials, f"no folder can be made slow here: {reason}"
    with slowfs.mounted(environment.place, storage) as slow:
        many = slow.path / environment.folder.name
        trials.append(_counted("many files, slow storage", slow, many, package))
        try:
            with _mounted(slow.path / environment.image.name) as folder:
                trials.append(_counted("one image, slow storage", slow, folder, package))
        except (SquashFSError, ResourceError) as error:
            return trials, f"the image cannot be mounted here: {error.got}"
    return trials, ""


@contextmanager
def _mounted(image: Path) -> Iterator[Path]:
    """The image by FUSE; the kernel's loop device would keep the slow folder busy."""
    ways = [way for way in how_to_mount(image) if way.name in ("squashfuse_ll", "squashfuse")]
    usable = [way for way in ways if way.available]
    if not usable:
        raise ResourceError(ways[0].reason, expected="squashfuse", next_step="Install it")
    with mount(image, way=usable[0].name) as folder:
        yield folder


def _counted(name: str, slow: slowfs.SlowFolder, folder: Path, package: str) -> ImportTrial:
    before = _operations(slow.counts())
    seconds = _seconds(folder, package)
    return ImportTrial(name, seconds, _operations(slow.counts()) - before)


def _operations(counts: dict[str, int]) -> int:
    return sum(count for name, count in counts.items() if name not in ("read", "bytes"))


def _seconds(folder: Path, package: str) -> float:
    """A fresh interpreter imports the package from there, and nothing else from there."""
    code = f"import {package}; assert {package}.__file__.startswith({str(folder)!r}), {package}.__file__"
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    began = perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    seconds = perf_counter() - began
    if done.returncode:
        raise UsageError(
            f"{package} cannot be imported from {folder} ({done.stderr.strip().splitlines()[-1:]})",
            expected="a package that needs only what is installed",
            next_step="Name another one",
        )
    return seconds


def in_words(trials: list[ImportTrial]) -> str:
    """The sentence that the trials support."""
    slow = [trial for trial in trials if trial.operations is not None]
    told = [f"{trial.name}: {trial.seconds:.1f} s" for trial in trials]
    told = [
        text + (f" and {trial.operations:,} operations" if trial.operations is not None else "")
        for text, trial in zip(told, trials, strict=True)
    ]
    if len(slow) < 2:
        return "; ".join(told) + "."
    many, image = slow[:2]
    factor = many.seconds / image.seconds
    asked = (many.operations or 0) / max(1, image.operations or 0)
    end = f"From the image, 1/{asked:,.0f} of the operations reached the storage, and the import took "
    end += f"1/{factor:.0f} of the time." if factor >= 1.5 else "about as long here."
    return "; ".join(told) + f". **{end}**"
