"""Exercise 03: each known mistake gets its sentence, every right way passes."""

import csv
import io
import os
import pickle
import re
import sys
from functools import partial

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet
import pytest
from PIL import Image
from telling import assert_told, judged
from torch.utils.data import DataLoader

from exercises.checks import ex03_pack_arrow as ex03
from helpers.experiments.nb03 import MOST_IMAGES, practice_folder, row, truth_of
from smallfiles import captions, formats, sources
from smallfiles.captions import CaptionDataset, Vocabulary
from smallfiles.errors import SourceError
from smallfiles.pack import PackConfig, pack
from smallfiles.sources import synthetic


def read_captions(path):
    found = {}
    for line in path.read_text(encoding="utf-8").split("\n")[1:]:
        if line:
            name, rest = line.split("|", 1)
            number, text = re.fullmatch(r"\s*(\d+)\s*\|?\s*(.*)", rest).groups()
            found.setdefault(name, {})[int(number)] = text
    return {name: [texts[n] for n in sorted(texts)] for name, texts in found.items()}


SCHEMA = pa.schema([("key", pa.string()), ("captions", pa.list_(pa.string())), ("data", pa.binary())])


def rows_of(folder):
    told = read_captions(next(folder.rglob("results.csv")))
    images = sorted(folder.rglob("*.jpg"), key=lambda path: path.name)
    return [(path.name, told[path.name], path.read_bytes()) for path in images]


def batch_of(rows, schema=SCHEMA):
    columns = zip(zip(*rows, strict=True), schema, strict=True)
    return pa.record_batch([pa.array(cells, field.type) for cells, field in columns], schema=schema)


def write(folder, out, change=list, schema=SCHEMA, rows=64, options=None, returns=None, new=pa.ipc.new_file):
    """The right answer, with something changed."""
    given = change(rows_of(folder))
    with pa.OSFile(str(out), "wb") as file, new(file, schema, options=options) as writer:
        for start in range(0, len(given), rows):
            writer.write(batch_of(given[start : start + rows], schema))
    return returns if returns is not None else len(given)


def open_mapped(path):
    return pa.ipc.open_file(pa.memory_map(str(path)))


def right_columns(path):
    return open_mapped(path).read_all()["captions"].to_pylist()


def by_lines(path, split=lambda line: [p.strip() for p in line.split("|", 2)], fix=lambda parts: parts):
    """A reader that cuts lines by `split`; rows of fewer than three parts go through `fix`."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        parts = split(line)
        parts = fix(parts) if len(parts) < 3 else parts
        if parts:
            found.setdefault(parts[0], {})[int(parts[1])] = parts[2]
    return {name: [texts[n] for n in sorted(texts)] for name, texts in found.items()}


def mend(parts):
    name, rest = parts
    number, text = rest.split(maxsplit=1)
    return [name, number, text]


def in_file_order(path):
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        name, rest = line.split("|", 1)
        found.setdefault(name, []).append(re.fullmatch(r"\s*\d+\s*\|?\s*(.*)", rest)[1])
    return found


def with_pandas(path, **options):
    table = pandas.read_csv(path, sep="|", names=["image", "number", "text"], skiprows=1, **options)
    table["text"] = table["text"].map(lambda text: text.strip() if isinstance(text, str) else text)
    return {name: group["text"].tolist() for name, group in table.groupby("image")}


def spelled_bytes(path):
    found = {}
    for line in path.read_bytes().split(b"\n")[1:]:
        if line:
            name, _, rest = line.partition(b"|")
            found.setdefault(name.decode(), []).append(str(rest.rpartition(b"|")[2].strip()))
    return found


def changed(change):
    return lambda path: {name: change(texts) for name, texts in read_captions(path).items()}


def mixed_up(path):
    found = read_captions(path)
    return dict(zip(found, [*list(found.values())[1:], *list(found.values())[:1]], strict=True))


WRONG_CAPTIONS = {
    "blanks left": (partial(by_lines, split=lambda line: line.split("|", 2), fix=mend), ".strip()"),
    "bad row dropped": (partial(by_lines, fix=lambda p: None), "Repair it, do not drop it"),
    "bad row keeps its number": (partial(by_lines, fix=lambda p: [p[0], 4, p[1]]), "a number is left"),
    "bad row becomes nan": (partial(with_pandas, quoting=csv.QUOTE_NONE), "NaN"),
    "bad row raises": (by_lines, "lost its second"),
    "quotes of pandas": (partial(with_pandas, skipinitialspace=True, on_bad_lines="skip"), "QUOTE_NONE"),
    "split at every |": (
        partial(by_lines, split=lambda line: [p.strip() for p in line.split("|")], fix=mend),
        "a caption may hold one",
    ),
    "order of the file": (in_file_order, "order is not that of comment_number"),
    "str of bytes": (spelled_bytes, "Python spelling"),
    "bytes": (changed(lambda texts: [text.encode() for text in texts]), "captions are text"),
    "header as image": (lambda path: {"image_name": [" comment"], **read_captions(path)}, "the header"),
    "one list": (lambda path: list(read_captions(path).values()), "has to be a dict"),
    "mixed up": (mixed_up, "another image"),
    "lower case": (changed(lambda texts: [text.lower() for text in texts]), "as in the table"),
    "names as bytes": (
        lambda path: {n.encode(): t for n, t in read_captions(path).items()},
        "a name is text",
    ),
}


TestReadCaptions = judged(ex03.read_captions, WRONG_CAPTIONS, [read_captions])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("set") / "flickr30k"
    synthetic.make(path, "flickr30k", count=150, size=(48, 36))
    return path


def column(place, change):
    """Change one cell in every row."""
    return partial(write, change=lambda rows: [(*r[:place], change(r[place]), *r[place + 1 :]) for r in rows])


def typed(place, kind, change=lambda value: value):
    fields = [*SCHEMA]
    fields[place] = pa.field(fields[place].name, kind)
    answer = column(place, change)
    return partial(answer, schema=pa.schema(fields))


def per_caption(folder, out):
    schema = pa.schema([("image", pa.binary()), ("caption", pa.string())])
    return write(folder, out, lambda rows: [(d, text) for _, five, d in rows for text in five], schema)


def encoded_again(data):
    target = io.BytesIO()
    Image.open(io.BytesIO(data)).save(target, "JPEG", quality=95)
    return target.getvalue()


def never_closed(folder, out):
    file = pa.OSFile(str(out), "wb")
    pa.ipc.new_file(file, SCHEMA).write(batch_of(rows_of(folder)))
    file.close()
    return 6


def table_of(folder):
    return pa.Table.from_batches([batch_of(rows_of(folder))])


def parquet(folder, out):
    pa.parquet.write_table(table_of(folder), out)
    return 1


def feather_uncompressed(folder, out):
    pa.feather.write_feather(table_of(folder), out, compression="uncompressed", chunksize=64)
    return table_of(folder).num_rows


def last_batch_lost(folder, out):
    return write(folder, out, lambda rows: rows[: len(rows) // 64 * 64] if len(rows) > 64 else rows)


def both_tables(folder, out):
    return write(
        folder, out, lambda rows: [(n, [t for text in five for t in (text, text)], d) for n, five, d in rows]
    )


def captions_out_of_step(rows):
    return [(n, rows[(i + 1) % len(rows)][1], d) for i, (n, _, d) in enumerate(rows)]


def images_out_of_step(rows):
    return [(n, five, rows[(i + 1) % len(rows)][2]) for i, (n, five, _) in enumerate(rows)]


def by_number(rows):
    return sorted(rows, key=lambda r: int(r[0].partition(".")[0]))


def joined(folder, out):
    return typed(1, pa.string(), change="|".join)(folder, out)


WRONG_FILES = {
    "nothing written": (lambda folder, out: 6, "nothing was written there"),
    "one row a caption": (per_caption, "every image five times"),
    "the last batch": (last_batch_lost, "the last batch"),
    "sorted as numbers": (partial(write, change=by_number), "sort by the text"),
    "order of the folder": (
        partial(
            write, change=lambda rows: [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
        ),
        "an order of its own",
    ),
    "paths as keys": (column(0, lambda name: f"flickr30k_images/{name}"), "bare file name"),
    "both tables": (both_tables, "all of them and once"),
    "captions out of step": (partial(write, change=captions_out_of_step), "out of step"),
    "captions of bytes": (
        typed(1, pa.list_(pa.binary()), lambda five: [text.encode() for text in five]),
        "decoded texts",
    ),
    "captions in one text": (joined, "a list of decoded texts"),
    "data as numbers": (typed(2, pa.list_(pa.uint8()), list), "no numbers"),
    "other column names": (
        partial(
            write,
            schema=pa.schema(
                [pa.field(n, f.type) for n, f in zip(("image", "text", "jpg"), SCHEMA, strict=False)]
            ),
        ),
        "no column is called key",
    ),
    "encoded again": (column(2, encoded_again), "what read_bytes() of this image gives"),
    "str of bytes": (column(2, lambda data: str(data).encode()), "what read_bytes() of this image gives"),
    "images out of step": (partial(write, change=images_out_of_step), "another image"),
    "one batch for all": (partial(write, rows=10_000), "fetches the whole batch"),
    "compressed": (partial(write, options=pa.ipc.IpcWriteOptions(compression="zstd")), "JPEGs do not shrink"),
    "parquet": (parquet, "Parquet and IPC streams"),
    "a stream": (partial(write, new=pa.ipc.new_stream), "Parquet and IPC streams"),
    "never closed": (never_closed, "footer is missing"),
    "wrong count": (partial(write, returns=5), "the number of images"),
    "no count": (lambda folder, out: write(folder, out) and None, "without return"),
    "a missing name": (lambda folder, out: {}["36979.jpg"], "under its name"),
}


class TestWriteFlickr30k:
    @pytest.mark.parametrize("name", WRONG_FILES)
    def test_a_wrong_answer_gets_its_diagnosis(self, name, folder):
        answer, diagnosis = WRONG_FILES[name]
        assert_told(ex03.write_flickr30k(answer, folder), diagnosis)

    @pytest.mark.parametrize(
        "answer",
        [
            write,
            partial(write, rows=16),
            partial(write, rows=128),
            feather_uncompressed,
            typed(2, pa.large_binary()),
            typed(1, pa.large_list(pa.large_string())),
        ],
    )
    def test_every_right_way_passes(self, answer, folder):
        verdict = ex03.write_flickr30k(answer, folder)
        assert verdict, str(verdict)
        assert "150 small ones" in str(verdict)

    def test_packing_with_the_package_passes(self, folder):
        def with_helpers(folder, out):
            source = sources.load(folder, "flickr30k", split="all")
            return pack(source, out, PackConfig(verify="none")).samples

        assert ex03.write_flickr30k(with_helpers, folder)

    def test_a_folder_that_is_none_is_a_sentence(self, tmp_path):
        with pytest.raises(SourceError, match="no Flickr30K"):
            ex03.write_flickr30k(write, tmp_path)


class TestRealFolders:
    """Layouts that people have: one flat folder with the token file, Karpathy's split alone, many images."""

    def lay_out(self, folder, place, count, table):
        place.mkdir()
        for number in range(count):
            (place / f"{number}.jpg").write_bytes(b"\xff\xd8" + str(number).encode())
        (place / table[0]).write_text(table[1])
        return place

    def test_a_token_file_alone_will_do(self, folder, tmp_path):
        text = "".join(f"{i}.jpg#{n}\tImage {i} , {n} .\n" for i in range(20) for n in range(5))
        place = self.lay_out(folder, tmp_path / "flat", 20, ("results_20130124.token", text))
        assert ex03.write_flickr30k(write, place)

    def test_of_many_images_a_part_is_packed_the_bad_row_among_them(self, folder, tmp_path):
        count = MOST_IMAGES + 50
        rows = [
            row(f"{i}.jpg", n, f"Image {i} , {n} .", (i, n) == (99, 4))
            for i in range(count)
            for n in range(5)
        ]
        text = "".join(["image_name| comment_number| comment\n", *rows])
        place = self.lay_out(folder, tmp_path / "many", count, ("results.csv", text))
        truth = truth_of(practice_folder(place, tmp_path / "part"))
        assert len(truth.captions) == MOST_IMAGES and len(truth.captions["99.jpg"]) == 5
        assert (truth.images / "99.jpg").is_symlink()
        assert truth_of(practice_folder(place, tmp_path / "part")).captions == truth.captions  # once more
        assert (place / "99.jpg").exists()
        assert ex03.write_flickr30k(write, place)


class TestFileThatIsThere:
    def test_a_whole_file_passes(self, folder, tmp_path):
        write(folder, tmp_path / "f.arrow")
        assert ex03.flickr30k_file(tmp_path / "f.arrow", folder)

    def test_a_file_of_captions_as_rows_is_told(self, folder, tmp_path):
        per_caption(folder, tmp_path / "f.arrow")
        assert_told(ex03.flickr30k_file(tmp_path / "f.arrow", folder), "every image five times")

    @pytest.mark.parametrize("keep", [0, 5, 100, 0.5, 0.99])
    def test_a_file_that_was_cut_is_told(self, folder, tmp_path, keep):
        path = tmp_path / "f.arrow"
        write(folder, path)
        os.truncate(path, keep if isinstance(keep, int) else int(path.stat().st_size * keep))
        assert ex03.flickr30k_file(path, folder).state == "not yet"

    def test_before_the_tasks_are_solved_it_points_to_them(self, folder):
        verdict = ex03.flickr30k_file(None, folder)
        assert verdict.state == "not started" and "four tasks" in str(verdict)

    def test_no_file_and_a_folder_are_told(self, folder, tmp_path):
        assert_told(ex03.flickr30k_file(tmp_path / "none.arrow", folder), "nothing was written")
        assert_told(ex03.flickr30k_file(tmp_path, folder), "nothing was written")


RIGHT_COLUMNS = [
    right_columns,
    lambda path: [
        five
        for n in range(open_mapped(path).num_record_batches)
        for five in open_mapped(path).get_batch(n)["captions"].to_pylist()
    ],
    lambda path: pa.dataset.dataset(path, format="arrow").to_table(["captions"])["captions"].to_pylist(),
    lambda path: pa.feather.read_table(path, ["captions"])["captions"].to_pylist(),
    lambda path: [formats.open(path).target(n) for n in range(len(formats.open(path)))],
]


WRONG_COLUMNS = {
    "OSFile": (
        lambda path: pa.ipc.open_file(pa.OSFile(str(path))).read_all()["captions"].to_pylist(),
        "whole file was read",
    ),
    "an Arrow column": (lambda path: open_mapped(path).read_all()["captions"], "to_pylist"),
    "flat": (lambda path: [text for five in right_columns(path) for text in five], "one list per image"),
    "first batch": (
        lambda path: open_mapped(path).get_batch(0)["captions"].to_pylist(),
        "only the first record batch",
    ),
    "column caption": (lambda path: open_mapped(path).read_all()["caption"].to_pylist(), "by its name"),
}


TestCaptionsOf = judged(ex03.captions_of, WRONG_COLUMNS, RIGHT_COLUMNS)


def vocabulary_of(path, min_count=2, use=lambda five: five):
    return Vocabulary.build([t for five in right_columns(path) for t in use(five)], min_count=min_count)


def loader_of(path, size, vocabulary=vocabulary_of, dataset=CaptionDataset, **options):
    options = {"batch_size": size, "num_workers": 2, "collate_fn": captions.collate, **options}
    return DataLoader(dataset(path, vocabulary(path)), **options)


def from_the_notebook(make):
    """A function or class as a notebook defines it: in `__main__`, where no worker looks."""
    thing = make()
    thing.__module__ = "__main__"
    thing.__qualname__ = thing.__name__
    setattr(sys.modules["__main__"], thing.__name__, thing)
    return thing


def own_collate():
    def collate_in_a_notebook(items):
        return captions.collate(items)

    return collate_in_a_notebook


def bytes_vocabulary(path):
    images = open_mapped(path).read_all()["data"].to_pylist()
    return Vocabulary.build([str(image) for image in images])


WRONG_LOADERS = {
    "a list": (lambda path, size: [1], "wrap the data set"),
    "no collate": (partial(loader_of, collate_fn=None), "pass collate_fn=collate"),
    "collate of the notebook": (
        lambda path, size: loader_of(path, size, collate_fn=from_the_notebook(own_collate)),
        "in no module",
    ),
    "no workers": (partial(loader_of, num_workers=0), "without workers"),
    "shuffled": (partial(loader_of, shuffle=True), "stored order"),
    "first captions only": (
        partial(loader_of, vocabulary=partial(vocabulary_of, use=lambda five: five[:1])),
        "from all captions",
    ),
    "words of bytes": (partial(loader_of, vocabulary=bytes_vocabulary), "str() of bytes"),
}


RIGHT_LOADERS = [loader_of, partial(loader_of, num_workers=1), partial(loader_of, prefetch_factor=4)]
TestMakeLoader = judged(ex03.make_loader, WRONG_LOADERS, RIGHT_LOADERS)


def test_what_a_worker_can_reach_is_told_from_what_it_cannot():
    assert not ex03.unreachable(captions.collate) and not ex03.unreachable(partial(captions.collate))
    assert not ex03.unreachable(own_collate)
    assert ex03.unreachable(from_the_notebook(own_collate)) and ex03.unreachable(lambda: 1)
    assert pickle.loads(pickle.dumps(captions.collate)) is captions.collate
