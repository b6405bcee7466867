"""The three files that hold Flickr30K's captions: `results.csv`, `.token` and Karpathy's split.

    results.csv              image_name| comment_number| comment      delimiter "| ", no quoting
    results_20130124.token   1000092795.jpg#0<TAB>Two young guys …
    dataset_flickr30k.json   {"images": [{"filename", "split", "sentences": [{"raw"}, …]}, …]}

The trap: captions hold commas and quotes, and line 20001 of results.csv lost its second delimiter; a
csv reader makes that caption NaN. Here rows are split by hand, and the bad one is mended and named.
Notebook 03 packs them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smallfiles.errors import SourceError, first_few
from smallfiles.progress import plural

CSV = "results.csv"
TOKEN = "results_20130124.token"
KARPATHY = "dataset_flickr30k.json"
_HEADER = "image_name| comment_number| comment"
_LOST_DELIMITER = re.compile(r"(?P<image>[^|]+)\|\s*(?P<number>\d+)\s+(?P<comment>\S.*)")
_TOKEN_LINE = re.compile(r"[^\t|]+#\d+\t")
_NO_CAPTION = frozenset({"", "nan"})


@dataclass
class Captions:
    """Captions of each image by comment number, and what was odd.

    Args:
        of: Image name to comment number to caption.
        split_of: Image name to split, where a file says so.
        notes: What was mended or is missing.
    """

    of: dict[str, dict[int, str]] = field(default_factory=dict)
    split_of: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _empty: list[str] = field(default_factory=list)
    _repeated: list[str] = field(default_factory=list)

    def add(self, image: str, number: int, caption: str) -> None:
        """Add one caption; empty ones and repeats are noted instead."""
        caption = caption.strip()
        there = self.of.setdefault(image, {})
        if caption.lower() in _NO_CAPTION:
            self._empty.append(f"{image}#{number}")
        elif number in there:
            self._repeated.append(f"{image}#{number}")
        else:
            there[number] = caption

    def ordered(self, image: str) -> list[str]:
        """Captions of one image in the order of their numbers."""
        found = self.of.get(image, {})
        return [found[number] for number in sorted(found)]

    def all_notes(self) -> list[str]:
        """Everything odd, one sentence each."""
        notes = list(self.notes)
        for names, what in ((self._empty, "empty caption"), (self._repeated, "caption number given twice")):
            if names:
                notes.append(f"{plural(len(names), what)}: {first_few(names, len(names))}")
        return notes


def read(path: Path) -> Captions:
    """Read a caption file of any of the three kinds, told apart by its content.

    Raises:
        SourceError: It is none of them; the line that is wrong is named.
    """
    text = _text(path)
    if text.lstrip().startswith("{"):
        return _read_karpathy(path, text)
    first = text.partition("\n")[0].rstrip("\r")
    is_csv = "|" in first and not _TOKEN_LINE.match(first)  # captions of a token file hold pipes too
    return _read_csv(path, text) if is_csv else _read_token(path, text)


def _read_csv(path: Path, text: str) -> Captions:
    found = Captions()
    mended = []
    for number, line in _lines(text):
        if number == 1:
            if line != _HEADER:
                raise _bad_line(path, number, line, f"the header {_HEADER!r}")
            continue
        parts = line.split("|", 2)
        image, comment_number = parts[0], parts[1].strip() if len(parts) > 1 else ""
        if len(parts) == 3 and comment_number.isdecimal() and image:
            found.add(image.strip(), int(comment_number), parts[2])
        elif match := _LOST_DELIMITER.fullmatch(line):
            found.add(match["image"].strip(), int(match["number"]), match["comment"])
            mended.append(number)
        else:
            raise _bad_line(path, number, line, "a row such as: 1000092795.jpg| 0| Two young guys …")
    if mended:
        told = first_few(mended, len(mended))
        found.notes.append(
            f"{path.name}: lost delimiter mended in {plural(len(mended), 'row')} (line {told})"
        )
    return found


def _read_token(path: Path, text: str) -> Captions:
    found = Captions()
    for number, line in _lines(text):
        head, tab, caption = line.partition("\t")
        image, _, comment_number = head.rpartition("#")
        if not tab or not image or not comment_number.isdecimal():
            raise _bad_line(path, number, line, "a line such as: 1000092795.jpg#0<TAB>Two young guys …")
        found.add(image, int(comment_number), caption)
    return found


def _read_karpathy(path: Path, text: str) -> Captions:
    found = Captions()
    try:
        document: Any = json.loads(text)
        for image in document["images"]:
            name = str(image["filename"])
            found.split_of[name] = str(image["split"])
            for number, sentence in enumerate(image["sentences"]):
                found.add(name, number, str(sentence["raw"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SourceError(
            f"{path} cannot be read as Karpathy's split ({type(error).__name__}: {error})",
            expected='{"images": [{"filename": …, "split": …, "sentences": [{"raw": …}]}]}',
            next_step=f"Download {KARPATHY} again",
        ) from error
    return found


def _lines(text: str) -> list[tuple[int, str]]:
    # Not splitlines(): captions may hold characters that it takes for line ends.
    rows = ((number, line.rstrip("\r")) for number, line in enumerate(text.split("\n"), 1))
    return [(number, line) for number, line in rows if line.strip()]


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise SourceError(
            f"{path} cannot be read ({error.strerror or error})",
            expected="a caption file",
            next_step="Check the path and its permissions",
        ) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise SourceError(
            f"line {line} of {path} is not UTF-8", expected="text in UTF-8", next_step="Download it again"
        ) from error


def _bad_line(path: Path, number: int, line: str, expected: str) -> SourceError:
    return SourceError(
        f"line {number} of {path} is {line[:80]!r}",
        expected=expected,
        next_step="Correct it or download it again",
    )
