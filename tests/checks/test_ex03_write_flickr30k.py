"""Exercise 03, the packed file: what is wrong with it is found by opening it."""

import io
import os
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet
import pytest
from flickr_answers import SCHEMA, assert_told, rows_of, write
from PIL import Image

from exercises.checks import ex03_pack_arrow as ex03
from exercises.checks.ex03_pack_arrow.folders import MOST_IMAGES, practice_folder, row, truth_of
from smallfiles import sources
from smallfiles.errors import SourceError
from smallfiles.pack import PackConfig, pack
from smallfiles.sources import synthetic


@pytest.fixture(autouse=True)
def lenient(monkeypatch):
    monkeypatch.delenv("COURSE_STRICT", raising=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("set") / "flickr30k"
    synthetic.make(path, "flickr30k", count=150, size=(48, 36), show_progress=False)
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


def per_caption_in_lists(folder, out):
    return write(folder, out, lambda rows: [(n, [text], d) for n, five, d in rows for text in five])


def encoded_again(data):
    target = io.BytesIO()
    Image.open(io.BytesIO(data)).save(target, "JPEG", quality=95)
    return target.getvalue()


def never_closed(folder, out):
    file = pa.OSFile(str(out), "wb")
    writer = pa.ipc.new_file(file, SCHEMA)
    given = rows_of(folder)
    writer.write(
        pa.record_batch(
            [pa.array(c, f.type) for c, f in zip(zip(*given, strict=False), SCHEMA, strict=False)],
            schema=SCHEMA,
        )
    )
    file.close()
    return len(given)


def table_of(folder):
    return pa.table(
        [pa.array(c, f.type) for c, f in zip(zip(*rows_of(folder), strict=False), SCHEMA, strict=False)],
        schema=SCHEMA,
    )


def parquet(folder, out):
    pa.parquet.write_table(table_of(folder), out)
    return 1


def feather(folder, out):
    pa.feather.write_feather(table_of(folder), out)
    return 1


def feather_uncompressed(folder, out):
    pa.feather.write_feather(table_of(folder), out, compression="uncompressed", chunksize=64)
    return table_of(folder).num_rows


def last_batch_lost(folder, out):
    return write(folder, out, lambda rows: rows[: len(rows) // 64 * 64] if len(rows) > 64 else rows)


def one_split(folder, out):
    if not (folder / "dataset_flickr30k.json").exists():
        return write(folder, out)
    source = sources.load(folder, "flickr30k", split="train")
    kept = set(source.manifest.paths.to_pylist())
    return write(folder, out, lambda rows: [r for r in rows if r[0] in kept])


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


def without_bad_image(rows):
    return [r for r in rows if not r[0].startswith("2199200615")]


def null_captions(place):
    return lambda rows: [
        (n, [*five[:4], None] if i == place else five, d) for i, (n, five, d) in enumerate(rows)
    ]


def bad_row_dropped(rows):
    return [(n, five[:4] if n.startswith("2199200615") else five, d) for n, five, d in rows]


def joined(folder, out):
    return typed(1, pa.string(), change="|".join)(folder, out)


WRONG_FILES = {
    "nothing written": (lambda folder, out: 6, "nothing was written there"),
    "one row a caption": (per_caption, "every image five times"),
    "one row a caption, as lists": (per_caption_in_lists, "every image five times"),
    "images missing": (partial(write, change=lambda rows: rows[1:2] + rows[3:]), "images are lost"),
    "no rows": (partial(write, change=lambda rows: [], returns=6), "no row was written"),
    "one split": (one_split, "image"),
    "the last batch": (last_batch_lost, "the last batch is not full"),
    "the image of the bad row": (partial(write, change=without_bad_image), "lost, perhaps with the bad row"),
    "rows twice": (partial(write, change=lambda rows: [*rows, rows[0]]), "more than once"),
    "sorted as numbers": (partial(write, change=by_number), "sorted as numbers"),
    "reversed": (partial(write, change=lambda rows: rows[::-1]), "reversed"),
    "order of the folder": (
        partial(
            write, change=lambda rows: [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
        ),
        "an order of its own",
    ),
    "paths as keys": (column(0, lambda name: f"flickr30k_images/{name}"), "bare file name"),
    "stems as keys": (column(0, lambda name: name[:-4]), "path.stem"),
    "the table as an image": (
        partial(write, change=lambda rows: [*rows, ("results.csv", ["x"], b"y")]),
        "*.jpg only",
    ),
    "null keys": (column(0, lambda name: None), "nulls"),
    "a null caption": (partial(write, change=null_captions(2)), "a caption is lost"),
    "null instead of a list": (column(1, lambda five: None), "lost (null)"),
    "the text nan": (column(1, lambda five: [*five[:4], "nan"]), "lost caption"),
    "four captions": (partial(write, change=bad_row_dropped), "do not drop it"),
    "both tables": (both_tables, "two copies of results.csv"),
    "str of caption bytes": (
        column(1, lambda five: [str(text.encode()) for text in five]),
        "Python spelling",
    ),
    "captions out of step": (partial(write, change=captions_out_of_step), "out of step"),
    "captions of bytes": (
        typed(1, pa.list_(pa.binary()), lambda five: [text.encode() for text in five]),
        "decode bytes",
    ),
    "captions as numbers": (typed(1, pa.list_(pa.float64()), lambda five: [float("nan")]), "NaN"),
    "captions in one text": (joined, "a list keeps them apart"),
    "data as text": (typed(2, pa.string(), str), "image bytes are no text"),
    "data as numbers": (typed(2, pa.list_(pa.uint8()), list), "a list of numbers"),
    "data as a struct": (
        typed(2, pa.struct([("bytes", pa.binary())]), lambda data: {"bytes": data}),
        "pa.binary() into the schema",
    ),
    "keys as numbers": (typed(0, pa.int64(), lambda name: int(name.partition(".")[0])), "pa.string()"),
    "other column names": (
        partial(
            write,
            schema=pa.schema(
                [pa.field(n, f.type) for n, f in zip(("image", "text", "jpg"), SCHEMA, strict=False)]
            ),
        ),
        "no column is called key or captions or data",
    ),
    "encoded again": (column(2, encoded_again), "loses quality"),
    "decoded": (column(2, lambda data: np.asarray(Image.open(io.BytesIO(data))).tobytes()), "decoded pixels"),
    "str of bytes": (column(2, lambda data: str(data).encode()), "Python spelling"),
    "no bytes": (column(2, lambda data: b""), "nothing was read"),
    "null bytes": (column(2, lambda data: None), "bytes of this image are lost"),
    "cut short": (column(2, lambda data: data[:100]), "cut short"),
    "base64": (column(2, lambda data: b"/9j/" + data[:50]), "not the bytes of the file"),
    "a path": (
        lambda folder, out: write(
            folder, out, lambda rows: [(n, five, f"images/{n}".encode()) for n, five, _ in rows]
        ),
        "path of the image",
    ),
    "images out of step": (partial(write, change=images_out_of_step), "another image"),
    "one row a batch": (partial(write, rows=1), "has a header"),
    "one batch for all": (partial(write, rows=10_000), "reads its whole batch"),
    "compressed": (partial(write, options=pa.ipc.IpcWriteOptions(compression="zstd")), "JPEGs do not shrink"),
    "feather as it comes": (feather, "JPEGs do not shrink"),
    "parquet": (parquet, "this is Parquet"),
    "a stream": (partial(write, new=pa.ipc.new_stream), "IPC stream"),
    "text": (lambda folder, out: out.write_text("hello"), "does not begin with ARROW1"),
    "empty": (lambda folder, out: out.write_text("") or 1, "file is empty"),
    "never closed": (never_closed, "footer is missing"),
    "wrong count": (partial(write, returns=5), "the number of images"),
    "no count": (lambda folder, out: write(folder, out) and None, "without return"),
    "images not found": (lambda folder, out: next(folder.glob("*.jpg")), "folder.rglob"),
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

    def test_a_stub_is_not_started(self, folder):
        def stub(folder, out):
            raise NotImplementedError

        assert ex03.write_flickr30k(stub, folder).state == "not started"

    def test_a_folder_that_is_none_is_a_sentence(self, tmp_path):
        with pytest.raises(SourceError, match="no Flickr30K"):
            ex03.write_flickr30k(write, tmp_path)

    def test_nothing_is_left_behind(self, folder, tmp_path, monkeypatch):
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.setattr("tempfile.tempdir", None)
        assert ex03.write_flickr30k(write, folder)
        assert list(tmp_path.iterdir()) == []


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
