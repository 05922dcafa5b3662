"""A loader given to `vitprof.watch`, in the script itself: what is told of it, and what is recorded beside it."""

import json
import re
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.watch import scripts
from tests.watch.in_python import N_BATCHES, OUTSIDE_S
from tests.watch.watching import LIMIT_S, Host, examples
from vitprof.store import RunStore, StoredRun

BESIDE = {"VITPROF_WATCH_SOCKET": ""}
"""Without the command around the script."""


@pytest.fixture(scope="module")
def host(host: Host) -> Host:
    return host.running("tests.watch.in_python")


@pytest.fixture(scope="module")
def plain(host: Host) -> str:
    """What the script returns without anybody watching."""
    return host.run("torch_loader", watched=False, watch=False).returned


@pytest.mark.parametrize("kind", ["list", "generator", "iterable", "own iterator", "webdataset"])
def test_any_iterable(host: Host, kind: str) -> None:
    told = host.ok("any_kind", watched=False, kind=kind)
    epochs = 1 if kind == "generator" else 2
    steps = told.steps
    assert told.returned == str(epochs * scripts.N_SAMPLES)
    assert set(steps["samples"]) == {scripts.BATCH}
    # the last batch of a run is worked on without an end that anybody could see
    assert steps["epoch"].tolist() == [epoch for epoch in range(epochs) for _ in range(N_BATCHES)]
    if kind != "list":  # a list has its batches at once
        assert steps["data_wait_s"].min() >= scripts.READ_S
    assert steps["compute_s"].min() >= scripts.BODY_S
    assert np.isnan(steps["read_s"]).all(), "nobody can tell the stages"
    (environment,) = told.note("environment")
    assert (environment["watched"]["name"], environment["watched"]["num_workers"]) == (kind, 0)


@pytest.mark.measured
@pytest.mark.parametrize(("workers", "start_method"), [(0, None), (1, "spawn")])
def test_a_dataloader_tells_its_stages(
    host: Host, plain: str, workers: int, start_method: str | None
) -> None:
    epochs = 1 if start_method == "spawn" else 2
    told = host.ok(
        "torch_loader", watched=False, workers=workers, start_method=start_method, epochs=epochs
    )
    steps, returned = told.steps, json.loads(told.returned)
    assert returned["losses"] == json.loads(plain)["losses"][: epochs * N_BATCHES]
    assert returned["foreign"] == []
    assert steps["epoch"].tolist() == [epoch for epoch in range(epochs) for _ in range(N_BATCHES)]
    assert steps["read_s"].min() >= scripts.BATCH * scripts.READ_S
    assert steps["transform_s"].min() >= scripts.BATCH * scripts.TRANSFORM_S
    assert steps["collate_s"].min() >= scripts.COLLATE_S
    assert np.isfinite(steps["queue_depth"]).all() == bool(workers)
    assert set(steps["worker"][~np.isnan(steps["worker"])]) == set(range(workers))
    checks = told.note("phase")
    assert [phase["name"] for phase in checks] == ["evaluate"] * epochs
    # nothing is seen of what the script does with the last batch of all
    lasted_s = [phase["t_end_s"] - phase["t_start_s"] for phase in checks]
    assert all(each_s >= scripts.CHECK_S for each_s in lasted_s[:-1])
    assert lasted_s[-1] >= scripts.COLLATE_S
    (environment,) = told.note("environment")
    assert environment["watched"]["collate"] == "collate"
    assert environment["watched"]["num_workers"] == workers


def test_a_loader_in_a_worker_one_beside_the_training_and_a_step_where_nobody_watches(
    host: Host,
) -> None:
    assert host.run("a_loader_inside_a_worker", watched=False).returned == "[[1], [2]]"
    told = host.ok("no_optimizer", watched=False)
    assert told.steps["samples"].tolist() == [2.0] * 4
    told = host.run("a_step_without_a_loop", watched=False)
    assert (told.returned, told.complaint) == ("named Doubles. 6", "")


@pytest.mark.parametrize("how", ["with", "decorator", "inside", "two", "skips"])
def test_a_step_that_the_script_says(host: Host, how: str) -> None:
    told = host.ok("says_its_steps", watched=False, how=how)
    steps, n = told.steps, N_BATCHES // 2 if how == "skips" else N_BATCHES
    assert steps["epoch"].tolist() == [0] * n + [1] * n
    before = 0.0 if how == "inside" else OUTSIDE_S
    outside = np.full(2 * n, before + OUTSIDE_S)
    outside[0] = before  # nothing was before it
    assert np.min(steps["outside_s"] - outside) >= 0
    assert steps["compute_s"].min() >= scripts.BODY_S
    batches = np.array([1, *[2] * (n - 1)]) if how == "skips" else np.ones(n)
    waited = np.tile(batches, 2) * scripts.READ_S
    assert np.min(steps["data_wait_s"] - waited) > 0
    assert steps["samples"].tolist() == (np.tile(batches, 2) * scripts.BATCH).tolist()
    within = steps["compute_start_s"] - steps["t_start_s"]
    assert np.min(within - waited - before) > 0, "what is before the step is not in its compute"


@pytest.mark.measured
def test_a_list_has_its_batches_at_once_and_no_time_is_counted_twice(host: Host) -> None:
    steps = host.ok("any_kind", watched=False, kind="list").steps
    assert np.median(steps["data_wait_s"]) < scripts.READ_S
    for how in ("with", "skips"):
        steps = host.ok("says_its_steps", watched=False, how=how).steps
        parts = steps["data_wait_s"] + steps["outside_s"] + steps["compute_s"]
        assert np.median(np.abs(parts - steps["step_s"])[1:]) < 0.0003, how


@pytest.mark.parametrize("workers", [0, 1])
def test_support_another_training_framework(host: Host, workers: int) -> None:
    """By one file: its callback (docs/layout.md tells how)."""
    told = host.ok("by_a_framework", watched=False, workers=workers)
    steps = told.steps
    assert told.note("environment")[0]["watched"]["name"] == "toy"
    assert steps["epoch"].tolist() == [0] * N_BATCHES + [1] * N_BATCHES
    assert set(steps["samples"]) == {scripts.BATCH}
    assert " ".join(float(loss).hex() for loss in steps["loss"]) == told.returned
    assert steps["compute_s"].min() >= scripts.BODY_S
    assert steps["outside_s"].min() >= OUTSIDE_S, "what the framework does is in no step"
    assert np.isfinite(steps["collate_s"]).all()


@pytest.mark.parametrize(("number", "name"), [(0, "baseline"), (1, "host.py")])
def test_an_example_of_the_documents(host: Host, number: int, name: str) -> None:
    told = host.ok("example", watched=False, source=examples()[number])
    assert len(told.steps["step"]) in (int(told.returned), int(told.returned) - 1), (
        "the last one may have no end"
    )
    assert len(told.steps["step"]) >= 7
    assert told.note("environment")[0]["watched"]["name"] == name
    assert np.isfinite(told.steps["outside_s"]).all() == bool(number)
    if number:
        assert told.steps["outside_s"][1:].min() >= OUTSIDE_S


@pytest.mark.parametrize(
    "env", [{"RANK": "1"}, {}], ids=["only the first rank is watched", "nobody listens"]
)
def test_training_goes_on_where_it_is_not_watched(
    host: Host, plain: str, env: dict[str, str]
) -> None:
    told = host.run("torch_loader", watched=False, listen=bool(env), env=env)
    assert (told.status, told.returned, told.notes, told.complaint.count("\n")) == (
        0,
        plain,
        [],
        not env,
    )


def test_a_notebooks_run_is_over_with_its_cell_and_goes_on_with_the_next_loop(host: Host) -> None:
    told = host.run("notebook", watched=False)
    kinds = [note.kind for note in told.notes if note.kind in ("environment", "end")]
    assert kinds == ["environment", "end", "environment", "end"]
    assert [end["status"] for end in told.note("end")] == ["done", "stopped"]
    steps = told.steps
    assert steps["step"].tolist() == list(range(N_BATCHES + 3))
    assert steps["epoch"].tolist() == [0] * N_BATCHES + [1] * 3
    ends = steps["compute_start_s"] + steps["compute_s"]
    between_s = ends[N_BATCHES] - steps["step_s"][N_BATCHES] - ends[N_BATCHES - 1]
    assert between_s >= scripts.CHECK_S, "what was between the cells is in no step"
    assert (
        told.complaint
        == "vitprof: recorded as run 7: see python -m vitprof runs 7, or the dashboard\n" * 2
    )


def recorded(n: int) -> list[StoredRun]:
    """The runs in the store once `n` of them have ended, the first one first."""
    until = time.monotonic() + LIMIT_S
    with closing(RunStore()) as store:
        while len(runs := store.runs(["done", "failed", "stopped"], oldest_first=True)) < n:
            assert time.monotonic() < until, store.runs()
            time.sleep(0.05)
    return runs


@pytest.mark.measured
@pytest.mark.parametrize("then", ["fails", "killed"])
def test_a_program_beside_the_script_records_each_run(
    host: Host, vitprof_home: Path, then: str
) -> None:
    told = host.run(
        "two_runs", watched=False, env=BESIDE | {"VITPROF_HOME": str(vitprof_home)}, then=then
    )
    first, second = recorded(2)
    assert (first.name, first.status, first.error) == ("first", "done", "")
    assert first.summary is not None
    assert (first.summary.n_steps, first.summary.n_samples) == (
        2 * N_BATCHES,
        2 * scripts.N_SAMPLES,
    )
    assert first.verdict is not None
    assert (first.config.batch_size, first.config.workers) == (scripts.BATCH, 0)
    assert (second.name, second.status) == ("second", "failed")
    ended = {
        "fails": "the script ended with ValueError: no more",
        "killed": "without a last message",
    }[then]
    assert ended in second.error
    assert second.summary is not None
    assert second.summary.n_steps == 4
    if then == "fails":  # else nothing of its output is left
        lines = [line for line in told.complaint.splitlines() if line.startswith("vitprof")]
        for line, run in zip(lines, (first, second), strict=True):
            assert re.fullmatch(
                rf"vitprof: recorded as run {run.id}: see .* runs {run.id}, or the dashboard", line
            )


def test_without_a_store_training_goes_on_with_one_line(host: Host, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    plain = host.run("closed", watched=False, env={"RANK": "1"}).returned
    told = host.run("closed", watched=False, env=BESIDE | {"VITPROF_HOME": str(tmp_path / "file")})
    assert told.returned == plain
    assert told.complaint.count("\n") == 1
    assert told.complaint.startswith("vitprof: gave up watching (cannot write to ")
