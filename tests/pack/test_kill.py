"""Kill -9 at any moment: what is there afterwards is nothing, or complete and verified."""

import os
import random
import shutil
import signal
import time

import pytest
from packing import FORMATS, contents, make_tree

from smallfiles import formats, sources
from smallfiles.errors import OutputExistsError
from smallfiles.pack import PackConfig, pack, verify


def options_of(name):
    return formats.get("tar").Options(max_count=16) if name == "tar" else None


def in_child(source, out, config):
    """Pack in a forked child; the parent gets its pid."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            pack(source, out, config)
            status = 0
        finally:
            os._exit(status)
    return pid


def seconds_of(source, out, config):
    started = time.perf_counter()
    _, status = os.waitpid(in_child(source, out, config), 0)
    assert status == 0
    return time.perf_counter() - started


def kill_once(source, out, config, longest_s):
    """Kill a run at a random moment; False if it was faster than we."""
    pid = in_child(source, out, config)
    time.sleep(random.uniform(0, longest_s))
    os.kill(pid, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def looks_finished(out):
    """Names that a user could take for output; sidecars alone are none."""
    names = [path.name for path in out.parent.iterdir() if not path.name.startswith(".")]
    return [name for name in names if not name.endswith((".digest.json", ".index.arrow"))]


def run_kills(name, tmp_path, wanted):
    """Kill packs, several times each, until `wanted` were really killed; all end in the same bytes."""
    source = sources.load(make_tree(tmp_path / "tree", 60, size=20_000))
    config = PackConfig(in_flight=4, verify="full", options=options_of(name), shuffle=1)
    (tmp_path / "calm").mkdir()
    calm = tmp_path / "calm" / FORMATS[name]
    longest_s = seconds_of(source, calm, config)
    killed = number = 0
    while killed < wanted:
        number += 1
        folder = tmp_path / f"round {number}"
        folder.mkdir()
        out = folder / FORMATS[name]
        for _ in range(4):
            killed += kill_once(source, out, config, longest_s)
            if out.exists():
                break
            assert looks_finished(out) == []
        if out.exists():  # published before we came: then it must be whole
            assert verify(out, source).intact
            with pytest.raises(OutputExistsError):
                pack(source, out, config)
        else:
            pack(source, out, config)
        assert contents(out) == contents(calm)
        assert not [path for path in folder.iterdir() if path.name.startswith(".")]
        shutil.rmtree(folder)
    return killed


@pytest.mark.parametrize("name", FORMATS)
def test_a_killed_pack_never_looks_finished_and_the_next_run_completes_it(name, tmp_path):
    print(f"{name}: {run_kills(name, tmp_path, wanted=4)} kills, none looked finished")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", FORMATS)
def test_hundreds_of_kills_lose_nothing(name, tmp_path):
    print(f"{name}: {run_kills(name, tmp_path, wanted=300)} kills, none looked finished")
