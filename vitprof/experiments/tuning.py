"""Finds the best workers, prefetch factor and batch size for a strategy within a time limit, and checks the gain.

It uses successive halving (`vitprof.analysis.tournament.tuning`): many settings train for a short time, the best third
of them for longer, and so on. They are compared by samples/s from end to end, as in every other figure. Then the winner
and the strategy's own setting are run again in turns, so that the reported gain does not rest on the runs that chose
the winner.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence

from vitprof.analysis.bootstrap import UNKNOWN, Interval
from vitprof.analysis.tournament import Candidate, Entry, Outcome, leaderboard, trial_key
from vitprof.analysis.tournament.tuning import survivors
from vitprof.config import RunConfig
from vitprof.config.bounds import TUNING_S
from vitprof.config.resolve import resolve
from vitprof.errors import ConfigError, JobError
from vitprof.experiments.candidates import (
    CHECKS,
    LEAST_S,
    OVERHEAD_S,
    Tried,
    Tuning,
    candidate_in_words,
    candidates,
    ladder,
    reserve_s,
    with_candidate,
)
from vitprof.experiments.tournament.planning import why_not_here
from vitprof.experiments.tournament.tournament_view import ended_run
from vitprof.experiments.trials import OnProgress, Progress, Stop, Trial, ignore, never, run_trials
from vitprof.jobs.manager import JobManager
from vitprof.store import RunGroup, role_of

WARMUP_STEPS = 2
"""Warm-up steps of a run: the default of five would be too many for one so short."""
Clock = Callable[[], float]


def tune(
    manager: JobManager,
    base: RunConfig,
    seconds: float,
    *,
    batch_sizes: Sequence[int] | None = None,
    workers: Sequence[int] | None = None,
    progress: OnProgress = ignore,
    stop: Stop = never,
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
    return _Search(manager, base, seconds, progress, stop, clock).run(candidates(base, batch_sizes, workers))


class _Search:
    """A search in progress."""

    def __init__(
        self, manager: JobManager, base: RunConfig, seconds: float, progress: OnProgress, stop: Stop, clock: Clock
    ) -> None:
        self._manager, self._base, self._progress, self._stop = manager, base, progress, stop
        self._clock = clock
        self._began, self._seconds = clock(), seconds
        self._overhead_s = OVERHEAD_S[base.isolation]
        self._tried: list[Tried] = []
        self._stopped = False
        self._alive: list[Candidate] = []
        """Settings that have not dropped out."""
        self._checks: dict[Candidate, list[Outcome]] = {}
        self._winner: Candidate | None = None
        self._run_id = 0

    def run(self, options: list[Candidate]) -> Tuning:
        """Tries the `options`, the default first, and returns the result."""
        default, self._alive = options[0], options
        group = RunGroup("autotune", f"{os.getpid()}-{time.time_ns()}").key
        trials = self._trials(options)

        def report(trial: Trial, run_id: int) -> None:
            known = [t.samples_per_s for t in self._tried if not math.isnan(t.samples_per_s)]
            fraction, n = min(1 - self._left_s() / self._seconds, 1.0), len({t.candidate for t in self._tried})
            words = f"{n} of {len(options)} settings tried; now {trial.words}"
            left_s, best = self._seconds * (1 - fraction), max(known, default=math.nan)
            self._progress(Progress(words, n, len(options), fraction, left_s, run_id, best_per_s=best))

        for _, run_id in run_trials(self._manager, trials, group, watch=report, stop=self._is_stopped):
            self._run_id = run_id
            self._stopped |= self._manager.store.run(self._run_id).status == "stopped"
        self._stopped |= self._stop()
        winner = self._winner or self._best()
        gain, speed, verified = self._gain(default, winner)
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

    def _trials(self, options: list[Candidate]) -> Iterator[Trial]:
        """Yields the runs: of the default, of the rungs for which there is time, and of default and winner in turns."""
        default = options[0]
        yield from self._train(default, LEAST_S, 1, "the default")  # shows what a run costs, and prepares the storage
        yield from self._halve(options)
        winner = self._winner = self._best()
        if winner == default:
            return
        pairs = [pair if k % 2 == 0 else pair[::-1] for k in range(CHECKS) for pair in [(default, winner)]]
        self._checks = {default: [], winner: []}
        for number, candidate in ((k, c) for k, pair in enumerate(pairs, 1) for c in pair):
            left = 2 * CHECKS - sum(map(len, self._checks.values()))
            if self._left_s() < left * (self._overhead_s + LEAST_S) / 2:
                return  # half of the time that is needed: the last one may end a little late, but not all of them
            budget = max(self._left_s() / left - self._overhead_s, LEAST_S)
            yield from self._train(candidate, budget, 0, f"checking, round {number} of {CHECKS}")
            if math.isnan(self._tried[-1].samples_per_s):
                return
            summary, blocks = ended_run(self._manager.store, self._run_id)
            self._checks[candidate].append(Outcome(number, self._run_id, "done", blocks, summary))

    def _halve(self, options: list[Candidate]) -> Iterator[Trial]:
        a_run_s = self._overhead_s + LEAST_S
        kept_s = reserve_s(self._seconds, self._left_s(), a_run_s)
        steps = ladder(len(options), self._left_s() - kept_s, a_run_s)
        self._alive = options[: steps[0].n] if steps else options[:1]
        for number, rung in enumerate(steps, 1):
            for candidate in self._alive:
                if self._left_s() - kept_s < a_run_s:
                    break
                if number == 1 and candidate == options[0] and self._score(candidate) > 0:
                    continue  # the search began with it
                budget = max(rung.seconds - self._overhead_s, LEAST_S)
                yield from self._train(candidate, budget, number, f"rung {number} of {len(steps)}")
            self._alive = [self._alive[i] for i in survivors([self._score(c) for c in self._alive])]

    def _train(self, candidate: Candidate, seconds: float, rung: int, words: str) -> Iterator[Trial]:
        """Yields one run, and notes what it gave once it has ended."""
        config = dataclasses.replace(self._base, epochs=None, steps=None, seconds=seconds, evaluate=False)
        config = with_candidate(dataclasses.replace(config, warmup_steps=WARMUP_STEPS), candidate)
        name = candidate_in_words(candidate)
        yield Trial(config, role_of(name, rung), f"{words}: {name}")
        ended = self._manager.store.run(self._run_id)
        speed = ended.summary.samples_per_s if ended.status == "done" and ended.summary is not None else math.nan
        self._tried.append(Tried(candidate, rung, self._run_id, speed, ended.error))
        first = len(self._tried) == 1
        if ended.status == "done" and ended.summary is not None and not (first and self._base.isolation == "thread"):
            # only the first run prepares the storage, and in a thread it also imports torch
            once_s = ended.summary.prepare_s if first and math.isfinite(ended.summary.prepare_s) else 0.0
            self._overhead_s = max(ended.summary.wall_s - seconds - once_s, 0.05)

    def _best(self) -> Candidate:
        """Returns the fastest setting of those that have not dropped out, which were measured longest; otherwise of
        all. Raises `JobError` where no run gave a figure.
        """
        for group in (self._alive, [t.candidate for t in self._tried]):
            if scored := [c for c in group if not math.isnan(self._score(c))]:
                return max(scored, key=self._score)
        why = next((t.error for t in self._tried if t.error), "too few steps in the time given")
        raise JobError(f"nothing could be tuned: no run of {self._base.strategy} gave a figure ({why})")

    def _gain(self, default: Candidate, winner: Candidate) -> tuple[Interval, float, bool]:
        """Returns the winner's gain, its samples/s, and whether both were run again in full."""
        if winner == default:
            return Interval(1.0, 1.0, 1.0), self._score(default), False
        if not self._checks or not all(len(outcomes) == CHECKS for outcomes in self._checks.values()):
            return UNKNOWN, self._score(winner), False
        entries = [_entry(self._base.strategy, c, outcomes) for c, outcomes in self._checks.items()]
        row = leaderboard(entries, baseline=entries[0].key, n_train=0).row(entries[1].key)
        assert row is not None
        return Interval(row.speed_up, row.speed_up_low, row.speed_up_high), row.samples_per_s, True

    def _score(self, candidate: Candidate) -> float:
        """Returns samples/s of the candidate's latest run that gave a figure; NaN without one."""
        mine = [t for t in self._tried if t.candidate == candidate and not math.isnan(t.samples_per_s)]
        return mine[-1].samples_per_s if mine else math.nan

    def _is_stopped(self) -> bool:
        return self._stopped or self._stop()

    def _left_s(self) -> float:
        return self._seconds - (self._clock() - self._began)


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
