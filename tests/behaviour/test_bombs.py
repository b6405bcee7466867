"""An archive of any kind may unpack to 200 times its size or to 1 GiB, and needs no memory for more."""

import bz2
import gzip
import json
import lzma
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

zstandard = pytest.importorskip("zstandard")

PART = bytes(32 << 20)
FREE_PARTS = 32  # of 32 MiB: 1 GiB
COMPRESS = {
    ".tar.gz": lambda data: gzip.compress(data, 6, mtime=0),
    ".tar.bz2": bz2.compress,
    ".tar.xz": lambda data: lzma.compress(data, preset=0),
    ".tar.zst": zstandard.ZstdCompressor(level=1).compress,
}
SENTENCE = (
    "or more; expected at most 200 times its size, or 1.1 GB. If that is right, unpack it to a local disk"
)
MEASURED = """
import json, resource, subprocess, sys
done = subprocess.run(sys.argv[1:], capture_output=True, text=True)
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
print(json.dumps([done.returncode, done.stdout + done.stderr, peak]))
"""


def pack(source, *options):
    """Exit code, output and peak memory (MiB) of packing."""
    command = [sys.executable, "-m", "smallfiles", "pack", str(source), str(source.parent / "out.tars")]
    command += ["--unlabelled", "--suffix", ".bin", *options]
    done = subprocess.run([sys.executable, "-c", MEASURED, *command], capture_output=True, text=True)
    code, said, peak = json.loads(done.stdout)
    assert "Traceback" not in said, said
    return code, said, peak


def packed_zeros(tmp_path, suffix, parts, name="a.bin"):
    """An archive of one file of zeros: compressed once, and repeated as members of the stream."""
    path = tmp_path / f"zeros{suffix}"
    if suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(name, "w") as file:
            for _ in range(parts):
                file.write(PART)
    elif suffix == ".sqfs":
        if shutil.which("mksquashfs") is None:
            pytest.skip("the command mksquashfs is missing")
        (tmp_path / "tree").mkdir()
        with (tmp_path / "tree" / name).open("wb") as file:
            file.truncate(parts * len(PART))
        subprocess.run(["mksquashfs", tmp_path / "tree", path, "-quiet", "-no-progress"], check=True)
    else:
        info = tarfile.TarInfo(name)
        info.size = parts * len(PART)
        compress = COMPRESS[suffix]
        pieces = [compress(info.tobuf()), *[compress(PART)] * parts, compress(bytes(1024))]
        path.write_bytes(b"".join(pieces))
    return path


SLOW = [pytest.param(suffix, marks=pytest.mark.slow) for suffix in (".tar.bz2", ".tar.xz")]
KINDS = [".tar.gz", ".tar.zst", ".zip", ".sqfs", *SLOW]


@pytest.mark.parametrize("suffix", KINDS)
def test_a_bomb_is_refused_in_little_memory(suffix, tmp_path):
    path = packed_zeros(tmp_path, suffix, FREE_PARTS + 1)
    assert path.stat().st_size < 2 << 20
    code, said, peak = pack(path)
    assert code == 1 and SENTENCE in said, said
    assert peak < 400
    assert [each.name for each in tmp_path.iterdir() if each.name not in (path.name, "tree")] == []


@pytest.mark.parametrize("suffix", KINDS)
def test_honest_data_that_shrinks_a_thousand_times_is_packed(suffix, tmp_path):
    path = packed_zeros(tmp_path, suffix, 2)
    code, said, peak = pack(path)
    assert code == 0, said
    assert peak < 64 + 350  # the file itself, and what every run needs


@pytest.mark.slow
def test_texts_that_stay_in_memory_have_a_limit_of_their_own(tmp_path):
    """Annotations are kept: 1 GiB of them is the most, or 20 times the size of the archive."""
    info = tarfile.TarInfo("a.json")
    info.size = 15 << 20
    member = gzip.compress(info.tobuf() + bytes(info.size), 6)
    (tmp_path / "texts.tar.gz").write_bytes(member * 80 + gzip.compress(bytes(1024)))
    code, said, peak = pack(tmp_path / "texts.tar.gz")
    assert code == 1 and "expected at most 20 times its size, or 1.1 GB" in said, said
    assert peak < 1024 + 400


def test_the_cure_works(tmp_path):
    path = packed_zeros(tmp_path, ".tar.gz", FREE_PARTS + 1)
    with tarfile.open(path) as archive:
        for member in archive:  # what `tar -x --sparse` leaves: a file of zeros without blocks
            (tmp_path / "d").mkdir()
            with (tmp_path / "d" / member.name).open("wb") as file:
                file.truncate(member.size)
            break
    code, said, _ = pack(tmp_path / "d", "--dry-run")
    assert code == 0, said
    shutil.rmtree(tmp_path / "d")


def test_a_member_of_a_zip_is_in_memory_once(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.bin", PART * 6)
    code, said, peak = pack(tmp_path / "x.zip", "--check", "none")
    assert code == 0 and peak < 192 + 150, (peak, said)
