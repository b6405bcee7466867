"""Pictures for the tests of this folder: smooth with fine detail, of any size, made from integers."""

import io

import numpy as np
from PIL import Image


def pixels(width=500, height=375, seed=0):
    """A picture with gradients, edges and a little noise."""
    rng = np.random.default_rng(seed)
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    base = np.stack([x * 255 // max(1, width - 1), y * 255 // max(1, height - 1), (x + y) % 256], -1)
    base[(x // 40 + y // 30) % 3 == 0] //= 2
    noise = rng.integers(-12, 13, (height, width, 1))
    return (base + noise).clip(0, 255).astype(np.uint8)


def encoded(array, kind="JPEG", **options):
    """An array as a file."""
    out = io.BytesIO()
    Image.fromarray(array).save(out, kind, **({"quality": 90} if kind == "JPEG" else {}) | options)
    return out.getvalue()


def jpeg(width=500, height=375, seed=0, **options):
    """A JPEG."""
    return encoded(pixels(width, height, seed), **options)


def by_pillow(data):
    """What Pillow makes of a file."""
    with Image.open(io.BytesIO(data)) as picture:
        return np.asarray(picture.convert("RGB"))


def difference(one, other):
    """Mean and largest absolute difference."""
    apart = np.abs(np.asarray(one, np.int16) - np.asarray(other, np.int16))
    return float(apart.mean()), int(apart.max())


def close(one, other, mean, most):
    """Whether two pictures differ by no more than this on average, and nowhere by more than `most`."""
    found = difference(one, other)
    assert found[0] <= mean and found[1] <= most, found
    return True
