"""The ranks of a run as it is judged, by simulated steps."""

from typing import Any

import numpy as np
import pytest

from tests.jobs.sending import columns, waiting
from vitprof.analysis.timing.steady import plain_stops, stops_of
from vitprof.config.own_script import own_config
from vitprof.jobs import finalise, nodes
from vitprof.jobs.supervisor import Disturbances
from vitprof.recording.columns import Stop
from vitprof.store import RunStore
from vitprof.store.chunks import chunks_of

N, STOPPED_AT = 120, 60
WAIT_S, COMPUTE_S, STOP_S = 0.002, 0.030, 20.0


def two_ranks(*, after_collective: bool = False) -> dict[int, dict[str, np.ndarray]]:
    """Steps of two ranks that end together. Rank 1 is stopped in one of them: before its collective, where rank 0 waits
    for it in the same step, or after that, where rank 0 does so in the next one."""
    steps = {}
    for rank in range(2):
        compute = np.full(N, COMPUTE_S)
        compute[STOPPED_AT + (after_collective and rank == 0)] += STOP_S
        step_s = WAIT_S + compute
        start = 100.0 + np.cumsum(step_s) - step_s
        steps[rank] = columns(
            N,
            rank=rank,
            step=np.arange(N),
            epoch=0,
            samples=4,
            warmup=np.arange(N) < 5,
            batch_values=100,
            between_s=0.0,
            forward_s=0.01,
            collectives=1,
            awaited_s=0.0,
            **waiting(start, np.full(N, WAIT_S), compute),
        )
    return steps


def stop_of(steps: dict[str, np.ndarray], **of: Any) -> Stop:
    """The stop of a rank in one of these steps, as telemetry sees it."""
    since_s = steps["t_start_s"][STOPPED_AT] + WAIT_S + 0.1
    return Stop("stopped", since_s, since_s + STOP_S - 0.3, STOP_S, **of)


def judged(store: RunStore, steps: dict[int, dict[str, np.ndarray]], *stops: Stop) -> Any:
    run_id = store.create_run(own_config("two ranks"))
    chunks = [*chunks_of("steps", steps[0]), *chunks_of("ranks", steps[1])]
    values: dict[str, Any] = {
        "environment": {"world_size": 2, "rank": 0, "job": "there", "watched": {}},
        "facts": {"stops": plain_stops(stops)},
        "status": "done",
        "t_origin_s": 99.0,
    }
    store.record(run_id, chunks, values)
    store.update_run(run_id, **finalise.settle(store, run_id, 99.0, 200.0))
    return store.run(run_id)


@pytest.mark.parametrize("after_collective", [False, True])
def test_a_rank_that_was_stopped_is_in_no_figure_of_the_others(
    store: RunStore, after_collective: bool
) -> None:
    """Of 20 s in which rank 1 was stopped nothing was said, and the wait was 6.8% with an interval of 2.7 to 31."""
    steps = two_ranks(after_collective=after_collective)
    run = judged(store, steps, stop_of(steps[1], rank=1))
    left_out = store.steps(run.id)["warmup"] == 1
    assert np.flatnonzero(left_out)[5:].tolist() == [STOPPED_AT + after_collective]
    assert run.verdict.idle_frac == pytest.approx(WAIT_S / (WAIT_S + COMPUTE_S), abs=1e-6)
    assert run.verdict.idle_frac_high < 0.07
    assert run.facts["ranks"]["n_steps"] == N - 5 - (2 if after_collective else 1)
    assert run.facts["ranks"]["one_off"] == [0, 0.0]
    assert run.facts["ranks"]["lost_frac"] == pytest.approx(run.verdict.idle_frac, abs=1e-6)


def test_what_is_said_of_ranks_that_were_stopped(store: RunStore) -> None:
    """One line where all were, as by Ctrl-Z."""
    steps = two_ranks()
    for stops, said in (
        ((stop_of(steps[1], rank=1),), ["20.0 s in which rank 1 was stopped"]),
        ((stop_of(steps[0]), stop_of(steps[1], rank=1)), ["20.0 s in which the job was stopped"]),
    ):
        disturbances = Disturbances(store, store.create_run(own_config("two ranks")))
        telemetry: Any = type("Telemetry", (), {"stops": list(stops)})
        facts = disturbances.update([steps[0]], telemetry, last=True, of_ranks=[steps[1]])
        assert stops_of(facts) == stops
        assert [line.partition(" (")[0] for line in disturbances.notices] == said
        assert list(disturbances._to_mark)[:1] == [STOPPED_AT]


def test_a_rank_of_another_node_that_was_stopped(store: RunStore) -> None:
    """Each node's command looks at its own processes; what it saw is told of the whole job."""
    steps = two_ranks()
    job = f"there/29500/none//{'a' * 32}"
    of_job = {"world_size": 2, "job": job, "began_unix_s": 1e9, "watched": {}}
    ids = []
    for rank in range(2):
        ids.append(store.create_run(own_config(f"node {rank}")))
        values: dict[str, Any] = {
            "environment": of_job | {"rank": rank, "hostname": str(rank)},
            "status": "done",
            "t_origin_s": 99.0,
        }
        if rank:
            values["facts"] = {"stops": plain_stops([stop_of(steps[1])])}
        own_steps = steps[rank] | {"rank": np.zeros(N)}
        store.record(ids[rank], chunks_of("steps", own_steps), values)
    run, _ = nodes.join(store, store.run(ids[1]), finalise.settle)
    assert run.id == ids[0]
    assert store.steps(run.id)["warmup"][STOPPED_AT] == 1
    (notice,) = run.notices
    assert notice.startswith("20.0 s in which rank 1 was stopped (by a signal or a debugger) are")
    assert run.verdict is not None
    assert run.verdict.idle_frac == pytest.approx(WAIT_S / (WAIT_S + COMPUTE_S), abs=1e-6)
