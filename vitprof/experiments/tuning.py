"""Finds the best workers, prefetch factor and batch size for a strategy within a time limit, and checks
the gain.

The search is by successive halving (`vitprof.analysis.tournament.tuning`), by samples/s from end to end.
Then the winner and the strategy's own setting are run again in turns, so that the gain does not rest on
the runs that chose the winner.
"""

import itertools
import math
import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace

from vitprof import formats
from vitprof.analysis.arrays import UNKNOWN, Interval
from vitprof.analysis.faster import LEAST_ROUNDS
from vitprof.analysis.tournament.entries import Entry, Outcome, trial_key
from vitprof.analysis.tournament.leaderboard import leaderboard
from vitprof.analysis.tournament.tuning import Candidate, Tried, rungs, survivors
from vitprof.config import BUDGETS, PARTS, RunConfig, bounds, catalog, estimates
from vitprof.config.resolve import resolve
from vitprof.config.strategies import strategy
from vitprof.cores import job_cores
from vitprof.errors import ConfigError, JobError
from vitprof.experiments.tournament.planning import why_not_here
from vitprof.experiments.tournament.tournament_view import ended_outcome
from vitprof.experiments.trials import OnProgress, Progress, Stop, Trial, ignore, never, run_trials
from vitprof.jobs.manager import JobManager
from vitprof.program import program
from vitprof.store import RunGroup, role_of

MOST_SPAN = 16
"""The largest batch that is tried, as a multiple of the requested one; the smallest is a quarter of it."""
OTHER_BATCH = ". Another batch size also changes how the model learns: check the learning rate and the accuracy"
PREFETCH_FACTORS = (2, 4, 8)
LEAST_TRIED = 3
"""The least number of settings that must have been tried before the best is named."""
LEAST_TRIED_FRAC = 0.25
"""The least share of all settings that must have been tried before the best is named."""
DEFAULT_S = 240.0
"""Seconds of a search where the user gives none."""
CHECKS = LEAST_ROUNDS
"""How often winner and default are run again: with fewer runs their difference is hardly ever known."""
LEAST_S = 1.0
"""The least seconds of training in a run."""
CHECK_SHARE = 1 / 3
"""The share of the time that is kept for the check."""
LEAST_RUNS = 2
"""The least settings besides the default that are worth a check; with time for fewer, all of it goes into
trying."""
OVERHEAD_S = {"process": 4.0, "thread": 0.3}
"""Seconds that a run takes besides its training, until the first one has shown it: a process has to
import torch."""
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
        """Returns what won, and by how much."""
        return f"{self.strategy}: {self._outcome()}"

    def _outcome(self) -> str:
        n = len({t.candidate for t in self.tried})
        default = candidate_in_words(self.default)
        tried = f"{n} of {self.n_candidates} settings tried in {formats.seconds(self.seconds)}"
        if math.isnan(self.samples_per_s):
            return f"none of {tried} gave a figure; give more time"
        if not self.enough:
            return f"{tried}, too few to name the best; {self._remedy()}"
        if self.winner == self.default:
            return f"keep {default}; nothing was faster ({tried})"
        winner = candidate_in_words(self.winner)
        if not self.verified:
            why = f"the lead of {winner} was not checked"
            return f"no gain found, keep {default}; {why} ({tried})"
        times, low, high = self.gain
        spread = f"{times:.2f} times that of {default}"
        if math.isfinite(low):
            spread += f" ({low:.2f} to {high:.2f})"
        if not self.gains:
            return f"no gain found, keep {default}; {winner} has {spread} ({tried})"
        speed = formats.number(self.samples_per_s, "samples/s")
        outcome = f"{winner} reaches {speed}, {spread} ({tried})"
        if self.winner.batch_size != self.default.batch_size:
            outcome += OTHER_BATCH
        return outcome

    def _remedy(self) -> str:
        """Returns what to do where too few settings were tried."""
        if self.stopped:
            return "it was stopped"
        a_run_s = self.seconds / max(len(self.tried), 1)
        needs_s = seconds_for(enough_of(self.n_candidates), self.n_candidates, a_run_s)
        return f"give it about {estimates.about(needs_s)}"


def enough_of(n_candidates: int) -> int:
    """Returns how many of `n_candidates` settings must be tried before the best is named."""
    return min(n_candidates, max(LEAST_TRIED, math.ceil(n_candidates * LEAST_TRIED_FRAC)))


def candidate_in_words(candidate: Candidate) -> str:
    """Returns a setting in words: "batch 64, 2 workers, prefetch 4"."""
    words = [f"batch {candidate.batch_size}"]
    if candidate.workers is not None:
        words.append(formats.count(candidate.workers, "worker"))
    if candidate.prefetch_factor is not None:
        words.append(f"prefetch {candidate.prefetch_factor}")
    return ", ".join(words)


def run_command(config: RunConfig) -> str:
    """Returns the command line of `run` for this job, with all that differs from the defaults.

    Its budget is left out: the search's runs are short.
    """
    words = ["run", "--strategy", config.strategy, "--batch-size", str(config.batch_size)]
    own = resolve(
        RunConfig(strategy=config.strategy, batch_size=config.batch_size, dataset=config.dataset)
    )
    left_out = (*BUDGETS, *PARTS, "strategy", "batch_size", "name", "warmup_steps", "evaluate")
    always = ("workers", "prefetch_factor")
    for field in fields(RunConfig):
        name = field.name
        value = getattr(config, name)
        if name in left_out or value is None:
            continue
        if name not in always and value in (getattr(own, name), field.default):
            continue
        flag = name.replace("_", "-")
        if not isinstance(value, bool):
            words += [f"--{flag}", str(value)]
        elif value:
            words.append(f"--{flag}")
        else:
            words.append(f"--no-{flag}")
    return f"{program()} {shlex.join(words)}"


def candidates(
    base: RunConfig, batch_sizes: Sequence[int] | None = None, workers: Sequence[int] | None = None
) -> list[Candidate]:
    """Returns the settings to try for the strategy of `base` that can run here.

    Its own is first, then those that differ least. `batch_sizes` and `workers` replace the usual values.
    Raises `ConfigError` for too many.
    """
    job = resolve(base)
    own = Candidate(job.workers, job.prefetch_factor, job.batch_size)
    info = catalog.dataset_info(base.dataset, base.n_images)
    chosen = strategy(base.strategy)
    taken = chosen.knobs(chosen.combination(info), info)
    sizes = batch_sizes or _usual_sizes(own.batch_size, info.n_train)
    counts: Sequence[int | None] = [None]
    if "workers" in taken:
        cores = job_cores()
        counts = workers or sorted({0, 1, cores, 2 * cores})
    factors: Sequence[int | None] = [None]
    if "prefetch_factor" in taken:
        factors = PREFETCH_FACTORS
    n_settings = len(sizes) * len(counts) * len(factors)
    if n_settings > bounds.MOST_TRIALS:
        many = f"that makes {n_settings} settings to try; {bounds.MOST_TRIALS} are allowed"
        raise ConfigError("batch_sizes", len(sizes), many)
    options = [own]
    for size, count, factor in itertools.product(sizes, counts, factors):
        # without workers there is nothing to prefetch
        no_workers = "workers" in taken and count == 0
        candidate = Candidate(count, None if no_workers else factor, size)
        if candidate not in options and _can_run(base, candidate):
            options.append(candidate)

    def how_different(c: Candidate) -> tuple[int, int, int, int]:
        changes = [
            c.batch_size != own.batch_size,
            c.workers != own.workers,
            c.prefetch_factor != own.prefetch_factor,
        ]
        # With equally many changes, batch size comes first, then workers: they matter more than the
        # prefetch factor.
        same_size = c.batch_size == own.batch_size
        return sum(changes), same_size, c.workers == own.workers, -c.batch_size

    return [own, *sorted(options[1:], key=how_different)]


def _usual_sizes(own: int, n_train: int) -> list[int]:
    """Returns the batch sizes to try: the strategy's own, and others that give at least 4 steps an epoch."""
    sizes = (own // 4, own, own * 4, own * MOST_SPAN)
    return [size for size in sizes if size == own or 0 < size <= n_train // 4]


def with_candidate(base: RunConfig, candidate: Candidate) -> RunConfig:
    """Returns the job of `base` with this setting, resolved. Raises `ConfigError`."""
    return resolve(replace(base, **asdict(candidate)))


def _can_run(base: RunConfig, candidate: Candidate) -> bool:
    try:
        return not why_not_here(with_candidate(base, candidate))
    except ConfigError:
        return False


def settings_within(seconds: float, n_candidates: int, a_run_s: float) -> int:
    """Returns about how many of the settings a search of `seconds` will try if its shortest run takes
    `a_run_s`.
    """
    # the search begins with the default
    remaining_s = seconds - a_run_s
    trying_s = remaining_s - reserve_s(seconds, remaining_s, a_run_s)
    steps = rungs(n_candidates, trying_s, least_s=a_run_s)
    return steps[0].n if steps else 1


def seconds_for(n_tried: int, n_candidates: int, a_run_s: float) -> float:
    """Returns the least seconds, a multiple of ten, in which a search tries about `n_tried` settings."""
    return next(
        s
        for s in itertools.count(10.0, 10.0)
        if settings_within(s, n_candidates, a_run_s) >= n_tried
    )


def reserve_s(seconds: float, left_s: float, a_run_s: float) -> float:
    """Returns the seconds to keep for the check; 0 where they would leave too little to try settings.

    `left_s`: what remains of the `seconds` of the search. `a_run_s`: what its shortest run takes.
    """
    check_s = max(seconds * CHECK_SHARE, 2 * CHECKS * a_run_s)
    if left_s - check_s < LEAST_RUNS * a_run_s:
        return 0.0
    return check_s


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
    """Searches for `seconds`, the start-up of runs included, and returns the result.

    No run begins after that time, or once `stop()` returns true; the best so far is the result.
    `batch_sizes` and `workers` replace the usual values. Raises `ConfigError` where the strategy cannot
    be run here, `JobError` where no run gave a figure.
    """
    bounds.TUNING_S.check("time", seconds)
    why_not = why_not_here(resolve(base))
    if why_not:
        raise ConfigError("strategies", base.strategy, why_not)
    search = _Search(manager, base, seconds, stop, clock)
    return search.run(candidates(base, batch_sizes, workers), progress)


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
        """The runs of default and winner that check the gain."""
        self._winner: Candidate | None = None
        self._run_id = 0
        """The run that ended last."""

    def run(self, options: list[Candidate], progress: OnProgress) -> Tuning:
        """Tries the `options`, the default first, and returns the result."""
        default = options[0]
        self._alive = options
        group = RunGroup("autotune", f"{os.getpid()}-{time.time_ns()}").key
        trials = self._trials(options)

        def report(trial: Trial, run_id: int) -> None:
            known = [t.samples_per_s for t in self._tried if not math.isnan(t.samples_per_s)]
            fraction = min(1 - self._remaining_s() / self._seconds, 1.0)
            n = len({t.candidate for t in self._tried})
            words = f"{n} of {len(options)} settings tried; now {trial.words}"
            remaining_s = self._seconds * (1 - fraction)
            best = max(known, default=math.nan)
            progress(
                Progress(words, n, len(options), fraction, remaining_s, run_id, best_per_s=best)
            )

        def is_stopped() -> bool:
            return self._stopped or self._stop()

        for _, run_id in run_trials(self._manager, trials, group, watch=report, stop=is_stopped):
            self._run_id = run_id
            # by the user, who stops one run to stop the search
            if self._manager.store.run(run_id).status == "stopped":
                self._stopped = True
        self._stopped = is_stopped()
        winner = self._winner or self._best()
        gain, speed, verified = self._gain(default, winner)
        if verified and gain.value < 1:
            # the search was led astray: the check counts
            winner = default
            gain = Interval(1.0, 1.0, 1.0)
            speed = self._score(default)
        result = Tuning(
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
        if result.gains:
            return replace(result, config=with_candidate(self._base, winner))
        return result

    def _trials(self, options: list[Candidate]) -> Iterator[Trial]:
        """Yields the runs: of the default, of the rungs for which there is time, and of default and
        winner in turns.
        """
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
            n_remaining = 2 * CHECKS - n_run
            needed_s = n_remaining * (self._overhead_s + LEAST_S)
            # half of it: the last one may end a little late, but not all of them
            if self._remaining_s() < needed_s / 2:
                return
            budget_s = max(self._remaining_s() / n_remaining - self._overhead_s, LEAST_S)
            yield from self._train(candidate, budget_s, 0, f"checking, round {number} of {CHECKS}")
            if math.isnan(self._tried[-1].samples_per_s):
                return
            outcome = ended_outcome(self._manager.store, self._run_id, number, "done")
            self._checks[candidate].append(outcome)

    def _halve(self, options: list[Candidate]) -> Iterator[Trial]:
        """Yields the runs of each rung; after it, only the better settings stay in `_alive`."""
        a_run_s = self._overhead_s + LEAST_S
        check_s = reserve_s(self._seconds, self._remaining_s(), a_run_s)
        steps = rungs(len(options), self._remaining_s() - check_s, least_s=a_run_s)
        n_first = steps[0].n if steps else 1
        self._alive = options[:n_first]
        for number, rung in enumerate(steps, 1):
            for candidate in self._alive:
                if self._remaining_s() - check_s < a_run_s:
                    break
                if number == 1 and candidate == options[0] and self._score(candidate) > 0:
                    continue  # the search began with it
                budget_s = max(rung.seconds - self._overhead_s, LEAST_S)
                words = f"rung {number} of {len(steps)}"
                yield from self._train(candidate, budget_s, number, words)
            scores = [self._score(candidate) for candidate in self._alive]
            self._alive = [self._alive[i] for i in survivors(scores)]

    def _train(
        self, candidate: Candidate, seconds: float, rung: int, words: str
    ) -> Iterator[Trial]:
        """Yields one run, and notes its outcome once it has ended."""
        budget = {"epochs": None, "steps": None, "seconds": seconds}
        config = replace(self._base, **budget, evaluate=False, warmup_steps=WARMUP_STEPS)  # type: ignore[arg-type]
        name = candidate_in_words(candidate)
        yield Trial(with_candidate(config, candidate), role_of(name, rung), f"{words}: {name}")
        ended = self._manager.store.run(self._run_id)
        summary = ended.summary if ended.status == "done" else None
        speed = math.nan if summary is None else summary.samples_per_s
        self._tried.append(Tried(candidate, rung, self._run_id, speed, ended.error))
        is_first = len(self._tried) == 1
        # in a thread the first run also imports torch
        if summary is None or (is_first and self._base.isolation == "thread"):
            return
        # what only the first run does: it prepares the storage
        once_s = 0.0
        if is_first and math.isfinite(summary.prepare_s):
            once_s = summary.prepare_s
        self._overhead_s = max(summary.wall_s - seconds - once_s, 0.05)

    def _best(self) -> Candidate:
        """Returns the fastest setting of those that have not dropped out, otherwise of all.

        Raises `JobError` where no run gave a figure.
        """
        # those that are left were measured longest, so they come before those that dropped out
        for group in (self._alive, [t.candidate for t in self._tried]):
            scored = [c for c in group if not math.isnan(self._score(c))]
            if scored:
                return max(scored, key=self._score)
        why = next((t.error for t in self._tried if t.error), "too few steps in the time given")
        raise JobError(
            f"nothing could be tuned: no run of {self._base.strategy} gave a figure ({why})"
        )

    def _gain(self, default: Candidate, winner: Candidate) -> tuple[Interval, float, bool]:
        """Returns the winner's gain, its samples/s, and whether both were run again in full."""
        if winner == default:
            return Interval(1.0, 1.0, 1.0), self._score(default), False
        n_checks = [len(outcomes) for outcomes in self._checks.values()]
        if n_checks != [CHECKS, CHECKS]:
            return UNKNOWN, self._score(winner), False
        entries = [_entry(self._base.strategy, c, outcomes) for c, outcomes in self._checks.items()]
        row = leaderboard(entries, baseline=entries[0].key, n_train=0).row(entries[1].key)
        assert row is not None
        return Interval(row.speed_up, row.speed_up_low, row.speed_up_high), row.samples_per_s, True

    def _score(self, candidate: Candidate) -> float:
        """Returns samples/s of the candidate's latest run that gave a figure; NaN without one."""
        speeds = (t.samples_per_s for t in reversed(self._tried) if t.candidate == candidate)
        return next((speed for speed in speeds if not math.isnan(speed)), math.nan)

    def _remaining_s(self) -> float:
        return self._seconds - (self._clock() - self._began)


def _entry(name: str, candidate: Candidate, outcomes: Sequence[Outcome]) -> Entry:
    size = candidate.batch_size
    workers = candidate.workers
    key = trial_key(name, size, workers, f"prefetch {candidate.prefetch_factor}")
    return Entry(
        key, name, size, workers, "as-is", tuple(outcomes), "done", "", math.nan, math.nan, math.nan
    )
