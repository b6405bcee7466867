"""What small files cost: inodes and blocks, time for each operation, time by size, opens in flight.

    tree = count_tree(Path("data"))
    times = time_operations(Path("data"), [Path("data/cat/1.jpg")])

The trap: everything here is cheap on the disk of a laptop and dear on a parallel file system; so
each result names its file system and its cache, and a model of a slow server is called a model.
Notebook 01 teaches it.
"""

from helpers.bench.cost.counting import TreeCount, count_tree, folder_of
from helpers.bench.cost.in_flight import InFlight, measure_in_flight, seconds_to_read
from helpers.bench.cost.ladder import Ladder, measure_ladder
from helpers.bench.cost.operations import Operations, time_operations
from helpers.bench.cost.server import ModelServer
from helpers.bench.cost.slow import slow_finding

__all__ = [
    "InFlight",
    "Ladder",
    "ModelServer",
    "Operations",
    "TreeCount",
    "count_tree",
    "folder_of",
    "measure_in_flight",
    "measure_ladder",
    "seconds_to_read",
    "slow_finding",
    "time_operations",
]
