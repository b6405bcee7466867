"""What a sample costs in memory while it is packed, and in a reader; and that nothing imports pandas.

Each is the peak of a child process, above what it had after the same with a few samples; some 4 MB that wait
to be written are among it.
"""

import io
import subprocess
import sys
import tarfile

import pytest

ROWS = 60_000

CHILD = """
import sys
from pathlib import Path
import numpy as np
import pyarrow as pa
from smallfiles import formats, sources
from smallfiles.arrays import from_numpy
from smallfiles.measure.workers import status_bytes
from smallfiles.pack import PackConfig, pack
from smallfiles.samples import Sample, Schema

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            print("pandas is imported", file=sys.stderr)

sys.meta_path.insert(0, Watch())
task, suffixes, rows, folder = sys.argv[1], sys.argv[2].split(","), int(sys.argv[3]), Path(sys.argv[4])

def samples(count):
    for row in range(count):
        yield Sample(f"n{row // 100:08d}/n{row // 100:08d}_{row:08d}.JPG", (b"0123456789",), row)

def write(out, count):
    module = formats.get({"arrow": "arrow", "h5": "hdf5", "sqfs": "squashfs", "tar": "tar"}[suffix])
    labels = pa.table({"label": from_numpy(np.arange(count) // 100)})
    schema = Schema(count, 10 * count, 10, labels, name="n", manifest_digest="sha256:0")
    getattr(module, "write_shard", module.write)(samples(count), out, schema=schema)

def work(count):
    out = folder / f"{count}.{suffix}"
    if task == "write":
        return write(out, count)
    if task == "pack":
        return pack(sources.load(folder / f"{count}.source.tar"), out, PackConfig(check="none"))
    reader = formats.open(out)
    return reader, reader.keys(), reader.read(1), reader.target(count - 1)

for suffix in suffixes:
    work(1000)  # what is loaded with the first use counts as imports
    before = status_bytes("VmRSS")
    kept = work(rows)
print((status_bytes("VmHWM") - before) / rows)
"""


def child(task, suffixes, rows, folder):
    words = [sys.executable, "-c", CHILD, task, suffixes, str(rows), str(folder)]
    end = subprocess.run(words, capture_output=True, text=True, check=False)
    assert end.returncode == 0, end.stderr
    assert "pandas" not in end.stderr
    return float(end.stdout)


@pytest.mark.parametrize(
    ("suffix", "written_bytes", "open_bytes"),
    [("arrow", 150, 110), ("h5", 200, 80), ("sqfs", 300, 100), ("tar", 350, 110)],
)
def test_a_sample_costs_little_more_than_what_describes_it(suffix, written_bytes, open_bytes, tmp_path):
    assert child("write", suffix, ROWS, tmp_path) < written_bytes
    assert child("open", suffix, ROWS, tmp_path) < open_bytes


def test_packing_a_tar_does_not_import_pandas(tmp_path):
    for rows in (1000, 1001):
        with tarfile.open(tmp_path / f"{rows}.source.tar", "w") as tar:
            for row in range(rows):
                member = tarfile.TarInfo(f"n{row % 9:08d}/n{row % 9:08d}_{row}.JPEG")
                member.size = 9
                tar.addfile(member, io.BytesIO(b"\xff\xd8\xff12345\xd9"))
    child("pack", "arrow,h5,sqfs,tars", 1001, tmp_path)
