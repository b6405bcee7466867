"""Programs in processes of their own that begin at once: forked, so that nothing is imported again."""

import contextlib
import ctypes
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

NO_MOUNT = 111


class Program:
    """A function that runs as a program: with an exit code, and with files for what it says.

    Args:
        function: What to run; it returns an exit code or none.
        words: Its arguments.
        environment: What its environment has besides ours.
        method: "fork": off this process. "forkserver": off one that computed nothing (`imported`), where
            the function uses the threads of torch.
    """

    def __init__(self, function, *words, environment=None, method="fork"):
        self.folder = tempfile.TemporaryDirectory()
        for number in "12":
            Path(self.folder.name, number).touch()
        context = multiprocessing.get_context(method)
        given = (self.folder.name, environment or {}, function, words)
        self.process = context.Process(target=_run, args=given)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside pytest's threads
            self.process.start()
        self.pid = self.process.pid

    def wait(self, limit_s=100.0):
        """Its exit code; to join it would wait for its children too."""
        wait_for(lambda: self.process.exitcode is not None, limit_s)
        return self.process.exitcode

    def kill(self, number=signal.SIGKILL):
        """End it by a signal; its exit code."""
        os.kill(self.pid, number)
        return self.wait()

    def end(self):
        """See that nothing of it is left."""
        if self.process.is_alive():
            self.kill()
        self.process.close()
        self.folder.cleanup()

    @property
    def out(self):
        """What it wrote to standard output so far."""
        return Path(self.folder.name, "1").read_text()

    @property
    def errors(self):
        """What it wrote to standard error so far."""
        return Path(self.folder.name, "2").read_text()


def _run(folder, environment, function, words):
    for number in (1, 2):
        os.dup2(os.open(f"{folder}/{number}", os.O_WRONLY | os.O_APPEND), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
    os.environ |= environment
    sys.exit(function(*words))


def on_small_disk(place, options, function, *words):
    """Run a program that alone sees a small tmpfs at `place`; its last line says what it left there."""
    place.mkdir(exist_ok=True)
    program = Program(_mounted, place, options, function, words)
    try:
        code = program.wait()
        if code == NO_MOUNT:
            pytest.skip("this system lets nobody mount a small file system of his own")
        return subprocess.CompletedProcess(words, code, program.out, program.errors)
    finally:
        program.end()


def _mounted(place, options, function, words):
    libc, user, group = ctypes.CDLL(None), os.geteuid(), os.getegid()
    if libc.unshare(0x10020000):  # CLONE_NEWUSER and CLONE_NEWNS
        return NO_MOUNT
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        Path("/proc/self", name).write_text(text)
    if libc.mount(b"none", os.fsencode(place), b"tmpfs", ctypes.c_ulong(0), options.encode()):
        return NO_MOUNT
    code = function(*words)
    print("left", sorted(path.name for path in place.iterdir()))
    return code


def bound_by_modes(function, *words):
    """Call it where the modes of files bind root as they bind anyone: in a thread without capabilities."""
    with ThreadPoolExecutor(1) as one_thread:
        one_thread.submit(_drop_capabilities).result()
        return one_thread.submit(function, *words).result()


def _drop_capabilities():
    version_3, none = (ctypes.c_uint32 * 2)(0x20080522), (ctypes.c_uint32 * 6)()
    assert ctypes.CDLL(None).capset(version_3, none) == 0


@contextlib.contextmanager
def imported(*modules, environment):
    """What the method "forkserver" forks off while the block runs has this environment and these modules."""
    server, before = multiprocessing.forkserver._forkserver, dict(os.environ)
    server._stop()  # one that others started has other modules
    server.set_forkserver_preload(list(modules))
    try:
        _become(environment)
        server.ensure_running()
        _become(before)
        yield
    finally:
        server._stop()
        server.set_forkserver_preload(["__main__"])


def _become(environment):
    os.environ.clear()
    os.environ.update(environment)


def wait_for(condition, limit_s=100.0):
    """Wait until something is so."""
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.005)
