"""Captions as numbers: cut into words, number the words, fill up to one length.

    vocabulary = Vocabulary.build(captions, min_count=2)
    loader = DataLoader(CaptionDataset(path, vocabulary), batch_size=32, collate_fn=collate, num_workers=2)

The trap: workers that are not forked import classes and functions by the name of their module. One that
was defined in a notebook has no such module, so the loader waits forever or fails; therefore the data set
and `collate` are defined here. Exercise 03 builds a loader from them.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch.utils.data import Dataset

from smallfiles import formats
from smallfiles.errors import FormatError, UsageError

PAD, UNKNOWN, START, END = range(4)
SPECIAL = ("<pad>", "<unk>", "<start>", "<end>")
"""Words that stand for no word, at the numbers `PAD`, `UNKNOWN`, `START`, `END`."""

_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")  # "don't" and "t-shirt" are one word each


def tokenise(caption: str) -> list[str]:
    """Cut a caption into lower-case words; punctuation is left out.

    Args:
        caption: Text; a letter and its accent may come as one character or as two.

    Raises:
        UsageError: It is not text.
    """
    if not isinstance(caption, str):
        raise UsageError(
            f"a caption is {type(caption).__name__} {str(caption)[:40]!r}",
            expected="text (str)",
            next_step="Decode bytes with .decode(), and pass captions one by one",
        )
    return _WORD.findall(unicodedata.normalize("NFC", caption).lower())


@dataclass(frozen=True)
class Vocabulary:
    """The words that a model knows; a word's number is its place.

    Args:
        words: `SPECIAL` first, then all others, each once.
    """

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.words[: len(SPECIAL)] != SPECIAL or len(set(self.words)) < len(self.words):
            raise UsageError(
                f"a vocabulary of {len(self.words):,} words that begins with {self.words[:4]}",
                expected=f"{SPECIAL} first and every word once",
                next_step="Make it with Vocabulary.build(captions)",
            )

    @classmethod
    def build(cls, captions: Iterable[str], *, min_count: int = 1, most: int | None = None) -> Vocabulary:
        """Count words and number them: the frequent ones first, equal ones by alphabet.

        Every rank of a job must come to the same numbers, so nothing depends on the order of a
        dictionary or of the captions.

        Args:
            captions: Captions of the training split, one text each.
            min_count: Leave out words that come less often; they become `<unk>`.
            most: Keep at most this many, the special ones not counted.

        Raises:
            UsageError: One text was given instead of many, or something that is not text.
        """
        if isinstance(captions, str | bytes):
            raise UsageError(
                f"the captions are one {type(captions).__name__}, {captions[:40]!r}",
                expected="many captions; the vocabulary of one text is that of its letters",
                next_step="Pass a list of captions",
            )
        if min_count < 1:
            raise UsageError(f"min_count is {min_count}", expected="1 or more", next_step="Start with 1")
        counts: Counter[str] = Counter()
        for caption in captions:
            counts.update(tokenise(caption))
        kept = [(word, count) for word, count in counts.items() if count >= min_count]
        kept.sort(key=lambda pair: (-pair[1], pair[0]))
        return cls(SPECIAL + tuple(word for word, _ in kept[:most]))

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    def encode(self, caption: str) -> list[int]:
        """Numbers of a caption's words between `START` and `END`; `UNKNOWN` for strange words."""
        return [START, *(self._numbers.get(word, UNKNOWN) for word in tokenise(caption)), END]

    def decode(self, numbers: Iterable[int]) -> str:
        """The words of these numbers; padding, start and end are left out."""
        return " ".join(self.words[number] for number in numbers if number not in (PAD, START, END))


def pad(rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Fill rows up to the longest with `PAD`.

    Args:
        rows: Numbers of words, of different lengths; may be empty.

    Returns:
        int64 tensors: `[rows, longest]`, and the lengths before filling.
    """
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    filled = torch.full((len(rows), max(map(len, rows), default=0)), PAD, dtype=torch.int64)
    for place, row in zip(filled, rows, strict=True):
        place[: len(row)] = torch.tensor(row, dtype=torch.int64)
    return filled, lengths


class CaptionItem(NamedTuple):
    """One image with its captions as numbers."""

    key: str
    image: bytes
    captions: list[list[int]]


class CaptionBatch(NamedTuple):
    """Several images; a caption that an image has not got is all `PAD` and of length 0.

    Args:
        keys: Names of the images.
        images: Their encoded bytes.
        tokens: int64 `[images, captions, words]`.
        lengths: int64 `[images, captions]`.
    """

    keys: list[str]
    images: list[bytes]
    tokens: torch.Tensor
    lengths: torch.Tensor


class CaptionDataset(Dataset[CaptionItem]):
    """A packed file of images and captions, for a DataLoader with any number of workers.

    The reader opens the file anew in each worker, so that no file offset is shared.

    Args:
        path: A packed file of any format.
        vocabulary: Numbers of words.

    Raises:
        FormatError: It cannot be opened, or holds labels.
    """

    def __init__(self, path: Path, vocabulary: Vocabulary) -> None:
        self.reader, self.vocabulary = formats.open(path), vocabulary
        if "captions" not in self.reader.fields:
            raise FormatError(
                f"{path} holds labels",
                expected="captions",
                next_step="Pack a source that has captions, such as Flickr30K",
            )

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, index: int) -> CaptionItem:
        texts = self.reader.table(["captions"], [index])["captions"][0].as_py()
        image = bytes(self.reader.read(index))  # a view into the file cannot leave this process
        return CaptionItem(self.reader.key(index), image, [self.vocabulary.encode(text) for text in texts])


def collate(items: Sequence[CaptionItem]) -> CaptionBatch:
    """Make a batch: the DataLoader's own way would refuse captions of different lengths."""
    most = max((len(item.captions) for item in items), default=0)
    rows = [row for item in items for row in [*item.captions, *[[]] * (most - len(item.captions))]]
    tokens, lengths = pad(rows)
    shape = (len(items), most)
    return CaptionBatch(
        [item.key for item in items],
        [item.image for item in items],
        tokens.reshape(*shape, tokens.shape[1]),
        lengths.reshape(shape),
    )
