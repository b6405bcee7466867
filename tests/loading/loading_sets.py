"""Small data sets and transforms that the tests of loading share."""

import json
from dataclasses import dataclass

import numpy as np
from given import Given, bare, schema_of
from torch.utils.data import Dataset

from smallfiles import formats

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

    def __call__(self, data, rng):
        out = np.empty(self.shape, self.dtype)
        self.into(data, rng, out)
        return out


def stub_samples(count, bad=(), captions=False):
    samples = []
    for number in range(count):
        head = b"torn" if number in bad else b"good"
        target = [f"a dog number {number} says {n}" for n in range(number % 6)] if captions else number % 7
        data = head + number.to_bytes(3, "big") + bytes(number % 50)
        samples.append(Given(f"d{number % 3}/{number:04}.jpg", data, target))
    return samples


def write(samples, out, **options):
    """Pack samples; the options are those of the format."""
    return write_many(bare(samples), schema_of(samples), out, **options)


def write_many(samples, schema, out, **options):
    """Pack samples that come one by one."""
    module = formats.get(formats.name_of(out))
    module.write(samples, out, schema=schema, options=module.Options(**options), digest=False)
    return out


class Views(Dataset):
    """What somebody writes who knows torch and has a reader: bytes in a tuple, in a dict."""

    def __init__(self, path):
        self.reader = formats.open(path)

    def __len__(self):
        return len(self.reader)

    def __getitem__(self, number):
        return {"bytes": (self.reader.read(number), self.reader.target(number))}


def numbers(batches):
    """The samples of each batch."""
    return [batch["index"].tolist() for batch in batches]


def flat(lists):
    """One list of several."""
    return [number for numbers in lists for number in numbers]


def digest(batches):
    """All of each batch, as text."""
    return [
        json.dumps({name: tensor.tolist() for name, tensor in sorted(batch.items())}) for batch in batches
    ]
