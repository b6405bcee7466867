"""Divide a set by a rule: a hash of each key, or of each group, decides in which split it is.

The trap: a random split of pictures puts those of one patient into both training and validation, and the
accuracy that is measured then is that of recognising patients. A split by group keeps them together. And a
random draw moves samples between splits when a set grows; a hash leaves each sample where it was.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import as_mask, column, from_numpy, joined, one_chunk, scalar, to_numpy
from smallfiles.digests import name_hashes
from smallfiles.errors import UsageError, first_few
from smallfiles.progress import plural
from smallfiles.samples import Reader
from smallfiles.selection import Choice
from smallfiles.selection.conditions import json_value


@dataclass(frozen=True)
class SplitReport:
    """How a set was divided.

    Args:
        samples: Number of samples in each split.
        shares: Their shares of the whole.
        groups: Number of groups in each split; empty without groups.
        in_several: Groups that lie in more than one split, which is none.
        classes: Shares of the splits in each class; empty unless stratified.
    """

    samples: dict[str, int]
    shares: dict[str, float]
    groups: dict[str, int]
    in_several: int
    classes: dict[str, dict[str, float]]


def assigned(reader: Reader, choice: Choice) -> npt.NDArray[np.int64]:
    """Number of the split of each sample, in the order of the rule.

    Args:
        reader: A set.
        choice: With a rule.

    Raises:
        UsageError: There is no such field, it is neither text nor number, or some samples have no value.
    """
    assert choice.split_rule is not None
    borders = np.cumsum([*choice.split_rule.values()])[:-1]
    if choice.split_by:
        numbers, groups = numbered(reader, choice.split_by)
        return _drawn(groups, borders, choice.split_seed)[numbers]
    keys = reader.keys()
    if choice.stratify:
        numbers, classes = numbered(reader, choice.stratify)
        keys = joined(classes.take(from_numpy(numbers)), scalar("\0"), keys)
    return _drawn(keys, borders, choice.split_seed)


def _drawn(names: pa.StringArray, borders: npt.NDArray[np.float64], seed: int) -> npt.NDArray[np.int64]:
    hashes = name_hashes(one_chunk(joined(scalar(f"{seed}\0"), names)))
    return np.searchsorted(borders, hashes.astype(np.float64) / 2.0**64, "right")


def numbered(
    reader: Reader, name: str, use: str = "split by"
) -> tuple[npt.NDArray[np.int64], pa.StringArray]:
    """Return the number of each sample's value, and the values as texts.

    Args:
        reader: A set.
        name: A field of texts, whole numbers or truth values.
        use: What it is for, for messages.

    Raises:
        UsageError: There is no such field, or some samples have no value.
    """
    kinds = {each.name: each.type for each in reader.table(rows=[]).schema}
    found = json_value(reader, name)
    kind = kinds.get(name) if found is None else found.type
    if kind is None or not (
        pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind)
    ):
        usable = [f"{each} ({found})" for each, found in kinds.items() if not pa.types.is_list(found)]
        raise UsageError(
            f"{reader.path} has {'no field' if kind is None else 'the ' + str(kind)} {name!r} to {use}",
            expected=f"a field of texts or whole numbers; it has {', '.join(usable)}",
            next_step="Name one of these, or add one with: smallfiles annotate",
        )
    found = one_chunk(reader.table([name])[name]) if found is None else found
    if found.null_count:
        rows = np.flatnonzero(as_mask(found.is_null()))
        examples = first_few([reader.key(int(row)) for row in rows[:5]], len(rows))
        raise UsageError(
            f"{plural(len(rows), 'sample')} of {reader.path} have no {name}: {examples}",
            expected=f"a value for each sample to {use}",
            next_step="Add another field with: smallfiles annotate, in which no value is missing",
        )
    coded = pc.dictionary_encode(found)
    return to_numpy(coded.indices.cast(pa.int64())), coded.dictionary.cast(pa.string())


def reported(reader: Reader, choice: Choice, splits: pa.StringArray) -> SplitReport:
    """Count what a split did, from the names that are stored.

    Args:
        reader: The set.
        choice: The rule.
        splits: The name of each sample's split.
    """
    assert choice.split_rule is not None
    names = [*choice.split_rule]
    number = to_numpy(pc.index_in(splits, column(names, pa.string())).cast(pa.int64()))
    counts = np.bincount(number, minlength=len(names))
    samples = dict(zip(names, counts.tolist(), strict=True))
    shares = {name: count / max(len(number), 1) for name, count in samples.items()}
    groups, several, classes = dict[str, int](), 0, dict[str, dict[str, float]]()
    if field := choice.split_by or choice.stratify:
        value, texts = numbered(reader, field)
        table = np.bincount(value * len(names) + number, minlength=len(texts) * len(names))
        table = table.reshape(len(texts), len(names))
        if choice.split_by:
            groups = dict(zip(names, (table > 0).sum(0).tolist(), strict=True))
            several = int(((table > 0).sum(1) > 1).sum())
        else:
            of = [
                reader.classes[int(each)] if field == "label" and reader.classes else each
                for each in (texts.to_pylist())
            ]
            part = table / table.sum(1, keepdims=True)
            classes = {
                each: dict(zip(names, row.tolist(), strict=True)) for each, row in zip(of, part, strict=True)
            }
    return SplitReport(samples, shares, groups, several, classes)
