"""Quotas, from recorded answers of `lfs quota`, `mmlsquota -Y` and `quota -w -p`."""

import os
import time

import pytest

from smallfiles.machine import Quota, quota
from smallfiles.machine.filesystems import Mount
from smallfiles.machine.quotas import parse_lfs_quota, parse_mmlsquota, parse_quota

KIB = 1024
LUSTRE = """\
Disk quotas for usr {id} (uid {id}):
      Filesystem  kbytes   quota   limit   grace   files   quota   limit   grace
        /scratch 982177580       0 1000000000       - 443208       0  500000       -
uid {id} is using default file quota setting
"""
WRAPPED = """\
Disk quotas for prj 4242 (pid 4242):
     Filesystem  kbytes   quota   limit   grace   files   quota   limit   grace
/a/very/long/name/of/a/file/system
                5242880*  4194304 6291456  6d23h59m50s   [12]       0       0       -
"""
GPFS_HEADER = (
    "mmlsquota::HEADER:version:reserved:reserved:filesystemName:quotaType:id:name:blockUsage:blockQuota:"
    "blockLimit:blockInDoubt:blockGrace:filesUsage:filesQuota:filesLimit:filesInDoubt:filesGrace:remarks:"
    "quota:defQuota:fid:filesetname:\n"
)
GPFS = (
    GPFS_HEADER
    + "mmlsquota::0:1:::fs1:USR:1234:me:2097152:10485760:12582912:0:none:4000:0:500000:0:none:e:on:off:0::\n"
    + "mmlsquota::0:1:::fs1:GRP:500:lab:9999999:0:0:0:none:1:0:0:0:none:e:on:off:::\n"
    + "mmlsquota::0:1:::fs1:FILESET:7:my%3Aset:1048576:1048576:2097152:0:5 days:10:0:0:0:none:e:on:off:::\n"
    + "mmlsquota::0:1:::fs2:USR:1234:me:5:10:10:0:none:1:0:0:0:none:e:on:off:::\n"
)
LINUX = """\
Disk quotas for user me (uid 1234):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
/dev/mapper/vg-home 14684160* 14680064 20971520 1769812345  160021       0       0       0
server:/export/my\\040data 512  1000  2000       0    77     80      90       0
"""


def test_lfs_quota_is_read():
    (found,) = parse_lfs_quota(LUSTRE.format(id=1234), "user")
    assert found == Quota("user", 982177580 * KIB, 10**9 * KIB, 443208, 500000, "lfs quota")
    assert found.share == pytest.approx(0.982, abs=0.001)


def test_wrapped_lines_excesses_and_doubts_are_read():
    (found,) = parse_lfs_quota(WRAPPED, "project")
    assert found == Quota("project", 5242880 * KIB, 6291456 * KIB, 12, None, "lfs quota")


def test_mmlsquota_is_read_by_the_names_in_its_header():
    user, group, fileset = parse_mmlsquota(GPFS, "fs1")
    assert user == Quota("user", 2 << 30, 12 << 30, 4000, 500000, "mmlsquota")
    assert group.limit_bytes is None and group.limit_files is None and group.share == 0
    assert (fileset.holder, fileset.share) == ("fileset", 0.5)


def test_quota_is_read_for_the_mounted_device_or_server():
    def mount(source):
        return Mount("/", "/home", "ext4", source, frozenset())

    (home,) = parse_quota(LINUX, mount("/dev/mapper/vg-home"))
    assert home == Quota("user", 14684160 * KIB, 20971520 * KIB, 160021, None, "quota")
    assert home.share == pytest.approx(0.7, abs=0.01)
    assert list(parse_quota(LINUX, mount("/dev/sda1"))) == []


@pytest.mark.parametrize(
    "text", ["", "Disk quotas for user me (uid 1234): none\n", "nonsense\n" * 3, "::::\n"]
)
def test_no_quota_is_none(text):
    mount = Mount("/", "/", "ext4", "/dev/sda1", frozenset())
    assert list(parse_lfs_quota(text, "user")) == []
    assert list(parse_mmlsquota(text, "fs1")) == []
    assert list(parse_quota(text, mount)) == []


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A path on a file system of a kind, and tools that answer with recorded text."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")

    def mounted(kind, source):
        table = tmp_path / "mountinfo"
        table.write_text(f"1 0 0:1 / / rw - {kind} {source} rw\n")
        return table

    def tool(name, script):
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return mounted, tool, tmp_path


def test_on_lustre_the_tightest_of_user_group_and_project_counts(place):
    mounted, tool, path = place
    (path / "user").write_text(LUSTRE.format(id=os.getuid()))
    (path / "project").write_text(WRAPPED.replace("6291456 ", "5242881 "))
    tool(
        "lfs",
        f"""
        case "$1 $2" in
            "project -d") echo " 4242 P $3" ;;
            "quota -u") [ "$3" = {os.getuid()} ] && cat {path}/user ;;
            "quota -g") exit 1 ;;
            "quota -p") [ "$3" = 4242 ] && cat {path}/project ;;
        esac""",
    )
    found = quota(path / "not yet", table=mounted("lustre", "10.0.0.1@o2ib:/fs"))
    assert found is not None and found.holder == "project" and found.share > 0.99


def test_on_gpfs_its_own_file_system_counts(place):
    mounted, tool, path = place
    (path / "answer").write_text(GPFS)
    tool("mmlsquota", f'[ "$1" = -Y ] && cat {path}/answer')
    found = quota(path, table=mounted("gpfs", "/dev/fs2"))
    assert found == Quota("user", 5 * KIB, 10 * KIB, 1, None, "mmlsquota")


def test_elsewhere_quota_is_asked(place):
    mounted, tool, path = place
    (path / "answer").write_text(LINUX)
    tool("quota", f'[ "$1 $2" = "-w -p" ] && cat {path}/answer')
    found = quota(path, table=mounted("ext4", "/dev/mapper/vg-home"))
    assert found is not None and found.tool == "quota"


@pytest.mark.parametrize(("kind", "name"), [("lustre", "lfs"), ("gpfs", "mmlsquota"), ("nfs4", "quota")])
def test_tools_that_hang_cost_the_time_that_was_given_and_no_more(place, kind, name):
    mounted, tool, path = place
    tool(name, "sleep 60")
    began = time.monotonic()
    assert quota(path, timeout_s=0.4, table=mounted(kind, "x")) is None
    assert time.monotonic() - began < 4


def test_without_tools_limits_or_a_table_it_is_none(place):
    mounted, tool, path = place
    assert quota(path, table=mounted("lustre", "x")) is None
    assert quota(path, table=path / "none") is None
    tool("quota", "echo 'a a a grace'; echo 'x 5 0 0 0 3 0 0 0'")
    assert quota(path, table=mounted("ext4", "x")) is None
