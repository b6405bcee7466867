"""Requests are counted from the counters of the storage, and elsewhere from the calls of this process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from smallfiles import measure
from smallfiles.measure import counting
from smallfiles.measure.counting import CALLS

RECORDED = Path(__file__).with_name("recorded")


def recorded(name):
    return (RECORDED / name).read_text(encoding="ascii")


def test_counters_of_nfs_that_others_recorded():
    third = counting.of_nfs(recorded("nfs3_mountstats"), "/mnt/foo")
    assert (third["lookups"], third["reads"], third["bytes"]) == (107098086, 53009339, 168817843723)
    assert "opens" not in third  # NFS 3 has none
    others = 2464505780 + 1354537936 + 283001978 + 22 + 26419585 + 398 + 3 + 1
    assert third["metadata"] == third["lookups"] + others
    fourth = counting.of_nfs(recorded("nfs4_mountstats"), "/mnt/nfsv4")
    assert fourth == {"lookups": 0, "opens": 0, "metadata": 14, "reads": 0, "bytes": 0}
    with pytest.raises(StopIteration):
        counting.of_nfs(recorded("nfs4_mountstats"), "/mnt")


def test_counters_of_lustre_that_others_recorded():
    calls, servers = recorded("lustre_llite_stats"), [recorded("lustre_mdc_stats")]
    counts = counting.of_lustre(calls, servers)
    assert counts == {"opens": 136, "metadata": 7604, "reads": 1, "bytes": 4194304}
    assert "metadata" not in counting.of_lustre(calls)
    fresh = calls.splitlines()[0]  # a counter gets its line when it counts for the first time
    assert counting.of_lustre(fresh) == {"opens": 0, "reads": 0, "bytes": 0}


def test_lustre_is_found_by_its_name_and_left_alone_if_two_are_mounted(tmp_path, monkeypatch):
    mount = counting.Mount("/", "/data", "lustre", "172.20.20.1@o2ib:/lustrefs", frozenset())
    monkeypatch.setattr(counting, "_LUSTRE", (str(tmp_path / "none"), str(tmp_path)))
    for home, name in (
        ("llite/lustrefs-ffff88105db50000", "lustre_llite_stats"),
        ("mdc/lustrefs-MDT0000-mdc-ffff88105db50000", "lustre_mdc_stats"),
        ("llite/other-ffff88105db50000", "lustre_llite_stats"),
    ):
        (tmp_path / home).mkdir(parents=True)
        (tmp_path / home / "stats").write_text(recorded(name))
    monkeypatch.setattr(counting, "mount_of", lambda *words: mount)
    with measure.requests(Path("/data")) as asked:
        pass
    assert asked.counts == {"opens": 0, "metadata": 0, "reads": 0, "bytes": 0}
    assert "Lustre" in str(asked) and "all programs of this node" in str(asked)
    (tmp_path / "llite/lustrefs-ffff88105db50001").mkdir()
    (tmp_path / "llite/lustrefs-ffff88105db50001/stats").touch()
    with measure.requests(Path("/data")) as asked:
        pass
    assert asked.unit == CALLS


def test_elsewhere_the_calls_of_this_process_are_counted(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"x" * 10_000)
    with measure.requests(tmp_path) as asked:
        assert asked.counts == {}
        (tmp_path / "a").read_bytes()
        os.close(os.open(tmp_path / "b", os.O_RDONLY))
        Path("/proc/self/stat").read_text()  # not in the folder
        with measure.system_calls() as inner:
            (tmp_path / "a").read_bytes()
    assert (asked["opens"], inner["opens"]) == (3, 1)
    assert 20_000 <= asked["bytes"] < 30_000 and asked["reads"] >= 2 and asked["lookups"] == 0
    assert asked.per_1000(6)["opens"] == 500
    assert str(asked).startswith("3 opens, ") and CALLS in str(asked) and "this process" in str(asked)
    (tmp_path / "a").read_bytes()
    assert asked["opens"] == 3


def test_an_open_in_a_folder_that_is_gone_does_not_fail_because_it_is_counted(tmp_path):
    code = (
        "import os, pathlib, sys; from smallfiles import measure\n"
        f"os.chdir({str(tmp_path / 'gone')!r}); home = os.open({str(tmp_path)!r}, os.O_RDONLY)\n"
        "os.rmdir(os.getcwd())\n"
        f"with measure.system_calls(pathlib.Path({str(tmp_path)!r})) as asked:\n"
        "    os.close(os.open('there', os.O_RDONLY, dir_fd=home))\n"
        "print(asked)"
    )
    (tmp_path / "gone").mkdir()
    (tmp_path / "there").touch()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("0 opens"), done.stderr
