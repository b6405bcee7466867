"""Queues give what queueing theory says, and what a plain loop over their requests gives."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from smallfiles.scaling.simulation import Station, Stations

REQUESTS = 400_000


def poisson(rate, count, seed):
    rng = np.random.default_rng(seed)
    return rng.exponential(1 / rate, count).cumsum(), rng.exponential(1.0, count)


def erlang_c(servers, load):
    """Probability that a request of M/M/c waits (Erlang, 1917)."""
    terms = [load**n / math.factorial(n) for n in range(servers)]
    last = load**servers / math.factorial(servers) * servers / (servers - load)
    return last / (sum(terms) + last)


@pytest.mark.parametrize(("servers", "use"), [(1, 0.5), (1, 0.8), (4, 0.7), (16, 0.9)])
def test_requests_of_a_queue_wait_as_long_as_closed_forms_say(servers, use):
    load = servers * use
    arrivals, service = poisson(load, REQUESTS, servers)
    stay = (Station(servers).serve(arrivals, service) - arrivals).mean()
    expected = 1 + erlang_c(servers, load) / (servers - load)
    assert stay == pytest.approx(expected, rel=0.05)
    if servers == 1:
        assert expected == pytest.approx(1 / (1 - use))  # M/M/1
        alone = Stations(1).serve(arrivals, service, np.zeros(REQUESTS, int))
        assert (alone - arrivals).mean() == pytest.approx(stay, rel=1e-9)


def one_after_the_other(arrivals, service, which, free):
    leave = np.empty_like(arrivals)
    for n in np.argsort(arrivals, kind="stable"):
        free[which[n]] = leave[n] = max(arrivals[n], free[which[n]]) + service[n]
    return leave


SECONDS = st.floats(0, 100, allow_subnormal=False)


@given(st.data(), st.integers(1, 30), st.integers(1, 5))
def test_many_queues_at_once_are_as_each_alone_round_after_round(data, count, servers):
    stations, free = Stations(servers), np.zeros(servers)
    for _ in range(2):
        arrivals = data.draw(arrays.arrays(float, count, elements=SECONDS))
        service = data.draw(arrays.arrays(float, count, elements=SECONDS))
        which = data.draw(arrays.arrays(np.int64, count, elements=st.integers(0, servers - 1)))
        expected = one_after_the_other(arrivals, service, which, free)
        assert stations.serve(arrivals, service, which) == pytest.approx(expected, abs=1e-6)
