# %% [markdown] id="top"
# # Exercise 05 · Deal the shards out, each sample once
#
# ★★☆ · 30 minutes · after [notebook 05](../notebooks/05_shard_a_dataset.ipynb)
#
# A training run has `ranks` processes, one per GPU, and each rank has `workers` processes that read for it. Nobody
# coordinates them. Each worker calls your function with its own numbers and reads the shards that the function returns.
# [Notebook 10](../notebooks/10_run_it_on_many_nodes.ipynb) (section 2) shows what happens if the split is wrong.

# %% id="start"
import sys

sys.path.append("..")
from helpers import show, start

setup = start("ex05")

# %% [markdown] id="deal"
# ## Task 1
#
# Return the shards that one worker of one rank reads. Ranks and workers are numbered from 0. Each shard goes to exactly
# one worker. Ranks differ by one shard at most, and so do the workers of a rank. Some may get no shard.
#
# `my_shards(shards: list[str], rank: int, ranks: int, worker: int, workers: int) -> list[str]`


# %% id="deal-answer"
def my_shards(shards: list[str], rank: int, ranks: int, worker: int, workers: int) -> list[str]:
    """Return the shards of one worker of one rank."""
    # --8<-- solution
    of_rank = shards[rank::ranks]
    return of_rank[worker::workers]
    # --8<-- stub
    # raise NotImplementedError  # your code: two lines are enough
    # --8<-- end


# %% id="deal-check"
from exercises.checks import ex05_shard_a_dataset as check

dealt = check.my_shards(my_shards)
dealt

# %% [markdown] id="deal-hints"
# <details>
# <summary>Hint 1: two steps</summary>
#
# First find the shards of the rank, as if it had only one worker. Then split these shards over its workers.
#
# </details>
#
# <details>
# <summary>Hint 2: deal in turn</summary>
#
# `cards[1::3]` is every third card, beginning with number 1. Nothing is rounded, no card is left over, and an empty
# result does not need a special case.
#
# </details>

# %% [markdown] id="shuffle"
# ## Task 2
#
# Now each epoch has its own order, which depends only on `seed` and `epoch`. Shards go to other workers from epoch to
# epoch. The rules of task 1 still apply:
#
# `my_shards_in_epoch(shards: list[str], rank: int, ranks: int, worker: int, workers: int, seed: int, epoch: int)
# -> list[str]`

# %% id="shuffle-answer"
import random


def my_shards_in_epoch(
    shards: list[str], rank: int, ranks: int, worker: int, workers: int, seed: int, epoch: int
) -> list[str]:
    """Return the shards of one worker in one epoch, in order."""
    # --8<-- solution
    deck = list(shards)
    random.Random(f"{seed} {epoch}").shuffle(deck)
    return my_shards(deck, rank, ranks, worker, workers)
    # --8<-- stub
    # raise NotImplementedError  # your code: three lines; my_shards may help
    # --8<-- end


# %% id="shuffle-check"
shuffled = check.my_shards_in_epoch(my_shards_in_epoch)
shuffled

# %% [markdown] id="shuffle-hints"
# <details>
# <summary>Hint 1: shuffle or split first</summary>
#
# If each worker shuffles only its own shards, it keeps these shards forever. So shuffle first, and split afterwards. Then
# all workers must find the same order without communicating.
#
# </details>
#
# <details>
# <summary>Hint 2: the same order everywhere</summary>
#
# `random.Random("any text")` is a separate generator. The same text gives the same numbers on every machine. Its `shuffle`
# changes a list in place, so copy the list first.
#
# </details>

# %% [markdown] id="equal"
# ## Task 3
#
# Ranks have unequal numbers of batches, but all must end after the same number. `batches` belong to one rank. There is at
# least one, and they can be read again. Return an iterator over exactly `count` batches. A rank with too few begins again,
# and a rank with too many stops.
#
# `exactly(batches: Iterable, count: int) -> Iterator`

# %% id="equal-answer"
import itertools
from collections.abc import Iterable, Iterator


def exactly(batches: Iterable, count: int) -> Iterator:
    """Return an iterator over `count` batches, from as many passes as it needs."""
    # --8<-- solution
    passes = itertools.repeat(batches)
    return itertools.islice(itertools.chain.from_iterable(passes), count)
    # --8<-- stub
    # raise NotImplementedError  # your code: two to five lines
    # --8<-- end


# %% id="equal-check"
equal = check.exactly(exactly)
equal

# %% [markdown] id="equal-hints"
# <details>
# <summary>Hint 1: a loop in a loop</summary>
#
# The inner loop is one pass over `batches`, and the outer loop repeats it. A function with `yield` returns an iterator, and
# `return` inside the function ends the iterator.
#
# </details>
#
# <details>
# <summary>Hint 2: why not cycle</summary>
#
# `itertools.cycle` keeps each element of the first pass, so all batches are in memory when the second pass begins.
# `itertools.chain.from_iterable(itertools.repeat(batches))` asks for a new pass instead. `itertools.islice` ends it.
#
# </details>

# %% [markdown] id="use"
# ## With your functions
#
# The first cell packs the images into shards of 60. In the second cell, 2 ranks with 3 workers each read one epoch as your
# functions tell them. If a rank has too few batches, your function `exactly` lets it begin again.

# %% id="read"
import tempfile
from pathlib import Path

from smallfiles.formats import tar
from smallfiles.pack import PackConfig, pack

sixty = PackConfig(options=tar.Options(max_count=60))
packed = pack(setup.source(), Path(tempfile.mkdtemp(dir=setup.scratch)) / "train.tars", sixty)
shards = sorted(str(path) for path in packed.path.glob("*.tar"))
places = [(rank, worker) for rank in range(2) for worker in range(3)]

# %% id="count"
import webdataset as wds

if not (dealt and shuffled and equal):
    show.say("Solve the tasks first. Then this cell reads with your functions.")
else:
    hands = [my_shards_in_epoch(shards, rank, 2, worker, 3, 0, 0) for rank, worker in places]
    read = [list(wds.WebDataset(hand, shardshuffle=False)) if hand else [] for hand in hands]
    by_rank = [
        [sample["__key__"] for part in read[first : first + 3] for sample in part]
        for first in (0, 3)
    ]
    keys = by_rank[0] + by_rank[1]
    batches = [[own[first : first + 32] for first in range(0, len(own), 32)] for own in by_rank]
    count = -(-packed.samples // (2 * 32))  # rounded up
    ended = [sum(1 for _ in exactly(of_rank, count)) for of_rank in batches]
    show.say(
        f"{len(places)} processes read {[len(hand) for hand in hands]} shards, together "
        f"**{len(keys)} samples, {len(set(keys))} different**; {packed.samples} were packed. "
        f"The ranks have {[*map(len, batches)]} batches of 32, and **both end after {ended}**."
    )
