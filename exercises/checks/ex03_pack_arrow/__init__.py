"""Exercise 03: Flickr30K in one Arrow file, read by a DataLoader.

    read_captions       results.csv, its bad row repaired
    write_flickr30k     one row an image; the check opens the file
    captions_of         the text without the images
    make_loader         batches of padded numbers from two workers
    flickr30k_file      looks at a file that is already there, made by a job from the whole set

Each known mistake has a diagnosis of its own, the five of a published solution among them: the wrong
delimiter, a NaN caption, an image stored once a caption, a vocabulary of `str(bytes)`, the whole file
read to get its captions. Notebook 03 sends participants here.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
from torch.utils.data import DataLoader

from exercises.checks.attempt import Attempt
from exercises.checks.check import check
from exercises.checks.ex03_pack_arrow.columns import try_columns
from exercises.checks.ex03_pack_arrow.file import examine
from exercises.checks.ex03_pack_arrow.folders import Truth, awkward_folder, practice_folder, truth_of
from exercises.checks.ex03_pack_arrow.loaders import try_loaders
from exercises.checks.ex03_pack_arrow.tables import try_tables
from exercises.checks.verdict import Verdict
from smallfiles.captions import CaptionDataset, Vocabulary, collate

__all__ = [
    "captions_of",
    "flickr30k_file",
    "make_loader",
    "practice_folder",
    "read_captions",
    "write_flickr30k",
]

_BUYS = "One large file now stands for {count:,} small ones; it holds every caption, and each image once."


@check(
    buys="No caption is lost, and no job stops at line 20,001.",
    errors={
        ValueError: "a row has fewer or more parts than your code expects: captions hold commas, quotes and "
        "sometimes a `|`, and one row lost its second `|`",
        IndexError: "a row has fewer parts than your code expects: one row lost its second `|`",
        KeyError: "a name or a column is not there; the header is `image_name| comment_number| comment`, "
        "with a blank before each name but the first",
    },
)
def read_captions(attempt: Attempt) -> None:
    """`read_captions(csv_file)` gives the captions of each image, in the order of their numbers."""
    try_tables(attempt)


_ERRORS: dict[type[Exception], str] = {
    KeyError: "an image has no captions under its name; the key is path.name, and every row counts",
    StopIteration: "nothing was found; images and results.csv lie a few folders deep: folder.rglob(…)",
    pa.ArrowInvalid: "the columns do not fit the schema; each is a list with one item a row",
    pa.ArrowTypeError: "a value is of another type than the schema says; captions are lists of text",
}


def write_flickr30k(answer: Any, folder: Path) -> Verdict:
    """`write_flickr30k(folder, out)` packs a Flickr30K folder and gives the number of images.

    Args:
        answer: The participant's function.
        folder: A Flickr30K folder, synthetic or real; of a large one only a part is packed.
    """

    @check(buys=_BUYS.format(count=len(truth_of(folder).captions)), limit_s=120, errors=_ERRORS)
    def write_flickr30k(attempt: Attempt) -> None:
        with tempfile.TemporaryDirectory(prefix="smallfiles-") as name:
            place = Path(name)
            awkward = truth_of(awkward_folder(place / "awkward"))
            _pack(attempt, awkward, "an awkward folder of 6 images", place)
            truth = truth_of(practice_folder(folder, place / "part"))
            _pack(attempt, truth, f"{len(truth.captions):,} images of {folder.name}", place)

    return write_flickr30k(answer)


def _pack(attempt: Attempt, truth: Truth, what: str, place: Path) -> None:
    out = place / f"{len(truth.captions)}.arrow"
    got = attempt(truth.folder, out, _shown=f"{what}, {out.name}")
    attempt.given(f"the file that write_flickr30k made of {what}")
    examine(attempt, out, truth)
    _read_by_workers(attempt, out, truth)
    attempt.expect(len(truth.captions), got, because="return the number of images that were written")


def _read_by_workers(attempt: Attempt, path: Path, truth: Truth) -> None:
    """What all of this is for; a file that came so far should pass."""
    vocabulary = Vocabulary.build(text for texts in truth.captions.values() for text in texts)
    try:
        loader = DataLoader(
            CaptionDataset(path, vocabulary), batch_size=32, num_workers=2, collate_fn=collate
        )
        batches = list(loader)
    except Exception as error:
        raise attempt.wrong(
            f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:200]}",
            "batches from two workers",
            "a DataLoader with workers cannot read the file",
        ) from error
    names = [name for batch in batches for name in batch.keys]
    attempt.require(
        names == truth.names and all(bool((batch.lengths > 1).any()) for batch in batches),
        got=f"{len(names):,} images from two workers",
        expected=f"the {len(truth.names):,} images of the folder with their captions",
        because="a DataLoader reads something else from the file than is in the folder",
    )


@check(
    buys="A vocabulary of the whole data set now costs megabytes of reading, not gigabytes.",
    errors={KeyError: "take the column by its name: captions"},
)
def captions_of(attempt: Attempt) -> None:
    """`captions_of(arrow_file)` gives the captions of each image without reading the images."""
    try_columns(attempt)


@check(
    buys="The same loader feeds a GPU from any packed file, whatever the start method of its workers.",
    limit_s=60,
)
def make_loader(attempt: Attempt) -> None:
    """`make_loader(arrow_file, batch_size)` gives batches of padded numbers from two workers."""
    try_loaders(attempt)


def flickr30k_file(path: Path | None, folder: Path) -> Verdict:
    """Say what is wrong with a packed Flickr30K that is already there, for example made by a job.

    Args:
        path: The Arrow file; None if there is none yet.
        folder: The folder that it was made of; of a large set 2,000 images are compared in full.
    """

    @check(
        buys=_BUYS.format(count=len(truth_of(folder).captions)),
        limit_s=600,
        start="Solve the four tasks above first; this check then looks at the file that your functions made.",
    )
    def flickr30k_file(attempt: Attempt) -> None:
        truth = truth_of(folder)
        assert path is not None  # that is "not started", and said before
        attempt.given(f"the file {path.name}, made of {folder.name}")
        examine(attempt, path, truth)

    return flickr30k_file(path)
