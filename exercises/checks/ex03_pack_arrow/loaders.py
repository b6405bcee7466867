"""Tries of `make_loader`: can its workers find everything, and are its batches those of the file?

The trap: a DataLoader whose workers cannot unpickle what they need waits for ever. So what it would
send to them is looked into before it is started.
"""

from __future__ import annotations

import pickle
import pickletools
import re
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate
from torch.utils.data.sampler import SequentialSampler

from exercises.checks.attempt import Attempt, diagnose
from smallfiles import captions
from smallfiles.captions import CaptionBatch, CaptionDataset, Vocabulary
from smallfiles.formats import arrow
from smallfiles.samples import Sample, Schema

MIN_COUNT = 2
_TEXTS = (
    "A dog runs across the grass .",
    "The brown dog , seen from the side , jumps .",
    "Two boats .",
    "A dog and a cat sleep side by side on the grass .",
    "Grass .",
)


def try_loaders(attempt: Attempt) -> None:
    """Files whose last batch is full and is not."""
    with tempfile.TemporaryDirectory(prefix="smallfiles-") as place:
        for images, size in ((11, 4), (6, 3)):
            path = Path(place) / f"{images}.arrow"
            texts = _write(path, images)
            loader = attempt(path, size, _shown=f"a file of {images} images, batch_size={size}")
            _look(attempt, loader, size, texts)
            _compare(attempt, loader, size, texts)


def _write(path: Path, images: int) -> list[list[str]]:
    texts = [[_TEXTS[(image + n) % 5] for n in range(4)] + [f"Grass{image} ."] for image in range(images)]
    samples = [Sample(f"{i:03}.jpg", bytes([255, 216, i]) * 200, five) for i, five in enumerate(texts)]
    schema = Schema(count=images, total_bytes=images * 600, largest_bytes=600, target="captions")
    arrow.write(samples, path, schema=schema, digest=False)
    return texts


def _look(attempt: Attempt, loader: Any, size: int, texts: list[list[str]]) -> None:
    """What can be said without starting a worker."""
    attempt.require(
        isinstance(loader, DataLoader),
        got=type(loader).__name__,
        expected="a torch.utils.data.DataLoader",
        because="wrap the data set: return DataLoader(CaptionDataset(…), …)",
    )
    for what in (loader.dataset, loader.collate_fn):
        problem = unreachable(what)
        expected = "functions and classes of a module"
        attempt.require(not problem, got=problem, expected=expected, because=_FOUND)
    attempt.require(
        loader.num_workers > 0,
        got="num_workers=0",
        expected="num_workers=2",
        because="without workers the training process reads by itself, and its GPU waits meanwhile",
    )
    attempt.require(
        loader.batch_size == size,
        got=f"batch_size={loader.batch_size}",
        expected=f"batch_size={size}",
        because="pass batch_size on to the DataLoader",
    )
    attempt.require(
        not loader.drop_last,
        got="drop_last=True",
        expected="every image",
        because="drop_last leaves out the images of the last batch, the same ones in every epoch",
    )
    attempt.require(
        isinstance(loader.sampler, SequentialSampler),
        got=type(loader.sampler).__name__,
        expected="the stored order",
        because="the task asks for stored order; a shuffle belongs to training, and needs a seed an epoch",
    )
    vocabulary = getattr(loader.dataset, "vocabulary", None)
    if isinstance(vocabulary, Vocabulary):
        _words(attempt, vocabulary, texts)


_FOUND = (
    "workers are processes of their own. Unless they are forked (and from Python 3.14 on they are not) they "
    "import what they need by module and name, and what a notebook defines is in no module: the loader "
    "would wait for ever. Take CaptionDataset and collate from smallfiles.captions"
)


def unreachable(what: Any) -> str:
    """Why a worker that is not forked could not get at an object; empty if it can."""
    try:
        text = pickle.dumps(what)
    except Exception as error:
        return f"what cannot be sent to a worker ({type(error).__name__}: {str(error)[:80]})"
    strings: list[str] = []
    for operation, argument, _ in pickletools.genops(text):
        if operation.name == "GLOBAL" and str(argument).startswith("__main__ "):
            return f"{str(argument).split()[-1]}, which the notebook defines"
        if operation.name == "STACK_GLOBAL" and "__main__" in strings[-2:]:
            return f"{strings[-1]}, which the notebook defines"
        if isinstance(argument, str):
            strings.append(argument)
    return ""


def _words(attempt: Attempt, vocabulary: Vocabulary, texts: list[list[str]]) -> None:
    flat = [text for five in texts for text in five]
    expected = Vocabulary.build(flat, min_count=MIN_COUNT)
    if vocabulary == expected:
        return
    words = vocabulary.words[4:]
    if any(re.match(r"b'|b\"|x[0-9a-f]{2}", word) for word in words) or "xff" in "".join(words):
        because = "the vocabulary was built from str() of bytes, so it holds their Python spelling, not words"
    else:
        first = Vocabulary.build([five[0] for five in texts], min_count=MIN_COUNT)
        because = diagnose(
            vocabulary,
            (Vocabulary.build(flat), f"words that come once are in it; pass min_count={MIN_COUNT}"),
            (first, "only the first caption of each image was used; flatten the lists, all five count"),
            (
                Vocabulary.build([]),
                "no caption got into it; a generator is empty when it is used twice",
            ),
            otherwise=f"build it from all captions of the file, with min_count={MIN_COUNT}",
        )
    raise attempt.wrong(
        f"{len(words)} words: {', '.join(words[:6])} …",
        f"{len(expected) - 4} words: {', '.join(expected.words[4:10])} …",
        because,
    )


def _compare(attempt: Attempt, loader: DataLoader[Any], size: int, texts: list[list[str]]) -> None:
    try:
        batches = list(loader)
    except Exception as error:
        last = str(error).strip().splitlines()[-1:] or [""]
        raise attempt.wrong(
            f"{type(error).__name__} in a worker: {last[0][:150]}", "batches", _in_worker(loader)
        ) from error
    for batch in batches:
        attempt.require(
            isinstance(batch, CaptionBatch),
            got=f"batches of type {type(batch).__name__}",
            expected="batches of type CaptionBatch",
            because=_in_worker(loader),
        )
    keys = [key for batch in batches for key in batch.keys]
    attempt.expect([f"{i:03}.jpg" for i in range(len(texts))], keys, because="images are lost or in disorder")
    attempt.require(
        max(len(batch.keys) for batch in batches) == size,
        got=f"batches of {[len(batch.keys) for batch in batches]}",
        expected=f"batches of {size}",
        because="the sampler makes batches of another size",
    )
    vocabulary = Vocabulary.build([text for five in texts for text in five], min_count=MIN_COUNT)
    for number, batch in enumerate(batches):
        five = [vocabulary.encode(text) for row in texts[number * size :][:size] for text in row]
        tokens, lengths = captions.pad(five)
        same = torch.equal(batch.tokens.reshape(tokens.shape), tokens)
        attempt.require(
            same and torch.equal(batch.lengths.reshape(-1), lengths),
            got=f"tokens of batch {number}: {batch.tokens[0][0].tolist()} …",
            expected=f"{tokens[0].tolist()} …",
            because="the numbers are not those of the captions; is the vocabulary that of the whole file?",
        )


def _in_worker(loader: DataLoader[Any]) -> str:
    if loader.collate_fn is default_collate:
        return (
            "captions have different lengths, so they do not stack by themselves; pass "
            "collate_fn=captions.collate, which fills them up"
        )
    if not isinstance(loader.dataset, CaptionDataset):
        return "the data set is not CaptionDataset(arrow_file, vocabulary)"
    return "a worker could not make a batch; try loader.dataset[0] in a cell of its own"
