"""Cleaning up before a signal ends the process: everybody's turn comes."""

import os
import signal
import subprocess
import sys

import pytest

from smallfiles import signals

PROGRAM = """
import os, pathlib, signal, sys, time
from smallfiles import signals
place = pathlib.Path(sys.argv[1])
def first(): (place / "first").touch()
def fails(): raise RuntimeError
def last(): (place / "last").touch()
for cleanup in (first, fails, last, first): signals.add(cleanup)
{more}
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(10)
"""


def end(tmp_path, more=""):
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(more=more), tmp_path], cwd=os.getcwd())
    return done.returncode, sorted(path.name for path in tmp_path.iterdir())


def test_all_clean_up_though_one_fails_and_the_signal_still_ends_the_process(tmp_path):
    assert end(tmp_path) == (-signal.SIGTERM, ["first", "last"])


def test_what_was_removed_is_not_called(tmp_path):
    assert end(tmp_path, "signals.remove(first)") == (-signal.SIGTERM, ["last"])


def test_a_handler_that_is_there_already_stays_in_charge(tmp_path):
    more = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3)); signals.add(last)"
    assert end(tmp_path, more) == (3, [])


@pytest.mark.parametrize("number", signals.SIGNALS)
def test_without_anything_to_clean_up_signals_mean_what_they_did(number):
    before = signal.getsignal(number)
    cleanup = lambda: None  # noqa: E731
    signals.add(cleanup)
    signals.remove(cleanup)
    assert signal.getsignal(number) in (before, signal.SIG_DFL)
