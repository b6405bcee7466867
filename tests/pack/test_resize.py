"""Images scaled while they are packed: equal bytes however it is run, and never larger than their source."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from packing import FORMATS, contents
from PIL import Image

from smallfiles import formats, images, machine, sources
from smallfiles.atomic import Draft
from smallfiles.cli import main
from smallfiles.errors import PackError, UsageError
from smallfiles.manifest import Manifest
from smallfiles.pack import PackConfig, pack, plan, verify
from smallfiles.sources import Source

COUNT = 24
SIDE = 64


def picture(number):
    coarse = np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)
    size = 128 - 3 * (number % 7), 96 + 4 * (number % 5)
    out = io.BytesIO()
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(out, "JPEG", quality=92)
    return out.getvalue()


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    root = tmp_path_factory.mktemp("pictures") / "tree"
    for number in range(COUNT):
        file = root / f"class{number % 3}" / f"p{number:03d}.JPEG"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(picture(number))
    return root


@pytest.fixture
def pictured(pictures):
    return sources.load(pictures)


def config(**changes):
    return PackConfig(resize=SIDE, **changes)


def npy(pixels):
    np.save(out := io.BytesIO(), pixels)
    return out.getvalue()


def small_shards(name):
    return formats.get("tar").Options(max_count=5) if name == "tar" else None


@pytest.mark.parametrize(
    ("name", "pixels"),
    [*((name, name in ("hdf5", "lmdb")) for name in FORMATS), ("arrow", True)],
)
def test_every_format_holds_the_scaled_pictures_and_parts_have_the_bytes_of_a_single_run(
    name, pixels, pictured, tmp_path
):
    chosen = {"options": small_shards(name), "verify": "full", "shuffle": 1, "pixels": pixels}
    single, merged = tmp_path / "single" / FORMATS[name], tmp_path / "array" / FORMATS[name]
    report = pack(pictured, single, config(**chosen))
    reader = formats.open(single)
    assert report.samples == len(reader) == COUNT
    for index in range(COUNT):
        source = (Path(pictured.root or "") / reader.key(index).removesuffix(".npy")).read_bytes()
        expected = npy(images.scaled_pixels(source, SIDE)) if pixels else images.resize_ahead(source, SIDE)
        assert bytes(reader.read(index)) == expected
        assert min(images.decode(reader.read(index)).shape[:2]) == SIDE
    record = reader.info()["provenance"].get("resize")
    if name == "files":
        record = json.loads((tmp_path / "single/out.files.resized.json").read_text())
    assert record == {"short_side": SIDE} | ({"store": "npy"} if pixels else {"store": "jpeg", "quality": 90})
    reader.close()
    assert verify(single).intact
    for k in (3, 1, 2):
        pack(pictured, merged, config(**chosen, part=(k, 3)))
    joined = pack(pictured, merged, config(**chosen, merge=True))
    assert contents(merged) == contents(single)
    assert joined.resize == report.resize


def test_pixels_are_augmented_without_decoding(pictured, tmp_path, monkeypatch):
    pack(pictured, tmp_path / "x.arrow", config(pixels=True))
    reader = formats.open(tmp_path / "x.arrow")
    monkeypatch.setattr("smallfiles.images.picture.decode_by_pillow", None)
    monkeypatch.setattr("smallfiles.images.picture.decode_reduced", None)
    transform = images.RandomResizedCrop(32)
    crops = [transform(reader.read(index), np.random.default_rng(index)) for index in range(COUNT)]
    assert all(crop.shape == (32, 32, 3) and crop.std() > 0 for crop in crops)


def test_an_interrupted_run_resumes_and_other_scaling_starts_over(pictured, tmp_path, monkeypatch):
    options = small_shards("tar")
    single, out = tmp_path / "single.tars", tmp_path / "x.tars"
    pack(pictured, single, config(options=options))
    monkeypatch.setattr(Draft, "publish", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            pack(pictured, out, config(options=options))
    monkeypatch.undo()
    report = pack(pictured, out, config(options=options))
    assert report.resumed == COUNT
    ours, theirs = contents(out), contents(single)
    assert list(ours.values()) == list(theirs.values())


def test_the_report_and_a_dry_run_say_what_it_costs(pictured, tmp_path):
    before = sum(path.stat().st_size for path in Path(pictured.root or "").rglob("*.JPEG"))
    asked = config(quality=80)
    planned = plan(pictured, tmp_path / "planned.arrow", asked).resize
    packed = pack(pictured, tmp_path / "jpeg.arrow", asked).resize
    assert planned.bytes_before == packed.bytes_before == before
    assert "at most 1.00" in planned.sentence(planned=True) and "at most 1.00" not in packed.sentence()
    assert packed.bytes_after < planned.bytes_after == before
    assert "of quality 80 at most" in packed.sentence()
    pixels = config(pixels=True)
    expected = plan(pictured, tmp_path / "planned.arrow", pixels).payload_bytes
    assert pack(pictured, tmp_path / "pixels.arrow", pixels).payload_bytes == expected > before


def test_an_image_that_is_encoded_again_is_no_larger_than_its_source(pictures, tmp_path):
    """Room, shards and columns are laid out by the sizes of the sources."""
    for file in (tree := Path(shutil.copytree(pictures, tmp_path / "tree"))).rglob("*.JPEG"):
        with Image.open(file) as found:
            found.save(file, "JPEG", quality=40)
    source = sources.load(tree)
    for name, asked in {"x.arrow": config(quality=100), "y.arrow": PackConfig(resize=4000)}.items():
        report = pack(source, tmp_path / name, asked)
        reader = formats.open(tmp_path / name)
        sizes = [(reader.size(index), (tree / reader.key(index)).stat().st_size) for index in range(COUNT)]
        assert all(after <= before for after, before in sizes)
        assert report.resize.bytes_after == sum(after for after, _ in sizes)
        assert (name == "y.arrow") == all(after == before for after, before in sizes)


def test_verify_finds_damage_and_compares_keys_since_the_bytes_are_not_the_sources(pictured, tmp_path):
    out = tmp_path / "x.arrow"
    pack(pictured, out, config())
    report = verify(out, against=pictured)
    assert report.intact and report.against == COUNT
    assert any("bytes are not the source's" in note for note in report.notes)
    other = Source(pictured.manifest.select(range(COUNT - 1)), pictured.store, pictured.kind)
    pack(pictured, tmp_path / "pixels.arrow", config(pixels=True))
    pixels = verify(tmp_path / "pixels.arrow", against=pictured)  # which scales again, and compares all bytes
    assert pixels.intact and pixels.compared and pixels.against == COUNT and not pixels.notes
    differences = verify(out, against=other).differences
    assert any("is not in the source" in difference for difference in differences)
    data = bytearray(out.read_bytes())
    data[len(data) // 2] ^= 1
    out.write_bytes(data)
    assert not verify(out).intact


def test_what_does_not_decode_stops_or_is_left_out_with_its_name(pictures, tmp_path):
    tree = Path(shutil.copytree(pictures, tmp_path / "tree"))
    bad = tree / "class1" / "p004.JPEG"
    bad.write_bytes(b"\xff\xd8\xff" + bytes(500) + b"\xff\xd9")  # begins and ends as a JPEG does
    cut = (small := Path(shutil.copytree(pictures, tmp_path / "small")) / "class1" / "p004.JPEG").read_bytes()
    small.write_bytes(cut[: len(cut) // 2] + b"\xff\xd9")
    with pytest.raises(PackError, match=r"p004\.JPEG: the JPEG is damaged"):
        pack(sources.load(tmp_path / "small"), tmp_path / "x.arrow", PackConfig(resize=4000))
    (tree / "class2" / "p020.JPEG").write_bytes(b"")
    source = sources.load(tree)
    with pytest.raises(PackError, match=r"p0(04|20)\.JPEG"):
        pack(source, tmp_path / "x.arrow", config())
    assert not (tmp_path / "x.arrow").exists()
    single, merged = tmp_path / "single" / "x.arrow", tmp_path / "array" / "x.arrow"
    report = pack(source, single, config(on_error="skip", verify="full"))
    assert [Path(fault.key).name for fault in report.skipped] == ["p004.JPEG", "p020.JPEG"]
    assert report.samples == COUNT - 2
    pixels = pack(source, tmp_path / "x.h5", config(pixels=True, on_error="skip"))
    assert sorted(fault.key for fault in pixels.skipped) == [f"{fault.key}.npy" for fault in report.skipped]
    for k in (1, 2):
        pack(source, merged, config(on_error="skip", part=(k, 2)))
    pack(source, merged, config(on_error="skip", merge=True))
    assert contents(merged) == contents(single)
    assert verify(single).intact


@pytest.mark.parametrize("packed", [True, False])
def test_images_are_scaled_on_all_cores_and_a_stream_is_read_by_one_thread(
    packed, pictures, tmp_path, monkeypatch
):
    with tarfile.open(tmp_path / "set.tar.gz", "w:gz") as archive:
        archive.add(pictures, "tree")
    source = sources.load(tmp_path / "set.tar.gz" if packed else pictures)
    monkeypatch.setattr(machine, "usable_cpus", lambda: 3)
    store, scale, reading, scaling = type(source.store), images.resize_ahead, set(), set()
    read = store.read_into

    def noting(ours, function):
        def noted(*words):
            ours.add(threading.current_thread().name.split("_")[0])
            return function(*words)

        return noted

    monkeypatch.setattr(store, "read_into", noting(reading, read))
    monkeypatch.setattr(images, "resize_ahead", noting(scaling, scale))
    report = pack(source, tmp_path / "x.arrow", config())
    assert (report.in_flight, scaling) == (1 if packed else 3, {"pack-read"})
    assert not packed or reading == {"MainThread"}
    for sample in formats.open(tmp_path / "x.arrow"):
        file = pictures / sample.key.removeprefix("tree/")
        assert sample.data == scale(file.read_bytes(), SIDE)


def test_scaled_jpegs_reach_hdf5_in_two_steps_since_it_needs_their_sizes_first(pictured, tmp_path):
    with pytest.raises(UsageError, match=r"into \.arrow, and pack that file into \.h5"):
        pack(pictured, tmp_path / "x.h5", config())
    pack(pictured, tmp_path / "x.arrow", config())
    report = pack(sources.load(tmp_path / "x.arrow"), tmp_path / "x.h5")
    assert report.file_bytes < report.payload_bytes + 20_000
    with contextlib.closing(formats.open(tmp_path / "x.h5")) as reader:
        assert reader.info()["provenance"]["resize"] == config().scaling.record()


def test_the_sha256_of_sources_says_nothing_of_scaled_images(pictured, tmp_path):
    old = pictured.manifest
    facts = {"classes": old.classes, "sizes": old.sizes, "sha256": ["0" * 64] * COUNT}
    stated = replace(pictured, manifest=Manifest.from_columns(old.paths, old.targets, **facts))
    assert pack(stated, tmp_path / "x.arrow", config(verify="full")).verified == COUNT


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"quality": 80}, "not resized"),
        ({"pixels": True}, "as pixels, and not resized"),
        ({"resize": 256, "quality": 101}, "--quality is 101; expected 1 to 100"),
        ({"resize": 0}, "--resize is 0; expected 1 or more"),
    ],
)
def test_options_of_scaling_that_make_no_sense_are_refused(asked, told):
    with pytest.raises(UsageError, match=told):
        PackConfig(**asked)


def test_the_command_line_does_the_same(pictures, tmp_path, capsys):
    for asked, out in ((config(), "x.arrow"), (config(pixels=True), "pixels.arrow")):
        words = asked.to_cli(str(pictures), str(tmp_path / out)).split()[1:]
        assert main([*words, "--dry-run"]) == 0
        assert ("at most" in capsys.readouterr().out) == (not asked.pixels)
        assert main([*words, "--json"]) == 0
        assert ("resize" in json.loads(capsys.readouterr().out)) == (not asked.pixels)
        pack(sources.load(pictures), tmp_path / "y.arrow", asked)
        assert (tmp_path / out).read_bytes() == (tmp_path / "y.arrow").read_bytes()
        (tmp_path / "y.arrow").unlink()
        assert main(["verify", str(tmp_path / out), "--against", str(pictures)]) == 0
        capsys.readouterr()


def test_nothing_else_pays_for_scaling():
    """Packing without it does not import PyTorch, which takes seconds on a parallel file system."""
    code = "import sys, smallfiles.pack; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


@pytest.mark.parametrize("mode", ["P", "1", "I;16", "F"])
def test_images_whose_values_would_change_are_refused(mode, pictures, tmp_path):
    tree = Path(shutil.copytree(pictures, tmp_path / "tree"))
    mask = tree / "class1" / ("mask.tiff" if mode == "F" else "mask.png")
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8) % 4).convert(mode).save(mask)
    sentence = "floating-point" if mode == "F" else rf"\(mode {mode}\), which scaling to 8 bits"
    with pytest.raises(PackError, match=rf"mask.*{sentence}"):
        pack(sources.load(tree), tmp_path / "x.arrow", PackConfig(resize=4))
    report = pack(sources.load(tree), tmp_path / "x.arrow", PackConfig(resize=4, on_error="skip"))
    assert [fault.key for fault in report.skipped] == [f"class1/{mask.name}"]
    if mode != "F":
        assert pack(sources.load(tree), tmp_path / "y.arrow", PackConfig(resize=4000)).skipped == ()
        with contextlib.closing(formats.open(tmp_path / "y.arrow")) as reader:
            kept = reader.read(reader.keys().to_pylist().index("class1/mask.png"))
            assert kept == mask.read_bytes()


@pytest.mark.parametrize("packed", [PackConfig(), PackConfig(resize=SIDE)], ids=repr)
def test_images_that_exif_says_to_turn_are_counted_and_turned_where_that_was_asked_for(
    packed, pictures, tmp_path
):
    tree = Path(shutil.copytree(pictures, tmp_path / "tree"))
    (exif := Image.Exif())[0x0112] = 6
    file = tree / "class1" / "p004.JPEG"
    with Image.open(file) as found:
        found.save(file, "JPEG", exif=exif)
        wide = found.width > found.height
    assert pack(sources.load(tree), tmp_path / "x.arrow", packed).exif_rotated == 1
    kept = {sample.key: bytes(sample.data) for sample in formats.open(tmp_path / "x.arrow")}
    rows, columns = images.decode(kept.pop("class1/p004.JPEG")).shape[:2]
    assert (columns > rows) == (wide if packed == PackConfig() else not wide)
    same = {key: data for key, data in kept.items() if data == (tree / key).read_bytes()}
    assert len(same) == (0 if packed.resize else COUNT - 1)
