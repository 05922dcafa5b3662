"""Runs of a job's nodes become one: that of rank 0, with all ranks on its clock."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.series import made_steps
from vitprof.analysis.timing.steady import plain_stops, stops_of
from vitprof.config import RunConfig
from vitprof.recording.columns import Stop
from vitprof.store import MissingError, RunStore
from vitprof.store.chunks import chunks_of
from vitprof.store.nodes import MOMENTS, join_nodes, possible_part

N = 40
JOB = {"job": "10.0.0.1/29500/none/", "world_size": 4, "began_unix_s": 1e9}


def made(
    store: RunStore,
    rank: int,
    *,
    host: str = "a",
    ahead_s: float = 0.0,
    n: int = N,
    status: str = "done",
    **more: Any,
) -> int:
    """The run of a node with two ranks, the first of which is `rank`, on a clock that is `ahead_s` ahead."""
    run_id = store.create_run(RunConfig())
    chunks = []
    for each in (rank, rank + 1):
        steps = made_steps([0.2] * n, 0.8, began=100.0 + ahead_s + each * 1e-3)
        kind: Any = "steps" if each == rank else "ranks"
        chunks += chunks_of(
            kind, steps if each == rank else steps | {"rank": np.full(n, float(each))}
        )
    environment = JOB | {"rank": rank, "hostname": host} | more
    values = {
        "environment": environment,
        "status": status,
        "owner_host": host,
        "training_since_s": 100.0 + ahead_s,
    }
    store.record(run_id, chunks, values)
    return run_id


def test_the_ranks_of_all_nodes_are_in_the_run_of_rank_0_on_its_clock(store: RunStore) -> None:
    part, whole = made(store, 2, host="b", ahead_s=5000.0), made(store, 0)
    joined = join_nodes(store, part)
    assert joined is not None
    assert (joined.run_id, joined.parts) == (whole, (part,))
    series = store.steps_of_ranks(whole)
    assert sorted(series) == [0, 1, 2, 3]
    for rank, steps in series.items():
        assert steps["step"].tolist() == list(range(N))
        assert set(steps["rank"]) == {float(rank)}
        assert steps["t_start_s"][0] == pytest.approx(100.0, abs=0.01)
        assert all(
            np.nanmax(steps[name]) < 200 for name in MOMENTS if np.isfinite(steps[name]).any()
        )
    first, second = store.run(whole).facts["nodes"]
    assert (first["host"], first["ranks"], second["host"], second["ranks"]) == (
        "a",
        [0, 1],
        "b",
        [2, 3],
    )
    assert second["clock_error_s"] == pytest.approx(0, abs=1e-6)
    assert [run.id for run in store.runs()] == [whole]
    assert join_nodes(store, whole) is None


def test_a_node_that_ends_later_comes_to_those_that_are_there(store: RunStore) -> None:
    whole = made(store, 0, world_size=6)
    made(store, 2, host="b", world_size=6)
    late = made(store, 4, host="c", world_size=6, status="running")
    assert join_nodes(store, whole) is not None
    assert sorted(store.steps_of_ranks(whole)) == [0, 1, 2, 3]
    store.update_run(late, status="done")
    assert join_nodes(store, late) is not None
    assert sorted(store.steps_of_ranks(whole)) == [0, 1, 2, 3, 4, 5]
    assert [node["host"] for node in store.run(whole).facts["nodes"]] == ["a", "b", "c"]


def test_of_few_steps_clocks_are_aligned_by_utc_and_on_one_machine_they_are_one(
    store: RunStore,
) -> None:
    whole = made(store, 0, n=3, ahead_s=7.0)
    made(store, 2, host="b", n=3, ahead_s=90.0, began_unix_s=1e9 + 2)
    assert join_nodes(store, whole) is not None
    assert store.run(whole).facts["nodes"][1]["clock_error_s"] is None
    assert store.steps_of_ranks(whole)[2]["t_start_s"][0] == pytest.approx(100 + 7 + 2, abs=0.01)
    whole = made(store, 0, job="other")
    made(store, 2, ahead_s=0.25, job="other")
    assert join_nodes(store, whole) is not None
    assert store.steps_of_ranks(whole)[2]["t_start_s"][0] == pytest.approx(100.25, abs=0.01)


@pytest.mark.parametrize(
    "other",
    [
        {"job": "10.0.0.1/29501/none/"},
        {"began_unix_s": 1e9 + 3600},  # the port is used again
        {"status": "running"},
        {"world_size": 1},
        {"job": ""},
    ],
)
def test_runs_of_other_jobs_and_live_ones_stay_apart(
    store: RunStore, other: dict[str, Any]
) -> None:
    whole, part = made(store, 0), made(store, 2, host="b", **other)
    assert join_nodes(store, whole) is None
    assert {run.id for run in store.runs()} == {whole, part}


def test_ranks_of_another_job_at_the_same_address_are_neither_taken_nor_erased(
    store: RunStore,
) -> None:
    whole, part = made(store, 0), made(store, 2, host="b")
    assert join_nodes(store, whole) is not None
    later = (
        made(store, 0, began_unix_s=1e9 + 60),
        made(store, 2, host="b", n=N + 7, began_unix_s=1e9 + 60),
    )
    joined = join_nodes(store, later[1])
    assert joined is not None
    assert (joined.run_id, joined.parts) == (later[0], (later[1],)), (
        "it began with that of its own job"
    )
    late = made(store, 2, host="c", n=N + 3)
    assert join_nodes(store, late) is None
    assert len(store.steps(late)["step"]) == N + 3
    assert part not in [run.id for run in store.runs()]


def test_programs_that_end_at_once_join_them_once(store: RunStore) -> None:
    ids = [made(store, 2 * k, host="abc"[k], world_size=6) for k in range(3)]
    with ThreadPoolExecutor(3) as at_once:
        done = [
            joined.parts for joined in at_once.map(lambda each: _tried(store, each), ids) if joined
        ]
    assert sorted(part for parts in done for part in parts) == ids[1:]
    assert sorted(store.steps_of_ranks(ids[0])) == [0, 1, 2, 3, 4, 5]


def _tried(store: RunStore, run_id: int) -> Any:
    with contextlib.suppress(MissingError):  # it was joined already
        return join_nodes(store, run_id)
    return None


def test_stops_of_another_node_s_ranks_are_on_the_clock_of_rank_0(store: RunStore) -> None:
    """Their machine's sleep is not: its clock did not run meanwhile."""
    whole = made(store, 0)
    part = made(store, 2, host="b", ahead_s=5000.0)
    stops = [
        Stop("stopped", 5110.0, 5112.0, 2.1),
        Stop("worker", 5113.0, 5114.0, 1.1, rank=3),
        Stop("asleep", 5115.0, 5115.0, 900.0),
    ]
    store.update_run(part, facts={"stops": plain_stops(stops)})
    joined = join_nodes(store, part)
    assert joined is not None
    found = stops_of(store.run(whole).facts)
    assert found == joined.stops
    assert [(stop.kind, stop.rank) for stop in found] == [("stopped", 2), ("worker", 3)]
    assert [stop.t_start_s for stop in found] == pytest.approx([110.0, 113.0], abs=0.01)


ID = "0123456789abcdef" * 2
MET = {"job": f"10.0.0.1/29500/none//{ID}"}


@pytest.mark.parametrize("n", [N, 3])
def test_nodes_that_met_are_one_job_whatever_their_clocks_and_addresses_say(
    store: RunStore, n: int
) -> None:
    """Clocks that differed by more than two minutes kept them apart, though the id was the same."""
    whole = made(store, 0, n=n, **MET)
    part = made(
        store,
        2,
        host="b",
        n=n,
        ahead_s=70.0,
        job=f"node-a/29500/none//{ID}",
        began_unix_s=1e9 + 86_400,
    )
    assert possible_part(store, part) is None, "nobody is asked"
    joined = join_nodes(store, part, unsure=False)
    assert joined is not None
    assert (joined.run_id, joined.unsure) == (whole, ())
    node = store.run(whole).facts["nodes"][1]
    assert node["matched_by"] == "id"
    assert (node["clock_error_s"] is None) == (n < 20)
    assert store.steps_of_ranks(whole)[2]["t_start_s"][0] == pytest.approx(100.0, abs=0.01)


def test_nodes_that_met_elsewhere_are_other_jobs(store: RunStore) -> None:
    whole = made(store, 0, **MET)
    part = made(store, 2, host="b", job=f"10.0.0.1/29500/none//{'f' * 32}")
    assert join_nodes(store, whole) is None
    assert possible_part(store, part) is None


@pytest.mark.parametrize(
    ("job", "by", "names"),
    [
        ("10.0.0.1/29500/none/", "address", "address and port"),
        ("10.0.0.1/29500/none/4711", "launcher", "address, port and the launcher's id"),
        ("10.0.0.1/29500/mine/", "launcher", "address, port and the launcher's id"),
    ],
)
def test_without_an_id_it_is_said_that_nobody_can_be_sure(
    store: RunStore, job: str, by: str, names: str
) -> None:
    """Jobs that had nothing to do with each other were merged, and nothing was said of it."""
    whole = made(store, 0, job=job)
    part = made(store, 2, host="b", job=job, began_unix_s=1e9 + 4)
    assert join_nodes(store, part, unsure=False) is None
    asked = possible_part(store, whole)
    assert asked == possible_part(store, part)
    assert asked is not None
    assert asked.sentence == (
        f"run {part} may be of the job of run {whole}: their {names} are the same, and they began "
        "4.00 s apart, but no id says so"
    )
    joined = join_nodes(store, part)
    assert joined is not None
    assert [match.by for match in joined.unsure] == [by]
    assert store.run(whole).facts["nodes"][1]["matched_by"] == by


def test_an_address_that_each_machine_has_joins_no_two_machines(store: RunStore) -> None:
    job = {"job": "localhost/29500/none/"}
    whole = made(store, 0, **job)
    made(store, 2, host="b", **job)
    assert join_nodes(store, whole) is None
    assert join_nodes(store, made(store, 2, **job)) is not None


def test_after_a_restart_the_steps_of_all_nodes_have_the_numbers_of_rank_0(store: RunStore) -> None:
    """A node may have made a step more when the job was ended, or none at all after one of the restarts."""
    whole = made(store, 0, **MET)
    part = made(store, 2, host="b", **MET)
    # the launcher keeps its store from the second start on
    one, two, three = "1" * 32, "1" * 32, "3" * 32
    for run_id, starts in (
        (whole, [(10, one), (20, two)]),
        (part, [(12, one), (15, three), (25, two)]),
    ):
        again = [{"step": step, "meeting": meeting} for step, meeting in starts]
        store.update_run(run_id, facts={"restarted_at": again})
    assert join_nodes(store, part) is not None
    series = store.steps_of_ranks(whole)
    # 12 and 15 are the first of its starts, of which the second was not one of rank 0's node
    kept = [*range(10), *range(12, 15), *range(25, N)]
    numbers = [*range(10), *range(10, 13), *range(20, 20 + N - 25)]
    assert series[2]["step"].tolist() == numbers
    began = series[0]["t_start_s"][kept] - series[0]["t_start_s"][0]
    assert series[2]["t_start_s"] - series[2]["t_start_s"][0] == pytest.approx(began)
