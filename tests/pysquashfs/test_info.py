"""What `info` says of images that are slow, and of those that are not."""

import os

import pytest
from squashfs_crafted import craft, file, folder
from squashfs_trees import content

from pysquashfs import SquashFS

KIB = 1024


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Files that compress by less than a percent, as photographs do: 100 of 20 to 40 KiB."""
    root = tmp_path_factory.mktemp("photographs")
    for number in range(100):
        data = bytearray(content(20 * KIB + 200 * number, "noise", seed=number))
        for at in range(0, len(data) - KIB, 4 * KIB):
            data[at : at + 120] = bytes(120)
        (root / f"{number:03d}.jpg").write_bytes(data)
    return root


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    root = tmp_path_factory.mktemp("texts")
    for number in range(50):
        (root / f"{number:03d}.json").write_bytes(content(200 * KIB, "text", seed=number))
    return root


def info(path):
    with SquashFS(path) as image:
        return image.info()


def test_the_recommended_image_has_no_fault(photographs, mksquashfs, tmp_path):
    found = info(mksquashfs(photographs, tmp_path / "x"))
    assert found["findings"] == ["Files are stored raw and in one piece: nothing makes random reads slow."]
    assert (found["recommended"], found["fragments"], found["files_in_fragments"]) == ("", 0, 0)
    assert (found["share_raw"], found["share_one_read"], found["read_amplification"]) == (1, 1, 1)
    assert (found["files"], found["folders"], found["symlinks"]) == (100, 0, 0)
    assert found["bytes"] == found["stored_bytes"] == sum(20 * KIB + 200 * number for number in range(100))
    assert found["image_bytes"] == os.path.getsize(tmp_path / "x")


def test_large_blocks_with_fragments_are_named_as_the_reason(photographs, mksquashfs, tmp_path):
    found = info(mksquashfs(photographs, tmp_path / "x", "-comp", "gzip", "-b", "1M"))
    assert found["read_amplification"] > 10
    assert (found["files_in_fragments"], found["share_one_read"]) == (100, 0)
    slow, compressed = found["findings"]
    assert slow == (
        f"100 files end in {found['fragments']} shared fragments of up to 1,024 KiB: reading files at random "
        f"fetches and unpacks {found['read_amplification']:.1f} bytes for each delivered."
    )
    assert compressed.startswith("100% of the data is compressed with gzip, which saves ")
    assert "-noD -noF -no-fragments" in found["recommended"]


def test_a_file_inside_a_raw_fragment_is_one_read_and_a_mount_reads_more(photographs, mksquashfs, tmp_path):
    raw = ("-comp", "gzip", "-noD", "-noF")
    found = info(mksquashfs(photographs, tmp_path / "x", *raw, "-b", "1M"))
    assert (found["files_in_fragments"], found["share_one_read"], found["read_amplification"]) == (100, 1, 1)
    assert found["findings"] == [
        f"100 files end in {found['fragments']} shared fragments, stored raw: this library reads only the "
        "part of one file, a mount reads the whole fragment; -no-fragments avoids that."
    ]
    found = info(mksquashfs(photographs, tmp_path / "y", *raw, "-b", "32K", "-always-use-fragments"))
    assert 0 < found["share_one_read"] < 1  # those above 32 KiB have a block and an end
    assert "of the files lie in several pieces" in found["findings"][0]


def test_data_that_compresses_is_told_so(texts, mksquashfs, tmp_path):
    found = info(mksquashfs(texts, tmp_path / "x", "-comp", "gzip", "-no-fragments"))
    assert found["findings"][0].startswith("Compression with gzip saves 100%")
    assert "zstd at level 3" in found["findings"][1]
    assert (found["recommended"], found["share_raw"]) == ("", 0)
    found = info(mksquashfs(texts, tmp_path / "y", "-comp", "gzip", "-b", "1M", "-no-duplicates"))
    assert "-comp zstd -Xcompression-level 3 -no-fragments" in found["recommended"]


def test_hard_links_are_stored_and_read_once_and_inodes_are_counted(tmp_path):
    one = file(b"x" * 3000)
    (tmp_path / "x").write_bytes(craft(folder((b"a", one), (b"b", one)), inodes=7))
    with SquashFS(tmp_path / "x") as image:
        found, report = image.info(), image.verify()
    assert (found["files"], found["bytes"], found["stored_bytes"], found["share_raw"]) == (2, 6000, 3000, 1)
    assert (report.files, report.bytes) == (2, 3000)
    assert report.faults == (f"{tmp_path / 'x'}: 2 inodes are reachable of 7 counted",)
