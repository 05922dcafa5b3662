"""How long to train for a verdict, and that every config that can be asked for gets its words in the end."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.series import made_steps, made_telemetry
from vitprof.analysis.timing.summary import summarise
from vitprof.analysis.verdict.verdict import judge
from vitprof.analysis.verdict.wording import too_few
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
def test_the_steps_to_train_for_are_those_that_counting_finds(n: int, batch: int, warmup: int, needed: int) -> None:
    config = RunConfig(dataset="photos", n_images=n, batch_size=batch, warmup_steps=warmup)
    assert steps_for(config, needed) == counted(n, batch, warmup, needed)


@pytest.mark.parametrize("batch_size", [1, 128, DIGITS // 2, DIGITS])
def test_the_longest_warm_up_is_not_counted_through(batch_size: int) -> None:
    config = RunConfig(batch_size=batch_size)
    object.__setattr__(config, "warmup_steps", 10**30)  # refused today: a store may hold what an older version took
    assert 10**30 + 20 <= steps_for(config, 20) < 2 * 10**30


def number(field: str) -> st.SearchStrategy[Any]:
    """Returns every value within the bounds, the ends often."""
    bounds = RUN_BOUNDS[field]
    if not bounds.whole:
        return st.sampled_from([bounds.least, bounds.most]) | st.floats(bounds.least, bounds.most)
    least, most = int(bounds.least), int(bounds.most)
    return st.sampled_from([least, most]) | st.integers(least, most)


numbers = st.fixed_dictionaries(
    {name: number(name) for name in ("batch_size", "seed", "warmup_steps", "threads", "telemetry_hz")},
    optional={name: number(name) for name in ("image_size", "lr", "workers", "prefetch_factor", "cache_mb")}
    | {name: number(name) for name in ("slow_mb_s", "slow_latency_ms")},
)
budgets = st.sampled_from(["epochs", "steps", "seconds"]).flatmap(lambda b: st.fixed_dictionaries({b: number(b)}))
sets = st.just({"dataset": "digits"}) | st.fixed_dictionaries(
    {"dataset": st.just("photos"), "n_images": number("n_images")}
)


@settings(max_examples=60, deadline=None)
@given(numbers, budgets, sets, st.sampled_from([0, 1, 3, 40]))
def test_every_config_gets_words(
    values: dict[str, Any], budget: dict[str, Any], chosen: dict[str, Any], n: int
) -> None:
    base = resolve(RunConfig(strategy="hdf5", batch_size=1, **chosen))
    config = dataclasses.replace(base, **{"epochs": None, **values, **budget})
    steps, telemetry = made_steps([0.002] * n, 0.008, samples=1, warmup=config.warmup_steps), made_telemetry()
    found = summarise(config, steps, telemetry, (), {}, t_origin_s=0.0, t_end_s=1.0)
    assert found.n_steps == n
    assert judge(config, steps, (), telemetry, {}).sentence.endswith(".")
    assert run_name(dataclasses.replace(config, name=""))
