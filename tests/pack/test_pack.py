from __future__ import annotations

import json
import os
import time
from dataclasses import replace

import pytest
from packing import FORMATS, contents
from PIL import Image
from programs import Program, wait_for

from smallfiles import formats, sources
from smallfiles.atomic import drafted
from smallfiles.errors import OutputExistsError, PackError, UsageError
from smallfiles.pack import PackConfig, pack, plan, verify
from smallfiles.sources.record import FolderStore


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("shuffle", [None, 7])
def test_what_is_packed_comes_back_exactly_and_is_never_overwritten(
    name, shuffle, source, tmp_path, leftovers
):
    out = tmp_path / FORMATS[name]
    report = pack(source, out, PackConfig(shuffle=shuffle, verify="full"))
    assert (report.samples, report.verified, report.skipped) == (40, 40, ())
    assert leftovers(tmp_path) == []
    reader = formats.open(out)
    order = source.manifest.order(shuffle)
    assert reader.keys().to_pylist() == [source.manifest.path(int(row)) for row in order]
    for index, row in enumerate(order):
        key = source.manifest.path(int(row))
        assert bytes(reader.read(index)) == (tmp_path / "tree" / key).read_bytes()
        assert reader.target(index) == source.manifest.target(int(row))
    before = contents(out)
    with pytest.raises(OutputExistsError, match="exists already"):
        pack(source, out, PackConfig(shuffle=1))
    assert contents(out) == before


@pytest.mark.parametrize("name", FORMATS)
def test_the_same_input_gives_the_same_bytes_whatever_the_threads(name, source, tmp_path):
    for number, in_flight in enumerate((1, 2, 16)):
        (tmp_path / str(number)).mkdir()
        pack(source, tmp_path / str(number) / FORMATS[name], PackConfig(in_flight=in_flight))
    first, second, third = (contents(tmp_path / str(n) / FORMATS[name]) for n in range(3))
    assert first == second == third


class Waiting(FolderStore):
    """A folder whose files must be waited for, on whatever file system it seems to be."""

    def read_into(self, path, buffer):
        time.sleep(0.001)
        return super().read_into(path, buffer)


class Busy(FolderStore):
    """A folder in memory on a machine with so much to do that each file takes longer than from a disk."""

    def read_into(self, path, buffer):
        end = time.thread_time() + 0.0005
        while time.thread_time() < end:
            pass
        return super().read_into(path, buffer)


@pytest.mark.parametrize(("store", "in_flight"), [(Waiting, 32), (Busy, 1), (FolderStore, 1)])
def test_many_files_are_in_flight_only_where_they_must_be_waited_for(store, in_flight, source, tmp_path):
    source = replace(source, store=store(tmp_path / "tree"))
    assert pack(source, tmp_path / "x.arrow").in_flight == in_flight


def test_an_empty_folder_in_the_way_is_refused_too(source, tmp_path):
    (tmp_path / "out.tars").mkdir()
    with pytest.raises(OutputExistsError):
        pack(source, tmp_path / "out.tars")


@pytest.mark.parametrize("name", FORMATS)
def test_a_flipped_byte_is_found_and_its_sample_named(name, source, tmp_path):
    out = tmp_path / FORMATS[name]
    pack(source, out)
    assert verify(out).intact
    some = (tmp_path / "tree" / source.manifest.path(3)).read_bytes()[100:200]
    files = [path for path in (out, *out.rglob("*")) if path.is_file()]
    victim = next(path for path in files if some in path.read_bytes())
    data = bytearray(victim.read_bytes())
    data[data.index(some) + 50] ^= 1
    victim.write_bytes(data)
    report = verify(out)
    assert not report.intact
    if name == "lmdb":  # liblmdb does not say where a sample is
        assert "block 0" in report.problems[0]
        return
    assert any(source.manifest.path(3) in problem for problem in report.problems), report.problems


@pytest.mark.parametrize("name", FORMATS)
def test_a_changed_source_is_told_from_the_packed_one(name, tree, tmp_path):
    source = sources.load(tree)
    out = tmp_path / FORMATS[name]
    pack(source, out, PackConfig(shuffle=3))
    assert verify(out, source).against == 40
    changed = tree / source.manifest.path(5)
    changed.write_bytes(changed.read_bytes()[:-10] + b"12345678\xff\xd9")
    (tree / source.manifest.path(6)).unlink()
    report = verify(out, source)
    assert report.verdict == "differs" and not report.problems  # the file is as it was written
    told = " ".join(report.differences)
    assert source.manifest.path(5) in told and source.manifest.path(6) in told


def test_a_dry_run_tells_inodes_saved_and_writes_nothing(source, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    told = plan(source, tmp_path / "out.tars")
    assert (told.samples, told.inodes_now) == (40, 43)
    assert told.inodes_then < 10
    assert told.payload_bytes == sum(p.stat().st_size for p in (tmp_path / "tree").rglob("*.JPEG"))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_dry_run_counts_the_folders_of_masks_too(tmp_path):
    for n in range(3):
        for path in (tmp_path / f"in/images/{n}.jpg", tmp_path / f"in/masks/{n % 2}/{n}.png"):
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (8, 8)).save(path)
    (tmp_path / "in/table.csv").write_text(
        "image,mask\n" + "".join(f"images/{n}.jpg,masks/{n % 2}/{n}.png\n" for n in range(3))
    )
    source = sources.load(tmp_path / "in/table.csv", columns=("image=image", "mask=mask"))
    assert plan(source, tmp_path / "out.arrow").inodes_now == 6 + 3  # images, masks/0, masks/1


def test_a_second_run_of_the_same_output_is_turned_away(source, tmp_path):
    def another():
        with drafted(tmp_path / "out.arrow", "packing"):
            (tmp_path / "ready").touch()
            wait_for((tmp_path / "done").exists)

    run = Program(another)
    wait_for((tmp_path / "ready").exists)
    with pytest.raises(PackError, match="another run is packing"):
        pack(source, tmp_path / "out.arrow")
    (tmp_path / "done").touch()
    run.wait()
    run.end()
    assert pack(source, tmp_path / "out.arrow").samples == 40


def test_options_of_another_format_are_refused(source, tmp_path):
    options = formats.get("arrow").Options()
    with pytest.raises(UsageError, match="another format"):
        pack(source, tmp_path / "out.h5", PackConfig(options=options))


def test_provenance_is_inside_and_names_nobody(source, tmp_path):
    for name in FORMATS.values():
        pack(source, tmp_path / name)
        provenance = formats.open(tmp_path / name).info()["provenance"]
        assert provenance["schema"]["manifest_digest"] == source.manifest.digest
        text = json.dumps(provenance)
        for private in (str(tmp_path), os.uname().nodename, os.environ.get("USER", "nobody-here")):
            assert private not in text


def test_a_config_prints_the_command_that_makes_it(tmp_path):
    options = formats.get("arrow").Options(rows_per_batch=16)
    config = PackConfig(options=options, in_flight=8, shuffle=3, part=(2, 8), on_error="skip", digest=False)
    assert config.to_cli("my data", "out.arrow") == (
        "smallfiles pack 'my data' out.arrow --in-flight 8 --on-error skip --shuffle 3 "
        "--part 2/8 --no-digest -O rows_per_batch=16"
    )
