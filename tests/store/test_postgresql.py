"""The store on a PostgreSQL server: it keeps runs, and may be restarted while a job records."""

import threading
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from tests.clock import Clock
from tests.engine_fixtures import wait_until
from tests.jobs.reported import ReportingJob, steps
from tests.store.postgresql import Server
from tests.stored_series import append_steps, append_telemetry
from vitprof.config import RunConfig
from vitprof.config.resolve import resolve
from vitprof.errors import StoreError, one_line
from vitprof.jobs import outbox
from vitprof.jobs.finalise import settle_interrupted
from vitprof.jobs.supervisor import JobRecorder
from vitprof.recording.columns import TELEMETRY_COLUMNS
from vitprof.store import RunQuery, RunStore
from vitprof.store.new_run import NewRun

LIMIT_S = 60.0


def test_it_keeps_runs(server: Server) -> None:
    url = server.database()
    with closing(RunStore(url)) as store:
        assert (store.file, store.read_only, store.notice) == (None, False, "")
        run_id = store.create_run(resolve(RunConfig(name="kept")))
        rows = steps(0, 50).tolist()
        append_steps(store, run_id, rows[:30])
        append_steps(store, run_id, rows[20:], again=True)
        append_telemetry(store, run_id, 0, np.ones((3, len(TELEMETRY_COLUMNS))).tolist())
        append_telemetry(
            store, run_id, 2, np.ones((3, len(TELEMETRY_COLUMNS))).tolist(), again=True
        )
        store.mark_warmup(run_id, [3, 40])
        store.compact(run_id)
        store.mark_warmup(run_id, [4])
        append_steps(store, run_id, steps(49, 3), again=True)
        store.tag(run_id, ["mine"])
    with closing(RunStore(url)) as store:
        assert store.steps(run_id)["step"].tolist() == list(range(52))
        assert np.flatnonzero(store.steps(run_id)["warmup"]).tolist() == [3, 4, 40]
        assert store.telemetry(run_id)["seq"].tolist() == [0, 1, 2, 3, 4]
        assert [row.name for row in store.list_runs(RunQuery(text="mine"), limit=9)] == ["kept"]


def test_a_role_that_may_only_read_sees_runs_and_makes_none(server: Server) -> None:
    url = server.database()
    with closing(RunStore(url)) as store, store.transaction() as db:
        db.exec_driver_sql("drop role if exists guest")
        db.exec_driver_sql("create role guest login")
        db.exec_driver_sql("grant select on all tables in schema public to guest")
        run_id = store.create_run(resolve(RunConfig(name="kept")))
    with closing(RunStore(url.replace("//vitprof@", "//guest@"))) as store:
        assert store.read_only
        assert store.run(run_id).name == "kept"
        settle_interrupted(store)
        for change in (
            lambda: store.create_run(resolve(RunConfig())),
            lambda: store.delete(run_id),
            store.prune,
        ):
            with pytest.raises(
                StoreError, match=r"can only be read here: runs can be seen, not made or changed"
            ):
                change()
    with closing(
        RunStore(f"{url}&options=-c%20default_transaction_read_only%3Don")
    ) as store:  # as one that follows
        assert store.read_only


@pytest.mark.parametrize(
    "wrong",
    [
        "nobody@/{}?",
        "vitprof:s3cret@/other?",
        "vitprof:s3cret@/{}?port=1&",
        "vitprof:s3cret@no.invalid/{}?",
    ],
)
def test_a_server_that_cannot_be_used_is_one_line_without_password(
    server: Server, wrong: str
) -> None:
    good = server.database()
    name, place = good.partition("@/")[2].split("?")
    more = "" if "no.invalid" in wrong else place
    with pytest.raises(StoreError) as refused:
        RunStore("postgresql+psycopg://" + wrong.format(name) + more)
    assert "s3cret" not in (line := one_line(refused.value))
    assert line.startswith("the run store postgresql+psycopg://")


@pytest.mark.measured
@pytest.mark.parametrize("ends_first", [False, True])
def test_a_server_that_is_restarted_while_a_job_records(
    server: Server, monkeypatch: Any, ends_first: bool
) -> None:
    """Where the program ends before it is back, the next one takes in what was left."""
    monkeypatch.setattr(outbox, "RETRY_S", 0.01)
    monkeypatch.setattr("vitprof.jobs.supervisor.LEAVE_AFTER_S", 0.01)
    clock = Clock()

    def at(now: float) -> None:
        if now == 5.0:
            assert recorder.outbox.wait(LIMIT_S)
            server.stop()
        if now == 10.0:
            wait_until(
                lambda: recorder.outbox.unavailable, "the store to be seen to be unavailable"
            )
        if now == 35.0 and not ends_first:
            server.start()

    job = ReportingJob(clock, 40.0, at)
    with closing(RunStore(server.database())) as store:
        run_id = store.create_run(resolve(RunConfig()))
        recorder = JobRecorder(store, run_id, threading.Event(), clock, start=lambda: job)
        recorder.run()
        if ends_first:
            assert "until vitprof starts again" in recorder.leave()
            server.start()
            settle_interrupted(store)
        assert ends_first or recorder.outbox.wait(LIMIT_S)
        run = store.run(run_id)
        assert (run.status, run.error) == ("done", "")
        assert store.steps(run_id)["step"].tolist() == list(range(400))
        assert "the run store could not be written for" in run.notices[0]


@pytest.mark.measured
def test_a_server_that_is_away_when_a_script_begins(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "RETRY_S", 0.01)
    clock = Clock()

    def at(now: float) -> None:
        if now == 10.0:
            wait_until(
                lambda: recorder.outbox.unavailable, "the store to be seen to be unavailable"
            )
            assert recorder.run_id == 0
            server.start()

    url = server.database()
    RunStore(url).close()
    server.stop()
    job = ReportingJob(clock, 40.0, at)
    with closing(RunStore(url, opens=False)) as store:
        new = NewRun.of(resolve(RunConfig()))
        recorder = JobRecorder(store, new, threading.Event(), clock, start=lambda: job)
        recorder.run()
        assert recorder.outbox.wait(LIMIT_S)
        (run,) = store.runs()
        assert (run.id, run.status) == (recorder.run_id, "done")
        assert store.steps(run.id)["step"].tolist() == list(range(400))
        assert "what was measured meanwhile waited and is complete" in run.notices[0]
