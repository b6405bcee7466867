"""LMDB, the format that a package outside adds: liblmdb reads it, and so do the verbs of the toolbox."""

import subprocess
import sys

import contract_sets as sets
import lmdb
import numpy as np
import pytest
from given import Given, bare, schema_of

from smallfiles import formats
from smallfiles.cli import main
from smallfiles.errors import FormatError, MissingPackageError


def write_ours(path, count):
    samples = [Given(f"{n}.jpg", sets.content(n) * (n % 30), n) for n in range(count)]
    formats.get("lmdb").write(bare(samples), path, schema=schema_of(samples))
    return samples


@pytest.mark.parametrize("count", [0, 1, 120, 20_000])
def test_liblmdb_reads_every_entry_of_ours_by_key(tmp_path, count):
    samples = write_ours(tmp_path / "x.lmdb", count)
    with (
        lmdb.open(str(tmp_path / "x.lmdb"), subdir=False, readonly=True, lock=False) as env,
        env.begin() as txn,
    ):
        assert [txn.get(b"%010d" % n) for n in range(count)] == [sample.data for sample in samples]
        assert np.frombuffer(txn.get(b"labels"), "<i8").tolist() == list(range(count))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.lmdb", "x.lmdb.digest.json"]


def test_a_database_of_another_program_is_refused(tmp_path):
    with lmdb.open(str(tmp_path / "x.lmdb"), subdir=False) as env, env.begin(write=True) as txn:
        txn.put(b"0", b"\xff\xd8\xff")
    with pytest.raises(FormatError, match="another program"):
        len(formats.open(tmp_path / "x.lmdb"))


def test_the_verbs_know_the_format_of_the_package(tmp_path, capsys):
    source = tmp_path / "data"
    for number in range(4):
        path = source / f"class {number % 2}" / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"text %d" % number)
    out = tmp_path / "x.lmdb"
    assert main(["pack", str(source), str(out), "--suffix", ".txt"]) == 0
    assert main(["verify", str(out), "--against", str(source), "--suffix", ".txt"]) == 0
    assert main(["inspect", str(out)]) == 0
    assert main(["bench", "read", str(out), "--count", "4", "--repeats", "1"]) == 0
    assert main(["pack", str(out), str(tmp_path / "y.arrow")]) == 0
    first, second = formats.open(out), formats.open(tmp_path / "y.arrow")
    assert sets.facts(first) == sets.facts(second)


def test_without_the_package_a_sentence_says_how_to_install_it(tmp_path):
    """The suffix is known, so that nobody is asked to rename a file that only needs a package."""
    script = f"""
import sys
from smallfiles import formats
formats._added = dict
try:
    formats.open({str(tmp_path / "x.lmdb")!r})
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.startswith(MissingPackageError.__name__), done
    assert "pip install ./contrib/smallfiles-lmdb" in done.stdout


def test_the_example_of_a_package_stays_small():
    from test_layers import ROOT, code_lines

    assert code_lines((ROOT / "contrib/smallfiles-lmdb/smallfiles_lmdb.py").read_text()) <= 120


def test_a_package_that_cannot_be_imported_is_named(tmp_path):
    """Somebody else's format must not stop ours, and its fault is said where it is asked for."""
    (tmp_path / "broken-1.dist-info").mkdir()
    (tmp_path / "broken-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    entry = "[smallfiles.formats]\nbroken = no_such_module\n"
    (tmp_path / "broken-1.dist-info/entry_points.txt").write_text(entry)
    script = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from pathlib import Path
from smallfiles import formats
print(formats.name_of(Path("x.arrow")), "broken" in formats.names())
try:
    formats.name_of(Path("x.unknown"))
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("arrow True\n")
    assert "UsageError" in done.stdout and "no suffix of a format" in done.stdout
    assert "the format broken" in done.stderr and "no_such_module" in done.stderr
