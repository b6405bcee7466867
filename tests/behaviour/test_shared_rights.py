"""A set that a group shares: one user packs it, another reads, annotates, copies, and completes it."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from smallfiles.sources import synthetic

GROUP, OWNER, MEMBER, STRANGER = 62000, 61001, 61002, 61003  # numbers: nobody needs an account for them


@pytest.fixture(scope="module")
def place():
    """A folder that all may enter, with a data set, a table of scores, and the folder of a group."""
    if os.geteuid() != 0:
        pytest.skip("two other users need root")
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    synthetic.make(place / "set", "folder", count=24, classes=3, size=(40, 32))
    keys = sorted(str(path.relative_to(place / "set")) for path in (place / "set").rglob("*.jpg"))
    rows = "".join(f"{key},{row}\n" for row, key in enumerate(keys))
    (place / "scores.csv").write_text(f"filename,score\n{rows}")
    (place / "data").mkdir()
    shutil.chown(place / "data", OWNER, GROUP)
    (place / "data").chmod(0o2770)
    subprocess.run(["chmod", "-R", "a+rX", place / "set", place / "scores.csv"], check=True)
    yield place
    shutil.rmtree(place)


@pytest.fixture(scope="module")
def run(place, repository, need_tool):
    """Run the command as a user with a umask; its exit code, and what it says."""
    setpriv = need_tool("setpriv", "util-linux")
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    environment = {"PATH": os.environ["PATH"], "HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"}
    environment["PYTHONPATH"] = os.pathsep.join((str(repository), packages))

    def as_user(user, umask, *command):
        groups = "--clear-groups" if user == STRANGER else f"--groups={GROUP}"
        words = [setpriv, f"--reuid={user}", f"--regid={user}", groups, *map(str, command)]
        how = {"capture_output": True, "text": True, "umask": umask, "env": environment, "cwd": place}
        done = subprocess.run(words, check=False, **how)
        return done.returncode, done.stdout + done.stderr

    pythons = (sys.executable, "/usr/bin/python3")
    check = ("-c", "import pyarrow, smallfiles")
    usable = [each for each in pythons if as_user(MEMBER, 0o022, each, *check)[0] == 0]
    if not usable:
        pytest.skip("no Python here that another user may run")
    return lambda user, umask, *words: as_user(user, umask, usable[0], "-m", "smallfiles", *words)


@pytest.mark.parametrize(("umask", "reads", "writes"), [(0o077, 1, 1), (0o022, 0, 1), (0o002, 0, 0)])
def test_the_umask_of_the_user_who_packs_decides_what_the_group_may_do(place, run, umask, reads, writes):
    out, scores = place / f"data/x{umask:o}.arrow", place / "scores.csv"
    assert run(OWNER, umask, "pack", place / "set", out)[0] == 0
    assert {path.stat().st_gid for path in out.parent.iterdir()} == {GROUP}
    for words in (
        ("verify", out),
        ("annotate", out, scores, "--key", "filename"),
        ("stage", out, "--to", out.with_suffix(".copy")),
    ):
        code, said = run(MEMBER, umask, *words)
        assert code == reads and ("(Permission denied)" in said) is bool(reads), said
        assert "NOT intact" not in said and "delete it" not in said, said
    parts = place / f"data/parts{umask:o}.arrow"
    assert run(OWNER, umask, "pack", place / "set", parts, "--part", "1/2")[0] == 0
    code, said = run(MEMBER, umask, "pack", place / "set", parts, "--part", "2/2")
    assert code == writes and ("Permission denied" in said) is bool(writes), said
    assert run(OWNER if writes else MEMBER, umask, "pack", place / "set", parts, "--merge")[0] == writes


def test_who_is_not_in_the_group_is_told_so_and_nobody_overwrites_a_set(place, run):
    out = place / "data/mine.arrow"
    assert run(OWNER, 0o002, "pack", place / "set", out)[0] == 0
    for words in (("verify", out), ("inspect", out)):
        code, said = run(STRANGER, 0o022, *words)
        assert code == 1 and "Permission denied" in said and "intact" not in said, said
    assert (
        "cannot be written (Permission denied)"
        in run(STRANGER, 0o022, "pack", place / "set", place / "x.arrow")[1]
    )
    assert "finished output is never overwritten" in run(MEMBER, 0o002, "pack", place / "set", out)[1]
