"""Slow samples of a real training: which they are, and what it takes without them."""

from __future__ import annotations

import pytest

from tests.watch import uneven_script
from tests.watch.watching import Host, Told
from vitprof.analysis.timing.slow_samples import SlowSamples, slow_samples
from vitprof.analysis.timing.slow_workers import SlowWorker, slow_worker
from vitprof.analysis.timing.steady import steady_state

pytestmark = pytest.mark.measured


def found(told: Told) -> SlowSamples:
    samples = slow_samples(told.facts(), told.note("environment")[0], told.steps)
    assert samples is not None
    return samples


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_the_gain_is_that_of_the_training_without_them(host: Host, workers: int) -> None:
    scripts = host.running("tests.watch.uneven_script")
    slow = scripts.ok("train", workers=workers, is_slow=True)
    usual = scripts.ok("train", workers=workers, is_slow=False)
    samples = found(slow)
    listed = [sample.index for sample in samples.listed]
    assert sorted(listed[: len(uneven_script.SLOW)]) == list(uneven_script.SLOW)
    assert {sample.file for sample in samples.listed[:3]} == {uneven_script.__file__}
    assert 40 < samples.listed[0].ratio < 80
    slow_s, usual_s = (float(told.returned.split()[0]) for told in (slow, usual))
    assert abs(samples.saved_frac - (1 - usual_s / slow_s)) < 0.05


def test_every_kth_sample_is_named(host: Host) -> None:
    told = host.running("tests.watch.uneven_script").ok("train_on_every_kth", workers=2)
    period = found(told).period
    assert period is not None
    assert (period.every, period.first) == (uneven_script.EVERY, uneven_script.FIRST)


def slow_worker_of(told: Told) -> SlowWorker | None:
    facts = {**told.facts(), **told.note("environment")[0]}
    return slow_worker(told.steps, steady_state(told.steps), facts)


def test_a_slow_worker_is_named_and_samples_at_random_are_none(host: Host) -> None:
    scripts = host.running("tests.watch.uneven_script")
    worker = slow_worker_of(scripts.ok("train_with_a_slow_worker", workers=2))
    assert worker is not None
    assert worker.worker == uneven_script.SLOW_WORKER
    assert worker.is_by_chance
    assert worker.times_slower.low < uneven_script.SLOWER < 1.2 * worker.times_slower.high
    assert slow_worker_of(scripts.ok("train", workers=2, is_slow=True)) is None
