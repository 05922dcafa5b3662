"""Computes the summary, the verdict and the sparkline of a run that has ended, from what the store has of it."""

import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from vitprof.analysis.arrays import Series
from vitprof.analysis.timing import gaps, steady, summary, utilisation
from vitprof.analysis.verdict.verdict import judge
from vitprof.config.availability import can_run
from vitprof.errors import StoreAwayError, StoreError, VitprofError, one_line
from vitprof.jobs import nodes
from vitprof.jobs.spool import import_left
from vitprof.recording.columns import Phase
from vitprof.store import RunStore
from vitprof.store.stored_run import SPARK_BINS

OPEN_S = 60.0
"""How long (s) a program that opens a store may spend on judging what others left there; the rest stays unjudged."""


def settle(store: RunStore, run_id: int, t_origin_s: float, t_end_s: float) -> dict[str, Any]:
    """Returns the columns "summary", "verdict" and "spark" of a run that has ended, from what the store has of it; only
    "notices" where it cannot be judged. Suspended steps become warm-up. Raises `StoreError`, also where the store
    becomes unavailable meanwhile: the run is not judged yet, and can be.
    """
    run = store.run(run_id)
    telemetry = store.telemetry(run_id)
    steps = store.steps(run_id)
    stops = steady.stops_of(run.facts)
    of_ranks = {}
    if any(stop.rank is not None for stop in stops):
        of_ranks = store.steps_of_ranks(run.id, names=steady.STOP_COLUMNS)
        of_ranks[int(run.environment.get("rank") or 0)] = of_ranks.pop(0)
    suspended = steady.in_stops(steps, stops, of_ranks) & (steps["warmup"] == 0)
    if suspended.any():
        store.mark_warmup(run.id, [int(step) for step in np.unique(steps["step"][suspended])])
        steps = {**steps, "warmup": np.where(suspended, 1.0, steps["warmup"])}
    try:
        facts = run.environment | run.facts
        of_run = gaps.RunGaps.of(steps, run.phases)
        more = nodes.of_ranks(store, run, steps, telemetry)
        facts |= more
        span = {"t_origin_s": t_origin_s, "t_end_s": t_end_s}
        figures = summary.summarise(
            run.config, steps, telemetry, run.phases, facts, **span, gaps=of_run
        )
        verdict = judge(
            run.config, steps, run.phases, telemetry, facts, possible=can_run, gaps=of_run
        )
        columns = {
            "summary": figures,
            "verdict": verdict.to_dict(),
            "spark": spark(steps, run.phases, of_run.every),
        }
        return columns | ({"facts": run.facts | more} if more else {})
    except StoreAwayError:  # the steps of other ranks are read there: who called tries again
        raise
    except Exception as error:
        if not isinstance(error, VitprofError):  # a defect: its traceback goes to the program's log
            traceback.print_exc()
        return {"notices": [*run.notices, unjudged(one_line(error))]}


def unjudged(reason: str) -> str:
    """Returns the notice for a run that has no summary and verdict; `reason`: why."""
    return f"this run could not be judged: {reason}; its steps and telemetry are kept and can be exported"


def spark(
    steps: Series, phases: Sequence[Phase], of_steps: gaps.Gaps | None = None
) -> list[float | None]:
    """Returns the device's idle share (0 to 1) over the run, in at most `SPARK_BINS` bins; None where not known."""
    _, share = utilisation.idle_bins(
        steps, phases, bins=min(SPARK_BINS, max(len(steps["step"]), 1)), gaps=of_steps
    )
    return [round(float(v), 3) if np.isfinite(v) else None for v in share]


def settle_interrupted(store: RunStore, clock: Callable[[], float] = time.monotonic) -> None:
    """Marks runs whose program is gone as interrupted, imports what it left, and sums up both, for at most
    `OPEN_S`.
    """
    if store.read_only:
        return
    until = clock() + OPEN_S
    sum_up = partial(_settle, store, lambda: clock() < until)
    with suppress(StoreAwayError):
        lines, waiting = import_left(store, sum_up)
        if store.notice:
            lines = [store.notice, *lines]
        for line in lines:
            print(f"vitprof: {line}", file=sys.stderr)  # noqa: T201
        for run_id in store.mark_interrupted(spare=waiting):
            sum_up(run_id, None)


def _settle(
    store: RunStore, time_left: Callable[[], bool], run_id: int, ended_s: float | None
) -> None:
    """Sums up a run; `ended_s`: when it ended on its clock, None where that was not recorded."""
    try:
        run = store.run(run_id)
        steps = store.steps(run_id)
    except StoreAwayError:
        raise
    except StoreError:  # another version can sum it up, or it is damaged
        return
    if ended_s is None and len(steps["step"]):
        ended_s = float(steady.end_s(steps)[-1])
    # a run that had not begun, or has no step, has nothing to sum up
    if run.t_origin_s is None or ended_s is None:
        return
    if time_left():
        columns = settle(store, run_id, run.t_origin_s, ended_s)
    else:
        columns = {"notices": [*run.notices, unjudged("judging other runs took all the time")]}
    store.update_run(run_id, **columns)
    store.compact(run_id)
    nodes.join(store, run, settle)
