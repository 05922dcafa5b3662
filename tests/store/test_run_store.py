"""The run store: what goes in comes out, also where other programs write, die, or have left something else."""

import math
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from tests import ROOT
from tests.stored_series import append_steps, append_telemetry, rewrite
from vitprof.config import RunConfig
from vitprof.errors import StoreError
from vitprof.names import MAX_NAME
from vitprof.recording.columns import (
    LIVE_STATUSES,
    STEP_COLUMNS,
    TELEMETRY_COLUMNS,
    Phase,
    RunSummary,
)
from vitprof.store import RunQuery, RunStore
from vitprof.store.database import now_utc
from vitprof.store.database import runs as runs_table
from vitprof.store.run_store import KEPT_DAYS, importing

NAN = math.nan
# Another program: opens the store when told to, begins a run, appends steps in batches of 20 and says so after each.
WRITER = """
import sys
import numpy as np
from tests.jobs.sending import columns
from vitprof.config import RunConfig
from vitprof.store import RunStore
from vitprof.store.chunks import chunks_of
print("ready", flush=True)
sys.stdin.readline()
store = RunStore(sys.argv[1])
run_id = store.create_run(RunConfig(name="of another program"))
store.update_run(run_id, status="running", stage="training")
print(run_id, flush=True)
for batch in range(int(sys.argv[2])):
    number = np.arange(20 * batch, 20 * batch + 20)
    store.record(run_id, chunks_of("steps", columns(20, step=number, loss=number / 7)))
    print(20 * batch + 20, flush=True)
sys.stdin.readline()
"""


def step_row(number: int, **known: float) -> list[float]:
    values = dict.fromkeys(STEP_COLUMNS, NAN) | {
        "rank": 0,
        "step": number,
        "epoch": 0,
        "samples": 8,
        "warmup": 0,
    }
    return [float(v) for v in (values | known).values()]


def telemetry_row(t_s: float) -> list[float]:
    return [t_s, *(NAN,) * (len(TELEMETRY_COLUMNS) - 1)]


def test_a_run_goes_from_queued_to_done_and_keeps_everything_it_was_told(store: RunStore) -> None:
    config = RunConfig(
        name='"Größe", 🚀 =1', strategy="workers", workers=2, seconds=1.5, pin_memory=False
    )
    run = store.add_run(config)
    run_id = run.id
    assert store.run(run_id) == run
    assert (run.status, run.live, run.name, run.config) == ("queued", True, config.name, config)
    assert (run.stage, run.progress, run.message, run.error, run.summary) == (
        "",
        None,
        "",
        "",
        None,
    )
    assert (run.environment, run.facts, run.phases, run.notices) == ({}, {}, (), ())
    assert run.created_utc.endswith("Z")

    store.update_run(
        run_id,
        status="running",
        stage="preparing",
        progress=0.25,
        message="digits",
        t_origin_s=12.5,
    )
    run = store.run(run_id)
    assert (run.status, run.live, run.stage, run.progress) == ("running", True, "preparing", 0.25)
    assert (run.message, run.t_origin_s, run.training_since_s) == ("digits", 12.5, None)

    phases = [Phase("prepare", 12.5, 13.0), Phase("evaluate", 14.0, 15.0)]
    summary = RunSummary(n_steps=3, samples_per_s=100.25, test_accuracy=NAN)
    store.update_run(
        run_id, status="done", phases=phases, notices=["no GPU"], summary=summary, progress=None
    )
    store.update_run(
        run_id, environment={"device_name": "Zürich 9000", "threads": 2}, facts={"n_train": 60_000}
    )
    run = store.run(run_id)
    assert (run.status, run.live, run.progress) == ("done", False, None)
    assert (run.phases, run.notices) == (tuple(phases), ("no GPU",))
    assert (run.environment, run.facts) == (
        {"device_name": "Zürich 9000", "threads": 2},
        {"n_train": 60_000},
    )
    assert (run.summary.n_steps, run.summary.samples_per_s) == (3, 100.25)
    assert math.isnan(run.summary.test_accuracy)


def test_runs_are_listed_newest_first_and_by_status(store: RunStore) -> None:
    first, second, third = (store.create_run(RunConfig(name=n)) for n in "abc")
    store.update_run(first, status="done")
    store.update_run(second, status="running")
    assert [r.id for r in store.runs()] == [third, second, first]
    assert [r.id for r in store.runs(oldest_first=True)] == [first, second, third]
    assert [r.id for r in store.runs(limit=2)] == [third, second]
    assert [r.id for r in store.runs(["done", "running"], oldest_first=True)] == [first, second]
    assert store.runs([]) == []


def test_steps_in_parts_are_the_steps(store: RunStore) -> None:
    run_id = store.create_run(RunConfig())
    append_steps(store, run_id, [step_row(number, loss=number / 3) for number in range(50)])
    whole = store.steps(run_id)
    for rows in (1, 7, 25, 50, 1000):
        parts = list(store.steps_in_parts(run_id, rows=rows))
        assert [len(part["step"]) for part in parts] == [rows] * (50 // rows) + [50 % rows] * (
            50 % rows > 0
        )
        for name in STEP_COLUMNS:
            np.testing.assert_array_equal(
                np.concatenate([part[name] for part in parts]), whole[name]
            )
    (late,) = store.steps_in_parts(run_id, after=47, names=("step", "loss"))
    assert {name: values.tolist() for name, values in late.items()} == {
        "step": [48, 49],
        "loss": [16, 49 / 3],
    }
    assert store.steps(run_id, after=3, until=5)["step"].tolist() == [4, 5]
    (none,) = store.steps_in_parts(store.create_run(RunConfig()))
    assert {len(values) for values in none.values()} == {0}


@pytest.mark.parametrize("run_id", [1, 0, -1, 2**31, 2**63, 10**30])
def test_a_run_that_is_not_there_is_said_in_one_line(store: RunStore, run_id: int) -> None:
    with pytest.raises(
        StoreError, match=f"^there is no run {run_id}; python -m vitprof runs lists them$"
    ):
        store.run(run_id)
    with pytest.raises(StoreError, match=f"there is no run {run_id};"):
        store.delete(run_id)


def test_a_cursor_reads_only_what_is_new_and_only_what_is_asked_for(store: RunStore) -> None:
    run_id, other = store.create_run(RunConfig()), store.create_run(RunConfig())
    append_steps(store, other, [step_row(i, loss=-1) for i in range(9)])
    append_steps(store, run_id, [step_row(i, loss=i / 2) for i in reversed(range(5))])
    assert store.steps(run_id)["step"].tolist() == [0, 1, 2, 3, 4]
    new = store.steps(run_id, after=2, names=("loss", "step"))
    assert {name: v.tolist() for name, v in new.items()} == {"loss": [1.5, 2.0], "step": [3, 4]}
    append_telemetry(store, run_id, 0, [telemetry_row(t) for t in range(3)])
    assert store.telemetry(run_id, after=1)["seq"].tolist() == [2]
    read = store.telemetry(run_id)
    assert (tuple(read), read["t_s"].tolist()) == (("seq", *TELEMETRY_COLUMNS), [0, 1, 2])
    assert all(np.isnan(read[name]).all() for name in TELEMETRY_COLUMNS[1:]), "no zeros are made up"
    for empty in (store.steps(run_id, after=4), store.telemetry(run_id, after=2), store.steps(999)):
        assert all(v.shape == (0,) and v.dtype == np.float64 for v in empty.values())
    assert set(store.steps(999)) == set(STEP_COLUMNS)


def test_a_batch_of_rows_is_stored_whole_or_not_at_all(store: RunStore) -> None:
    run_id = store.create_run(RunConfig())
    append_steps(store, run_id, [step_row(0)])
    with pytest.raises(StoreError, match=r"the run store .*:.* failed: (UNIQUE|duplicate key)"):
        append_steps(store, run_id, [step_row(1), step_row(0)])
    assert store.steps(run_id)["step"].tolist() == [0]


def test_a_store_may_be_used_from_many_threads(store: RunStore) -> None:
    def work(_: int) -> list[float]:
        run_id = store.create_run(RunConfig())
        for i in range(10):
            append_steps(store, run_id, [step_row(i)])
            store.runs()
        steps: list[float] = store.steps(run_id)["step"].tolist()
        return steps

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [list(range(10))] * 8
    assert len(store.runs()) == 8


@contextmanager
def writer(url: str, batches: int) -> Iterator[Any]:
    """Another program that waits to be told to open the store at `url`."""
    command = [sys.executable, "-c", WRITER, url, str(batches)]
    process: Any
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def begins(process: Any) -> int:
    """Tells it to open the store; its run."""
    process.stdin.write("\n")
    process.stdin.flush()
    return answer(process)


def answer(process: Any) -> int:
    return int(process.stdout.readline())


@pytest.mark.measured
def test_programs_that_open_a_new_store_at_once_and_write_at_once_all_get_their_turn(
    url: str,
) -> None:
    with writer(url, 15) as first, writer(url, 15) as second, ThreadPoolExecutor(2) as at_once:
        programs = (first, second)
        ids = list(at_once.map(begins, programs))
        assert sorted(ids) == [1, 2]
        with closing(RunStore(url)) as store:
            parts: dict[int, list[float]] = {run_id: [] for run_id in ids}
            while any(
                len(part) < 300 for part in parts.values()
            ):  # as the dashboard reads: what is new each time
                for run_id, part in parts.items():
                    new = store.steps(
                        run_id, after=int(part[-1]) if part else -1, names=("step", "loss")
                    )
                    assert new["loss"].tolist() == [step / 7 for step in new["step"]]
                    part.extend(new["step"].tolist())
                assert all(program.poll() is None for program in programs)
            assert all(part == list(range(300)) for part in parts.values())


@pytest.mark.measured
def test_a_killed_writer_loses_nothing_that_it_had_appended(url: str) -> None:
    with writer(url, 10_000) as program:
        run_id = begins(program)
        while (said := answer(program)) < 100:
            pass
        program.send_signal(signal.SIGKILL)
        program.wait()
        said = max(
            [
                said,
                *(
                    int(line)
                    for line in program.stdout.read().splitlines(keepends=True)
                    if line[-1] == "\n"
                ),
            ]
        )
    with closing(RunStore(url)) as store:
        found = store.steps(run_id)
        n = len(found["step"])
        assert n in (said, said + 20)  # the last batch may have been stored but not said
        assert found["step"].tolist() == list(range(n))
        assert found["loss"].tolist() == [i / 7 for i in range(n)]
        assert np.isnan(found["h2d_s"]).all()
        assert store.mark_interrupted() == [run_id]
        assert store.create_run(RunConfig()) == run_id + 1
        path = store.file
    if path is None:
        return
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("pragma integrity_check").fetchone() == ("ok",)


def test_a_run_is_interrupted_once_its_program_is_gone_and_not_before(
    store: RunStore, url: str
) -> None:
    with writer(url, 1) as program:
        run_id = begins(program)
        assert answer(program) == 20
        queued = store.create_run(RunConfig())
        store.update_run(
            queued, owner_pid=program.pid, owner_started=store.run(run_id).owner_started
        )
        ended = store.create_run(RunConfig())
        store.update_run(ended, status="done", owner_pid=program.pid)
        mine = store.create_run(RunConfig())
        assert store.mark_interrupted() == []

        program.kill()
        os.waitid(
            os.P_PID, program.pid, os.WEXITED | os.WNOWAIT
        )  # ended, but nobody has asked how: a zombie
        assert sorted(store.mark_interrupted()) == [run_id, queued]
        error = "the program that ran it ended without finishing the run"
        for run in map(store.run, (run_id, queued)):
            assert (run.status, run.stage, run.error) == ("interrupted", "", error)
        assert len(store.steps(run_id)["step"]) == 20
    store.update_run(queued, status="queued")
    assert store.mark_interrupted() == [queued]  # now that the process is gone for good
    assert store.mark_interrupted() == []
    assert (store.run(ended).status, store.run(mine).status) == ("done", "queued")


def test_only_runs_whose_program_is_gone_are_interrupted(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = store.create_run(RunConfig())
    started = store.run(run_id).owner_started
    store.update_run(
        run_id, owner_started=started + 0.5
    )  # the same, as far as the kernel's clock can tell
    assert store.mark_interrupted() == []
    store.update_run(run_id, owner_started=started - 60)
    assert store.mark_interrupted() == [run_id]
    run_id = store.create_run(RunConfig())

    def ends_now(host: str, pid: int, started: float) -> bool:
        store.update_run(run_id, status="done")
        return False

    monkeypatch.setattr("vitprof.store.stored_run.is_alive", ends_now)
    assert store.mark_interrupted() == []
    assert store.run(run_id).status == "done"
    monkeypatch.undo()
    there, mine = store.create_run(RunConfig()), store.create_run(RunConfig())
    store.update_run(there, status="running", owner_host="elsewhere", owner_started=1.0)
    assert store.mark_interrupted() == []
    assert store.mark_interrupted({there, mine}) == [there], (
        "a person says that its machine is gone"
    )
    assert store.run(mine).status == "queued"


def test_a_run_that_cannot_be_read_hides_no_other_is_interrupted_like_any_and_can_be_deleted(
    store: RunStore,
) -> None:
    good, bad = store.create_run(RunConfig()), store.create_run(RunConfig(name="of tomorrow"))
    for run_id in (bad, good):
        store.update_run(run_id, owner_started=1.0)
    for wrong, why in (
        ({"warmup_steps": 10**12}, "from 0 to"),
        ({"teleport": True}, "no such setting"),
    ):
        rewrite(store, bad, RunConfig().to_dict() | wrong)
        with pytest.raises(
            StoreError, match=rf"^run {bad} was written by another version of vitprof .*{why}"
        ):
            store.run(bad)
    store.update_run(bad, status="running")
    assert store.runs() == store.runs(LIVE_STATUSES, limit=5) == [store.run(good)]
    assert sorted(store.mark_interrupted()) == [good, bad]
    rows = store.list_runs(RunQuery(), limit=5)
    assert [(r.name, r.status) for r in rows] == [
        ("of tomorrow", "interrupted"),
        (store.run(good).name, "interrupted"),
    ]
    store.delete(bad)
    assert [r.id for r in store.list_runs(RunQuery(), limit=5)] == [good]


def test_what_a_person_adds_is_kept_and_bounded(store: RunStore) -> None:
    run_id = store.create_run(RunConfig())
    store.edit(run_id, name="  on the new disk ")
    store.edit(run_id, note="cold\nsecond try")
    store.tag(run_id, ["ssd", "baseline", "ssd "])
    run = store.run(run_id)
    assert (run.name, run.note, store.tags(run_id)) == (
        "on the new disk",
        "cold\nsecond try",
        ("baseline", "ssd"),
    )
    store.tag(run_id, [])
    assert store.tags(run_id) == ()
    for refused, said in (
        (lambda: store.edit(run_id, name=" "), "name: a run needs one"),
        (
            lambda: store.edit(run_id, name="x" * (MAX_NAME + 1)),
            "name: 201 characters are too many",
        ),
        (
            lambda: store.edit(run_id, note="bell \a"),
            "note: it has characters that cannot be shown",
        ),
        (lambda: store.tag(run_id, ["a,b"]), "tag: give 1 to 40 characters without a comma"),
        (lambda: store.tag(run_id, [""]), "tag: give 1 to 40"),
        (lambda: store.edit(99, name="x"), "there is no run 99 any more"),
        (lambda: store.tag(99, ["x"]), "there is no run 99 any more"),
    ):
        with pytest.raises(StoreError, match="^" + re.escape(said)):
            refused()
    assert store.run(run_id) == run


def test_deleting_takes_what_was_measured_for_the_run_and_is_all_or_none(store: RunStore) -> None:
    one, other = store.create_run(RunConfig()), store.create_run(RunConfig())
    anchor = store.create_run(RunConfig(), group_key=f"headroom:{one}", role="A")
    for run_id in (one, other, anchor):
        append_steps(store, run_id, [step_row(0)])
        append_telemetry(store, run_id, 0, [telemetry_row(0.0)])
        store.tag(run_id, ["x"])
    store.update_run(one, status="done")
    with pytest.raises(
        StoreError, match=rf"^what is measured for run {one} is still going on; stop it first$"
    ):
        store.delete(one)
    store.update_run(anchor, status="done")
    for status in ("queued", "running"):
        store.update_run(other, status=status)
        with pytest.raises(StoreError, match=f"^run {other} is still going on; stop it first$"):
            store.delete(one, other)
    assert {run.id: run.status for run in store.runs()} == {
        anchor: "done",
        other: "running",
        one: "done",
    }
    store.delete(one)
    store.update_run(one, status="done")  # a late word about it brings it back not
    assert [r.id for r in store.runs()] == [other]
    for run_id, n in ((one, 0), (anchor, 0), (other, 1)):
        assert (len(store.steps(run_id)["step"]), len(store.telemetry(run_id)["seq"])) == (n, n)
    assert store.choices("tag") == ["x"]
    assert store.create_run(RunConfig()) == anchor + 1
    assert [*store.deleted()] == [one], "what was made for it comes with it"
    store.restore(one)
    assert (store.deleted(), store.tags(anchor), len(store.steps(anchor)["step"])) == (
        {},
        ("x",),
        1,
    )
    store.update_run(other, status="done")
    store.delete(one, other)
    with store.transaction() as db:
        db.execute(
            sa.update(runs_table)
            .where(runs_table.c.id == -other)
            .values(message=now_utc(KEPT_DAYS + 1))
        )
    store.update_run(anchor + 1, status="done")
    store.delete(anchor + 1)
    assert [*store.deleted()] == [anchor + 1, one], "the other one is erased by now"
    with pytest.raises(StoreError, match=f"^there is no deleted run {other}$"):
        store.restore(one, other)


def test_a_run_recorded_elsewhere_comes_in_whole_or_not_at_all(store: RunStore) -> None:
    values: dict[str, Any] = {
        "name": "of a server",
        "status": "done",
        "created_utc": "2026-11-01T00:00:00Z",
    }
    values |= {"config": RunConfig(strategy="hdf5").to_dict(), "summary": {"samples_per_s": 12.5}}
    values |= {"verdict": {"kind": "input-bound"}}
    steps = {name: np.arange(3.0) for name in STEP_COLUMNS}
    samples = {"seq": np.arange(1.0)} | {name: np.zeros(1) for name in TELEMETRY_COLUMNS}
    with importing(store) as into:
        run_id = into.insert(values, steps=steps, telemetry=samples, tags=["server"])
    (row,) = store.list_runs(RunQuery(), limit=2)
    assert (row.id, row.name, row.strategy, row.tags) == (
        run_id,
        "of a server",
        "hdf5",
        ("server",),
    )
    assert (row.samples_per_s, row.verdict_kind) == (12.5, "input-bound")
    assert store.steps(run_id)["loss"].tolist() == [0.0, 1.0, 2.0]
    assert len(store.telemetry(run_id)["seq"]) == 1

    def one_good_one_bad() -> None:
        with importing(store) as into:
            for wrong in ({}, {"status": None}):
                into.insert(values | wrong, steps=steps, telemetry=samples)

    with pytest.raises(StoreError, match="failed"):
        one_good_one_bad()
    assert store.count_runs(RunQuery()) == 1


def test_runs_are_found_by_the_second_in_which_they_were_made(store: RunStore) -> None:
    mine = store.create_run(RunConfig())
    made = store.run(mine).created_utc
    others = {"2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z"}
    with importing(store) as into:
        (found,) = into.recorded_in({made, *others})
        assert (found.run_id, found.created_utc, found.facts) == (mine, made, {})
        assert not list(into.recorded_in(others))
