"""Whatever an answer is or gives, a check tells a sentence and raises nothing."""

import numpy as np
import pytest
from telling import raises_stub

from exercises.checks import ex00_start_here as ex00
from exercises.checks import ex01_count_the_cost_of_small_files as ex01
from exercises.checks import ex02_describe_a_dataset as ex02
from exercises.checks import ex03_pack_arrow as ex03
from exercises.checks import ex04_pack_hdf5 as ex04
from exercises.checks import ex05_shard_a_dataset as ex05
from exercises.checks import ex06_read_a_squashfs_image as ex06
from exercises.checks import ex07_stage_a_dataset as ex07
from exercises.checks import ex08_keep_the_gpu_fed as ex08
from exercises.checks import ex09_stream_shards as ex09
from exercises.checks import ex10_run_it_on_many_nodes as ex10
from smallfiles.sources import synthetic


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("set") / "flickr30k"
    synthetic.make(path, "flickr30k", count=20, size=(48, 36))
    return path


CHECKS = {
    "copies_that_fit": ex00.copies_that_fit,
    "inodes_needed": ex01.inodes_needed,
    "hours_to_open": ex01.hours_to_open,
    "val_manifest": ex02.val_manifest,
    "label_order": ex02.label_order,
    "read_captions": ex03.read_captions,
    "captions_of": ex03.captions_of,
    "make_loader": ex03.make_loader,
    "write_blob": ex04.write_blob,
    "read_sample": ex04.read_sample,
    "my_shards": ex05.my_shards,
    "my_shards_in_epoch": ex05.my_shards_in_epoch,
    "reader": ex06.reader,
    "stage": ex07.stage,
    "stage_safely": ex07.stage_safely,
    "bottleneck": ex08.bottleneck,
    "reader of a loader": ex08.reader,
    "picture": ex08.picture,
    "collate": ex08.collate,
    "read_object": ex09.read_object,
    "stream": ex09.stream,
    "place": ex10.place,
}


class Odd:
    """Equal to nothing, and not to be shown."""

    def __eq__(self, other):
        raise RuntimeError

    __hash__ = None

    def __repr__(self):
        raise RuntimeError

    def __getitem__(self, index):
        return self

    def __call__(self, *arguments):
        return self


def leaves(*arguments):
    raise SystemExit(3)


GIVEN = (
    None,
    7,
    -1.5,
    float("nan"),
    "x",
    b"x",
    [],
    [None],
    [[]],
    {},
    {None: None},
    {"image": 1, "target": 2},
)
GIVEN += ((), (0, 1), (b"", None), np.zeros(3), np.zeros((96, 96, 3), np.float64), {1, 2}, object(), Odd())
ODD = {repr(type(given)) + str(number): (lambda *_, given=given: given) for number, given in enumerate(GIVEN)}
ODD |= {"a number": 7, "a text": "x", "no arguments": lambda: 1, "raises": lambda *_: 1 / 0, "odd": Odd()}
ODD |= {
    "a class": Odd,
    "leaves": leaves,
    "a generator": lambda *_: (each for each in (1, 2)),
    "another key": lambda *_: {}["x"],
}


def assert_sentence(verdict):
    assert verdict.state in ("not yet", "not started"), str(verdict)
    assert "Traceback" not in str(verdict) and "Traceback" not in verdict._repr_html_()
    assert verdict.state == "not started" or verdict.because.strip()


@pytest.mark.parametrize("name", CHECKS)
def test_no_answer_makes_a_check_raise(name):
    for answer in ODD.values():
        assert_sentence(CHECKS[name](answer))


def test_no_answer_makes_the_check_of_a_packed_folder_raise(folder):
    for answer in ODD.values():
        assert_sentence(ex03.write_flickr30k(answer, folder))


@pytest.mark.parametrize("answer", [7, "no such file", Odd()])
def test_what_is_no_script_is_told(answer):
    assert_sentence(ex10.job(answer))


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("answer", [raises_stub, None, ...])
def test_a_stub_is_not_started_and_says_what_to_do(name, answer):
    verdict = CHECKS[name](answer)
    assert verdict.state == "not started" and "Replace the stub" in str(verdict)
