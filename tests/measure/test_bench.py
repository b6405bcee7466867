"""Measuring: the protocol, the cache, the private folder in memory, records, the good neighbour."""

import contextlib
import dataclasses
import getpass
import json
import mmap
import os
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import time
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import h5py
import pyarrow as pa
import pytest
from programs import Program, wait_for

from benchmarks.__main__ import OTHERS
from smallfiles import machine, sources
from smallfiles.errors import FormatError, ResourceError, SmallfilesError, UsageError
from smallfiles.measure import (
    BenchConfig,
    bench,
    bench_packing,
    bench_reads,
    packing,
    reading,
    scratch,
    workers,
)
from smallfiles.measure import cache as page_cache
from smallfiles.measure.methods import listed, methods
from smallfiles.measure.protocol import Case, Outcome, interleaved
from smallfiles.measure.record import Failed, Record, Spread, load, ratio, save
from smallfiles.measure.scratch import PACKED
from smallfiles.measure.table import rendered, times
from smallfiles.pack import PackConfig, pack

METHODS = methods(OTHERS["pack"])


def record(name="arrow", rates=(10.0, 12.0, 11.0), **changes):
    base = Record("random reads", name, name, tuple(rates), 5, 500, 0.5, "ext4", "warm", "all", 5, 500)
    return dataclasses.replace(base, **changes)


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory):
    """A tree of class folders with files that begin and end as JPEGs do."""
    path = tmp_path_factory.mktemp("tiny") / "data"
    for number in range(24):
        file = path / f"class{number % 2}" / f"{number:04d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"\xff\xd8\xff" + number.to_bytes(4, "big") * (1250 + number) + b"\xff\xd9")
    return path


@pytest.fixture(scope="module")
def tiny_source(tiny_folder):
    return sources.load(tiny_folder)


@pytest.fixture(scope="module")
def packed(tiny_source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed")
    paths = [folder / name for name in PACKED]
    for path in paths:
        pack(tiny_source, path, PackConfig(verify="none"))
    return paths


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """A place instead of /dev/shm, where other tests measure at the same time."""
    (tmp_path / "memory").mkdir()
    monkeypatch.setattr(packing, "memory_folder", partial(packing.memory_folder, parent=tmp_path / "memory"))
    return tmp_path / "memory"


# --- protocol ---------------------------------------------------------------------------------


def cases_that_log(names, log):
    return [Case(name, lambda name=name: log.append(name) or Outcome(1, 1, 0.001)) for name in names]


def test_every_round_runs_every_case_once_in_an_order_that_follows_from_the_seed():
    logs = [], []
    for log in logs:
        outcomes = interleaved(cases_that_log("abcd", log), 6, 3, "test", {})
        assert all(len(runs) == 6 for runs in outcomes.values())
    assert logs[0] == logs[1] and logs[0][:4] == [*"abcd"]  # warm-up, thrown away
    rounds = [tuple(logs[0][at : at + 4]) for at in range(4, 28, 4)]
    assert all(sorted(names) == [*"abcd"] for names in rounds) and len(set(rounds)) > 1


def test_a_case_that_fails_loses_its_place_and_costs_the_others_nothing():
    at_once = Mock(side_effect=UsageError("got", expected="e", next_step="n"))
    later = Mock(side_effect=[Outcome(1, 1, 1.0), ImportError("libavcodec.so: no such file\n  at line 3\n")])
    failed: dict[str, str] = {}
    cases = [*cases_that_log("ab", []), Case("c", at_once, warm_up=False), Case("d", later, warm_up=False)]
    outcomes = interleaved(cases, 3, 0, "test", failed)
    assert {name: len(found) for name, found in outcomes.items()} == {"a": 3, "b": 3}
    assert failed == {"c": "got", "d": "ImportError: libavcodec.so: no such file"}


def test_a_method_that_fails_is_a_line_of_the_packing_table(tiny_folder, tmp_path, memory, monkeypatch):
    (tmp_path / "webdataset.py").write_text("raise ImportError('libmagic is missing')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(packing, "FORMATS", {"no such format": "x.tars"})
    monkeypatch.setattr(packing, "SLOW_SAMPLES", 2)
    some = {name: METHODS[name] for name in ("Jülich HDF5", "Jülich Arrow", "webdataset")}
    monkeypatch.setattr("benchmarks.packing.METHODS", some)
    result = bench_packing(tiny_folder, BenchConfig(repeats=1, count=5), others=OTHERS["pack"])
    assert [each.name for each in result.records] == ["concatenation", "Jülich HDF5", "Jülich Arrow"]
    assert result.notes[-1].endswith("it is slow: Jülich HDF5 (2)")
    why = {each.name: each.why for each in result.failed if each.what == "packing"}
    assert "ImportError: libmagic is missing" in why.pop("webdataset")
    assert sorted(why) == ["no such format, bare", "no such format, hashed and verified"]
    assert all("no such format" in text for text in why.values()) and list(memory.iterdir()) == []


def test_reads_are_recorded_and_printed_with_what_they_ask_of_the_storage(packed):
    config = BenchConfig(repeats=2, orders=("random",), caches=("warm",), count=10)
    result = bench_reads(packed[:2], config)
    files, arrow = (record.extra for record in result.records)
    assert files["opens_per_1000"] == 1000 and arrow["opens_per_1000"] == 0
    assert arrow["opens_to_open"] >= 1 and "system calls, not requests" in files["requests_counted_by"]
    shown = rendered(result.records)
    head, names, _, line, *_, about = shown.splitlines()[1:]
    assert "opens" in head and "per 1,000" in names and line.split()[-2] == "1,000"
    assert about.startswith("per 1,000 samples: system calls, not requests; counted by Python")


def test_a_file_that_cannot_be_read_is_a_line_and_the_others_are_measured(packed, tmp_path):
    cut = tmp_path / "set.arrow"
    data = (packed[1]).read_bytes()
    at = data.index(b"\xff\xd8\xff")
    cut.write_bytes(data[:at] + bytes(1) + data[at + 1 :])  # other bytes at least
    config = BenchConfig(repeats=1, orders=("random",), caches=("warm",))
    with pytest.raises(UsageError, match="different bytes"):
        bench_reads([packed[0], cut], config)
    original, seen = reading._read_all, []

    def fails(target, indices, sums):
        if target.format == "tar":
            seen.append(1)
            raise OSError(5, "Input/output error")
        return original(target, indices, sums)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "_read_all", fails)
        result = bench_reads([packed[0], packed[3]], config)
    assert [each.name for each in result.records] == ["plain files"]
    assert [(each.what, each.name) for each in result.failed] == [("random reads", "tar")] and len(seen) == 1


# --- processes of their own -------------------------------------------------------------------


def misbehave(how, folder, place):
    if how == "raise":
        raise RuntimeError("no FFmpeg\nat line 3")
    if how == "print":
        os.write(2, b"Traceback\n" * 1000 + b"OSError: no libavcodec")
        return workers.last_words()
    if how in ("abort", "hang"):
        child = subprocess.Popen(["sleep", "100"], close_fds=False)  # holds the pipe open
        (folder / "child").write_text(str(child.pid))
        os.abort() if how == "abort" else child.wait()
    return place.keep("first", lambda: how)


@pytest.fixture
def pool(tmp_path):
    with workers.WorkerPool("fork") as found:
        yield lambda how, key="a": found.run({key: partial(misbehave, how, tmp_path)}, 0)[0]


def test_a_worker_that_raises_says_why_and_goes_on(pool, capfd):
    assert pool("x") == "x"
    with pytest.raises(workers.WorkFailed, match=r"^RuntimeError: no FFmpeg$"):
        pool("raise")
    assert pool("print") == "; its last output: OSError: no libavcodec"
    assert pool("y") == "x" and pool("y", key="b") == "y"  # what it keeps is its own
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("order", "why"), [("abort", "was killed by SIGABRT"), ("hang", "no answer in 3 s")])
def test_a_worker_that_dies_or_hangs_is_replaced_and_leaves_nothing(pool, order, why, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "PATIENCE_S", 3.0)
    with pytest.raises(workers.WorkFailed, match=why):
        pool(order)
    assert pool("x") == "x"
    child = int((tmp_path / "child").read_text())
    stat = Path(f"/proc/{child}/stat")
    wait_for(lambda: not stat.exists() or " Z " in stat.read_text())


# --- records ----------------------------------------------------------------------------------


def test_ratios_are_paired_by_round_and_refuse_other_conditions():
    slow_machine_in_round_two = record("arrow", (20.0, 2.0)), record("files", (10.0, 1.0))
    assert ratio(*slow_machine_in_round_two) == Spread(2, 2, 2, 2, 2)
    assert Spread.of([1, 2, 3, 4, 5]) == Spread(3, 2, 4, 1, 5)
    with pytest.raises(UsageError, match="same conditions"):
        ratio(record(), record(cache="cold"))
    assert times(record("a", (9.0, 10.0, 12.0)), record("b", (10.0, 10.0, 10.0))) == "≈ 1"  # it straddles 1
    assert times(record("a", (20.0, 21.0, 19.0)), record("b", (10.0, 10.0, 10.0))) == "2.00"


def test_records_come_back_as_they_were_and_what_failed_is_kept_with_them(tmp_path):
    records = [record(extra={"open_s": 0.1}, machine=machine.describe()), record("tar")]
    failed = [Failed("random reads", "SPDL", "no answer")]
    save(records, tmp_path / "r.json", failed)
    assert load(tmp_path / "r.json") == records
    told = json.loads((tmp_path / "r.json").read_text())
    assert told["failed"] == [dataclasses.asdict(failed[0])]
    assert told["records"][0]["spread"]["median"] == 11.0 and told["records"][0]["repeats"] == 3
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


@pytest.mark.parametrize("text", ["", "[]", '{"records": [{"what": 1}]}', "{}", '{"records": [3]}'])
def test_a_file_that_holds_no_records_is_refused_by_name(tmp_path, text):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(FormatError, match=r"r\.json"):
        load(tmp_path / "r.json")


def test_a_record_tells_neither_user_nor_host_nor_path(packed):
    result = bench_reads(packed[:1], BenchConfig(repeats=1, count=3, caches=("warm",)))
    text = json.dumps([r.as_json() for r in result.records])
    for secret in (socket.gethostname(), str(packed[0].parent), f'"{getpass.getuser()}"'):
        assert secret not in text


# --- page cache -------------------------------------------------------------------------------


@pytest.fixture
def on_disk(tmp_path):
    if not page_cache.can_be_cold(tmp_path):
        pytest.skip("temporary files lie in memory here")
    return tmp_path


def test_a_dropped_file_is_no_longer_in_memory(on_disk):
    file = on_disk / "f"
    file.write_bytes(os.urandom(1 << 20))
    assert page_cache.is_cached(file)
    for _ in range(50):
        page_cache.drop([file])
        assert not page_cache.is_cached(file)
        assert not page_cache.is_cached(file)  # asking does not bring it back


def test_a_file_that_stays_in_memory_is_not_called_cold(on_disk):
    path = on_disk / "f"
    path.write_bytes(os.urandom(1 << 20))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        assert sum(view[::4096]) > 0  # mapped pages cannot be dropped
        with pytest.raises(ResourceError, match="still cached"):
            page_cache.drop([path])


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm")
def test_memory_is_never_called_cold(tiny_source):
    with scratch.memory_folder(10 << 20) as folder:
        pack(tiny_source, folder / "s.tars", PackConfig(verify="none"))
        both = bench_reads([folder / "s.tars"], BenchConfig(repeats=1))
        assert {r.cache for r in both.records} == {"warm"}
        assert "cold reads cannot be measured" in both.notes[0]
        with pytest.raises(ResourceError, match="tmpfs"):
            bench_reads([folder / "s.tars"], BenchConfig(repeats=1, caches=("cold",)))


# --- private folder in memory -----------------------------------------------------------------


@pytest.mark.parametrize("failure", [None, KeyboardInterrupt, ValueError, SystemExit])
def test_the_folder_is_private_and_gone_afterwards(tmp_path, failure):
    ends = pytest.raises(failure) if failure else contextlib.nullcontext()
    with ends, scratch.memory_folder(0, tmp_path) as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "data").write_bytes(b"x")
        if failure:
            raise failure
    assert list(tmp_path.iterdir()) == []


def hold(folder):
    with scratch.memory_folder(0, folder) as place:
        (place / "data").write_bytes(b"x")
        print("ready")
        time.sleep(60)


def test_the_folder_goes_with_a_signal_and_one_of_a_killed_run_with_the_next(tmp_path, request):
    killed, alive, interrupted = (Program(hold, tmp_path) for _ in range(3))
    for program in (killed, alive, interrupted):
        request.addfinalizer(program.end)
        wait_for(lambda program=program: program.out)
    assert killed.kill() and interrupted.kill(signal.SIGINT)
    assert len(list(tmp_path.iterdir())) == 2
    with scratch.memory_folder(0, tmp_path):
        assert len(list(tmp_path.iterdir())) == 2  # ours and the living one's
    assert alive.kill(signal.SIGTERM)
    assert list(tmp_path.iterdir()) == []


def test_too_little_room_is_refused_before_anything_is_made(tmp_path):
    with pytest.raises(ResourceError, match="MiB"), scratch.memory_folder(1 << 60, tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


# --- good neighbour ---------------------------------------------------------------------------


def on(kind, shared):
    here = machine.filesystem(Path("/"))
    return lambda path: dataclasses.replace(here, kind=kind, shared=shared)


def test_a_shared_file_system_is_spared_and_it_is_said_unless_the_cap_is_lifted(monkeypatch):
    monkeypatch.setattr(bench.machine, "filesystem", on("lustre", True))
    measured = bench.Bench(BenchConfig(), ())
    allowed = measured.allowed([Path("x")], 3000, runs=100)
    assert allowed.samples * 100 <= bench.OPERATIONS and allowed.in_flight == bench.IN_FLIGHT
    assert "lustre" in measured.notes[0] and "--no-cap" in measured.notes[0]
    assert bench.Bench(BenchConfig(cap=False), ()).allowed([Path("x")], 3000, 100).samples == 3000
    monkeypatch.setattr(bench.machine, "filesystem", on("ext4", False))
    assert bench.Bench(BenchConfig(), ()).allowed([Path("x")], 3000, 100) == bench.Allowance(3000)


# --- reading ----------------------------------------------------------------------------------


def test_reading_measures_every_format_order_and_cache(packed, on_disk):
    result = bench_reads(packed, BenchConfig(repeats=2))
    conditions = {(r.what, r.cache) for r in result.records}
    assert conditions == {(f"{o} reads", c) for o in ("random", "sequential") for c in ("warm", "cold")}
    assert len(result.records) == 4 * len(packed)
    for one in result.records:
        assert one.repeats == 2 and min(one.rates_per_s) > 0 and one.extra["open_s"] > 0
        assert one.bytes == one.samples // one.set_samples * one.set_bytes


def test_files_of_different_data_sets_and_none_at_all_are_refused(packed, tiny_source, tmp_path):
    few = sources.Source(tiny_source.manifest.select(range(7)), tiny_source.store, tiny_source.kind)
    pack(few, tmp_path / "other.tars", PackConfig())
    with pytest.raises(UsageError, match="one data set"):
        bench_reads([packed[0], tmp_path / "other.tars"], BenchConfig(repeats=1))
    with pytest.raises(UsageError, match="no packed file"):
        bench_reads([])


# --- packing ----------------------------------------------------------------------------------


def test_packing_is_measured_in_processes_of_its_own_and_leaves_nothing(tiny_folder, memory, monkeypatch):
    monkeypatch.setattr(packing, "FORMATS", {"tar": "x.tars"})
    result = bench_packing(tiny_folder, BenchConfig(repeats=1, count=20))
    assert list(memory.iterdir()) == []
    assert [r.name for r in result.records] == ["concatenation", "tar, bare", "tar, hashed and verified"]
    for one in result.records:
        assert one.samples == 20 and 0 < one.extra["cpu_s"] < 60
        assert one.extra["opens_per_1000"] >= 1000 and "system calls" in one.extra["requests_counted_by"]
        assert one.extra["peak_above_interpreter_bytes"] > 0
        assert ratio(one, result.records[0]).median > 0


def test_methods_of_others_write_what_they_were_given(tiny_source, tmp_path):
    paths, labels = both = listed(tiny_source)
    wanted = [Path(path).read_bytes() for path in paths]
    METHODS["concatenation"](*both, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"".join(wanted)
    METHODS["Jülich HDF5"](*both, tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["train/targets"][:].tolist() == labels
        assert file["train/images"][3].tobytes() == wanted[3]
    METHODS["Jülich Arrow"](*both, tmp_path / "out.arrow")
    with pa.memory_map(str(tmp_path / "out.arrow")) as file:
        reader = pa.ipc.open_file(file)
        assert reader.num_record_batches == len(wanted)  # a batch a row
        assert reader.get_batch(5).to_pylist() == [{"image_data": wanted[5], "label": labels[5]}]


def test_an_archive_is_refused_as_source_of_a_packing_measurement(tmp_path, tiny_folder):
    with tarfile.open(tmp_path / "set.tar", "w") as tar:
        tar.add(tiny_folder, "set")
    with pytest.raises(SmallfilesError, match="archive"):
        bench_packing(tmp_path / "set.tar", BenchConfig(repeats=1))


def test_a_method_is_not_charged_for_what_only_ours_import():
    code = "import sys, smallfiles.measure.methods; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours = {"numpy", "pyarrow", "h5py", "smallfiles.formats", "smallfiles.pack"}
    assert not set(done.stdout.split()) & ours


HOLDS = "held = bytes(range(256)) * 200_000; import mmap, sys; file = open(sys.argv[1], 'rb'); "
HOLDS += (
    "data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ); sum(data[::4096]); print(flush=True); input()"
)
WORKS = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.3: pass"])
subprocess.run([sys.executable, "-c", sys.argv[2], sys.argv[1]])
"""


def test_processor_time_and_memory_count_all_processes_but_not_the_data():
    with scratch.memory_folder(80 << 20) as folder:
        (folder / "data").write_bytes(bytes(60 << 20))
        command = [sys.executable, "-c", WORKS, folder / "data", HOLDS]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
            program.stdout.readline()
            assert len(workers.processes_of(program.pid)) == 2
            assert 0.3 <= workers.processor_s(program.pid) < 5
            without, whole = (workers.memory_bytes(program.pid, place) for place in (folder, Path("/x")))
            program.stdin.write(b"\n")
    assert 51_200_000 < without < 51_200_000 + (30 << 20) and whole - without == 60 << 20
