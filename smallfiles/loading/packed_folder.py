"""A packed file in place of torchvision's `ImageFolder`, for programs that have a `DataLoader` of their own.

    data = PackedFolder("train.arrow", transform)      # was: ImageFolder("train", transform)
    image, label = data[17]

Images are decoded by Pillow exactly as torchvision does, so that a program gets the same pixels, and from
equal seeds the same losses. `make_loader` decodes faster and reads ahead, but asks for more changed lines.

The trap: a million samples as a Python list of pairs take 300 MB in every worker. So `samples` and `targets`
only look like lists: they read the columns of the packed file. `list(data.samples)` makes a list of them.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image

from smallfiles import formats
from smallfiles.arrays import from_numpy, one_chunk, scalar, to_numpy
from smallfiles.contents import array_view
from smallfiles.errors import MissingPackageError, UsageError
from smallfiles.fields import TARGETS, is_blob, name_of_first, suffix_of
from smallfiles.images.decoding import PILLOW_RAISES, ImageError
from smallfiles.samples import UNLABELLED, Buffer, Reader
from smallfiles.selection.reader import choose

if TYPE_CHECKING:
    from torch.utils.data import Dataset
else:
    try:  # Pillow alone is enough to read the samples
        from torch.utils.data import Dataset
    except ModuleNotFoundError:

        class Dataset:
            """Take the place of torch's class where torch is not installed."""

            def __class_getitem__(cls, item: object) -> type:
                return cls


_ROWS_AT_ONCE = 4096
_MOST_UNNAMED_CLASSES = 1_000_000


class PackedFolder(Dataset[Any]):
    """The samples of a packed file of any format, as `ImageFolder` gives those of a folder.

    Example:
        >>> data = PackedFolder("train.arrow", transform)  # doctest: +SKIP
        >>> image, label = data[0]  # doctest: +SKIP
        >>> pairs = PackedFolder("seg.arrow", fields="mask", transforms=both)  # doctest: +SKIP

    Args:
        root: The packed file, or the folder of shards.
        transform: A function of the image, as for `ImageFolder`.
        target_transform: A function of the target, likewise.
        loader: A function that reads the file at a path. It gets the path of a file in memory, without a
            suffix, that exists until it returns. None decodes images by Pillow as torchvision does, `.npy`
            files to arrays and `.txt` files to texts, and returns the bytes of sounds.
        fields: The target: one field, or several, which come as a tuple. Images such as masks keep the mode
            in which they are stored. None takes the class label, or else the captions; an empty list returns
            images without a target.
        transforms: A function of image and target together, as for torchvision's segmentation data sets;
            only without `transform` and `target_transform`.
        **choice: Which samples, all by default: `where`, `split`, `split_rule`, `split_by` and further fields
            of `smallfiles.selection.Choice`.

    Attributes:
        classes: Names of the classes, in label order.
        class_to_idx: The label of each name.
        samples: Path and target of each sample, also as `imgs`; `loader` accepts these paths.
        targets: The target of each sample. If the target is a file such as a mask, there are neither
            `samples` nor `targets`.
        reader: Reads the packed file.

    Raises:
        UsageError: There is no such field, or the samples have no label and `fields` does not say what the
            target is.
        FormatError: There is no such file, or it is damaged.
    """

    def __init__(
        self,
        root: str | Path,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        loader: Callable[[str], Any] | None = None,
        *,
        fields: str | Sequence[str] | None = None,
        transforms: Callable[[Any, Any], Any] | None = None,
        **choice: Any,
    ) -> None:
        if transforms is not None and (transform is not None or target_transform is not None):
            raise UsageError(
                "transforms was given together with transform or target_transform",
                expected="a function of image and target, or a function of each",
                next_step="Leave one of them out",
            )
        self.root = os.path.expanduser(root) if isinstance(root, str) else root  # noqa: PTH111 - as torchvision
        self.reader = choose(formats.open(Path(self.root)), **choice)
        self.transform, self.target_transform = transform, target_transform
        self._transforms, self._loader = transforms, loader
        self._fields = _fields_of(self.reader, fields)
        self._samples: Sequence[Any] | None = None
        if self._fields and not any(is_blob(self.reader.fields[name]) for name in self._fields):
            targets = _Targets(self.reader, self._fields)
            self.targets: Sequence[Any] = targets
            self.samples = self.imgs = self._samples = _Samples(self.root, self.reader, targets)
        found = self.find_classes(self.root)
        if found[0] != _classes_of(self.reader, self._fields, self.__dict__.get("targets", ())):
            raise UsageError(
                f"find_classes of {type(self).__name__} chooses {len(found[0])} classes",
                expected=f"the classes that were packed into {self.root}",
                next_step="Pack the chosen classes, or assign data.samples a list of some of its pairs",
            )
        self.classes, self.class_to_idx = found

    def find_classes(self, directory: str | Path) -> tuple[list[str], dict[str, int]]:
        """Return the names of the classes, and the label of each.

        Args:
            directory: Not used; for programs that call torchvision's method.
        """
        names = _classes_of(self.reader, self._fields, self.__dict__.get("targets", ()))
        return names, {name: label for label, name in enumerate(names)}

    def __len__(self) -> int:
        return len(self.reader) if self._is_packed_order() else len(self.samples)

    def __getitem__(self, index: int) -> Any:
        """Return image and target of one sample; with `fields=[]` the image alone."""
        if not self._is_packed_order():
            path, target = self.samples[index]
            return self._transformed(self.loader(path), target)
        return self._made(index, [self.reader.read(index, field) for field in self._blobs()])

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several samples, which are requested from the storage together; `DataLoader` calls this."""
        if type(self).__getitem__ is not PackedFolder.__getitem__ or not self._is_packed_order():
            return [self[index] for index in indices]
        files = self.reader.read_fields(indices, self._blobs())
        return [
            self._made(index, data) for index, data in zip(indices, zip(*files, strict=True), strict=True)
        ]

    def _is_packed_order(self) -> bool:
        """Check that no program has assigned another list of samples."""
        return self.__dict__.get("samples") is self._samples

    def _blobs(self) -> list[str]:
        """Return the fields whose bytes an item needs: the image, and those that were asked for."""
        kinds = self.reader.fields
        return ["", *(name for name in self._fields if is_blob(kinds[name]))]

    def _made(self, index: int, data: Sequence[Buffer]) -> Any:
        image = self._loaded(index, data[0])
        if not self._fields:
            return image if self.transform is None else self.transform(image)
        if self._samples is not None:
            return self._transformed(image, self.targets[index])
        rest, kinds, values = iter(data[1:]), self.reader.fields, []
        for name in self._fields:
            if is_blob(kinds[name]):
                values.append(_decoded(next(rest), kinds[name], f"the {name} of {self._name(index)}", None))
            else:
                values.append(self.reader.table([name], [index])[name][0].as_py())
        return self._transformed(image, values[0] if len(values) == 1 else tuple(values))

    def _transformed(self, image: Any, target: Any) -> tuple[Any, Any]:
        if self._transforms is not None:
            found: tuple[Any, Any] = self._transforms(image, target)
            return found
        if self.transform is not None:
            image = self.transform(image)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return image, target

    @property
    def transforms(self) -> Any:
        """The function of image and target; torchvision's `StandardTransform` of two separate functions."""
        if self._transforms is not None or (self.transform is None and self.target_transform is None):
            return self._transforms
        try:
            from torchvision.datasets.vision import StandardTransform
        except ModuleNotFoundError as error:
            raise MissingPackageError.of_import(error, "PackedFolder.transforms") or error from error
        return StandardTransform(self.transform, self.target_transform)

    @transforms.setter
    def transforms(self, function: Callable[[Any, Any], Any] | None) -> None:
        self._transforms = function

    @property
    def loader(self) -> Callable[[str], Any]:
        """Returns the image of a path that `samples` gave."""
        return self._load

    @loader.setter
    def loader(self, function: Callable[[str], Any] | None) -> None:
        self._loader = function

    def _load(self, path: str) -> Any:
        row = self._row_of(path)
        return self._loaded(row, self.reader.read(row))

    def _row_of(self, path: str) -> int:
        key, row = str(path).removeprefix(f"{self.root}/"), getattr(path, "row", None)
        if row is not None and row < len(self.reader) and self.reader.key(row) == key:
            return int(row)
        row = pc.index(self.reader.keys(), scalar(key)).as_py()
        if row < 0:
            raise UsageError(
                f"{self.root} has no sample {key!r}",
                expected="a path from samples, or the key of a sample",
                next_step="List the keys with: smallfiles inspect, or reader.keys()",
            )
        return int(row)

    def _loaded(self, index: int, data: Buffer) -> Any:
        if self._loader is not None:
            return _from_memory(self._loader, data)
        kind = suffix_of(self.reader.key(index))
        if name_of_first(f"x{kind}") == "data":  # no suffix that we know: an image, as for ImageFolder
            kind = ".jpg"
        return _decoded(data, kind, self._name(index), "RGB")

    def _name(self, index: int) -> str:
        return f"{self.reader.key(index)} in {self.root}"

    def __repr__(self) -> str:
        lines = [
            f"Dataset {type(self).__name__}",
            f"Number of datapoints: {len(self)}",
            f"Root location: {self.root}",
        ]
        parts = (
            ("Transforms", self._transforms),
            ("Transform", self.transform),
            ("Target transform", self.target_transform),
        )
        lines += [f"{name}: {part!r}" for name, part in parts if part is not None]
        return "\n    ".join(lines)


def _fields_of(reader: Reader, fields: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the fields that form the target, after checking that all of them exist."""
    kinds = reader.fields
    first = next(iter(kinds), "")
    if fields is None:
        fields = [name for name in TARGETS if name in kinds][:1]
        if fields == ["label"] and not reader.classes and len(reader) and not _is_labelled(reader):
            others = [name for name in list(kinds)[1:] if name not in TARGETS]
            raise UsageError(
                f"the samples of {reader.path} have no class label",
                expected=f"fields=, with one of its other fields ({', '.join(others)})"
                if others
                else "fields=[]",
                next_step="Say what the target is: fields=[NAME], or fields=[] for images alone",
            )
    fields = (fields,) if isinstance(fields, str) else tuple(fields)
    for name in fields:
        if name not in kinds or name == first:
            raise UsageError(
                f"{reader.path} has no field {name!r} that could be the target",
                expected=f"some of {', '.join(list(kinds)[1:])}",
                next_step="Look at its fields with: smallfiles inspect",
            )
    return fields


def _is_labelled(reader: Reader) -> bool:
    return bool((to_numpy(one_chunk(reader.table(["label"])["label"])) != UNLABELLED).any())


def _classes_of(reader: Reader, fields: Sequence[str], targets: Sequence[Any]) -> list[str]:
    """Return the names of the classes, or their numbers if they have no names.

    So `len(classes)` is always the number of classes.
    """
    if reader.classes or "label" not in fields or fields != ("label",):
        return list(reader.classes)
    most = max(targets, default=UNLABELLED)
    if most >= _MOST_UNNAMED_CLASSES:
        raise UsageError(
            f"{reader.path} has labels up to {most:,} and no names of classes",
            expected=f"numbers of classes below {_MOST_UNNAMED_CLASSES:,}",
            next_step="Pack the numbers as a value (--field number=COLUMN), and give fields=['number']",
        )
    return [str(label) for label in range(most + 1)]


def _decoded(data: Buffer, suffix: str, name: str, mode: str | None) -> Any:
    """Decode the content of a file: to a Pillow image, an array, or a text, or else return its bytes."""
    kind = name_of_first(f"x{suffix}")
    try:
        if kind == "image":
            with Image.open(io.BytesIO(data)) as image:
                if mode is not None:
                    return image.convert(mode)
                image.load()
                return image
        if kind == "array":
            return array_view(data).copy()
        return str(data, "utf-8") if kind == "text" else bytes(data)
    except PILLOW_RAISES as error:
        raise ImageError(
            f"{name} cannot be decoded ({error or type(error).__name__})",
            expected=f"a complete file of the kind {suffix}",
            next_step="Look for more of them with: smallfiles verify, then pack the set again without them",
        ) from error


def _from_memory(loader: Callable[[str], Any], data: Buffer) -> Any:
    """Call a function that opens a path with that of a file in memory."""
    with open(os.memfd_create("smallfiles"), "wb") as file:  # noqa: PTH123 - a descriptor
        file.write(data)
        file.flush()
        return loader(f"/proc/self/fd/{file.fileno()}")


class _Path(str):
    """The path of a sample, which also knows the number of the sample."""

    __slots__ = ("row",)
    row: int


class _LazyList(Sequence[Any]):
    """A sequence that reads like a list; slices and sums of it, and `list`, make lists."""

    def _some(self, rows: range) -> list[Any]:
        raise NotImplementedError

    def __getitem__(self, index: Any) -> Any:
        rows = range(len(self))
        if isinstance(index, slice):
            return self._some(rows[index])
        row = rows[index]
        return self._some(range(row, row + 1))[0]

    def __iter__(self) -> Iterator[Any]:
        count = len(self)
        for start in range(0, count, _ROWS_AT_ONCE):
            yield from self._some(range(start, min(start + _ROWS_AT_ONCE, count)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | _LazyList):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Sequence[Any]) -> list[Any]:
        return [*self, *other]

    def __radd__(self, other: Sequence[Any]) -> list[Any]:
        return [*other, *self]

    def __repr__(self) -> str:
        few = ", ".join(map(repr, self[:3]))
        return f"[{few}{f', … {len(self) - 3:,} more' if len(self) > 3 else ''}]"


class _Targets(_LazyList):
    """The target of each sample.

    Args:
        reader: Has the samples.
        names: The fields of values that are the target.
    """

    def __init__(self, reader: Reader, names: Sequence[str]) -> None:
        self._reader, self._names = reader, names
        self._columns: list[Any] | None = None

    def __getstate__(self) -> Mapping[str, Any]:
        return {**self.__dict__, "_columns": None}

    def __len__(self) -> int:
        return len(self._reader)

    def _read(self) -> list[Any]:
        if self._columns is None:
            found = self._reader.table(self._names)
            self._columns = [_plain(one_chunk(found[name])) for name in self._names]
        return self._columns

    def __getitem__(self, index: Any) -> Any:
        columns = self._read()
        if len(columns) == 1 and isinstance(columns[0], np.ndarray) and not isinstance(index, slice):
            return columns[0].item(range(len(self))[index])
        return super().__getitem__(index)

    def _some(self, rows: range) -> list[Any]:
        wanted = np.arange(rows.start, rows.stop, rows.step)
        found = [
            column[wanted].tolist()
            if isinstance(column, np.ndarray)
            else column.take(from_numpy(wanted)).to_pylist()
            for column in self._read()
        ]
        return found[0] if len(found) == 1 else list(zip(*found, strict=True))

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        columns = self._read()
        plain = len(columns) == 1 and isinstance(columns[0], np.ndarray)
        return np.array(columns[0] if plain else self[:], dtype)


def _plain(column: pa.Array) -> Any:
    """Return a column of numbers as a NumPy array without a copy, and any other column unchanged."""
    kind = column.type
    if (pa.types.is_integer(kind) or pa.types.is_floating(kind)) and not column.null_count:
        return to_numpy(column)
    return column


class _Samples(_LazyList):
    """Path and target of each sample.

    Args:
        root: Where the samples are.
        reader: Has their keys.
        targets: Their targets.
    """

    def __init__(self, root: str | Path, reader: Reader, targets: _Targets) -> None:
        self._root, self._reader, self._targets = root, reader, targets

    def __len__(self) -> int:
        return len(self._reader)

    def _some(self, rows: range) -> list[Any]:
        if len(rows) == 1:
            return [(self._path(rows[0], self._reader.key(rows[0])), self._targets[rows[0]])]
        wanted = from_numpy(np.arange(rows.start, rows.stop, rows.step))
        keys = self._reader.keys().take(wanted).to_pylist()
        return [*zip(map(self._path, rows, keys), self._targets._some(rows), strict=True)]

    def _path(self, row: int, key: str) -> _Path:
        path = _Path(f"{self._root}/{key}")
        path.row = row
        return path
