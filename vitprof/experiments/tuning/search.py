"""Finds the best workers, prefetch factor and batch size for a strategy within a time limit, and checks the gain.

It uses successive halving (`vitprof.analysis.tournament.halving`): many settings train for a short time, the best third
of them for longer, and so on. They are compared by samples/s from end to end, as in every other figure. Then the winner
and the strategy's own setting are run again in turns, so that the reported gain does not rest on the runs that chose
the winner.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vitprof.analysis.bootstrap import UNKNOWN, Interval
from vitprof.analysis.tournament import (
    Candidate,
    Entry,
    Outcome,
    leaderboard,
    survivors,
    trial_key,
)
from vitprof.config import RunConfig
from vitprof.config.bounds import TUNING_S
from vitprof.config.resolve import resolve
from vitprof.errors import ConfigError, JobError
from vitprof.experiments.tournament.planning import why_not_here
from vitprof.experiments.tournament.tournament_view import given
from vitprof.experiments.tuning.candidates import Tried, Tuning, candidate_in_words, candidates, with_candidate
from vitprof.experiments.tuning.forecast import CHECKS, LEAST_S, OVERHEAD_S, ladder, reserve_s
from vitprof.jobs.manager import JobManager
from vitprof.store import StoredRun
from vitprof.store.groups import RunGroup, role_of

__all__ = ["TuneProgress", "Tuning", "candidates", "tune"]

WARMUP_STEPS = 2
"""Warm-up steps of a run: the default of five would be too many for one so short."""
POLL_S = 0.1


@dataclass(frozen=True)
class TuneProgress:
    """The progress of a search."""

    words: str
    """What is running."""
    fraction: float
    """Share of the time limit that has passed, 0..1."""
    best_per_s: float
    """The best samples/s so far; NaN before there is one."""


OnTuneProgress = Callable[[TuneProgress], None]
Stop = Callable[[], bool]
Clock = Callable[[], float]


def tune(
    manager: JobManager,
    base: RunConfig,
    seconds: float,
    *,
    batch_sizes: Sequence[int] | None = None,
    workers: Sequence[int] | None = None,
    progress: OnTuneProgress = lambda progress: None,
    stop: Stop = lambda: False,
    clock: Clock = time.monotonic,
) -> Tuning:
    """Searches for `seconds`, the start-up of runs included, and returns what it found.

    No run begins after that time; the last one may end a little later. Once `stop()` returns true or the time is up,
    the best so far is the result. `batch_sizes` and `workers` replace the values that are usually tried. Raises
    `ConfigError` where the strategy cannot be run here, `JobError` where no run gave a figure.
    """
    TUNING_S.check("time", seconds)
    if why := why_not_here(resolve(base)):
        raise ConfigError("strategies", base.strategy, why)
    search = _Search(manager, base, seconds, progress, stop, clock)
    return search.run(candidates(base, batch_sizes, workers))


class _Search:
    """A search in progress."""

    def __init__(
        self, manager: JobManager, base: RunConfig, seconds: float, progress: OnTuneProgress, stop: Stop, clock: Clock
    ) -> None:
        self._manager, self._base, self._progress, self._stop = manager, base, progress, stop
        self._clock = clock
        self._began, self._seconds = clock(), seconds
        self._overhead_s = OVERHEAD_S[base.isolation]
        self._group = RunGroup("autotune", f"{os.getpid()}-{time.time_ns()}").key
        self._tried: list[Tried] = []
        self._stopped = False
        self._n = 1

    def run(self, options: list[Candidate]) -> Tuning:
        default, self._n = options[0], len(options)
        self._train(default, LEAST_S, 1, "the default")  # shows what a run costs, and prepares the storage
        order = self._halve(options)
        scored = [c for c in order if not math.isnan(self._score(c))]
        if not scored:
            why = next((t.error for t in self._tried if t.error), "too few steps in the time given")
            raise JobError(f"nothing could be tuned: no run of {self._base.strategy} gave a figure ({why})")
        winner = scored[0]
        gain, speed, verified = self._check(default, winner)
        if verified and gain.value < 1:  # the search chose wrongly
            winner, gain, speed = default, Interval(1.0, 1.0, 1.0), self._score(default)
        return Tuning(
            strategy=self._base.strategy,
            default=default,
            winner=winner,
            config=with_candidate(self._base, winner),
            samples_per_s=speed,
            gain=gain,
            verified=verified,
            tried=tuple(self._tried),
            n_candidates=len(options),
            seconds=self._clock() - self._began,
            stopped=self._stopped,
        )

    def _halve(self, options: list[Candidate]) -> list[Candidate]:
        """Runs the rungs for which there is time; returns the candidates, the best first."""
        a_run_s = self._overhead_s + LEAST_S
        kept_s = reserve_s(self._seconds, self._left_s(), a_run_s)
        steps = ladder(len(options), self._left_s() - kept_s, a_run_s)
        alive = options[: steps[0].n] if steps else options[:1]
        for number, rung in enumerate(steps, 1):
            for candidate in alive:
                if self._stopped or self._left_s() - kept_s < a_run_s:
                    break
                if number == 1 and candidate == options[0] and self._score(candidate) > 0:
                    continue  # the search began with it
                budget = max(rung.seconds - self._overhead_s, LEAST_S)
                self._train(candidate, budget, number, f"rung {number} of {len(steps)}")
            scores = [self._score(c) for c in alive]
            alive = [alive[i] for i in survivors(scores)]
        every = {t.candidate for t in self._tried}
        rest = sorted(every - set(alive), key=lambda c: -_or_least(self._score(c)))
        # Those that are left were measured longest, so they come before those that dropped out.
        return [*alive, *rest]

    def _check(self, default: Candidate, winner: Candidate) -> tuple[Interval, float, bool]:
        """Runs winner and default again, in turns; returns the winner's gain, its samples/s, and whether that was done
        in full.
        """
        if winner == default:
            return Interval(1.0, 1.0, 1.0), self._score(default), False
        turns = [pair if k % 2 == 0 else pair[::-1] for k in range(CHECKS) for pair in [(default, winner)]]
        outcomes: dict[Candidate, list[Outcome]] = {default: [], winner: []}
        for number, candidate in ((k, c) for k, pair in enumerate(turns, 1) for c in pair):
            left = 2 * CHECKS - sum(map(len, outcomes.values()))
            if self._stopped or self._left_s() < left * (self._overhead_s + LEAST_S) / 2:
                break  # half of the time that is needed: the last one may end a little late, but not all of them
            budget = max(self._left_s() / left - self._overhead_s, LEAST_S)
            tried = self._train(candidate, budget, 0, f"checking, round {number} of {CHECKS}")
            if math.isnan(tried.samples_per_s):
                break
            summary, blocks = given(self._manager.store, tried.run_id)
            outcomes[candidate].append(Outcome(number, tried.run_id, "done", blocks, summary))
        if not all(len(found) == CHECKS for found in outcomes.values()):
            return UNKNOWN, self._score(winner), False
        found = [_entry(self._base.strategy, c, mine) for c, mine in outcomes.items()]
        board = leaderboard(found, baseline=found[0].key, n_train=0)
        row = board.row(found[1].key)
        assert row is not None
        return Interval(row.speed_up, row.speed_up_low, row.speed_up_high), row.samples_per_s, True

    def _train(self, candidate: Candidate, seconds: float, rung: int, words: str) -> Tried:
        config = dataclasses.replace(self._base, epochs=None, steps=None, seconds=seconds, evaluate=False)
        config = with_candidate(dataclasses.replace(config, warmup_steps=WARMUP_STEPS), candidate)
        run_id = self._manager.submit(config, group_key=self._group, role=role_of(candidate_in_words(candidate), rung))
        try:
            while not self._manager.wait(run_id, POLL_S):
                self._progress(self._told(f"{words}: {candidate_in_words(candidate)}"))
                if self._stop() and not self._stopped:
                    self._stopped = True
                    self._manager.stop(run_id)
        except BaseException:
            self._manager.stop(run_id)
            self._manager.wait(run_id)
            raise
        ended = self._manager.store.run(run_id)
        self._stopped |= ended.status == "stopped"
        tried = Tried(candidate, rung, run_id, _speed(ended), ended.error)
        self._tried.append(tried)
        first = len(self._tried) == 1
        if ended.status == "done" and ended.summary is not None and not (first and self._base.isolation == "thread"):
            # only the first run prepares the storage, and in a thread it also imports torch
            once_s = ended.summary.prepare_s if first and math.isfinite(ended.summary.prepare_s) else 0.0
            self._overhead_s = max(ended.summary.wall_s - seconds - once_s, 0.05)
        return tried

    def _score(self, candidate: Candidate) -> float:
        """Returns samples/s of the candidate's latest run that gave a figure; NaN without one."""
        mine = [t for t in self._tried if t.candidate == candidate and not math.isnan(t.samples_per_s)]
        return mine[-1].samples_per_s if mine else math.nan

    def _left_s(self) -> float:
        return self._seconds - (self._clock() - self._began)

    def _told(self, words: str) -> TuneProgress:
        known = [t.samples_per_s for t in self._tried if not math.isnan(t.samples_per_s)]
        fraction = min((self._clock() - self._began) / self._seconds, 1.0)
        n = len({t.candidate for t in self._tried})
        return TuneProgress(f"{n} of {self._n} settings tried; now {words}", fraction, max(known, default=math.nan))


def _or_least(score: float) -> float:
    return -math.inf if math.isnan(score) else score


def _speed(run: StoredRun) -> float:
    return run.summary.samples_per_s if run.status == "done" and run.summary is not None else math.nan


def _entry(name: str, candidate: Candidate, outcomes: Sequence[Outcome]) -> Entry:
    """Returns a candidate as an entry of the leaderboard."""
    key = trial_key(name, candidate.batch_size, candidate.workers, f"prefetch {candidate.prefetch_factor}")
    return Entry(
        key=key,
        strategy=name,
        batch_size=candidate.batch_size,
        workers=candidate.workers,
        page_cache="as-is",
        outcomes=tuple(outcomes),
        status="done",
        reason="",
        prepare_s=math.nan,
        disk_bytes=math.nan,
        ram_bytes=math.nan,
    )
