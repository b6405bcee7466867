"""Exercise 03: Flickr30K in one Arrow file, read by a DataLoader.

    read_captions       results.csv, its bad row repaired
    write_flickr30k     one row per image; the check opens the file
    write_whole         a complete file under its name, or none; see `whole_file`
    captions_of         the text without the images
    caption_loader      batches of padded numbers from two workers
    flickr30k_file      looks at a file that is already there, made by a job from the whole set

The five mistakes of a common first solution are among those that are known: the wrong delimiter, a NaN
caption, an image stored once per caption, a vocabulary of `str(bytes)`, the whole file read to get its
captions. Notebook 03 sends participants here.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import torch
from PIL import Image
from torch.utils.data import DataLoader, SequentialSampler

from exercises.checks import Attempt, Verdict, check
from exercises.checks.whole_file import write_whole as write_whole
from helpers.captions import CaptionBatch, CaptionDataset, Vocabulary, collate
from helpers.experiments.nb03 import HEADER, Truth, lay_out, practice_folder, row, truth_of, watched
from smallfiles import formats
from smallfiles.errors import FormatError
from smallfiles.measure import system_calls
from smallfiles.progress import bytes_text

MOST_ROWS = 128
_BUYS = "One large file now stands for {count:,} small ones; it holds every caption, and each image once."

BAD_ROW = "one row of results.csv lost its second `|`; there the comment follows the number. Repair it"
QUOTING = "quotes belong to the captions; tell a csv reader so (csv.QUOTE_NONE), or cut the lines yourself"
BYTES = "str() of bytes gives their Python spelling, with b' in front; decode them: data.decode('utf-8')"
DELIMITER = "the delimiter is `|`, and a caption may hold one; cut each line at its first two only"


# --- Captions of one image ---

Fault: TypeAlias = tuple[Callable[[list[str], Any], bool], str]


def _some(fits: Callable[[Any], bool]) -> Callable[[list[str], Any], bool]:
    return lambda wanted, given: any(fits(text) for text in given if text not in wanted)


def _bare(texts: list[str]) -> list[str]:
    return [" ".join(text.replace('"', " ").split()) for text in texts]


# What a wrong list of captions looks like, and the sentence that helps; the first that fits is shown.
TEXT_FAULTS: tuple[Fault, ...] = (
    (lambda _, got: not isinstance(got, list), "an image has a list of captions; .to_pylist() makes one"),
    (_some(lambda text: isinstance(text, bytes)), "captions are text; decode bytes: data.decode('utf-8')"),
    (_some(lambda text: not isinstance(text, str)), f"a caption is lost, and became NaN or null: {BAD_ROW}"),
    (_some(lambda text: text[:2] in ("b'", 'b"')), BYTES),
    (lambda wanted, got: [t.strip() for t in got] == wanted, "blanks are left around the text; use .strip()"),
    (_some(lambda text: re.match(r"\|?\s*\d+(\s*\||\s)", text) is not None), f"a number is left: {BAD_ROW}"),
    (lambda wanted, got: sorted(got) == sorted(wanted), "the order is not that of comment_number"),
    (_some(lambda text: "\n" in text.strip()), f"two rows became one: {QUOTING}"),
    (lambda wanted, got: _bare(got) == _bare(wanted), QUOTING),
    (lambda wanted, got: any("|" in t for t in wanted) and len(got) == len(wanted), DELIMITER),
    (
        lambda wanted, got: len(got) == len(wanted) - 1,
        f"one caption is lost; drop no row: {BAD_ROW}",
    ),
    (lambda wanted, got: True, "each image has its own captions, all of them and once, as in the table"),
)
MIXED_UP = "these are the captions of another image: the rows of images and captions went out of step"


def _expect_texts(attempt: Attempt, wanted: Mapping[Any, list[str]], given: Mapping[Any, Any]) -> None:
    """Refuse the first image that has other captions."""
    for name, texts in wanted.items():
        found = given[name]
        if type(found) is not list or found != texts:
            mixed = type(found) is list and found and found in wanted.values()
            because = MIXED_UP if mixed else next(text for fits, text in TEXT_FAULTS if fits(texts, found))
            raise attempt.wrong(f"{name}: {found}", f"{name}: {texts}", because)


# --- Task 1: the table ---


_DOG = 'A dog runs , jumps and barks .|Someone calls it " dog " .|A brown dog in a café .'
_DOG += "|4 legs and a tail .|A dog , seen from the side ."
_BOAT = 'A boat on a lake .|" Boats for hire , says a sign .|Two people row .|Clouds , water .|" Closed .'
_DOGS = [("1000092795.jpg", number, text) for number, text in enumerate(_DOG.split("|"))]
_BOATS = [("36979.jpg", number, text) for number, text in enumerate(_BOAT.split("|"))]
_SIGNS = [("4954.jpg", 0, "A sign says A | B ."), ("4954.jpg", 1, "Black ."), ("4954.jpg", 2, "A | .")]
TABLES: dict[str, tuple[list[tuple[str, int, str]], int | None]] = {
    # What is special, rows, and the place of the spoilt one: never line 20,001, which could be skipped.
    "one image, tidy": (_DOGS, None),
    "captions with quotes that are not closed": (_DOGS + _BOATS, None),
    "one row has lost its second |": (_DOGS + _BOATS, 4),
    "another row has lost it, and begins with a digit": (_BOATS + _DOGS, 8),
    "rows in another order": (sorted(_DOGS + _BOATS, key=lambda cells: (-cells[1], cells[0])), None),
    "captions that hold a |": (_SIGNS + _DOGS, None),
    "no rows at all": ([], None),
}


@check(
    buys="No caption is lost, and no job stops at line 20,001.",
    errors={
        ValueError: f"a row has fewer or more parts than your code expects: {DELIMITER}; and {BAD_ROW}",
        IndexError: f"a row has fewer parts than your code expects: {BAD_ROW}",
        KeyError: "the header is `image_name| comment_number| comment`, with blanks before two of them",
    },
)
def read_captions(attempt: Attempt) -> None:
    """`read_captions(csv_file)` gives the captions of each image, in the order of their numbers."""
    path = attempt.folder() / "results.csv"
    for what, (rows, spoilt) in TABLES.items():
        lines = [row(*cells, spoilt=n == spoilt) for n, cells in enumerate(rows)]
        path.write_text("".join([HEADER, *lines]), encoding="utf-8")
        got = attempt(path, _shown=f"results.csv: {what}")
        because = "the result is looked up by image name later, so it has to be a dict"
        attempt.require(isinstance(got, dict), got, "a dict: image name -> list of captions", because)
        wanted: dict[str, list[str]] = {name: [] for name, _, _ in rows}
        for name, _, text in sorted(rows, key=lambda cells: cells[1]):
            wanted[name].append(text)
        _expect_names(attempt, wanted, got)
        _expect_texts(attempt, wanted, got)


def _expect_names(attempt: Attempt, wanted: Mapping[str, Any], got: Mapping[Any, Any]) -> None:
    because = "images are lost, as where an open quote swallows all rows after it; csv.QUOTE_NONE avoids it"
    if set(got) - set(wanted):
        because = f"a name is text before the first `|`, and the first line is the header; {DELIMITER}"
    attempt.require(set(got) == set(wanted), f"names {sorted(map(str, got))}", f"{sorted(wanted)}", because)


# --- A folder to pack ---


NAMES = ("998845445.jpg", "1000092795.jpg", "36979.jpg", "2199200615.jpg", "10002456.jpg", "4954.jpg")


def _awkward_folder(place: Path) -> Path:
    """Six images with everything that the real folder has to trip over, and rows out of order."""
    texts, images = _BOAT.split("|"), {}
    cells = [(name, number) for number in (3, 0, 4, 1, 2) for name in NAMES]
    rows = [row(n, i, f"{texts[i][:-2]} of {n} .", spoilt=(n, i) == (NAMES[3], 4)) for n, i in cells]
    for seed, name in enumerate(NAMES):
        pixels = np.random.default_rng(seed).integers(0, 256, (24, 32, 3), np.uint8)
        Image.fromarray(pixels).save(place / name, quality=93 - seed, comment=b"from a camera")
        images[name] = place / name
    return lay_out(place / "awkward", images, rows)


# --- Task 2: the file ---

_ERRORS: dict[type[Exception], str] = {
    KeyError: "an image has no captions under its name; the key is path.name, and every row counts",
    StopIteration: "nothing was found; images and results.csv lie a few folders deep: folder.rglob(…)",
}


def write_flickr30k(answer: Any, folder: Path) -> Verdict:
    """`write_flickr30k(folder, out)` packs a Flickr30K folder and gives the number of images.

    Args:
        answer: The participant's function.
        folder: A Flickr30K folder, synthetic or real; of a large one only a part is packed.
    """

    @check(buys=_BUYS.format(count=len(truth_of(folder).captions)), limit_s=120, errors=_ERRORS)
    def write_flickr30k(attempt: Attempt) -> None:
        place = attempt.folder()
        small = truth_of(_awkward_folder(place))
        practice = truth_of(practice_folder(folder, place / "part"))
        for truth, what in ((small, "an awkward folder"), (practice, folder.name)):
            count, out = len(truth.captions), place / f"{truth.folder.name}.arrow"
            got = attempt(truth.folder, out, _shown=f"{count:,} images of {what}, {out.name}")
            attempt.given(f"the file that write_flickr30k made of {what}")
            _examine(attempt, out, truth)
            attempt.expect(count, got, because="return the number of images that were written")

    return write_flickr30k(answer)


_TASKS_FIRST = "Solve the five tasks above first; this check then looks at the file that your functions made."


def flickr30k_file(path: Path | None, folder: Path) -> Verdict:
    """Say what is wrong with a packed Flickr30K that is already there, for example made by a job.

    Args:
        path: The Arrow file; None if there is none yet.
        folder: The folder that it was made of; of a large set 2,000 images are compared in full.
    """

    @check(buys=_BUYS.format(count=len(truth_of(folder).captions)), limit_s=600, start=_TASKS_FIRST)
    def flickr30k_file(attempt: Attempt) -> None:
        attempt.given(f"the file {attempt.answer.name}, made of {folder.name}")
        _examine(attempt, attempt.answer, truth_of(folder))

    return flickr30k_file(path)


def _examine(attempt: Attempt, path: Path, truth: Truth) -> None:
    """Raise the first thing that is wrong with a file; each look supposes that those before found nothing."""
    reader = _opened(attempt, path)
    batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
    rows, texts = sum(batch.num_rows for batch in batches), sum(map(len, truth.captions.values()))
    one_each = rows <= len(truth.captions) or not texts - 5 <= rows <= texts  # bad rows may be dropped too
    got = f"{rows:,} rows for {len(truth.captions):,} images"
    because = "one row per caption stores every image five times; gather the captions of an image first"
    attempt.require(one_each, got, "one row per image, with the list of its captions", because)
    _types(attempt, reader.schema)
    _names(attempt, [name for batch in batches for name in batch["key"].to_pylist()], list(truth.captions))
    _batches(attempt, [batch.num_rows for batch in batches])
    given = (texts for batch in batches for texts in batch["captions"].to_pylist())
    _expect_texts(attempt, truth.captions, dict(zip(truth.captions, given, strict=True)))
    _bytes(attempt, batches, truth)


def _opened(attempt: Attempt, path: Path) -> pa.RecordBatchFileReader:
    because = "nothing was written there; open `out` for writing, not another name"
    attempt.require(path.is_file(), "no file", "an Arrow file at the path `out`", because)
    with path.open("rb") as file:
        start = file.read(8)
    because = "Parquet and IPC streams give no single rows; use pa.ipc.new_file, and close the writer"
    attempt.require(start[:6] == b"ARROW1", f"it begins with {start!r}", "an Arrow IPC file", because)
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        formats.get("arrow").open(path).info()
    except pa.ArrowInvalid as error:
        because = "its footer is missing: the writer was not closed; use `with pa.ipc.new_file(…) as writer`"
        raise attempt.wrong(f"cannot be opened ({error})", "an Arrow IPC file", because) from error
    except FormatError as error:
        if "compressed" in error.got:
            because = "one image cannot be read out of a compressed batch alone, and JPEGs do not shrink"
            raise attempt.wrong("compressed record batches", "uncompressed ones", because) from error
        if not any(kind in error.expected for kind in ("binary column", "captions")):  # types tell more later
            raise
    return reader


def _types(attempt: Attempt, schema: pa.Schema) -> None:
    for name, kind, because in (
        ("key", "string", "the name of the image is text: pa.string()"),
        ("captions", "list<string>", "a list of decoded texts, none of them NaN: pa.list_(pa.string())"),
        ("data", "binary", f"no text and no numbers, but what read_bytes() gives: pa.binary(). {BYTES}"),
    ):
        there = name in schema.names
        missing = f"no column is called {name}; a reader finds columns by their names"
        attempt.require(there, f"the columns {schema.names}", "key, captions, data", missing)
        found = str(schema.field(name).type)
        plain = re.sub(r"<\w+: ", "<", found.replace("large_", "").replace(" not null", ""))
        attempt.require(plain == kind, f"{name}: {found}", f"{name}: {kind}", because)


def _names(attempt: Attempt, names: list[Any], expected: list[str]) -> None:
    because = "sort by the text of the name; a folder lists its files in an order of its own"
    if set(names) - set(expected):
        because = "the key is the bare file name of an image, path.name, of *.jpg"
    elif set(names) != set(expected):
        because = "images are lost: is the last batch, which is not full, written too?"
    elif len(names) > len(expected):
        because = "rows were written more than once; is an image found in two folders?"
    got = f"{len(names):,} rows: {names[:3]} …"
    attempt.require(names == expected, got, f"{len(expected):,} rows: {expected[:3]} …", because)


def _batches(attempt: Attempt, rows: Sequence[int]) -> None:
    got = f"{len(rows):,} record batches of {min(rows, default=0)} to {max(rows, default=0):,} rows"
    because = "get_batch fetches the whole batch, which is to have 10 MB at most, at 0.11 MB per image"
    attempt.require(max(rows, default=0) <= MOST_ROWS, got, f"at most {MOST_ROWS} rows in each", because)


def _bytes(attempt: Attempt, batches: Sequence[pa.RecordBatch], truth: Truth, most: int = 2_000) -> None:
    """Compare images, at most so many, spread over the file."""
    step = max(1, -(-len(truth.captions) // most))
    images = (value for batch in batches for value in batch["data"])
    for name, value in islice(zip(truth.captions, images, strict=True), 0, None, step):
        data, found = truth.data(name), (value.as_buffer().to_pybytes() if value.is_valid else b"")
        because = "store what read_bytes() of this image gives (decoded? str() of bytes? another image?)"
        attempt.require(found == data, f"{name}: {len(found):,} bytes", f"{len(data):,} bytes", because)


# --- Task 4: text without images ---

_IMAGE_BYTES = 1 << 20
_COLUMN = "read that column only, IpcReadOptions(included_fields=…)"
_LISTS = [[f'Caption {n} of image {i} says " café " .' for n in range(i % 4)] for i in range(24)]


@check(
    buys="A vocabulary of the whole data set now costs megabytes of reading, not gigabytes.",
    errors={KeyError: "take the column by its name: captions"},
)
def captions_of(attempt: Attempt) -> None:
    """`captions_of(arrow_file)` gives the captions of each image without reading the images."""
    place, many = attempt.folder(), len(_LISTS)
    for size in (100, _IMAGE_BYTES):
        path = place / f"{size}.arrow"
        _write(path, _LISTS, size)
        _drop(path)
        with system_calls() as calls, watched() as traffic:
            got = attempt(path, _shown=f"a file of {many} images of {bytes_text(size)}")
        delivered = calls["fetched"]  # the small file came first, and with it all libraries
        _expect_lists(attempt, _LISTS, got)
    whole = f"images were read to get the captions: {_COLUMN}"
    mapped = f"a map copies nothing, but Linux fetched its images: through a pa.OSFile, {_COLUMN}"
    for count, how, because in ((traffic.most, "moved", whole), (delivered, "from storage", mapped)):
        got = f"{bytes_text(count)} {how} for {bytes_text(len(str(_LISTS)))} of text"
        little = count < many * _IMAGE_BYTES // 8
        attempt.require(little, got, "the column of captions read, and no image", because)


def _drop(path: Path) -> None:
    """Take what has just been written out of the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _write(path: Path, texts: list[list[str]], size: int = 100) -> None:
    """A right file of batches of eight images, each of `size` zeros."""
    fields = [("key", pa.string()), ("data", pa.binary()), ("captions", pa.list_(pa.string()))]
    schema = pa.schema(fields[:: 1 if size > 100 else -1])  # a place in the schema is no name
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        rows = [{"key": f"{i:03}.jpg", "captions": five, "data": bytes(size)} for i, five in enumerate(texts)]
        for start in range(0, len(rows), 8):
            writer.write(pa.RecordBatch.from_pylist(rows[start : start + 8], schema=schema))


def _expect_lists(attempt: Attempt, expected: list[list[str]], got: Any) -> None:
    because = "this is still an object of Arrow or pandas; .to_pylist() makes lists of it"
    attempt.require(isinstance(got, list), type(got).__name__, "a list of lists of text", because)
    flat = any(isinstance(item, str) for item in got)
    because = "an image without captions has an empty list"
    if got == expected[:8]:
        because = "only the first record batch was read"
    elif flat:
        because = "keep one list per image: not one list of all texts, nor str() of a list"
    found, wanted = f"{len(got)} items: {got[:2]} …", f"{len(expected)} lists, one per image"
    attempt.require(len(got) == len(expected) and not flat, found, wanted, because)
    _expect_texts(attempt, dict(enumerate(expected)), dict(enumerate(got)))


# --- Task 5: the loader ---

_MIN_COUNT = 2
_FOUND = "what a notebook defines is in no module that a worker can import: take CaptionDataset and collate"


@check(buys="The same loader feeds a GPU from any packed file, with workers of any kind.", limit_s=60)
def caption_loader(attempt: Attempt) -> None:
    """`caption_loader(arrow_file, batch_size)` gives batches of padded numbers from two workers."""
    for images, size in ((11, 4), (6, 3)):  # the last batch is full, and is not
        path = attempt.folder() / f"{images}.arrow"
        texts = [[*_DOG.split("|")[i % 3 :], "A dog .", f"Boat{i} ."] for i in range(images)]
        _write(path, texts)
        loader = attempt(path, size, _shown=f"a file of {images} images, batch_size={size}")
        right = CaptionDataset(path, Vocabulary.build(list(chain(*texts)), min_count=_MIN_COUNT))
        _look(attempt, loader, right.vocabulary)
        _compare(attempt, loader, size, right)


def _look(attempt: Attempt, loader: Any, right: Vocabulary) -> None:
    """What can be said without starting a worker."""
    because = "wrap the data set: return DataLoader(CaptionDataset(…), …)"
    attempt.require(isinstance(loader, DataLoader), type(loader).__name__, "a DataLoader", because)
    for what in (loader.dataset, loader.collate_fn):
        got = f"{what!r}, which the notebook defines"
        attempt.require(not unreachable(what), got, "functions and classes of a module", _FOUND)
    expected = "two workers, every image in stored order"
    because = "without workers the training process itself reads"
    attempt.require(loader.num_workers > 0, "num_workers=0", expected, because)
    because = "the task asks for stored order; a shuffle belongs to training"
    attempt.require(isinstance(loader.sampler, SequentialSampler), "another sampler", expected, because)
    vocabulary = getattr(loader.dataset, "vocabulary", None)
    if isinstance(vocabulary, Vocabulary):
        _expect_words(attempt, vocabulary, right)


def unreachable(what: Any) -> bool:
    """Whether a worker that is not forked cannot import it: it is the notebook's, or has no name."""
    inner = getattr(what, "func", what)  # of a partial
    kind = inner if hasattr(inner, "__qualname__") else type(inner)
    return kind.__module__ == "__main__" or "<" in kind.__qualname__


def _expect_words(attempt: Attempt, vocabulary: Vocabulary, right: Vocabulary) -> None:
    words = vocabulary.words[4:]
    because = f"build it from all captions of the file, with min_count={_MIN_COUNT}, a list of texts"
    if any(re.match(r"b'|b\"|x[0-9a-f]{2}|xff", word) for word in words):
        because = "the vocabulary was built from str() of bytes, so it holds their Python spelling, not words"
    attempt.require(vocabulary == right, f"{len(words)} words", f"{len(right) - 4} words", because)


def _compare(attempt: Attempt, loader: DataLoader[Any], size: int, right: CaptionDataset) -> None:
    because = "a worker could not make a batch; try loader.dataset[0] in a cell, and pass collate_fn=collate"
    parts = [range(len(right))[start : start + size] for start in range(0, len(right), size)]
    try:
        batches = list(loader)
    except Exception as error:
        got = f"{type(error).__name__} in a worker: {str(error).strip().splitlines()[-1:]}"
        traceback.clear_frames(error.__traceback__)  # they hold the workers, whose end would take seconds
        raise attempt.wrong(got, "batches", because) from error
    kinds = {type(batch).__name__ for batch in batches}
    attempt.require(kinds == {CaptionBatch.__name__}, f"batches: {kinds}", "batches: CaptionBatch", because)
    because = "every image comes once, in batches of batch_size; the last one is not full, and not dropped"
    keys = [[right[i].key for i in part] for part in parts]
    attempt.expect(keys, [list(batch.keys) for batch in batches], because=because)
    because = "the numbers are not those of the captions; is the vocabulary that of the whole file?"
    for part, batch in zip(parts, batches, strict=True):
        wanted = collate([right[i] for i in part])
        same = torch.equal(batch.tokens, wanted.tokens) and torch.equal(batch.lengths, wanted.lengths)
        attempt.require(same, "other tokens", "those of the captions", because)
