"""Captions become the same numbers on every rank, and a batch gives back what went in."""

import pickle
import random

import pytest
import torch
from given import Given, bare, schema_of
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from helpers import captions
from helpers.captions import END, PAD, SPECIAL, START, UNKNOWN, CaptionDataset, CaptionItem, Vocabulary
from smallfiles.errors import FormatError, UsageError
from smallfiles.formats import arrow

TEXTS = ["A dog runs , and a cat .", "The dog sleeps .", "Zwei Hunde : café !"]


def packed(path, targets, kind="captions"):
    samples = [Given(f"{i}.jpg", bytes([i]) * (i + 1), target) for i, target in enumerate(targets)]
    arrow.write(bare(samples), path, schema=schema_of(samples, captions=kind == "captions"))
    return path


class TestWords:
    @pytest.mark.parametrize(
        ("caption", "words"),
        [
            ('He says " stop " , twice .', ["he", "says", "stop", "twice"]),
            ("A man's T-shirt isn\u2019t red_blue", ["a", "man's", "t-shirt", "isn\u2019t", "red", "blue"]),
            ("cafe\u0301", ["caf\u00e9"]),
            ("3 dogs -- 2 cats", ["3", "dogs", "2", "cats"]),
            ("", []),
            (" . , \n", []),
        ],
    )
    def test_words_are_lower_case_without_punctuation(self, caption, words):
        assert captions.tokenise(caption) == words

    @pytest.mark.parametrize("caption", [b"a dog", None, ["a dog"], float("nan")])
    def test_what_is_no_text_is_refused(self, caption):
        with pytest.raises(UsageError, match="text"):
            captions.tokenise(caption)


class TestVocabulary:
    def test_frequent_words_come_first_and_equal_ones_by_alphabet(self):
        assert Vocabulary.build(TEXTS).words[4:9] == ("a", "dog", "and", "café", "cat")

    @given(st.lists(st.text("abc ", max_size=12), max_size=12), st.integers(0, 99))
    def test_the_order_of_captions_does_not_matter(self, texts, seed):
        shuffled = random.Random(seed).sample(texts, len(texts))
        assert Vocabulary.build(shuffled) == Vocabulary.build(texts)

    def test_rare_words_and_those_beyond_a_bound_become_unknown(self):
        vocabulary = Vocabulary.build(TEXTS, min_count=2)
        assert vocabulary.words == (*SPECIAL, "a", "dog")
        assert vocabulary.encode("A red dog") == [START, 4, UNKNOWN, 5, END]
        assert Vocabulary.build(TEXTS, most=1).words == (*SPECIAL, "a")

    @given(st.lists(st.text(max_size=20), max_size=5))
    def test_decoding_gives_the_words_back(self, texts):
        vocabulary = Vocabulary.build(texts)
        for text in texts:
            assert vocabulary.decode(vocabulary.encode(text)) == " ".join(captions.tokenise(text))

    @pytest.mark.parametrize("given", ["a dog", b"a dog", str(b"a dog"), [b"a dog"], [["a dog"]]])
    def test_one_text_bytes_nested_lists_and_a_minimum_below_one_are_refused(self, given):
        with pytest.raises(UsageError, match="text"):
            Vocabulary.build(given)
        with pytest.raises(UsageError, match="min_count is 0"):
            Vocabulary.build(TEXTS, min_count=0)

    @pytest.mark.parametrize("words", [("a",), SPECIAL[::-1], (*SPECIAL, "a", "a")])
    def test_words_without_the_special_ones_or_twice_are_refused(self, words):
        with pytest.raises(UsageError, match="every word once"):
            Vocabulary(words)


class TestBatches:
    @given(st.lists(st.lists(st.integers(1, 99), max_size=9), max_size=9))
    def test_padding_keeps_every_row_and_its_length(self, rows):
        filled, lengths = captions.pad(rows)
        assert filled.dtype == lengths.dtype == torch.int64
        assert filled.shape == (len(rows), max(map(len, rows), default=0))
        for row, length, kept in zip(filled.tolist(), lengths.tolist(), rows, strict=True):
            assert row[:length] == kept and set(row[length:]) <= {PAD}

    def test_a_batch_of_uneven_captions_is_filled_up(self):
        batch = captions.collate(
            [CaptionItem("a", b"1", [[2, 5, 3], [2, 3]]), CaptionItem("b", b"2", [[2, 6, 7, 3]])]
        )
        assert batch.tokens.tolist() == [[[2, 5, 3, PAD], [2, 3, PAD, PAD]], [[2, 6, 7, 3], [PAD] * 4]]
        assert batch.lengths.tolist() == [[3, 2], [4, 0]]
        assert (batch.keys, batch.images) == (["a", "b"], [b"1", b"2"])
        batch = captions.collate([CaptionItem("a", b"1", [])])
        assert batch.tokens.shape == (1, 0, 0) and batch.lengths.shape == (1, 0)


class TestDataset:
    @pytest.mark.parametrize(
        ("workers", "context"), [(0, None), (2, "fork"), pytest.param(1, "spawn", marks=pytest.mark.slow)]
    )
    def test_workers_deliver_everything_in_stored_order(self, tmp_path, workers, context):
        targets = [TEXTS[: i % 4] for i in range(11)]
        vocabulary = Vocabulary.build(TEXTS)
        dataset = CaptionDataset(packed(tmp_path / "c.arrow", targets), vocabulary)
        loader = DataLoader(
            dataset,
            batch_size=4,
            num_workers=workers,
            collate_fn=captions.collate,
            multiprocessing_context=context,
        )
        assert pickle.loads(pickle.dumps(dataset))[0] == dataset[0]  # also after it was read
        batches = list(loader)
        assert [len(batch.keys) for batch in batches] == [4, 4, 3]
        assert [key for batch in batches for key in batch.keys] == [f"{i}.jpg" for i in range(11)]
        assert [image for batch in batches for image in batch.images] == [
            bytes([i]) * (i + 1) for i in range(11)
        ]
        told = [
            [vocabulary.decode(row) for row, length in zip(rows, lengths, strict=True) if length]
            for batch in batches
            for rows, lengths in zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True)
        ]
        assert told == [[" ".join(captions.tokenise(text)) for text in target] for target in targets]

    def test_a_file_of_labels_is_refused(self, tmp_path):
        path = packed(tmp_path / "l.arrow", [1, 2], kind="label")
        with pytest.raises(FormatError, match="holds labels"):
            CaptionDataset(path, Vocabulary.build(TEXTS))
