"""Builds aside: a `build/` in the checkout stays, and would put what is deleted since into the next wheel."""

import tempfile

from setuptools import setup

with tempfile.TemporaryDirectory(prefix="smallfiles-build-") as place:
    setup(options={"build": {"build_base": place}})  # all the rest is in pyproject.toml
