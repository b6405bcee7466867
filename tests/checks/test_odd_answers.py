"""Whatever an answer is or gives, a check tells a sentence and raises nothing."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from exercises.checks import ex03_pack_arrow as ex03
from exercises.checks import ex10_run_it_on_many_nodes as ex10
from exercises.checks import ex11_choose_a_format as ex11
from exercises.checks import ex12_when_it_breaks as ex12
from smallfiles.sources import synthetic


def checks():
    """All that `@check` made, without those that take no function."""
    others = (ex10.job, ex11.choice, ex12.causes, ex12.lines, ex12.programs)
    for path in sorted(Path(ex03.__file__).parent.glob("ex*.py")):
        module = importlib.import_module(f"exercises.checks.{path.stem}")
        for name, found in vars(module).items():
            if getattr(found, "__code__", None) is ex10.job.__code__ and found not in others:
                yield pytest.param(found, id=f"{path.stem[:4]} {name}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("set") / "flickr30k"
    synthetic.make(path, "flickr30k", count=20, size=(48, 36))
    return path


CHECKS = list(checks())


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


def raises_stub(*arguments):
    """A stub as the exercises have them."""
    raise NotImplementedError


def leaves(*arguments):
    raise SystemExit(3)


GIVEN = [None, 7, -1.5, float("nan"), "x", b"x", [], [None], [[]], (), (0, 1), (b"", None), {}, {None: None}]
GIVEN += [{"image": 1, "target": 2}, {1, 2}, np.zeros(3), np.zeros((96, 96, 3), np.float64), object(), Odd()]
ODD = [lambda *_, given=given: given for given in GIVEN]
ODD += [7, "x", Odd(), Odd, leaves, lambda: 1, lambda *_: 1 / 0, lambda *_: {}["x"], lambda *_: iter((1, 2))]


def assert_sentence(verdict):
    assert verdict.state in ("not yet", "not started"), str(verdict)
    assert "Traceback" not in str(verdict) and "Traceback" not in verdict._repr_html_()
    assert verdict.state == "not started" or verdict.because.strip()


@pytest.mark.parametrize("check", CHECKS)
def test_no_answer_makes_a_check_raise(check):
    for answer in ODD:
        assert_sentence(check(answer))


def test_no_answer_makes_the_check_of_a_packed_folder_or_of_choices_raise(folder):
    for answer in ODD:
        assert_sentence(ex11.choice(answer))
        assert_sentence(ex03.write_flickr30k(answer, folder))


@pytest.mark.parametrize("answer", [7, "no such file", Odd()])
def test_what_is_no_script_is_told(answer):
    assert_sentence(ex10.job(answer))


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("answer", [raises_stub, None, ...])
def test_a_stub_is_not_started_and_says_what_to_do(check, answer):
    verdict = check(answer)
    assert verdict.state == "not started" and "Replace the stub" in str(verdict)
