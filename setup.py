"""Builds aside: a `build/` in the checkout stays, and would put what is deleted since into the next wheel."""

import sys
import tempfile

from setuptools import setup

if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(
        f"error: this is Python {sys.version_info[0]}.{sys.version_info[1]}; expected Python 3.11 or newer."
    )

with tempfile.TemporaryDirectory(prefix="smallfiles-build-") as place:
    setup(options={"build": {"build_base": place}})  # all the rest is in pyproject.toml
