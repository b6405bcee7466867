"""Making data sets: determinism, processes, refusals, and what is left behind (nothing)."""

import errno
import functools
import hashlib
import os
import signal
from pathlib import Path

import pytest
from programs import Program, wait_for

from smallfiles.errors import OutputExistsError, ResourceError, UsageError
from smallfiles.sources import synthetic

TINY = {"size": (64, 48)}


def digests(root: Path) -> dict[str, str]:
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("layout", list(synthetic.LAYOUTS))
def test_every_layout_is_the_same_bytes_with_one_thread_and_with_three(tmp_path, monkeypatch, layout):
    made = []
    for threads in (1, 3):
        monkeypatch.setattr(synthetic, "usable_cpus", lambda threads=threads: threads)
        made.append(synthetic.make(tmp_path / str(threads), layout, count=70, **TINY))
    one, three = made
    assert digests(one.path) == digests(three.path)
    assert (one.files, one.targets, one.bytes) == (three.files, three.targets, three.bytes)


def test_no_two_pictures_are_equal_nor_are_those_of_another_seed(tmp_path):
    made = synthetic.make(tmp_path / "out", "folder", count=25, **TINY)
    other = synthetic.make(tmp_path / "other", "folder", count=25, seed=2, **TINY)
    assert len({*digests(made.path).values(), *digests(other.path).values()}) == 50
    sizes = [(made.path / file).stat().st_size for file in made.files]
    assert (made.images, made.bytes, len(made.truth)) == (25, sum(sizes), 25)


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
        ("prepared", {"val": 20}, "20 for validation"),
        ("prepared", {"val": -1}, "-1 for validation"),
        ("folder", {"seed": -1}, "seed -1"),
        ("folder", {"size": (8, 8)}, "sides of"),
    ],
)
def test_numbers_without_sense_are_refused_before_anything_is_written(tmp_path, layout, options, word):
    with pytest.raises(UsageError, match=word):
        synthetic.make(tmp_path / "out", layout, **{"count": 20, **TINY, **options})
    assert not list(tmp_path.iterdir())


def test_an_existing_output_is_refused_and_untouched(tmp_path):
    (tmp_path / "out").symlink_to("nowhere")
    with pytest.raises(OutputExistsError, match="exists already"):
        synthetic.make(tmp_path / "out", "folder", count=12, **TINY)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_full_disk_gives_a_sentence_and_leaves_nothing(tmp_path, monkeypatch):
    def full(path, data, real=Path.write_bytes):
        if path.name.endswith("_00017.jpg"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ResourceError, match=r"cannot be written .*expected free blocks"):
        synthetic.make(tmp_path / "out", "folder", count=40, **TINY)
    assert not list(tmp_path.iterdir())


def test_too_little_space_is_said_before_the_start(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "write_bytes", lambda *_: pytest.fail("began to write"))
    with pytest.raises(ResourceError, match=r"expected about .*B"):
        synthetic.make(tmp_path / "out", "folder", count=10**6, size=(4096, 4096))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_stopped_leaves_nothing_that_looks_finished(tmp_path, ending):
    run = Program(functools.partial(synthetic.make, count=100_000, **TINY), tmp_path / "out", "folder")
    wait_for(lambda: any(tmp_path.glob(".out.packing/partial-*/out/*/*.jpg")))
    run.kill(ending)
    assert run.errors.count("KeyboardInterrupt") <= 2
    run.end()
    assert not (tmp_path / "out").exists()
    assert ending == signal.SIGKILL or not list(tmp_path.iterdir())
