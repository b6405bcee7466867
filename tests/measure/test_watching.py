"""The benchmark of what watching costs: its loop delivers every batch, and its bound follows from them."""

import pytest

from benchmarks import watching
from smallfiles.measure.protocol import Outcome


@pytest.fixture
def place(tmp_path):
    (tmp_path / "program.py").write_text(watching.PROGRAM)
    return tmp_path


@pytest.mark.parametrize("way", ["plain", "audit"])
def test_a_way_delivers_all_batches_and_says_what_they_cost(way, place):
    outcome = watching._run(place, way, "empty", 6)
    assert outcome.samples == 6 * 32
    assert 0 < outcome.extra["cpu_us_per_step"] < 1e6
    assert not list(place.glob("out.json"))


def test_a_program_that_fails_is_told_by_its_last_line(place):
    with pytest.raises(RuntimeError, match=r"picture\.jpg"):
        watching._run(place, "plain", "real", 1)


def test_the_bound_is_the_difference_with_both_errors_of_the_shortest_likely_step():
    def runs(way, *costs):
        return [Outcome(1, 0, 1.0, {"way": way, "cpu_us_per_step": each}) for each in costs]

    cost = {}
    watching._per_step("real", cost)(runs("plain", 9_000.0, 11_000.0))  # 10,000, error 1,000
    watching._per_step("", cost)(runs("plain", 90.0, 110.0))  # 100, error 10
    found = watching._per_step("", cost)(runs("audit", 190.0, 210.0))  # 200, error 10
    assert found["most_percent"] == pytest.approx(100 * (100 + 2.1 * 200**0.5) / (10_000 - 2_100))
    assert "most_percent" not in watching._per_step("", cost)(runs("plain", 1.0, 2.0))
