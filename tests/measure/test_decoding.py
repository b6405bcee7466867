import io
import json

import numpy as np
import pytest
from PIL import Image

from benchmarks import decoding as others
from smallfiles.cli import main
from smallfiles.errors import UsageError
from smallfiles.measure import BenchConfig, decoding
from smallfiles.measure.decoding_methods import SIZE, candidates
from smallfiles.measure.decoding_pool import worker_pool
from smallfiles.measure.workers import WorkFailed

METHODS, PEERS = candidates(others.__name__)


def _jpeg(seed, kind="JPEG"):
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (12, 16, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(small).resize((160, 120)).save(out, kind)
    return out.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("pictures")
    for number in range(10):
        (root / f"c{number % 2}").mkdir(exist_ok=True)
        (root / f"c{number % 2}" / f"{number}.jpg").write_bytes(_jpeg(number))
    (root / "c0" / "odd.png").write_bytes(_jpeg(99, "PNG"))
    return root


def test_only_jpegs_are_measured_and_not_too_many(folder, tmp_path):
    assert len(decoding.jpegs(folder, 400)) == 10
    assert len(decoding.jpegs(folder, 3)) == 3
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "only.png").write_bytes(_jpeg(1, "PNG"))
    with pytest.raises(UsageError, match="no JPEG"):
        decoding.jpegs(tmp_path, 5)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_makes_what_it_says(name):
    method = METHODS[name]
    if not method.installed() or (name == "turbojpeg" and decoding.turbo.library() is None):
        pytest.skip("not installed")
    found = np.asarray(method.make()(_jpeg(0), np.random.default_rng(0)))
    if found.shape[0] == 3:
        found = found.transpose(1, 2, 0)
    assert found.shape == ((SIZE, SIZE, 3) if method.kind == "augment" else (120, 160, 3))
    assert found.dtype == np.uint8 and found.std() > 10


def test_methods_of_one_filter_make_the_same_picture():
    found = {}
    for name, method in METHODS.items():
        if method.kind == "augment" and method.installed():
            picture = np.asarray(method.make()(_jpeg(0), np.random.default_rng(3)), np.int16)
            picture = picture.transpose(1, 2, 0) if picture.shape[0] == 3 else picture
            found.setdefault(name.rsplit(", ")[1], []).append(picture)
    for pictures in found.values():
        assert all(np.abs(picture - pictures[0]).mean() < 1 for picture in pictures)


def test_records_tell_conditions_rates_and_processor_time(folder):
    names = ["ours, antialias", "Pillow, antialias", "simplejpeg"]
    config = BenchConfig(repeats=2, count=10)
    result = decoding.bench_decoding(folder, config, workers=(1, 2), only=names, others=others.__name__)
    assert [(record.name, record.workers) for record in result.records] == [
        (name, workers) for workers in (1, 2) for name in ("simplejpeg", *reversed(names[:2]))
    ]
    for record in result.records:
        assert record.repeats == 2 and record.samples == 10 and record.extra["cpu_s"] > 0
        assert record.machine and "numpy" in record.versions
    assert result.records[0].conditions() != result.records[1].conditions()


def test_a_method_that_does_not_exist_is_named():
    with pytest.raises(UsageError, match="'fast'"):
        decoding.names_of("decode", ["fast"])


def test_a_method_that_fails_gives_a_reason_and_the_others_go_on(folder):
    good = decoding.jpegs(folder, 3)
    with worker_pool([good[0], b"\xff\xd8\xff broken", good[1], good[2]], 2, 0, others.__name__) as hands:
        failed = []
        names = ["Pillow, antialias", "simplejpeg"]
        assert decoding._measured(hands, names, "decode", 2, BenchConfig(repeats=1), failed) == []
        assert [each.name for each in failed] == names
        with pytest.raises(WorkFailed):  # and not the answer of the other process to the one before
            hands.run("Pillow, antialias")


def test_a_process_that_was_killed_is_told_and_replaced(folder):
    with worker_pool(decoding.jpegs(folder, 3), 1, 0) as hands:
        hands.run("simplejpeg")
        hands._hands[""][0].process.kill()
        with pytest.raises(WorkFailed, match="was killed by SIGKILL"):
            hands.run("simplejpeg")
        assert hands.run("simplejpeg").samples == 3


def test_the_quality_for_ffcv_gives_files_of_that_size():
    def at(quality):
        out = io.BytesIO()
        Image.open(io.BytesIO(_jpeg(0, "PNG"))).save(out, "JPEG", quality=quality)
        return out.getvalue()

    assert abs(others.quality_of([at(60)]) - 60) <= 15


@pytest.mark.parametrize("name", PEERS)
def test_every_peer_gives_all_pictures(name, folder):
    if not PEERS[name].installed():
        pytest.skip("not installed")
    with worker_pool(decoding.jpegs(folder, 10), 2, 0, others.__name__) as hands:
        try:
            outcome = hands.run(name)
        except WorkFailed as error:
            if "ffmpeg" in str(error).lower():
                pytest.skip("SPDL found no FFmpeg")
            raise
    assert outcome.samples == 10


def test_the_command_shows_a_table_and_keeps_records(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(decoding, "names_of", lambda kind, *more: ["simplejpeg"] if kind == "decode" else [])
    saved = tmp_path / "r.json"
    words = ["bench", "decode", str(folder), "--repeats", "2", "--count", "8", "--save", str(saved)]
    assert main(words) == 0
    assert "simplejpeg" in capsys.readouterr().out
    assert len(json.loads(saved.read_text())["records"]) == 2
    assert main(["bench", "decode", str(folder), str(folder)]) == 2
