"""How often samples come in an epoch: classes balanced, samples weighted, sets mixed by shares.

An epoch has a number of samples of each group: of the classes of a set, or of the sets of a mixture. If it
has 34 samples of a group of 10, all of them come three times, and 4 of them once more; in the next epoch,
these are 4 others. If it has fewer samples than the group, the next epoch continues with the others, before
any of them comes again. So all counts are exact, and the order of ranks and workers does not matter.

Each repeat has a number of its own. Therefore it gets another crop than the first time, and an epoch is
resumed and audited like any other. `Loader.reader.key` returns the key of a number.

The trap: `WeightedRandomSampler` draws with replacement. Its classes are equal on average only, each epoch
misses a third of a balanced set, and ranks draw independently of each other. Notebook 10 mixes two sets.

Several sets become one, of which an epoch has shares, such as 70 % of one set and 30 % of another:

    reader = mixed([formats.open("a.arrow"), formats.open("b.tars")], [0.7, 0.3], Draw())

Samples are numbered through all sets, in the order in which the sets are given. Nothing is copied, and sets
of other programs and object stores are read where they are. By default an epoch ends when one set is used
up, so no sample comes twice; the larger sets continue with their other samples in the next epoch.

Programs that draw the set of each sample by chance get shares that are right on average only, and
two ranks may draw the same sample. And label 3 of one set may be another class than label 3 of the other.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from smallfiles.arrays import from_numpy, one_chunk, to_numpy
from smallfiles.errors import UsageError, first_few
from smallfiles.fields import is_blob, name_of_first
from smallfiles.progress import plural
from smallfiles.samples import UNLABELLED, Buffer, Reader, Rows
from smallfiles.selection import EVERYTHING, Draw
from smallfiles.selection.conditions import numbered
from smallfiles.selection.reader import Derived, Selected, select

_MOST_WEIGHTS = 4096
_Numbers = npt.NDArray[np.int64]


def drawn(reader: Reader, draw: Draw) -> Reader:
    """Return the samples that the epochs of a set have; the reader itself if that is all, each once.

    Args:
        reader: A set; one that was drawn with the same settings is returned.
        draw: Which samples, and how often.

    Raises:
        UsageError: The settings do not fit the set.
    """
    draw = draw.draw
    if isinstance(reader, Drawn):
        if draw not in (reader.draw, Draw()):
            _refuse(
                f"{reader.path} was drawn before, with other settings",
                "the settings of one loader",
                "Give where, split, balance and weights where the sets are mixed",
            )
        return reader
    if draw.mix_samples is not None or draw.mix_classes != "same":
        _refuse(
            "mix-samples or mix-classes was given without a mixture",
            "several sets, such as a.arrow=0.7 and b.tars=0.3",
            "Give the sets with mix, or leave these settings out",
        )
    chosen = select(reader, draw)
    if draw.balance is not None:
        return _balanced(chosen, draw, draw.balance)
    return chosen if draw.weights is None else _weighted(chosen, draw, draw.weights)


class Drawn(Selected):
    """Samples of a set as often as epochs have them; each repeat is a row.

    Args:
        base: Has the samples.
        groups: The group of each of them.
        counts: How many samples of each group an epoch has.
        draw: The settings.
        what: What the counts are, for reports.

    Attributes:
        parts: Of consecutive rows: how many there are, and how many of them an epoch has.
    """

    def __init__(self, base: Reader, groups: _Numbers, counts: _Numbers, draw: Draw, what: str) -> None:
        sizes = np.bincount(groups, minlength=len(counts))
        whole, rest = np.divmod(counts, np.maximum(sizes, 1))
        self._often = int(whole.min()), int((whole + (rest > 0)).max())
        self.draws = int(counts.sum())
        self.repeats = self.draws - int(np.minimum(counts, sizes).sum())
        if not self.repeats and rest.any():  # rows in the order of groups, such as the sets of a mixture
            whole, rest = np.zeros_like(counts), counts
        blocks, level, left = list[_Numbers](), 1, np.flatnonzero(whole[groups] > 0)
        while len(left):
            blocks.append(left)
            left, level = left[whole[groups[left]] > level], level + 1
        full, some = sum(map(len, blocks)), np.flatnonzero(rest)
        ordered, ends = np.argsort(groups, kind="stable"), np.cumsum(sizes)
        blocks += [ordered[ends[group] - sizes[group] : ends[group]] for group in some]
        super().__init__(base, np.concatenate(blocks), EVERYTHING)
        self.draw, self._what, self._blocks = draw, what, [*map(len, blocks)]
        self.parts = tuple([(full, full)] * (full > 0)) + tuple(
            (int(sizes[group]), int(rest[group])) for group in some
        )

    def __getattr__(self, name: str) -> Any:
        if self.__dict__.get("repeats", 0):  # a stream of an object store reads each sample once
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return super().__getattr__(name)

    def sentence(self) -> str:
        """Say what an epoch has."""
        least, most = self._often
        repeats = f" ({plural(self.repeats, 'repeat')})" if self.repeats else ""
        often = "exactly once" if least == most == 1 else "at most once" if most == 1 else f"{most:,} times"
        often = f"{least:,} to {often}" if least < most > 1 else often
        return (
            f"an epoch has {plural(self.draws, 'sample')}, {self._what}; each of {len(self.base):,} "
            f"different samples comes {often}{repeats}"
        )

    def shard_sizes(self) -> tuple[int, ...]:
        """Return the number of rows in each shard, for each time that the shards are read."""
        ends = np.cumsum([0, *shards_of(self.base)])
        blocks = np.split(self.rows, np.cumsum(self._blocks)[:-1])
        sizes = [np.diff(np.searchsorted(block, ends)) for block in blocks]
        return tuple(size for each in sizes for size in each.tolist() if size)

    def info(self) -> dict[str, Any]:
        """Return the facts of the base with those of an epoch."""
        return super().info() | {"epoch": self.sentence()}


def shards_of(reader: Reader) -> tuple[int, ...]:
    """Return the number of samples in each shard; a set without shards is one."""
    return getattr(reader, "shard_sizes", tuple)() or (len(reader),)


def _balanced(reader: Reader, draw: Draw, name: str) -> Drawn:
    groups, _ = numbered(reader, name, "balance")
    if name == "label":
        unlabelled = int((to_numpy(one_chunk(reader.table([name])[name])) == UNLABELLED).sum())
        if unlabelled:
            _refuse(
                f"{plural(unlabelled, 'sample')} of {reader.path} have no label",
                "a label for each sample to balance",
                f"Leave these samples out with where={'label != -1'!r}",
            )
    sizes = np.bincount(groups)
    what = f"{sizes.max():,} of each of {plural(len(sizes), 'value')} of {name}"
    return Drawn(reader, groups, np.full_like(sizes, sizes.max()), draw, what)


def _weighted(reader: Reader, draw: Draw, name: str) -> Drawn:
    """Draw samples by weight: from each group of equal weight a rounded number per epoch."""
    kind = reader.fields.get(name, "")
    if name not in reader.fields or not kind.startswith(("int", "uint", "float", "double")):
        numbers = [each for each, of in reader.fields.items() if of.startswith(("int", "float", "double"))]
        _refuse(
            f"{reader.path} has {f'the {kind}' if kind else 'no field'} {name!r} for weights",
            f"a field of numbers; it has {', '.join(numbers) or 'none'}",
            "Name one of these, or add one with: smallfiles annotate",
        )
    column = one_chunk(reader.table([name])[name])
    found = to_numpy(column.fill_null(-1)).astype(np.float64)
    wrong = ~((found >= 0) & np.isfinite(found))
    if wrong.any() or not found.any():
        got = f"{plural(int(wrong.sum()), 'sample')} of {reader.path} have a {name} below 0, or none"
        _refuse(
            got if wrong.any() else f"the {name} of all samples of {reader.path} is 0",
            "a number of 0 or more for each sample, and more than 0 for some",
            "Choose other samples with where, or add another field with: smallfiles annotate",
        )
    weights, groups = np.unique(found, return_inverse=True)
    if len(weights) > _MOST_WEIGHTS:
        _refuse(
            f"{reader.path} has {len(weights):,} different values of {name}",
            f"at most {_MOST_WEIGHTS:,}, since samples of equal weight are drawn together",
            "Round the weights, and add them with: smallfiles annotate",
        )
    wanted = weights * np.bincount(groups)
    counts = rounded(wanted / wanted.sum() * len(found), len(found))
    return Drawn(reader, groups.astype(np.int64), counts, draw, f"in proportion to their {name}")


def rounded(wanted: npt.NDArray[np.float64], total: int) -> _Numbers:
    """Round numbers to whole ones with this sum: the largest remainders are rounded up."""
    counts = np.floor(wanted + 1e-9).astype(np.int64)
    up = np.argsort(counts - wanted, kind="stable")[: total - int(counts.sum())]
    counts[up] += 1
    return counts


def _refuse(got: str, expected: str, next_step: str) -> NoReturn:
    raise UsageError(got, expected=expected, next_step=next_step)


_FIRST, _UNKNOWN = "the first file", "data"


def mixed(
    sets: Sequence[Reader], shares: Sequence[float], draw: Draw, without: Collection[str] = ()
) -> Drawn:
    """Mix sets.

    Args:
        sets: The sets; `where` and `split` choose samples of each.
        shares: The share of each in every epoch; their sum is 1.
        draw: Which samples, how many in an epoch, and what labels mean.
        without: Fields that are not needed; only these may differ.

    Raises:
        UsageError: The sets have different fields or classes, or the shares are no whole.
    """
    draw = draw.draw
    names = [str(each.path) for each in sets]
    if not sets or not all(share > 0 for share in shares) or not math.isclose(sum(shares), 1):
        pairs = ", ".join(f"{name}={share:g}" for name, share in zip(names, shares, strict=True))
        raise UsageError(
            f"the shares of the mixture are {pairs or 'empty'}",
            expected="positive shares whose sum is 1, such as a.arrow=0.7 and b.tars=0.3",
            next_step="Correct the shares",
        )
    if draw.balance is not None or draw.weights is not None:
        raise UsageError(
            "balance or weights was given together with a mixture",
            expected="one of them, since both say how often samples come",
            next_step="Leave out balance and weights, or train on one set",
        )
    parts = [select(each, draw) for each in sets]
    for other in parts[1:]:
        _check_fields(parts[0], other, without)
    sizes, wanted = np.array([*map(len, parts)], np.int64), np.array(shares, np.float64)
    total = draw.mix_samples or int((sizes / wanted).min() + 1e-9)
    counts = rounded(wanted * total, total)
    if not counts.all():
        least = int(np.argmin(counts))
        raise UsageError(
            f"an epoch of {plural(total, 'sample')} has none of {names[least]}",
            expected="a share of at least one sample of each set",
            next_step="Choose other shares, or more samples with mix-samples",
        )
    told = [
        f"{count:,} of {size:,} of {name}" for count, size, name in zip(counts, sizes, names, strict=True)
    ]
    base = Concatenated(parts, *_classes(parts, draw.mix_classes), without)
    return Drawn(base, np.repeat(np.arange(len(parts)), sizes), counts, draw, ", ".join(told))


def _check_fields(one: Reader, other: Reader, without: Collection[str]) -> None:
    kinds = [_kinds(each, without) for each in (one, other)]
    differ = [name for name in kinds[0] | kinds[1] if kinds[0].get(name) != kinds[1].get(name)]
    firsts = [each[_FIRST] for each in kinds]
    if _UNKNOWN in firsts:  # it may be a picture, too
        differ = [name for name in differ if name != _FIRST]
    if differ:
        told = [f"{name} is {' and '.join(each.get(name, 'missing') for each in kinds)}" for name in differ]
        out = ", ".join(f"{name!r}: None" for name in differ)
        raise UsageError(
            f"{one.path} and {other.path} have different fields: {first_few(told, len(told))}",
            expected="equal fields in all sets of a mixture",
            next_step=f"Add what is missing with: smallfiles annotate, or leave it out: fields={{{out}}}",
        )


def _kinds(reader: Reader, without: Collection[str]) -> dict[str, str]:
    """Return what the fields hold; the first file has no name that matters, and pictures are alike."""
    (_, kind), *others = reader.fields.items()
    found = {_FIRST: name_of_first(f"x{kind}" if kind else reader.key(0))}
    return found | {
        name: name_of_first(f"x{kind}") if is_blob(kind) else kind
        for name, kind in others
        if name not in without
    }


def _classes(
    parts: Sequence[Reader], meaning: str
) -> tuple[tuple[str, ...], list[npt.NDArray[np.int64] | None]]:
    """Return the classes of a mixture, and the new labels of each set where they change."""
    lists = [each.classes for each in parts]
    unnamed = [str(each.path) for each in parts if not each.classes]
    if (meaning == "same" and len({*lists}) > 1) or (meaning == "names" and unnamed):
        got = [f"{each.path} has {first_few(each.classes, len(each.classes)) or 'none'}" for each in parts]
        raise UsageError(
            f"the sets of the mixture have different names of classes: {'; '.join(got)}",
            expected="equal names in equal order"
            if meaning == "same"
            else "names of the classes in each set, by which to join them",
            next_step="Say what a label means with mix-classes: names joins classes of equal names, and "
            "numbers takes equal numbers as equal classes",
        )
    if meaning != "names":
        return max(lists, key=len), [None] * len(parts)
    joined = tuple(dict.fromkeys(name for each in lists for name in each))
    places = {name: label for label, name in enumerate(joined)}
    return joined, [np.array([places[name] for name in each] + [-1], np.int64) for each in lists]


class Concatenated(Derived):
    """The samples of several readers, one after the other.

    Args:
        sets: The readers, which have equal fields.
        classes: Class names in label order.
        labels: The new label of each label of a set; None leaves them.
        without: Fields that are left out.
    """

    def __init__(
        self,
        sets: Sequence[Reader],
        classes: tuple[str, ...],
        labels: Sequence[npt.NDArray[np.int64] | None],
        without: Collection[str],
    ) -> None:
        self.sets, self._classes, self._labels, self._without = [*sets], classes, [*labels], without
        self.path = Path(" + ".join(str(each.path) for each in sets))
        self._starts = np.cumsum([0, *map(len, sets)])

    def __getattr__(self, name: str) -> Any:
        if name != "following" or not any(hasattr(each, name) for each in self.__dict__.get("sets", ())):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return partial(self._following)

    def _following(self, order: Sequence[int]) -> Concatenated:
        sets: list[Any] = [*self.sets]
        for number, _, rows in self._split(order):
            if hasattr(sets[number], "following"):
                sets[number] = sets[number].following(rows.tolist())
        return Concatenated(sets, self._classes, self._labels, self._without)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def fields(self) -> Mapping[str, str]:
        """Name and kind of each field."""
        (first, kind), *others = self.sets[0].fields.items()
        return {first: kind} | {name: kind for name, kind in others if name not in self._without}

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in label order."""
        return self._classes

    def keys(self) -> pa.StringArray:
        """Return the keys of all samples."""
        return one_chunk(pa.chunked_array([each.keys() for each in self.sets]))

    def table(self, names: Iterable[str] | None = None, rows: Rows | None = None) -> pa.Table:
        """Return the values of fields; see `Reader.table`."""
        if names is None:
            names = [name for name in self.sets[0].table(rows=[]).column_names if name not in self._without]
        names = [*names]
        if rows is None:
            return pa.concat_tables([self._values(number, names, None) for number in range(len(self.sets))])
        split = [*self._split(rows)]
        found = [self._values(number, names, own) for number, _, own in split]
        if len(found) < 2:
            return found[0] if found else self._values(0, names, [])
        places = np.concatenate([places for _, places, _ in split])
        return pa.concat_tables(found).take(from_numpy(np.argsort(places)))

    def _values(self, number: int, names: list[str], rows: Rows | None) -> pa.Table:
        found, labels = self.sets[number].table(names, rows), self._labels[number]
        if labels is not None and "label" in names:
            label = from_numpy(labels[to_numpy(one_chunk(found["label"]))])
            found = found.set_column(names.index("label"), "label", label)
        return found

    def target(self, index: int) -> Any:
        """Return the label or captions of one sample."""
        (number, _, rows), *_ = self._split([index])
        found, labels = self.sets[number].target(int(rows[0])), self._labels[number]
        return found if labels is None or not isinstance(found, int) else int(labels[found])

    def added(self) -> Mapping[str, pa.Array]:
        """Return nothing: what was added later belongs to single sets."""
        return {}

    def read_fields(self, indices: Sequence[int], fields: Sequence[str]) -> list[list[Buffer]]:
        """Return the blobs of several samples and fields; those of each set are requested together."""
        found: list[list[Any]] = [[None] * len(indices) for _ in fields]
        for number, places, rows in self._split(indices):
            read = self.sets[number].read_fields(rows.tolist(), fields)
            for column, blobs in zip(found, read, strict=True):
                for place, blob in zip(places.tolist(), blobs, strict=True):
                    column[place] = blob
        return found

    def shard_sizes(self) -> tuple[int, ...]:
        """Return the number of samples in each shard of each set."""
        return tuple(size for each in self.sets for size in shards_of(each))

    def info(self) -> dict[str, Any]:
        """Return the facts of all sets."""
        facts = [each.info() for each in self.sets]
        size = sum(int(each.get("bytes", 0)) for each in facts)
        return {"format": "mixture", "samples": len(self), "bytes": size, "sets": facts}

    def close(self) -> None:
        """Release the files."""
        for each in self.sets:
            each.close()

    def _of(self, index: int) -> tuple[Reader, int]:
        (number, _, rows), *_ = self._split([index])
        return self.sets[number], int(rows[0])

    def _split(self, rows: Rows) -> Iterator[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Yield each set that has some of these samples, their places among them, and their rows there."""
        at = np.asarray(rows, np.int64)
        numbers = np.searchsorted(self._starts, at, "right") - 1
        for number in np.unique(numbers).tolist():
            places = np.flatnonzero(numbers == number)
            yield number, places, at[places] - self._starts[number]
