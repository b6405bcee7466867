"""The command line of pysquashfs: data on standard output, sentences on standard error, exit codes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from programs import wait_for
from squashfs_crafted import craft, file, folder
from squashfs_peers import folder_bytes
from squashfs_trees import content

from pysquashfs import cli, pack

ITEMS = {"a/1": b"one", "a/b/2": content(3_000_000, "text"), "z": b"", "é": b"utf-8"}
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parent.parent)}


@pytest.fixture
def image(tmp_path):
    return pack(tmp_path / "x.sqfs", ITEMS.items(), compression="gzip").path


def run(*words, **options):
    command = [sys.executable, "-m", "pysquashfs", *map(str, words)]
    return subprocess.run(command, capture_output=True, timeout=60, **{"env": ENVIRONMENT, **options})


@pytest.fixture
def call(capfd):
    """Run a command line in this process: exit code, standard output, standard error."""

    def run_here(*words):
        code = cli.main([str(word) for word in words])
        return code, *capfd.readouterr()

    return run_here


def test_help_is_quick_and_names_every_verb():
    done = run("--help")
    assert done.returncode == 0
    for verb in ("list", "info", "pack", "mount", "verify"):
        assert f"\n    {verb} ".encode() in done.stdout
    code = "import sys, pysquashfs.cli as c; c.main(['--help']); print('numpy' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, check=True)
    assert found.stdout.endswith(b"False\n")


@pytest.mark.parametrize("words", [[], ["frobnicate"], ["list"], ["pack", "x"], ["list", "x", "--no"]])
def test_a_command_line_that_makes_no_sense_is_2(call, words):
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert "usage:" in err


def test_list_shows_what_is_there(call, image):
    assert call("list", image) == (0, "a\na/1\na/b\na/b/2\nz\né\n", "")
    assert call("list", image, "a/") == (0, "a/1\na/b\na/b/2\n", "")
    entries = json.loads(call("list", image, "--json")[1])["entries"]
    assert [entry["path"] for entry in entries] == ["a", "a/1", "a/b", "a/b/2", "z", "é"]
    assert entries[1]["size"] == 3


def test_what_a_terminal_would_obey_is_escaped_and_json_is_exact(call, tmp_path):
    names = [b"\x1b[31mred", b"two\nlines", b"\xff"]
    (tmp_path / "x").write_bytes(craft(folder(*((name, file(b"x")) for name in names))))
    code, out, _ = call("list", tmp_path / "x")
    assert code == 0
    assert "\x1b" not in out and "\\x1b[31mred" in out and "two\\nlines" in out
    found = json.loads(call("list", tmp_path / "x", "--json")[1])["entries"]
    assert {os.fsencode(entry["path"]) for entry in found} == set(names)


def test_info_tells_how_an_image_is_made(call, image):
    code, out, err = call("info", image)
    assert (code, err) == (0, "")
    assert "compressor          gzip" in out and "bytes               3,000,008" in out
    facts = json.loads(call("info", image, "--json")[1])
    assert (facts["files"], facts["bytes"], facts["compressor"]) == (4, 3_000_008, "gzip")


def test_pack_takes_every_setting(call, tmp_path):
    (tmp_path / "d/e").mkdir(parents=True)
    (tmp_path / "d/e/f").write_bytes(content(10_000, "text"))
    (tmp_path / "d/twin").symlink_to("e/f")
    words = ["--compression", "zstd", "--level", "5", "--block-bytes", "4096", "--fragments"]
    code, out, err = call("pack", tmp_path / "d", tmp_path / "x.sqfs", *words, "--json")
    assert (code, err, json.loads(out)["files"], json.loads(out)["bytes"]) == (0, "", 2, 20_000)
    facts = json.loads(call("info", tmp_path / "x.sqfs", "--json")[1])
    assert (facts["compressor"], facts["block_bytes"], facts["fragments"]) == ("zstd", 4096, 1)
    assert (facts["files"], facts["bytes"]) == (2, 20_000)
    assert call("pack", tmp_path / "d", tmp_path / "x.sqfs")[0] == 1
    assert call("pack", tmp_path / "d", tmp_path / "x.sqfs", "--overwrite")[0] == 0
    assert call("pack", tmp_path / "d", tmp_path / "y.sqfs", "--block-bytes", "5")[0] == 1


def test_pack_refuses_what_it_cannot_keep(call, tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d/link").symlink_to(".", target_is_directory=True)
    code, _, err = call("pack", tmp_path / "d", tmp_path / "x.sqfs")
    assert code == 1 and "link is a link that is broken or leads to a folder" in err
    (tmp_path / "d/link").unlink()
    os.mkfifo(tmp_path / "d/pipe")
    assert "pipe is a device, pipe or socket" in call("pack", tmp_path / "d", tmp_path / "x.sqfs")[2]
    assert "cannot be read" in call("pack", tmp_path / "nowhere", tmp_path / "x.sqfs")[2]
    assert os.listdir(tmp_path) == ["d"]


def test_verify_fails_for_a_damaged_image(call, image):
    code, out, err = call("verify", image)
    assert (code, out) == (0, "") and err.startswith("4 files read, 0 faults: 3,000,008 bytes")
    data = bytearray(image.read_bytes())
    data[2000:2100] = bytes(100)
    image.write_bytes(data)
    code, out, err = call("verify", image, "--json")
    assert (code, json.loads(out)["ok"]) == (1, False)
    assert "damaged: a/b/2: " in err


def test_failures_are_one_sentence_and_1(call, tmp_path):
    (tmp_path / "noise").write_bytes(os.urandom(5000))
    for words in (["list", tmp_path / "no"], ["info", tmp_path / "noise"], ["verify", tmp_path]):
        code, out, err = call(*words)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert err.startswith("error: ") and "expected" in err


def test_a_bug_is_told_as_one_and_debug_shows_where(call, image, monkeypatch):
    monkeypatch.setattr(cli, "_open", lambda *_: 1 / 0)
    code, _, err = call("list", image)
    assert code == 1 and "this is a bug (ZeroDivisionError" in err and "Traceback" not in err
    assert "Traceback" in call("list", image, "--debug")[2]


def test_a_reader_that_stops_early_is_no_failure(tmp_path):
    pack(tmp_path / "many.sqfs", ((f"{i:06d}", b"") for i in range(50_000)))
    command = [sys.executable, "-m", "pysquashfs", "list", str(tmp_path / "many.sqfs")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT)
    process.stdout.read(10)
    process.stdout.close()
    assert (process.stderr.read(), process.wait(timeout=60)) == (b"", 141)
    process.stderr.close()


def test_names_are_shown_where_the_terminal_knows_ascii_only(image):
    done = run("list", image, env={**ENVIRONMENT, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, b"\\xe9")


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_mount_that_is_stopped_as_soon_as_it_is_there_goes(image, tmp_path, stop):
    if not os.access("/dev/fuse", os.W_OK) and os.geteuid() != 0:
        pytest.skip("no way to mount here")
    command = [sys.executable, "-m", "pysquashfs", "mount", str(image), str(tmp_path / "m")]
    for _ in range(3):
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
        ) as process:
            process.stdout.readline()
            process.send_signal(stop)
            assert process.wait(timeout=30) == 0
        assert not os.path.ismount(tmp_path / "m")


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_mount_shows_a_folder_until_it_is_stopped(image, tmp_path, stop):
    if not os.access("/dev/fuse", os.W_OK) and os.geteuid() != 0:
        pytest.skip("no way to mount here")
    command = [sys.executable, "-m", "pysquashfs", "mount", str(image), str(tmp_path / "m"), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT)
    try:
        lines = [process.stdout.readline() for _ in range(4)]
        shown = json.loads(b"".join(lines))
        assert shown == {"image": str(image), "folder": str(tmp_path / "m")}
        assert folder_bytes(tmp_path / "m") == ITEMS
        process.send_signal(stop)
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.communicate()
    assert not os.path.ismount(tmp_path / "m")
    wait_for(lambda: not (tmp_path / "m").exists(), 10)
