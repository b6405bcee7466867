import importlib
import io
import multiprocessing
import os
import sys
import time
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
from programs import wait_for

from smallfiles.progress import bytes_text, duration_text, progress

module = importlib.import_module("smallfiles.progress")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves by hand."""
    now = [1000.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    monkeypatch.setattr(module._LogLines, "last_written", 0.0)  # by the clock of another test
    return now


def test_later_steps_of_one_work_do_not_begin_its_silence_anew(clock, capsys):
    began = clock[0]
    for what in ("pack", "verify", "sync", "again"):
        with progress(14, what, since=began) as shown:
            for _ in range(14):
                clock[0] += 1
                shown.advance()
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["sync", "sync"]  # at 30 s, and its last word


def test_a_job_log_gets_one_line_every_30_seconds(clock, capsys):
    with progress(1000, "packing train") as shown:
        for _ in range(90):
            clock[0] += 1
            shown.advance(10, bytes=1_000_000)
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert len(lines) == 4  # at 30, 60 and 90 s, and the last word
    assert lines[0] == "packing train: 300 of 1,000 samples (30 %), 10 samples/s, 1.0 MB/s, 1 min 10 s left"
    assert lines[-1].startswith("packing train: 900 of 1,000 samples (90 %)")


def test_a_stalled_stage_still_leaves_lines_and_nothing_after_its_end(monkeypatch, capsys):
    monkeypatch.setattr(module, "LOG_INTERVAL_S", 0.1)
    began, lines = time.monotonic(), []
    with progress(10, "verify") as shown:
        shown.advance(3)
        wait_for(lambda: lines.extend(capsys.readouterr().err.splitlines()) or len(lines) > 1)
    lines += capsys.readouterr().err.splitlines()
    lines = [line for line in lines if not line.startswith("note: ")]  # a thread of another test still waits
    assert len(lines) <= (time.monotonic() - began) / 0.1 + 1
    assert all(line.startswith("verify: 3 of 10 samples (30 %)") for line in lines)
    time.sleep(0.3)
    assert capsys.readouterr().err == ""


def test_a_line_that_is_being_written_holds_up_no_forked_child(monkeypatch, capfd):
    monkeypatch.setattr(module, "LOG_INTERVAL_S", 0.0)
    with progress(None, "filling") as shown, progress(None, "waiting"):
        for _ in range(40):
            if not (child := os.fork()):
                print("child", file=sys.stderr, flush=True)
                shown.advance()
                os._exit(0)
            end = time.monotonic() + 30
            while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
                assert time.monotonic() < end, os.kill(child, 9)
                time.sleep(0.001)
            assert ended[1] == 0


@pytest.mark.parametrize(
    ("total", "options", "steps", "lines"),
    [
        (10, {}, [(29, 10)], []),  # a short task
        (10, {"enabled": False}, [(100, 10)], []),
        (0, {}, [(31, 0)], ["0 samples, 0 samples/s, 31 s"] * 2),
        (None, {}, [(31, 0)], ["0 samples, 0 samples/s, 31 s so far"] * 2),
        (5, {}, [(31, 0)], ["0 of 5 samples (0 %), 0 samples/s, 31 s so far"] * 2),
        (None, {"unit": "files"}, [(30, 1500)], ["1,500 files, 50 files/s, 30 s so far"] * 2),
        (100, {}, [(29, 50), (16, 50)], ["100 of 100 samples (100 %), 2 samples/s, 45 s"] * 2),
    ],
)
def test_a_job_log_tells_what_is_known(clock, capsys, total, options, steps, lines):
    with progress(total, "work", **options) as shown:
        for seconds, samples in steps:
            clock[0] += seconds
            shown.advance(samples)
    assert capsys.readouterr() == ("", "".join(f"work: {line}\n" for line in lines))


def test_a_terminal_gets_a_bar_with_rate_and_bytes_which_is_closed_when_the_work_fails(monkeypatch, clock):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with pytest.raises(ValueError, match="broken"), progress(3, "packing") as shown:
        for _ in range(3):
            shown.advance(1, bytes=5_000_000)
        raise ValueError("broken")
    assert all(word in screen.getvalue() for word in ("packing", "3/3", "B/s"))
    assert screen.getvalue().endswith("\n")  # as of a bar that is closed


def test_many_threads_may_advance_at_once(clock, capsys):
    with progress(8000, "reading") as shown:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: [shown.advance(1, bytes=2) for _ in range(1000)], range(8)))
        clock[0] += 30
        shown.advance(0)
    assert "8,000 of 8,000" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (99_949, "99.9 kB"),
        (123_456, "123 kB"),
        (999_950, "1.0 MB"),
        (1.9e9, "1.9 GB"),
        (3e18, "3,000.0 PB"),
    ],
)
def test_bytes_are_told_as_people_say_them(count, text):
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (59.6, "1 min 00 s"), (245, "4 min 05 s"), (7800, "2 h 10 min")]
)
def test_durations_are_told_as_people_say_them(seconds, text):
    assert duration_text(seconds) == text


def test_a_forked_child_of_a_kernel_shows_no_widget(monkeypatch, capfd):
    """It cannot reach the page, and its attempt to would be a warning for each step."""

    def show():
        with progress(2, "copying") as shown:
            shown.advance()

    asked = []
    shell = types.SimpleNamespace(kernel=True)
    fake = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", fake)
    monkeypatch.setattr("smallfiles.progress._Bar", lambda *_: asked.append(1) or pytest.fail("a widget"))
    child = multiprocessing.get_context("fork").Process(target=show)
    child.start()
    child.join(20)
    assert child.exitcode == 0, capfd.readouterr().err


def test_a_note_is_plain_output_in_a_notebook_and_standard_error_elsewhere(capsys, monkeypatch):
    module.note("seen in a terminal")
    monkeypatch.setattr(module, "_in_notebook", lambda: True)
    module.note("seen in a notebook")
    assert capsys.readouterr() == ("note: seen in a notebook\n", "note: seen in a terminal\n")
