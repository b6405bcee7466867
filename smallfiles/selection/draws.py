"""How often samples come in an epoch: classes balanced, samples weighted, sets mixed by shares.

An epoch has a number of samples of each group: of the classes of a set, or of the sets of a mixture. If it
has 34 samples of a group of 10, all of them come three times, and 4 of them once more; in the next epoch,
these are 4 others. If it has fewer samples than the group, the next epoch continues with the others, before
any of them comes again. So all counts are exact, and the order of ranks and workers does not matter.

Each repeat has a number of its own. Therefore it gets another crop than the first time, and an epoch is
resumed and audited like any other. `Loader.reader.key` returns the key of a number.

The trap: `WeightedRandomSampler` draws with replacement. Its classes are equal on average only, each epoch
misses a third of a balanced set, and ranks draw independently of each other. Notebook 10 mixes two sets.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from smallfiles.arrays import one_chunk, to_numpy
from smallfiles.errors import UsageError
from smallfiles.progress import plural
from smallfiles.samples import UNLABELLED, Reader
from smallfiles.selection import EVERYTHING, Draw
from smallfiles.selection.reader import Selected, select
from smallfiles.selection.splits import numbered

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
    """Samples of equal weight are a group, of which an epoch has a rounded number."""
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
