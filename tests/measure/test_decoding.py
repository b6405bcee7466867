import io

import numpy as np
import pytest
from PIL import Image

from benchmarks import decoding
from benchmarks.decoding import METHODS, PEERS, installed
from benchmarks.pipelines import SIZE
from smallfiles.measure import BenchConfig
from smallfiles.sources import synthetic


def _jpeg(seed, kind="JPEG"):
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (12, 16, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(small).resize((160, 120)).save(out, kind)
    return out.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("pictures") / "data"
    synthetic.make(root, "folder", count=10, classes=2, size=(160, 120))
    (root / "c0").mkdir()
    (root / "c0" / "odd.png").write_bytes(_jpeg(99, "PNG"))
    return root


def picture_of(method, seed=0):
    """What it makes of one file, with the colours last."""
    if not installed(method):
        pytest.skip("not installed")
    found = np.asarray(method.make()(_jpeg(0), np.random.default_rng(seed)))
    return found.transpose(1, 2, 0) if found.shape[0] == 3 else found


@pytest.mark.parametrize("name", METHODS)
def test_every_method_makes_what_it_says(name):
    found = picture_of(METHODS[name])
    assert found.shape == ((SIZE, SIZE, 3) if METHODS[name].kind == "augment" else (120, 160, 3))
    assert found.dtype == np.uint8 and found.std() > 10


def test_methods_of_one_filter_make_the_same_picture():
    found = {}
    for name, method in METHODS.items():
        if method.kind == "augment" and installed(method):
            found.setdefault(name.rsplit(", ")[1], []).append(picture_of(method, 3).astype(np.int16))
    for pictures in found.values():
        assert all(np.abs(picture - pictures[0]).mean() < 1 for picture in pictures)


def only(monkeypatch, *names):
    """Have these measured, and no others; the processes that work know all of them."""
    for table in ("METHODS", "PEERS"):
        known = getattr(decoding, table)
        monkeypatch.setattr(decoding, table, {name: known[name] for name in known if name in names})


@pytest.fixture(scope="module")
def measured(folder):
    with pytest.MonkeyPatch.context() as patch:
        only(patch, "ours, antialias", "simplejpeg")
        return decoding.bench_decoding(folder, BenchConfig(repeats=2, count=10))


def test_records_tell_conditions_rates_and_processor_time(measured):
    assert [(record.name, record.workers) for record in measured.records] == [
        (name, workers) for workers in (1, 2) for name in ("simplejpeg", "ours, antialias")
    ]
    for record in measured.records:
        assert record.repeats == 2 and record.samples == 10 and record.extra["cpu_s"] > 0
        assert record.machine and "numpy" in record.versions and record.filesystem == "memory"
    assert measured.records[0].conditions() != measured.records[1].conditions()


@pytest.mark.parametrize("name", PEERS)
def test_every_peer_gives_all_pictures(name, folder, monkeypatch):
    if not installed(PEERS[name]):
        pytest.skip("not installed")
    only(monkeypatch, name)
    result = decoding.bench_decoding(folder, BenchConfig(repeats=1))
    if result.failed and "ffmpeg" in result.failed[0].why.lower():
        pytest.skip("SPDL found no FFmpeg")
    assert [record.samples for record in result.records] == [10, 10]
