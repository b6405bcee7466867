"""Exercise 03: each known mistake gets its sentence, every right way passes."""

import csv
import io
import os
import re
import shutil
import tempfile
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pandas
import pyarrow as pa
import pyarrow.dataset
import pyarrow.feather
import pytest
from PIL import Image
from telling import assert_told, judged
from torch.utils.data import DataLoader

from exercises.checks import ex03_pack_arrow as ex03
from helpers import captions
from helpers.captions import CaptionDataset, Vocabulary
from helpers.experiments.nb03 import HEADER, MOST_IMAGES, practice_folder, row, truth_of
from smallfiles import formats, sources
from smallfiles.errors import SourceError
from smallfiles.pack import PackConfig, pack
from smallfiles.sources import synthetic


def read_captions(path, order=sorted):
    found = {}
    for line in path.read_text(encoding="utf-8").split("\n")[1:]:
        if line:
            name, rest = line.split("|", 1)
            number, text = re.fullmatch(r"\s*(\d+)\s*\|?\s*(.*)", rest).groups()
            found.setdefault(name, {})[int(number)] = text
    return {name: [texts[n] for n in order(texts)] for name, texts in found.items()}


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


def table_in(path, opened=pa.memory_map):
    return pa.ipc.open_file(opened(str(path))).read_all()


def all_columns(path, opened=pa.memory_map):
    return table_in(path, opened)["captions"].to_pylist()


def right_columns(path, opened=pa.OSFile):
    with opened(str(path)) as file:
        place = pa.ipc.open_file(file).schema.get_field_index("captions")
        options = pa.ipc.IpcReadOptions(included_fields=[place])
        return pa.ipc.open_file(file, options=options).read_all()["captions"].to_pylist()


def cells(line, most=2):
    return [cell.strip() for cell in line.split("|", most)]


def by_lines(path, split=cells, fix=lambda parts: parts):
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


def with_pandas(path, **options):
    table = pandas.read_csv(path, sep="|", names=["image", "number", "text"], skiprows=1, **options)
    table["text"] = table["text"].map(lambda text: text.strip() if isinstance(text, str) else text)
    return {name: group["text"].tolist() for name, group in table.groupby("image")}


def changed(change):
    return lambda path: {name: change(texts) for name, texts in read_captions(path).items()}


WRONG_CAPTIONS = [
    (partial(by_lines, split=lambda line: line.split("|", 2), fix=mend), ".strip()"),
    (partial(by_lines, fix=lambda p: None), "one caption is lost; drop no row"),
    (partial(by_lines, fix=lambda p: [p[0], 4, p[1]]), "a number is left"),
    (partial(with_pandas, quoting=csv.QUOTE_NONE), "NaN"),
    (by_lines, "lost its second"),
    (partial(with_pandas, skipinitialspace=True, on_bad_lines="skip"), "QUOTE_NONE"),
    (partial(by_lines, split=partial(cells, most=-1), fix=mend), "a caption may hold one"),
    (partial(read_captions, order=list), "order is not that of comment_number"),
    (changed(lambda texts: [str(text.encode()) for text in texts]), "Python spelling"),
    (changed(lambda texts: [text.encode() for text in texts]), "captions are text"),
    (lambda path: {"image_name": [" comment"], **read_captions(path)}, "the header"),
    (lambda path: list(read_captions(path).values()), "has to be a dict"),
    (lambda path: dict.fromkeys(read_captions(path), [*read_captions(path).values()][-1]), "another image"),
    (changed(lambda texts: [text.lower() for text in texts]), "as in the table"),
]


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
    schema = SCHEMA.set(place, SCHEMA.field(place).with_type(kind))
    return partial(column(place, change), schema=schema)


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


def feather_uncompressed(folder, out):
    pa.feather.write_feather(table_of(folder), out, compression="uncompressed", chunksize=64)
    return table_of(folder).num_rows


def captions_out_of_step(rows):
    return [(n, rows[(i + 1) % len(rows)][1], d) for i, (n, _, d) in enumerate(rows)]


WRONG_FILES = [
    (lambda folder, out: 6, "nothing was written there"),
    (per_caption, "every image five times"),
    (partial(write, change=lambda rows: rows[:-1]), "the last batch"),
    (partial(write, change=partial(sorted, key=lambda r: int(r[0].partition(".")[0]))), "sort by the text"),
    (column(0, lambda name: f"flickr30k_images/{name}"), "bare file name"),
    (column(1, lambda five: five * 2), "all of them and once"),
    (partial(write, change=captions_out_of_step), "out of step"),
    (typed(1, pa.list_(pa.binary()), lambda five: [text.encode() for text in five]), "decoded texts"),
    (typed(2, pa.list_(pa.uint8()), list), "no numbers"),
    (partial(write, schema=SCHEMA.set(0, pa.field("image", pa.string()))), "no column is called key"),
    (column(2, encoded_again), "what read_bytes() of this image gives"),
    (column(2, lambda data: str(data).encode()), "str() of bytes?"),
    (partial(write, rows=10_000), "fetches the whole batch"),
    (partial(write, options=pa.ipc.IpcWriteOptions(compression="zstd")), "JPEGs do not shrink"),
    (partial(write, new=pa.ipc.new_stream), "Parquet and IPC streams"),
    (never_closed, "footer is missing"),
    (partial(write, returns=5), "the number of images"),
    (lambda folder, out: {}["36979.jpg"], "under its name"),
]
RIGHT_FILES = [write, partial(write, rows=16), partial(write, rows=128), feather_uncompressed]
RIGHT_FILES += [typed(2, pa.large_binary()), typed(1, pa.large_list(pa.large_string()))]


@pytest.fixture
def write_flickr30k(folder):
    return partial(ex03.write_flickr30k, folder=folder)


TestWriteFlickr30k = judged("write_flickr30k", WRONG_FILES, RIGHT_FILES)


def test_packing_with_the_package_passes(write_flickr30k):
    def with_helpers(folder, out):
        return pack(sources.load(folder, "flickr30k", split="all"), out, PackConfig(verify="none")).samples

    verdict = write_flickr30k(with_helpers)
    assert verdict and "150 small ones" in str(verdict)


def test_a_folder_that_is_none_is_a_sentence(tmp_path):
    with pytest.raises(SourceError, match="no Flickr30K"):
        ex03.write_flickr30k(write, tmp_path)


def lay_out(place, count, name, text):
    """A folder as people have them: flat, with one table."""
    place.mkdir()
    for number in range(count):
        (place / f"{number}.jpg").write_bytes(b"\xff\xd8" + str(number).encode())
    (place / name).write_text(text)
    return place


def test_a_flat_folder_with_a_token_file_alone_will_do(tmp_path):
    text = "".join(f"{i}.jpg#{n}\tImage {i} , {n} .\n" for i in range(20) for n in range(5))
    assert ex03.write_flickr30k(write, lay_out(tmp_path / "flat", 20, "results_20130124.token", text))


def test_of_many_images_a_part_is_packed_the_bad_row_among_them(tmp_path):
    cells = [(i, n) for i in range(MOST_IMAGES + 50) for n in range(5)]
    rows = [row(f"{i}.jpg", n, f"Image {i} , {n} .", (i, n) == (99, 4)) for i, n in cells]
    place = lay_out(tmp_path / "many", MOST_IMAGES + 50, "results.csv", "".join([HEADER, *rows]))
    truth = truth_of(practice_folder(place, tmp_path / "part"))
    assert len(truth.captions) == MOST_IMAGES and len(truth.captions["99.jpg"]) == 5
    assert (truth.images / "99.jpg").samefile(place / "99.jpg")
    assert truth_of(practice_folder(place, tmp_path / "part")).captions == truth.captions  # once more
    assert (place / "99.jpg").exists()


class TestFileThatIsThere:
    def test_what_a_job_made_is_judged(self, folder, tmp_path):
        write(folder, tmp_path / "f.arrow")
        assert ex03.flickr30k_file(tmp_path / "f.arrow", folder)
        per_caption(folder, tmp_path / "f.arrow")
        verdict = ex03.flickr30k_file(tmp_path / "f.arrow", folder)
        assert_told(verdict, "every image five times")
        assert "we tried  the file f.arrow, made of flickr30k" in str(verdict)

    @pytest.mark.parametrize("keep", [0, 5, 0.5, 0.99])
    def test_a_file_that_was_cut_is_told(self, folder, tmp_path, keep):
        path = tmp_path / "f.arrow"
        write(folder, path)
        os.truncate(path, keep if isinstance(keep, int) else int(path.stat().st_size * keep))
        assert ex03.flickr30k_file(path, folder).state == "not yet"

    def test_no_file_is_told(self, folder, tmp_path):
        verdict = ex03.flickr30k_file(None, folder)  # before the tasks are solved
        assert verdict.state == "not started" and "five tasks" in str(verdict)
        for path in (tmp_path / "none.arrow", tmp_path):
            assert_told(ex03.flickr30k_file(path, folder), "nothing was written")


def beside(out):
    return out.with_name(f".{out.name}.part")


def whole(out, write):
    part = beside(out)
    try:
        write(part)
        os.replace(part, out)
    finally:
        part.unlink(missing_ok=True)
    return out


def whole_by_except(out, write, kind=BaseException, part=beside, again=True):
    try:
        write(part(out))
    except kind:
        part(out).unlink()
        if again:
            raise
        return out
    return part(out).rename(out)


def in_place(out, write):
    write(out)
    return out


def left_behind(out, write):
    write(beside(out))
    return beside(out).rename(out)


def early(out, write):
    out.unlink(missing_ok=True)
    return whole(out, write)


def elsewhere(out, write):
    with tempfile.TemporaryDirectory() as place:
        write(Path(place) / out.name)
        return Path(shutil.move(Path(place) / out.name, out))


def copied(out, write):
    try:
        write(beside(out))
    except BaseException:
        beside(out).unlink()
        raise
    shutil.copy(beside(out), out)
    return out


def wrapping(out, write):
    try:
        return whole(out, write)
    except OSError as error:
        raise KeyboardInterrupt from error


def twice(out, write):
    whole(out, write)
    return whole(out, write)


def unnamed(out, write):
    write(beside(out))
    beside(out).unlink()
    return out


WRONG_WHOLES = [
    (in_place, "takes it for a complete file"),
    (left_behind, "remove what is left"),
    (partial(whole_by_except, kind=Exception), "after Ctrl-C"),
    (partial(whole_by_except, again=False), "let the exception go on"),
    (wrapping, "must learn"),
    (early, "the old one stays"),
    (elsewhere, "out.with_name"),
    (copied, "fill a quota"),
    (twice, "call write once"),
    (unnamed, "part.replace(out)"),
    (lambda out, write: whole(out, write) and None, "without return"),
    (lambda out, write: str(whole(out, write)), "return out"),
]
RIGHT_WHOLES = [whole, whole_by_except, partial(whole_by_except, part=lambda out: out.with_suffix(".new"))]
TestWriteWhole = judged(ex03.write_whole, WRONG_WHOLES, RIGHT_WHOLES)


RIGHT_COLUMNS = [
    right_columns,
    lambda path: pa.dataset.dataset(path, format="arrow").to_table(["captions"])["captions"].to_pylist(),
    lambda path: pa.feather.read_table(path, ["captions"])["captions"].to_pylist(),
    lambda path: [formats.open(path).target(n) for n in range(len(formats.open(path)))],
]


WRONG_COLUMNS = [
    (partial(all_columns, opened=pa.OSFile), "images were read to get the captions"),
    (lambda path: table_in(path)["captions"], "to_pylist"),
    (lambda path: [text for five in right_columns(path) for text in five], "one list per image"),
    (lambda path: right_columns(path)[:8], "only the first record batch"),
    (lambda path: table_in(path)["caption"].to_pylist(), "by its name"),
]


TestCaptionsOf = judged(ex03.captions_of, WRONG_COLUMNS, RIGHT_COLUMNS)


@pytest.mark.parametrize("answer", [all_columns, partial(right_columns, opened=pa.memory_map)])
def test_what_storage_delivers_to_a_map_counts_where_the_system_tells(answer, monkeypatch):
    monkeypatch.setattr(ex03, "system_calls", lambda: nullcontext({"fetched": 0}))
    assert ex03.captions_of(answer)  # as in memory, or on some network file systems
    counts = iter([0, 16 << 20])
    monkeypatch.setattr(ex03, "system_calls", lambda: nullcontext({"fetched": next(counts)}))
    assert_told(ex03.captions_of(answer), "Linux fetched its images")


def vocabulary_of(path, use=lambda five: five):
    return Vocabulary.build([t for five in right_columns(path) for t in use(five)], min_count=2)


def bytes_vocabulary(path):
    return Vocabulary.build(map(str, table_in(path)["data"].to_pylist()))


def loader_of(path, size, vocabulary=vocabulary_of, **options):
    options = {"batch_size": size, "num_workers": 2, "collate_fn": captions.collate, **options}
    return DataLoader(CaptionDataset(path, vocabulary(path)), **options)


def own_collate(items):
    return captions.collate(items)


own_collate.__module__ = "__main__"  # as if a notebook defined it


WRONG_LOADERS = [
    (lambda path, size: [1], "wrap the data set"),
    (partial(loader_of, collate_fn=None, num_workers=1), "pass collate_fn=collate"),
    (partial(loader_of, collate_fn=own_collate), "in no module"),
    (partial(loader_of, collate_fn=lambda items: captions.collate(items)), "in no module"),
    (partial(loader_of, num_workers=0), "without workers"),
    (partial(loader_of, shuffle=True), "stored order"),
    (partial(loader_of, vocabulary=partial(vocabulary_of, use=lambda five: five[:1])), "from all captions"),
    (partial(loader_of, vocabulary=bytes_vocabulary), "str() of bytes"),
]
RIGHT_LOADERS = [loader_of, partial(loader_of, num_workers=1, collate_fn=partial(captions.collate))]
TestMakeLoader = judged(ex03.caption_loader, WRONG_LOADERS, RIGHT_LOADERS)
