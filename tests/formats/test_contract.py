"""The one contract that every format keeps: what goes in comes out, however it is read."""

import contextlib
import mmap
import multiprocessing
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import contract_sets as sets
import failing_calls
import numpy as np
import pyarrow as pa
import pytest
from given import Given, bare, schema_of
from hypothesis import given, settings
from hypothesis import strategies as st

from smallfiles import digests, formats, sources
from smallfiles.errors import FormatError, OutputExistsError, ReaderClosedError, SmallfilesError, UsageError
from smallfiles.fields import as_text, further_files, value_table
from smallfiles.folders import key_problem
from smallfiles.formats.bytefile import ByteFile
from smallfiles.measure.workers import peak_memory
from smallfiles.pack import PackConfig, pack, verify
from smallfiles.samples import BlobField, Reader, Sample, Schema

METHODS = [m for m in ("fork", "spawn", "forkserver") if m in multiprocessing.get_all_start_methods()]


checked = pytest.mark.parametrize("variant", sets.CHECKED, ids=lambda variant: variant.name)
at_random = pytest.mark.parametrize("variant", sets.VARIANTS, ids=lambda variant: variant.name)


@pytest.fixture(params=sets.VARIANTS, ids=lambda variant: variant.name)
def variant(request):
    return request.param


@pytest.fixture(scope="module")
def packs(tmp_path_factory):
    """Path and samples of each variant, written once."""
    made = {}

    def pack(variant):
        if variant.name not in made:
            out = variant.out(tmp_path_factory.mktemp(variant.name))
            samples = sets.samples_of(variant)
            variant.write(samples, out, schema_of(samples, name="odd names"))
            made[variant.name] = out, samples
        return made[variant.name]

    return pack


def folder_bytes(out: Path) -> dict[str, bytes]:
    """Everything that was written under the name of `out` and beside it."""
    files = [p for p in out.parent.rglob("*") if p.is_file()]
    return {str(p.relative_to(out.parent)): p.read_bytes() for p in files}


def data_files(out: Path) -> list[Path]:
    """Every file that holds samples or says what they are; digests left aside."""
    files = [p for p in (out.parent).rglob("*") if p.is_file()]
    return sorted(p for p in files if not p.name.endswith(digests.SIDECAR_SUFFIX))


def test_every_format_is_under_contract():
    assert {variant.format for variant in sets.VARIANTS} == set(formats.names())


@pytest.mark.parametrize("captions", [False, True], ids=["labels", "captions"])
@pytest.mark.parametrize("metas", [False, True], ids=["no-meta", "meta"])
def test_what_goes_in_comes_out(variant, tmp_path, captions, metas):
    if captions and not variant.captions:
        pytest.skip("this layout has labels only")
    samples = sets.samples_of(variant, captions=captions, metas=metas)
    more = {"classes": (), "name": "odd", "split": "val", "manifest_digest": "sha256:" + "0" * 64}
    schema = schema_of(samples, captions=captions, **more)
    packed = variant.write(iter(samples), variant.out(tmp_path), schema)
    reader = formats.open(packed.path)
    assert isinstance(reader, Reader)
    assert sets.facts(reader) == sets.facts(samples)
    assert reader.keys().to_pylist() == [s.key for s in samples]
    assert [reader.size(i) for i in range(len(reader))] == [len(s.data) for s in samples]
    target = "captions" if captions else "label"
    some = reader.table([target], range(1, len(samples)))
    assert some[target].to_pylist() == [s.target for s in samples[1:]]
    assert target in reader.fields and ("meta" in reader.fields) == ("meta" in schema.values.column_names)
    assert (packed.samples, packed.payload_bytes) == (len(samples), schema.total_bytes)
    assert packed.format == variant.format and all(file.exists() for file in packed.files)
    assert packed.file_bytes == sum(p.stat().st_size for p in tmp_path.rglob("*") if p.is_file())


def test_provenance_names_the_set_and_its_classes(variant, tmp_path):
    samples = [Given("a.jpg", b"1", 0), Given("b.jpg", b"2", 1)]
    schema = schema_of(samples, name="birds", split="val", classes=("crane", "crane"))
    variant.write(samples, variant.out(tmp_path), schema)
    reader = formats.open(variant.out(tmp_path))
    info = reader.info()
    assert reader.classes == ("crane", "crane")
    assert {"layout", "file_bytes"} <= set(info)
    assert (info["format"], info["samples"], info["bytes"]) == (variant.format, 2, 2)
    record = info["provenance"]
    assert record["package"] == "smallfiles" and record["format"] == variant.format
    said = record["schema"]
    assert (said["name"], said["split"], said["count"], said["target"]) == ("birds", "val", 2, "label")
    assert pickle.loads(pickle.dumps(info)) == info


@pytest.mark.parametrize("captions", [False, True], ids=["labels", "captions"])
def test_an_empty_set_and_a_single_empty_sample_survive(variant, tmp_path, captions):
    if captions and not variant.captions:
        pytest.skip("this layout has labels only")
    for number, samples in enumerate([[], [Given("only", b"", [] if captions else 0)]]):
        out = variant.out(tmp_path / str(number))
        out.parent.mkdir()
        variant.write(samples, out, schema_of(samples, captions=captions))
        reader = formats.open(out)
        assert sets.facts(reader) == sets.facts(samples)
        assert reader.keys().to_pylist() == [s.key for s in samples]
        assert ("captions" if captions else "label") in reader.fields
        with pytest.raises(IndexError):
            reader.read(len(samples))


SENSELESS = [  # format, options, and what the sentence expects
    ("arrow", {"layout": "other"}, "smallfiles or juelich"),
    ("hdf5", {"layout": "other"}, "blob or vlen"),
    ("squashfs", {"compression": "rar"}, "none, gzip or zstd"),
    ("squashfs", {"block_bytes": 5000}, "a power of two"),
    ("squashfs", {"level": 3}, "no level"),
    ("squashfs", {"compression": "zstd", "level": 99}, "one from 1 to 22"),
]


@pytest.mark.parametrize(("name", "options", "expected"), SENSELESS)
def test_senseless_options_are_refused_before_anything_is_written(name, options, expected):
    with pytest.raises(UsageError, match=f"expected .*{expected}"):
        formats.get(name).Options(**options)


LIMITS = [  # the smallest value of an option, and the largest where there is one
    ("arrow", "rows_per_batch", 1, 1 << 20),
    ("arrow", "max_batch_bytes", 1, 1 << 40),
    ("tar", "max_bytes", 1, None),
    ("tar", "max_count", 1, None),
]


@pytest.mark.parametrize(("name", "option", "first", "last"), LIMITS)
def test_an_option_is_taken_up_to_its_limits_and_refused_beyond(name, option, first, last):
    make = formats.get(name).Options
    for value in filter(None, (first, last)):
        assert getattr(make(**{option: value}), option) == value
    for value in (first - 1, *([last + 1] if last else [])):
        with pytest.raises(UsageError, match=r"expected (limits of 1|1 to 1,048,576 rows)"):
            make(**{option: value})


KEY = st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=80), min_size=1, max_size=4).map(
    "/".join
)
TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def sample_sets(draw, variant):
    keys = draw(
        st.lists(KEY.filter(lambda k: key_problem(k) is None and variant.allows(k)), max_size=8, unique=True)
    )
    if variant.format in ("files", "squashfs"):  # a name cannot be a folder of another; some are kept
        folders = {"/".join(k.split("/")[:n]) for k in keys for n in range(1, k.count("/") + 1)}
        keys = [k for k in keys if k not in folders and not k.startswith("manifest.json")]
    captions = variant.captions and draw(st.booleans())
    targets = st.lists(TEXT, max_size=4) if captions else st.integers(*variant.labels)
    metas = st.none() | st.dictionaries(TEXT, JSON, max_size=3) if draw(st.booleans()) else st.none()
    return captions, [Given(key, draw(st.binary(max_size=3000)), draw(targets), draw(metas)) for key in keys]


@pytest.mark.parametrize("variant", sets.VARIANTS, ids=lambda v: v.name)
def test_any_set_comes_back_exactly(variant, tmp_path_factory):
    @settings(max_examples=20, deadline=None)
    @given(sample_sets(variant))
    def round_trip(made):
        captions, samples = made
        out = variant.out(tmp_path_factory.mktemp("any"))
        variant.write(sets.poisoned(samples), out, schema_of(samples, captions=captions))
        with formats.open(out) as reader:
            assert sets.facts(reader) == sets.facts(samples)
            assert reader.keys().to_pylist() == [s.key for s in samples]

    round_trip()


def test_a_writer_holds_a_sample_until_it_is_written(variant, tmp_path):
    size = 700_000
    samples = [*sets.samples_of(variant), *(Given(f"{n}.large", os.urandom(size), 1) for n in range(20))]
    variant.write(sets.poisoned(samples), variant.out(tmp_path), schema_of(samples))
    assert sets.facts(formats.open(variant.out(tmp_path))) == sets.facts(samples)


def test_equal_samples_give_equal_bytes(variant, tmp_path):
    samples = sets.samples_of(variant)
    for number in "12":
        (tmp_path / number).mkdir()
        variant.write(samples, variant.out(tmp_path / number), schema_of(samples))
    first, second = (folder_bytes(variant.out(tmp_path / number)) for number in "12")
    assert first == second


def test_the_digest_taken_while_writing_is_that_of_the_file(variant, tmp_path):
    size = 3_000_000
    samples = [Given(f"{n}.jpg", bytes([n]) * size, n) for n in range(5)]
    packed = variant.write(samples, variant.out(tmp_path), schema_of(samples))
    beside = list(tmp_path.rglob(f"*{digests.SIDECAR_SUFFIX}"))
    assert beside and set(beside) <= set(packed.files)
    for path in beside:
        file = path.with_name(path.name.removesuffix(digests.SIDECAR_SUFFIX))
        assert digests.ContentDigest.load(path) == digests.digest_file(file)


def test_fewer_samples_than_planned_and_no_digest_are_still_a_whole_file(variant, tmp_path):
    samples = sets.samples_of(variant)
    kept = [s for n, s in enumerate(samples) if n % 3]
    some = [s for n, s in enumerate(bare(samples)) if n % 3]
    variant.write_bare(some, variant.out(tmp_path), schema_of(samples), digest=False)
    assert not [*tmp_path.rglob(f"*{digests.SIDECAR_SUFFIX}")]
    assert sets.facts(formats.open(variant.out(tmp_path))) == sets.facts(kept)


def test_no_single_failing_write_is_passed_over(variant, packs, tmp_path):
    """One write after the other fails with EIO; a writer that returns all the same has written all.

    Where there are many, which are of few kinds, some thirty of them fail.
    """
    _, samples = packs(variant)  # the parent has imported what a writer imports

    def run(failing: int) -> tuple[int, int, Path]:
        out = variant.out(tmp_path / str(failing))
        out.parent.mkdir()

        def write() -> int:
            try:
                variant.write(samples, out, schema_of(samples))
            except SmallfilesError:
                return 1
            return 0

        return *failing_calls.run(write, failing), out

    code, total, _ = run(0)
    if code == 111 and not os.environ.get("CI"):
        pytest.skip("this system lets nobody filter system calls (seccomp)")
    assert code == 0 and total >= 2  # data and digest at the least
    for failing in range(1, total + 1, max(1, total // 30)):
        code, _, out = run(failing)
        assert code in (0, 1), f"write {failing} of {total} ended with code {code}"
        if code == 0:
            assert sets.facts(formats.open(out)) == sets.facts(samples), f"write {failing} of {total}"


def test_a_name_that_is_taken_is_never_overwritten(variant, packs):
    out, samples = packs(variant)
    before = folder_bytes(out)
    with pytest.raises(OutputExistsError, match="exists"):
        variant.write(samples, out, schema_of(samples))
    assert folder_bytes(out) == before


@pytest.mark.parametrize(
    ("sample", "values", "said"),
    [
        (Sample("../a.jpg", (b"1",), 0), {}, r"a\.jpg"),
        (Sample("/a.jpg", (b"1",), 0), {}, r"a\.jpg"),
        (Sample("a.jpg", (b"1",), 1), {}, "rows from 1 to 1, of 1"),
        (Sample("a.jpg", (b"1",), -1), {}, "rows from -1 to -1, of 1"),
        (Sample("a.jpg", (b"1",), 0), {"label": [0.5]}, "the column label"),
        (
            Sample("a.jpg", (b"1",), 0),
            {"label": pa.array([None], pa.int64())},
            "the column label.* 1 missing",
        ),
        (Sample("a.jpg", (b"1",), 0), {"captions": ["text"]}, "captions"),
        (Sample("a.jpg", (b"1",), 0), {"meta": ["1"]}, "a JSON object for .* is '1'"),
        (Sample("a.jpg", (b"1",), 0), {"meta": ["{"]}, "a JSON object for .* is '{'"),
    ],
    ids=["climbing", "absolute", "row", "negative", "fraction", "null", "text", "no-object", "no-json"],
)
def test_a_sample_that_does_not_fit_is_refused_by_name(variant, tmp_path, sample, values, said):
    with pytest.raises(FormatError, match=said):
        values = values if "captions" in values else {"label": [0], **values}
        variant.write_bare([sample], variant.out(tmp_path), Schema(1, 1, 1, pa.table(values)))


def test_a_target_that_a_layout_cannot_hold_is_refused(variant, tmp_path):
    low, high = variant.labels
    for label in (low - 1, high + 1) if high < 2**63 - 1 else ():
        samples = [Given("a.jpg", b"1", label)]
        with pytest.raises(FormatError, match=r"labels for .* reach from"):
            variant.write(samples, tmp_path / str(label), schema_of(samples))
    if not variant.captions:
        with pytest.raises(FormatError, match="captions"):
            variant.write([], variant.out(tmp_path), schema_of([], captions=True))


@pytest.mark.parametrize("access", ["mmap", "pread"])
def test_every_way_of_access_reads_the_same(variant, packs, access):
    if variant.format == "files":
        pytest.skip("plain files are opened one by one")
    out, samples = packs(variant)
    reader = formats.get(variant.format).open(out, access=access)
    assert sets.facts(reader) == sets.facts(samples)
    assert type(reader.read(0)) is type(reader.read_many([1])[0]) is memoryview


@at_random
def test_many_are_read_in_the_order_asked_for_with_repeats(variant, packs):
    out, samples = packs(variant)
    reader = formats.open(out)
    wanted = [3, 0, 3, len(samples) - 1, -1, 1, 0, 2]
    assert [bytes(data) for data in reader.read_many(wanted)] == [bytes(samples[i].data) for i in wanted]
    assert reader.read_many([]) == []


@at_random
@pytest.mark.parametrize("access", ["mmap", "pread"])
def test_a_batch_is_announced_in_stored_order_before_its_first_read(variant, packs, monkeypatch, access):
    out, samples = packs(variant)
    asked = []
    monkeypatch.setattr(
        ByteFile, "prefetch", lambda file, start, stop: asked.append((file.path, start, stop))
    )
    real = ByteFile.read
    monkeypatch.setattr(ByteFile, "read", lambda file, *place: asked.append("read") or real(file, *place))
    if variant.format == "files":
        pytest.skip("plain files are opened one by one")
    if variant.format == "lmdb":
        pytest.skip("liblmdb has no places to announce")
    reader = formats.get(variant.format).open(out, access=access)
    wanted = [3, 0, -1, 2, 0]
    for index in wanted:
        reader.read(index)  # opens, finds the columns
    asked.clear()
    data = reader.read_many(wanted)
    announced = asked[: asked.index("read")] if "read" in asked else asked  # a frame may be kept unpacked
    if variant.name == "hdf5-vlen":  # the pages that say where the samples are come first
        announced = [each for each in announced if each[2] - each[1] < mmap.PAGESIZE]
    assert announced and "read" not in announced
    places = [reader.span(index) for index in (0, 2, 3, len(samples) - 1)]
    if all(places):  # neighbours may be announced together
        inside = [
            [where == path and first <= start <= stop <= last for where, first, last in announced]
            for path, start, stop in places
        ]
        found = [each.index(True) for each in inside]
        assert found == sorted(found) and {*found} == {*range(len(announced))}
    assert [bytes(each) for each in data] == [bytes(samples[index].data) for index in wanted]


def test_what_is_read_compares_with_bytes_and_cannot_be_written(variant, packs):
    out, samples = packs(variant)
    reader = formats.open(out)
    for data in (*map(reader.read, range(len(samples))), *reader.read_many(range(len(samples)))):
        assert type(data) is memoryview
        # A view of format "b", as pyarrow's are, is unequal to the same bytes from 128 on.
        assert (data.format, data.itemsize, data.ndim, data.readonly) == ("B", 1, 1, True)
    assert all(reader.read(index) == sample.data for index, sample in enumerate(samples))


def test_reading_imports_neither_pandas_nor_torch(packs):
    """pyarrow imports pandas in `pa.array` and `to_numpy` where it is installed: a second a worker."""
    paths = [str(packs(variant)[0]) for variant in sets.VARIANTS if variant.format != "files"]
    code = (
        "import sys; from smallfiles import formats\n"
        "for path in sys.argv[1:]:\n"
        "    r = formats.open(path); r.read(0), r.key(0), r.target(0), r.keys(), r.info()\n"
        "    print([m for m in ('pandas', 'torch') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:-1] == ["[]"] * len(paths)


def test_many_opens_leave_no_descriptor_open(variant, packs):
    out, samples = packs(variant)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with formats.open(out) as reader:
            assert len(reader.read(0)) == len(samples[0].data)
    del reader
    assert len(os.listdir("/proc/self/fd")) <= before


def test_negative_indices_count_from_the_end_and_others_are_refused(variant, packs):
    out, samples = packs(variant)
    reader = formats.open(out)
    last = len(samples) - 1
    assert sets.seen(reader, -1)[1:] == sets.seen(reader, last)[1:]
    for index in (last + 1, -last - 2, 2**40):
        for ask in (reader.read, reader.key, reader.target, reader.size):
            with pytest.raises(UsageError, match="was asked of"):
                ask(index)


def test_spans_say_where_the_bytes_lie(variant, packs):
    out, samples = packs(variant)
    reader = formats.open(out)
    for index, sample in enumerate(samples):
        span = reader.span(index)
        if span is not None and sample.data:
            assert span[0].read_bytes()[span[1] : span[2]] == bytes(sample.data)


def test_a_closed_reader_says_so(variant, packs):
    out, samples = packs(variant)
    reader = formats.open(out)
    kept = reader.read(0)
    reader.close()
    reader.close()
    assert bytes(kept) == bytes(samples[0].data)
    for use in (lambda: reader.read(0), reader.__len__, reader.keys, lambda: reader.target(0), reader.info):
        with pytest.raises(ReaderClosedError, match="closed"):
            use()


def test_a_reader_is_pickled_without_its_handles(variant, packs):
    out, samples = packs(variant)
    reader = formats.open(out)
    fresh = len(pickle.dumps(reader))
    assert sets.facts(reader) == sets.facts(samples)
    used = pickle.dumps(reader)
    assert len(used) == fresh < 2000
    assert sets.facts(pickle.loads(used)) == sets.facts(samples)


@at_random
def test_threads_share_a_reader(variant, packs):
    out, samples = packs(variant)
    tasks = [random.Random(seed).choices(range(len(samples)), k=200) for seed in range(8)]
    expected = sets.seen_of((formats.open(out), list(range(len(samples)))))
    fresh, barrier = formats.open(out), threading.Barrier(4, timeout=30)
    # All four meet a reader that is not open yet.
    with ThreadPoolExecutor(4, initializer=barrier.wait) as pool:
        for indices, found in zip(tasks, pool.map(lambda t: sets.seen_of((fresh, t)), tasks), strict=True):
            assert found == [expected[index] for index in indices]


@pytest.mark.parametrize("method", METHODS)
def test_worker_processes_read_and_send_what_the_parent_reads(method, packs):
    opened = {}
    for variant in sets.VARIANTS:
        reader = formats.open(packs(variant)[0])
        opened[variant.name] = reader, sets.seen_of((reader, list(range(len(reader)))))
    tasks = [
        (name, reader, random.Random(seed).choices(range(len(reader)), k=60))
        for name, (reader, _) in opened.items()
        for seed in range(3)
    ]
    with multiprocessing.get_context(method).Pool(3) as pool:
        answers = pool.map(sets.seen_of, [task[1:] for task in tasks], chunksize=1)
    for (name, _, order), found in zip(tasks, answers, strict=True):
        assert found == [opened[name][1][index] for index in order], name


@at_random
@pytest.mark.skipif("fork" not in METHODS, reason="this system has no fork")
def test_forked_children_read_on_from_a_reader_that_the_parent_uses(variant, packs):
    out, samples = packs(variant)
    reader, everything = formats.open(out), list(range(len(samples)))
    expected = sets.seen_of((reader, everything))

    def child(seed):  # inherits the opened reader itself, not a pickle
        order = random.Random(seed).choices(everything, k=100)
        assert sets.seen_of((reader, order)) == [expected[index] for index in order]

    children = [multiprocessing.get_context("fork").Process(target=child, args=(n,)) for n in range(3)]
    for process in children:
        process.start()
    for _ in range(20):
        assert sets.seen_of((reader, everything)) == expected
    for process in children:
        process.join(60)
        assert process.exitcode == 0


def _write_much(folder: Path, names: list[str]) -> dict[str, int]:
    buffer = memoryview(bytearray(os.urandom(1 << 20)))
    sizes, labels = [1 << 20] * 60, pa.table({"label": [0] * 60})
    grown = {}
    for name in names:
        variant = sets.BY_NAME[name]
        out = variant.out(folder / name)
        out.parent.mkdir()
        warm = [Given("a.jpg", buffer[:10], 0)]
        variant.write(warm, out.with_name("warm" + variant.suffix), schema_of(warm))
        samples = (Sample(f"{n}.jpg", (buffer[:size],), n) for n, size in enumerate(sizes))
        with peak_memory() as taken:
            variant.write_bare(samples, out, Schema(60, sum(sizes), max(sizes), labels))
        grown[name] = taken[0]
        shutil.rmtree(out.parent)
    return grown


def test_packing_60_mb_takes_less_memory_than_that(tmp_path):
    names = [name for name in sets.BY_NAME if name != "arrow"]  # small batches
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        grown = pool.apply(_write_much, (tmp_path, names))
    assert {name: more for name, more in grown.items() if more > 40e6} == {}


@checked
def test_a_truncated_file_is_refused_or_read_right(variant, tmp_path):
    samples = sets.samples_of(variant)
    out = variant.out(tmp_path)
    variant.write(samples, out, schema_of(samples))
    for file in data_files(out)[:3]:
        whole = file.read_bytes()
        marks = {0, 1, 7, 511, 512, len(whole) // 2, len(whole) - 1, len(whole) - 8, len(whole) - 1024}
        for cut in sorted({*marks, *random.Random(file.name).choices(range(len(whole) or 1), k=11)}):
            if 0 <= cut < len(whole):
                file.write_bytes(whole[:cut])
                _refused_or_right(out, samples, f"{file.name} cut at {cut} of {len(whole)}")
        file.write_bytes(whole)


def _refused_or_right(out, samples, what):
    try:
        with formats.open(out) as reader:
            found = sets.facts(reader)
    except FormatError as error:
        assert out.name in str(error), what
        return
    assert found == sets.facts(samples), what


def _read_everything(out: Path) -> None:
    with formats.open(out) as reader:
        for index in range(min(len(reader), 50)):
            sets.seen(reader, index), reader.size(index)
        reader.keys(), reader.classes, reader.info()


def _read_damaged(name: str, folder: str, seed: int, count: int) -> None:
    """Runs in a child, so that a crash of a library is seen; says on exit what happened."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # a library that hangs in C is ended all the same
    signal.alarm(100 + count)
    variant = sets.BY_NAME[name]
    samples = sets.samples_of(variant)
    out = variant.out(Path(folder))
    variant.write(samples, out, schema_of(samples))
    files = data_files(out)[:6]
    chance = random.Random(seed)
    for _ in range(count):
        file = chance.choice(files)
        whole = file.read_bytes()
        hurt = bytearray(whole or b"0")
        for _ in range(chance.choice([1, 1, 2, 8])):
            near = min(chance.randrange(4096), len(hurt) - 1)  # files describe themselves at their ends
            place = chance.choice([chance.randrange(len(hurt)), near, len(hurt) - 1 - near])
            flipped = bytes([hurt[place] ^ 1 << chance.randrange(8)])
            numbers = [bytes(8), b"\xff" * 8, (1 << 62).to_bytes(8, "little"), chance.randbytes(8)]
            new = chance.choice([b"\0", b"\xff", flipped, flipped, chance.randbytes(1), *numbers])
            hurt[place : place + len(new)] = new
        file.write_bytes(hurt)
        for use in (_read_everything, verify):
            with contextlib.suppress(SmallfilesError):
                use(out)
        file.write_bytes(whole)


@checked
@pytest.mark.parametrize(
    ("seed", "count"), [(1, 30), *[pytest.param(seed, 500, marks=pytest.mark.slow) for seed in range(2, 12)]]
)
def test_changed_bytes_give_a_sentence_and_never_a_crash(variant, tmp_path, seed, count):
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_read_damaged, args=(variant.name, str(tmp_path), seed, count))
    process.start()
    process.join(150 + count)
    assert process.exitcode == 0, f"{variant.name} with seed {seed}: exit code {process.exitcode}"


def test_what_is_no_packed_file_is_refused_with_its_path_and_never_waited_for(variant, tmp_path):
    out = variant.out(tmp_path)
    with pytest.raises(FormatError, match="does not exist"):
        formats.open(out)
    os.mkfifo(out)
    with pytest.raises(FormatError, match="neither a file nor a folder"):
        formats.open(out)
    out.unlink()
    if variant.suffix not in (".files", ".tars"):
        out.write_bytes(b"\xff\xd8 this is a photograph " * 100)
        with pytest.raises(FormatError, match=re.escape(out.name)):
            len(formats.open(out))
        out.unlink()
    out.mkdir()
    with pytest.raises(FormatError, match=re.escape(out.name)):
        len(formats.open(out))


# Further files and values of each sample

ODD_NAN = np.array([0x7FF8_0000_0000_0123], np.int64).view(np.float64)[0]
BLOBS = (BlobField("mask", ".png"), BlobField("png", ".png"), BlobField("Depth-1", ".npy"))
FIELD_KEYS = (
    "images/001.jpg",
    "ü 2.v1.jpg",
    "no_suffix",
    ".hidden",
    "a.b/c",
    "x/" + "y" * 200 + ".png",
    "50%.jpg",
)
FIELD_VALUES = {
    "age": [1.5, float("nan"), None, -0.0, float("inf"), 5e-324, ODD_NAN],
    "age_valid": pa.array([0.1, None, float("nan"), 1, 2, 3, 4], pa.float32()),
    "bits": [[True, None], [], [False], None, [], [True] * 9, []],
    "boxes": [[[1.0, 2]], [], None, [[float("nan")], []], [[0.5, None]], [None], [[]]],
    "count": pa.array([0, None, -(2**63), 2**63 - 1, 5, 6, 7], pa.int64()),
    "labels in words": ["", None, 'a "b"\n', "日本 🐦", "nan", "\\", "null"],
    "mask.start": [None, 1, -5, 3, 0, 5, 6],
    "nothing": pa.array([None] * 7, pa.list_(pa.int64())),
    "offsets": [0, 1, 2, 3, 4, 5, None],
    "tags": [["nan", None, "é"], [], None, [""], ["b"], ["c"] * 5, ["x"]],
    "日本": [True, None, False, True, True, False, None],
}
with_fields = pytest.mark.parametrize(
    "variant",
    [each for each in sets.VARIANTS if each.name not in sets.WITHOUT_FIELDS],
    ids=lambda variant: variant.name,
)


def fielded(captions=False):
    """Seven samples with three further files each, in another order than their values, and their schema."""
    samples = [
        Given(
            key,
            b"first" + bytes(700 * n),
            [f"é {k}" for k in range(n % 3)] if captions else n,
            {"n": [n, None]} if n % 3 == 0 else None,
            (b"mask%d" % n, b"", bytes([n]) * 9000 * (n % 2)),
            row,
        )
        for n, (key, row) in enumerate(zip(FIELD_KEYS, (3, 0, 1, 2, 6, 5, 4), strict=True))
    ]
    return samples, schema_of(samples, blobs=BLOBS, values=value_table(FIELD_VALUES))


def field_facts(reader):
    """The files of all samples by field, and their values as texts that no other value has."""
    table = sets.further(reader)
    values = {name: as_text(table[name].combine_chunks()).to_pylist() for name in table.column_names}
    files = {
        name: [*map(bytes, reader.blob(name).read_many(range(len(reader))))]
        for name in further_files(reader.fields)
    }
    return sets.facts(reader), files, values


@with_fields
@pytest.mark.parametrize("captions", [False, True], ids=["labels", "captions"])
def test_all_fields_come_back_bit_by_bit(variant, captions, tmp_path):
    samples, schema = fielded(captions)
    out = variant.write(samples, variant.out(tmp_path), schema).path
    taken = value_table(FIELD_VALUES).take([s.row for s in samples])
    files = {blob.name: [s.blobs[n] for s in samples] for n, blob in enumerate(BLOBS)}
    values = {name: as_text(taken[name].combine_chunks()).to_pylist() for name in FIELD_VALUES}
    with formats.open(out) as reader:
        assert further_files(reader.fields) == {blob.name: blob.suffix for blob in BLOBS}
        assert field_facts(reader) == (sets.facts(samples), files, values)
        found = reader.table()
        for name in FIELD_VALUES:
            assert found[name].type == taken[name].type, name
            assert found[name].is_null().to_pylist() == taken[name].is_null().to_pylist(), name
        assert reader.info()["bytes"] == sum(len(s.data) + sum(map(len, s.blobs)) for s in samples)
        assert reader.info()["provenance"]["fields"]["mask"] == ".png"
        order = [3, 0, 5, 3, -1]
        for number, name in enumerate(blob.name for blob in BLOBS):
            blob = reader.blob(name)
            assert blob.read_many(order) == [samples[n].blobs[number] for n in order]
            assert [blob.size(n) for n in order] == [len(samples[n].blobs[number]) for n in order]
            for n, span in enumerate(map(blob.span, range(len(blob)))):
                if span is not None:
                    assert span[0].read_bytes()[span[1] : span[2]] == samples[n].blobs[number]
        one, (row,) = reader[2 - len(samples)], found.slice(2, 1).to_pylist()  # as texts, because of NaN
        further = {blob.name: samples[2].blobs[number] for number, blob in enumerate(BLOBS)}
        assert {name: one[name] for name in further} == further and set(one) == {"key", *reader.fields}
        assert repr({name: one[name] for name in row}) == repr(row)
        assert repr(pickle.loads(pickle.dumps(one))) == repr(one)  # other loaders send it to processes
        again, mask = pickle.loads(pickle.dumps(reader)), pickle.loads(pickle.dumps(reader.blob("mask")))
        assert again.blob("mask").read(2) == mask.read(2) == samples[2].blobs[0]
    with pytest.raises(ReaderClosedError):
        reader.blob("mask").read(0)


@with_fields
def test_fewer_samples_than_planned_keep_their_own_fields(variant, tmp_path):
    samples, schema = fielded()
    made = [*bare(samples)]
    variant.write_bare([made[n] for n in (6, 0, 2)], variant.out(tmp_path), schema)
    with formats.open(variant.out(tmp_path)) as reader:
        expected = schema.values.take([6, 0, 2])
        for name in FIELD_VALUES:
            found, wanted = reader.table()[name].combine_chunks(), expected[name].combine_chunks()
            assert as_text(found).equals(as_text(wanted)), name
        assert [bytes(reader.blob("mask").read(n)) for n in range(3)] == [b"mask6", b"mask0", b"mask2"]


@pytest.fixture(scope="module")
def fielded_source(tmp_path_factory):
    samples, schema = fielded()
    out = tmp_path_factory.mktemp("source") / "x.files"
    formats.get("files").write(bare(samples), out, schema=schema)
    return sources.load(out)


@pytest.mark.parametrize("variant", sets.VARIANTS, ids=lambda variant: variant.name)
def test_parts_with_fields_make_the_bytes_of_a_single_run_or_fields_are_refused(
    variant, tmp_path, fielded_source
):
    whole, parts = (variant.out(tmp_path / number) for number in "12")
    (tmp_path / "1").mkdir()

    def packed(out, **more):
        options = formats.get(variant.format).Options(**dict(variant.options))
        pack(fielded_source, out, PackConfig(shuffle=5, check="none", verify="full", options=options, **more))

    if variant.name in sets.WITHOUT_FIELDS:
        with pytest.raises(FormatError, match=r"would hold .*age, .*(Pack into \.arrow, \.h5|the layout)"):
            packed(whole)
        assert not [*whole.parent.iterdir()]
        samples, schema = fielded()
        drawn = bare(samples)
        with pytest.raises(FormatError, match=whole.name):
            variant.write_bare(drawn, whole, schema)
        assert next(drawn).key == samples[0].key and not [*whole.parent.iterdir()]
        return
    (tmp_path / "2").mkdir()
    packed(whole)
    for more in ({"part": (1, 2)}, {"part": (2, 2)}, {"merge": True}):
        packed(parts, **more)
    assert folder_bytes(parts) == folder_bytes(whole)
    assert verify(parts, fielded_source).verdict == "intact"
