"""Small data sets and transforms that the tests of loading share."""

import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from helpers import formats
from helpers.samples import Sample, Schema

SIZE = 8


@dataclass(frozen=True)
class Stub:
    """Eight rows of random pixels, the first of which is the sample's own first bytes."""

    shape: tuple[int, ...] = (SIZE, SIZE, 3)
    dtype = np.dtype(np.uint8)

    def into(self, data, rng, out):
        data = bytes(data)
        if not data.startswith(b"good"):
            raise ValueError("this is no image")
        out[...] = rng.integers(0, 256, self.shape, np.uint8)
        out[0, 0, :] = np.frombuffer(data[4:7], np.uint8)


@dataclass(frozen=True)
class Cropped:
    """A crop of a decoded image, by Pillow."""

    shape: tuple[int, ...] = (32, 32, 3)
    dtype = np.dtype(np.uint8)

    def into(self, data, rng, out):
        with Image.open(io.BytesIO(data)) as image:
            left, top = int(rng.integers(0, image.width - 31)), int(rng.integers(0, image.height - 31))
            out[...] = np.asarray(image.convert("RGB").crop((left, top, left + 32, top + 32)))


def stub_samples(count: int, bad: tuple[int, ...] = (), captions: bool = False) -> list[Sample]:
    samples = []
    for number in range(count):
        head = b"torn" if number in bad else b"good"
        target = [f"a dog number {number} says {n}" for n in range(number % 6)] if captions else number % 7
        data = head + number.to_bytes(3, "big") + bytes(number % 50)
        samples.append(Sample(f"d{number % 3}/{number:04}.jpg", data, target))
    return samples


def write(samples: list[Sample], out: Path, **options) -> Path:
    """Pack samples; the options are those of the format."""
    captions = bool(samples) and isinstance(samples[0].target, list)
    schema = Schema(
        count=len(samples),
        total_bytes=sum(len(s.data) for s in samples),
        largest_bytes=max((len(s.data) for s in samples), default=0),
        target="captions" if captions else "label",
    )
    module = formats.get(formats.name_of(out))
    module.write(iter(samples), out, schema=schema, options=module.Options(**options), digest=False)
    return out


def numbers(batches) -> list[list[int]]:
    """The samples of each batch."""
    return [batch["index"].tolist() for batch in batches]


def flat(lists) -> list[int]:
    """One list of several."""
    return [number for numbers in lists for number in numbers]


def digest(batches) -> list[str]:
    """All of each batch, as text."""
    return [
        json.dumps({name: tensor.tolist() for name, tensor in sorted(batch.items())}) for batch in batches
    ]
