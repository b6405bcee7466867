"""Exercise 03, reading: captions without images, and batches from workers."""

import pickle
import sys
from functools import partial

import pyarrow as pa
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet
import pytest
from flickr_answers import assert_told, open_mapped, right_columns
from torch.utils.data import DataLoader

from exercises.checks import ex03_pack_arrow as ex03
from smallfiles import captions, formats
from smallfiles.captions import CaptionDataset, Vocabulary


@pytest.fixture(autouse=True)
def lenient(monkeypatch):
    monkeypatch.delenv("COURSE_STRICT", raising=False)


RIGHT_COLUMNS = {
    "mapped": lambda path: open_mapped(path).read_all()["captions"].to_pylist(),
    "batch by batch": lambda path: [
        five
        for n in range(open_mapped(path).num_record_batches)
        for five in open_mapped(path).get_batch(n)["captions"].to_pylist()
    ],
    "dataset": lambda path: (
        pa.dataset.dataset(path, format="arrow").to_table(["captions"])["captions"].to_pylist()
    ),
    "feather": lambda path: pa.feather.read_table(path, ["captions"])["captions"].to_pylist(),
    "included fields": lambda path: (
        pa.ipc.open_file(
            str(path),
            options=pa.ipc.IpcReadOptions(included_fields=[open_mapped(path).schema.names.index("captions")]),
        )
        .read_all()["captions"]
        .to_pylist()
    ),
    "our reader": lambda path: [formats.open(path).target(n) for n in range(len(formats.open(path)))],
}


WRONG_COLUMNS = {
    "OSFile": (
        lambda path: pa.ipc.open_file(pa.OSFile(str(path))).read_all()["captions"].to_pylist(),
        "whole file was read",
    ),
    "read into memory": (
        lambda path: pa.ipc.open_file(path.read_bytes()).read_all()["captions"].to_pylist(),
        "whole file was read",
    ),
    "rows as objects": (
        lambda path: [r["captions"] for r in open_mapped(path).read_all().to_pylist()],
        "whole file was read",
    ),
    "combined": (
        lambda path: open_mapped(path).read_all().combine_chunks()["captions"].to_pylist(),
        "whole file was read",
    ),
    "an Arrow column": (lambda path: open_mapped(path).read_all()["captions"], "to_pylist"),
    "Arrow scalars": (lambda path: list(open_mapped(path).read_all()["captions"]), "Python lists"),
    "flat": (lambda path: [text for five in right_columns(path) for text in five], "one list an image"),
    "str of lists": (lambda path: [str(five) for five in right_columns(path)], "str() of a list"),
    "str of bytes": (
        lambda path: [[str(text.encode()) for text in five] for five in right_columns(path)],
        "Python spelling",
    ),
    "str of bytes, flat": (
        lambda path: [str(text.encode()) for five in right_columns(path) for text in five],
        "Python spelling",
    ),
    "second column": (lambda path: open_mapped(path).read_all().column(1).to_pylist(), "Python"),
    "first batch": (
        lambda path: open_mapped(path).get_batch(0)["captions"].to_pylist(),
        "only the first record batch",
    ),
    "no empty lists": (lambda path: [five for five in right_columns(path) if five], "empty list"),
    "first caption": (lambda path: [five[:1] for five in right_columns(path)], "are missing"),
    "column caption": (lambda path: open_mapped(path).read_all()["caption"].to_pylist(), "by its name"),
}


class TestCaptionsOf:
    @pytest.mark.parametrize("name", RIGHT_COLUMNS)
    def test_every_right_way_passes(self, name):
        verdict = ex03.captions_of(RIGHT_COLUMNS[name])
        assert verdict, str(verdict)

    @pytest.mark.parametrize("name", [name for name in WRONG_COLUMNS if name != "second column"])
    def test_a_wrong_answer_gets_its_diagnosis(self, name):
        answer, diagnosis = WRONG_COLUMNS[name]
        assert_told(ex03.captions_of(answer), diagnosis)

    def test_a_column_taken_by_its_place_is_the_wrong_one(self):
        assert ex03.captions_of(WRONG_COLUMNS["second column"][0]).state == "not yet"


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


def own_dataset():
    class DatasetInANotebook(CaptionDataset):
        pass

    return DatasetInANotebook


def bytes_vocabulary(path):
    images = open_mapped(path).read_all()["data"].to_pylist()
    return Vocabulary.build([str(image) for image in images])


WRONG_LOADERS = {
    "a list": (lambda path, size: [1], "wrap the data set"),
    "no collate": (partial(loader_of, collate_fn=None), "do not stack by themselves"),
    "collate of the notebook": (
        lambda path, size: loader_of(path, size, collate_fn=from_the_notebook(own_collate)),
        "in no module",
    ),
    "data set of the notebook": (
        lambda path, size: loader_of(path, size, dataset=from_the_notebook(own_dataset)),
        "in no module",
    ),
    "collate by lambda": (
        lambda path, size: loader_of(path, size, collate_fn=lambda items: captions.collate(items)),
        "in no module",
    ),
    "no workers": (partial(loader_of, num_workers=0), "without workers"),
    "default batch size": (lambda path, size: loader_of(path, 1), "pass batch_size on"),
    "last batch dropped": (partial(loader_of, drop_last=True), "leaves out the images"),
    "shuffled": (partial(loader_of, shuffle=True), "stored order"),
    "no minimum": (partial(loader_of, vocabulary=partial(vocabulary_of, min_count=1)), "min_count=2"),
    "first captions only": (
        partial(loader_of, vocabulary=partial(vocabulary_of, use=lambda five: five[:1])),
        "all five count",
    ),
    "no words": (
        partial(loader_of, vocabulary=lambda path: Vocabulary.build([])),
        "empty when it is used twice",
    ),
    "words of bytes": (partial(loader_of, vocabulary=bytes_vocabulary), "str() of bytes"),
    "captions spelled as bytes": (
        partial(
            loader_of,
            vocabulary=lambda path: Vocabulary.build(
                [str(t.encode()) for five in right_columns(path) for t in five]
            ),
        ),
        "str() of bytes",
    ),
    "another minimum": (
        partial(loader_of, vocabulary=partial(vocabulary_of, min_count=9)),
        "from all captions",
    ),
    "own batches": (partial(loader_of, collate_fn=list), "could not make a batch"),
    "reversed": (
        lambda path, size: loader_of(path, size, sampler=range(len(formats.open(path)))[::-1]),
        "stored order",
    ),
}


class TestMakeLoader:
    @pytest.mark.parametrize("name", WRONG_LOADERS)
    def test_a_wrong_answer_gets_its_diagnosis(self, name):
        answer, diagnosis = WRONG_LOADERS[name]
        assert_told(ex03.make_loader(answer), diagnosis)

    @pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"prefetch_factor": 4}])
    def test_every_right_way_passes(self, options):
        verdict = ex03.make_loader(partial(loader_of, **options))
        assert verdict, str(verdict)

    def test_what_a_worker_can_reach_is_told_from_what_it_cannot(self):
        from exercises.checks.ex03_pack_arrow.loaders import unreachable

        assert unreachable(captions.collate) == "" and unreachable(partial(captions.collate)) == ""
        assert "own_collate" not in unreachable(own_collate)
        assert "notebook" in unreachable(from_the_notebook(own_collate))
        assert "cannot be sent" in unreachable(lambda: 1)
        assert pickle.loads(pickle.dumps(captions.collate)) is captions.collate
