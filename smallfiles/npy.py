"""Arrays of NumPy in files that a stranger may have written.

`numpy.load` believes the header: brackets in brackets end its parser, a shape of terabytes asks for the
memory, and pickled objects would run code. Here the header is compared with the bytes that follow before
anything is reserved. Short, since packing, previews and batches ask this one question. Notebook 13 packs
such files.

Format: numpy.lib.format, versions 1.0 and 2.0 (3.0 is for records whose fields have names beyond Latin-1).
"""

from __future__ import annotations

import io
import math
from tokenize import TokenError
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as layout

from smallfiles.samples import Buffer

SUFFIX = ".npy"
_MOST_HEADER = 12 + 10_000
"""Bytes; NumPy reads no longer header."""
_HEADERS = {(1, 0): layout.read_array_header_1_0, (2, 0): layout.read_array_header_2_0}


def view(data: Buffer) -> npt.NDArray[Any]:
    """The array in the bytes of a `.npy` file, which are not copied.

    Args:
        data: The whole file.

    Returns:
        The array; read-only if the bytes are.

    Raises:
        ValueError: It is no such file, is cut off or goes on behind the array, or holds pickled objects.
    """
    file = io.BytesIO(data[:_MOST_HEADER])
    version = layout.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"version {version[0]}.{version[1]} of the format, where 1.0 and 2.0 can be read")
    try:
        shape, by_columns, dtype = _HEADERS[version](file)
    except (SyntaxError, TokenError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"its header makes no sense: {type(error).__name__}") from error
    if dtype.hasobject or not dtype.itemsize:
        raise ValueError(f"{dtype} elements: pickled objects could run code, and others have bytes")
    count, start = math.prod(shape), file.tell()
    if min(shape, default=0) < 0 or count * dtype.itemsize != len(data) - start:
        raise ValueError(
            f"{dtype} {list(shape)} takes {count * dtype.itemsize:,} bytes, and {len(data) - start:,} follow"
        )
    return np.ndarray(shape, dtype, data, start, order="F" if by_columns else "C")
