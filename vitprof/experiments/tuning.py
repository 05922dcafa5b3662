"""Finds the best workers, prefetch factor and batch size for a strategy within a time limit, and checks the gain."""

import itertools
import math
import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace

from vitprof import formats
from vitprof.analysis.arrays import UNKNOWN, Interval
from vitprof.analysis.tournament.entries import Entry, Outcome, trial_key
from vitprof.analysis.tournament.leaderboard import leaderboard
from vitprof.analysis.tournament.scores import LEAST_ROUNDS
from vitprof.analysis.tournament.tuning import Candidate, Tried, rungs, survivors
from vitprof.config import BUDGETS, PARTS, RunConfig, bounds, catalog, estimates
from vitprof.config.resolve import resolve
from vitprof.config.strategies import strategy
from vitprof.cores import job_cores
from vitprof.errors import ConfigError, JobError
from vitprof.experiments.tournament.planning import why_not_here
from vitprof.experiments.tournament.tournament_view import ended_run
from vitprof.experiments.trials import OnProgress, Progress, Stop, Trial, ignore, never, run_trials
from vitprof.jobs.manager import JobManager
from vitprof.program import program
from vitprof.store import RunGroup, role_of

MOST_SPAN = 16
"""The largest batch that is tried, as a multiple of the requested one; the smallest is a quarter of it."""
OTHER_BATCH = ". Another batch size also changes how the model learns: check the learning rate and the accuracy"
PREFETCH_FACTORS = (2, 4, 8)
LEAST_TRIED, LEAST_TRIED_FRAC = 3, 0.25
"""Least number of settings, and least share of all, that must have been tried before the best is named."""
DEFAULT_S = 240.0
CHECKS = LEAST_ROUNDS
"""How often winner and default are run again: with fewer runs their difference is hardly ever known."""
LEAST_S = 1.0
CHECK_SHARE = 1 / 3
LEAST_RUNS = 2
"""Least settings besides the default that are worth a check; with time for fewer, all of it goes into trying."""
OVERHEAD_S = {"process": 4.0, "thread": 0.3}
"""Seconds that a run takes besides its training, until the first one has shown it: a process has to import torch."""
WARMUP_STEPS = 2
"""Warm-up steps of a run: the default of five would be too many for one so short."""


@dataclass(frozen=True)
class Tuning:
    """The result of a search."""

    strategy: str
    default: Candidate
    """The strategy's own setting, or the requested one."""
    winner: Candidate
    """The best setting; the default where none was better."""
    config: RunConfig
    """The job with the setting to use: the winner's where it `gains`, else the default."""
    samples_per_s: float
    """Samples/s of the winner; NaN where nothing was measured."""
    gain: Interval
    """Samples/s of the winner over that of the default."""
    verified: bool
    """Whether winner and default were run again in turns, and the gain is from those runs alone."""
    tried: tuple[Tried, ...]
    n_candidates: int
    """Settings that could have been tried."""
    seconds: float
    """How long the search took."""
    stopped: bool
    """Whether it was stopped before its time was up."""

    @property
    def gains(self) -> bool:
        """Returns whether the winner is faster than the default for sure; only then it is offered."""
        return self.verified and self.gain.low > 1

    @property
    def enough(self) -> bool:
        """Returns whether enough was tried to name the best setting."""
        tried = len({t.candidate for t in self.tried}) >= enough_of(self.n_candidates)
        return (tried or self.gains) and math.isfinite(self.samples_per_s)

    @property
    def sentence(self) -> str:
        n = len({t.candidate for t in self.tried})
        default = candidate_in_words(self.default)
        of = f"{n} of {self.n_candidates} settings tried in {formats.seconds(self.seconds)}"
        if math.isnan(self.samples_per_s):
            return f"{self.strategy}: none of {of} gave a figure; give more time"
        if not self.enough:
            a_run_s = self.seconds / max(len(self.tried), 1)
            needs_s = seconds_for(enough_of(self.n_candidates), self.n_candidates, a_run_s)
            remedy = (
                "it was stopped" if self.stopped else f"give it about {estimates.about(needs_s)}"
            )
            return f"{self.strategy}: {of}, too few to name the best; {remedy}"
        if self.winner == self.default:
            return f"{self.strategy}: keep {default}; nothing was faster ({of})"
        winner = candidate_in_words(self.winner)
        (times, low, high) = self.gain
        spread = f"{times:.2f} times that of {default}" + (
            f" ({low:.2f} to {high:.2f})" if math.isfinite(low) else ""
        )
        if not self.gains:
            why = (
                f"{winner} has {spread}"
                if self.verified
                else f"the lead of {winner} was not checked"
            )
            return f"{self.strategy}: no gain found, keep {default}; {why} ({of})"
        learns = "" if self.winner.batch_size == self.default.batch_size else OTHER_BATCH
        speed = formats.number(self.samples_per_s, "samples/s")
        return f"{self.strategy}: {winner} reaches {speed}, {spread} ({of}){learns}"


def enough_of(n_candidates: int) -> int:
    """Returns how many of `n_candidates` settings must be tried before the best is named."""
    return min(n_candidates, max(LEAST_TRIED, math.ceil(n_candidates * LEAST_TRIED_FRAC)))


def candidate_in_words(candidate: Candidate) -> str:
    workers = candidate.workers
    prefetch = candidate.prefetch_factor
    made_by = "" if workers is None else f", {formats.count(workers, 'worker')}"
    return f"batch {candidate.batch_size}{made_by}{'' if prefetch is None else f', prefetch {prefetch}'}"


def run_command(config: RunConfig) -> str:
    """Returns the command line of `run` for this job, with all that differs from the defaults; without its budget."""
    words = ["run", "--strategy", config.strategy, "--batch-size", str(config.batch_size)]
    own = resolve(
        RunConfig(strategy=config.strategy, batch_size=config.batch_size, dataset=config.dataset)
    )
    left = (*BUDGETS, *PARTS, "strategy", "batch_size", "name", "warmup_steps", "evaluate")
    always = ("workers", "prefetch_factor")
    for f in fields(RunConfig):
        value = getattr(config, f.name)
        same = value in (getattr(own, f.name), f.default) and f.name not in always
        if f.name in left or value is None or same:
            continue
        flag = f.name.replace("_", "-")
        words += (
            [f"--{'' if value else 'no-'}{flag}"]
            if isinstance(value, bool)
            else [f"--{flag}", str(value)]
        )
    return f"{program()} {shlex.join(words)}"


def candidates(
    base: RunConfig, batch_sizes: Sequence[int] | None = None, workers: Sequence[int] | None = None
) -> list[Candidate]:
    """Returns what to try for the strategy of `base` that can run here: its own first, then those that differ least."""
    job = resolve(base)
    own = Candidate(job.workers, job.prefetch_factor, job.batch_size)
    info = catalog.dataset_info(base.dataset, base.n_images)
    chosen = strategy(base.strategy)
    taken = chosen.knobs(chosen.combination(info), info)
    b = own.batch_size
    cores = job_cores()
    sizes = batch_sizes or [
        n for n in (b // 4, b, b * 4, b * MOST_SPAN) if n and (n == b or n <= info.n_train // 4)
    ]
    counts: Sequence[int | None] = [None]
    if "workers" in taken:
        counts = workers or sorted({0, 1, cores, 2 * cores})
    factors: Sequence[int | None] = PREFETCH_FACTORS if "prefetch_factor" in taken else [None]
    if (n := len(sizes) * len(counts) * len(factors)) > bounds.MOST_TRIALS:
        many = f"that makes {n} settings to try; {bounds.MOST_TRIALS} are allowed"
        raise ConfigError("batch_sizes", len(sizes), many)
    options = [own]
    for size, count, factor in itertools.product(sizes, counts, factors):
        candidate = Candidate(count, factor if count != 0 or "workers" not in taken else None, size)
        if candidate not in options and _can_run(base, candidate):
            options.append(candidate)

    def how_different(c: Candidate) -> tuple[int, int, int, int]:
        changed = (
            (c.batch_size != b)
            + (c.workers != own.workers)
            + (c.prefetch_factor != own.prefetch_factor)
        )
        # With equally many changes, batch size comes first, then workers: they matter more than the prefetch factor.
        return changed, c.batch_size == b, c.workers == own.workers, -c.batch_size

    return [own, *sorted(options[1:], key=how_different)]


def with_candidate(base: RunConfig, candidate: Candidate) -> RunConfig:
    """Returns the job of `base` with this setting, resolved. Raises `ConfigError`."""
    return resolve(replace(base, **asdict(candidate)))


def _can_run(base: RunConfig, candidate: Candidate) -> bool:
    try:
        return not why_not_here(with_candidate(base, candidate))
    except ConfigError:
        return False


def settings_within(seconds: float, n_candidates: int, a_run_s: float) -> int:
    """Returns about how many of the settings a search of `seconds` will try if its shortest run takes `a_run_s`."""
    left_s = seconds - a_run_s
    steps = rungs(n_candidates, left_s - reserve_s(seconds, left_s, a_run_s), least_s=a_run_s)
    return steps[0].n if steps else 1


def seconds_for(n_tried: int, n_candidates: int, a_run_s: float) -> float:
    """Returns the least seconds, a multiple of ten, in which a search tries about `n_tried` settings."""
    return next(
        s
        for s in itertools.count(10.0, 10.0)
        if settings_within(s, n_candidates, a_run_s) >= n_tried
    )


def reserve_s(seconds: float, left_s: float, a_run_s: float) -> float:
    """Returns the seconds to keep for the check; 0 where they would leave too little time to try settings."""
    reserve_s = max(seconds * CHECK_SHARE, 2 * CHECKS * a_run_s)
    return reserve_s if left_s - reserve_s >= LEAST_RUNS * a_run_s else 0.0


def tune(
    manager: JobManager,
    base: RunConfig,
    seconds: float,
    *,
    batch_sizes: Sequence[int] | None = None,
    workers: Sequence[int] | None = None,
    progress: OnProgress = ignore,
    stop: Stop = never,
    clock: Callable[[], float] = time.monotonic,
) -> Tuning:
    """Searches for `seconds`, the start-up of runs included, or until `stop()`, and returns the best so far. Raises
    `ConfigError` where the strategy cannot be run here, `JobError` where no run gave a figure.
    """
    bounds.TUNING_S.check("time", seconds)
    if why := why_not_here(resolve(base)):
        raise ConfigError("strategies", base.strategy, why)
    return _Search(manager, base, seconds, stop, clock).run(
        candidates(base, batch_sizes, workers), progress
    )


class _Search:
    """A search in progress."""

    def __init__(
        self,
        manager: JobManager,
        base: RunConfig,
        seconds: float,
        stop: Stop,
        clock: Callable[[], float],
    ) -> None:
        self._manager = manager
        self._base = base
        self._stop = stop
        self._clock = clock
        self._began = clock()
        self._seconds = seconds
        self._overhead_s = OVERHEAD_S[base.isolation]
        self._tried: list[Tried] = []
        self._stopped = False
        self._alive: list[Candidate] = []
        """Settings that have not dropped out."""
        self._checks: dict[Candidate, list[Outcome]] = {}
        self._winner: Candidate | None = None
        self._run_id = 0

    def run(self, options: list[Candidate], progress: OnProgress) -> Tuning:
        default = options[0]
        self._alive = options
        group = RunGroup("autotune", f"{os.getpid()}-{time.time_ns()}").key
        trials = self._trials(options)

        def report(trial: Trial, run_id: int) -> None:
            known = [t.samples_per_s for t in self._tried if not math.isnan(t.samples_per_s)]
            fraction = min(1 - self._left_s() / self._seconds, 1.0)
            n = len({t.candidate for t in self._tried})
            words = f"{n} of {len(options)} settings tried; now {trial.words}"
            left_s = self._seconds * (1 - fraction)
            best = max(known, default=math.nan)
            progress(Progress(words, n, len(options), fraction, left_s, run_id, best_per_s=best))

        for _, run_id in run_trials(
            self._manager, trials, group, watch=report, stop=lambda: self._stopped or self._stop()
        ):
            self._run_id = run_id
            self._stopped |= self._manager.store.run(run_id).status == "stopped"
        self._stopped |= self._stop()
        winner = self._winner or self._best()
        gain, speed, verified = self._gain(default, winner)
        if verified and gain.value < 1:  # the search chose wrongly
            winner = default
            gain = Interval(1.0, 1.0, 1.0)
            speed = self._score(default)
        found = Tuning(
            strategy=self._base.strategy,
            default=default,
            winner=winner,
            config=with_candidate(self._base, default),
            samples_per_s=speed,
            gain=gain,
            verified=verified,
            tried=tuple(self._tried),
            n_candidates=len(options),
            seconds=self._clock() - self._began,
            stopped=self._stopped,
        )
        return replace(found, config=with_candidate(self._base, winner)) if found.gains else found

    def _trials(self, options: list[Candidate]) -> Iterator[Trial]:
        default = options[0]
        # shows what a run costs, and prepares the storage
        yield from self._train(default, LEAST_S, 1, "the default")
        yield from self._halve(options)
        winner = self._winner = self._best()
        if winner == default:
            return
        self._checks = {default: [], winner: []}
        # in turns: default, winner, winner, default, ...
        for n_run in range(2 * CHECKS):
            number = n_run // 2 + 1
            candidate = winner if (n_run + 1) // 2 % 2 else default
            left = 2 * CHECKS - n_run
            if self._left_s() < left * (self._overhead_s + LEAST_S) / 2:
                # half of the time that is needed: the last one may end a little late, but not all
                # of them
                return
            budget = max(self._left_s() / left - self._overhead_s, LEAST_S)
            yield from self._train(candidate, budget, 0, f"checking, round {number} of {CHECKS}")
            if math.isnan(self._tried[-1].samples_per_s):
                return
            summary, blocks, _, _ = ended_run(self._manager.store, self._run_id)
            self._checks[candidate].append(Outcome(number, self._run_id, "done", blocks, summary))

    def _halve(self, options: list[Candidate]) -> Iterator[Trial]:
        a_run_s = self._overhead_s + LEAST_S
        kept_s = reserve_s(self._seconds, self._left_s(), a_run_s)
        steps = rungs(len(options), self._left_s() - kept_s, least_s=a_run_s)
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

    def _train(
        self, candidate: Candidate, seconds: float, rung: int, words: str
    ) -> Iterator[Trial]:
        budget = {"epochs": None, "steps": None, "seconds": seconds}
        config = replace(self._base, **budget, evaluate=False, warmup_steps=WARMUP_STEPS)  # type: ignore[arg-type]
        name = candidate_in_words(candidate)
        yield Trial(with_candidate(config, candidate), role_of(name, rung), f"{words}: {name}")
        ended = self._manager.store.run(self._run_id)
        summary = ended.summary if ended.status == "done" else None
        speed = math.nan if summary is None else summary.samples_per_s
        self._tried.append(Tried(candidate, rung, self._run_id, speed, ended.error))
        first = len(self._tried) == 1
        if summary is not None and not (first and self._base.isolation == "thread"):
            # only the first run prepares the storage, and in a thread it also imports torch
            once_s = summary.prepare_s if first and math.isfinite(summary.prepare_s) else 0.0
            self._overhead_s = max(summary.wall_s - seconds - once_s, 0.05)

    def _best(self) -> Candidate:
        for group in (self._alive, [t.candidate for t in self._tried]):
            if scored := [c for c in group if not math.isnan(self._score(c))]:
                return max(scored, key=self._score)
        why = next((t.error for t in self._tried if t.error), "too few steps in the time given")
        raise JobError(
            f"nothing could be tuned: no run of {self._base.strategy} gave a figure ({why})"
        )

    def _gain(self, default: Candidate, winner: Candidate) -> tuple[Interval, float, bool]:
        """Returns the winner's gain, its samples/s, and whether both were run again in full."""
        if winner == default:
            return Interval(1.0, 1.0, 1.0), self._score(default), False
        if not self._checks or not all(
            len(outcomes) == CHECKS for outcomes in self._checks.values()
        ):
            return UNKNOWN, self._score(winner), False
        entries = [_entry(self._base.strategy, c, outcomes) for c, outcomes in self._checks.items()]
        row = leaderboard(entries, baseline=entries[0].key, n_train=0).row(entries[1].key)
        assert row is not None
        return Interval(row.speed_up, row.speed_up_low, row.speed_up_high), row.samples_per_s, True

    def _score(self, candidate: Candidate) -> float:
        known = (t.samples_per_s for t in reversed(self._tried) if t.candidate == candidate)
        return next((speed for speed in known if not math.isnan(speed)), math.nan)

    def _left_s(self) -> float:
        return self._seconds - (self._clock() - self._began)


def _entry(name: str, candidate: Candidate, outcomes: Sequence[Outcome]) -> Entry:
    size = candidate.batch_size
    workers = candidate.workers
    key = trial_key(name, size, workers, f"prefetch {candidate.prefetch_factor}")
    return Entry(
        key, name, size, workers, "as-is", tuple(outcomes), "done", "", math.nan, math.nan, math.nan
    )
