"""Tools are asked, and neither a hanging tool nor its children are waited for."""

import os
import time

import pytest

from smallfiles.machine.asking import ask


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Put a shell script on the PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    (tmp_path / "bin").mkdir()

    def write(name, script):
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    return write


def alive(pid_file):
    """Whether the process whose number is in a file still runs."""
    try:
        os.kill(int(pid_file.read_text()), 0)
    except ProcessLookupError:
        return False
    return True


def test_an_answer_is_returned_without_what_went_to_standard_error(tool):
    tool("lfs", 'echo "$LC_ALL $1"; echo trouble >&2')
    assert ask(("lfs", "df")) == "C df\n"


def test_a_tool_that_is_missing_fails_or_cannot_be_started_is_no_answer(tool):
    assert ask(("no-such-tool",)) is None
    tool("lfs", "echo half; exit 2")
    assert ask(("lfs",)) is None
    tool("quota", "").write_bytes(b"\x7fELF but not really")
    assert ask(("quota",)) is None


def test_a_tool_that_hangs_is_killed_with_its_children(tool, tmp_path):
    tool("lfs", f"sleep 60 & echo $! > {tmp_path}/pid; echo half; wait")
    began = time.monotonic()
    assert ask(("lfs",), timeout_s=0.5) is None
    assert time.monotonic() - began < 5
    until = time.monotonic() + 5
    while alive(tmp_path / "pid") and time.monotonic() < until:
        time.sleep(0.02)
    assert not alive(tmp_path / "pid")


def test_children_that_a_tool_leaves_behind_are_not_waited_for(tool, tmp_path):
    tool("lfs", f"sleep 30 & echo $! > {tmp_path}/pid; echo done")
    began = time.monotonic()
    assert ask(("lfs",), timeout_s=10) == "done\n"
    assert time.monotonic() - began < 8
    os.kill(int((tmp_path / "pid").read_text()), 9)


def test_without_time_nothing_is_asked(tool, tmp_path):
    tool("lfs", f"touch {tmp_path}/asked")
    assert ask(("lfs",), timeout_s=0) is None and not (tmp_path / "asked").exists()


def test_what_is_printed_need_not_be_text(tool):
    tool("lfs", r"printf '\377\376 4\n'")
    assert ask(("lfs",)).endswith(" 4\n")
