"""Pictures scaled while they are packed: equal bytes however it is run, and the loss is said."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packing import FORMATS, contents
from PIL import Image

from smallfiles import formats, images, sources
from smallfiles.atomic import Draft
from smallfiles.cli import main
from smallfiles.errors import PackError, UsageError
from smallfiles.pack import PackConfig, pack, plan, verify
from smallfiles.sources import Source

COUNT = 24
SIDE = 64


def picture(number: int) -> bytes:
    coarse = np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)
    size = 128 - 3 * (number % 7), 96 + 4 * (number % 5)
    out = io.BytesIO()
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(out, "JPEG", quality=92)
    return out.getvalue()


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pictures") / "tree"
    for number in range(COUNT):
        file = root / f"class{number % 3}" / f"p{number:03d}.JPEG"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(picture(number))
    return root


@pytest.fixture
def pictured(pictures: Path) -> Source:
    return sources.load(pictures)


def config(store: str = "jpeg", **changes: object) -> PackConfig:
    return PackConfig(resize=SIDE, store=store, **changes)  # type: ignore[arg-type]


def small_shards(name: str) -> object:
    return formats.get("tar").Options(max_count=5) if name == "tar" else None


@pytest.mark.parametrize(
    ("name", "store"), [(name, ("jpeg", "raw")[number % 2]) for number, name in enumerate(FORMATS)]
)
def test_every_format_holds_the_scaled_pictures_and_parts_have_the_bytes_of_a_single_run(
    name: str, store: str, pictured: Source, tmp_path: Path
) -> None:
    chosen = {"options": small_shards(name), "verify": "full", "shuffle": 1}
    single, merged = tmp_path / "single" / FORMATS[name], tmp_path / "array" / FORMATS[name]
    report = pack(pictured, single, config(store, **chosen))
    reader = formats.open(single)
    assert report.samples == len(reader) == COUNT
    for index in range(COUNT):
        source = (Path(pictured.root or "") / reader.key(index)).read_bytes()
        assert bytes(reader.read(index)) == images.resize_ahead(source, SIDE, store)  # type: ignore[arg-type]
        assert min(images.decode(reader.read(index)).shape[:2]) == SIDE
    record = reader.info()["provenance"].get("resize")
    if name == "files":
        record = json.loads((tmp_path / "single/out.files.resized.json").read_text())
    assert record == {"short_side": SIDE, "store": store} | ({"quality": 90} if store == "jpeg" else {})
    reader.close()
    assert verify(single).intact
    for k in (3, 1, 2):
        pack(pictured, merged, config(store, **chosen, part=(k, 3)))
    joined = pack(pictured, merged, config(store, **chosen, merge=True))
    assert contents(merged) == contents(single)
    assert joined.resize == report.resize


def test_raw_pixels_are_augmented_without_decoding(
    pictured: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(pictured, tmp_path / "x.arrow", config("raw"))
    reader = formats.open(tmp_path / "x.arrow")
    monkeypatch.setattr("smallfiles.images.picture.decode_by_pillow", None)
    monkeypatch.setattr("smallfiles.images.picture.decode_reduced", None)
    transform = images.RandomResizedCrop(32)
    crops = [transform(reader.read(index), np.random.default_rng(index)) for index in range(COUNT)]
    assert all(crop.shape == (32, 32, 3) and crop.std() > 0 for crop in crops)


def test_an_interrupted_run_resumes_and_other_scaling_starts_over(
    pictured: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_the_report_and_a_dry_run_say_what_it_costs_and_loses(pictured: Source, tmp_path: Path) -> None:
    jpeg, raw = (
        pack(pictured, tmp_path / f"{asked.store}.arrow", asked).resize
        for asked in (config(quality=80), config("raw"))
    )
    before = sum(path.stat().st_size for path in Path(pictured.root or "").rglob("*.JPEG"))
    assert jpeg.bytes_before == raw.bytes_before == before
    assert jpeg.bytes_after < before < raw.bytes_after
    assert 25 < jpeg.trial.psnr_db < 60 and raw.trial.psnr_db is None
    assert 0.3 < jpeg.trial.pixels_kept < 0.5
    better = plan(pictured, tmp_path / "better.arrow", config(quality=95)).resize
    assert better.trial.psnr_db > jpeg.trial.psnr_db
    assert "encoding loses nothing" in " ".join(raw.sentences())
    assert "of quality 80" in " ".join(jpeg.sentences())
    for asked, packed in ((config(quality=80), jpeg), (config("raw"), raw)):
        planned = plan(pictured, tmp_path / "planned.arrow", asked)
        assert planned.payload_bytes == pytest.approx(packed.bytes_after, rel=0.05)


def test_small_pictures_keep_their_bytes(pictured: Source, tmp_path: Path) -> None:
    report = pack(pictured, tmp_path / "x.arrow", PackConfig(resize=4000))
    assert report.resize is not None and report.resize.bytes_before == report.resize.bytes_after
    assert report.resize.trial is not None and report.resize.trial.psnr_db is None


def test_verify_finds_damage_and_compares_keys_since_the_bytes_are_not_the_sources(
    pictured: Source, tmp_path: Path
) -> None:
    out = tmp_path / "x.arrow"
    pack(pictured, out, config())
    report = verify(out, against=pictured)
    assert report.intact and report.against == COUNT
    assert any("bytes are not the source's" in note for note in report.notes)
    other = Source(pictured.manifest.select(range(COUNT - 1)), pictured.store, pictured.kind)
    differences = verify(out, against=other).differences
    assert any("is not in the source" in difference for difference in differences)
    data = bytearray(out.read_bytes())
    data[len(data) // 2] ^= 1
    out.write_bytes(data)
    assert not verify(out).intact


def test_what_does_not_decode_stops_or_is_left_out_with_its_name(pictures: Path, tmp_path: Path) -> None:
    tree = Path(shutil.copytree(pictures, tmp_path / "tree"))
    bad = tree / "class1" / "p004.JPEG"
    bad.write_bytes(b"\xff\xd8\xff" + bytes(500) + b"\xff\xd9")  # begins and ends as a JPEG does
    (tree / "class2" / "p020.JPEG").write_bytes(b"")
    source = sources.load(tree)
    with pytest.raises(PackError, match=r"p0(04|20)\.JPEG"):
        pack(source, tmp_path / "x.arrow", config())
    assert not (tmp_path / "x.arrow").exists()
    single, merged = tmp_path / "single" / "x.h5", tmp_path / "array" / "x.h5"
    report = pack(source, single, config(on_error="skip", verify="full"))
    assert [Path(fault.key).name for fault in report.skipped] == ["p004.JPEG", "p020.JPEG"]
    assert report.samples == COUNT - 2
    for k in (1, 2):
        pack(source, merged, config(on_error="skip", part=(k, 2)))
    pack(source, merged, config(on_error="skip", merge=True))
    assert contents(merged) == contents(single)
    assert verify(single).intact


def test_a_source_that_is_read_once_is_scaled_without_a_trial(pictures: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "set.tar.gz", "w:gz") as archive:
        archive.add(pictures, "tree")
    report = pack(sources.load(tmp_path / "set.tar.gz"), tmp_path / "x.arrow", config())
    assert report.samples == COUNT and report.resize is not None and report.resize.trial is None
    assert "not measured" in " ".join(report.resize.sentences())


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"store": "raw"}, "not resized"),
        ({"resize": 256, "quality": 101}, "--quality is 101; expected 1 to 100"),
        ({"resize": 0}, "--resize is 0; expected 1 or more"),
    ],
)
def test_options_of_scaling_that_make_no_sense_are_refused(asked: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        PackConfig(**asked)


def test_the_command_line_does_the_same(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = config("raw")
    words = asked.to_cli(str(pictures), str(tmp_path / "x.arrow")).split()[1:]
    assert main([*words, "--dry-run"]) == 0
    assert "about" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["resize"]
    assert told["store"] == "raw" and told["trial"]["psnr_db"] is None
    pack(sources.load(pictures), tmp_path / "y.arrow", asked)
    assert (tmp_path / "x.arrow").read_bytes() == (tmp_path / "y.arrow").read_bytes()


def test_nothing_else_pays_for_scaling() -> None:
    """Packing without it does not import PyTorch, which takes seconds on a parallel file system."""
    code = "import sys, smallfiles.pack; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


@pytest.mark.parametrize("mode", ["P", "1", "I;16", "F"])
@pytest.mark.parametrize("side", [4, 4000])
def test_pictures_whose_values_would_change_are_refused_and_kept_without_resize(
    mode: str, side: int, pictures: Path, tmp_path: Path
) -> None:
    tree = Path(shutil.copytree(pictures, tmp_path / "tree"))
    mask = tree / "class1" / ("mask.tiff" if mode == "F" else "mask.png")
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8) % 4).convert(mode).save(mask)
    with pytest.raises(PackError, match=r"mask.*\(mode [1PIF][;16]*\), which scaling to 8 bits"):
        pack(sources.load(tree), tmp_path / "x.arrow", PackConfig(resize=side))
    report = pack(sources.load(tree), tmp_path / "x.arrow", PackConfig(resize=side, on_error="skip"))
    assert [fault.key for fault in report.skipped] == [f"class1/{mask.name}"]
