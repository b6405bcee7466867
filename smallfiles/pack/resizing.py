"""Pictures scaled down while they are packed: what that costs in bytes, and what it loses.

A few pictures are tried before the first is written. What they tell is used to cut shards and parts, to
check the room, and to say what is gained and lost; a dry run says the same.

The trap: a re-encoded JPEG is not the source's picture any more, and 90 as quality means another loss for
each encoder. So the loss is measured on the pictures at hand and said. Notebook 08 uses it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from smallfiles.errors import SmallfilesError
from smallfiles.manifest import Manifest
from smallfiles.samples import ByteStore

if TYPE_CHECKING:
    from smallfiles.images.downscaling import PixelFormat

TRIED = 32
_PIXEL_BYTES = 3
_USUAL_SHAPE = 4 / 3


@dataclass(frozen=True)
class Scaling:
    """How pictures are scaled before they are packed.

    Args:
        short_side: Of the scaled picture, in pixels; smaller pictures are not enlarged. None scales
            nothing, and encodes only those again that EXIF says to turn.
        store: `jpeg` (encoded again) or `raw` (PPM: pixels as they are).
        quality: Of a JPEG, 1 to 100.
    """

    short_side: int | None
    store: PixelFormat
    quality: int

    def record(self) -> dict[str, Any]:
        """What decides the new bytes, for the provenance."""
        quality = {"quality": self.quality} if self.store == "jpeg" else {}
        if self.short_side is None:
            return {"upright": True, **quality}
        return {"short_side": self.short_side, "store": self.store, **quality}

    def describe(self) -> str:
        """In words."""
        return described(self.record())


def described(record: Mapping[str, Any]) -> str:
    """A record of scaling in words; records come from files, so anything may be missing."""
    quality = f" of quality {record['quality']}" if "quality" in record else ""
    if record.get("upright"):
        return f"the upright position that EXIF tells, as jpeg{quality}"
    return f"a shorter side of {record.get('short_side', '?')} pixels as {record.get('store', '?')}{quality}"


@dataclass(frozen=True)
class Trial:
    """What scaling did to a few pictures.

    Args:
        pictures: How many were tried.
        bytes_before: Their encoded bytes.
        bytes_after: And when scaled.
        pixels_kept: Share of their pixels that is left, 0 to 1.
        psnr_db: Peak signal-to-noise ratio of what is decoded later against the scaled pixels, over all
            of them, in decibels; None if nothing is lost by encoding.
    """

    pictures: int
    bytes_before: int
    bytes_after: int
    pixels_kept: float
    psnr_db: float | None

    def as_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return dataclasses.asdict(self)


def try_out(scaling: Scaling, manifest: Manifest, store: ByteStore) -> Trial | None:
    """Scale a few pictures, spread over the whole set.

    Returns:
        What came of it, the same for the same data; None if the source can be read only once, or if none
        of them is a picture.
    """
    if store.sequential or scaling.short_side is None:
        return None
    rows = np.unique(np.linspace(0, len(manifest) - 1, TRIED).astype(np.int64))
    tried = [each for each in (_try(scaling, manifest, store, int(row)) for row in rows) if each is not None]
    if not tried:
        return None
    before, after, pixels_before, pixels_after, lost = (sum(column) for column in zip(*tried, strict=True))
    return Trial(
        pictures=len(tried),
        bytes_before=int(before),
        bytes_after=int(after),
        pixels_kept=pixels_after / pixels_before,
        psnr_db=10 * math.log10(255**2 / (lost / (_PIXEL_BYTES * pixels_after))) if lost else None,
    )


def _try(
    scaling: Scaling, manifest: Manifest, store: ByteStore, row: int
) -> tuple[int, int, int, int, float] | None:
    """Bytes before and after, pixels before and after, sum of squared differences."""
    from smallfiles import images
    from smallfiles.images.picture import open_picture, raw_pixels

    assert scaling.short_side is not None
    path, sizes = manifest.path(row), manifest.sizes
    room = memoryview(bytearray(int(sizes[row]) if sizes is not None else store.size(path)))
    try:
        size = store.read_into(path, room)
        data = room[: min(size, len(room))]
        picture = open_picture(data)
        raw = images.resize_ahead(data, scaling.short_side, "raw")
        new = raw
        if scaling.store == "jpeg":
            new = images.resize_ahead(data, scaling.short_side, "jpeg", scaling.quality)
        pixels = raw_pixels(raw)
        assert pixels is not None
        lost = images.decode(new).astype(np.int32) - pixels
    except SmallfilesError:  # the run itself will find it, and say so
        return None
    return size, len(new), picture.width * picture.height, pixels.size // _PIXEL_BYTES, float((lost**2).sum())


def expected_sizes(scaling: Scaling, trial: Trial | None, sizes: np.ndarray) -> np.ndarray:
    """Bytes of each picture when scaled, as far as one can tell beforehand.

    A function of the data alone, so that all parts of a job array cut at the same borders.

    Args:
        scaling: How.
        trial: What `try_out` found.
        sizes: Bytes of the sources, int64.
    """
    if trial is None:
        pixels = int((scaling.short_side or 0) ** 2 * _USUAL_SHAPE)
        return np.full_like(sizes, _PIXEL_BYTES * pixels) if scaling.store == "raw" else sizes
    if scaling.store == "raw":
        return np.full_like(sizes, max(1, trial.bytes_after // trial.pictures))
    return np.maximum(1, np.round(sizes * (trial.bytes_after / max(1, trial.bytes_before)))).astype(np.int64)


@dataclass(frozen=True)
class Rescaled:
    """What scaling did in a whole run.

    Args:
        scaling: How pictures were scaled.
        bytes_before: Encoded bytes of the sources.
        bytes_after: Encoded bytes that were packed.
        trial: What the few pictures lost that were looked at closely; None if there were none.
    """

    scaling: Scaling
    bytes_before: int
    bytes_after: int
    trial: Trial | None

    def as_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            **self.scaling.record(),
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "trial": None if self.trial is None else self.trial.as_json(),
        }

    def sentences(self, *, planned: bool = False) -> Iterator[str]:
        """What it costs and what it loses, for people; `planned` if it is an estimate."""
        times = f"{'about ' * planned}{self.bytes_after / max(1, self.bytes_before):.2f} times"
        done = "exif_rotated" if self.scaling.short_side is None else "scaled"
        yield f"{done} to {self.scaling.describe()}: {times} the bytes of the source"
        if self.scaling.short_side is None:
            return
        if self.trial is None:
            yield "what that loses was not measured, since this source can be read only once"
            return
        psnr = self.trial.psnr_db
        loss = "encoding loses nothing" if psnr is None else f"encoding again costs a PSNR of {psnr:.1f} dB"
        yield f"{self.trial.pixels_kept:.0%} of the pixels are left; {loss} ({self.trial.pictures} pictures)"
