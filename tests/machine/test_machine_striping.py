"""Striping, from recorded answers of `lfs getstripe`."""

import pytest

from smallfiles.machine import Striping, striping
from smallfiles.machine.quotas import parse_getstripe

MIB = 1 << 20
FOLDER = "stripe_count:  1 stripe_size:   1048576 pattern:       raid0 stripe_offset: -1\n"
OLD_FOLDER = "/mnt/testfs\nstripe_count:   -1 stripe_size:    4194304 stripe_offset:  -1 \n"
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
        (OLD_FOLDER, Striping(-1, 4 * MIB)),
        (FILE, Striping(3, 32 * MIB)),
        (PROGRESSIVE, Striping(-1, 16 * MIB, 3)),
        ("", None),
        ("error: getstripe failed for x.\n", None),
        ("stripe_count: many stripe_size: some\n", None),
    ],
)
def test_recorded_answers_are_read(text, expected):
    assert parse_getstripe(text) == expected


@pytest.fixture
def on_lustre(tmp_path, monkeypatch):
    """Let every path lie on Lustre, and put an `lfs` on the PATH."""
    import dataclasses

    from smallfiles.machine import filesystems

    found = dataclasses.replace(filesystems.filesystem(tmp_path), kind="lustre", shared=True)
    monkeypatch.setattr("smallfiles.machine.quotas.filesystem", lambda path: found)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def answer(script):
        (tmp_path / "lfs").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "lfs").chmod(0o755)

    return answer


def test_lfs_is_asked_for_the_folder_that_exists(tmp_path, on_lustre):
    on_lustre(f"echo $@ > {tmp_path}/asked; echo 'stripe_count: 8 stripe_size: 1048576'")
    assert striping(tmp_path / "not" / "yet") == Striping(8, MIB)
    assert (tmp_path / "asked").read_text() == f"getstripe -d {tmp_path.resolve()}\n"


def test_a_missing_failing_or_hanging_lfs_is_no_answer(tmp_path, on_lustre):
    assert striping(tmp_path) is None
    on_lustre("exit 1")
    assert striping(tmp_path) is None
    on_lustre("sleep 60")
    assert striping(tmp_path, timeout_s=0.3) is None


def test_elsewhere_than_on_lustre_nothing_is_asked(tmp_path, monkeypatch):
    monkeypatch.setattr("smallfiles.machine.quotas.ask", lambda *words: pytest.fail("asked"))
    assert striping(tmp_path) is None
