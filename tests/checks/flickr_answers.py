"""Right answers to exercise 03, to pass its checks and to be spoilt in its tests."""

import re

import pyarrow as pa


def assert_told(verdict, diagnosis):
    """It is a ✗ with this diagnosis, and no traceback."""
    assert verdict.state == "not yet", str(verdict)
    assert diagnosis in verdict.because, str(verdict)
    assert "Traceback" not in str(verdict)


def read_captions(path):
    found = {}
    for line in path.read_text(encoding="utf-8").split("\n")[1:]:
        if line:
            name, rest = line.split("|", 1)
            number, text = re.fullmatch(r"\s*(\d+)\s*\|?\s*(.*)", rest).groups()
            found.setdefault(name, {})[int(number)] = text
    return {name: [texts[n] for n in sorted(texts)] for name, texts in found.items()}


SCHEMA = pa.schema([("key", pa.string()), ("captions", pa.list_(pa.string())), ("data", pa.binary())])


def rows_of(folder):
    told = read_captions(next(folder.rglob("results.csv")))
    images = sorted(folder.rglob("*.jpg"), key=lambda path: path.name)
    return [(path.name, told[path.name], path.read_bytes()) for path in images]


def write(
    folder, out, change=lambda rows: rows, schema=SCHEMA, rows=64, options=None, returns=None, new=None
):
    """The right answer, with something changed."""
    given = change(rows_of(folder))
    with pa.OSFile(str(out), "wb") as file, (new or pa.ipc.new_file)(file, schema, options=options) as writer:
        for start in range(0, len(given), rows):
            columns = zip(*given[start : start + rows], strict=False)
            writer.write(
                pa.record_batch(
                    [pa.array(c, f.type) for c, f in zip(columns, schema, strict=False)], schema=schema
                )
            )
    return returns if returns is not None else len(given)


def open_mapped(path):
    return pa.ipc.open_file(pa.memory_map(str(path)))


def right_columns(path):
    return open_mapped(path).read_all()["captions"].to_pylist()
