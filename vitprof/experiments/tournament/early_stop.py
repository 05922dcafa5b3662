"""When a trial is cut short: it can no longer win, or makes no step at all."""

from __future__ import annotations

import math
import time

import numpy as np

from vitprof import formats
from vitprof.analysis.arrays import Floats
from vitprof.analysis.tournament import (
    Entry,
    Leaderboard,
    LeaderboardRow,
    cannot_win,
    setting_in_words,
    usable,
    without_others,
)
from vitprof.config.own_script import is_own_script
from vitprof.experiments.tournament.planning import PlannedTrial
from vitprof.experiments.tournament.tournament_view import TournamentState
from vitprof.store import StoredRun

LEAST_PATIENCE_S, PATIENCE_RUNS = 60.0, 5.0
"""How long a trial may take to its first step once its data are prepared: seconds, or a multiple of what runs of this
tournament typically take, whichever is longer. A slow drive can take hours to copy what another trial reads in a
second, and would hold up all others."""

OTHERS_TOLD = 1.05
"""The least gain that a trial may have without other programs for the reason to mention it."""
Evidence = tuple[Floats, Floats]
"""samples/s of blocks as measured, and the most that they would have been without other programs; both (n,)."""
NOTHING: Evidence = (np.empty(0), np.empty(0))


def to_beat(board: Leaderboard, now: TournamentState, trial: PlannedTrial) -> LeaderboardRow | None:
    """Returns the best trial so far with this one's batch size and page cache, if there is one besides `trial`.

    Another batch size is another question: the setting that loads best at this one is worth its full time.
    """
    mine = next(e for e in now.entries if e.key == trial.key)
    alike = (mine.batch_size, mine.page_cache)
    rows = (r for r in board.rows if r.rank is not None)
    best = next((r for r in rows if (r.entry.batch_size, r.entry.page_cache) == alike), None)
    return best if best is not None and best.key != trial.key and math.isfinite(best.within_low) else None


def patience_s(now: TournamentState) -> float:
    """Returns how many seconds a trial may take to its first step, see `LEAST_PATIENCE_S`."""
    took = [o.summary.wall_s for e in now.entries for o in e.outcomes if o.status == "done" and o.summary]
    return max(LEAST_PATIENCE_S, PATIENCE_RUNS * float(np.median(took))) if took else LEAST_PATIENCE_S


def why_it_cannot_win(how: str, earlier: Evidence, now: Evidence, best: LeaderboardRow) -> str:
    """Returns why a trial cannot win, in words that begin with `how`; "" where it may still win.

    A trial that other programs slowed down is judged by the most that it would have reached without them.
    """
    seen, at_most = (np.concatenate(pair) for pair in zip(earlier, now, strict=True))
    if not cannot_win(at_most, best.within_low):
        return ""
    so_far, reached = _speed(seen), _speed(at_most)
    without = f", at most {formats.number(reached)} without other programs"
    return (
        f"{how}: {formats.number(so_far)} samples/s so far{without if reached > OTHERS_TOLD * so_far else ''}, and "
        f"{setting_in_words(best.entry)} makes at least {formats.number(best.within_low)}"
    )


def _speed(blocks: Floats) -> float:
    known = usable(blocks)
    return len(known) / float(np.sum(1 / known))  # the harmonic mean, as all blocks have the same number of samples


def since_prepared(run: StoredRun) -> float:
    """Returns the seconds since the run's data were ready; minus infinity while they are not.

    For a user's own script, whose preparations are not known, returns the seconds since it was started.
    """
    if is_own_script(run.config):
        return -math.inf if run.t_origin_s is None else time.perf_counter() - run.t_origin_s
    ready = [p.t_end_s for p in run.phases if p.name == "prepare"]
    return time.perf_counter() - ready[-1] if ready else -math.inf


def evidence_so_far(entry: Entry) -> Evidence:
    """Returns the evidence of a trial's finished runs."""
    every = [evidence(o.blocks_per_s, o.others_cores) for o in entry.outcomes if o.status == "done"]
    seen, at_most = zip(NOTHING, *every, strict=True)
    return np.concatenate(seen), np.concatenate(at_most)


def evidence(blocks: Floats, others_cores: float) -> Evidence:
    """Returns the evidence of one run, during which other programs took `others_cores` cores."""
    return blocks, without_others(blocks, others_cores)
