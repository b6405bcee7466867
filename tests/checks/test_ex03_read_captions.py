"""Exercise 03, results.csv: each known mistake gets a diagnosis of its own."""

import csv
import re
from functools import partial
from pathlib import Path

import pandas
import pytest
from flickr_answers import assert_told, read_captions

from exercises.checks import ex03_pack_arrow as ex03
from smallfiles import sources


@pytest.fixture(autouse=True)
def lenient(monkeypatch):
    monkeypatch.delenv("COURSE_STRICT", raising=False)


def by_lines(path, split, fix=lambda parts: parts):
    """A reader that cuts lines by `split`; rows of fewer than three parts go through `fix`."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        parts = split(line)
        parts = fix(parts) if len(parts) < 3 else parts
        if parts:
            found.setdefault(parts[0], {})[int(parts[1])] = parts[2]
    return {name: [texts[n] for n in sorted(texts)] for name, texts in found.items()}


def mend(parts):
    name, rest = parts
    number, text = rest.split(maxsplit=1)
    return [name, number, text]


def in_file_order(path):
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        name, rest = line.split("|", 1)
        found.setdefault(name, []).append(re.fullmatch(r"\s*\d+\s*\|?\s*(.*)", rest)[1])
    return found


def with_pandas(path, **options):
    table = pandas.read_csv(path, sep="|", names=["image", "number", "text"], skiprows=1, **options)
    table["text"] = table["text"].map(lambda text: text.strip() if isinstance(text, str) else text)
    return {name: group["text"].tolist() for name, group in table.groupby("image")}


def with_csv_module(path):
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="|", skipinitialspace=True))[1:]
    found = {}
    for cells in rows:
        found.setdefault(cells[0], []).append(cells[-1].strip())
    return found


def spelled_bytes(path):
    found = {}
    for line in path.read_bytes().split(b"\n")[1:]:
        if line:
            name, _, rest = line.partition(b"|")
            found.setdefault(name.decode(), []).append(str(rest.rpartition(b"|")[2].strip()))
    return found


def real_line_only(path):
    kept = [line for n, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1) if n != 20001]
    found = {}
    for line in kept[1:-1]:
        name, number, text = line.split("|", 2)
        found.setdefault(name, {})[int(number)] = text.strip()
    return {name: [texts[n] for n in sorted(texts)] for name, texts in found.items()}


def changed(change):
    return lambda path: {name: change(texts) for name, texts in read_captions(path).items()}


WRONG_CAPTIONS = {
    "comma as delimiter": (
        partial(by_lines, split=lambda line: line.split(",", 2), fix=lambda p: [p[0], 0, ""]),
        "comma does not end a name",
    ),
    "blanks left": (partial(by_lines, split=lambda line: line.split("|", 2), fix=mend), ".strip()"),
    "bad row dropped": (
        partial(by_lines, split=lambda line: [p.strip() for p in line.split("|", 2)], fix=lambda p: None),
        "Repair it, do not drop it",
    ),
    "bad row keeps its number": (
        partial(
            by_lines,
            split=lambda line: [p.strip() for p in line.split("|", 2)],
            fix=lambda p: [p[0], 4, p[1]],
        ),
        "a number is left",
    ),
    "bad row becomes nan": (partial(with_pandas, quoting=csv.QUOTE_NONE), "NaN"),
    "bad row becomes the text nan": (
        partial(
            by_lines,
            split=lambda line: [p.strip() for p in line.split("|", 2)],
            fix=lambda p: [p[0], 4, "nan"],
        ),
        "lost caption",
    ),
    "bad row becomes None": (
        partial(
            by_lines,
            split=lambda line: [p.strip() for p in line.split("|", 2)],
            fix=lambda p: [p[0], 4, None],
        ),
        "a caption is lost",
    ),
    "pandas with its quoting": (
        partial(with_pandas, skipinitialspace=True, on_bad_lines="skip"),
        "QUOTE_NONE",
    ),
    "csv module with its quoting": (with_csv_module, "QUOTE_NONE"),
    "split at every |": (
        partial(by_lines, split=lambda line: [p.strip() for p in line.split("|")], fix=lambda p: mend(p)),
        "hold a `|` itself",
    ),
    "cut at a comma": (
        lambda path: {n: [t.split(" ,")[0] for t in ts] for n, ts in read_captions(path).items()},
        "cut at its comma",
    ),
    "order of the file": (in_file_order, "order is not that of comment_number"),
    "only line 20001": (real_line_only, "one row lost its second"),
    "str of bytes": (spelled_bytes, "Python spelling"),
    "bytes": (changed(lambda texts: [text.encode() for text in texts]), "captions are text"),
    "header as image": (lambda path: {"image_name": [" comment"], **read_captions(path)}, "the header"),
    "one text": (changed(" ".join), "a list of captions"),
    "one list": (
        lambda path: [text for texts in read_captions(path).values() for text in texts],
        "has to be a dict",
    ),
    "mixed up": (
        lambda path: dict(
            zip(
                found := read_captions(path),
                [*list(found.values())[1:], *list(found.values())[:1]],
                strict=False,
            )
        ),
        "another image",
    ),
    "lower case": (changed(lambda texts: [text.lower() for text in texts]), "was changed"),
    "names as bytes": (
        lambda path: {name.encode(): texts for name, texts in read_captions(path).items()},
        "names are text",
    ),
    "only the first": (changed(lambda texts: texts[:1]), "are missing"),
    "captions as tuples of letters": (changed(lambda texts: tuple(texts)), "Python lists"),
    "a plain exception": (
        partial(by_lines, split=lambda line: [p.strip() for p in line.split("|", 2)]),
        "one row lost its second",
    ),
}


class TestReadCaptions:
    @pytest.mark.parametrize("name", WRONG_CAPTIONS)
    def test_a_wrong_answer_gets_its_diagnosis(self, name):
        answer, diagnosis = WRONG_CAPTIONS[name]
        assert_told(ex03.read_captions(answer), diagnosis)

    def test_the_right_answer_passes(self):
        assert ex03.read_captions(read_captions)

    def test_the_package_itself_passes(self):
        def with_helpers(path):
            found = sources.flickr30k.captions.read(path) if path.stat().st_size > 50 else None
            return {name: found.ordered(name) for name in found.of} if found else {}

        import smallfiles.sources.flickr30k.captions  # noqa: F401

        assert ex03.read_captions(with_helpers)

    def test_a_stub_is_not_started(self):
        def stub(csv_file):
            raise NotImplementedError

        assert ex03.read_captions(stub).state == "not started"


def test_mistakes_are_told_apart():
    """Different mistakes should not all get one and the same sentence."""
    said = {name: ex03.read_captions(answer).because for name, (answer, _) in WRONG_CAPTIONS.items()}
    assert len(set(said.values())) >= 16
    assert all(Path(__file__).name not in text for text in said.values())
