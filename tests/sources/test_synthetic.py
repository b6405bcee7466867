"""Making data sets: determinism, processes, refusals, and what is left behind (nothing)."""

import errno
import hashlib
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from smallfiles.errors import OutputExistsError, ResourceError, SmallfilesError, UsageError
from smallfiles.sources import synthetic
from smallfiles.sources.synthetic import plans, pool, trees

TINY = {"size": (64, 48), "show_progress": False}


def digests(root: Path) -> dict[str, str]:
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("layout", list(synthetic.LAYOUTS))
def test_every_layout_is_the_same_bytes_with_one_process_and_with_two(tmp_path, layout):
    one = synthetic.make(tmp_path / "one", layout, count=40, odd=True, broken=2, workers=1, **TINY)
    two = synthetic.make(tmp_path / "two", layout, count=40, odd=True, broken=2, workers=2, **TINY)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    assert (one.files, one.targets, one.odd, one.bytes) == (two.files, two.targets, two.odd, two.bytes)


def test_equal_seeds_give_equal_bytes_and_another_seed_gives_none_of_them(tmp_path):
    for name, seed in (("a", 1), ("again", 1), ("other", 2)):
        synthetic.make(tmp_path / name, "prepared", count=30, seed=seed, workers=1, **TINY)
    assert digests(tmp_path / "a") == digests(tmp_path / "again")
    assert not set(digests(tmp_path / "a").values()) & set(digests(tmp_path / "other").values())


def test_a_picture_is_the_same_in_every_tree(tmp_path):
    folder = synthetic.make(tmp_path / "f", "folder", count=30, workers=1, **TINY)
    kaggle = synthetic.make(tmp_path / "k", "kaggle", count=30, workers=1, **TINY)
    for one, other in zip(folder.files, kaggle.files, strict=True):
        assert (folder.path / one).read_bytes() == (kaggle.path / other).read_bytes()


def test_pictures_at_full_size_are_the_same_from_one_process_and_from_two():
    plan = plans.Plan(7, 12, 0, 0, 10, (500, 375))
    with pool.WorkerPool(plan, 2) as two, pool.WorkerPool(plan, 1) as one:
        assert list(two.draw(range(12))) == list(one.draw(range(12)))


def test_pictures_come_in_the_order_asked_for():
    plan = plans.Plan(7, 30, 0, 0, 10, (64, 48))
    order = [29, 0, 7, 7, 3, 28, 1, 12, 5, 4, 3, 2]
    with pool.WorkerPool(plan, 2) as drawers:
        assert list(drawers.draw(order)) == [plans.file_bytes(plan, index) for index in order]


def test_made_counts_what_lies_on_disk(tmp_path):
    made = synthetic.make(tmp_path / "out", "folder", count=25, workers=1, **TINY)
    sizes = [(made.path / file).stat().st_size for file in made.files]
    assert (made.images, made.bytes) == (25, sum(sizes))
    assert len(set(digests(made.path).values())) == 25, "no two pictures are equal"
    assert made.seconds > 0 and len(made.truth) == 25


def test_odd_files_are_at_the_same_places_each_time_and_named(tmp_path):
    made = synthetic.make(tmp_path / "out", "folder", count=60, odd=True, broken=3, workers=1, **TINY)
    assert sorted(odd.kind for odd in made.odd) == sorted(
        ["png", "cmyk", "gray", "exif_rotated", "exif_broken", "empty", "truncated", "empty"]
    )
    assert len({odd.path for odd in made.odd}) == 8
    empty = [odd.path for odd in made.odd if odd.kind == "empty"]
    assert [(made.path / path).stat().st_size for path in empty] == [0, 0]


def test_the_folder_gets_the_permissions_of_any_new_folder(tmp_path):
    (tmp_path / "plain").mkdir()
    made = synthetic.make(tmp_path / "deep" / "er" / "out", "folder", count=12, workers=1, **TINY)
    assert stat.S_IMODE(made.path.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


@pytest.mark.parametrize(
    ("layout", "options", "word"),
    [
        ("imagenet", {}, "unknown"),
        ("folder", {"count": 0}, "0 pictures"),
        ("folder", {"count": -3}, "-3 pictures"),
        ("folder", {"count": 5}, "10 classes"),
        ("folder", {"classes": 0}, "0 classes"),
        ("folder", {"count": 3000, "classes": 1001}, "1001 classes"),
        ("folder", {"val": 3}, "3 val"),
        ("prepared", {"test": 3}, "3 test"),
        ("prepared", {"val": 20}, "20 for validation"),
        ("prepared", {"val": -1}, "-1 for validation"),
        ("folder", {"broken": 21}, "21 odd or broken"),
        ("folder", {"broken": -1}, "-1 broken"),
        ("folder", {"seed": -1}, "seed -1"),
        ("folder", {"workers": 0}, "0 workers"),
        ("folder", {"size": (8, 8)}, "8 x 8"),
    ],
)
def test_numbers_without_sense_are_refused_before_anything_is_written(tmp_path, layout, options, word):
    with pytest.raises(UsageError, match=word):
        synthetic.make(tmp_path / "out", layout, **{"count": 20, **TINY, **options})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("what", ["folder", "file", "dangling link"])
def test_an_existing_output_is_refused_and_untouched(tmp_path, what):
    out = tmp_path / "out"
    match what:
        case "folder":
            out.mkdir()
        case "file":
            out.write_text("mine")
        case _:
            out.symlink_to("nowhere")
    with pytest.raises(OutputExistsError, match="exists already"):
        synthetic.make(out, "folder", count=12, workers=1, **TINY)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_output_that_appears_meanwhile_is_not_replaced(tmp_path, monkeypatch):
    def appears(*_):
        (tmp_path / "out").mkdir()

    monkeypatch.setattr(trees, "write_files", appears)
    with pytest.raises(OutputExistsError):
        synthetic.make(tmp_path / "out", "folder", count=12, workers=1, **TINY)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_gives_a_sentence_and_leaves_nothing(tmp_path, monkeypatch, code, workers):
    def full(path, data, real=Path.write_bytes):
        if path.name.endswith("_00017.jpg"):
            raise OSError(code, os.strerror(code))
        return real(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ResourceError, match=r"cannot be written .*expected free blocks"):
        synthetic.make(tmp_path / "out", "folder", count=40, workers=workers, **TINY)
    assert not list(tmp_path.iterdir())


def test_too_little_space_is_said_before_the_start(tmp_path, monkeypatch):
    monkeypatch.setattr(trees, "write_files", lambda *_: pytest.fail("began to write"))
    with pytest.raises(ResourceError, match=r"expected about .*B"):
        synthetic.make(tmp_path / "out", "folder", count=10**6, size=(4096, 4096), show_progress=False)
    assert not list(tmp_path.iterdir())


def test_a_parent_that_is_a_file_gives_a_sentence(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SmallfilesError, match="cannot be written"):
        synthetic.make(tmp_path / "file" / "out", "folder", count=12, workers=1, **TINY)


def test_a_killed_drawer_gives_a_sentence_and_leaves_nothing(tmp_path, monkeypatch):
    def hire_and_kill(plan, real=pool._hire):
        drawer = real(plan)
        drawer.kill()
        return drawer

    monkeypatch.setattr(pool, "_hire", hire_and_kill)
    with pytest.raises(ResourceError, match=r"ended early \(exit status -9\)"):
        synthetic.make(tmp_path / "out", "folder", count=40, workers=2, **TINY)
    assert not list(tmp_path.iterdir())


LONG_RUN = """
from pathlib import Path
from smallfiles.sources import synthetic
synthetic.make(Path({out!r}), "folder", count=100_000, workers=2, size=(64, 48), show_progress=False)
"""


def start_a_long_run(tmp_path) -> subprocess.Popen:
    """Not a file and no main guard: nothing here may depend on the caller's script."""
    run = subprocess.Popen(
        [sys.executable, "-c", LONG_RUN.format(out=str(tmp_path / "out"))],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    until(lambda: any(tmp_path.glob(".out.packing/partial-*/out/*/*.jpg")), 60)
    return run


def until(condition, limit_s: float) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def processes_of(session: int) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(after_name[3]) == session and after_name[0] != "Z":
            found.append(entry.parent.name)
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at /proc")
def test_ctrl_c_leaves_no_process_and_no_file(tmp_path):
    run = start_a_long_run(tmp_path)
    assert len(processes_of(run.pid)) == 3
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does: to all of them
    _, errors = run.communicate(timeout=30)
    assert errors.count(b"KeyboardInterrupt") <= 2 and b"BrokenPipe" not in errors
    until(lambda: not processes_of(run.pid), 10)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at /proc")
def test_drawers_die_with_a_killed_parent_and_nothing_looks_finished(tmp_path):
    run = start_a_long_run(tmp_path)
    run.kill()
    _, errors = run.communicate(timeout=30)
    assert errors == b""
    until(lambda: not processes_of(run.pid), 10)
    assert not (tmp_path / "out").exists()
