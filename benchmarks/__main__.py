"""`python -m benchmarks TOPIC …`: as `smallfiles bench TOPIC …`, with others beside ours.

The trap: a comparison whose one candidate fails must not lose the rest, so each runs in a process of its
own, and what fails is a line of the table.
"""

import sys

from smallfiles.cli import main

OTHERS = {
    "pack": "benchmarks.packing",
    "slow": "benchmarks.packing",
    "squashfs": "benchmarks.squashfs",
    "decode": "benchmarks.decoding",
    "load": "benchmarks.loaders",
}
"""The module of others for each topic that has some."""

if __name__ == "__main__":
    sys.exit(main(["bench", *sys.argv[1:]], others=OTHERS))
