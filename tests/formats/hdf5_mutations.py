"""Damage an HDF5 file in many ways and try each in this process: `python hdf5_mutations.py FILE FIRST LAST`.

A library in C may hang or crash, so this is run as a child. Before each trial it prints its number, and
after it how the trial ended: `read`, or the name of the class of a sentence; anything else is a fault.
"""

from __future__ import annotations

import random
import sys
import warnings
from pathlib import Path

from smallfiles import formats
from smallfiles.errors import SmallfilesError
from smallfiles.pack import verify


def mutated(data: bytes, number: int) -> bytes:
    """The file with bits flipped, bytes replaced, numbers made huge or its end cut away; one way a number."""
    draw = random.Random(number)
    found = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8))):
        structure = draw.random() < 0.7  # most of the structure is at the beginning and at the end
        place = draw.choice((draw.randrange(4096), -draw.randrange(1, 4096))) if structure else None
        at = draw.randrange(len(found)) if place is None else place % len(found)
        kind = draw.randrange(5)
        if kind == 0:
            found[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            found[at] = draw.choice((0, 1, 127, 128, 255))
        elif kind == 2:
            size = draw.choice((2, 4, 8, 64))
            found[at : at + size] = draw.randbytes(len(found[at : at + size]))
        elif kind == 3:
            found[at : at + 8] = draw.choice((bytes(8), b"\xff" * 8, (1 << 62).to_bytes(8, "little")))
        elif draw.random() < 0.2:
            del found[at:]
            found += b"\0"
    return bytes(found)


def tried(path: Path) -> str:
    """How opening and reading all of a file ends, and verifying it."""
    ends = []
    for work in (_read, verify):
        try:
            work(path)
            ends.append("read")
        except SmallfilesError as error:
            ends.append(type(error).__name__)
    return "+".join(ends)


def _read(path: Path) -> None:
    reader = formats.open(path)
    try:
        for sample in reader:
            len(sample.data)
    finally:
        reader.close()


def main() -> None:
    """Try the mutations of a range."""
    source, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    data = source.read_bytes()
    warnings.simplefilter("ignore")
    for number in range(first, last):
        print(number, end=" ", flush=True)
        path = source.with_name(f"mutated-{source.stem}-{first}.h5")
        path.write_bytes(mutated(data, number))
        try:
            print(tried(path), flush=True)
        except BaseException as error:
            print(f"FAULT {type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main()
