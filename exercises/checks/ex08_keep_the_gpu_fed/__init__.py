"""Exercise 08: find the bottleneck of three loaders, and cure each.

    bottlenecks   task 1: what to mend, from measured stages
    reading       task 2: a file that is opened once
    views         task 3: a view for less work; meter counts the work
    collating     task 4: a batch of bytes
    practice      what the exercise measures with

Cures are judged by what they give and by what they do: opens, floats, pixels and bytes are counted. Time is
asked last, and generously.

The trap it teaches: the longest stage is not always what limits a training. Notebook 08 sends participants
here.
"""

from __future__ import annotations

from exercises.checks import Attempt, check
from exercises.checks.ex08_keep_the_gpu_fed import bottlenecks, collating, reading, views

_DIVISION = "with 0 workers the trainer makes the batches itself; ask for that before you divide"
_STACK = "numpy.stack puts the views behind each other; make whole numbers of labels by torch.tensor"


@check(
    buys="Nobody pays for more CPUs where the GPU is the limit, or for a GPU that waits for a disk.",
    errors={ZeroDivisionError: _DIVISION},
)
def bottleneck(attempt: Attempt) -> None:
    """`bottleneck(stages, workers, step_s)` names the stage to mend, or `training`."""
    bottlenecks.try_cases(attempt)


@check(
    buys="A thousand workers now open the file once each, not once for every image of every epoch.",
    limit_s=20,
    errors={AttributeError: "the handle is not there: set it to None in __init__, and open it in __call__"},
)
def reader(attempt: Attempt) -> None:
    """`Reader(disk, path)` opens the file at its first call, and gives bytes and labels."""
    reading.try_readers(attempt)


@check(
    buys="The same epoch takes a fraction of the CPU hours, and fewer workers feed the same GPU.",
    limit_s=40,
    errors={IndexError: "rows come first: pixels[top:bottom, left:right]"},
)
def picture(attempt: Attempt) -> None:
    """`picture(data, box, size)` makes a view in bytes, and scales nothing that is not shown."""
    views.try_views(attempt)


@check(
    buys="A quarter of the bytes goes to the trainer and to the GPU, which makes floats of them in no time.",
    limit_s=20,
    errors={ValueError: _STACK, TypeError: _STACK},
)
def collate(attempt: Attempt) -> None:
    """`collate(pictures, labels)` makes a batch of bytes."""
    collating.try_batches(attempt)


__all__ = ["bottleneck", "collate", "picture", "reader"]
