"""`verify` and the read-back of packing: found, told apart, and never called intact without a proof."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import shutil
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from packing import FORMATS, fake_jpeg

from smallfiles import digests, formats, sources
from smallfiles.cli import main
from smallfiles.errors import PackError
from smallfiles.formats.tar import Options as TarOptions
from smallfiles.manifest import Manifest
from smallfiles.pack import PackConfig, pack, verify, writing
from smallfiles.pack.verifying import VerifyReport

SHARDS = PackConfig(options=TarOptions(max_count=10))


def with_metas(source, changed=None):
    """The same source with a JSON object for every second sample; one of them may be another."""
    metas = [{"row": row, "word": "é"} if row % 2 else None for row in range(len(source.manifest))]
    if changed is not None:
        metas[changed] = {"row": -1}
    return with_columns(source, metas=metas)


def with_columns(source, **columns):
    old = source.manifest
    new = Manifest.from_columns(old.paths, old.targets, classes=old.classes, sizes=old.sizes, **columns)
    return dataclasses.replace(source, manifest=new)


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", FORMATS)
def test_without_digest_and_source_nothing_is_called_intact_changed_or_not(name, tree, tmp_path, capsys):
    out = tmp_path / FORMATS[name]
    pack(sources.load(tree), out, PackConfig(digest=False))
    assert verify(out).verdict == "unproven" and not verify(out).intact
    assert main(["verify", str(out)]) == 3
    told = capsys.readouterr().out
    assert "nothing to compare with" in told and "--against" in told and "is intact\n" not in told
    assert main(["verify", str(out), "--against", str(tree)]) == 0
    assert main(["verify", str(out), "--json"]) == 3
    files = [out] if out.is_file() else sorted(path for path in out.rglob("*") if path.is_file())
    draw = random.Random(7)
    for _ in range(20):
        file = draw.choice(files)
        place = draw.randrange(file.stat().st_size)
        flip(file, place)
        assert not verify(out).intact, (file, place)
        flip(file, place)


def test_plain_files_without_their_sha256_are_not_intact(source, tmp_path):
    out = tmp_path / "out.files"
    pack(source, out)
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["columns"]["sha256"][3] = None
    (out / "manifest.json").write_text(json.dumps(manifest))
    (out / "manifest.json.digest.json").unlink()
    report = verify(out)
    assert report.verdict == "unproven" and any("1 sample without a SHA-256" in n for n in report.notes)


def test_one_shard_that_lost_its_digest_or_index_is_not_covered_by_the_others(source, tmp_path):
    out = tmp_path / "out.tars"
    pack(source, out, SHARDS)
    assert verify(out).intact
    bare = out / "shard-000002.tar"
    bare.with_name(bare.name + ".digest.json").unlink()
    with tarfile.open(bare) as tar:
        image = [member for member in tar if member.name.endswith(".JPEG")][5]  # the index guards the ends
    flip(bare, image.offset_data + 100)
    report = verify(out)
    assert report.verdict == "unproven" and any(bare.name in note for note in report.notes)
    assert verify(out, source).verdict == "differs"
    (out / "shard-000001.tar.index.arrow").unlink()
    assert any("shard-000001.tar.index.arrow" in problem for problem in verify(out).problems)


def test_a_name_with_brackets_is_a_name_and_no_pattern(source, tmp_path):
    out = tmp_path / "set[1].arrow"
    pack(source, out)
    assert verify(out).intact
    flip(out, out.stat().st_size // 2)
    assert verify(out).verdict == "damaged"
    shutil.copy(tmp_path / "set[1].arrow.digest.json", tmp_path / "set1.arrow.digest.json")
    pack(source, tmp_path / "set1.tar")
    (tmp_path / "set[1].arrow.digest.json").unlink()
    assert verify(out).verdict == "unproven"


def test_a_shard_is_not_blamed_for_its_neighbour(source, tmp_path):
    pack(source, tmp_path / "a.tar")
    pack(source, tmp_path / "a.tar.tar")
    flip(tmp_path / "a.tar.tar", (tmp_path / "a.tar.tar").stat().st_size // 2)
    assert verify(tmp_path / "a.tar").intact
    assert verify(tmp_path / "a.tar.tar").verdict == "damaged"
    (tmp_path / "a.tar.tar").unlink()
    assert verify(tmp_path / "a.tar").intact


def test_a_sample_that_is_named_like_a_digest_is_a_sample(tmp_path):
    (tmp_path / "tree/c").mkdir(parents=True)
    (tmp_path / "tree/c/a.digest.json").write_text("{}")
    (tmp_path / "tree/c/a").write_text("x")
    source = sources.load(tmp_path / "tree", suffixes=(".json",))
    pack(source, tmp_path / "x.files", PackConfig(check="none"))
    assert verify(tmp_path / "x.files").intact


def test_the_pass_over_the_blocks_is_shown_until_it_ends(source, tmp_path, monkeypatch):
    pack(source, tmp_path / "x.arrow")
    shown = []

    @contextlib.contextmanager
    def progress(total, what, **_):
        done = []
        yield SimpleNamespace(advance=lambda n=1, bytes=0: done.append(n))
        shown.append((what, total, sum(done)))

    monkeypatch.setattr(sys.modules["smallfiles.pack.verifying"], "progress", progress)
    report = verify(tmp_path / "x.arrow", source)
    blocks, samples = report.blocks, report.samples
    assert (samples, report.against, report.bytes) == (40, 40, int(source.manifest.sizes.sum()))
    assert shown == [("check x.arrow", blocks, blocks), ("verify x.arrow", samples, samples)] and blocks > 0


def test_an_edited_source_is_no_damage(tree, tmp_path, capsys):
    out = tmp_path / "out.arrow"
    pack(sources.load(tree), out)
    edited = tree / sources.load(tree).manifest.path(5)
    edited.write_bytes(fake_jpeg(2000, 99))
    assert main(["verify", str(out), "--against", str(tree)]) == 1
    told = capsys.readouterr().out
    assert "damaged" not in told and "NOT intact" not in told
    assert f"differs: {edited.relative_to(tree)}" in told and "as it was written" in told
    (tmp_path / "out.arrow.digest.json").unlink()
    assert main(["verify", str(out), "--against", str(tree)]) == 1
    assert "which of the two" in capsys.readouterr().out


@pytest.mark.parametrize("name", FORMATS)
def test_a_source_with_other_json_objects_differs(name, source, tmp_path):
    out = tmp_path / FORMATS[name]
    pack(with_metas(source), out, PackConfig(shuffle=1, verify="full"))
    assert verify(out, with_metas(source)).intact
    for other in (*(with_metas(source, changed=row) for row in (0, 7, 8, 39)), source):
        report = verify(out, other)
        assert report.verdict == "differs" and any("another meta" in told for told in report.differences)


@pytest.mark.parametrize("name", FORMATS)
def test_a_json_object_that_was_not_written_stops_publication(name, source, tmp_path, monkeypatch):
    module, writer = formats.get(name), "write_shard" if name == "tar" else "write"
    honest = getattr(module, writer)

    def forgetful(samples, path, *, schema, **named):
        metas = [text if row != 7 else None for row, text in enumerate(schema.values["meta"].to_pylist())]
        values = schema.values.set_column(1, "meta", pa.array(metas))
        return honest(samples, path, schema=dataclasses.replace(schema, values=values), **named)

    monkeypatch.setattr(module, writer, forgetful)
    with pytest.raises(PackError, match=r"the meta of "):
        pack(with_metas(source), tmp_path / FORMATS[name])
    assert not (tmp_path / FORMATS[name]).exists()


@pytest.mark.parametrize("name", FORMATS)
def test_the_sha256_of_a_manifest_is_compared(name, source, tmp_path):
    stated = with_columns(source, sha256=[None] * 20 + ["0" * 64] + [None] * 19)
    out = tmp_path / FORMATS[name]
    with pytest.raises(PackError, match="other bytes than its manifest says"):
        pack(stated, out, PackConfig(verify="full"))
    assert not out.exists()
    pack(source, out)
    report = verify(out, stated)
    assert report.verdict == "differs" and source.manifest.path(20) in report.differences[0]


def test_samples_of_many_damaged_blocks_are_found_in_one_pass(tree, tmp_path, monkeypatch):
    monkeypatch.setattr(digests, "BLOCK_BYTES", 1 << 12)
    source, out = sources.load(tree), tmp_path / "out.arrow"
    pack(source, out)
    with contextlib.closing(formats.open(out)) as reader:
        kind, spans = type(reader), [reader.span(index) for index in range(len(reader))]
    for start in range(0, out.stat().st_size - 4096, 4096):
        flip(out, start + 100)
    span, asked = kind.span, []
    monkeypatch.setattr(kind, "span", lambda self, *at: asked.append(at) or span(self, *at))
    problems = verify(out).problems
    assert len(asked) <= len(spans) < len(problems) * 10
    for block, problem in enumerate(problems[:10]):
        hurt = [i for i, (_, a, b) in enumerate(spans) if a < (block + 1) * 4096 and b > block * 4096]
        place = f"out.arrow: block {block} (bytes {block * 4096:,} to {(block + 1) * 4096:,}) is damaged"
        assert problem.startswith(f"{place}, {len(hurt)} samples in it")
        assert all(source.manifest.path(i) in problem for i in hurt[:5])


def test_a_digest_that_cannot_be_read_is_a_problem_and_the_samples_are_read(source, tmp_path):
    out = tmp_path / "out.arrow"
    pack(source, out)
    (tmp_path / "out.arrow.digest.json").write_text("{")
    found = verify(out)
    assert found.verdict == "damaged" and found.samples == 40
    assert [problem.partition(" (")[0] for problem in found.problems] == [
        f"{out}.digest.json cannot be read as a content digest"
    ]


def test_the_checksum_of_a_sample_depends_on_each_of_its_files_and_their_order():
    joint = writing.joint_checksum
    assert joint([7]) == 7 and len({joint(each) for each in ([1, 2], [2, 1], [1, 3], [3, 2], [1, 2, 3])}) == 5


def test_values_are_compared_bit_by_bit_in_all_rows(monkeypatch):
    monkeypatch.setattr(writing, "COMPARED_AT_ONCE", 2)
    ours = pa.chunked_array([[1.0, float("nan"), 0.0, None], [5.0, 6.0]])
    theirs = pa.chunked_array([[1.0, float("nan"), -0.0], [4.0, 5.0, 6.5]])
    assert writing.differing(ours, theirs) == [2, 3, 5]
    assert writing.differing(ours, ours) == []


def test_the_first_and_the_last_sample_are_always_read_back():
    for count in (257, 1000, 100_000):
        rows = [*writing.chosen(count, full=False)]
        assert (rows[0], rows[-1]) == (0, count - 1) and rows == sorted(set(rows))
        assert writing.SAMPLED <= len(rows) <= writing.SAMPLED + 2
        assert len(writing.chosen(count, full=True)) == count
    assert [*writing.chosen(256, full=False)] == [*range(256)]


def test_samples_that_are_missing_without_a_report_are_damage(tree, tmp_path):
    files = sorted(tree.rglob("*.JPEG"))
    for path in files[:2]:
        path.write_bytes(b"")
    out, report = tmp_path / "x.arrow", tmp_path / "x.arrow.faults.json"
    pack(sources.load(tree), out, PackConfig(on_error="skip"))
    found = verify(out)
    assert found.intact and any("2 samples fewer" in note and report.name in note for note in found.notes)
    listed = json.loads(report.read_text())
    report.write_text(json.dumps(listed | {"skipped": listed["skipped"][:1]}))
    assert verify(out).verdict == "damaged"
    report.unlink()
    found = verify(out)
    assert found.verdict == "damaged" and any("no report explains them" in each for each in found.problems)
    assert verify(out, sources.load(tree)).verdict == "damaged"


@pytest.fixture
def write_instead(monkeypatch):
    """Have the writer of Arrow files write other samples and values than it is given."""

    def instead(change):
        module, honest = formats.get("arrow"), formats.get("arrow").write

        def write(samples, path, *, schema, **named):
            samples, values = change([*samples], schema.values)
            schema = dataclasses.replace(schema, count=len(samples), values=values)
            return honest(samples, path, schema=schema, **named)

        monkeypatch.setattr(module, "write", write)

    yield instead
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({}, r"its fields \(none\)"),
        ({"size": [*range(40)]}, r"its fields \(size\)"),
        ({"age": [*range(40)], "size": [*range(40)]}, r"its fields \(age, size\)"),
        ({"age": [*range(39), 99]}, "the age of"),
    ],
)
def test_a_field_that_differs_stops_publication_and_is_a_difference(
    other, told, source, tmp_path, write_instead, monkeypatch
):
    aged, out = with_columns(source, values={"age": [*range(40)]}), tmp_path / "x.arrow"
    write_instead(lambda samples, values: (samples, pa.table({"label": values["label"], **other})))
    with pytest.raises(PackError, match=told):
        pack(aged, out)
    monkeypatch.undo()
    pack(aged, out)
    assert verify(out, aged).intact
    assert verify(out, with_columns(source, values=other)).verdict == "differs"


@pytest.mark.parametrize("rows", [[*range(39)], [*range(40), 0]])
def test_a_sample_that_is_lost_or_added_stops_publication(rows, source, tmp_path, write_instead):
    def change(samples, values):
        found = [samples[row]._replace(row=place) for place, row in enumerate(rows)]
        found[-1] = found[-1]._replace(key="another.JPEG")
        return found, values.take(pa.array(rows))

    write_instead(change)
    with pytest.raises(PackError, match=rf"the number of samples \({len(rows)} instead of 40\)"):
        pack(source, tmp_path / "x.arrow")


@pytest.mark.parametrize("row", [0, 15, 16, 39])
@pytest.mark.parametrize("told", ["a key or the order of keys", "the label of "])
def test_a_wrong_key_or_label_in_any_row_stops_publication(
    told, row, source, tmp_path, write_instead, monkeypatch
):
    def change(samples, values):
        labels = values["label"].to_pylist()
        if "key" in told:
            samples[row] = samples[row]._replace(key="wrong.JPEG")
        else:
            labels[row] += 1
        return samples, pa.table({"label": pa.array(labels, values["label"].type)})

    monkeypatch.setattr(writing, "COMPARED_AT_ONCE", 16)
    write_instead(change)
    with pytest.raises(PackError, match=told):
        pack(source, tmp_path / "x.arrow")


@pytest.mark.parametrize("change", [1, -1])
def test_a_byte_of_the_source_that_is_larger_or_smaller_is_a_difference(change, source, tree, tmp_path):
    pack(source, tmp_path / "x.arrow")
    edited = tree / source.manifest.path(5)
    data = bytearray(edited.read_bytes())
    data[100] = data[100] + change
    edited.write_bytes(data)
    differences = verify(tmp_path / "x.arrow", source).differences
    assert differences == [f"{source.manifest.path(5)} has other bytes in the source"]


@pytest.mark.parametrize("size", [0, 1, 2, 300])
def test_a_file_of_the_source_that_is_longer_is_a_difference_whatever_its_size(size, tmp_path):
    (tmp_path / "tree/c").mkdir(parents=True)
    file, out = tmp_path / "tree/c/a.jpg", tmp_path / "x.arrow"
    file.write_bytes(bytes(size))
    source = sources.load(tmp_path / "tree")
    pack(source, out, PackConfig(check="none"))
    assert verify(out, source).intact
    file.write_bytes(bytes(size + 1))
    assert verify(out, source).differences == ["c/a.jpg has other bytes in the source"]


def test_a_sample_that_cannot_be_read_is_a_problem(source, tmp_path):
    out = tmp_path / "x.files"
    pack(source, out)
    key = source.manifest.path(5)
    flip(out / key, 100)
    assert verify(out).problems == [f"{key} has other bytes than were packed"]
    (out / key).unlink()
    found = verify(out)
    assert found.verdict == "damaged" and key in found.problems[0]


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        ({}, "intact"),
        ({"digests": False, "compared": True}, "intact"),
        ({"digests": False}, "unproven"),
        ({"differences": ["one"]}, "differs"),
        ({"problems": ["one"], "differences": ["one"]}, "damaged"),
    ],
)
def test_only_what_was_compared_and_has_no_finding_is_intact(fields, verdict):
    report = VerifyReport(Path("x"), **fields)
    assert (report.verdict, report.intact) == (verdict, verdict == "intact")


def test_a_file_of_the_source_that_cannot_be_read_is_not_compared_and_the_others_are(source, tree, tmp_path):
    pack(source, tmp_path / "x.arrow")
    (tree / source.manifest.path(5)).unlink()
    report = verify(tmp_path / "x.arrow", source)
    assert report.verdict == "differs" and report.against == 40 and not report.compared
    (difference,) = report.differences
    assert difference.startswith("not compared with the source: ") and source.manifest.path(5) in difference


def test_masks_are_compared_with_a_source_that_has_them_for_the_samples_that_it_has(tmp_path):
    for n in range(3):
        for folder, suffix in (("images", "jpg"), ("masks", "png")):
            (tmp_path / "tree" / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / "tree" / folder / f"{n}.{suffix}").write_bytes(fake_jpeg(200, n))
    source, out = sources.load(tmp_path / "tree"), tmp_path / "x.arrow"
    pack(source, out, PackConfig(check="none"))
    assert verify(out, source).intact
    fewer = dataclasses.replace(source, manifest=source.manifest.select(range(2)))
    assert verify(out, fewer).differences == ["images/2.jpg is not in the source"]
    (difference,) = verify(out, with_columns(source)).differences
    assert difference.endswith("mask (.png), and in the source none")
    (tmp_path / "tree/masks/1.png").write_bytes(fake_jpeg(200, 9))
    assert verify(out, source).differences == ["masks/1.png has other bytes in the source"]


def test_a_file_without_provenance_says_that_keys_and_targets_were_not_compared(source, tmp_path):
    pack(source, tmp_path / "ours.arrow")
    columns = {"key": ["a.jpg"], "image": [fake_jpeg(200, 1)], "label": [0]}
    with pa.OSFile(str(tmp_path / "theirs.arrow"), "wb") as file:
        table = pa.table(columns)
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    for name, said in (("ours", False), ("theirs", True)):
        notes = verify(tmp_path / f"{name}.arrow").notes
        assert any("no provenance inside" in note for note in notes) == said
