"""Two ranks that were recorded as they trained together, replayed: the one that is slower by what the
script does is told from the one that waits for it (`tests.watch.core.record_ranks`)."""

import functools
from pathlib import Path

import numpy as np
import pytest

from vitprof.measure.step_columns import Columns
from vitprof.watch.core.columns import columns_of
from vitprof.watch.core.device_columns import DeviceSteps
from vitprof.watch.core.loop import find_steps
from vitprof.watch.core.rank_own_times import RankSteps
from vitprof.watch.core.training import find_training
from vitprof.watch.event_log import read_event_log

LOGS = Path(__file__).parent / "rank_logs"
WARMUP_STEPS = 5
SLOW_S = 0.016
"""How long the slow rank takes for its cause; the model takes 2 ms, or this."""


@functools.cache
def replayed(name: str) -> tuple[Columns, dict[str, int]]:
    """Returns the columns of a log's steps after the warm-up, and the facts of its ranks."""
    log = read_event_log(LOGS / f"{name}.jsonl")
    training = find_training(log)
    assert training is not None
    device = DeviceSteps(WARMUP_STEPS)
    device.add(log.events, find_steps(training).steps)
    steps, figures = device.take(training.thread, finished=True)
    ranks = RankSteps(WARMUP_STEPS)
    ranks.add(log.events)
    columns = columns_of(steps, device=figures, ranks=ranks.take(training.thread, steps, figures))
    return {name: values[WARMUP_STEPS:] for name, values in columns.items()}, ranks.facts()


def middle(name: str, column: str) -> float:
    return float(np.nanmedian(replayed(name)[0][column]))


@pytest.mark.parametrize("where", ["", "-on-gpus"])
def test_a_forward_pass_that_takes_longer_is_the_ranks_own(where: str) -> None:
    assert middle(f"compute{where}-1", "forward_s") > SLOW_S
    assert middle(f"compute{where}-0", "forward_s") < SLOW_S / 2
    assert middle(f"compute{where}-1", "between_s") < SLOW_S / 2


@pytest.mark.parametrize("where", ["", "-on-gpus"])
def test_work_between_steps_is_the_ranks_own(where: str) -> None:
    assert middle(f"between{where}-0", "between_s") > SLOW_S
    assert middle(f"between{where}-1", "between_s") < SLOW_S / 2
    assert middle(f"between{where}-1", "forward_s") < SLOW_S / 2


def test_slow_data_is_a_wait_and_neither_of_both() -> None:
    assert middle("input-0", "data_wait_s") > SLOW_S
    assert middle("input-1", "data_wait_s") < SLOW_S / 2
    for rank in (0, 1):
        assert middle(f"input-{rank}", "forward_s") < SLOW_S / 2
        assert middle(f"input-{rank}", "between_s") < SLOW_S / 2


def test_a_forward_pass_with_a_collective_is_not_known() -> None:
    for rank in (0, 1):
        assert np.isnan(replayed(f"gathers-{rank}")[0]["forward_s"]).all()
        assert np.isfinite(replayed(f"gathers-{rank}")[0]["between_s"]).any()


@pytest.mark.parametrize("name", sorted(path.stem for path in LOGS.glob("*.jsonl")))
def test_all_ranks_count_the_same_collectives_and_none_in_their_loaders(name: str) -> None:
    columns, facts = replayed(name)
    # one to send buffers, one for gradients, and of `gathers` one in the forward pass
    per_step = 3 if name.startswith("gathers") else 2
    assert np.median(columns["collectives"]) == per_step
    assert facts == {}
    assert (columns["batch_values"] == 64).all()
