"""Arrays in files of strangers: what NumPy wrote comes back, and no header costs memory or ends a program."""

import io
import struct
import warnings

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from smallfiles.contents import array_view


def saved(array):
    kept = io.BytesIO()
    np.save(kept, array, allow_pickle=True)
    return kept.getvalue()


def with_header(text, behind=b"x" * 8):
    text = text.encode("latin-1") + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + behind


KINDS = st.one_of(
    arrays.integer_dtypes(),
    arrays.floating_dtypes(),
    arrays.complex_number_dtypes(),
    arrays.boolean_dtypes(),
    arrays.datetime64_dtypes(),
    arrays.unicode_string_dtypes(min_len=1, max_len=9),
    arrays.array_dtypes(arrays.integer_dtypes(), allow_subarrays=False, min_size=1),
)
ARRAYS = arrays.arrays(KINDS, arrays.array_shapes(min_dims=0, min_side=0, max_side=5))


@given(ARRAYS, st.booleans())
def test_what_numpy_saved_is_the_same_array(array, by_columns):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # version 3.0
        data = saved(np.asfortranarray(array) if by_columns else array)
    assume(data[6] < 3)  # a record with a field whose name is beyond Latin-1
    found, truth = array_view(data), np.load(io.BytesIO(data))
    assert (found.shape, found.dtype, found.tobytes()) == (truth.shape, truth.dtype, truth.tobytes())


@given(ARRAYS, st.data())
def test_a_changed_file_is_refused_or_an_array_of_its_bytes(array, drawn):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # version 3.0
        data = bytearray(saved(array))
    data[drawn.draw(st.integers(0, len(data) - 1))] = drawn.draw(st.integers(0, 255))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "written by Python 2"
        try:
            found = array_view(data)
        except ValueError:
            return
    assert found.nbytes <= len(data)


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\x93NUMPY", b"\x93NUMPY\3\0", saved(np.arange(9))[:-1], saved(np.arange(9)) + b"x"),
        saved(np.array([{}], object)),
        with_header("[" * 9000),
        with_header("{'descr': " + "[" * 4000 + "]" * 4000 + ", 'fortran_order': False, 'shape': (1,)}"),
        with_header("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, -1)}"),
        with_header("{'descr': '<f8', 'fortran_order': False, 'shape': (1_000_000_000_000,)}"),
        with_header(f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({10**30},)}}"),
        with_header("{'descr': '<U0', 'fortran_order': False, 'shape': (10_000_000_000,)}", b""),
        with_header("{'descr': '<f8', 'fortran_order': False, 'shape': (" + "1," * 100 + ")}"),
    ],
)
def test_what_is_no_array_is_refused_before_memory_is_reserved(data):
    with pytest.raises(ValueError):
        array_view(data)
