"""Find the samples that a condition or a split describes: `label == 'cat' and age > 40`, `train=0.8,val=0.2`.

The condition has Python's syntax, and is parsed, not run: a few allowed forms are translated into functions
of Arrow, which compare a million values in milliseconds. The trap of conditions: a comparison with a missing
value is neither true nor false, and a filter that silently drops such samples loses data that nobody misses.
So the condition has to say what becomes of them: `age is not None and age > 40`. docs/recipes.md has
examples.

A rule divides a set: a hash of each key, or of each group, decides in which split it is. The trap: a random
split of pictures puts those of one patient into both training and validation, and the
accuracy that is measured then is that of recognising patients. A split by group keeps them together. And a
random draw moves samples between splits when a set grows; a hash leaves each sample where it was.
"""

from __future__ import annotations

import ast
import functools
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json

from smallfiles.arrays import as_mask, column, from_numpy, joined, one_chunk, scalar, to_numpy
from smallfiles.digests import name_hashes
from smallfiles.errors import ManifestError, UsageError, first_few
from smallfiles.fields import META, is_blob, value_column
from smallfiles.progress import plural
from smallfiles.samples import Reader
from smallfiles.selection import Choice

_COMPARED: dict[type[ast.cmpop], Callable[..., pa.Array]] = {
    **{ast.Eq: pc.equal, ast.NotEq: pc.not_equal, ast.Lt: pc.less, ast.LtE: pc.less_equal},
    **{ast.Gt: pc.greater, ast.GtE: pc.greater_equal},
}
_METHODS = {"startswith": pc.starts_with, "endswith": pc.ends_with}
_LONGEST = 10_000
_NEITHER = column([None], pa.int64())[0].cast(pa.bool_())
_FORMS = (
    "comparisons (== != < <= > >=, in, not in, is None, is not None), and, or, not, parentheses, "
    "and field.startswith('…') or field.endswith('…'); meta.age is a value of the JSON object of a sample"
)


def matching(reader: Reader, text: str) -> npt.NDArray[np.bool_]:
    """Mark the samples for which a condition is true.

    Args:
        reader: A set.
        text: A condition on its values; `key` is a field as well, and names of classes are labels.

    Raises:
        UsageError: The condition cannot be read, or does not fit the fields; or some samples have no value.
    """
    return _Condition(reader, text).mask()


def json_value(reader: Reader, name: str) -> pa.Array | None:
    """Return the column `meta.NAME` of the JSON objects of all samples; None if it is not one of them.

    Raises:
        UsageError: Its values have several types.
    """
    whole, _, own = name.partition(".")
    if whole != META or not own or reader.fields.get(META) != "string":
        return None
    texts = pc.fill_null(one_chunk(reader.table([META])[META]), scalar("{}")).cast(pa.large_string())
    lines = pa.LargeListArray.from_arrays(from_numpy(np.array([0, len(texts)])), texts)
    data = pc.binary_join(lines, scalar("\n").cast(pa.large_string()))[0].as_buffer()
    try:
        whole_file, options = json.ReadOptions(block_size=data.size + 1), json.ParseOptions(None, True)
        parsed = json.read_json(pa.BufferReader(data), whole_file, options)
        return value_column(name, parsed[own]) if own in parsed.column_names else None
    except (pa.ArrowException, ManifestError) as error:
        raise UsageError(
            f"the JSON objects of {reader.path} do not form columns ({error})",
            expected="values of one type under each name",
            next_step="Add the values that you need with: smallfiles annotate",
        ) from error


class _Names(ast.NodeTransformer):
    """Makes a name of `meta.age`, but not of the method in `meta.who.startswith('p')`."""

    def visit_Call(self, node: ast.Call) -> ast.Call:
        if isinstance(node.func, ast.Attribute):
            node.func.value = self.visit(node.func.value)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        is_json = isinstance(node.value, ast.Name) and node.value.id == META
        return ast.Name(f"{META}.{node.attr}", ast.Load()) if is_json else node


class _Condition:
    """A condition on the values of a set."""

    def __init__(self, reader: Reader, text: str) -> None:
        self._reader, self._text = reader, text
        self._kinds = {"key": "string", **reader.fields}
        self._columns: dict[str, pa.Array] = {}

    def mask(self) -> npt.NDArray[np.bool_]:
        try:
            if len(self._text) > _LONGEST:
                raise RecursionError
            found = self._truth(_Names().visit(ast.parse(self._text.strip(), mode="eval").body))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            reason = error.msg if isinstance(error, SyntaxError) else "it is too long, or has a null byte"
            self._refuse(f"cannot be read: {reason}", "a condition such as age > 40 and label == 'cat'")
        except pa.ArrowException as error:
            self._refuse(f"cannot be evaluated: {error}", self._known())
        if found.null_count:
            self._refuse_nulls(found)
        return as_mask(found)

    def _truth(self, node: ast.expr) -> pa.Array:
        """Truth values of all samples; null where a value is missing."""
        if isinstance(node, ast.BoolOp):
            join = pc.and_kleene if isinstance(node.op, ast.And) else pc.or_kleene
            return functools.reduce(join, map(self._truth, node.values))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return pc.invert(self._truth(node.operand))
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            pairs = map(self._pair, sides[:-1], node.ops, sides[1:])
            return functools.reduce(pc.and_kleene, pairs)
        if isinstance(node, ast.Name):
            found = self._column(node.id)
            if pa.types.is_boolean(found.type):
                return found
            example = f"{node.id} {'!= 0' if self._class_of(found) == 'number' else '!= ' + repr('')}"
            self._refuse(f"has {node.id} ({found.type}) where it needs a truth value", f"such as {example}")
        match node:
            case ast.Call(ast.Attribute(ast.Name(name), method), [ast.Constant(str() as text)], []):
                if method in _METHODS:
                    return _METHODS[method](self._texts(name), text)
        self._unsupported(node)

    def _pair(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> pa.Array:
        """Compare two sides, of which one is a field."""
        if isinstance(op, ast.Is | ast.IsNot):
            match left, right:
                case ast.Name(name), ast.Constant(None):
                    found = self._column(name)
                    return found.is_null() if isinstance(op, ast.Is) else found.is_valid()
            self._unsupported(right, "is and is not compare a field with None")
        if type(op) not in _COMPARED:  # in, not in
            found = self._contained(left, right)
            return found if isinstance(op, ast.In) else pc.invert(found)
        names = [side.id for side in (left, right) if isinstance(side, ast.Name)]
        if not names:
            self._unsupported(left if isinstance(right, ast.Constant) else right, "it names no field")
        columns = [self._column(name) for name in names]
        if len(names) == 2:
            if self._class_of(columns[0]) != self._class_of(columns[1]):
                self._misfit(names[0], f"field {names[1]} of type {columns[1].type}")
            return _COMPARED[type(op)](*columns)
        if names == ["label"] and not isinstance(op, ast.Eq | ast.NotEq):
            self._text_labels(right if isinstance(left, ast.Name) else left)
        if isinstance(left, ast.Name):
            return _COMPARED[type(op)](columns[0], self._values(names[0], [right])[0])
        return _COMPARED[type(op)](self._values(names[0], [left])[0], columns[0])

    def _contained(self, left: ast.expr, right: ast.expr) -> pa.Array:
        """Evaluate `field in [1, 2]`, or `'text' in field`."""
        match left, right:
            case ast.Name(name), (ast.List() | ast.Tuple() | ast.Set()) if right.elts:
                found = self._column(name)
                contained = pc.is_in(found, value_set=self._values(name, right.elts))
                return pc.if_else(found.is_valid(), contained, _NEITHER)
            case ast.Constant(str() as text), ast.Name(name):
                return pc.match_substring(self._texts(name), text)
        self._unsupported(right, "in needs a field and a list of values, or a text and a field of texts")

    def _values(self, name: str, nodes: list[ast.expr]) -> pa.Array:
        """Convert constants to the type of a field, and names of classes to labels."""
        field = self._column(name)
        kind, found = self._class_of(field), list[int | float | str]()
        for node in nodes:
            negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
            inner = node.operand if isinstance(node, ast.UnaryOp) and negative else node
            value = inner.value if isinstance(inner, ast.Constant) else self._unsupported(inner)
            if value is None:
                self._unsupported(inner, "a missing value is found by: is None")
            if name == "label" and isinstance(value, str):
                value = self._label(value)
            fits = {"number": int | float, "truth": bool, "text": str}[kind]
            if not isinstance(value, int | float | str) or not isinstance(value, fits):
                self._misfit(name, repr(value))
            if isinstance(value, bool) != (kind == "truth") or (negative and isinstance(value, str | bool)):
                self._misfit(name, ast.unparse(node))
            found.append(-value if negative and not isinstance(value, str) else value)
        if kind == "text":
            return column(found, pa.string())
        if kind == "truth":
            return column([int(value) for value in found], pa.int64()).cast(pa.bool_())
        if any(isinstance(value, float) for value in found) or pa.types.is_floating(field.type):
            return from_numpy(np.array(found, np.float64))
        if not all(abs(int(value)) < 2**63 for value in found):
            self._misfit(name, "a number of more than 64 bits")
        return column(found, pa.int64())

    def _label(self, name: str) -> int:
        classes = self._reader.classes
        if name not in classes:
            similar = get_close_matches(name, classes, 3)
            known = (
                f"one of {first_few(classes, len(classes))}" if classes else "a number: no class has a name"
            )
            self._refuse(
                f"names the class {name!r}, which the set does not have",
                " or ".join(similar) if similar else known,
            )
        return classes.index(name)

    def _text_labels(self, side: ast.expr) -> None:
        if isinstance(side, ast.Constant) and isinstance(side.value, str):
            self._refuse("compares classes by < or >", "== or != for names of classes")

    def _texts(self, name: str) -> pa.Array:
        found = self._column(name)
        if not pa.types.is_string(found.type):
            self._misfit(name, "a part of a text")
        return found

    def _column(self, name: str) -> pa.Array:
        if name not in self._columns:
            of_json = json_value(self._reader, name)
            kind = self._kinds.get(name) if of_json is None else str(of_json.type)
            if kind is None:
                similar = get_close_matches(name, self._kinds, 1)
                meant = f"; did you mean {similar[0]}?" if similar else ""
                self._refuse(f"names the field {name!r}, which the set does not have{meant}")
            if name != "key" and (is_blob(kind) or kind.startswith("list")):
                self._refuse(f"compares {name} ({kind})", f"numbers, texts or truth values: {self._known()}")
            if of_json is None:
                of_json = self._reader.keys() if name == "key" else self._reader.table([name])[name]
            self._columns[name] = one_chunk(of_json)
        return self._columns[name]

    @staticmethod
    def _class_of(found: pa.Array) -> Literal["number", "truth", "text"]:
        if pa.types.is_integer(found.type) or pa.types.is_floating(found.type):
            return "number"
        return "truth" if pa.types.is_boolean(found.type) else "text"

    def _known(self) -> str:
        return ", ".join(
            f"{name} ({kind})"
            for name, kind in self._kinds.items()
            if name == "key" or not (is_blob(kind) or kind.startswith("list"))
        )

    def _misfit(self, name: str, other: str) -> NoReturn:
        kind = self._column(name).type
        self._refuse(f"compares {name} ({kind}) with {other}", f"a value of the type {kind}")

    def _unsupported(self, node: ast.expr, why: str = "") -> NoReturn:
        said = f", but {why}" if why else ""
        self._refuse(f"contains {ast.unparse(node)!r}{said}", _FORMS)

    def _refuse_nulls(self, found: pa.Array) -> NoReturn:
        rows = np.flatnonzero(as_mask(found.is_null()))
        lacking = [name for name, each in self._columns.items() if each.null_count] or ["a value"]
        examples = first_few([self._reader.key(int(row)) for row in rows[:5]], len(rows))
        example = f"{lacking[0]} is not None and ({self._text})"
        got = f"is undecided for {plural(len(rows), 'sample')} without {' or '.join(lacking)}: {examples}"
        self._refuse(got, f"a condition that covers missing values, such as: {example}")

    def _refuse(self, got: str, expected: str = "") -> NoReturn:
        raise UsageError(
            f"the condition {textwrap.shorten(self._text, 200)!r} {got}",
            expected=expected or f"one of {self._known()}",
            next_step=f"Correct the condition; smallfiles inspect {self._reader.path} shows the fields",
        )


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
    """Return the number of the split of each sample, in the order of the rule.

    Args:
        reader: A set.
        choice: A choice with a rule.

    Raises:
        UsageError: The field does not exist, it is neither text nor number, or some samples have no value.
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
