"""A data set of torchvision or Hugging Face, or an object like one, as a source: `len` and `[i]`.

    source = sources.from_dataset(torchvision.datasets.CIFAR10("data"))
    pack(source, Path("cifar10.arrow"))

    kept as they are   the files of a list `samples`, as ImageFolder has it; bytes of image files;
                       the images of a table of Hugging Face, as its Parquet files hold them
    stored as .npy     arrays of NumPy, such as pixels that are never decoded again
    stored as PNG      every other picture, which loses nothing, and a note says so

The trap: the usual loader decodes a JPEG to RGB, and a converter that encodes it again changes the picture.
So samples are compared with the files in the list of the data set. Notebook 09 uses it.
"""

from __future__ import annotations

import io
import operator
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import xxhash
from PIL import Image

from smallfiles import contents
from smallfiles.errors import SourceError, first_few
from smallfiles.folders import canonical_split
from smallfiles.images.decoding import PILLOW_RAISES
from smallfiles.manifest import Manifest
from smallfiles.progress import plural, progress
from smallfiles.sources.record import FolderStore, NamedStore, Source

_TRANSFORMS = ("transform", "target_transform", "transforms")
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
_absolute = os.path.abspath  # a Path would cost five times as much, a million times
Target: TypeAlias = int | list[str]
Samples: TypeAlias = Sequence[tuple[str, Target]]


class Dataset(Protocol):
    """A map-style data set, as torchvision has them: an object with `len` and `[i]`."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True)
class _Items:
    """The samples of a data set by number.

    Args:
        dataset: The complete data set.
        rows: The number of each sample in the data set.
        columns: The image column and the target column of a Hugging Face table. It is None for other data
            sets.
    """

    dataset: Any
    rows: Sequence[int]
    columns: tuple[str, str] | None

    def fetch(self, number: int) -> tuple[Any, Any]:
        """Return the picture and the target of a sample as the data set returns them.

        A picture whose file was opened lazily is loaded.
        """
        try:
            given = self.dataset[int(self.rows[number])]
            if self.columns is not None:
                image, target = (given[name] for name in self.columns)
                return image["bytes"] or Path(image["path"]).read_bytes(), target
            if isinstance(given, tuple | list) and len(given) == 2 and isinstance(given[0], Image.Image):
                given[0].load()
        except Exception as error:  # a foreign data set may raise anything
            raise self.bad(number, f"cannot be read ({type(error).__name__}: {error})") from error
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise self.bad(number, f"is {_kind(given)}")
        return given[0], given[1]

    def encoded(self, number: int) -> tuple[bytes, Any]:
        """Return the bytes to store for a sample, and its target as the data set returns it."""
        image, target = self.fetch(number)
        if isinstance(image, bytes | bytearray | memoryview):
            return bytes(image), target
        if isinstance(image, np.ndarray):
            if image.dtype.hasobject:
                raise self.bad(number, f"has an array of {image.dtype}, which is not of numbers")
            np.save(out := io.BytesIO(), image, allow_pickle=False)
            return out.getvalue(), target
        return self._png(number, self.picture(number, image)), target

    def picture(self, number: int, image: Any) -> Image.Image:
        """Return the picture of a sample as a Pillow image. Raise an error if it is something else."""
        if not isinstance(image, Image.Image):
            raise self.bad(number, f"has {_kind(image)} instead of a picture")
        return image

    def target(self, number: int, given: Any) -> Target:
        """Convert the target of a sample to a label or a list of captions."""
        if isinstance(given, tuple | list) and all(isinstance(text, str) for text in given):
            return list(given)
        try:
            return int(operator.index(given))
        except (TypeError, ValueError, RuntimeError):  # a tensor of several numbers raises the last two
            cure = None
            if self.columns is not None and isinstance(given, str):
                cure = f'Turn class names into numbers: dataset.class_encode_column("{self.columns[1]}")'
            raise self.bad(number, f"has {_kind(given)} as target", cure) from None

    def _png(self, number: int, image: Image.Image) -> bytes:
        if image.mode not in _PNG_MODES:
            raise self.bad(number, f"is a picture of mode {image.mode}, which PNG does not hold")
        out = io.BytesIO()
        image.save(out, "PNG")
        return out.getvalue()

    def refuse_changed(self, number: int, found: Target, before: Target) -> None:
        """Raise SourceError if a sample now has another target than before."""
        if found != before:
            raise SourceError(
                f"sample {number} of {_name_of(self.dataset)} first had the target {before!r} and now has "
                f"{found!r}",
                expected="the same target each time",
                next_step="Remove what changes targets, such as mixing or a random choice",
            )

    def bad(self, number: int, what: str, next_step: str | None = None) -> SourceError:
        """Return the error for a sample that cannot be stored."""
        return SourceError(
            f"sample {number} of {_name_of(self.dataset)} {what}",
            expected="(picture, target): a PIL picture, an array of numbers or the bytes of an image file; "
            "an integer label or a list of captions",
            next_step=next_step or "Return these, or pack the files themselves with sources.load",
        )


def from_dataset(dataset: Dataset, *, name: str | None = None, split: str | None = None) -> Source:
    """Make a source to pack from a torchvision-style data set or a Hugging Face table.

    Every sample is read once, unless the data set lists its files.

    Args:
        dataset: An object that returns (picture, target) without transforms. The picture is a PIL picture, an
            array of numbers or the bytes of an image file. The target is a label or a list of captions. A
            table has one column of images, and one of labels.
        name: Name of the set. The default is the name of its folder, or else of its class.
        split: Split of the set. The default is the split of the data set or of its folder, or else `train`.

    Raises:
        SourceError: The data set returns something else, or fails at a sample.
        ManifestError: A label exceeds the number of classes, or one file belongs to two samples.
    """
    _refuse_transforms(dataset)
    items, classes = _items(dataset)
    inner, listed = items.dataset, _listed(items)
    if listed is not None and _matches(items, listed):
        root, keys = _keys([path for path, _ in listed], getattr(inner, "root", None))
        targets, made = [target for _, target in listed], None
    else:
        root, (keys, targets, made) = None, _scan(items)
    about = getattr(getattr(inner, "info", None), "dataset_name", None)
    manifest = Manifest.from_columns(
        keys,
        targets,
        name=name or (root.name if root else about or type(inner).__name__),
        split=split or _split_of(inner, root),
        classes=classes if targets and isinstance(targets[0], int) else (),
    )
    if root is not None:
        return Source(manifest, FolderStore(root, follow_links=True), "dataset", (), root)
    assert made is not None
    store = DatasetStore(items, manifest.paths, manifest.targets, *made)
    if len(manifest):
        store.read_into(manifest.path(0), memoryview(bytearray(int(made[0][0]))))  # is it equal each time?
    return Source(manifest, store, "dataset", _notes(items, keys))


def _notes(items: _Items, keys: Sequence[str]) -> tuple[str, ...]:
    drawn = sum(key.endswith(".png") for key in keys)
    if not drawn or items.columns is not None:
        return ()
    return (
        f"{plural(drawn, 'picture')} of {len(keys):,} stored as PNG, larger than JPEG: files are packed "
        "unchanged if the data set lists them in `samples` or returns encoded bytes",
    )


class DatasetStore(NamedStore):
    """Reads samples from the data set itself, and encodes those that are pixels.

    Args:
        items: The samples. They are read one at a time, because few data sets are thread-safe.
        names: The keys of the samples, in the same order.
        targets: The expected target of each sample.
        sizes: Size of each sample in bytes, int64.
        hashes: The xxh3 hash of each sample's bytes, uint64.
    """

    made_from = "the data set"
    of_process = ("_lookup", "_lock")

    def __init__(
        self, items: _Items, names: pa.StringArray, targets: pa.Array, sizes: np.ndarray, hashes: np.ndarray
    ) -> None:
        self._items, self._keys, self._targets = items, names, targets
        self._sizes, self._hashes = sizes, hashes
        super().__init__(Path())

    def _begin(self) -> None:
        super()._begin()
        self._lock = threading.Lock()

    def _names(self) -> pa.StringArray:
        return self._keys

    def size(self, path: str) -> int:
        """Return the size of one sample in bytes."""
        return int(self._sizes[self._row(path)])

    def _bytes(self, path: str) -> bytes:
        number = self._row(path)
        with self._lock:
            data, given = self._items.encoded(number)
        self._items.refuse_changed(number, self._items.target(number, given), self._targets[number].as_py())
        if (len(data), xxhash.xxh3_64_intdigest(data)) != (self._sizes[number], self._hashes[number]):
            raise SourceError(
                f"sample {number} of {self.describe()} is another picture each time",
                expected="the same picture each time",
                next_step="Make the data set without augmentation, which belongs in the loader",
            )
        return data

    def describe(self) -> str:
        """Return the name of the data set for messages, such as `data set CIFAR10`."""
        return _name_of(self._items.dataset)


def _refuse_transforms(dataset: Any) -> None:
    while dataset is not None:
        found = [name for name in _TRANSFORMS if getattr(dataset, name, None) is not None]
        if _is_table(dataset) and dataset.format["type"] is not None:
            found = ["format or transform"]
        if found:
            raise SourceError(
                f"{_name_of(dataset)} has a {found[0]}",
                expected="pictures and targets as they are stored",
                next_step="Make it without, and use the transform in the loader that reads the packed file",
            )
        dataset = getattr(dataset, "dataset", None)


def _items(dataset: Any) -> tuple[_Items, tuple[str, ...]]:
    """Return the samples of a data set, or of a `Subset` of a data set, and the names of its classes."""
    rows: Sequence[int] = range(len(dataset))
    while hasattr(dataset, "dataset") and hasattr(dataset, "indices"):
        dataset, rows = dataset.dataset, [dataset.indices[row] for row in rows]
    if not _is_table(dataset):
        return _Items(dataset, rows, None), _classes(dataset)
    image, target = _columns(dataset)
    kinds = dataset.features
    # This returns the bytes of image files instead of pixels, which would be larger as PNG.
    encoded = dataset.cast_column(image, type(kinds[image])(decode=False))
    return _Items(encoded, rows, (image, target)), tuple(getattr(kinds[target], "names", None) or ())


def _is_table(dataset: Any) -> bool:
    """Check whether a data set comes from the package `datasets`, which need not be installed."""
    return hasattr(dataset, "cast_column") and isinstance(getattr(dataset, "features", None), dict)


def _columns(dataset: Any) -> tuple[str, str]:
    """Return the column of the picture and the column of the target. There must be exactly one of each."""
    kinds = {name: type(kind).__name__ for name, kind in dataset.features.items()}
    images = [name for name, kind in kinds.items() if kind == "Image"]
    labels = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    targets = labels or [name for name in kinds if name not in images]
    if len(images) != 1 or len(targets) != 1:
        raise SourceError(
            f"{_name_of(dataset)} has the columns {', '.join(f'{n} ({k})' for n, k in kinds.items())}",
            expected="one column of images, and one of labels",
            next_step=_columns_cure(dataset, images, targets),
        )
    return images[0], targets[0]


def _columns_cure(dataset: Any, images: Sequence[str], targets: Sequence[str]) -> str:
    """Return the advice for a table that does not have exactly one image column and one target column."""
    if not images:
        kinds = {name: getattr(kind, "dtype", "") for name, kind in dataset.features.items()}
        likely = sorted(kinds, key=lambda name: kinds[name] not in ("binary", "large_binary"))
        return f'Say which column holds the images: dataset.cast_column("{likely[0]}", datasets.Image())'
    if not targets:
        return 'Add labels; -1 stands for none: dataset.add_column("label", [-1] * len(dataset))'
    return f'Choose two of them, such as dataset.select_columns(["{images[0]}", "{targets[0]}"])'


def _listed(items: _Items) -> Samples | None:
    """Return the file and the label of each sample. Return None if the data set has no such list."""
    for name in ("samples", "imgs"):
        found = getattr(items.dataset, name, None)
        if isinstance(found, list) and len(found) == len(items.dataset) and found and _is_list(found):
            return [(_absolute(found[row][0]), int(found[row][1])) for row in items.rows]
    return None


def _is_list(found: list[Any]) -> bool:
    return all(
        isinstance(pair, tuple)
        and len(pair) == 2
        and isinstance(pair[0], str | os.PathLike)
        and isinstance(pair[1], int)
        for pair in found
    )


def _matches(items: _Items, listed: Samples) -> bool:
    """Check whether the first, middle and last sample equal the files that the data set lists for them."""
    for number in {0, len(listed) // 2, len(listed) - 1}:
        path, target = listed[number]
        try:
            image, given = items.fetch(number)
            if items.target(number, given) != target or isinstance(image, np.ndarray):
                return False
            if not _is_picture_of(path, items.picture(number, image)):
                return False
        except SourceError:  # packing will name the file
            continue
    return True


def _scan(items: _Items) -> tuple[list[str], list[Target], tuple[np.ndarray, np.ndarray]]:
    """Read every sample. Return the keys, the targets, and the sizes and hashes of the encoded samples."""
    keys: list[str] = []
    targets: list[Target] = []
    sizes, hashes = np.zeros(len(items.rows), np.int64), np.zeros(len(items.rows), np.uint64)
    faults = []
    with progress(len(items.rows), f"look through {type(items.dataset).__name__}") as bar:
        for number in range(len(items.rows)):
            try:
                data, given = items.encoded(number)
                targets.append(items.target(number, given))
                keys.append(f"{number:08d}.{_suffix(items, number, data)}")
                sizes[number], hashes[number] = len(data), xxhash.xxh3_64_intdigest(data)
            except SourceError as error:
                faults.append(error)
            bar.advance()
    if len(faults) > 1:
        raise SourceError(
            f"{len(faults):,} of {len(items.rows):,} samples cannot be used: "
            + first_few((fault.got for fault in faults), len(faults), 3),
            expected=faults[0].expected,
            next_step=faults[0].next_step,
        )
    if faults:
        raise faults[0]
    return keys, targets, (sizes, hashes)


def _suffix(items: _Items, number: int, data: bytes) -> str:
    if kind := contents.kind_of(data, (*contents.PICTURES, "NumPy")):
        return kind.lower().replace("numpy", "npy")
    raise items.bad(number, f"has bytes that are no image (they begin with {data[:8]!r})")


def _is_picture_of(path: str, image: Image.Image) -> bool:
    """Check whether a file decodes to the pixels of a picture, possibly in another colour space."""
    try:
        with Image.open(path) as stored:
            same = stored.convert(image.mode)
    except PILLOW_RAISES:
        return False
    return same.size == image.size and same.tobytes() == image.tobytes()


def _keys(paths: list[str], declared_root: Any) -> tuple[Path, list[str]]:
    """Return the folder that contains all files, and the paths of the files below it as keys."""
    root = _absolute(declared_root) if isinstance(declared_root, str | os.PathLike) else ""
    start = root.rstrip("/") + "/"
    if not root or not all(path.startswith(start) for path in paths):
        root = os.path.commonpath([os.path.dirname(path) for path in paths])  # noqa: PTH120 - a million of them
        start = root.rstrip("/") + "/"
    return Path(root), [path[len(start) :] for path in paths]


def _split_of(dataset: Any, root: Path | None) -> str:
    split, train = getattr(dataset, "split", None), getattr(dataset, "train", None)
    if isinstance(split, str) or type(split).__name__ == "NamedSplit":  # of Hugging Face
        return canonical_split(str(split)) or str(split)
    if isinstance(train, bool):
        return "train" if train else "test"
    return (canonical_split(root.name) if root is not None else None) or "train"


def _classes(dataset: Any) -> tuple[str, ...]:
    """Return the class names in label order.

    For ImageNet, these are the wnids, because two of its class names occur twice.
    """
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
