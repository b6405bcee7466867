"""Ours beside other people's software, in one run: `python -m benchmarks TOPIC …`.

The topics, flags and records are those of `smallfiles bench`; what is added here are re-statements of how
others do it, each as its authors teach it, and the loaders of others where they are installed. Nothing
imports this package; the toolbox is told its modules by name. `make bench` runs all of it.
"""
