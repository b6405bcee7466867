"""One image, measured in every way that this machine allows, cold, and packed beside mksquashfs."""

import shutil

from benchmarks.squashfs import bench_squashfs
from smallfiles.measure import BenchConfig
from smallfiles.measure import cache as page_cache


def test_an_image_is_read_in_every_way_and_packed_beside_mksquashfs(tmp_path):
    tree = tmp_path / "tree"
    for number in range(12):
        (tree / str(number % 3)).mkdir(parents=True, exist_ok=True)
        (tree / str(number % 3) / f"{number}.jpg").write_bytes(bytes([number]) * 5000)
    result = bench_squashfs(tree, BenchConfig(repeats=1, count=10))
    found = {(record.what, record.cache): [] for record in result.records}
    for record in result.records:
        found[record.what, record.cache].append(record.name)
        assert record.bytes == record.samples * 5000 and record.set_samples in (10, 12)
    assert found["random reads", "warm"][:2] == ["plain files", "pysquashfs, pure"]
    if page_cache.can_be_cold(tmp_path):
        assert len(found["random reads", "cold"]) == 3
    if shutil.which("mksquashfs"):
        assert found["packing an image", "warm"] == ["pysquashfs", "mksquashfs"]
    assert not result.failed
