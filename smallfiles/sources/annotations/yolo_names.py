"""Class names of a YOLO set: the two entries of `data.yaml` that matter, or a list of lines.

    names: [cat, dog]       names:            names:          kpt_shape: [17, 3]
                              - cat             0: cat
                              - dog             1: dog

The trap: YAML is large, and half a parser reads `names` wrongly without a word. So everything beyond these
forms is refused. Short, since it reads another language than its neighbour.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from smallfiles.errors import SourceError
from smallfiles.folders import is_ignored
from smallfiles.sources.scanning import lines_of, list_folder, read_text

_LISTS = ("classes.txt", "obj.names", "labels/classes.txt")
_COMMENT = re.compile(r"(?m)(^|(?<=\s))#.*$")
_PLAIN = r"(?!-\s)[^\s,'\"\[\]{}&*!|>%@`?:#](?:[^,\[\]{}\n:]|:(?=\S))*?"
_SCALAR = rf"""'(?:[^']|'')*'|"[^"\\]*"|{_PLAIN}"""
_FLOW = re.compile(rf"\s*(?:(\d+)\s*:\s)?\s*({_SCALAR})\s*(?:,|$)")
_LINE = re.compile(rf"[ \t]*(?:-|(\d+)[ \t]*:)[ \t]+({_SCALAR})[ \t]*$")


def read_names(
    path: Path, ignore: Sequence[str] = ()
) -> tuple[Path | None, tuple[str, ...], tuple[int, ...]]:
    """The file of class names of a set, the names, and the shape of points (none, or their number and
    2 or 3).

    Raises:
        SourceError: The file cannot be read as one.
    """
    files = sorted(list_folder(path, ignore).files, key=lambda name: (name != "data.yaml", name))
    shape: tuple[int, ...] = ()
    for file in (path / name for name in files if name.endswith((".yaml", ".yml"))):
        text = _COMMENT.sub("", read_text(file))
        names, numbers = _entry(file, text, "names"), _entry(file, text, "kpt_shape")
        if numbers and not (len(numbers) == 2 and numbers[0].isdecimal() and numbers[1] in ("2", "3")):
            raise _odd(file, "kpt_shape")
        shape = shape or tuple(map(int, numbers))
        if names:
            return file, names, shape
    for name in _LISTS:
        if (path / name).is_file() and not is_ignored(name, ignore):
            return path / name, tuple(line.strip() for _, line in lines_of(read_text(path / name))), shape
    return None, (), shape


def _entry(file: Path, text: str, name: str) -> tuple[str, ...]:
    """The list in an entry of the top level; empty if there is no such entry."""
    found = re.search(rf"(?m)^{name}[ \t]*:(?=\s)(.*(?:\n(?:[ \t\]}}-].*|[ \t]*$))*)", text)
    if found is None:
        return ()
    block = found[1].strip()
    if block[:1] + block[-1:] in ("[]", "{}"):
        entries, rest = _all_of(_FLOW, block[1:-1])
    else:
        lines = [_LINE.match(line) for line in found[1].split("\n") if line.strip()]
        entries, rest = [each for each in lines if each], "" if all(lines) else block
    keys = [int(each[1]) for each in entries if each[1]]
    if rest.strip() or not entries or (keys and sorted(keys) != [*range(len(entries))]):
        raise _odd(file, name)
    texts = [_plain(each[2]) for each in entries]
    return tuple(texts[keys.index(place)] for place in range(len(keys))) if keys else tuple(texts)


def _all_of(pattern: re.Pattern[str], text: str) -> tuple[list[re.Match[str]], str]:
    """Matches one after the other, and what is left."""
    found, at = [], 0
    while text[at:].strip() and (match := pattern.match(text, at)):
        found.append(match)
        at = match.end()
    return found, text[at:]


def _plain(text: str) -> str:
    if text[0] == "'":
        return text[1:-1].replace("''", "'")
    return text[1:-1] if text[0] == '"' else text.strip()


def _odd(file: Path, name: str) -> SourceError:
    return SourceError(
        f"the entry {name} of {file} cannot be read",
        expected="a list, such as names: [cat, dog], or one line per class: 0: cat",
        next_step="Write it so, or put the class names into classes.txt, one per line, and remove the entry",
    )
