"""Notebook 03's experiments: what they conclude follows from what was measured."""

import shutil

import pyarrow as pa
import pytest

from helpers.experiments.nb03 import batches, killed, loaders
from helpers.experiments.nb03.batches import WAYS, Batches, Point
from helpers.figures import batches as figures
from smallfiles import sources
from smallfiles.errors import PackError, UsageError
from smallfiles.formats import arrow
from smallfiles.measure.record import Record
from smallfiles.measure.traffic import watched
from smallfiles.pack import PackConfig, pack


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("tree")
    for number in range(40):
        place = root / f"class{number % 2}"
        place.mkdir(exist_ok=True)
        (place / f"{number:03}.jpg").write_bytes(b"\xff\xd8\xff" + bytes([number]) * 20_000 + b"\xff\xd9")
    return root


@pytest.fixture(scope="module")
def source(folder):
    return sources.load(folder)


def measured(**rates):
    """A measurement with these rates at 1 and at 256 rows, in every run."""
    points = [
        Point(way, rows, tuple(one * factor for factor in (0.98, 1.0, 1.02)))
        for way, pair in zip(WAYS, rates.values(), strict=True)
        for rows, one in zip((1, 256), pair, strict=True)
    ]
    return Batches(tuple(points), 100_000.0, "ext4")


class TestRowsPerBatch:
    def test_every_way_and_file_is_measured(self, source, tmp_path, monkeypatch):
        monkeypatch.setattr(batches, "RUN_S", 0.002)
        files = batches.write_files(source, tmp_path, rows=(1, 16))
        assert {rows: pa.ipc.open_file(str(path)).num_record_batches for rows, path in files.items()} == {
            1: 40,
            16: 3,
        }
        found = batches.bench_batches(files, repeats=3)
        assert {(p.way, p.rows) for p in found.points} == {(way, rows) for way in WAYS for rows in (1, 16)}
        assert all(len(p.rates_per_s) == 3 and min(p.rates_per_s) > 0 for p in found.points)
        assert found.image_bytes == pytest.approx(20_005)
        assert "16 rows" in found.alt_text and found.finding in found.alt_text

    @pytest.mark.parametrize(
        ("rates", "finding"),
        [
            (
                {"a": (5000, 50), "b": (5000, 1000), "c": (5000, 5001)},
                "From 1 to 256 rows a batch: OSFile 100 times slower, memory map 5.0 times slower, "
                "our reader no clear change",
            ),
            (
                {"a": (50, 100), "b": (10, 10), "c": (10, 10)},
                "From 1 to 256 rows a batch: OSFile 2.0 times faster, memory map no clear change, "
                "our reader no clear change",
            ),
            (
                {"a": (10, 10), "b": (10, 10), "c": (10, 10)},
                "From 1 to 256 rows a batch: no clear change in any of the three ways here",
            ),
        ],
    )
    def test_the_title_says_what_was_measured(self, rates, finding):
        assert measured(**rates).finding == finding

    def test_a_difference_within_the_spread_is_none(self):
        wide = Batches(
            tuple(Point(way, rows, (10.0, 20.0, 30.0 - rows / 100)) for way in WAYS for rows in (1, 256)),
            1.0,
            "ext4",
        )
        assert "no clear change in any" in wide.finding

    def test_the_figure_starts_at_zero_and_shows_every_run(self):
        figure = figures.draw(measured(a=(5000, 50), b=(5000, 1000), c=(9000, 9000)))
        left, right = figure.axes
        assert left.get_ylim()[0] == right.get_ylim()[0] == 0
        dots = [line for axes in (left, right) for line in axes.lines if line.get_linestyle() == "None"]
        assert sum(len(line.get_ydata()) for line in dots) == 3 * 2 * 3
        told = [text.get_text() for text in left.get_legend().get_texts()]
        assert told == ["OSFile: 5,000 → 50", "memory map: 5,000 → 1,000"]


class TestLoaders:
    @pytest.fixture
    def files(self, source, tmp_path):
        theirs, ours = tmp_path / "theirs.arrow", tmp_path / "ours.arrow"
        pack(source, theirs, PackConfig(options=arrow.Options(layout="juelich"), verify="none"))
        pack(source, ours, PackConfig(verify="none"))
        return theirs, ours

    def test_all_ways_deliver_the_same_bytes_and_are_compared(self, source, files):
        records, note = loaders.bench_loaders(source, *files, repeats=3)
        assert [record.name for record in records] == [
            loaders.PLAIN,
            loaders.THEIRS,
            loaders.OURS_THEIRS,
            loaders.OURS,
        ]
        assert note == "" and all(record.samples == 40 for record in records)
        assert records[0].conditions() == records[3].conditions()
        assert loaders.finding(records).endswith(".")

    def test_files_of_other_bytes_are_refused(self, source, files):
        theirs, ours = files
        content = bytearray(ours.read_bytes())
        content[len(content) // 2] ^= 1
        ours.write_bytes(content)
        with pytest.raises(UsageError, match="different bytes"):
            loaders.bench_loaders(source, theirs, ours, repeats=1)

    @pytest.mark.parametrize(
        ("ours", "finding"),
        [
            ((30.0, 31.0, 32.0), "Our reader on our file is 3.10 times as fast"),
            ((10.0, 9.0, 11.0), "No clear difference"),
            ((5.0, 5.0, 5.0), "Our reader on our file is 0.50 times as fast"),
        ],
    )
    def test_the_sentence_follows_the_measurement(self, ours, finding):
        def record(name, rates):
            return Record("random reads", name, "arrow", rates, 1, 1, 1.0, "ext4", "warm", "", 1, 1)

        found = [record(loaders.THEIRS, (10.0, 10.0, 10.0)), record(loaders.OURS, ours)]
        assert loaders.finding(found).startswith(finding)


class TestKilledPack:
    def test_nothing_that_looks_finished_is_left_and_the_next_run_succeeds(self, folder, source, tmp_path):
        out = tmp_path / "out" / "train.arrow"
        left = killed.killed_pack(folder, out, at=30)
        assert left.signal == "SIGKILL" and left.visible == ()
        assert [name for name, _ in left.hidden] == [".train.arrow.packing"]
        assert pack(source, out).samples == 40
        assert sorted(p.name for p in out.parent.iterdir()) == ["train.arrow", "train.arrow.digest.json"]

    def test_a_run_that_ends_by_itself_is_told(self, folder, tmp_path):
        with pytest.raises(PackError, match="ended with code 0"):
            killed.killed_pack(folder, tmp_path / "out" / "train.arrow", at=41)


class TestTraffic:
    @pytest.fixture
    def packed(self, source, tmp_path):
        pack(source, tmp_path / "p.arrow", PackConfig(verify="none"))
        return tmp_path / "p.arrow"

    def test_an_open_file_reads_the_batch_and_a_map_reads_none_of_it(self, packed):
        with watched() as opened:
            first = pa.ipc.open_file(pa.OSFile(str(packed))).get_batch(0)
        with watched() as mapped:
            second = pa.ipc.open_file(pa.memory_map(str(packed))).get_batch(0)
        assert first.equals(second)
        assert min(opened.read, opened.arrow) > 40 * 20_000 and opened.most >= opened.read
        assert mapped.most < 20_000

    def test_python_objects_are_counted(self, packed):
        batch = pa.ipc.open_file(pa.memory_map(str(packed))).get_batch(0)
        with watched() as moved:
            images = batch["data"].to_pylist()
        assert moved.python > 40 * 20_000 and len(images) == 40

    def test_what_was_allocated_outlives_the_block(self, packed):
        """A memory pool that is gone when its buffers are freed would end the process."""
        for _ in range(50):
            with watched():
                batch = pa.ipc.open_file(pa.OSFile(str(packed))).get_batch(0)
        assert batch.num_rows == 40 and pa.default_memory_pool().backend_name != ""
        shutil.rmtree(packed.parent)
