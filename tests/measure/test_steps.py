"""Accelerators that are imitated: against closed forms, on a clock that nothing else moves."""

import dataclasses
import itertools

import pytest

from smallfiles.errors import UsageError
from smallfiles.measure import LoadBenchConfig
from smallfiles.measure.loading import steps
from smallfiles.measure.loading.steps import BUSY, Pass, emulated, utilisation

STEP_S, BATCH, STEPS_RUN, READY = 0.2, 8, 50, 5


class Fake:
    """A clock, and loaders on it."""

    def __init__(self):
        self.time, self.slept = 0.0, 0

    def sleep(self, seconds):
        self.time += seconds
        self.slept += 1

    def serial(self, batch_s):
        """Makes a batch only when it is asked for."""
        while True:
            self.time += batch_s
            yield BATCH

    def ahead(self, batch_s):
        """Makes one batch after the other from now on, and holds some that are not taken yet."""
        made, taken = self.time, []
        for number in itertools.count():
            room = taken[number - READY] if number >= READY else 0.0
            made = max(made, room) + batch_s
            self.time = max(self.time, made)
            taken.append(self.time)
            yield BATCH


@pytest.fixture
def fake(monkeypatch):
    found = Fake()
    monkeypatch.setattr(steps, "perf_counter", lambda: found.time)
    monkeypatch.setattr(steps, "sleep", found.sleep)
    return found


@pytest.mark.parametrize("number", [1, 2, 8])
def test_with_a_slower_loader_utilisation_is_the_step_over_the_time_of_its_batches(fake, number):
    found = utilisation(fake.ahead(0.5), BATCH, STEP_S, STEPS_RUN, number)
    assert found == pytest.approx(STEP_S / (0.5 * number), rel=2 / STEPS_RUN)


def test_loading_for_the_first_step_does_not_count(fake):
    found = utilisation(fake.serial(0.3), BATCH, STEP_S, 10)
    assert found == pytest.approx(10 * STEP_S / (10 * STEP_S + 9 * 0.3))


@pytest.mark.parametrize(("batch_s", "fed"), [(0.5, 0), (0.1, 2), (0.021, 10), (0.002, 111)])
def test_as_many_are_fed_as_the_rate_of_the_loader_allows(fake, batch_s, fed):
    rate = BATCH / batch_s
    done = Pass(100 * BATCH, 100 * BATCH / rate / 1.2, ())  # its rate promises a fifth too much
    found = emulated(done, lambda: itertools.islice(fake.ahead(batch_s), 400), BATCH, STEP_S, READY)
    assert fed == int(STEP_S / batch_s / BUSY)
    assert found.accelerators == pytest.approx(fed, abs=max(0.1, 0.12 * fed))
    assert found.busy == pytest.approx(min(1, STEP_S / batch_s), rel=0.12)


def test_a_named_step_brings_its_batch_and_refuses_another():
    config = LoadBenchConfig(step="resnet50-h100")
    assert (config.step_s, config.batch) == (0.224, 400)  # of resnet50_h100.yaml
    assert dataclasses.replace(config, only=("arrow, threads",)).batch == 400
    assert LoadBenchConfig(step_ms=30).batch == 64
    with pytest.raises(UsageError, match="another step or batch size"):
        LoadBenchConfig(step="resnet50-h100", batch=32)
