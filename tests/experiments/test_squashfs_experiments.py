"""Experiments on images: they measure what they say, agree on bytes, and leave nothing behind."""

import random
from pathlib import Path

import pytest

from helpers.experiments import nb06 as squashfs
from helpers.experiments.nb06 import environment, settings
from helpers.figures import squashfs as plots
from pysquashfs import pack
from smallfiles.cli import main
from smallfiles.errors import ResourceError, UsageError
from smallfiles.measure import BenchConfig
from smallfiles.measure import squashfs as ways
from smallfiles.samples import Sample

SAMPLES = [  # a little smaller when compressed, as photographs are
    Sample(f"c{n % 3}/{n}.jpg", random.Random(n).randbytes(3000 + 999 * n) + bytes(200), n % 3)
    for n in range(12)
]
QUICK = BenchConfig(repeats=2, count=8)


@pytest.fixture
def tree(tmp_path):
    for sample in SAMPLES:
        path = tmp_path / "tree" / sample.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(sample.data)
    return tmp_path / "tree"


def mounts():
    return set(Path("/proc/mounts").read_text().splitlines())


def test_settings_are_measured_and_their_images_removed(tmp_path):
    measured = squashfs.bench_settings(SAMPLES, tmp_path, config=QUICK)
    assert list(tmp_path.iterdir()) == []
    by_name = {one.name: one for one in measured}
    fragments, raw = by_name["gzip, 1 MiB blocks, fragments"], by_name["raw, no fragments"]
    assert raw.amplification == 1.0 < 5 < fragments.amplification  # all twelve share one fragment
    assert fragments.saved < 0.05 and all(one.bytes == sum(len(s.data) for s in SAMPLES) for one in measured)
    assert all(len(one.reads["pure"].rates_per_s) == 2 for one in measured)
    said = plots.alt_text(measured)
    assert all(one.name in said for one in measured) and plots.finding(measured) in said
    assert plots.settings(measured).axes[0].get_xlim()[0] == 0


def test_the_figure_says_when_nothing_differs(tmp_path):
    one = squashfs.bench_settings(SAMPLES, tmp_path, [settings.photo_settings()[-1]], QUICK)
    assert plots.finding([*one, *one]) == "No setting reads clearly faster than another here"


def test_without_mksquashfs_our_writer_makes_the_same_kind(tmp_path, monkeypatch):
    monkeypatch.setattr(settings.shutil, "which", lambda name: None)
    (found,) = squashfs.bench_settings(SAMPLES, tmp_path, [settings.default_setting()], QUICK)
    assert found.name == "as mksquashfs by default"


def test_documents_compress_and_the_bandwidth_where_that_pays_is_a_number(tmp_path):
    documents = squashfs.documents(40)
    raw, _, zstd = squashfs.bench_settings(documents, tmp_path, settings.text_settings(), QUICK)
    assert abs(raw.saved) < 0.2 and zstd.saved > 0.5
    assert settings.worth_below_bytes_s(raw, zstd) > 0
    assert [s.data for s in squashfs.documents(3)] == [s.data for s in squashfs.documents(3)]


def test_ways_that_are_missing_are_named_with_the_reason(tree, tmp_path, monkeypatch):
    image = tmp_path / "x.sqfs"
    pack(image, [(s.key, s.data) for s in SAMPLES])
    monkeypatch.setattr(ways, "find_spec", lambda name: None)
    monkeypatch.setattr(ways.libsquashfs, "available", lambda: None)
    usable, notes = squashfs.usable_ways(image)
    assert usable[0] == "pysquashfs, pure"
    assert any("PySquashfsImage was not measured" in note for note in notes)
    assert any("libsquashfs is not installed" in note for note in notes)


def test_all_ways_at_hand_read_the_same_and_no_mount_stays(tree, tmp_path):
    image, before = tmp_path / "x.sqfs", mounts()
    pack(image, [(s.key, s.data) for s in SAMPLES])
    records = squashfs.bench_ways(image, tree, QUICK)
    assert records[0].name == ways.PLAIN and records[1].name == "pysquashfs, pure"
    assert {record.conditions()["what"] for record in records} == {"random reads"}
    assert mounts() == before


def test_a_way_that_gives_other_bytes_is_refused(tree, tmp_path):
    image = tmp_path / "x.sqfs"
    pack(image, [(s.key, s.data) for s in SAMPLES])
    (tree / SAMPLES[0].key).write_bytes(b"x")
    with pytest.raises(UsageError, match="gave other bytes than plain files"):
        squashfs.bench_ways(image, tree, BenchConfig(repeats=1, count=12), ["pysquashfs, pure"])


def test_forked_workers_of_a_seeking_reader_get_wrong_samples_and_of_a_positional_one_none(tmp_path):
    import os

    path = tmp_path / "data"
    truth = [sample.data for sample in SAMPLES]
    path.write_bytes(b"".join(truth))
    starts = [sum(map(len, truth[:n])) for n in range(len(truth))]
    with path.open("rb", buffering=0) as file:

        def seeking(index):
            file.seek(starts[index])
            return file.read(len(truth[index]))

        def positional(index):
            return os.pread(file.fileno(), len(truth[index]), starts[index])

        good = squashfs.count_wrong(positional, truth, seconds=0.5)
        assert (good.wrong, good.errors) == (0, 0) and good.reads > 100
        bad = squashfs.count_wrong(seeking, truth, seconds=1.5, workers=4)
        assert bad.wrong > 0 and "wrong samples" in bad.summary("seeking")
        assert "no error told of it" in bad.in_words and "did not meet" in good.in_words


def test_a_worker_that_dies_or_raises_is_counted():
    import os

    assert squashfs.count_wrong(lambda index: os._exit(1), [b"x"], seconds=0.1).errors == 2
    assert squashfs.count_wrong(lambda index: 1 / 0, [b"x"], seconds=0.1).errors > 2


def test_a_package_is_imported_from_slow_files_and_from_one_image(tmp_path):
    prepared = environment.prepare(tmp_path / "env", "mpmath")
    assert prepared.image_bytes < prepared.folder_bytes and prepared.files > 100
    before = mounts()
    trials, note = squashfs.import_trials(prepared)
    if note:
        pytest.skip(note)
    here, many, image = trials
    assert here.operations is None and many.operations > 3 * image.operations
    assert mounts() == before
    assert "operations" in environment.in_words(trials)


def test_what_cannot_be_tried_is_said(tmp_path, monkeypatch):
    prepared = environment.prepare(tmp_path / "env", "mpmath")
    monkeypatch.setattr(environment.slowfs, "why_not", lambda: "no FUSE")
    trials, note = squashfs.import_trials(prepared)
    assert len(trials) == 1 and note.endswith("no FUSE")
    assert environment.in_words(trials).startswith("many files, this machine")
    with pytest.raises(UsageError, match="no installed package"):
        environment.prepare(tmp_path / "env", "no_such_package")


def test_the_verb_measures_a_folder_and_leaves_nothing(tree, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    try:
        assert main(["bench", "squashfs", str(tree), "--repeats", "1", "--cache", "warm"]) == 0
    except ResourceError as error:
        pytest.skip(str(error))
    said = capsys.readouterr().out
    assert "pysquashfs, pure" in said and "plain files" in said
    assert list((tmp_path / "tmp").iterdir()) == []
