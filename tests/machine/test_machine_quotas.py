"""Quotas and striping, from recorded answers; and no tool that hangs is waited for, nor its children."""

import dataclasses
import os

import pytest
from programs import wait_for

from smallfiles.cli import main
from smallfiles.machine import Quota, Striping, filesystem, quota, quota_note, striping, striping_note
from smallfiles.machine.filesystems import ask, parse_getstripe

KIB = 1024
# MILA is from a real cluster (quoted in mila-iqia/milatools, check_disk_quota). Other outputs of lfs, and
# those of mmlsquota and quota, have the layout of the manuals. None was tried live. MOOSEFS is from a run.
MILA = """\
Disk quotas for usr normandf (uid 1471600598):
     Filesystem  kbytes   quota   limit   grace   files   quota   limit   grace
/home/mila/n/normandf
                95747836       0 104857600       -  908722       0 1048576       -
uid 1471600598 is using default block quota setting
uid 1471600598 is using default file quota setting
"""
MOOSEFS = """\
/lab/node1/a b: (current values | soft quota | hard quota) ; soft quota grace period: default
 inodes   |                    0 |                    5 |                    - |
 length   |                    0 |                    - |                    - |
 size     |                    0 |           1073741824 |                    - |
 realsize |                    0 |           3221225472 |                    - |
/lab/node1/q: (current values | soft quota | hard quota) ; soft quota grace period: default
 inodes   |                    2 |                    - |                   20 |
 length   |                    0 |                    - |             10485760 |
 size     |                 8192 |                    - |                    - |
 realsize |                 8192 |                    - |                    - |
"""
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


@pytest.fixture
def place(tmp_path, tool):
    """A path on a file system of a kind, and tools that answer with recorded text."""

    def mounted(kind, source):
        table = tmp_path / "mountinfo"
        table.write_text(f"1 0 0:1 / / rw - {kind} {source} rw\n")
        return table

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
    assert found == Quota("project", 5242880 * KIB, 5242881 * KIB, 12, None, "lfs quota")
    (path / "project").write_text("nonsense")
    found = quota(path, table=mounted("lustre", "10.0.0.1@o2ib:/fs"))
    assert found == Quota("user", 982177580 * KIB, 10**9 * KIB, 443208, 500000, "lfs quota")
    assert found.share == pytest.approx(0.982, abs=0.001)
    (path / "user").write_text(MILA)
    found = quota(path, table=mounted("lustre", "10.0.0.1@o2ib:/fs"))
    assert found == Quota("user", 95747836 * KIB, 104857600 * KIB, 908722, 1048576, "lfs quota")


HOME = Quota("user", 14684160 * KIB, 20971520 * KIB, 160021, None, "quota")


@pytest.mark.parametrize(
    ("kind", "source", "asked", "answer", "expected"),
    [
        ("gpfs", "/dev/fs2", "mmlsquota -Y", GPFS, Quota("user", 5 * KIB, 10 * KIB, 1, None, "mmlsquota")),
        ("gpfs", "/dev/fs1", "mmlsquota -Y", GPFS, Quota("fileset", 1 << 30, 2 << 30, 10, None, "mmlsquota")),
        ("gpfs", "/dev/fs1", "mmlsquota -Y", "::::", None),
        ("fuse", "mfs#h:1", "mfsgetquota -n", MOOSEFS, Quota("folder", 0, 10485760, 2, 20, "mfsgetquota")),
        ("fuse", "mfs#h:1", "mfsgetquota -n", "can't connect", None),
        ("ext4", "/dev/mapper/vg-home", "quota -w -p", LINUX, HOME),
        ("ext4", "/dev/sda1", "quota -w -p", LINUX, None),
    ],
)
def test_elsewhere_the_file_system_itself_counts(place, kind, source, asked, answer, expected):
    mounted, tool, path = place
    name, _, flags = asked.partition(" ")
    (path / "answer").write_text(answer)
    exceeded = "exit 1" if name == "quota" else "exit 0"  # man quota: it fails if a limit is exceeded
    tool(name, f'case "$*" in "{flags}"*) cat {path}/answer ;; esac; {exceeded}')
    found = quota(path, table=mounted(kind, source))
    assert found == expected and (found != HOME or found.share == pytest.approx(0.7, abs=0.01))


@pytest.mark.parametrize(
    ("need", "told"),
    [((10485760, 18), ""), ((10485761, 18), "10.5 MB of the 10.5 MB"), ((0, 19), "18 of the 19 files")],
)
def test_an_output_that_exceeds_a_quota_is_told_before_it_is_written(place, monkeypatch, need, told):
    _, _, path = place
    monkeypatch.setattr(
        "smallfiles.machine.filesystems.quota",
        lambda *words: Quota("folder", 0, 10485760, 2, 20, "mfsgetquota"),
    )
    note = quota_note(path, *need)
    assert note is None if not told else f"has room for {told} that are needed" in note


def test_tools_that_hang_cost_the_time_that_was_given_and_no_more(place):
    mounted, tool, path = place
    tool("lfs", f"echo >> {path}/asked; sleep 60 & echo $! > {path}/pid; echo half; wait")
    assert quota(path, timeout_s=2, table=mounted("lustre", "x")) is None
    assert len((path / "asked").read_bytes()) == 1  # it would be several times
    wait_for(lambda: not alive(path / "pid"), 30)  # its children are killed too


def test_without_tools_limits_or_a_table_it_is_none(place):
    mounted, tool, path = place
    assert quota(path, table=mounted("lustre", "x")) is None
    assert quota(path, table=path / "none") is None
    tool("quota", "echo 'a a a grace'; echo 'x 5 0 0 0 3 0 0 0'")
    assert quota(path, table=mounted("ext4", "x")) is None


# --- striping ---------------------------------------------------------------------------------

MIB = 1 << 20
FOLDER = "stripe_count:  1 stripe_size:   1048576 pattern:       raid0 stripe_offset: -1\n"
FILE = """\
testfile
lmm_stripe_count:  3
lmm_stripe_size:   33554432
lmm_pattern:       raid0
lmm_layout_gen:    0
lmm_stripe_offset: 2
\tobdidx\t\t objid\t\t objid\t\t group
\t     2\t      12787913\t     0xc320c9\t             0
\t     5\t      12893863\t     0xc4bea7\t             0
\t     9\t      12496893\t     0xbeaffd\t             0

"""
PROGRESSIVE = """\
  lcm_layout_gen:    0
  lcm_mirror_count:  1
  lcm_entry_count:   3
    lcme_id:             N/A
    lcme_mirror_id:      N/A
    lcme_flags:          0
    lcme_extent.e_start: 0
    lcme_extent.e_end:   4194304
      stripe_count:  1       stripe_size:   1048576       pattern:       raid0       stripe_offset: -1

    lcme_id:             N/A
    lcme_extent.e_start: 4194304
    lcme_extent.e_end:   268435456
      stripe_count:  4       stripe_size:   1048576       pattern:       raid0       stripe_offset: -1

    lcme_id:             N/A
    lcme_extent.e_start: 268435456
    lcme_extent.e_end:   EOF
      stripe_count:  -1       stripe_size:   16777216       pattern:       raid0       stripe_offset: -1
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FOLDER, Striping(1, MIB)),
        (FILE, Striping(3, 32 * MIB)),
        (PROGRESSIVE, Striping(-1, 16 * MIB, 3)),
        ("", None),
        ("error: getstripe failed for x.\n", None),
    ],
)
def test_recorded_answers_are_read(text, expected):
    assert parse_getstripe(text) == expected


@pytest.fixture
def on_lustre(tmp_path, monkeypatch, tool):
    """Let every path lie on Lustre, and an `lfs` answer with a script."""
    found = dataclasses.replace(filesystem(tmp_path), kind="lustre", shared=True)
    monkeypatch.setattr("smallfiles.machine.filesystems.filesystem", lambda path: found)
    return lambda script: tool("lfs", script)


def test_lfs_is_asked_for_the_folder_that_exists(tmp_path, on_lustre):
    assert striping(tmp_path) is None  # there is no lfs
    on_lustre(f"echo $@ > {tmp_path}/asked; echo 'stripe_count: 8 stripe_size: 1048576'")
    assert striping(tmp_path / "not" / "yet") == Striping(8, MIB)
    assert (tmp_path / "asked").read_text() == f"getstripe -d {tmp_path.resolve()}\n"


@pytest.mark.parametrize(
    ("count", "size", "stripes"), [(1, 2 << 30, 4), (1, 200 << 30, 16), (1, MIB, None), (8, 2 << 30, None)]
)
def test_a_large_file_on_one_target_is_told_what_to_set_before(count, size, stripes, tmp_path, on_lustre):
    on_lustre(f"echo 'stripe_count: {count} stripe_size: 1048576'")
    note = striping_note(tmp_path / "a folder", size)
    assert (note is None) is (stripes is None)
    assert stripes is None or f"lfs setstripe -c {stripes} '{tmp_path}/a folder'" in note


def test_packing_says_so_before_the_first_byte(tmp_path, on_lustre, monkeypatch, capsys):
    monkeypatch.setattr("smallfiles.machine.filesystems.STRIPED_BYTES", 10)
    on_lustre("echo 'stripe_count: 1 stripe_size: 1048576'")
    (tmp_path / "data" / "a").mkdir(parents=True)
    (tmp_path / "data" / "a" / "1.jpg").write_bytes(b"x" * 100)
    assert main(["pack", str(tmp_path / "data"), str(tmp_path / "x.arrow"), "--dry-run"]) == 0
    assert "lfs setstripe -c 4" in capsys.readouterr().out


# --- asking -----------------------------------------------------------------------------------


def alive(pid_file):
    """Whether the process whose number is in a file still runs."""
    try:
        os.kill(int(pid_file.read_text()), 0)
    except ProcessLookupError:
        return False
    return True


def test_an_answer_is_returned_without_what_went_to_standard_error(tool):
    tool("lfs", r"""echo "$LC_ALL $1"; printf '\377\376 4\n'; echo trouble >&2""")  # that need not be text
    answer = ask(("lfs", "df"))
    assert answer.startswith("C df\n") and answer.endswith(" 4\n")


def test_a_tool_that_is_missing_fails_or_cannot_be_started_is_no_answer(tool):
    assert ask(("no-such-tool",)) is None
    tool("lfs", "echo half; exit 2")
    assert ask(("lfs",)) is None
    tool("quota", "").write_bytes(b"\x7fELF but not really")
    assert ask(("quota",)) is None
