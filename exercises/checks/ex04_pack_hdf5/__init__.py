"""Exercise 04: turn variable-length rows into one run of bytes, and read it in workers.

The traps it teaches: n samples have n + 1 borders; a list of a photograph's bytes is a list of Python
integers; a handle opened before a fork belongs to the parent. Notebook 04 sends participants here.
"""

from exercises.checks.ex04_pack_hdf5.converting import write_blob
from exercises.checks.ex04_pack_hdf5.reading import read_sample

__all__ = ["read_sample", "write_blob"]
