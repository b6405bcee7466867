"""Some samples of a set as a set of their own, which is read where it is.

Everything that takes a reader takes this one: loaders in any order, streams, `pack`, `inspect`. Its samples
are numbered from 0 on, in stored order. The trap: a checkpoint that knows only the set resumes with another
condition on other samples. So a selection is identified by its parent and its rows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from smallfiles.arrays import as_mask, column, from_numpy, one_chunk, spread
from smallfiles.errors import UsageError, first_few
from smallfiles.fields import is_blob
from smallfiles.formats.reader import FieldBlobs, SampleIndexError
from smallfiles.progress import bytes_text, note, plural
from smallfiles.samples import Buffer, Reader, Rows, Sample
from smallfiles.selection import Choice, rule_text
from smallfiles.selection.conditions import assigned, matching

_SIZES = 4096


def select(reader: Reader, choice: Choice) -> Reader:
    """Select samples of a set. If all samples are chosen, return the reader itself.

    Args:
        reader: A set.
        choice: Which samples. The split of a rule is made before `where` chooses.

    Raises:
        UsageError: The choice does not fit the set, or no sample is left.
    """
    choice = choice.choice
    if not choice.chooses or (isinstance(reader, Selected) and reader.choice == choice):
        return reader
    chosen = np.ones(len(reader), bool)
    if choice.split is not None:
        chosen = _in_split(reader, choice, choice.split)
    if choice.where is not None:
        chosen = chosen & matching(reader, choice.where)
    if not chosen.any():
        raise UsageError(
            f"no sample of {reader.path} fits {_told(choice)}",
            expected=f"some of its {plural(len(reader), 'sample')}",
            next_step="Look at the values with: smallfiles inspect, and choose others",
        )
    rows = np.flatnonzero(chosen)
    if traffic := getattr(reader, "traffic", None):  # of an object store, which delivers whole blocks
        read, used = traffic(rows)
        note(
            f"in stream order, an epoch of {plural(len(rows), 'selected sample')} of {reader.path} reads "
            f"{bytes_text(read)}, of which {bytes_text(read - used)} are not used"
        )
    return Selected(reader, rows, choice)


def choose(reader: Reader, **choice: Any) -> Reader:
    """Select the samples of a set that the settings of a `Choice` describe."""
    return select(reader, Choice(**choice))


def _told(choice: Choice) -> str:
    said = {
        name: rule_text(value) if name == "split_rule" else value for name, value in choice.chosen.items()
    }
    return " and ".join(f"{name.replace('_', '-')} {value!r}" for name, value in said.items())


def _in_split(reader: Reader, choice: Choice, split: str) -> npt.NDArray[np.bool_]:
    if choice.split_rule is not None:
        return np.equal(assigned(reader, choice), [*choice.split_rule].index(split))
    if reader.fields.get("split") != "string":
        raise UsageError(
            f"{reader.path} has no field split of texts",
            expected="it, or a rule such as train=0.8,test=0.2",
            next_step="Write it once for all programs with: smallfiles split, or give split-rule",
        )
    found = one_chunk(reader.table(["split"])["split"])
    mask: npt.NDArray[np.bool_] = as_mask(pc.is_in(found, value_set=column([split], pa.string())))
    if not mask.any():
        known = found.unique().drop_null().to_pylist()
        raise UsageError(
            f"{reader.path} has no sample of the split {split!r}",
            expected=f"one of {first_few(known, len(known))}",
            next_step="Choose one of these",
        )
    return mask


class Derived(Reader):
    """A set whose samples are those of others: each method on one sample asks the reader that has it."""

    def _of(self, index: int) -> tuple[Reader, int]:
        """Return the reader that has a sample, and the number of the sample there."""
        raise NotImplementedError

    @property
    def set_digest(self) -> None:
        """None: what was packed is not this."""

    def key(self, index: int) -> str:
        """Return the key of one sample."""
        reader, row = self._of(index)
        return reader.key(row)

    def target(self, index: int) -> Any:
        """Return the label or captions of one sample."""
        reader, row = self._of(index)
        return reader.target(row)

    def blob(self, name: str) -> FieldBlobs:
        """Return access to the blobs of one field."""
        self._of(0)[0].blob(name)  # refuses a field that is not there
        return FieldBlobs(self, name)

    def size(self, index: int, field: str = "") -> int:
        """Return the number of bytes of one blob."""
        reader, row = self._of(index)
        return reader.size(row, field)

    def read(self, index: int, field: str = "") -> Buffer:
        """Return the bytes of one blob; see `Reader.read`."""
        reader, row = self._of(index)
        return reader.read(row, field)

    def read_many(self, indices: Sequence[int], field: str = "") -> list[Buffer]:
        """Return several blobs in the requested order."""
        return self.read_fields(indices, [field])[0]

    def span(self, index: int, field: str = "") -> tuple[Path, int, int] | None:
        """Return where a blob is; see `Reader.span`."""
        reader, row = self._of(index)
        return reader.span(row, field)

    def sha256(self, index: int, field: str = "") -> str | None:
        """Return the recorded SHA-256 of a blob."""
        reader, row = self._of(index)
        return reader.sha256(row, field)

    def __iter__(self) -> Iterator[Sample]:
        blobs = [name for name, kind in self.fields.items() if is_blob(kind)]
        for index in range(len(self)):
            yield Sample(self.key(index), tuple(self.read(index, name) for name in blobs), index)


class Selected(Derived):
    """Some samples of another reader, in stored order.

    Args:
        base: Has all samples.
        rows: Numbers of the chosen samples in it, ascending.
        choice: What chose them.
    """

    def __init__(self, base: Reader, rows: npt.NDArray[np.int64], choice: Choice) -> None:
        self.base, self.rows, self.choice, self.path = base, rows, choice, base.path
        self._keys: pa.StringArray | None = None

    @property
    def rows_digest(self) -> str:
        """Identifies the rows, for checkpoints."""
        return xxhash.xxh3_128_hexdigest(self.rows.tobytes())

    def __getattr__(self, name: str) -> Any:
        if name != "following":  # which only the reader of an object store has
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return partial(self._following, self.base.following)  # type: ignore[attr-defined]

    def _following(self, follow: Callable[[list[int]], Reader], order: Sequence[int]) -> Selected:
        return Selected(follow(self._at(order).tolist()), self.rows, self.choice)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_keys": None}

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def fields(self) -> Mapping[str, str]:
        """Name and kind of each field."""
        return self.base.fields

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in label order."""
        return self.base.classes

    def keys(self) -> pa.StringArray:
        """Return the keys of all samples, taken once."""
        if self._keys is None:
            self._keys = self.base.keys().take(from_numpy(self.rows))
        return self._keys

    def table(self, names: Iterable[str] | None = None, rows: Rows | None = None) -> pa.Table:
        """Return the values of fields; see `Reader.table`."""
        return self.base.table(names, self.rows if rows is None else self._at(rows))

    def added(self) -> Mapping[str, pa.Array]:
        """Return the values that were added later."""
        return {name: each.take(from_numpy(self.rows)) for name, each in self.base.added().items()}

    def read_fields(self, indices: Sequence[int], fields: Sequence[str]) -> list[list[Buffer]]:
        """Return the blobs of several samples and fields, requested together."""
        return self.base.read_fields(self._at(indices).tolist(), fields)

    def shard_sizes(self) -> tuple[int, ...]:
        """Return the number of chosen samples in each shard."""
        sizes: tuple[int, ...] = getattr(self.base, "shard_sizes", tuple)()
        ends = np.searchsorted(self.rows, np.cumsum([0, *sizes]))
        return tuple(np.diff(ends).tolist())

    def info(self) -> dict[str, Any]:
        """Return the facts of the base with the number of samples; of many, the bytes are estimated."""
        facts = self.base.info()
        looked_at = spread(len(self), _SIZES)
        total = sum(map(self.size, looked_at)) * len(self) // len(looked_at)
        selected = {**self.choice.chosen, "of": len(self.base)}
        return facts | {"samples": len(self), "bytes": total, "selected": selected}

    def close(self) -> None:
        """Release the file."""
        self.base.close()

    def _of(self, index: int) -> tuple[Reader, int]:
        return self.base, int(self._at([operator.index(index)])[0])

    def _at(self, indices: Rows) -> npt.NDArray[np.int64]:
        """Return the numbers that some samples have in the base. Negative numbers count from the end."""
        at = np.asarray(indices)
        at = at if len(at) else at.astype(np.int64)
        if at.dtype.kind in "iu" and (not len(at) or (at.min() >= -len(self) and at.max() < len(self))):
            found: npt.NDArray[np.int64] = self.rows[at]
            return found
        raise SampleIndexError(
            f"{self.path}: {first_few(indices, len(indices))} were asked of {len(self)} selected samples",
            expected=f"whole numbers from 0 to {len(self) - 1}",
            next_step="Check the length with len(reader)",
        )
