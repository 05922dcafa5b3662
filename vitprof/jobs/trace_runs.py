"""A trace of torch.profiler as a run of the store, judged by the rules of all others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from vitprof.analysis.timing import gaps, summary
from vitprof.analysis.verdict.verdict import judge
from vitprof.config.availability import can_run
from vitprof.config.own_script import own_config, with_loader
from vitprof.jobs.finalise import spark
from vitprof.recording.columns import TELEMETRY_COLUMNS
from vitprof.store import RunStore, StoredRun, database
from vitprof.store.run_store import importing
from vitprof.traces.reading import ReadTrace, read_trace
from vitprof.traces.trace_file import OnProgress

NO_TELEMETRY = {name: np.zeros(0) for name in ("seq", *TELEMETRY_COLUMNS)}
"""The telemetry of a run that nobody watched."""
ORIGIN_S = 0.0
"""When such a run begins: its times count from the trace's beginning."""


def add_trace(
    store: RunStore,
    path: Path,
    *,
    name: str = "",
    batch_size: int | None = None,
    workers: int | None = None,
    on_progress: OnProgress | None = None,
) -> StoredRun:
    """Reads a trace, and adds it to the store as a run that has ended.

    `name`: that of the run, by default the file's. `batch_size`, `workers`: of its train loader, which
    no trace tells. Nothing is stored before all of it is read and judged, and then all at once.

    Raises `TraceError` where the file is no trace of a training, `StoreError` where the store fails.
    """
    store.check_may_change()
    read = read_trace(path, batch_size=batch_size, workers=workers, on_progress=on_progress)
    columns = run_columns(read, name or path.name)
    with importing(store) as into:
        run_id = into.insert(columns, steps=read.steps, telemetry=NO_TELEMETRY)
    return store.run(run_id)


def run_columns(read: ReadTrace, name: str) -> dict[str, Any]:
    """Returns the columns of the run that a trace is, with its summary and its verdict."""
    config = with_loader(own_config(name), read.environment)
    facts = read.environment | read.facts
    of_run = gaps.RunGaps.of(read.steps, read.phases)
    figures = summary.summarise(
        config,
        read.steps,
        NO_TELEMETRY,
        read.phases,
        facts,
        t_origin_s=ORIGIN_S,
        t_end_s=ORIGIN_S + read.seconds,
        gaps=of_run,
    )
    verdict = judge(
        config, read.steps, read.phases, NO_TELEMETRY, facts, possible=can_run, gaps=of_run
    )
    return {
        "name": config.name,
        "status": "done",
        "created_utc": database.now_utc(),
        "t_origin_s": ORIGIN_S,
        "training_since_s": float(read.steps["t_start_s"][0]),
        "config": config,
        "environment": read.environment,
        "facts": read.facts,
        "phases": read.phases,
        "summary": figures,
        "verdict": verdict.to_dict(),
        "notices": list(read.notices),
        "spark": spark(read.steps, read.phases, of_run.every),
    }
