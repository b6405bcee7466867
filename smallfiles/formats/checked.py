"""What a sample's key, target and JSON object must be before a format stores them.

The trap: a label that silently wraps (70,000 in 16 bits is 4,464) trains without any error. So each
value is checked where it enters the file, and refused with the sample's name. Notebook 03 meets it.
"""

from __future__ import annotations

import json
import operator
from pathlib import Path

from smallfiles.errors import FormatError
from smallfiles.keys import key_problem
from smallfiles.samples import Sample, Schema

INT64 = range(-(2**63), 2**63)


def key_of(sample: Sample, out: Path) -> str:
    """The key, if it may travel.

    Raises:
        FormatError: It is absolute, leaves its folder, or is no name.
    """
    problem = key_problem(sample.key)
    if problem is not None:
        raise FormatError(
            f"the key {sample.key!r} for {out} {problem}",
            expected="a relative, normalised POSIX path",
            next_step="Rename this sample in the manifest",
        )
    return sample.key


def label_of(sample: Sample, out: Path, allowed: range = INT64) -> int:
    """The label, if it fits.

    Raises:
        FormatError: Not an integer, or outside `allowed`.
    """
    try:
        label = int(operator.index(sample.target))  # type: ignore[arg-type]  # the check
    except TypeError:
        raise _unfit(sample, out, "an integer label, as the schema says") from None
    if label not in allowed:
        raise _unfit(sample, out, f"a label from {allowed.start} to {allowed.stop - 1} in this layout")
    return label


def captions_of(sample: Sample, out: Path) -> list[str]:
    """The captions, if they are such.

    Raises:
        FormatError: Not a list of valid Unicode strings.
    """
    captions = sample.target
    if not isinstance(captions, list) or not all(isinstance(text, str) for text in captions):
        raise _unfit(sample, out, "a list of captions, as the schema says")
    try:
        for text in captions:
            text.encode()
    except UnicodeEncodeError:
        raise _unfit(sample, out, "captions of valid Unicode") from None
    return captions


def meta_text(sample: Sample, out: Path, schema: Schema) -> str | None:
    """The JSON object as compact text; equal objects give equal text.

    Raises:
        FormatError: No JSON object, or one that the schema does not announce.
    """
    if sample.meta is None:
        return None
    if schema.has_meta and isinstance(sample.meta, dict):
        try:
            return json.dumps(sample.meta, sort_keys=True, separators=(",", ":"))
        except (TypeError, ValueError):
            pass
    raise FormatError(
        f"the JSON object of {sample.key!r} cannot be stored in {out}",
        expected="a JSON object" if schema.has_meta else "none, since the schema has has_meta=False",
        next_step="Mend it, or set has_meta in the schema",
    )


def _unfit(sample: Sample, out: Path, expected: str) -> FormatError:
    shown = repr(sample.target)
    return FormatError(
        f"the target of {sample.key!r} for {out} is {shown if len(shown) < 80 else shown[:77] + '...'}",
        expected=expected,
        next_step="Mend the manifest, or choose a format or layout that holds it",
    )
