"""Break-even: the crossing of two straight lines, and what cannot be answered."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smallfiles.errors import UsageError
from smallfiles.staging import break_even, break_even_of_rates, break_even_text

seconds = st.floats(0.001, 1e6)


@given(seconds, seconds, seconds)
def test_after_the_break_even_staging_has_won_and_before_it_has_not(
    copy_s: float, slow_s: float, staged_s: float
) -> None:
    epochs = break_even(copy_s, slow_s, staged_s)
    if slow_s <= staged_s:
        assert math.isinf(epochs)
        return
    assert copy_s + epochs * staged_s == pytest.approx(epochs * slow_s, rel=1e-6)
    assert copy_s + 2 * epochs * staged_s <= 2 * epochs * slow_s * (1 + 1e-9)


def test_known_cases() -> None:
    assert break_even(30.0, 20.0, 5.0) == 2.0
    assert break_even(0.0, 1.0, 1.0) == 0.0
    assert break_even(1.0, 5.0, 5.0) == math.inf
    assert break_even_of_rates(1000, 100.0, 50.0, 500.0) == pytest.approx(10 / (20 - 2))
    assert break_even_of_rates(1000, 100.0, 50.0, 500.0, bound_s=25.0) == math.inf


def test_it_is_told_in_a_sentence() -> None:
    assert (
        break_even_text(30.0, 20.0, 5.0)
        == "staging takes 30 s, saves 15 s an epoch, and has paid after 2 epochs"
    )
    assert "after 1 epoch" in break_even_text(1.0, 20.0, 5.0)
    assert "never pays" in break_even_text(30.0, 5.0, 5.0)


@pytest.mark.parametrize("wrong", [(-1.0, 1.0, 1.0), (1.0, math.nan, 1.0), (1.0, 1.0, math.inf)])
def test_what_is_no_duration_is_refused(wrong: tuple[float, float, float]) -> None:
    with pytest.raises(UsageError):
        break_even(*wrong)


def test_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="rates above zero"):
        break_even_of_rates(1000, 100.0, 0.0, 500.0)
