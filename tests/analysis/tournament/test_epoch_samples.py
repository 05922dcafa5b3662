"""Settings that give another number of samples an epoch than the unchanged script."""

import numpy as np
import pytest

from vitprof.analysis.tournament.epoch_samples import (
    EpochSamples,
    are_counted,
    epoch_samples,
    why_other_samples,
)

AS_IT_IS = [EpochSamples((1600.0,), 800.0), EpochSamples((1600.0, 1600.0), 0.0)]


def test_samples_are_summed_up_by_epoch_and_the_last_one_goes_on() -> None:
    steps = {"epoch": np.array([0.0, 0, 0, 1, 1, 2]), "samples": np.array([4.0, 4, 2, 4, 4, 4])}
    assert epoch_samples(steps) == EpochSamples((10.0, 8.0), 4.0)
    none = {"epoch": np.empty(0), "samples": np.empty(0)}
    assert epoch_samples(none) == EpochSamples()


@pytest.mark.parametrize(
    ("of_setting", "said"),
    [
        (EpochSamples((4800.0,), 16.0), "an epoch has 4,800 samples with it, and 1,600 with the"),
        (EpochSamples((), 3200.0), "an epoch has 3,200 samples with it and goes on, and 1,600"),
        (EpochSamples((800.0,), 0.0), "an epoch has 800 samples with it"),
        (EpochSamples((1600.0, 400.0), 0.0), "an epoch has 400 samples with it"),
        (EpochSamples((1600.0,), 800.0), ""),
        (EpochSamples((1572.0,), 0.0), ""),
        (EpochSamples((), 1600.0), ""),
    ],
)
def test_another_number_than_that_of_the_script_as_it_is(
    of_setting: EpochSamples, said: str
) -> None:
    why = why_other_samples(AS_IT_IS, [of_setting], slack=48.0)
    assert why.startswith(said)
    assert bool(said) == bool(why)


def test_nothing_is_said_where_no_epoch_of_the_script_as_it_is_has_ended() -> None:
    not_ended = [EpochSamples((), 1600.0)]
    assert not why_other_samples(not_ended, [EpochSamples((4800.0,), 0.0)], slack=0.0)
    assert not are_counted(not_ended, AS_IT_IS)
    assert not are_counted(AS_IT_IS, not_ended)
    assert are_counted(AS_IT_IS, AS_IT_IS)
