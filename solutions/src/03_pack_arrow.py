# %% [markdown] id="top"
# # Exercise 03 · Pack Flickr30K into one Arrow file
#
# A ★★☆ · 30 minutes, B ★★★ · 15 minutes · after [notebook 03](../notebooks/03_pack_arrow.ipynb)
#
# Flickr30K consists of 31,783 photographs with five captions each. People often pack it in a way that loses a caption, stores each
# photograph five times, and reads gigabytes to get a few megabytes of text. You will do better. In part A (tasks 1 to 3)
# you build the file. In part B (tasks 4 and 5) you read it.
#
# The data is a synthetic copy with the same traps. To use the real data set, set `COURSE_DATA` to its folder before you
# start the server. The second cell below then makes links to 400 of its images.

# %% id="start"
import sys

sys.path.append("..")
from helpers import show, start

setup = start("ex03")

# %% id="folder"
from exercises.checks import ex03_pack_arrow as check
from helpers.experiments import nb03

folder = nb03.practice_folder(setup.path(), setup.scratch / "part")

# %% [markdown] id="look"
# ## Look at the table
#
# `results.csv` is not an ordinary CSV file. Captions contain commas and quotes, the cells are separated by `| `, and one row
# is broken. Find out how.

# %% id="first"
table = next(folder.rglob("results.csv"))
lines = table.read_text(encoding="utf-8").split("\n")
lines[:4]

# %% id="broken"
[line for line in lines if line.count("|") == 1]

# %% [markdown] id="task-captions"
# ## Task 1 (part A): read the captions
#
# Return the captions of each image in the order of their numbers, without blanks at both ends. Repair the broken row,
# which may be anywhere. A caption may contain a `|`. You need six to ten lines:
#
# `read_captions(csv_file: Path) -> dict[str, list[str]]`

# %% id="captions"
import re
from pathlib import Path


def read_captions(csv_file: Path) -> dict[str, list[str]]:
    """The captions of each image, by its name."""
    # --8<-- solution
    found = {}
    for line in csv_file.read_text(encoding="utf-8").split("\n")[1:]:
        if line:
            name, rest = line.split("|", 1)
            number, text = re.fullmatch(r"\s*(\d+)\s*\|?\s*(.*?)\s*", rest).groups()
            found.setdefault(name, {})[int(number)] = text
    return {name: [texts[n] for n in sorted(texts)] for name, texts in found.items()}
    # --8<-- stub
    # raise NotImplementedError  # your code: 6 to 10 lines
    # --8<-- end


# %% id="check-captions"
read = check.read_captions(read_captions)
read

# %% [markdown] id="hints-captions"
# <details>
# <summary>Hint 1: cut where it is safe</summary>
#
# Image names never contain a `|`, so `name, rest = line.split("|", 1)` always works. The rest consists of a number, perhaps a
# `|`, and the caption.
#
# </details>
#
# <details>
# <summary>Hint 2: one pattern for good and broken rows</summary>
#
# `re.fullmatch(r"\s*(\d+)\s*\|?\s*(.*?)\s*", rest)` matches both kinds of rows, because `\|?` is a bar that may be missing. Its
# two groups are the number and the caption.
#
# </details>
#
# <details>
# <summary>Hint 3: the order</summary>
#
# For each image, keep a dictionary from number to caption. At the end, sort its numbers.
#
# </details>

# %% [markdown] id="task-file"
# ## Task 2 (part A): write the file
#
# Write one row per image, sorted by name: `key: string` (the file name), `captions: list<string>`, `data: binary` (its
# bytes). Choose the rows per batch for a reader that takes batches of 10 MB at most; images have 0.11 MB. Images and
# table are in subfolders. Return the number of images. About ten lines:
#
# `write_flickr30k(folder: Path, out: Path) -> int`

# %% id="file"
import pyarrow as pa


def write_flickr30k(folder: Path, out: Path) -> int:
    """Pack a Flickr30K folder; returns the number of images."""
    # --8<-- solution
    texts = read_captions(next(folder.rglob("results.csv")))
    images = sorted(folder.rglob("*.jpg"), key=lambda path: path.name)
    schema = pa.schema({"key": pa.string(), "captions": pa.list_(pa.string()), "data": pa.binary()})
    with pa.OSFile(str(out), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for start in range(0, len(images), 64):  # about 7 MB
            part = images[start : start + 64]
            rows = [
                {"key": p.name, "captions": texts[p.name], "data": p.read_bytes()} for p in part
            ]
            writer.write(pa.RecordBatch.from_pylist(rows, schema=schema))
    return len(images)
    # --8<-- stub
    # raise NotImplementedError  # your code: 8 to 10 lines
    # --8<-- end


# %% id="check-file"
written = check.write_flickr30k(write_flickr30k, folder)
written

# %% [markdown] id="hints-file"
# <details>
# <summary>Hint 1: find everything</summary>
#
# `next(folder.rglob("results.csv"))` finds one of the two copies of the table. `sorted(folder.rglob("*.jpg"),
# key=lambda path: path.name)` returns the images, sorted by name.
#
# </details>
#
# <details>
# <summary>Hint 2: a record batch from rows</summary>
#
# `pa.RecordBatch.from_pylist(rows, schema=schema)` makes a record batch from a list of dictionaries. Notebook 03 opens the file
# with `pa.OSFile(str(out), "wb")`, and the writer with `pa.ipc.new_file(file, schema)`, both in a `with`.
#
# </details>
#
# <details>
# <summary>Hint 3: some at a time</summary>
#
# 10 MB / 0.11 MB allows 90 rows. Write a loop `for start in range(0, len(images), rows):` over the slices
# `images[start : start + rows]`. The last slice is shorter by itself.
#
# </details>

# %% [markdown] id="half"
# ## What an exception leaves
#
# The next cell writes three images of ten, and fails to read the fourth. What remains on the disk: nothing, a file that
# cannot be opened, or a file that can?

# %% id="three-of-ten"
def three_of_ten(out: Path) -> None:
    """Write rows until one image cannot be read."""
    schema = pa.schema({"key": pa.string()})
    with pa.OSFile(str(out), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for number in range(3):
            writer.write(pa.RecordBatch.from_pylist([{"key": f"{number}.jpg"}], schema=schema))
        raise OSError("3.jpg cannot be read")


half = setup.scratch / "half.arrow"
try:
    three_of_ten(half)
except OSError as error:
    rows = pa.ipc.open_file(half.read_bytes()).num_record_batches
    print(error, "- left:", half.name, "with", rows, "of 10 rows")

# %% [markdown] id="task-whole"
# ## Task 3 (part A): leave no half file
#
# `write(path)` writes a file. It may fail at any point, also by Ctrl-C. Let it write under another name in the folder of `out`.
# Only a complete file gets the name `out`, which you return. If `write` fails, remove its file, and let the exception pass:
#
# `write_whole(out: Path, write: Callable[[Path], object]) -> Path`

# %% id="whole-file"
from collections.abc import Callable


def write_whole(out: Path, write: Callable[[Path], object]) -> Path:
    """A complete file under its name, or none."""
    # --8<-- solution
    part = out.with_name(f".{out.name}.part")
    try:
        write(part)
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)
    return out
    # --8<-- stub
    # raise NotImplementedError  # your code: 5 or 6 lines
    # --8<-- end


# %% id="check-whole"
complete = check.write_whole(write_whole)
complete

# %% [markdown] id="hints-whole"
# <details>
# <summary>Hint 1: two names in one folder</summary>
#
# `part = out.with_name(f".{out.name}.part")` is another name in the same folder. `part.replace(out)` renames the file in one
# step. This works only within a file system.
#
# </details>
#
# <details>
# <summary>Hint 2: also after Ctrl-C</summary>
#
# `KeyboardInterrupt` is not an `Exception`. But the code in `finally:` runs in any case, and then the exception continues.
# `part.unlink(missing_ok=True)` does not fail if there is no such file.
#
# </details>

# %% [markdown] id="task-text"
# ## Task 4 (part B): get the text without the images
#
# Return the captions of all images in a file like yours, as Python lists, without reading the images. The check counts the bytes
# that your code copies and, if the system counts them, the bytes that the storage delivers. Do not rely on the order of the
# columns:
#
# `captions_of(arrow_file: Path) -> list[list[str]]`

# %% id="text"
def captions_of(arrow_file: Path) -> list[list[str]]:
    """The captions of each image, in stored order."""
    # --8<-- solution
    with pa.OSFile(str(arrow_file)) as file:
        place = pa.ipc.open_file(file).schema.get_field_index("captions")
        options = pa.ipc.IpcReadOptions(included_fields=[place])
        return pa.ipc.open_file(file, options=options).read_all()["captions"].to_pylist()
    # --8<-- stub
    # raise NotImplementedError  # your code: 4 or 5 lines
    # --8<-- end


# %% id="check-text"
text = check.captions_of(captions_of)
text

# %% [markdown] id="hints-text"
# <details>
# <summary>Hint 1: which way of opening</summary>
#
# A memory map copies nothing. But if the file is not in the cache, Linux fetches the images all the same (notebook 03, section
# 3). An `OSFile` reads only what you ask for. So ask for one column.
#
# </details>
#
# <details>
# <summary>Hint 2: one column</summary>
#
# `pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=[2]))` reads only the third column. To find the number
# of your column, open a reader without options: `reader.schema.get_field_index("captions")`.
#
# </details>
#
# <details>
# <summary>Hint 3: lists</summary>
#
# `read_all()` joins all batches into a table. `table["captions"].to_pylist()` makes Python lists of this column.
#
# </details>

# %% [markdown] id="why"
# ## Why not a class of your own
#
# Workers are separate processes. Workers that are not forked (the default from Python 3.14 on) import classes and functions
# from a module. A class that is defined in a notebook is not in a module. Then the workers end with `Can't get attribute`, and
# the loader ends with `DataLoader worker exited unexpectedly`.

# %% [markdown] id="task-loader"
# ## Task 5 (part B): feed a training loop
#
# Return a `DataLoader` with two workers. It returns all images in stored order, with their captions as padded numbers. Use
# `CaptionDataset`, `Vocabulary` and `collate` from `helpers.captions`. The vocabulary contains all words that occur at least
# twice in the file. You need four to six lines:
#
# `caption_loader(arrow_file: Path, batch_size: int) -> DataLoader`

# %% id="loader"
from torch.utils.data import DataLoader

from helpers.captions import CaptionDataset, Vocabulary, collate


def caption_loader(arrow_file: Path, batch_size: int) -> DataLoader:
    """Batches of images and padded captions, from two workers."""
    # --8<-- solution
    texts = [text for captions in captions_of(arrow_file) for text in captions]
    dataset = CaptionDataset(arrow_file, Vocabulary.build(texts, min_count=2))
    return DataLoader(dataset, batch_size=batch_size, num_workers=2, collate_fn=collate)
    # --8<-- stub
    # raise NotImplementedError  # your code: 4 to 6 lines
    # --8<-- end


# %% id="check-loader"
loaded = check.caption_loader(caption_loader)
loaded

# %% [markdown] id="hints-loader"
# <details>
# <summary>Hint 1: the words</summary>
#
# `Vocabulary.build` needs one list of texts. Join the lists of your `captions_of`: `[text for captions in
# captions_of(arrow_file) for text in captions]`. With `min_count=2`, words that occur only once are skipped.
#
# </details>
#
# <details>
# <summary>Hint 2: the loader</summary>
#
# `DataLoader(CaptionDataset(arrow_file, vocabulary), …)` needs `batch_size`, `num_workers` and `collate_fn=collate`. Without
# `collate`, it would try to stack captions of different lengths.
#
# </details>

# %% [markdown] id="use"
# ## Put it together
#
# Once all checks have passed, the next two cells pack the folder with your functions and get one batch from your loader. The last
# cell checks the packed file.

# %% id="all"
solved = read and written and complete and text and loaded
packed = setup.scratch / "flickr30k.arrow"
if not solved:
    show.say("Solve the five tasks first; then this cell uses your functions.")
else:
    write_whole(packed, lambda part: write_flickr30k(folder, part))
    show.say(f"**{len(captions_of(packed)):,} images** packed into `{packed.name}`.")

# %% id="batch"
if solved:
    loader = caption_loader(packed, batch_size=32)
    batch = next(iter(loader))
    print("tokens", tuple(batch.tokens.shape), "of", len(loader.dataset.vocabulary), "words")
    print(batch.keys[0], "·", loader.dataset.vocabulary.decode(batch.tokens[0][0].tolist()))

# %% id="opened"
check.flickr30k_file(packed if solved else None, folder)

# %% [markdown] id="whole"
# All of Flickr30K is packed by a job, not in a notebook. `check.flickr30k_file(path, folder)` checks the file of such a
# job too, whatever program wrote it.
