"""When a trial is cut short: it can no longer win, or makes no step at all."""

from __future__ import annotations

import math
import time

import numpy as np

from vitprof import formats
from vitprof.analysis.arrays import Floats
from vitprof.analysis.tournament import Entry, Leaderboard, LeaderboardRow, setting_in_words
from vitprof.analysis.tournament.blocks import EARLIEST_STOP_FRAC, cannot_win, usable, without_others
from vitprof.config.own_script import is_own_script
from vitprof.experiments.tournament.planning import PlannedTrial
from vitprof.experiments.tournament.tournament_view import TournamentState, blocks_of, others_of
from vitprof.store import RunStore, StoredRun

LOOK_S, LOOK_SHARE = 1.0, 0.01
"""Seconds between two checks whether a running trial can still win; more where its many steps make the check take more
than this share of the time, which the trial would lose."""
LEAST_PATIENCE_S, PATIENCE_RUNS = 60.0, 5.0
"""How long a trial may take to its first step once its data are prepared: seconds, or a multiple of what runs of this
tournament typically take, whichever is longer. A slow drive can take hours to copy what another trial reads in a
second, and would hold up all others."""

OTHERS_NAMED = 1.05
"""The least gain that a trial may have without other programs for the reason to mention it."""
Evidence = tuple[Floats, Floats]
"""samples/s of blocks as measured, and the most that they would have been without other programs; both (n,)."""
NOTHING: Evidence = (np.empty(0), np.empty(0))


class EarlyStop:
    """Decides whether a trial is worth running on. Made before it is started, and asked again and again while it runs.

    A trial that other programs slowed down is judged by the most that it would have reached without them.
    """

    def __init__(self, store: RunStore, now: TournamentState, board: Leaderboard, trial: PlannedTrial) -> None:
        self._store = store
        entry = next(e for e in now.entries if e.key == trial.key)
        self._best, self._patience_s = _rival(board, entry), _patience_s(now)
        evidence = [_evidence(o.blocks_per_s, o.others_cores) for o in entry.outcomes if o.status == "done"]
        self._earlier: Evidence = tuple(map(np.concatenate, zip(NOTHING, *evidence, strict=True)))  # type: ignore[assignment]
        self._look_at = time.monotonic() + LOOK_S
        self._begun = False

    def before(self, number: int) -> str:
        """Returns why the trial need not run in round `number`; "" where it may still win."""
        return self._cannot_win(f"not run again after round {number - 1}", NOTHING)

    def during(self, run_id: int) -> str:
        """Returns why the run is to be stopped; "" where it goes on."""
        began = time.monotonic()
        if began < self._look_at:
            return ""
        reason, run = "", self._store.run(run_id)
        n_steps = self._store.n_steps(run_id)
        if not n_steps and _since_prepared_s(run) > self._patience_s:
            reason = f"no step after {formats.seconds(self._patience_s)}; run it alone, without early stop"
        elif n_steps and run.stage == "training" and (run.progress or 0.0) >= EARLIEST_STOP_FRAC:
            evidence = _evidence(blocks_of(self._store, run_id), others_of(self._store, run_id))
            reason = self._cannot_win(f"cut short after {n_steps:,} steps", evidence)
        self._look_at = began + max(LOOK_S, (time.monotonic() - began) / LOOK_SHARE)
        return reason

    def _cannot_win(self, how: str, evidence: Evidence) -> str:
        """Returns why the trial cannot win, in words that begin with `how`; "" where it may still win."""
        best = self._best
        measured, at_most = (np.concatenate(pair) for pair in zip(self._earlier, evidence, strict=True))
        if best is None or not cannot_win(at_most, best.within_low):
            return ""
        so_far, reached = _speed(measured), _speed(at_most)
        slowed = reached > OTHERS_NAMED * so_far
        without = f", at most {formats.number(reached)} without other programs" if slowed else ""
        return (
            f"{how}: {formats.number(so_far)} samples/s so far{without}, and "
            f"{setting_in_words(best.entry)} makes at least {formats.number(best.within_low)}"
        )


def _rival(board: Leaderboard, entry: Entry) -> LeaderboardRow | None:
    """Returns the best trial so far with this one's batch size and page cache, if there is one besides `entry`.

    Another batch size is another question: the setting that loads best at this one is worth its full time.
    """
    rows = (row for row in board.rows if row.rank is not None)
    alike = (entry.batch_size, entry.page_cache)
    best = next((row for row in rows if (row.entry.batch_size, row.entry.page_cache) == alike), None)
    return best if best is not None and best.key != entry.key and math.isfinite(best.within_low) else None


def _patience_s(now: TournamentState) -> float:
    """Returns how many seconds a trial may take to its first step, see `LEAST_PATIENCE_S`."""
    took = [o.summary.wall_s for e in now.entries for o in e.outcomes if o.status == "done" and o.summary]
    return max(LEAST_PATIENCE_S, PATIENCE_RUNS * float(np.median(took))) if took else LEAST_PATIENCE_S


def _speed(blocks: Floats) -> float:
    known = usable(blocks)
    return len(known) / float(np.sum(1 / known))  # the harmonic mean, as all blocks have the same number of samples


def _since_prepared_s(run: StoredRun) -> float:
    """Returns the seconds since the run's data were ready; minus infinity while they are not.

    For a user's own script, whose preparations are not known, returns the seconds since it was started.
    """
    if is_own_script(run.config):
        return -math.inf if run.t_origin_s is None else time.perf_counter() - run.t_origin_s
    ready = [p.t_end_s for p in run.phases if p.name == "prepare"]
    return time.perf_counter() - ready[-1] if ready else -math.inf


def _evidence(blocks: Floats, others_cores: float) -> Evidence:
    """Returns the evidence of one run, during which other programs took `others_cores` cores."""
    return blocks, without_others(blocks, others_cores)
