"""Tries of `captions_of`: does it give the captions, and does it read the images for that?

The trap: `read_all()` on an opened file fetches every image to get at some text, which on Flickr30K is
four gigabytes for twelve megabytes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from exercises.checks.attempt import Attempt
from exercises.checks.ex03_pack_arrow.captions import BYTES_REPR, captions_problem, texts_problem
from smallfiles.measure.traffic import watched
from smallfiles.progress import bytes_text

IMAGE_BYTES = 1 << 20
_ROWS, _BATCHES = 8, 3
_NAMES = ("key", "captions", "data")


def try_columns(attempt: Attempt) -> None:
    """Files with their columns in two orders, one of them with large images."""
    with tempfile.TemporaryDirectory(prefix="smallfiles-") as place:
        for number, (order, size) in enumerate(
            ((_NAMES, 100), (("data", "captions", "key"), 100), (("key", "data", "captions"), IMAGE_BYTES))
        ):
            path = Path(place) / f"{number}.arrow"
            expected = write_file(path, order, size)
            with watched() as traffic:
                got = attempt(path, _shown=f"a file of {len(expected)} images, columns {', '.join(order)}")
            _compare(attempt, expected, got)
        attempt.require(
            traffic.most < len(expected) * IMAGE_BYTES // 8,
            got=f"{bytes_text(traffic.most)} moved for {bytes_text(len(str(expected)))} of text",
            expected="the column of captions read, and no image",
            because="the whole file was read to get its captions; map it (pa.memory_map) and take one "
            "column, or ask for that column alone",
        )


def write_file(path: Path, order: Sequence[str], image_bytes: int) -> list[list[str]]:
    """Write three batches of eight images; return their captions."""
    kinds = {"key": pa.string(), "captions": pa.list_(pa.string()), "data": pa.binary()}
    schema = pa.schema([(name, kinds[name]) for name in order])
    images = pa.Array.from_buffers(
        pa.binary(),
        _ROWS,
        [
            None,
            pa.py_buffer(np.arange(_ROWS + 1, dtype=np.int32) * image_bytes),
            pa.py_buffer(np.zeros(_ROWS * image_bytes, np.uint8)),
        ],
    )
    captions = [
        [f'Caption {n} of image {row} says " café " .' for n in range(row % 4)]
        for row in range(_ROWS * _BATCHES)
    ]
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for start in range(0, len(captions), _ROWS):
            rows = range(start, start + _ROWS)
            columns = {
                "key": pa.array([f"{row}.jpg" for row in rows]),
                "captions": pa.array([captions[row] for row in rows], kinds["captions"]),
                "data": images,
            }
            writer.write(pa.record_batch([columns[name] for name in order], schema=schema))
    return captions


def _compare(attempt: Attempt, expected: list[list[str]], got: Any) -> None:
    attempt.require(
        isinstance(got, list),
        got=f"{type(got).__name__}",
        expected="a list of lists of text",
        because="this is still an object of Arrow or pandas; .to_pylist() makes lists of it",
    )
    if got and all(isinstance(item, str) for item in got):
        because = "the captions of all images are in one list; keep one list an image"
        if any(item[:2] in ("b'", 'b"') for item in got):
            because = BYTES_REPR
        elif any(item.startswith("[") for item in got):
            because = "str() of a list is one text; keep the list: .to_pylist() or .as_py()"
        raise attempt.wrong(f"{got[:2]} …", f"{expected[1:3]} …", because)
    for row, texts in enumerate(got):
        problem = texts_problem(texts)
        if problem:
            raise attempt.wrong(f"image {row}: {problem[0]}", "a list of texts", problem[1])
    if len(got) != len(expected):
        raise attempt.wrong(f"{len(got)} lists", f"{len(expected)}, one an image", _count(got, expected))
    for row, (wanted, texts) in enumerate(zip(expected, got, strict=True)):
        attempt.require(
            len(texts) >= len(wanted),
            got=f"image {row}: {texts}",
            expected=f"{wanted}",
            because="captions are missing; an image has from none to three of them here, five in Flickr30K",
        )
        diagnosis = captions_problem(wanted, texts, [other for other in expected if other != wanted])
        if diagnosis:
            raise attempt.wrong(f"image {row}: {texts}", f"{wanted}", diagnosis)


def _count(got: list[list[str]], expected: list[list[str]]) -> str:
    if got == expected[:_ROWS]:
        return "only the first record batch was read; the file has several"
    if got == [texts for texts in expected if texts]:
        return "an image without captions has an empty list; keep its row"
    return "each row of the file gives one list"
