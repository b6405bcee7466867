"""Bad sources, full disks, no permission: a sentence each, and nothing lost."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time

import numpy as np
import pytest
from packing import FORMATS, contents, fake_jpeg, make_tree
from programs import Program, bound_by_modes, on_small_disk

from smallfiles import formats, machine, sources
from smallfiles.cli import main
from smallfiles.errors import PackError, ResourceError, SmallfilesError, UsageError
from smallfiles.pack import PackConfig, pack, verify
from smallfiles.pack.job import prepare
from smallfiles.sources.record import FolderStore


def break_tree(tree):
    """Four faults, and a word that each one's sentence must hold."""
    files = sorted(tree.rglob("*.JPEG"))
    files[1].write_bytes(b"")
    files[7].write_bytes(files[7].read_bytes()[:-30])
    files[11].write_bytes(b"<html>404</html>")
    return {
        str(files[n].relative_to(tree)): word for n, word in ((1, "empty"), (7, "cut off"), (11, "web page"))
    }


@pytest.mark.parametrize("name", FORMATS)
def test_bad_sources_stop_the_pack_with_the_list_or_are_left_out_and_reported(name, tree, tmp_path):
    faults, out = break_tree(tree), tmp_path / FORMATS[name]
    before = contents(tree)
    options = formats.get("tar").Options(max_count=5) if name == "tar" else None
    with pytest.raises(PackError) as caught:
        pack(sources.load(tree), out, PackConfig(options=options))
    for key, word in faults.items():
        assert key in str(caught.value) and word in str(caught.value)
    assert {fault.key for fault in caught.value.faults} == set(faults)
    assert "3 of 40 samples" in str(caught.value) and "--on-error skip" in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["tree"]
    report = pack(sources.load(tree), out, PackConfig(on_error="skip", verify="full"))
    assert report.samples == len(formats.open(out)) == 37
    assert {fault.key for fault in report.skipped} == set(faults)
    listed = json.loads((tmp_path / f"{out.name}.faults.json").read_text())
    assert {entry["key"] for entry in listed["skipped"]} == set(faults)
    assert verify(out).intact
    assert contents(tree) == before


def test_missing_and_unreadable_files_are_named_before_anything_is_written(source, tree, tmp_path):
    gone, folder = source.manifest.path(2), source.manifest.path(4)
    (tree / gone).unlink()
    (tree / folder).unlink()
    (tree / folder).mkdir()
    with pytest.raises(PackError) as caught:
        pack(source, tmp_path / "out.arrow")
    assert gone in str(caught.value) and folder in str(caught.value)
    report = pack(source, tmp_path / "out.arrow", PackConfig(on_error="skip"))
    assert report.samples == 38 and len(report.skipped) == 2
    assert verify(tmp_path / "out.arrow").intact


def test_a_set_in_which_nothing_can_be_packed_publishes_nothing(tmp_path):
    tree, out, skipping = make_tree(tmp_path / "tree", 5), tmp_path / "out.arrow", PackConfig(on_error="skip")
    source = sources.load(tree)
    (tmp_path / "empty.json").write_text("{}")
    with pytest.raises(PackError, match="gives no samples"):
        pack(sources.load(tmp_path / "empty.json", root=tree), out)
    for path in tree.rglob("*.JPEG"):
        path.write_bytes(b"")
    with pytest.raises(PackError):
        pack(sources.load(tree), out, skipping)
    shutil.rmtree(tree)
    with pytest.raises(SmallfilesError):
        pack(source, out, skipping)
    assert not out.exists()


INODES = "size=50m,nr_inodes=40"


@pytest.mark.parametrize(
    ("name", "limit"),
    [*((name, "size=600k") for name in FORMATS), *((name, INODES) for name in ("files", "tar"))],
)
def test_a_full_disk_gives_a_sentence_and_keeps_the_source(name, limit, tmp_path, monkeypatch):
    """Another program fills the disk after the check for free space: leaving the check out stands for it."""
    tree = make_tree(tmp_path / "tree", 60, size=20_000)
    before = contents(tree)
    small = tmp_path / "small"
    monkeypatch.setattr(sys.modules["smallfiles.pack.run"], "check_room", lambda job: None)
    done = on_small_disk(small, limit, main, ["pack", str(tree), str(small / FORMATS[name])])
    if (name, limit) == ("tar", INODES):
        assert done.returncode == 0, done.stderr  # few files: the inodes suffice
    else:
        assert done.returncode == 1, done.stdout + done.stderr
        assert "No space left on device" in done.stderr
        assert "Traceback" not in done.stderr
        assert "'out" not in done.stdout.splitlines()[-1]
    assert contents(tree) == before


def test_too_little_space_is_told_before_the_first_read(source, tmp_path, monkeypatch):
    real = machine.filesystem
    monkeypatch.setattr(machine, "filesystem", lambda path: dataclasses.replace(real(path), free_bytes=1000))
    with pytest.raises(ResourceError, match=r" has 1\.0 kB free; expected about 143 kB for out\.arrow"):
        pack(source, tmp_path / "out.arrow")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["tree"]


def test_a_folder_without_permission_gives_a_sentence(source, tmp_path):
    for mode in (0o555, 0o000):
        (tmp_path / f"{mode}").mkdir(mode=mode)
        out = tmp_path / f"{mode}" / "out.arrow"
        with pytest.raises(ResourceError, match=r"cannot be written.*ermission"):
            bound_by_modes(pack, source, out)
    with pytest.raises(ResourceError, match=r"out\.arrow cannot be read \(Permission denied\)"):
        bound_by_modes(formats.open, out)
    with pytest.raises(ResourceError, match=r"cannot be read \(File name too long\)"):
        formats.open(tmp_path / f"{'x' * 300}.arrow")


def test_control_c_leaves_nothing_that_looks_finished_at_whatever_moment(tmp_path):
    tree = make_tree(tmp_path / "tree", 400, size=4000)
    for pause_s in (0, 0, 0, 0.001, 0.003, 0.01, 0.03, 0.1):
        out = tmp_path / f"{pause_s}" / "out.arrow"
        out.parent.mkdir(exist_ok=True)
        program = Program(main, ["pack", str(tree), str(out)])
        owner = out.parent / ".out.arrow.packing" / "owner.json"
        while not owner.exists() and program.process.exitcode is None:
            pass  # the first moments of a run are the delicate ones
        time.sleep(pause_s)
        code, words = program.kill(signal.SIGINT), program.errors
        program.end()
        assert "Traceback" not in words
        if code != 0 and not out.exists():  # it may have been faster than we
            assert list(out.parent.iterdir()) == []
        else:
            out.unlink()


def test_the_source_may_not_change_between_manifest_and_pack(source, tree, tmp_path):
    job = prepare(source, tmp_path / "x.arrow", PackConfig())
    path = tree / job.source.manifest.path(0)
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(PackError, match="more than"):
        pack(job.source, tmp_path / "x.arrow")


class Changing(FolderStore):
    """A folder with a file that changes once the tenth sample is read."""

    path, change, reads = "", bytes, 0

    def read_into(self, path, buffer):
        self.reads += 1
        if self.reads == 10:
            (self.root / self.path).write_bytes(self.change)
        return super().read_into(path, buffer)


@pytest.mark.parametrize("kind", ["same size", "grown", "shrunk"])
def test_a_file_that_changes_under_a_pack_is_packed_as_it_is_or_named(kind, source, tree, tmp_path):
    store, key = Changing(tree), source.manifest.path(20)
    new = fake_jpeg((tree / key).stat().st_size + {"same size": 0, "grown": 9, "shrunk": -9}[kind], 99)
    store.path, store.change = key, new
    source, out = dataclasses.replace(source, store=store), tmp_path / "x.arrow"
    if kind == "same size":
        pack(source, out, PackConfig(verify="full", in_flight=1))
        assert formats.open(out).read(20) == new
    else:
        with pytest.raises(PackError, match=re.escape(key)):
            pack(source, out, PackConfig(in_flight=1))


def test_a_tar_that_is_written_again_under_a_pack_is_named(tmp_path):
    """Its members may lie where others lay, with other labels."""
    tree, packed = tmp_path / "tree", tmp_path / "set.tar"
    for number in range(40):
        (tree / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        (tree / "ab"[number % 2] / f"{number:02d}.raw").write_bytes(bytes([number]) * 100)
    files = sorted(tree.rglob("*.raw"))
    for order in (files, files[::-1]):
        with tarfile.open(packed.with_name("new.tar"), "w") as archive:
            for file in order:
                archive.add(file, file.relative_to(tree))
        if order is files:
            packed.with_name("new.tar").rename(packed)
            source = sources.load(packed, suffixes=(".raw",))
    packed.write_bytes(packed.with_name("new.tar").read_bytes())
    with pytest.raises(SmallfilesError, match=r"set\.tar was changed"):
        pack(source, tmp_path / "x.arrow")
    assert not (tmp_path / "x.arrow").exists()


@pytest.mark.parametrize("name", ["files", "arrow"])
def test_output_inside_the_data_is_refused_before_it_becomes_a_class(name, tree, tmp_path):
    before = contents(tree)
    with pytest.raises(UsageError, match="lies inside the data"):
        pack(sources.load(tree), tree / FORMATS[name])
    assert contents(tree) == before
    sources.load(tree).manifest.save(tmp_path / "m.json")  # a manifest says what belongs to the set
    assert pack(sources.load(tmp_path / "m.json", root=tree), tree / FORMATS[name]).samples == 40


def test_a_file_where_a_folder_should_be_is_named(tree, tmp_path):
    (tmp_path / "taken").write_bytes(b"mine")
    with pytest.raises(PackError, match=r"since .*taken is a file; expected folders"):
        pack(sources.load(tree), tmp_path / "taken" / "set.arrow")
    assert (tmp_path / "taken").read_bytes() == b"mine"


def test_a_manifest_without_its_files_points_to_the_root(tree, tmp_path):
    sources.load(tree).manifest.save(tmp_path / "m.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(PackError, match=r"40 of 40 samples .*--root"):
        pack(sources.load(tmp_path / "m.json", root=tmp_path / "empty"), tmp_path / "set.arrow")


def test_check_decode_decodes_arrays_and_counts_what_it_cannot_decode(tmp_path, capsys):
    folder = tmp_path / "tree" / "a"
    folder.mkdir(parents=True)
    for name in ("whole", "cut", "more", "shape"):
        np.save(folder / f"{name}.npy", np.arange(100))
    np.save(folder / "pickle.npy", np.array([{}], dtype=object), allow_pickle=True)
    whole = (folder / "whole.npy").read_bytes()
    (folder / "cut.npy").write_bytes(whole[:-8])
    (folder / "more.npy").write_bytes(whole + b"x")
    (folder / "shape.npy").write_bytes(whole.replace(b"(100,)", b"(10**9,)"))
    (folder / "noise.flac").write_bytes(b"fLaCnoise")
    out = tmp_path / "out.arrow"
    words = ["pack", str(tmp_path / "tree"), str(out), "--suffix", ".npy", "--suffix", ".flac"]
    assert main([*words, "--check", "decode", "--on-error", "skip"]) == 0
    assert "1 sample not decoded: --check decode knows images and .npy" in capsys.readouterr().out
    with contextlib.closing(formats.open(out)) as reader:
        assert reader.keys().to_pylist() == ["a/noise.flac", "a/whole.npy"]


SHORT_OF_DESCRIPTORS = """
import os, resource, sys
from pathlib import Path
from smallfiles import formats, sources
from smallfiles.errors import ResourceError
from smallfiles.pack import PackConfig, pack, verify

tree, packed = map(Path, sys.argv[1:])
def packing(number):
    config = PackConfig(on_error="skip", in_flight=8, check="none", verify="none")
    return pack(sources.load(tree), packed.with_name(f"{number}.arrow"), config).samples == 40 and "intact"
ways = {"verify": lambda number: verify(packed).verdict, "pack": packing}
found = {name: {ask(-1)} for name, ask in ways.items()}  # and everything is imported
least = max(map(int, os.listdir("/proc/self/fd")))
for number in range(24):
    for name, ask in ways.items():
        resource.setrlimit(resource.RLIMIT_NOFILE, (least + number, 4096))
        try:
            found[name].add(ask(number))
        except (ResourceError, OSError) as error:
            found[name].add("limit" if "Too many open files" in str(error) else str(error))
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
print(found == dict.fromkeys(ways, {"intact", "limit"}) or found)
"""


@pytest.mark.parametrize("suffix", [suffixes[0] for suffixes in formats.suffixes().values()])
def test_a_lack_of_descriptors_is_no_damage_and_no_fault_of_a_sample(tmp_path, suffix):
    for number in range(40):
        file = tmp_path / "tree" / "ab"[number % 2] / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"\xff\xd8\xff%d\xff\xd9" % number)
    options = {"options": formats.get("tar").Options(max_count=4)} if suffix == ".tars" else {}
    out = pack(sources.load(tmp_path / "tree"), tmp_path / f"x{suffix}", PackConfig(**options)).path
    command = [sys.executable, "-c", SHORT_OF_DESCRIPTORS, str(tmp_path / "tree"), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    said = [line for line in done.stderr.splitlines() if "classes from the names of folders" not in line]
    assert (done.stdout.strip(), said[-3:]) == ("True", [])
