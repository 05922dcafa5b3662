"""The progress of a tournament, and how long the rest of it takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vitprof.analysis.tournament import Entry
from vitprof.experiments.tournament.planning import PlannedTrial, schedule
from vitprof.recording.columns import LIVE_STATUSES
from vitprof.store.tournaments import StoredTournament, TrialRun


@dataclass(frozen=True)
class TournamentProgress:
    """The progress of a tournament."""

    done: int
    """Runs that have ended by themselves or were cut short. One that was left unfinished is repeated, not counted."""
    total: int
    """Those, the running one, and those that are certain to come: without the remaining runs of a trial that failed or
    was cut short, and without rounds that may be added until it is decided."""
    current_key: str
    """The trial that is running; "" if none is."""
    current_round: int
    current_run_id: int | None
    fraction: float
    """0..1, the running trial's own progress included."""
    seconds_left: float
    """Estimated from what the runs so far took; NaN while none has ended."""


def progress_of(
    found: StoredTournament,
    planned: Sequence[PlannedTrial],
    found_entries: Sequence[Entry],
    newest: Mapping[str, Mapping[int, TrialRun]],
    spent: Mapping[int, float],
) -> TournamentProgress:
    """Returns the progress of a tournament from its plan, its entries and the newest run of each trial and round.

    `spent` are the seconds that its runs took, by run id.
    """
    by_key = {e.key: e for e in found_entries}
    took = {
        e.key: [spent[o.run_id] for o in e.outcomes if o.status == "done" and o.run_id in spent] for e in found_entries
    }
    every = [s for seconds in took.values() for s in seconds]
    typical = math.fsum(every) / len(every) if every else math.nan
    done = total = 0
    left, current, within = 0.0, None, 0.0
    for number, trial in schedule(planned, found.spec.repeats):
        out = by_key[trial.key].status in ("failed", "cut")
        run = newest.get(trial.key, {}).get(number)
        if out and run is None:
            continue
        total += 1
        if run is not None and run.status not in LIVE_STATUSES and (out or run.status == "done"):
            done += 1
            continue
        own = took[trial.key]
        expected = math.fsum(own) / len(own) if own else typical
        if run is not None and run.status in LIVE_STATUSES and (current is None or run.status == "running"):
            within = (run.progress or 0.0) if run.stage == "training" else 0.0
            current = trial.key, number, run.id
            expected *= 1 - within
        left += expected
    beyond = [(key, run) for key, mine in newest.items() for n, run in mine.items() if n > found.spec.repeats]
    total += len(beyond)
    done += sum(run.status in ("done", "failed") or by_key[key].status == "cut" for key, run in beyond)
    for key, run in beyond:
        if run.status in LIVE_STATUSES and by_key[key].status not in ("failed", "cut"):
            within = (run.progress or 0.0) if run.stage == "training" else 0.0
            current = key, run.round, run.id
            own = took[key]
            left += (math.fsum(own) / len(own) if own else typical) * (1 - within)
    if found.spec.seconds is not None and left > 0:
        left = min(left, max(found.spec.seconds - math.fsum(spent.values()), 0.0) + (typical if current else 0.0))
    key, number, run_id = current or ("", 0, None)
    over = found.status in ("done", "stopped") and not current
    return TournamentProgress(
        done=done,
        total=total,
        current_key=key,
        current_round=number,
        current_run_id=run_id,
        fraction=min((done + within) / total, 1.0) if total else 1.0,
        seconds_left=0.0 if over else left,
    )
