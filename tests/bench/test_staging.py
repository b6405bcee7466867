"""Staging beside dd and cp: same samples, comparable records, nothing left in memory."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from helpers.bench import BenchConfig, ratio, staging
from helpers.bench.protocol import Outcome
from helpers.errors import ResourceError
from helpers.machine import nodelocal
from helpers.sources import synthetic


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("staging") / "data"
    synthetic.make(folder, "folder", count=30, classes=3, size=(64, 48), workers=1)
    return folder


def left() -> list[str]:
    return sorted(path.name for path in nodelocal.SHARED_MEMORY.glob("smallfiles-bench-*"))


def test_three_methods_are_measured_on_the_same_samples(data: Path) -> None:
    before = left()
    result = staging.bench_staging(data, BenchConfig(repeats=2, count=20))
    assert [record.name for record in result.records] == [staging.DD, staging.STAGE, staging.CP]
    dd, ours, cp = result.records
    assert {record.samples for record in result.records} == {20} and dd.repeats == 2
    assert ratio(ours, dd).median > 0 and ratio(ours, cp).median > 0  # comparable: same conditions
    assert dd.bytes > 0 and ours.filesystem == "tmpfs" and not result.notes
    assert set(left()) <= set(before)


def test_ours_is_timed_with_its_digest_checked(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    real = staging.staging.staged

    def watched(*words: object, **more: object):
        copy = real(*words, **more)
        seen.append(copy)
        return copy

    monkeypatch.setattr(staging.staging, "staged", watched)
    staging.bench_staging(data, BenchConfig(repeats=1, count=5))
    assert len(seen) == 2  # once to warm up


def test_a_command_that_fails_or_is_missing_is_a_sentence(
    data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ResourceError, match=r"cp failed: .*nothing"):
        staging._command(["cp", str(tmp_path / "nothing"), "x"], tmp_path / "to", 1, 1)
    assert not (tmp_path / "to").exists()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(staging.MissingPackageError, match="dd is not here"):
        staging._command(["dd"], tmp_path / "to", 1, 1)


def test_a_run_leaves_its_folder_empty(tmp_path: Path) -> None:
    outcome = staging._command(["true"], tmp_path / "to", 3, 7)
    assert isinstance(outcome, Outcome) and (outcome.samples, outcome.bytes) == (3, 7)
    assert list(tmp_path.iterdir()) == []
