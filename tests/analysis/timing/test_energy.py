"""Energy in the training time: by the counter, else by samples of the power, else not known."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from tests.series import made_steps, made_telemetry
from vitprof.analysis.arrays import Series
from vitprof.analysis.timing.energy import TrainingEnergy, training_energy
from vitprof.analysis.timing.steady import training
from vitprof.recording.columns import Phase

STEPS = made_steps([0.5] * 20, 0.5)
"""20 s from 100 s on; the run's first step is no part of the training time."""
TRAINING_S = 19.0


def energy(
    telemetry: Series, phases: Sequence[Phase] = (), *, shares_card: bool = False
) -> TrainingEnergy:
    counted = training(STEPS)
    return training_energy(STEPS, phases, telemetry, counted, TRAINING_S, shares_card=shares_card)


def counted_by(joules: Sequence[float], *, gpus: float | np.ndarray = 1.0) -> Series:
    """Telemetry with a counter, from 99 s on."""
    t_s = 99.0 + np.arange(len(joules))
    return made_telemetry(t_s, gpu_energy_j=joules, energy_gpus=gpus, gpu_power_w=1.0)


def test_the_counter_is_read_where_training_begins_and_ends() -> None:
    # 1000 J a second before and after the training, 100 J a second in it
    rates = [1000.0, 1000.0, *[100.0] * 19, 1000.0]
    found = energy(counted_by([0.0, *np.cumsum(rates)]))
    assert found.by_counter_j == pytest.approx(1900)
    assert math.isnan(found.by_power_j), "the counter misses nothing"
    assert found.n_gpus == 1


def test_an_evaluation_within_it_is_left_out() -> None:
    rates = np.full(30, 100.0)
    rates[6:9] = 5000.0  # from 105 s to 108 s
    evaluated = [Phase("evaluate", 105.0, 108.0)]
    telemetry = counted_by([0.0, *np.cumsum(rates)])
    counted = training(STEPS)
    found = training_energy(STEPS, evaluated, telemetry, counted, TRAINING_S - 3)
    assert found.by_counter_j == pytest.approx(1600)


def test_without_a_counter_it_is_the_integral_of_the_power() -> None:
    t_s = np.arange(99, 125, 0.5)
    telemetry = made_telemetry(t_s, gpu_power_w=np.where(t_s < 110, 100.0, 300.0))
    found = energy(telemetry)
    assert math.isnan(found.by_counter_j)
    assert found.by_power_j == pytest.approx(
        9 * 100 + 10 * 300, abs=51
    )  # the change is in a sample
    assert found.n_gpus == 1


def test_the_power_of_a_whole_card_is_not_that_of_a_slice() -> None:
    telemetry = made_telemetry(np.arange(99, 125, 0.5), gpu_power_w=100.0)
    assert math.isnan(energy(telemetry, shares_card=True).by_power_j)


@pytest.mark.parametrize(
    "telemetry",
    [
        made_telemetry(),
        made_telemetry([99.0, 110.0, 125.0]),
        made_telemetry([110.0], gpu_energy_j=5.0, energy_gpus=1.0),
        # from the middle on
        counted_by([math.nan] * 10 + [100.0 * n for n in range(15)]),
        # too far apart for samples of the power
        made_telemetry(np.arange(99, 125, 5.0), gpu_power_w=100.0),
    ],
    ids=["no sample", "no figure", "one sample", "half of it", "far apart"],
)
def test_too_little_of_it_is_not_available_and_never_0(telemetry: Series) -> None:
    telemetry = {**telemetry}
    if np.isfinite(telemetry["gpu_energy_j"]).any():
        telemetry["gpu_power_w"] = np.full(len(telemetry["t_s"]), np.nan)
    found = energy(telemetry)
    assert math.isnan(found.by_counter_j)
    assert math.isnan(found.by_power_j)
    assert found.n_gpus == 0


def test_a_missing_sample_costs_a_counter_nothing() -> None:
    joules = [100.0 * n for n in range(25)]
    joules[7] = math.nan
    assert energy(counted_by(joules)).by_counter_j == pytest.approx(1900)


def test_where_the_telemetry_began_anew_the_rest_stands_for_all() -> None:
    joules = np.array([100.0 * n for n in range(25)])
    joules[10:] -= joules[10]
    assert energy(counted_by(joules)).by_counter_j == pytest.approx(1900)


def test_a_gpu_that_joins_late_is_counted_from_then_on() -> None:
    gpus = np.where(np.arange(25) < 1, 1.0, 2.0)
    joules = np.where(gpus == 1, 50.0, 200.0 * np.arange(25))
    found = energy(counted_by(list(joules), gpus=gpus))
    assert (found.by_counter_j, found.n_gpus) == (pytest.approx(3800), 2)
