"""A small real training loop, alone or on many ranks, that tells how long it waited for data.

    config      what to train, printable as a command line
    models      a small CNN, or a ResNet of torchvision
    group       the ranks of one training, and what they agree on
    waiting     where the time of a step went
    classes     whether there are labels, and the same in both sets
    checkpoint  written aside, read without unpickling anything
    loop        epochs of steps; accuracy over all ranks

The trap: throughput alone does not say whether data or the model is the limit. So every report has the share
of time in which nothing could be computed because no batch was there. Notebooks 08 and 10 use it.
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
