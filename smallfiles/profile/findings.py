"""Find what is wrong with the samples that a training received: a table of findings, with numbers and cures.

The arithmetic is that of notebook 10: count how often each sample arrived in an epoch, at how many ranks. The
traps: an epoch that the loop left early has lost nothing; a sampler that pads repeats a few samples in the
last batches, which is another fault than a loader that is not split; and a loader that draws with
replacement repeats samples because the program asked for that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from smallfiles.profile.sequences import Ids, Pass, Places, Received, Stream, merged
from smallfiles.progress import plural

EXACTLY_ONCE = "exactly once"
NOT_FINISHED = "no epoch was finished"
NO_REFERENCE = "no complete epoch to compare the resume with"
PART = "not all ranks are in this record"
MIXED = "the records are of several runs"
CURES = {
    MIXED: "join the records of one run; if it was one, torchrun did not know the other nodes (PET_NNODES)",
    "samples are seen by several ranks": "split by rank: DistributedSampler, ShardByJaxProcess, or __iter__",
    "samples arrive twice in an epoch": "split by worker with torch.utils.data.get_worker_info()",
    "samples are drawn with replacement": "if each sample must arrive once, sample without replacement",
    "samples are lost": "look at the first ones: a filter, a limit, a shard for nobody, a skipped error",
    "the same last samples are dropped in every epoch": "shuffle anew in each epoch, or use drop_last=False",
    "the last samples are dropped": "use drop_last=False if each sample must arrive",
    "padding by repetition": "in an evaluation, leave repeated samples out (gather_for_metrics)",
    "ranks have different numbers of batches": "deal samples evenly, or train inside of a join (notebook 10)",
    "the same order in every epoch": "call set_epoch(epoch) of the sampler or data set before each epoch",
    "equal random numbers in several workers": "make and seed generators in worker_init_fn",
    "shards that no worker read": "list these files, and have more shards than ranks x workers",
    "a shard is truncated": "write or copy it again, then compare: smallfiles verify SHARD",
    "a resume repeats samples": "save the state of the loader, and load it before the first batch",
    "a resume skips samples": "save the position that the loop has reached, not that of the workers",
    "a resume begins the order of an earlier epoch": "save the epoch, and call set_epoch(epoch) on resume",
    "samples cannot be told apart": "a transform makes them new each time: --key FIELD or MODULE:FUNCTION",
    "another order on another number of ranks": "order by seed and epoch first, then deal to ranks",
}
"""Name of each finding, and its cure, the most serious ones first."""
_SUFFICES = 0.98  # of a worker's samples in their stored order: it does not shuffle


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Args:
        name: One of `CURES`.
        numbers: How much, in words.
        places: First samples concerned, as places in their stream.
        files: Files concerned, instead.
        cure: Replaces the cure of the table.
        stream: Number of the stream.
    """

    name: str
    numbers: str
    places: tuple[int, ...] = ()
    files: tuple[str, ...] = ()
    cure: str = ""
    stream: int = 0


def findings(run: Received) -> list[Finding]:
    """Return what is wrong with a run; some findings come again in each epoch."""
    streams = enumerate(run.streams)
    found = [replace(each, stream=number) for number, stream in streams for each in _of_stream(stream)]
    return [*found, *_of_random_states(run), *_of_shards(run)]


def is_finished(run: Received) -> bool:
    """Tell whether every rank finished an epoch of each loader."""
    return all(any(all(each.ended for each in epoch) for epoch in stream.epochs) for stream in run.streams)


def continued(run: Received) -> Received:
    """Return a resumed run whose first epoch, which is the rest of one, counts as not finished."""
    streams = (each.with_passes(lambda one: {"ended": one.ended and one.epoch > 0}) for each in run.streams)
    return replace(run, streams=tuple(streams))


def is_compared(before: Received, after: Received) -> bool:
    """Tell whether a resume can be judged: all samples are known, or some rank group ran a whole epoch."""
    whole = [stream.epochs for stream in before.streams] + [stream.epochs[1:] for stream in after.streams]
    ran = any(all(each.ended for each in epoch) for epochs in whole for epoch in epochs)
    return is_finished(after) and (ran or all(stream.facts["covers"] for stream in after.streams))


def counts_of(passes: Iterable[Pass], size: int) -> Places:
    """Return how often each sample arrived."""
    total = np.zeros(size, np.int32)
    for each in passes:
        total += np.bincount(each.samples, minlength=size).astype(np.int32)
    return total


def _first(mask: Any) -> tuple[int, ...]:
    return tuple(np.flatnonzero(mask)[:5].tolist())


def _of_stream(stream: Stream) -> Iterator[Finding]:
    facts, size = stream.facts, len(stream.ids)
    losses: list[tuple[int, Any, list[Pass]]] = []
    for epoch in stream.epochs:
        yield from _repeats(stream, epoch)
        if all(each.ended for each in epoch) and len(epoch) >= facts["world"]:
            losses.append((epoch[0].epoch, counts_of(epoch, size) == 0, epoch))
            by_batches = sorted(epoch, key=lambda each: len(each.sizes))
            least, most = by_batches[0], by_batches[-1]
            if (common := len(least.sizes)) < len(most.sizes):
                numbers = f"epoch {most.epoch}: {len(most.sizes)} batches at rank {most.rank}"
                numbers += f", {common} at rank {least.rank}"
                places = tuple(most.samples[int(most.sizes[:common].sum()) :][:5].tolist())
                yield Finding("ranks have different numbers of batches", numbers, places)
    new = stream.identity == "content" and len(losses) > 1 and not (~losses[0][1] & ~losses[1][1]).any()
    if new:
        numbers = f"epochs {losses[0][0]} and {losses[1][0]} have no sample in common"
        yield Finding("samples cannot be told apart", numbers)
    known = facts["covers"] or facts.get("drawn") or (len(losses) > 1 and not new)
    if known and not (facts["replacement"] or facts["resampled"]):
        yield from _losses(stream, losses)
    yield from _same_orders(stream)


def _repeats(stream: Stream, epoch: list[Pass]) -> Iterator[Finding]:
    """Yield what arrived more than once in an epoch."""
    facts, size = stream.facts, len(stream.ids)
    one = [np.bincount(each.samples, minlength=size) for each in epoch]
    total, ranks = counts_of(epoch, size), np.sum([each > 0 for each in one], axis=0)
    again = total > 1
    if not again.any():
        return
    extra, samples = int((total[again] - 1).sum()), int(total.sum())
    numbers = f"epoch {epoch[0].epoch}: {plural(extra, 'repetition')} among {samples:,} samples"
    if facts["replacement"] or facts["resampled"]:
        yield Finding("samples are drawn with replacement", numbers, _first(again))
        return
    late = np.zeros(size, bool)
    for each in epoch:
        late[each.samples[len(each.samples) - int(each.sizes[-1:].sum()) :]] = True
    world, batch = max(facts["world"], 1), max(int(each.sizes.max(initial=1)) for each in epoch)
    short = extra < world or (extra < world * batch and all(len(each.sizes) > 1 for each in epoch))
    even = len({len(each.sizes) for each in epoch}) == 1
    if world > 1 and short and even and late[again].all() and all(each.ended for each in epoch):
        yield Finding("padding by repetition", f"{numbers}, in the last batch of a rank", _first(again))
        return
    several, twice = np.asarray(ranks > 1), np.any([each > 1 for each in one], axis=0)
    if several.any():
        share = f"; {int(several.sum()):,} samples at up to {int(ranks.max())} ranks"
        yield Finding("samples are seen by several ranks", numbers + share, _first(several))
    if twice.any():
        yield _twice(epoch, twice, numbers)


def _twice(epoch: list[Pass], twice: Any, numbers: str) -> Finding:
    """Return the finding of samples that a rank received twice, by one worker or by several."""
    counts = [(each, np.bincount(each.samples, minlength=len(twice)) > 1) for each in epoch]
    each, again = next((each, again) for each, again in counts if again.any())
    workers = sorted(set(each.worker_of_sample[each.samples == np.argmax(again)].tolist()))
    told = f"{numbers}; {int(twice.sum()):,} samples twice at one rank"
    cure = "look at the list of samples or shards, which names some of them twice, and at the sampler"
    if len(workers) > 1:
        told, cure = f"{told}, by workers {', '.join(map(str, workers))}", ""
    return Finding("samples arrive twice in an epoch", told, _first(twice), cure=cure)


def _missing(stream: Stream, mask: Any) -> int:
    """Return how many samples of an epoch did not arrive; an epoch may have fewer than its set (`drawn`)."""
    drawn = stream.facts.get("drawn")
    return int(mask.sum()) if drawn is None else max(0, drawn - int((~mask).sum()))


def _losses(stream: Stream, losses: list[tuple[int, Any, list[Pass]]]) -> Iterator[Finding]:
    lost = [(epoch, mask, passes) for epoch, mask, passes in losses if _missing(stream, mask)]
    if not lost:
        return
    epoch, mask, passes = lost[0]
    count, of = _missing(stream, mask), stream.facts.get("drawn") or len(stream.ids)
    batch = max(int(each.sizes.max(initial=1)) for each in passes)
    full = all((each.sizes == each.sizes.max(initial=0)).all() for each in passes)
    workers = max(1, stream.facts["workers"] if stream.facts["iterable"] else 1)
    short = count < len(passes) * batch * workers and full and (batch > 1 or count < len(passes))
    everywhere = len(lost) == len(losses) > 1
    same = everywhere and all((other == mask).all() for _, other, _ in lost)
    numbers = f"epoch {epoch}: {count:,} of {of:,} samples did not arrive"
    if same:
        numbers += f", and the same ones in all {len(lost)} epochs"
    name = "samples are lost"
    if short:
        name = "the same last samples are dropped in every epoch" if same else "the last samples are dropped"
    yield Finding(name, numbers, () if stream.facts.get("drawn") else _first(mask))


def repeats_its_order(stream: Stream) -> bool:
    """Tell whether all passes of each rank have one order."""
    by_rank = sorted(stream.passes, key=lambda each: each.rank)  # the epochs of a rank stay in their order
    pairs = [(a.samples, b.samples) for a, b in pairwise(by_rank) if a.rank == b.rank]
    shared = [min(len(a), len(b)) for a, b in pairs]
    same = (n > 3 and np.array_equal(a[:n], b[:n]) for n, (a, b) in zip(shared, pairs, strict=True))
    return bool(pairs) and all(same)


def _same_orders(stream: Stream) -> Iterator[Finding]:
    shuffles = stream.facts["shuffles"]
    if shuffles is False or not repeats_its_order(stream):
        return
    if shuffles or not is_stored_order(stream, stream.passes[0]):
        numbers = f"all {len(stream.epochs)} passes of each rank have one order"
        places = tuple(stream.passes[0].samples[:5].tolist())
        yield Finding("the same order in every epoch", numbers, places)


def spread(one: Pass) -> slice:
    """Return at most 200 positions of a pass, at equal distances."""
    return slice(None, None, len(one.samples) // 200 + 1)


def is_stored_order(stream: Stream, one: Pass) -> bool:
    """Tell whether each worker's samples come as they are stored: by index or name; a hash says nothing.

    Where samples have names, only those of `spread` are sure to be known.
    """
    if stream.identity == "content" or (stream.identity != "index" and not stream.names):
        return True
    rising = total = 0
    samples, workers = one.samples[spread(one)], one.worker_of_sample[spread(one)]
    for worker in np.unique(workers):
        order: list[Any] = samples[workers == worker].tolist()
        if stream.identity != "index":
            order = [_natural(stream.name(place)) for place in order]
        rising += sum(a < b for a, b in pairwise(order))
        total += len(order) - 1
    return rising >= _SUFFICES * total - 8


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _of_random_states(run: Received) -> Iterator[Finding]:
    for name, workers in run.equal:
        numbers = f"{plural(workers, 'worker')} of a rank began with the same state of {name}, and used it"
        yield Finding("equal random numbers in several workers", numbers)


def _of_shards(run: Received) -> Iterator[Finding]:
    """Yield shards beside those that were read, and shards that end too early."""
    ended = any(each.ended for stream in run.streams for each in stream.passes)
    whole = {name: _is_whole(Path(name)) for name in run.shards}
    if cut := tuple(name for name, is_whole in whole.items() if not is_whole):
        yield Finding("a shard is truncated", f"{plural(len(cut), 'shard')} of {len(whole):,}", files=cut[:5])
    if not ended:
        return
    patterns = {(str(path.parent), re.sub(r"\d+", "#", path.name)) for path in map(Path, run.shards)}
    unread = []
    for folder, pattern in sorted(patterns):
        found = (each for each in Path(folder).glob("*") if re.sub(r"\d+", "#", each.name) == pattern)
        beside = [str(each) for each in found if each.is_file()]
        unread += sorted(set(beside) - set(run.shards)) if "#" in pattern else []
    if unread:
        numbers = f"{plural(len(unread), 'shard')} beside the {len(run.shards):,} that were read"
        yield Finding("shards that no worker read", numbers, files=tuple(unread[:5]))


def _is_whole(path: Path) -> bool:
    """Tell whether a file has the end that its format demands; what cannot be read counts as whole."""
    ends = {".parquet": b"PAR1", ".tar": bytes(512)}
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            file.seek(max(0, size - 65_558))
            tail = file.read()
    except OSError:
        return True
    if path.suffix == ".zip":
        return b"PK\5\6" in tail
    return tail.endswith(ends.get(path.suffix, b"")) and (path.suffix != ".tar" or size % 512 == 0)


def of_resume(before: Received, after: Received) -> list[Finding]:
    """Return what is wrong with a run that was resumed: the first run, then the one that continued it."""
    found: list[Finding] = []
    for number, (first, then) in enumerate(zip(before.streams, after.streams, strict=False)):
        if first.identity == then.identity:
            found += [replace(each, stream=number) for each in _of_resumed(first, then)]
    return found


def _of_resumed(before: Stream, after: Stream) -> Iterator[Finding]:
    at = len(before.epochs)
    whole = merged([before, after.with_passes(lambda one: {"epoch": one.epoch + at})])
    epochs, size = whole.epochs, len(whole.ids)
    last = until_save(epochs[:at])
    then = next((epoch for epoch in epochs if epoch[0].epoch == at), [])
    if all(each.ended for each in last):
        same = [(a, b) for a in whole.passes if a.epoch <= last[0].epoch for b in then if a.rank == b.rank]
        equal = any(len(a.samples) > 3 and np.array_equal(a.samples, b.samples) for a, b in same)
        if equal and whole.facts["shuffles"]:
            text, places = f"after epoch {last[0].epoch}", tuple(then[0].samples[:5].tolist())
            yield Finding("a resume begins the order of an earlier epoch", text, places)
        return
    had, got = counts_of(last, size), counts_of(then, size)
    arrived = f"{int(had.sum()):,} samples before the resume, {int(got.sum()):,} in the first epoch after it"
    if (both := (had > 0) & (got > 0)).any():
        text = f"{int(both.sum()):,} samples again: {arrived}"
        yield Finding("a resume repeats samples", text, _first(both))
    neither = (had == 0) & (got == 0)
    if then and all(each.ended for each in then) and (count := _missing(whole, neither)):
        text = f"{count:,} samples never: {arrived}"
        yield Finding("a resume skips samples", text, _first(neither))


def until_save(epochs: Sequence[Sequence[Pass]]) -> list[Pass]:
    """Return the passes of the epoch of the last checkpoint, up to it; only one rank may know of it."""
    epoch = next((each for each in reversed(epochs) if any(one.saved for one in each)), epochs[-1])
    saved = max(one.saved or 0 for one in epoch)
    return [one.first_batches(saved) for one in epoch] if saved else list(epoch)


def of_ranks(runs: dict[int, Received]) -> list[Finding]:
    """Return where the order depends on the number of ranks.

    Args:
        runs: By number of ranks.
    """
    found: list[Finding] = []
    for number, streams in enumerate(zip(*(run.streams for run in runs.values()), strict=False)):
        orders = [
            [order_of(stream.epochs[0], stream.ids, by_batch) for by_batch in (False, True)]
            for stream in streams
        ]
        counts = [len(each[0]) for each in orders]
        least = 2 * min(counts) - max(counts)  # the ends are padded or dropped
        first, *others = [[order[:least].tobytes() for order in each] for each in orders]
        if not any(all(order in each for each in others) for order in first):
            numbers = f"the first epoch has another order on {', '.join(map(str, runs))} ranks"
            found.append(Finding("another order on another number of ranks", numbers, stream=number))
    return found


def order_of(passes: Sequence[Pass], ids: Ids, by_batch: bool) -> Ids:
    """Return the order of an epoch if its samples were dealt to the ranks one by one, or batch by batch."""
    turns = [np.repeat(np.arange(len(each.sizes)), each.sizes) for each in passes]
    if not by_batch:
        turns = [np.arange(len(each.samples)) for each in passes]
    places = np.concatenate([each.samples for each in passes])
    order: Ids = ids[places[np.argsort(np.concatenate(turns), kind="stable")]]
    return order
