"""Slow samples of a real training: which they are, and what it takes without them."""

from __future__ import annotations

import pytest

from tests.watch import uneven_script
from tests.watch.watching import Host, Told
from vitprof.analysis.timing.slow_samples import SlowSamples, slow_samples

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
