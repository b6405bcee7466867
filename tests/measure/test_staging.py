"""Staging beside dd and cp: same samples, comparable records, nothing left in memory."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from programs import wait_for

from benchmarks import staging
from smallfiles import slowfs
from smallfiles.machine import nodelocal
from smallfiles.measure import BenchConfig, Record
from smallfiles.measure.drawing import check_comparable
from smallfiles.slowfs import SlowConfig
from smallfiles.sources import synthetic


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("staging") / "data"
    synthetic.make(folder, "folder", count=30, classes=3, size=(64, 48))
    return folder


def left() -> list[str]:
    return sorted(path.name for path in nodelocal.SHARED_MEMORY.glob("smallfiles-bench-*"))


WARM = BenchConfig(repeats=2, count=20, caches=("warm",))


def test_three_methods_are_measured_on_the_same_samples_and_storage(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, seen, real = left(), [], staging.staging.staged
    monkeypatch.setattr(
        staging.staging, "staged", lambda *words, **more: seen.append(words) or real(*words, **more)
    )
    result = staging.bench_staging(data, BenchConfig(repeats=2, count=20))
    by_place: dict[tuple[str, str], list[Record]] = {}
    for record in result.records:
        by_place.setdefault((record.what, record.cache), []).append(record)
    assert ("staging to memory", "warm") in by_place
    for dd, ours, cp in by_place.values():
        assert [dd.name, ours.name, cp.name] == [staging.DD, staging.STAGE, staging.CP]
        assert {record.samples for record in (dd, ours, cp)} == {20} and dd.repeats == 2 and dd.bytes > 0
        check_comparable([dd, ours, cp])  # notebook 07 draws them
    assert len(by_place) + len(result.notes) == 3, result.notes
    assert len(seen) == 3 * len(by_place)  # ours checks the digest; once to warm up
    wait_for(lambda: set(left()) <= set(before))  # other tests measure at the same time


@pytest.mark.skipif(slowfs.why_not() is not None, reason=f"no FUSE: {slowfs.why_not()}")
def test_on_slow_storage_small_files_are_waited_for_one_by_one(data: Path) -> None:
    result = staging.bench_staging(data, WARM, slow=SlowConfig(latency_s=0.01))
    dd, _, cp = [record for record in result.records if "10 ms" in record.what]
    assert cp.spread.maximum <= 1 / (2 * 0.01)  # a look-up and an open for each
    assert dd.filesystem.startswith("fuse")


def test_a_command_that_fails_or_is_missing_is_a_line(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = left()
    monkeypatch.setenv("PATH", os.pathsep.join([str(_failing(data.parent, "cp")), os.environ["PATH"]]))
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, **more: None if name == "dd" else which(name, **more))
    result = staging.bench_staging(data, BenchConfig(repeats=1, count=5, caches=("warm",)), slow=None)
    assert [each.name for each in result.records] == [staging.STAGE]
    assert {each.name: each.why for each in result.failed} == {
        staging.DD: "the command dd is not here",
        staging.CP: "cp failed: nothing there",
    }
    wait_for(lambda: set(left()) <= set(before))  # other tests measure at the same time


def _failing(folder: Path, name: str) -> Path:
    command = folder / "bin" / name
    command.parent.mkdir()
    command.write_text("#!/bin/sh\necho nothing there >&2\nexit 1\n")
    command.chmod(0o755)
    return command.parent
