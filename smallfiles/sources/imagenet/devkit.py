"""ImageNet's development kit: the class of each id, and the labels of the validation images.

`data/meta.mat` lists the synsets; the classes are those without children. Line i of the ground truth is the
1-based ILSVRC2012_ID of validation image i.

The trap: ILSVRC2012_ID - 1 is *not* the label that PyTorch models use. That is the rank of the wnid
among all sorted wnids. Image 1 has id 490 and label 65. Notebook 02 catches the mistake.

Source: readme.txt of ILSVRC2012_devkit_t12.
"""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from smallfiles.errors import SourceError, refuse_shortage

META = "meta.mat"
TRUTH = "ILSVRC2012_validation_ground_truth.txt"


@dataclass(frozen=True)
class Devkit:
    """The contents of a development kit.

    Args:
        wnid_of_id: Class of each ILSVRC2012_ID, in the order of the ids.
        ground_truth: ILSVRC2012_ID of each validation image, in the order of their numbers.
    """

    wnid_of_id: dict[int, str]
    ground_truth: npt.NDArray[np.int64]

    def wnid_of_val(self, number: int) -> str | None:
        """Class of a validation image by its number, counted from 1; None if it is not listed."""
        if not 1 <= number <= len(self.ground_truth):
            return None
        return self.wnid_of_id[int(self.ground_truth[number - 1])]


def is_devkit(path: Path) -> bool:
    """Whether a path is a development kit: its folder, `data` in it, or the tar.gz."""
    if path.is_file():
        return "devkit" in path.name and ".tar" in path.name
    return (path / "data" / META).is_file() or (path / META).is_file()


def load_devkit(path: Path) -> Devkit:
    """Read a development kit.

    Args:
        path: The folder `ILSVRC2012_devkit_t12`, the `data` in it, or the tar.gz.

    Raises:
        SourceError: A file is missing or not what it should be.
    """
    meta, truth = _files(path)
    wnid_of_id = _classes(meta, path)
    try:
        ground_truth = np.array(truth.split(), np.int64)
    except ValueError as error:
        raise _bad(path, f"has a line in {TRUTH} that is not a number ({error})") from error
    unknown = sorted(set(ground_truth.tolist()) - wnid_of_id.keys())
    if unknown:
        raise _bad(path, f"has ids in {TRUTH} that {META} does not list ({unknown[:5]})")
    return Devkit(wnid_of_id, ground_truth)


def _files(path: Path) -> tuple[bytes, bytes]:
    try:
        if path.is_dir():
            folder = path if (path / META).is_file() else path / "data"
            return (folder / META).read_bytes(), (folder / TRUTH).read_bytes()
        with tarfile.open(path) as archive:
            found = {member.name.rpartition("/")[2]: member for member in archive if member.isfile()}
            meta, truth = (archive.extractfile(found[name]) for name in (META, TRUTH))
            return (meta.read() if meta else b""), (truth.read() if truth else b"")
    except KeyError as error:
        raise _bad(path, f"has no {error.args[0]}") from error
    except (OSError, EOFError, tarfile.TarError) as error:
        refuse_shortage(error, path)
        raise _bad(path, f"cannot be read ({error})") from error


def _classes(data: bytes, path: Path) -> dict[int, str]:
    from scipy.io import loadmat  # a second to import

    stream: Any = io.BytesIO(data)
    try:
        synsets: Any = np.atleast_1d(loadmat(stream, squeeze_me=True, variable_names=["synsets"])["synsets"])
        leaves = sorted(
            (int(row["ILSVRC2012_ID"]), str(row["WNID"])) for row in synsets if int(row["num_children"]) == 0
        )
    except Exception as error:  # on damaged input scipy may raise anything
        raise _bad(path, f"has a {META} that cannot be read ({error})") from error
    if not leaves or len({number for number, _ in leaves}) != len(leaves):
        raise _bad(path, f"has {len(leaves)} classes in {META}, or one id twice")
    return dict(leaves)


def _bad(path: Path, what: str) -> SourceError:
    return SourceError(
        f"the development kit {path} {what}",
        expected=f"data/{META} and data/{TRUTH} as ILSVRC2012_devkit_t12 has them",
        next_step="Download ILSVRC2012_devkit_t12.tar.gz again",
    )
