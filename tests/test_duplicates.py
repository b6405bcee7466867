"""Duplicates: every pair of equal samples is found in every format, and none that only looks equal."""

import io
import json
import tarfile
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from smallfiles import formats
from smallfiles.cli import main
from smallfiles.samples import BlobField, Sample, Schema

CLASSES = ("cat", "dog", "cow")
OURS = ("a.arrow", "a.h5", "a.tars", "a.sqfs", "a.files", "a.lmdb")
FOREIGN = "others.tars"
COUNT = 150
SAME = {90: 3, 20: 10, 149: 10, 61: 60}
"""Samples that repeat an earlier one: 20 with another label, and 61 in another split."""
OF_VAL = (5, 10, 77)
"""Samples that the validation set has too."""


def picture(number, size=(9, 8)):
    pixels = np.random.default_rng(number).integers(0, 255, (size[1], size[0], 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "BMP")  # all of one size, so that only bytes differ
    return out.getvalue()


def train():
    """Key, bytes, label, and split of each sample; near misses have the size of others, and other bytes."""
    found = []
    for n in range(COUNT):
        origin = SAME.get(n, n)
        data = picture(origin)
        data = data[:-1] + b"\0" if n == 33 else data  # differs from no other in more than its last byte
        data = picture(32)[:-1] + b"\1" if n == 34 else data
        label = 2 if n == 20 else origin % 2
        found.append((f"{n:04}.bmp", data, label, "val" if n == 61 else "train"))
    return found


def val():
    return [(f"v{n}.bmp", picture(n), 0, "val") for n in OF_VAL] + [
        (f"w{n}.bmp", picture(1000 + n % 5), 1, "val")
        for n in range(10)  # equal among themselves only
    ]


def write(out, rows, **more):
    if out.name == FOREIGN:
        return write_foreign(out, rows)
    values = pa.table({"label": [row[2] for row in rows], "split": [row[3] for row in rows]})
    values = values if out.suffix != ".lmdb" else values.drop_columns(["split"])  # which it cannot hold
    blobs = tuple(BlobField(name, ".txt") for name in more.get("blobs", ()))
    samples = [Sample(key, (data, *[b"same"] * len(blobs)), n) for n, (key, data, *_) in enumerate(rows)]
    module = formats.get(formats.name_of(out))
    schema = Schema.of(samples, values, classes=CLASSES, blobs=blobs)
    module.write(samples, out, schema=schema, options=module.Options(), digest=more.get("digest", True))
    return out


def write_foreign(out, rows):
    """Shards as other programs write them, with plain tarfile."""
    out.mkdir()
    for shard in range(0, len(rows), 60):
        with tarfile.open(out / f"{shard:05}.tar", "w") as file:
            for key, data, label, split in rows[shard : shard + 60]:
                stem = key.removesuffix(".bmp")
                facts = json.dumps({"split": split}).encode()
                for suffix, content in (("bmp", data), ("cls", str(label).encode()), ("json", facts)):
                    member = tarfile.TarInfo(f"{stem}.{suffix}")
                    member.size = len(content)
                    file.addfile(member, io.BytesIO(content))
    return out


def groups_of(*sets):
    """What `inspect` is to find, by a plain dictionary: keys of each group, and set of each key."""
    by_bytes = defaultdict(list)
    for number, rows in enumerate(sets):
        for key, data, *_ in rows:
            by_bytes[data].append((number, key))
    return [group for group in by_bytes.values() if len(group) > 1 and group[0][0] == 0]


def inspect(capsys, *words):
    code = main(["inspect", *map(str, words), "--duplicates", "--json"])
    return code, json.loads(capsys.readouterr().out)["duplicates"]


@pytest.mark.parametrize("name", [*OURS, FOREIGN])
def test_all_equal_samples_are_found_and_no_others(tmp_path, capsys, name):
    out = write(tmp_path / name, train())
    code, found = inspect(capsys, out)
    assert code == 1 and found["doubled"] == 7 and found["shared"] == 0
    assert [[each["key"] for each in group] for group in found["groups"]] == [
        [key for _, key in group] for group in groups_of(train())
    ]
    assert found["recorded"] == (name == "a.files")
    assert found["groups_with_several_labels"] == 1
    if name not in (FOREIGN, "a.lmdb"):
        assert found["groups_with_several_splits"] == 1
        assert found["groups"][1][1] == {"set": str(out), "key": "0020.bmp", "label": "cow", "split": "train"}


@pytest.mark.parametrize(
    "pair", [("a.arrow", "b.tars"), ("a.files", "b.files"), ("a.files", "b.h5"), (FOREIGN, "b.arrow")]
)
def test_samples_of_two_sets_are_found(tmp_path, capsys, pair):
    ours, theirs = write(tmp_path / pair[0], train()), write(tmp_path / pair[1], val())
    code, found = inspect(capsys, ours, "--against", theirs)
    assert code == 1 and found["shared"] == 5 and found["doubled"] == 7
    names = {str(ours): 0, str(theirs): 1}
    seen = [[(names[each["set"]], each["key"]) for each in group] for group in found["groups"]]
    assert seen == groups_of(train(), val())
    assert found["recorded"] == (pair == ("a.files", "b.files"))


def test_the_report_is_in_sentences(tmp_path, capsys):
    ours, theirs = write(tmp_path / "a.arrow", train(), blobs=["note"]), write(tmp_path / "b.h5", val())
    assert main(["inspect", str(ours), "--duplicates", "--against", str(theirs)]) == 1
    said = capsys.readouterr().out
    for sentence in (
        "7 of 150 samples of a.arrow have the same bytes as another sample of this set\n",
        "5 of 150 samples of a.arrow have the same bytes as a sample of b.h5 (13 samples)\n",
        "form 5 groups, 3 of them with several labels, 4 of them with several splits\n",
        "only the first file of each sample was compared, the field image\n",
        "  0010.bmp (cat, train) = 0020.bmp (cow, train) = 0149.bmp (cat, train) = b.h5: v10.bmp (cat, val)",
    ):
        assert sentence in said, said


@pytest.mark.parametrize("picture", ["sheet.html", "sheet.png"])
def test_the_contact_sheet_shows_each_group_side_by_side(tmp_path, capsys, picture):
    ours, theirs = write(tmp_path / "a.arrow", train()), write(tmp_path / "b.h5", val())
    sheet = tmp_path / picture
    words = ["inspect", str(ours), "--duplicates", "--against", str(theirs), "--picture", str(sheet)]
    assert main(words) == 1 and "cannot be shown" not in capsys.readouterr().out
    if picture == "sheet.html":
        sections = sheet.read_text().split("<section>")[1:]
        assert len(sections) == 5 and [part.count("<img ") for part in sections] == [2, 2, 4, 2, 2]
        for part in sections:  # equal bytes give equal pictures
            assert len({each.split('"')[0] for each in part.split('src="')[1:]}) == 1
    else:
        Image.open(sheet).verify()


def test_a_set_without_duplicates_is_told_apart(tmp_path, capsys):
    rows = [row for n, row in enumerate(train()) if n not in SAME]
    out = write(tmp_path / "a.tars", rows)
    assert main(["inspect", str(out), "--duplicates", "--picture", str(tmp_path / "a.html")]) == 0
    assert "none of 146 samples of a.tars have the same bytes as another" in capsys.readouterr().out
    other = write(tmp_path / "b.arrow", [row for row in val() if row[0][0] == "w"])
    assert inspect(capsys, out, "--against", other)[0] == 0
    # A choice of samples divides a group, and one sample of it is left.
    every = write(tmp_path / "all.arrow", train())
    code, found = inspect(capsys, every, "--where", "split == 'val' or label == 'cow'")
    assert code == 0 and found["groups"] == []


def test_more_groups_than_are_shown_are_counted(tmp_path, capsys):
    rows = [(f"{n}.bmp", picture(n // 2), n % 2, "train") for n in range(60)]
    out = write(tmp_path / "a.arrow", [*rows, *[(f"x{n}.bmp", b"", -1, "train") for n in range(6)]])
    assert main(["inspect", str(out), "--duplicates"]) == 1
    said = capsys.readouterr().out
    assert (
        "… and 21 more groups; --json names all of them" in said and "30 of them with several labels" in said
    )
    _, found = inspect(capsys, out, "--where", "label == -1")
    assert [each["label"] for each in found["groups"][0]] == [None] * 6


@pytest.mark.parametrize("name", ["a.arrow", "a.sqfs", "a.h5", FOREIGN])
def test_a_damaged_set_is_an_error_and_not_a_set_without_duplicates(tmp_path, capsys, name):
    out = write(tmp_path / name, train(), digest=False)
    file = max(out.iterdir()) if out.is_dir() else out
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert main(["inspect", str(out), "--duplicates"]) == 1
    said = capsys.readouterr()
    assert "error: " in said.err and "have the same bytes" not in said.out


def test_what_has_no_effect_is_refused(tmp_path, capsys):
    out = write(tmp_path / "a.arrow", train())
    assert main(["inspect", str(out), "--against", str(out)]) == 2
    assert "--against is given without --duplicates" in capsys.readouterr().err
    assert main(["inspect", str(out), "--duplicates", "--against", str(tmp_path / "none.arrow")]) == 1
    assert "none.arrow" in capsys.readouterr().err
