"""Any torchvision `Dataset`, or an object like one, as a source: `len` and `[i] -> (image, target)`.

    source = sources.from_dataset(torchvision.datasets.CIFAR10("data"))
    pack(source, Path("cifar10.arrow"))

A picture that is a file of its own keeps the bytes of that file: the data set lists its files (`samples`, as
ImageFolder does), or is watched as it opens them. Any other picture is stored as PNG, which loses nothing.

The trap: the usual loader opens a JPEG, converts it to RGB, and a converter encodes it again: larger or
worse, and never the same picture. So what a data set returns is compared with the file. Notebook 09 uses it.
"""

from __future__ import annotations

import io
import operator
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import xxhash
from PIL import Image

from smallfiles.errors import SourceError, first_few
from smallfiles.folders import canonical_split
from smallfiles.manifest import Manifest
from smallfiles.progress import plural, progress
from smallfiles.samples import Target
from smallfiles.sources.folder import FolderStore
from smallfiles.sources.record import Lookup, Source

_TRANSFORMS = ("transform", "target_transform", "transforms")
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
_ASKED_AGAIN = 16
_absolute = os.path.abspath  # a Path would cost five times as much, a million times
Samples: TypeAlias = Sequence[tuple[str, Target]]


class Dataset(Protocol):
    """What torchvision calls a map-style data set."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True)
class _Seen:
    """One sample as the data set gives it.

    Args:
        file: The file that it is, if its bytes can be kept.
        png: The picture as PNG, if they cannot.
        target: Label or captions.
    """

    file: str | None
    png: bytes
    target: Target


def from_dataset(dataset: Dataset, *, name: str | None = None, split: str | None = None) -> Source:
    """A data set in the manner of torchvision as a source to pack.

    One that lists its files is not read for this; of another every sample is asked for once.

    Args:
        dataset: Gives (picture, target): a PIL picture or a uint8 array of rows, columns and channels, and a
            label or a list of captions; without transforms.
        name: Name of the set; that of its folder, or else of its class, if None.
        split: Which part it is; what the data set or its folder is called, or else `train`, if None.

    Raises:
        SourceError: It gives something else, or fails at a sample.
        ManifestError: A label is beyond its classes, or one file is two samples.
    """
    _refuse_transforms(dataset)
    inner = _innermost(dataset)
    listed = _listed(dataset)
    files: list[str | None]
    made: dict[int, tuple[int, int]]
    if listed is not None and _holds(dataset, listed):
        files, targets, made = [path for path, _ in listed], [target for _, target in listed], {}
    else:
        files, targets, made = _looked_through(dataset)
    root, keys = _keys(files, getattr(inner, "root", None))
    manifest = Manifest.from_columns(
        keys,
        targets,
        name=name or (root.name if root else type(inner).__name__),
        split=split or _split_of(inner, root),
        classes=_classes(inner) if targets and isinstance(targets[0], int) else (),
    )
    if not made and root is not None:
        return Source(manifest, FolderStore(root), "dataset", (), root)
    note = f"{plural(len(made), 'picture')} of {len(keys):,} stored as PNG: no file holds them as they are"
    store = DatasetStore(dataset, manifest.paths, root, made, manifest.targets)
    return Source(manifest, store, "dataset", (note,))


class DatasetStore:
    """Reads samples from their files, or has the data set make them and encodes them as PNG.

    Args:
        dataset: Makes pictures; one at a time, since few data sets are made for threads.
        names: Keys in its order.
        root: What keys of files are relative to.
        made: Size and hash of each picture that is no file, by its number.
        targets: What it told of each sample.
    """

    sequential = False

    def __init__(
        self,
        dataset: Dataset,
        names: pa.StringArray,
        root: Path | None,
        made: dict[int, tuple[int, int]],
        targets: pa.ChunkedArray,
    ) -> None:
        self._dataset, self._names, self._made, self._targets = dataset, names, made, targets
        self._files = FolderStore(root) if root is not None else None
        self._begin()

    def _begin(self) -> None:
        self._lookup, self._lock = Lookup(self._names), threading.Lock()

    def size(self, path: str) -> int:
        """Bytes of one sample."""
        found = self._made.get(self._lookup.row(path))
        return found[0] if found is not None else self._file_store(path).size(path)

    def read_into(self, path: str, buffer: memoryview) -> int:
        """Read one sample into the start of `buffer`; see `ByteStore.read_into`."""
        number = self._lookup.row(path)
        if number not in self._made:
            return self._file_store(path).read_into(path, buffer)
        with self._lock:
            image, given = _ask(self._dataset, number)
            data = _png(image, self._dataset, number)
        _refuse_other_target(
            self._dataset, number, _target(given, self._dataset, number), self._targets[number].as_py()
        )
        if (len(data), xxhash.xxh3_64_intdigest(data)) != self._made[number]:
            raise SourceError(
                f"sample {number} of {self.describe()} is another picture each time",
                expected="the same picture whenever it is asked for",
                next_step="Make the data set without augmentation, which belongs into the loader",
            )
        if len(data) <= len(buffer):
            buffer[: len(data)] = data
        return len(data)

    def _file_store(self, path: str) -> FolderStore:
        if self._files is None or self._lookup.row(path) < 0:
            raise SourceError(
                f"{path} is no sample of {self.describe()}",
                expected="a key of its manifest",
                next_step="Make the source again from the data set",
            )
        return self._files

    def describe(self) -> str:
        """`data set CIFAR10`."""
        return _name_of(self._dataset)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock": None, "_lookup": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()


def _refuse_transforms(dataset: Any) -> None:
    while dataset is not None:
        found = [name for name in _TRANSFORMS if getattr(dataset, name, None) is not None]
        if found:
            raise SourceError(
                f"{_name_of(dataset)} has a {found[0]}",
                expected="pictures and targets as they are stored",
                next_step="Make it without, and give the transform to the loader that reads what is packed",
            )
        dataset = getattr(dataset, "dataset", None)


def _innermost(dataset: Any) -> Any:
    """What a `Subset` is a part of."""
    while hasattr(dataset, "dataset") and hasattr(dataset, "indices"):
        dataset = dataset.dataset
    return dataset


def _listed(dataset: Any) -> Samples | None:
    """File and label of each sample, if the data set has such a list."""
    if hasattr(dataset, "dataset") and hasattr(dataset, "indices"):
        whole = _listed(dataset.dataset)
        return None if whole is None else [whole[number] for number in dataset.indices]
    for name in ("samples", "imgs"):
        found = getattr(dataset, name, None)
        if isinstance(found, list) and len(found) == len(dataset) and found and _is_list(found):
            return [(os.fspath(path), int(label)) for path, label in found]
    return None


def _is_list(found: list[Any]) -> bool:
    return all(
        isinstance(pair, tuple)
        and len(pair) == 2
        and isinstance(pair[0], str | os.PathLike)
        and isinstance(pair[1], int)
        for pair in found
    )


def _holds(dataset: Dataset, listed: Samples) -> bool:
    """Whether the data set gives what its list says, for its first, middle and last sample."""
    with _watched() as opened:
        for number in {0, len(listed) // 2, len(listed) - 1}:
            path, target = listed[number]
            try:
                seen = _look(dataset, number, opened)
            except SourceError:  # packing tells what is wrong with the file
                continue
            if seen.target != target or seen.file is None or _absolute(path) != seen.file:
                return False
    return True


def _looked_through(dataset: Dataset) -> tuple[list[str | None], list[Target], dict[int, tuple[int, int]]]:
    """File and target of every sample, and size and hash of each that is no file."""
    files: list[str | None] = []
    targets: list[Target] = []
    made, faults = {}, []
    with _watched() as opened, progress(len(dataset), f"look through {type(dataset).__name__}") as bar:
        for number in range(len(dataset)):
            try:
                seen = _look(dataset, number, opened)
            except SourceError as error:
                faults.append(error)
                continue
            finally:
                bar.advance()
            if seen.file is None:
                made[number] = len(seen.png), xxhash.xxh3_64_intdigest(seen.png)
            files.append(seen.file)
            targets.append(seen.target)
    if len(faults) > 1:
        raise SourceError(
            f"{len(faults):,} of {len(dataset):,} samples cannot be used: "
            + first_few((fault.got for fault in faults), len(faults), 3),
            expected=faults[0].expected,
            next_step=faults[0].next_step,
        )
    if faults:
        raise faults[0]
    for number in (
        np.linspace(0, max(len(targets) - 1, 0), min(len(targets), _ASKED_AGAIN)).astype(int).tolist()
    ):
        again = _target(_ask(dataset, number)[1], dataset, number)
        _refuse_other_target(dataset, number, again, targets[number])
    return files, targets, made


def _refuse_other_target(dataset: Dataset, number: int, found: Target, before: Target) -> None:
    if found != before:
        raise SourceError(
            f"sample {number} of {_name_of(dataset)} has the target {before!r} once and {found!r} later",
            expected="the same target whenever it is asked for",
            next_step="Make the data set without what changes targets, such as mixing or a random choice",
        )


def _look(dataset: Dataset, number: int, opened: list[Any]) -> _Seen:
    """Ask for one sample, and see which file it is."""
    opened.clear()
    image, given = _ask(dataset, number)
    names = [_absolute(name) for name in opened if isinstance(name, str | os.PathLike)]
    target = _target(given, dataset, number)
    if len(opened) == len(names) == 1 and _is_picture_of(names[0], image):
        return _Seen(names[0], b"", target)
    return _Seen(None, _png(image, dataset, number), target)


def _ask(dataset: Dataset, number: int) -> tuple[Image.Image, Any]:
    """The picture, loaded, and the target as it was given."""
    try:
        given = dataset[number]
        if isinstance(given, tuple | list) and len(given) == 2 and isinstance(given[0], Image.Image):
            given[0].load()
    except Exception as error:  # whatever other people's code raises
        raise _bad(dataset, number, f"cannot be read ({type(error).__name__}: {error})") from error
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise _bad(dataset, number, f"is {_kind(given)}")
    image, target = given
    if isinstance(image, np.ndarray) and image.dtype == np.uint8:
        try:
            return Image.fromarray(image), target
        except (TypeError, ValueError):
            raise _bad(dataset, number, f"has an array of shape {list(image.shape)}") from None
    if not isinstance(image, Image.Image):
        raise _bad(dataset, number, f"has {_kind(image)} instead of a picture")
    return image, target


def _target(given: Any, dataset: Dataset, number: int) -> Target:
    if isinstance(given, tuple | list) and all(isinstance(text, str) for text in given):
        return list(given)
    try:
        return int(operator.index(given))
    except (TypeError, ValueError, RuntimeError):  # a tensor of several numbers raises the last two
        raise _bad(dataset, number, f"has {_kind(given)} as target") from None


def _png(image: Image.Image, dataset: Dataset, number: int) -> bytes:
    if image.mode not in _PNG_MODES:
        raise _bad(dataset, number, f"is a picture of mode {image.mode}, which PNG does not hold")
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def _is_picture_of(path: str, image: Image.Image) -> bool:
    """Whether a file holds the very pixels of a picture, perhaps in another colour space."""
    try:
        with Image.open(path) as stored:
            same = stored.convert(image.mode)
    except (OSError, ValueError):
        return False
    return same.size == image.size and same.tobytes() == image.tobytes()


@contextmanager
def _watched() -> Iterator[list[Any]]:
    """What Pillow opens in this thread: names of files, None for what has no name."""
    opened: list[Any] = []
    plain, us = Image.open, threading.get_ident()

    def watching(file: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == us:
            opened.append(file if isinstance(file, str | os.PathLike) else getattr(file, "name", None))
        return plain(file, *args, **kwargs)

    Image.open = watching  # type: ignore[assignment]
    try:
        yield opened
    finally:
        Image.open = plain


def _keys(files: list[str | None], told: Any) -> tuple[Path | None, list[str]]:
    """The folder of all files, and keys: paths below it, or numbers for what is no file."""
    paths = [None if file is None else _absolute(file) for file in files]
    real = [path for path in paths if path is not None]
    if not real:
        return None, [f"{number:08d}.png" for number in range(len(paths))]
    root = _absolute(told) if isinstance(told, str | os.PathLike) else ""
    start = root.rstrip("/") + "/"
    if not root or not all(path.startswith(start) for path in real):
        root = os.path.commonpath([os.path.dirname(path) for path in real])  # noqa: PTH120 - a million of them
        start = root.rstrip("/") + "/"
    keys = [f"{number:08d}.png" if path is None else path[len(start) :] for number, path in enumerate(paths)]
    return Path(root), keys


def _split_of(dataset: Any, root: Path | None) -> str:
    told, train = getattr(dataset, "split", None), getattr(dataset, "train", None)
    if isinstance(told, str) and told:
        return canonical_split(told) or told
    if isinstance(train, bool):
        return "train" if train else "test"
    return (canonical_split(root.name) if root is not None else None) or "train"


def _classes(dataset: Any) -> tuple[str, ...]:
    """Class names in label order; those of ImageNet by number, since two of its names come twice."""
    found = getattr(dataset, "wnids", None) or getattr(dataset, "classes", None)
    if not isinstance(found, list | tuple) or not all(isinstance(name, str) for name in found):
        return ()
    return tuple(found)


def _name_of(dataset: Any) -> str:
    return f"data set {type(dataset).__name__}"


def _kind(value: Any) -> str:
    shape = getattr(value, "shape", None)
    of = f" of {value.dtype} {list(shape)}" if shape is not None and hasattr(value, "dtype") else ""
    return f"a {type(value).__name__}{of}"


def _bad(dataset: Dataset, number: int, what: str) -> SourceError:
    return SourceError(
        f"sample {number} of {_name_of(dataset)} {what}",
        expected="a PIL picture or a uint8 array, and with it an integer label or a list of captions",
        next_step="Make the data set without transforms, or leave it out with torch.utils.data.Subset",
    )
