"""Small trees of fixed bytes, the commands that pack them, and a listing of what a packed set contains.

`python golden_sets.py FOLDER` packs all of them with the toolbox of the current folder and writes the digests
of the packed files to FOLDER/bytes.json. The archives in `golden/` contain what older versions packed.
"""

import csv
import hashlib
import json
import os
import struct
import sys
import zlib
from pathlib import Path

PACKS = {
    # name of the output -> tree, further arguments of `pack`
    "plain.arrow": ("classes", []),
    "small.arrow": ("classes", ["-O", "rows_per_batch=3"]),
    "juelich.arrow": ("classes", ["-O", "layout=juelich"]),
    "plain.h5": ("classes", []),
    "vlen.h5": ("classes", ["-O", "layout=vlen"]),
    "plain.tar": ("classes", []),
    "shards.tars": ("classes", ["-O", "max_count=4"]),
    "shuffled.tars": ("classes", ["-O", "max_count=4", "--shuffle", "7"]),
    "plain.sqfs": ("classes", []),
    "zstd.sqfs": ("classes", ["-O", "compression=zstd", "-O", "block_bytes=4096"]),
    "fragments.sqfs": ("classes", ["-O", "compression=gzip", "-O", "fragments=true"]),
    "plain.lmdb": ("classes", []),
    "plain.files": ("classes", []),
    "fields.arrow": ("fields", ["--field", "mask=masks/{id}.png"]),
    "fields.h5": ("fields", ["--field", "mask=masks/{id}.png"]),
    "fields.tars": ("fields", ["--field", "mask=masks/{id}.png"]),
    "fields.sqfs": ("fields", ["--field", "mask=masks/{id}.png"]),
    "fields.files": ("fields", ["--field", "mask=masks/{id}.png"]),
    "captions.arrow": ("captions", []),
    "captions.tars": ("captions", []),
    "captions.h5": ("captions", []),
    "captions.sqfs": ("captions", []),
}


def png(width, height, seed):
    """A PNG whose bytes depend on no version of zlib, because its pixels are stored without compression."""
    rows = b"".join(
        b"\0" + bytes((seed * 37 + x * 11 + y * 7) & 255 for x in range(width * 3)) for y in range(height)
    )
    stored = b"\x01" + struct.pack("<HH", len(rows), len(rows) ^ 0xFFFF) + rows
    pixels = b"\x78\x01" + stored + struct.pack(">I", zlib.adler32(rows))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def plant(folder):
    """Write the three trees; return the source of each."""
    for number in range(10):
        name = f"classes/{('ant', 'Bär', 'cat one')[number % 3]}/photo {number}.v1.png"
        write(folder / name, png(5 + number, 4, number))
    rows = []
    for number in range(7):
        write(folder / f"fields/images/{number:03}.png", png(6, 4 + number, number))
        write(folder / f"fields/masks/{number:03}.png", png(6, 4 + number, 100 + number))
        rows.append(
            (
                f"images/{number:03}.png",
                f"{number:03}",
                ("no", "yes")[number % 2],
                number * 0.25,
                f"text, {number} ß",
            )
        )
    texts = [
        (f"{number:03}.png", [f"caption {k} of {number}" for k in range(1 + number % 3)])
        for number in range(6)
    ]
    for name, _ in texts:
        write(folder / "captions" / name, png(4, 4, 50 + int(name[:3])))
    with (folder / "fields/t.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("filename", "id", "label", "score", "note"), *rows])
    lines = [json.dumps({"filename": name, "captions": captions}) for name, captions in texts]
    (folder / "captions/t.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {
        "classes": folder / "classes",
        "fields": folder / "fields/t.csv",
        "captions": folder / "captions/t.jsonl",
    }


def pack(source, out, arguments):
    """Run `smallfiles pack`; return its exit code."""
    from smallfiles.cli import main

    return main(["pack", str(source), str(out), *arguments])


def bytes_of(out):
    """SHA-256 of each file of a packed set, by its path in it."""
    files = sorted(path for path in out.rglob("*") if path.is_file()) if out.is_dir() else [out]
    return {
        path.relative_to(out.parent).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def contents(out):
    """Return the keys, digests of blobs, values, and classes of a packed set."""
    from smallfiles import formats

    reader = formats.open(out)
    blobs = [name for name, kind in reader.fields.items() if kind.startswith(".")]
    values = reader.table().to_pydict()
    samples = []
    for index, key in enumerate(reader.keys().to_pylist()):
        row = {name: column[index] for name, column in values.items()}
        digests = {name: hashlib.sha256(reader.blob(name).read(index)).hexdigest()[:16] for name in blobs}
        samples.append([key, row, digests])
    return {"classes": list(reader.classes), "fields": dict(reader.fields), "samples": samples}


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    folder = Path(sys.argv[1])
    sources = plant(folder / "trees")
    (folder / "packed").mkdir()
    for name, (tree, arguments) in PACKS.items():
        assert pack(sources[tree], folder / "packed" / name, arguments) == 0
    digests = {name: bytes_of(folder / "packed" / name) for name in PACKS}
    (folder / "bytes.json").write_text(json.dumps(digests, ensure_ascii=False, indent=1) + "\n")
