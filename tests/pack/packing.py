"""Trees to pack, for the tests of this folder."""

import numpy as np

FORMATS = {
    "files": "out.files",
    "arrow": "out.arrow",
    "hdf5": "out.h5",
    "tar": "out.tars",
    "squashfs": "out.sqfs",
    "lmdb": "out.lmdb",
}


def fake_jpeg(size, seed):
    """Bytes that begin and end as a JPEG does; their content does not matter to packing."""
    body = np.random.default_rng(seed).integers(0, 256, max(size - 5, 0), np.uint8).tobytes()
    return b"\xff\xd8\xff" + body.replace(b"\xff", b"\xfe") + b"\xff\xd9"


def make_tree(root, count, size=3000, classes=3):
    for number in range(count):
        folder = root / f"n{number % classes:08d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"img {number:04d}.JPEG").write_bytes(fake_jpeg(size + 17 * number % 999, number))
    return root


def contents(path):
    """Every published file that belongs to `path`, by name."""
    files = path.rglob("*") if path.is_dir() else path.parent.glob(path.name + "*")
    return {str(p.relative_to(path.parent)): p.read_bytes() for p in files if p.is_file()}
