"""A process that runs is never taken for dead because its lock could be had; one that ended is, at once.

One machine may mount a file system twice, each time with locks of its own (one mount per container). There
`flock` succeeds although another process has the lock. A `sitecustomize` shows that here: it makes `flock`
succeed always, and lets a program stop at a certain call.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from programs import wait_for

ROOT = Path(__file__).resolve().parents[2]
HOOKS = """
import os, sys, time
if os.environ.get("BLIND"):
    import fcntl
    fcntl.flock = lambda descriptor, operation: None
if os.environ.get("HOLD"):
    name, waits, go = os.environ["HOLD"].split(":")
    original, first = getattr(os, name), [True]
    def held(*words, **more):
        if first.pop() if first else False:
            open(waits, "w").close()
            while not os.path.exists(go):
                time.sleep(0.01)
        return original(*words, **more)
    setattr(os, name, held)
"""


class Programs:
    """Programs that see the locks of others or are blind to them, and that wait at a call of `os`."""

    def __init__(self, folder):
        self.folder, self.running = folder, list[subprocess.Popen[str]]()
        (folder / "hooks").mkdir()
        (folder / "hooks" / "sitecustomize.py").write_text(HOOKS)
        self.waits, self.go = folder / "waits", folder / "go"

    def begin(self, *words, blind=False, hold="", before=(), **more):
        paths = os.pathsep.join([str(self.folder / "hooks"), str(ROOT), str(ROOT / "tests")])
        around = {**os.environ, "PYTHONPATH": paths, **more}
        around |= {"BLIND": "1"} if blind else {}
        around |= {"HOLD": f"{hold}:{self.waits}:{self.go}"} if hold else {}
        command = [*before, sys.executable, *map(str, words)]
        program = subprocess.Popen(
            command,
            env=around,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.running.append(program)
        if hold:
            wait_for(lambda: self.waits.exists() or program.poll() is not None)
            assert self.waits.exists(), program.communicate()
        return program

    def end(self, program):
        out, errors = program.communicate(timeout=100)
        return program.returncode, out + errors

    def run(self, *words, blind=True, **more):
        return self.end(self.begin(*words, blind=blind, **more))

    def release(self, program):
        self.go.touch()
        return self.end(program)


@pytest.fixture
def programs(tmp_path):
    found = Programs(tmp_path)
    yield found
    for program in found.running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.communicate(timeout=30)


@pytest.fixture
def data(tmp_path):
    for number in range(12):
        folder = tmp_path / "data" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.bin").write_bytes(bytes([number]) * 3000)
    return tmp_path / "data"


@pytest.fixture
def packed(data, tmp_path):
    out = tmp_path / "a set.arrow"
    smallfiles = [sys.executable, "-m", "smallfiles"]
    subprocess.run([*smallfiles, "pack", data, out, *BINARY], check=True, capture_output=True, cwd=ROOT)
    return out


PACK = ("-m", "smallfiles", "pack")
BINARY = ("--suffix", ".bin")
STAGE = ("-m", "smallfiles", "stage")


@pytest.fixture(params=["here", pytest.param("in a container", marks=pytest.mark.slow)])
def before(request):
    """Words before a program that give it process numbers of its own, as a container does; or none."""
    if request.param == "here":
        return ()
    inside = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    inside = inside if os.geteuid() == 0 else (*inside, "--user", "--map-root-user")
    with contextlib.suppress(OSError):
        if subprocess.run([*inside, "true"], capture_output=True, timeout=20).returncode == 0:
            return inside
    pytest.skip("this system gives nobody process numbers of his own")


def test_a_pack_that_runs_is_not_taken_over_by_one_that_can_have_its_lock(programs, data, tmp_path, before):
    out = tmp_path / "out.arrow"
    first = programs.begin(*PACK, data, out, *BINARY, hold="fsync", before=before)
    code, said = programs.run(*PACK, data, out, *BINARY)
    assert code == 1 and "another run is packing" in said and (before or f"process {first.pid}" in said)
    assert programs.release(first)[0] == 0
    assert out.exists()


def test_a_pack_that_was_killed_is_followed_at_once(programs, data, tmp_path):
    out = tmp_path / "out.arrow"
    first = programs.begin(*PACK, data, out, *BINARY, hold="fsync")
    first.kill()
    first.wait()
    began = time.monotonic()
    code, said = programs.run(*PACK, data, out, *BINARY, blind=False)
    assert code == 0, said
    assert time.monotonic() - began < 20  # the lease of another machine is watched for a minute


def test_a_pack_that_was_stopped_for_a_while_goes_on(programs, data, tmp_path):
    """A scheduler that suspends a job stops its heartbeat too; the process is there all the same."""
    out = tmp_path / "out.arrow"
    first = programs.begin(*PACK, data, out, *BINARY, hold="fsync")
    first.send_signal(signal.SIGSTOP)
    lease = tmp_path / ".out.arrow.packing" / "owner.json"
    os.utime(lease, (1, 1))
    code, said = programs.run(*PACK, data, out, *BINARY)
    assert code == 1 and "another run is packing" in said
    first.send_signal(signal.SIGCONT)
    assert programs.release(first)[0] == 0


def test_a_copy_that_is_being_made_is_not_begun_again(programs, packed, tmp_path, before):
    node = tmp_path / "a node"
    node.mkdir()
    stage = (*STAGE, packed, "--where", node)
    first = programs.begin(*stage, hold="rename", before=before)
    half = {path: path.stat().st_ino for path in node.rglob("*.arrow")}
    second = programs.begin(*stage, blind=True)
    time.sleep(3)
    assert second.poll() is None, second.communicate()
    assert half and {path: path.stat().st_ino for path in node.rglob("*.arrow")} == half
    assert programs.release(first)[0] == 0
    assert programs.end(second)[0] == 0
    assert programs.run("-m", "smallfiles", "unstage", "--where", node, blind=False)[0] == 0


USES = """
import os, sys, time
from smallfiles import staging
with staging.staged(sys.argv[1], sys.argv[2]) as copy:
    open(sys.argv[3], "w").close()
    while not os.path.exists(sys.argv[4]):
        time.sleep(0.01)
    assert copy.path.exists(), "the copy was removed while it was used"
"""


@pytest.mark.parametrize("how", ["sweep", "the last one out"])
def test_a_copy_stays_while_a_process_uses_it(how, programs, packed, tmp_path):
    node = tmp_path / "node"
    node.mkdir()
    first = programs.begin("-c", USES, packed, node, programs.waits, programs.go)
    wait_for(lambda: programs.waits.exists() or first.poll() is not None)
    if how == "sweep":
        code, said = programs.run("-m", "smallfiles", "staged", "--sweep", "--where", node)
        assert code == 0, said
    else:
        (tmp_path / "gone").touch()
        code, said = programs.run("-c", USES, packed, node, tmp_path / "waits too", tmp_path / "gone")
        assert code == 0, said
    assert [*node.rglob("*.arrow")]
    code, said = programs.release(first)
    assert code == 0, said
    assert [*node.iterdir()] == []


def test_a_copy_of_a_killed_process_is_removed_at_once(programs, packed, tmp_path):
    node = tmp_path / "node"
    node.mkdir()
    first = programs.begin("-c", USES, packed, node, programs.waits, programs.go)
    wait_for(programs.waits.exists)
    first.kill()
    first.wait()
    assert programs.run("-m", "smallfiles", "staged", "--sweep", "--where", node, blind=False)[0] == 0
    assert [*node.iterdir()] == []


def test_after_an_exec_the_process_itself_does_not_count_as_a_user(programs, packed, tmp_path):
    """A program that starts itself again keeps its number and its start time."""
    node = tmp_path / "node"
    node.mkdir()
    again = """
import os, sys
from smallfiles import staging
staging.stage(sys.argv[1], sys.argv[2])
if len(sys.argv) == 3:
    os.execv(sys.executable, [sys.executable, sys.argv[0], *sys.argv[1:], "again"])
"""
    (tmp_path / "again.py").write_text(again)
    code, said = programs.run(tmp_path / "again.py", packed, node, blind=False)
    assert (code, [*node.iterdir()]) == (0, []), said


def test_a_folder_of_a_measurement_that_runs_stays(programs, tmp_path):
    """Test `profile` and `bench`: TMPDIR may be on storage that is mounted twice."""
    place = tmp_path / "tmp"
    place.mkdir()
    wait = "import os, sys, time\nopen(sys.argv[1], 'w').close()\n"
    wait += "while not os.path.exists(sys.argv[2]): time.sleep(0.01)\nraise SystemExit(5)\n"
    profile = ("-m", "smallfiles", "profile", "--", sys.executable, "-c", wait, programs.waits, programs.go)
    first = programs.begin(*profile, TMPDIR=str(place))
    wait_for(programs.waits.exists)
    there = [*place.iterdir()]
    programs.run("-m", "smallfiles", "profile", "--", "true", TMPDIR=str(place))
    assert there and [*place.iterdir()] == there
    assert programs.release(first)[0] == 5
    assert [*place.iterdir()] == []


def test_a_ring_that_is_filled_is_neither_removed_nor_filled_twice(programs, tmp_path):
    pytest.importorskip("torch")
    from PIL import Image

    for number in range(8):
        path = tmp_path / "photos" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (number, 0, 0)).save(path)
    where, out = tmp_path / "memory", tmp_path / "photos.arrow"
    where.mkdir()
    assert programs.run(*PACK, tmp_path / "photos", out)[0] == 0
    fill = ("-m", "smallfiles", "ring", "fill", out, "--where", where, "--batch", 2, "--size", 32)
    first = programs.begin(*fill)
    wait_for(lambda: first.poll() is not None or bool([*where.rglob("train.json")]))
    assert first.poll() is None, first.communicate()
    files = {path: path.lstat().st_ino for path in where.rglob("*")}
    code, said = programs.run("-m", "smallfiles", "ring", "clean", "--where", where)
    assert (code, "in use and stays" in said) == (0, True), said
    code, said = programs.run(*fill)
    assert code == 1 and "is there already" in said
    assert {path: path.lstat().st_ino for path in where.rglob("*")} == files
    first.send_signal(signal.SIGTERM)
    assert programs.end(first)[0] == 0
    assert [*where.iterdir()] == []


def test_two_who_add_a_column_at_once_add_it_once(programs, packed, tmp_path):
    """The second would find no such field, as the first has not published it yet."""
    rows = [f"{name}/{number}.bin,{number}" for number in range(12) for name in "ab"[number % 2]]
    for name in ("one", "two", "three"):
        column = "score" if name != "three" else "another"
        (tmp_path / f"{name}.csv").write_text("\n".join([f"filename,{column}", *rows, ""]))
    annotate = ("-m", "smallfiles", "annotate", packed)
    first = programs.begin(*annotate, tmp_path / "one.csv", "--key", "filename", hold="fsync")
    code, said = programs.run(*annotate, tmp_path / "two.csv", "--key", "filename", blind=False)
    assert code == 1 and "another run" in said and str(packed) in said, said
    assert programs.release(first)[0] == 0
    code, said = programs.run(*annotate, tmp_path / "two.csv", "--key", "filename", blind=False)
    assert code == 2 and "already" in said
    code, said = programs.run(*annotate, tmp_path / "three.csv", "--key", "filename", blind=False)
    assert code == 0, said
    from smallfiles import formats

    with contextlib.closing(formats.open(packed)) as reader:
        values: pa.Table = reader.table(["score", "another"])
    assert values.num_rows == 12
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_of_two_who_write_a_manifest_at_once_one_is_refused(programs, data, tmp_path):
    """Both find the name free; the second would replace what the first has written."""
    (tmp_path / "less" / "a").mkdir(parents=True)
    (tmp_path / "less" / "a" / "1.bin").write_bytes(b"1")
    out = tmp_path / "a list.json"
    manifest = ("-m", "smallfiles", "manifest")
    first = programs.begin(*manifest, data, "-o", out, *BINARY, hold="fsync")
    code, said = programs.run(*manifest, tmp_path / "less", "-o", out, *BINARY, blind=False)
    assert code == 1 and "another run is writing" in said, said
    assert programs.release(first)[0] == 0
    assert '"a/0.bin"' in out.read_text() or "0.bin" in out.read_text()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []
