"""A small real training loop, on one rank or many, that measures how long it waits for data.

    config      what to train, printable as a command line
    models      a small CNN, or a ResNet of torchvision; labels and classes of the sets
    group       the ranks of one training, and their collective operations
    step_timer  where the time of a step goes
    checkpoint  written to a temporary file and renamed, read without unpickling
    loop        epochs of steps; accuracy over all ranks

The trap: throughput alone does not show whether the data or the model is the limit. So every report has the
share of time in which nothing could be computed because no batch was ready. Notebooks 08 and 10 use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smallfiles import lazy

if TYPE_CHECKING:
    from smallfiles.training.config import TrainConfig as TrainConfig
    from smallfiles.training.loop import EpochReport as EpochReport
    from smallfiles.training.loop import TrainReport as TrainReport
    from smallfiles.training.loop import train as train

__getattr__ = lazy.names(__name__)
