"""Cleaning up before a signal ends the process: everybody's turn comes."""

import os
import signal
import subprocess
import sys

import pytest

from smallfiles import processes

PROGRAM = """
import os, pathlib, signal, sys, time
from smallfiles import processes
place = pathlib.Path(sys.argv[1])
def first(): (place / "first").touch()
def fails(): raise RuntimeError
def last(): (place / "last").touch()
for cleanup in (first, fails, last, first): processes.add_cleanup(cleanup)
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
    assert end(tmp_path, "processes.remove_cleanup(first)") == (-signal.SIGTERM, ["last"])


def test_a_handler_that_is_there_already_stays_in_charge(tmp_path):
    more = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3)); processes.add_cleanup(last)"
    assert end(tmp_path, more) == (3, [])


@pytest.mark.parametrize("number", processes.SIGNALS)
def test_without_anything_to_clean_up_signals_mean_what_they_did(number):
    before = signal.getsignal(number)
    cleanup = lambda: None  # noqa: E731
    processes.add_cleanup(cleanup)
    processes.remove_cleanup(cleanup)
    assert signal.getsignal(number) in (before, signal.SIG_DFL)
