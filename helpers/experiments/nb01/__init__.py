"""What small files cost: inodes and blocks, time for each operation, time by size, opens in flight.

    tree = count_tree(Path("data"))
    times = time_operations(Path("data"), [Path("data/cat/1.jpg")])

The trap: everything here is cheap on the disk of a laptop and dear on a parallel file system; so
each result names its file system and its cache, and a model of a slow server is called a model.
Notebook 01 teaches it.
"""

from helpers.experiments.nb01.counting import TreeCount, count_tree, folder_of
from helpers.experiments.nb01.ladder import Ladder, measure_ladder
from helpers.experiments.nb01.operations import Operations, time_operations
from helpers.experiments.nb01.server import ModelServer
from helpers.experiments.nb01.slow import slow_finding
from smallfiles.measure.in_flight import InFlight, measure_in_flight, seconds_to_read

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
