"""Experiments with staging: where to, who copies, what a signal leaves, after how many epochs it pays.

The trap: a laptop's disk is so fast that nothing is gained by staging there. So the source is seen
through `slowfs`, whose bandwidth and latency are ours to choose, and every sentence says so.
Notebook 07 runs them.
"""

from helpers.experiments.nb07.epochs import Epochs, bound_table, measure_epochs
from helpers.experiments.nb07.killed import Killed, measure_killed
from helpers.experiments.nb07.places import Price, named_table, place_for, price_of_memory
from helpers.experiments.nb07.processes import shown
from helpers.experiments.nb07.together import Together, measure_together

__all__ = [
    "Epochs",
    "Killed",
    "Price",
    "Together",
    "bound_table",
    "measure_epochs",
    "measure_killed",
    "measure_together",
    "named_table",
    "place_for",
    "price_of_memory",
    "shown",
]
