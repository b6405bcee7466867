"""Further files and values in squashfs files and plain files: beside the first file, and in the table."""

import shutil
import subprocess

import contract_sets as sets
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from given import Given, bare, of_reader, schema_of

from smallfiles import formats, sources
from smallfiles.errors import DamagedFileError, FormatError, PackError, SmallfilesError
from smallfiles.fields import as_text, further_files, value_table
from smallfiles.formats import embedded
from smallfiles.manifest import Manifest
from smallfiles.pack import PackConfig, pack, verify
from smallfiles.samples import BlobField
from smallfiles.sources.record import FolderStore

KEYS = ["images/001.bin", "images/ü 2.v1.bin", "no_suffix", ".hidden", "a.b/c", "x/" + "y" * 240 + ".bin"]
BESIDE = ["images/001.", "images/ü 2.v1.", "no_suffix.", ".hidden.", "a.b/c.", "x/" + "y" * 240 + "."]
SAMPLES = [
    Given(key, bytes(100 * i) + b"first", i, None, (b"depth %d" % i, bytes([i]) * 9000 * i), i)
    for i, key in enumerate(KEYS)
]
VALUES = {
    "age": [1.5, None, float("nan"), -0.0, 5.0, float("inf")],
    "boxes": [[], None, [[1.0, float("nan")], []], [[]], [None], [[2.5]]],
    "mask.start": [None, 1, -(2**63), 2**63 - 1, 0, 5],
    "note": ["", "é🐦", None, "null", 'a"\\\n', "1"],
}
LAYOUTS = {
    "raw": ("x.sqfs", {}),
    "zstd": ("x.squashfs", {"compression": "zstd", "block_bytes": 4096}),
    "fragments": ("x.sqfs", {"compression": "gzip", "fragments": True}),
    "files": ("x.files", {}),
}


def write(folder, layout, samples=SAMPLES, values=VALUES, digest=True):
    name, options = LAYOUTS[layout]
    module = formats.get(formats.name_of(folder / name))
    blobs = (BlobField("depth", ".npy"), BlobField("mask", ".png"))
    schema = schema_of(samples, blobs=blobs, values=value_table(values) if values else None)
    module.write(
        bare(samples), folder / name, schema=schema, options=module.Options(**options), digest=digest
    )
    return folder / name


def expected_tree():
    further = {
        beside + suffix: data
        for beside, sample in zip(BESIDE, SAMPLES, strict=True)
        for suffix, data in zip(("depth.npy", "mask.png"), sample.blobs, strict=True)
    }
    return {sample.key: sample.data for sample in SAMPLES} | further


def tree_of(folder):
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    return {n: data for n, data in found.items() if not n.startswith("manifest.")}


def facts(samples):
    samples = of_reader(samples) if hasattr(samples, "read") else samples
    return {s.key: (bytes(s.data), s.target, tuple(map(bytes, s.blobs))) for s in samples}


def check(reader):
    """The reader gives all that was written."""
    assert further_files(reader.fields) == {"depth": ".npy", "mask": ".png"}
    assert facts(reader) == facts(SAMPLES)
    wanted = value_table(VALUES)
    assert sets.further(reader).schema == wanted.schema
    for name in VALUES:
        found = as_text(reader.table()[name].combine_chunks())
        assert found.equals(as_text(wanted[name].combine_chunks())), name


@pytest.fixture(params=LAYOUTS)
def layout(request):
    return request.param


@pytest.fixture
def out(layout, tmp_path):
    return write(tmp_path, layout)


def test_no_bytes_of_masks_are_looked_for_in_inodes_where_they_are_stored_raw(tmp_path):
    reader = formats.open(write(tmp_path, "raw"))
    assert reader.info()["layout"] == "raw, in one piece" and reader.blob("mask").span(3) is not None
    names = pa.ipc.open_file(sets.table_of_squashfs(reader.path)).schema.names
    places = ["bytes", "start", "depth/bytes", "depth/start", "mask/bytes", "mask/start"]
    assert names == ["key", "label", *places, *sorted(VALUES)]


def test_other_programs_unpack_each_file_beside_the_first(out, layout, tmp_path, need_tool):
    if layout == "files":
        assert tree_of(out) == expected_tree()
        return
    tree, again = tmp_path / "tree", tmp_path / "again.sqfs"
    run(need_tool("unsquashfs", "squashfs-tools"), "-quiet", "-no-progress", "-d", tree, out)
    assert tree_of(tree) == expected_tree()
    sets.plant_old_record(out, tree)
    run(need_tool("mksquashfs", "squashfs-tools"), tree, again, "-quiet", "-no-progress")
    check(formats.open(again))
    (tree / "images/001.mask.png").unlink()
    run(need_tool("mksquashfs", "squashfs-tools"), tree, again, "-quiet", "-no-progress", "-noappend")
    with pytest.raises(DamagedFileError, match=r"images/001\.mask\.png"):
        len(formats.open(again))


def run(*words):
    done = subprocess.run(list(map(str, words)), capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode(errors="replace")


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        (["a.jpg", "a.mask.png"], r"a\.mask\.png"),
        (["a.mask.png", "a.jpg"], r"a\.mask\.png"),
        (["a.jpg", "a.jpeg"], r"a\.(mask\.png|depth\.npy)"),
        (["a.jpg", "a.mask.png/b"], r"a\.mask\.png"),
        (["a.mask.png/b", "a.jpg"], r"a\.mask\.png"),
        (["x" * 250 + ".jpg"], "more than 255 bytes"),
    ],
)
def test_names_of_further_files_that_collide_or_are_too_long_are_refused(layout, tmp_path, keys, named):
    samples = [SAMPLES[i]._replace(key=key) for i, key in enumerate(keys)]
    with pytest.raises(FormatError, match=named):
        write(tmp_path, layout, samples)
    path = tmp_path / "x.files" / keys[0]
    assert layout != "files" or len(keys) == 1 or path.read_bytes() == samples[0].data


@pytest.mark.parametrize("name", ["x.sqfs", "x.files"])
def test_names_that_collide_are_refused_before_anything_is_read(tmp_path, name):
    paths = {"mask": ["m/a.png", "m/b.png"]}
    source = sources.Source(
        Manifest.from_columns(["a.jpg", "a.jpeg"], [0, 0], blobs=paths), FolderStore(tmp_path), "folder"
    )
    with pytest.raises(PackError, match=r"several files of one name: a\.mask\.png;"):
        pack(source, tmp_path / name, PackConfig())
    assert not list(tmp_path.iterdir())


def test_the_manifests_of_plain_files_are_never_written_over(tmp_path):
    with pytest.raises(FormatError, match="reserved"):
        write(tmp_path, "files", [SAMPLES[0]._replace(key="manifest.mask.json")])


@pytest.mark.parametrize("name", ["mask", "depth"])
def test_a_flipped_byte_in_a_further_file_is_found(out, layout, name):
    assert verify(out).verdict == "intact"
    with formats.open(out) as reader:
        span = reader.blob(name).span(4)
    path, at, _ = span or (out, 200, 0)
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    found = verify(out)
    assert found.verdict == "damaged"
    assert span is None or "a.b/c" in found.problems[0]
    assert layout != "files" or found.problems == [f"the {name} of a.b/c has other bytes than were packed"]


def test_what_no_hash_covers_is_not_called_intact(tmp_path):
    out = write(tmp_path, "files")
    (out / "manifest.mask.json").unlink()
    found = verify(out)
    assert (found.verdict, found.notes) == ("unproven", ["6 masks without a SHA-256 in manifest.mask.json"])
    check(formats.open(out))
    shutil.rmtree(out)
    write(tmp_path, "files", digest=False)
    assert verify(out).verdict == "unproven" and len(verify(out).notes) == 4


def test_further_plain_files_that_are_cut_off_or_misnamed_are_refused(tmp_path):
    out = write(tmp_path, "files")
    (out / "images/ü 2.v1.mask.png").write_bytes(b"short")
    with pytest.raises(DamagedFileError, match=r"2\.v1\.mask\.png is damaged.*5 of 9,000 bytes"):
        formats.open(out).blob("mask").read(1)
    (out / "manifest.depth.json").rename(out / "manifest.mask.json")
    with pytest.raises(DamagedFileError, match=r"its paths are not those in manifest\.json"):
        formats.open(out).blob("mask").read(1)


@pytest.mark.parametrize("shift", [2**40, -(2**40)])
def test_columns_of_places_that_are_wrong_are_refused(shift, tmp_path, monkeypatch):
    out = write(tmp_path, "raw")
    load = embedded.Columns.__getitem__

    def outside(columns, name):
        found = load(columns, name)
        return pc.add(found, shift) if name == "mask/start" else found

    monkeypatch.setattr(embedded.Columns, "__getitem__", outside)
    with pytest.raises(SmallfilesError, match="outside its data"):
        formats.open(out).blob("mask").read(0)
    suffixes = {"": "", "mask": ".png", "other": ".png"}
    monkeypatch.setattr(embedded.Columns, "suffixes", suffixes)
    with pytest.raises(SmallfilesError, match="lacks a column"):
        len(formats.open(out))
