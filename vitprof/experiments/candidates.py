"""The settings that tuning a strategy chooses from, how many of them there is time for, and the result."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from vitprof import formats
from vitprof.analysis.bootstrap import Interval
from vitprof.analysis.tournament import Candidate
from vitprof.analysis.tournament.scores import LEAST_ROUNDS
from vitprof.analysis.tournament.tuning import Rung, rungs
from vitprof.config import BUDGETS, PARTS, RunConfig
from vitprof.config.bounds import MOST_TRIALS
from vitprof.config.catalog import dataset_info
from vitprof.config.estimates import about
from vitprof.config.resolve import resolve
from vitprof.config.strategies import strategy
from vitprof.errors import ConfigError
from vitprof.experiments.tournament.planning import why_not_here
from vitprof.program import program

MOST_SPAN = 16
"""The largest batch that is tried, as a multiple of the requested one; the smallest is a quarter of it."""
OTHER_BATCH = ". Another batch size also changes how the model learns: check the learning rate and the accuracy"
PREFETCH_FACTORS = (2, 4, 8)
LEAST_TRIED, LEAST_TRIED_FRAC = 3, 0.25
"""Least number of settings, and least share of all, that must have been tried before the best is named."""
DEFAULT_S = 240.0
"""Seconds of a search unless given: enough to name the best of the 40 settings of a DataLoader with workers."""
CHECKS = LEAST_ROUNDS
"""How often winner and default are run again: with fewer runs their difference is hardly ever known."""
LEAST_S = 1.0
"""Least seconds of training that say anything about a setting: 20 steps of 50 ms."""
CHECK_SHARE = 1 / 3
"""Share of the time for running winner and default again."""
LEAST_RUNS = 2
"""Least settings besides the default that are worth a check; with time for fewer, all of it goes into trying."""
OVERHEAD_S = {"process": 4.0, "thread": 0.3}
"""Seconds that a run takes besides its training, until the first one has shown it: a process has to import torch."""


@dataclass(frozen=True)
class Tried:
    """One run of the search."""

    candidate: Candidate
    rung: int
    """From 1; 0 for the runs that check the winner."""
    run_id: int
    samples_per_s: float
    """NaN where it failed, or had too few steps."""
    error: str


@dataclass(frozen=True)
class Tuning:
    """The result of a search."""

    strategy: str
    default: Candidate
    """The strategy's own setting, or the requested one."""
    winner: Candidate
    """The best setting; the default where none was better."""
    config: RunConfig
    """The job with the winner's setting."""
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
    def command(self) -> str:
        """Returns the command that runs the winner."""
        return run_command(self.config)

    @property
    def enough(self) -> bool:
        """Returns whether enough was tried to name the best setting."""
        tried = len({t.candidate for t in self.tried}) >= enough_of(self.n_candidates)
        return (tried or (self.verified and self.gain.low > 1)) and math.isfinite(self.samples_per_s)

    @property
    def needs_s(self) -> float:
        """Returns about how many seconds it takes to try and check enough, judged by this search's runs."""
        a_run_s = self.seconds / max(len(self.tried), 1)
        return seconds_for(enough_of(self.n_candidates), self.n_candidates, a_run_s)

    @property
    def sentence(self) -> str:
        """Returns what won, and by how much."""
        n = len({t.candidate for t in self.tried})
        of = f"{n} of {self.n_candidates} settings tried in {formats.seconds(self.seconds)}"
        if math.isnan(self.samples_per_s):
            return f"{self.strategy}: none of {of} gave a figure; give more time"
        if not self.enough:
            remedy = "it was stopped" if self.stopped else f"give it about {about(self.needs_s)}"
            return f"{self.strategy}: {of}, too few to name the best; {remedy}"
        if self.winner == self.default:
            return f"{self.strategy}: keep {candidate_in_words(self.default)}; nothing was faster ({of})"
        speed = formats.number(self.samples_per_s, "samples/s")
        result = f"{self.strategy}: {candidate_in_words(self.winner)} reaches {speed}"
        learns = "" if self.winner.batch_size == self.default.batch_size else OTHER_BATCH
        if not self.verified:
            return f"{result}; the gain over {candidate_in_words(self.default)} was not checked ({of}){learns}"
        gain = f"{self.gain.value:.2f} times that of {candidate_in_words(self.default)}"
        low, high = self.gain.low, self.gain.high
        spread = f" ({low:.2f} to {high:.2f})" if math.isfinite(low) and math.isfinite(high) else ""
        tie = "" if low > 1 or high < 1 else "; we cannot tell yet whether that is a gain"
        return f"{result}, {gain}{spread}{tie} ({of}){learns}"


def enough_of(n_candidates: int) -> int:
    """Returns how many of `n_candidates` settings must be tried before the best is named."""
    return min(n_candidates, max(LEAST_TRIED, math.ceil(n_candidates * LEAST_TRIED_FRAC)))


def candidate_in_words(candidate: Candidate) -> str:
    """Returns a setting in words: "batch 64, 2 workers, prefetch 4"."""
    workers, prefetch = candidate.workers, candidate.prefetch_factor
    parts = [
        f"batch {candidate.batch_size}",
        "" if workers is None else f"{workers} worker{'' if workers == 1 else 's'}",
        "" if prefetch is None else f"prefetch {prefetch}",
    ]
    return ", ".join(filter(None, parts))


def run_command(config: RunConfig) -> str:
    """Returns the command line of `run` for this job, with all that differs from the defaults; without its budget."""
    words = ["run", "--strategy", config.strategy, "--batch-size", str(config.batch_size)]
    own = resolve(RunConfig(strategy=config.strategy, batch_size=config.batch_size, dataset=config.dataset))
    left = (*BUDGETS, *PARTS, "strategy", "batch_size", "name", "warmup_steps", "evaluate")
    always = ("workers", "prefetch_factor")
    for f in dataclasses.fields(RunConfig):
        value = getattr(config, f.name)
        same = value in (getattr(own, f.name), f.default) and f.name not in always
        if f.name in left or value is None or same:
            continue
        flag = f.name.replace("_", "-")
        words += [f"--{'' if value else 'no-'}{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return f"{program()} {shlex.join(words)}"


def candidates(
    base: RunConfig, batch_sizes: Sequence[int] | None = None, workers: Sequence[int] | None = None
) -> list[Candidate]:
    """Returns the settings to try for the strategy of `base` that can run here: its own first, then the others, those
    that differ least first.

    `batch_sizes` and `workers` replace the values that are usually tried. Raises `ConfigError`, also for more than
    `MOST_TRIALS` settings.
    """
    own = _of(resolve(base))
    info, chosen = dataset_info(base.dataset, base.n_images), strategy(base.strategy)
    taken = chosen.knobs(chosen.combination(info), info)
    cores = os.cpu_count() or 1
    b = own.batch_size
    sizes = batch_sizes or [n for n in (b // 4, b, b * 4, b * MOST_SPAN) if n and (n == b or n <= info.n_train // 4)]
    counts: Sequence[int | None] = [None]
    if "workers" in taken:
        counts = workers or sorted({0, 1, cores, 2 * cores})
    factors: Sequence[int | None] = [None]
    if "prefetch_factor" in taken:
        factors = PREFETCH_FACTORS
    if (n := len(sizes) * len(counts) * len(factors)) > MOST_TRIALS:
        raise ConfigError("batch_sizes", len(sizes), f"that makes {n} settings to try; {MOST_TRIALS} are allowed")
    options = [own]
    for size, count, factor in itertools.product(sizes, counts, factors):
        with_prefetch = factor if count != 0 or "workers" not in taken else None
        candidate = Candidate(count, with_prefetch, size)
        if candidate not in options and not _why_not(base, candidate):
            options.append(candidate)

    def how_different(c: Candidate) -> tuple[int, int, int, int]:
        changed = (c.batch_size != b) + (c.workers != own.workers) + (c.prefetch_factor != own.prefetch_factor)
        # With equally many changes, batch size comes first, then workers: they matter more than the prefetch factor.
        return changed, c.batch_size == b, c.workers == own.workers, -c.batch_size

    return [own, *sorted(options[1:], key=how_different)]


def _of(config: RunConfig) -> Candidate:
    return Candidate(config.workers, config.prefetch_factor, config.batch_size)


def with_candidate(base: RunConfig, candidate: Candidate) -> RunConfig:
    """Returns the job of `base` with this setting, resolved. Raises `ConfigError`."""
    return resolve(
        dataclasses.replace(
            base,
            batch_size=candidate.batch_size,
            workers=candidate.workers,
            prefetch_factor=candidate.prefetch_factor,
        )
    )


def _why_not(base: RunConfig, candidate: Candidate) -> str:
    try:
        return why_not_here(with_candidate(base, candidate))
    except ConfigError as error:
        return str(error)


def settings_within(seconds: float, n_candidates: int, a_run_s: float) -> int:
    """Returns about how many of the settings a search of `seconds` will try if its shortest run takes `a_run_s`."""
    left_s = seconds - a_run_s
    steps = ladder(n_candidates, left_s - reserve_s(seconds, left_s, a_run_s), a_run_s)
    return steps[0].n if steps else 1


def seconds_for(n_tried: int, n_candidates: int, a_run_s: float) -> float:
    """Returns the least seconds, a multiple of ten, in which a search tries about `n_tried` settings."""
    return next(s for s in itertools.count(10.0, 10.0) if settings_within(s, n_candidates, a_run_s) >= n_tried)


def reserve_s(seconds: float, left_s: float, a_run_s: float) -> float:
    """Returns the seconds to keep for the check; 0 where they would leave too little time to try settings."""
    reserve_s = max(seconds * CHECK_SHARE, 2 * CHECKS * a_run_s)
    return reserve_s if left_s - reserve_s >= LEAST_RUNS * a_run_s else 0.0


def ladder(n_candidates: int, left_s: float, a_run_s: float) -> list[Rung]:
    """Returns the rungs for the time left, with runs of at least `a_run_s` each; none where nothing fits."""
    return rungs(n_candidates, left_s, least_s=a_run_s) if left_s > 0 else []
