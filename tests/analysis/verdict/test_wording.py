"""How long to train for a verdict, and that every config that can be asked for gets its words in the end."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.series import made_steps, made_telemetry
from vitprof.analysis.timing.summary import summarise
from vitprof.analysis.verdict.no_verdict import too_few
from vitprof.analysis.verdict.verdict import judge
from vitprof.analysis.verdict.wording import CLASSES
from vitprof.config import RunConfig
from vitprof.config.bounds import RUN_BOUNDS
from vitprof.config.resolve import resolve, run_name

DIGITS = 60_000


def steps_for(config: RunConfig, needed: int) -> int:
    """Returns the number of steps that the sentence names."""
    return int(too_few(config, 1, 0, needed).split()[-2])


def counted(n_train: int, batch_size: int, warmup: int, needed: int) -> int:
    """Returns the same by counting: a step is steady past the warm-up, and where it is not the first of many."""
    in_epoch = math.ceil(n_train / batch_size)
    steady = step = 0
    while steady < needed:
        steady += step >= warmup and (step % in_epoch > 0 or in_epoch == 1)
        step += 1
    return step


@given(st.integers(1, 60), st.integers(1, 70), st.integers(0, 90), st.integers(1, 30))
def test_the_steps_to_train_for_are_those_that_counting_finds(
    n: int, batch: int, warmup: int, needed: int
) -> None:
    config = RunConfig(dataset="photos", n_images=n, batch_size=batch, warmup_steps=warmup)
    assert steps_for(config, needed) == counted(n, batch, warmup, needed)


@pytest.mark.parametrize("batch_size", [1, 128, DIGITS // 2, DIGITS])
def test_the_longest_warm_up_is_not_counted_through(batch_size: int) -> None:
    config = RunConfig(batch_size=batch_size)
    object.__setattr__(
        config, "warmup_steps", 10**30
    )  # refused today: a store may hold what an older version took
    assert 10**30 + 20 <= steps_for(config, 20) < 2 * 10**30


@pytest.mark.parametrize("end", ["least", "most"])
@pytest.mark.parametrize("budget", ["epochs", "steps", "seconds"])
def test_every_config_gets_words(end: str, budget: str) -> None:
    ends = {name: getattr(bounds, end) for name, bounds in RUN_BOUNDS.items()}
    values = {name: int(value) if RUN_BOUNDS[name].whole else value for name, value in ends.items()}
    values |= dict.fromkeys({"epochs", "steps", "seconds", "n_images"} - {budget})
    config = dataclasses.replace(resolve(RunConfig(strategy="hdf5", batch_size=1)), **values)
    for n in (0, 1, 3, 40):
        steps, telemetry = (
            made_steps([0.002] * n, 0.008, samples=1, warmup=config.warmup_steps),
            made_telemetry(),
        )
        assert summarise(config, steps, telemetry, (), {}, t_origin_s=0.0, t_end_s=1.0).n_steps == n
        assert judge(config, steps, (), telemetry, {}).sentence.endswith(".")
    assert run_name(dataclasses.replace(config, name=""))


def test_the_classes_are_those_of_the_thresholds() -> None:
    assert (
        CLASSES
        == "under 5% of the time idle for data is not input-bound, 5 to 20% moderately, over 20% input-bound"
    )
