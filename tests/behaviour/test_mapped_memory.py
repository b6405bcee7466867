"""On shared storage no packed file is mapped into memory: a page that cannot be read ends the process."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import smallfiles.formats
from smallfiles import cli
from smallfiles.loading import LoaderConfig, make_loader
from smallfiles.sources import synthetic

KINDS = {
    "arrow": "x.arrow",
    "arrow-juelich": "juelich.arrow",
    "h5": "x.h5",
    "h5-vlen": "vlen.h5",
    "tar": "x.tar",
    "tars": "x.tars",
    "sqfs": "x.sqfs",
}
OPTIONS = {"arrow-juelich": ["-O", "layout=juelich"], "h5-vlen": ["-O", "layout=vlen"]}


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    home = tmp_path_factory.mktemp("mapped memory")
    synthetic.make(home / "set", "folder", count=200, classes=3, size=(40, 32))
    for kind, name in KINDS.items():
        assert cli.main(["pack", str(home / "set"), str(home / name), *OPTIONS.get(kind, [])]) == 0
    return home


@pytest.fixture
def shared(monkeypatch):
    """Let every folder count as shared storage."""
    monkeypatch.setattr("smallfiles.formats.bytefile.is_parallel_filesystem", lambda path: True)
    monkeypatch.setattr("pysquashfs.image_file.is_local", lambda descriptor: False)


def everything(path):
    """Return what a reader returns, and the files that it mapped into memory meanwhile."""
    with smallfiles.formats.open(path) as reader:
        found = [
            reader.keys().to_pylist(),
            [bytes(reader.read(index)) for index in range(len(reader))],
            [bytes(data) for data in reader.read_many([5, 199, 3, 5])],
            reader.table().to_pylist(),
            reader.table(["label"], [5, 150, -1]).to_pylist(),
            reader.key(77),
            reader.info(),
        ]
        return found, Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_mapped_on_shared_storage_and_the_samples_are_the_same(packed, kind, request):
    usual, _ = everything(packed / KINDS[kind])
    request.getfixturevalue("shared")
    found, maps = everything(packed / KINDS[kind])
    assert found == usual
    assert str(packed) not in maps


def test_added_fields_are_not_mapped_there_either(packed, shared, tmp_path):
    out = tmp_path / "x.arrow"
    assert cli.main(["pack", str(packed / "set"), str(out)]) == 0
    with smallfiles.formats.open(out) as reader:
        keys = reader.keys().to_pylist()
    (tmp_path / "scores.csv").write_text(
        "".join(["file,score\n", *(f"{key},{row}\n" for row, key in enumerate(keys))])
    )
    assert cli.main(["annotate", str(out), str(tmp_path / "scores.csv"), "--key", "file"]) == 0
    with smallfiles.formats.open(out) as reader:
        assert reader.table(["score"])["score"].to_pylist() == list(range(200))
        assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_a_table_in_an_arrow_file_is_not_mapped_there(packed, shared, tmp_path):
    names = sorted(str(path.relative_to(packed)) for path in (packed / "set").rglob("*.jpg"))
    table = pa.table({"path": names, "label": [0] * len(names)})
    with pa.OSFile(str(tmp_path / "t.arrow"), "w") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write(table)
    source = smallfiles.sources.load(tmp_path / "t.arrow", root=packed)
    assert len(source.manifest) == 200
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


_ATTACK = """
import os, sys
from pathlib import Path
import smallfiles.formats.bytefile, pysquashfs.image_file
smallfiles.formats.bytefile.is_parallel_filesystem = lambda path: True
pysquashfs.image_file.is_local = lambda descriptor: False
import smallfiles.formats
from smallfiles.errors import SmallfilesError
path = Path(sys.argv[1])
reader = smallfiles.formats.open(path)
reader.read(0)
file = max(path.rglob("*"), key=lambda each: each.stat().st_size) if path.is_dir() else path
os.truncate(file, file.stat().st_size // 8)
for read in (lambda: [reader.read(index) for index in range(len(reader))], reader.table, reader.keys):
    try:
        read()
    except SmallfilesError as error:
        print(error)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_another_client_truncates_ends_in_a_sentence(packed, tmp_path, kind):
    copy = tmp_path / KINDS[kind]
    subprocess.run(["cp", "-r", str(packed / KINDS[kind]), str(copy)], check=True)
    done = subprocess.run(
        [sys.executable, "-c", _ATTACK, str(copy)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert str(copy) in done.stdout and "damaged" in done.stdout


_VERIFY = """
import os, sys
from pathlib import Path
from smallfiles import cli
from smallfiles.pack import verifying
path = Path(sys.argv[1])
check_samples = verifying._check_samples
def truncated_before(*args):
    file = max(path.rglob("*"), key=lambda each: each.stat().st_size) if path.is_dir() else path
    os.truncate(file, file.stat().st_size // 8)
    check_samples(*args)
verifying._check_samples = truncated_before
sys.exit(cli.main(["verify", str(path)]))
"""


@pytest.mark.parametrize("kind", KINDS)
def test_verify_of_a_local_file_that_is_truncated_meanwhile_ends_in_a_sentence(packed, tmp_path, kind):
    copy = tmp_path / KINDS[kind]
    for path in [packed / copy.name, *packed.glob(f"{copy.name}.*")]:
        subprocess.run(["cp", "-r", str(path), str(tmp_path)], check=True)
    done = subprocess.run(
        [sys.executable, "-c", _VERIFY, str(copy)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, (done.returncode, done.stderr)
    assert "damaged" in done.stdout and str(copy.name) in done.stdout


def test_many_batches_take_little_memory(packed, shared):
    """A reader of a file that is not mapped keeps two numbers for each sample, and no page of the file."""
    with smallfiles.formats.open(packed / "juelich.arrow") as reader:
        before = _resident_bytes()
        for _ in range(3):
            assert all(len(reader.read(index)) for index in range(len(reader)))
        assert _resident_bytes() - before < 8 << 20


def _resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_file_of_another_program_with_dictionaries_and_null_labels_is_read_by_position(shared, tmp_path):
    out = tmp_path / "theirs.arrow"
    labels = pa.array(["cat", "dog", None, "cat"] * 25).dictionary_encode()
    table = pa.table(
        {"image": [bytes([n]) * (n + 1) for n in range(100)], "kind": labels, "label": list(range(100))}
    )
    with pa.OSFile(str(out), "w") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    with smallfiles.formats.open(out) as reader:
        assert [bytes(reader.read(index)) for index in range(100)] == table["image"].to_pylist()
        assert reader.table(["label"])["label"].to_pylist() == list(range(100))


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_batches_are_refused_there_too(shared, tmp_path, codec):
    out = tmp_path / "theirs.arrow"
    table = pa.table({"image": [bytes(1000)] * 10, "label": np.arange(10)})
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.OSFile(str(out), "w") as sink, pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    with pytest.raises(smallfiles.errors.FormatError, match="compressed record batches"):
        smallfiles.formats.open(out).read(0)


def test_a_stream_is_read_by_position_too(shared, tmp_path, capsys):
    out = tmp_path / "a stream.arrow"
    table = pa.table({"image": [bytes([n]) * 9 for n in range(10)], "label": np.arange(10)})
    with pa.OSFile(str(out), "w") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    with smallfiles.formats.open(out) as reader:
        assert [bytes(reader.read(index)) for index in range(10)] == table["image"].to_pylist()
        assert reader.table(["label"])["label"].to_pylist() == list(range(10))
        assert reader.info()["layout"] == "foreign stream"
    out.write_bytes(out.read_bytes()[:-20])
    assert cli.main(["verify", str(out)]) == 1
    assert "does not end where an Arrow stream ends" in capsys.readouterr().out


def test_a_stream_with_dictionaries_is_refused_there(shared, tmp_path):
    table = pa.table({"image": [b"1", b"2"], "kind": pa.array(["a", "b"]).dictionary_encode()})
    with pa.OSFile(str(tmp_path / "x.arrow"), "w") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(smallfiles.errors.FormatError, match="Copy it to a local disk"):
        len(smallfiles.formats.open(tmp_path / "x.arrow"))


def test_a_loader_reads_by_position_in_its_workers(packed, shared):
    config = LoaderConfig(batch=16, workers=2, mode="processes")
    found = sorted(
        int(index) for batch in make_loader(packed / "x.arrow", config) for index in batch["index"]
    )
    assert found == list(range(200))
