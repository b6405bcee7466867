"""Fields that are added to a packed set later: read with every format, and never with other samples."""

import csv
import json
import pickle
import random
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from packing import FORMATS, contents, make_tree

from smallfiles import digests, formats, sources, staging
from smallfiles.cli import main
from smallfiles.errors import (
    FormatError,
    ManifestError,
    OutputExistsError,
    SmallfilesError,
    SourceError,
    UsageError,
)
from smallfiles.objectstore.catalog import of_output
from smallfiles.pack import PackConfig, annotate, pack, verify
from smallfiles.staging import StageConfig

ROOMY = StageConfig(leave_bytes=0)


def number_of(key):
    return int(key[-9:-5])


def table(path, keys, **more):
    """A table with a row for each key, in another order than they are packed in."""
    rows = [
        {"filename": key, "score": number_of(key) / 4, "word": f"é{key}" if number_of(key) % 3 else None}
        | {name: column[row] for name, column in more.items()}
        for row, key in enumerate(keys)
    ]
    random.Random(1).shuffle(rows)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def keys_of(out):
    found: list[str] = formats.open(out).keys().to_pylist()
    return found


def added_rows(out):
    values = formats.open(out).table()
    return list(zip(values["score"].to_pylist(), values["word"].to_pylist(), strict=True))


def wanted(keys):
    return [(number_of(key) / 4, f"é{key}" if number_of(key) % 3 else None) for key in keys]


@pytest.fixture
def out(tree, tmp_path):
    pack(sources.load(tree), tmp_path / "out.arrow", PackConfig(shuffle=1))
    return tmp_path / "out.arrow"


@pytest.fixture
def annotated(out, tmp_path):
    return annotate(out, table(tmp_path / "new.csv", keys_of(out)), "filename").path


@pytest.mark.parametrize("name", FORMATS)
def test_columns_are_read_as_packed_ones_and_nothing_packed_is_written(name, tree, tmp_path):
    out = tmp_path / FORMATS[name]
    pack(sources.load(tree), out, PackConfig(shuffle=1))
    before = contents(out)
    done = annotate(out, table(tmp_path / "new.csv", keys_of(out)), "filename")
    assert done.path == tmp_path / f"{out.name}.new.fields.arrow"
    assert done.fields == {"score": "double", "word": "string"} and done.samples == 40
    assert {file: data for file, data in contents(out).items() if file in before} == before
    assert added_rows(out) == wanted(keys_of(out))
    reader = pickle.loads(pickle.dumps(formats.open(out)))
    assert [*reader.added()] == ["score", "word"]
    found = verify(out, sources.load(tree))
    assert found.verdict == "intact" and not found.differences, found
    assert (
        found.blocks
        > verify(
            shutil.copytree(out.parent, tmp_path / "bare", ignore=shutil.ignore_patterns("*.fields.arrow*"))
            / out.name
        ).blocks
    )


@pytest.mark.parametrize(("name", "other"), [("arrow", "x.h5"), ("files", "x.arrow"), ("tar", "x.arrow")])
def test_packing_again_packs_added_fields_too(name, other, tree, tmp_path):
    if name == "tar":
        tree = make_tree(tmp_path / "small", 10)
    out = tmp_path / FORMATS[name]
    pack(sources.load(tree), out)
    annotate(out, table(tmp_path / "new.csv", keys_of(out)), "filename")
    again = tmp_path / other
    pack(sources.load(out), again, PackConfig(shuffle=5))
    assert added_rows(again) == wanted(keys_of(again))
    assert [*formats.open(again).fields][-2:] == ["score", "word"] and not formats.open(again).added()
    assert verify(again, sources.load(out)).verdict == "intact"


@pytest.mark.parametrize("cut", [lambda key: Path(key).name, lambda key: Path(key).stem])
def test_rows_are_matched_by_file_name_and_by_stem(cut, out, tmp_path):
    keys = keys_of(out)
    path = table(tmp_path / "new.csv", keys, short=[cut(key) for key in keys])
    done = annotate(out, path, "short", fields=["score=score", "word=word"])
    assert added_rows(out) == wanted(keys) and "matched by" in done.notes[0]


def test_a_single_text_is_one_column_and_not_its_letters(out, tmp_path):
    done = annotate(out, table(tmp_path / "new.csv", keys_of(out)), "filename", fields="points=score")
    assert list(done.fields) == ["points"]


def test_whole_keys_are_not_given_up_for_stems_since_some_rows_belong_to_other_sets(out, tmp_path):
    keys = keys_of(out)
    done = annotate(out, table(tmp_path / "new.csv", [*keys, f"val/{Path(keys[0]).name}"]), "filename")
    assert added_rows(out) == wanted(keys)
    assert "matched by key" in done.notes[0] and "1 row without a sample left out: val/" in done.notes[1]


@pytest.mark.parametrize("change", ["missing", "twice", "no_column", "taken", "stem", "reserved", "template"])
def test_a_table_that_does_not_fit_is_refused_by_name(change, out, tmp_path, leftovers):
    keys = keys_of(out)
    rows = {"missing": keys[1:], "twice": [*keys, keys[3]]}.get(change, keys)
    path = table(tmp_path / ("new.x.csv" if change == "stem" else "new.csv"), rows)
    if change == "taken":
        annotate(out, path, "filename", name="first")
    key = "file" if change == "no_column" else "filename"
    fields = {"reserved": ["label=score"], "template": ["x={score}"]}.get(change, [])
    match = {"missing": keys[0], "twice": keys[3], "no_column": "no column 'file'", "taken": "score"}
    match |= {"stem": "'new.x'", "reserved": "label", "template": "template"}
    before = contents(out)
    with pytest.raises((SourceError, UsageError, ManifestError), match=match[change]):
        annotate(out, path, key, fields=fields)
    assert contents(out) == before and not leftovers(tmp_path)


def test_an_existing_file_of_fields_is_never_replaced(out, annotated, tmp_path):
    before = annotated.read_bytes()
    with pytest.raises(OutputExistsError, match="exists already"):
        annotate(out, tmp_path / "new.csv", "filename")
    assert annotated.read_bytes() == before


def test_the_fields_of_another_set_order_or_name_are_refused_in_a_sentence(annotated, out, tree, tmp_path):
    others = {"order": PackConfig(shuffle=2), "rows": PackConfig(shuffle=1), "set": PackConfig(shuffle=1)}
    for name, config in others.items():
        source = sources.load(make_tree(tmp_path / "fewer", 39) if name == "rows" else tree)
        if name == "set":
            next(tree.rglob("*.JPEG")).rename(tree / "n00000000" / "other 0000.JPEG")
            source = sources.load(tree)
        other = tmp_path / name / "out.arrow"
        other.parent.mkdir()
        pack(source, other, config)
        shutil.copy(annotated, other.parent)
        expected = {"order": "digest of 64 keys", "rows": "number of samples", "set": "set digest"}[name]
        with pytest.raises(FormatError, match=f"was not made for .*{expected}"):
            _ = formats.open(other).fields
        assert any("was not made for" in problem for problem in verify(other).problems)
    shutil.copy(annotated, out.with_name("out.arrow.again.fields.arrow"))
    with pytest.raises(FormatError, match="has the field 'score', and so has"):
        _ = formats.open(out).fields
    assert not verify(out).intact


def test_added_fields_with_a_row_less_than_they_record_are_damaged(annotated, out):
    fewer = pa.ipc.open_file(annotated.read_bytes()).read_all().slice(1).combine_chunks()
    with pa.ipc.new_file(annotated, fewer.schema) as writer:
        writer.write_table(fewer)
    with pytest.raises(FormatError, match="2 columns and 39 rows; expected one batch of 40 rows"):
        _ = formats.open(out).fields


def test_keys_beyond_those_that_opening_compares_are_compared_by_verify(tmp_path):
    tree, out = make_tree(tmp_path / "tree", 200, size=50), tmp_path / "out.arrow"
    pack(sources.load(tree), out)
    made = annotate(out, table(tmp_path / "new.csv", keys_of(out)), "filename").path
    batch = pa.ipc.open_file(made).read_all()
    record = json.loads(batch.schema.metadata[b"smallfiles.annotates"])
    record["keys"] = record["keys"][:-1] + ("0" if record["keys"][-1] != "0" else "1")
    batch = batch.replace_schema_metadata({b"smallfiles.annotates": json.dumps(record)})
    with pa.ipc.new_file(made, batch.schema) as writer:
        writer.write_table(batch)
    digests.digest_file(made).save(digests.sidecar(made))
    assert len(formats.open(out).table()) == 200
    assert any("all keys" in problem for problem in verify(out).problems)


def test_no_flipped_byte_is_read_as_another_value_unseen(annotated, out):
    whole, rows, draw = annotated.read_bytes(), added_rows(out), random.Random(3)
    for _ in range(300):
        data = bytearray(whole)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        annotated.write_bytes(data)
        try:
            same = added_rows(out) == rows
        except (SmallfilesError, KeyError):
            same = False
        assert not verify(out).intact, "every byte is under the digest"
        assert digests.ContentDigest.load(digests.sidecar(annotated)).damaged_blocks(annotated) or same
    annotated.write_bytes(whole)
    assert verify(out).intact
    annotated.write_bytes(whole[:-100])
    with pytest.raises(FormatError):
        _ = formats.open(out).fields
    digests.sidecar(annotated).unlink()
    annotated.write_bytes(whole)
    assert verify(out).verdict == "unproven"


@pytest.mark.parametrize("name", ["out.arrow", "out.tars"])
def test_added_fields_are_staged_and_pushed_with_their_set(name, tree, tmp_path):
    out, node = tmp_path / "set" / name, tmp_path / "node"
    out.parent.mkdir()
    node.mkdir()
    pack(sources.load(tree), out)
    made = annotate(out, table(tmp_path / "new.csv", keys_of(out)), "filename").path
    with staging.staged(out, node, config=ROOMY) as copy:
        assert added_rows(copy.path) == wanted(keys_of(out)) and copy.verified
        assert verify(copy.path).intact
    assert not [*node.rglob("*.fields.arrow*")]
    catalog, members = of_output(out)
    item = next(item for item in catalog.items if item.name == made.name)
    assert made in [member.source for member in members] and not item.is_data and item.sidecar
    assert catalog.local(item, tmp_path / f"copy.{name}") == tmp_path / f"copy.{name}.new.fields.arrow"
    assert catalog.samples == 40


def test_the_command_says_what_was_added_and_inspect_shows_it(out, tmp_path, capsys):
    path = table(tmp_path / "new.csv", keys_of(out))
    words = ["annotate", str(out), str(path), "--key", "filename", "--name", "people"]
    assert main([*words, "--field", "age=score", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["fields"] == {"age": "double"} and made["path"].endswith("out.arrow.people.fields.arrow")
    assert main([*words, "--field", "age=score"]) == 1
    assert "exists already" in capsys.readouterr().err
    assert main(["inspect", str(out), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["fields"] == {"image": ".jpeg", "label": "int64", "age": "double"}
    assert facts["added_fields"] == ["age"]
    assert main(["inspect", str(out)]) == 0
    told = capsys.readouterr().out
    assert "age (double)" in told and "out.arrow.people.fields.arrow" in told
