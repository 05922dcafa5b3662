"""The store on a PostgreSQL server: it keeps runs, and may be restarted while a job records."""

import threading
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from tests.clock import Clock
from tests.engine_fixtures import wait_until
from tests.jobs.reported import ReportingJob, steps
from tests.store.postgresql import Server, server  # noqa: F401
from tests.stored_series import append_steps, append_telemetry
from vitprof.config import RunConfig
from vitprof.config.resolve import resolve
from vitprof.jobs import outbox
from vitprof.jobs.finalise import settle_interrupted
from vitprof.jobs.supervisor import JobRecorder
from vitprof.recording.columns import TELEMETRY_COLUMNS
from vitprof.store import RunQuery, RunStore

pytestmark = pytest.mark.slow
LIMIT_S = 30.0


def test_it_keeps_runs(server: Server) -> None:  # noqa: F811
    url = server.database()
    with closing(RunStore(url)) as store:
        assert (store.file, store.read_only, store.notice) == (None, False, "")
        run_id = store.create_run(resolve(RunConfig(name="kept")))
        rows = steps(0, 50).tolist()
        append_steps(store, run_id, rows[:30])
        append_steps(store, run_id, rows[20:], again=True)
        append_telemetry(store, run_id, 0, np.ones((3, len(TELEMETRY_COLUMNS))).tolist())
        append_telemetry(store, run_id, 2, np.ones((3, len(TELEMETRY_COLUMNS))).tolist(), again=True)
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


@pytest.mark.parametrize("ends_first", [False, True])
def test_a_server_that_is_restarted_while_a_job_records(server: Server, monkeypatch: Any, ends_first: bool) -> None:  # noqa: F811
    """Where the program ends before it is back, the next one takes in what was left."""
    monkeypatch.setattr(outbox, "RETRY_S", 0.01)
    monkeypatch.setattr("vitprof.jobs.supervisor.LEAVE_AFTER_S", 0.01)
    clock = Clock()

    def at(now: float) -> None:
        if now == 5.0:
            assert recorder.outbox.wait(LIMIT_S)
            server.stop()
        if now == 10.0:
            wait_until(lambda: recorder.outbox.unavailable, "the store to be seen to be unavailable")
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
