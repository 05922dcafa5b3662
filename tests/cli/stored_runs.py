"""Runs in the store of the command line, for tests of commands that look at them."""

import json

from tests.command_line import Call
from tests.stored_series import append_steps
from vitprof.config import RunConfig
from vitprof.config.resolve import resolve
from vitprof.recording.columns import STEP_COLUMNS, RunSummary
from vitprof.store import RunStore


def add(store: RunStore, speed: float = 100.0, *, status: str = "done", **config: object) -> int:
    run_id = store.create_run(resolve(RunConfig(**{"steps": 5, "device": "cpu", **config})))
    rows = [
        [float(step) if name in ("step", "t_start_s") else 0.0 for name in STEP_COLUMNS]
        for step in range(3)
    ]
    append_steps(store, run_id, rows)
    summary = RunSummary(n_steps=3, samples_per_s=speed, device_idle_frac=0.25)
    store.update_run(run_id, status=status, summary=summary, t_origin_s=float(run_id))
    return run_id


def ids(call: Call, *args: str) -> list[int]:
    status, out, err = call("runs", "--json", *args)
    assert (status, err) == (0, "")
    return [run["run_id"] for run in json.loads(out)["runs"]]
