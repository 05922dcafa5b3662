"""What is kept of a run that has ended: its summary, its verdict and its sparkline, from what the store has of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vitprof.analysis.arrays import Series
from vitprof.analysis.timing.gaps import Gaps, every_gap
from vitprof.analysis.timing.moments import end_s
from vitprof.analysis.timing.summary import summarise
from vitprof.analysis.timing.utilisation import idle_bins
from vitprof.analysis.verdict.verdict import judge
from vitprof.config.availability import can_run
from vitprof.records import Phase
from vitprof.store import SPARK_BINS, RunStore, UnreadableRun


def settle(store: RunStore, run_id: int, t_origin_s: float, t_end_s: float) -> dict[str, Any]:
    """Returns the columns "summary", "verdict" and "spark" of a run that has ended, from what the store has of it."""
    run, steps, telemetry = store.run(run_id), store.steps(run_id), store.telemetry(run_id)
    facts = run.environment | run.facts
    gaps = every_gap(steps, run.phases)
    summary = summarise(
        run.config, steps, telemetry, run.phases, facts, t_origin_s=t_origin_s, t_end_s=t_end_s, gaps=gaps
    )
    verdict = judge(run.config, steps, run.phases, telemetry, facts, possible=can_run, gaps=gaps)
    return {"summary": summary, "verdict": verdict.to_dict(), "spark": spark(steps, run.phases, gaps)}


def spark(steps: Series, phases: Sequence[Phase], gaps: Gaps | None = None) -> list[float | None]:
    """Returns the device's idle share over the run in at most 40 bins, in thousandths; None where there is no telling.

    `gaps` are those of all steps, if they are known.
    """
    _, share = idle_bins(steps, phases, bins=min(SPARK_BINS, max(len(steps["step"]), 1)), gaps=gaps)
    return [round(float(v), 3) if np.isfinite(v) else None for v in share]


def settle_interrupted(store: RunStore) -> None:
    """Marks runs whose program is gone, and sums up what they had stored until then."""
    for run_id in store.mark_interrupted():
        try:
            run, steps = store.run(run_id), store.steps(run_id)
        except UnreadableRun:  # what another version began, that version can sum up
            continue
        if run.t_origin_s is None or not len(steps["step"]):
            continue
        last_s = float(end_s(steps)[-1])
        store.update_run(run_id, **settle(store, run_id, run.t_origin_s, last_s))
