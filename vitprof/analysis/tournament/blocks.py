"""The blocks of a run: neighbouring steps with equally many samples, and whether other programs
disturbed them.

A tournament compares speeds by blocks (`analysis.faster`). A block is short, so that a fit of half
a second of another program does not cost a whole round. It holds a whole period of what a loader
does by itself, so that blocks are alike.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitprof.analysis import arrays, faster, thresholds
from vitprof.analysis.arrays import Floats, Mask, Series
from vitprof.analysis.faster_while_busy import BusyRun
from vitprof.analysis.timing.steady import steady_state, while_steady, whole_epochs
from vitprof.analysis.tournament.entries import OUT_OF_THE_RACE, Entry, RunOutcome

LEAST_BLOCK_S = 0.5
"""Seconds of a block at least where there are more than 20: two samples of the telemetry, which
comes five times a second, are in it."""
MOST_BLOCKS = 40
"""Blocks of a run at most."""
WAITED_FRAC = 0.02
"""Share of a block in which some thread waited for a core, from which other programs can have
disturbed it: on a machine with idle cores they take nothing from the job."""
LEAST_KNOWN_FRAC = 0.5
"""Share of a block that telemetry must cover: of less it is not known who else ran."""

REGULAR = 0.5
"""Autocorrelation from which steps that are `period` apart are alike for a reason, such as a
recurring stall of the loader. Of 2,000 runs of 400 unrelated steps none had such a peak beyond a
block's length (log-normal, exponential, one in ten stalled; one in 40 stalled: 0.05%; a machine
busy in bursts: 0.2%). With a stall every 8th to 64th step of 400, all had one."""
SURE_SIGMAS = 4.5
"""Standard errors (1 / sqrt(n), for unrelated steps) by which it must also be above 0, which
matters for few steps."""
MOST_LONGER = 3.0
"""How far above the median a step counts at most, in medians: the longest stall must not hide the
others."""
LEAST_PERIODS = 4
"""Periods that a run must contain for one to be found."""
LEAST_QUEUES = 4
"""Times the change of the loader's queue that a block must contain at least. After the loop was
held up it takes from the queue what was made meanwhile, faster than the loader can go on: over a
block of so many steps about 1 / 4 faster at most. A run that is too short for four such blocks has
four all the same, and they may be further above."""

NO_BLOCKS = np.empty(0)


@dataclass(frozen=True, slots=True)
class RunBlocks:
    """The blocks of a run, in order. All have the same number of samples."""

    per_s: Floats
    """(n,) samples/s."""
    samples: float
    """Samples of each."""
    begin_s: Floats
    """(n,) when each began, on the monotonic clock; NaN where that is not known."""
    end_s: Floats
    """(n,) when each ended."""


NONE = RunBlocks(NO_BLOCKS, 0.0, NO_BLOCKS, NO_BLOCKS)


def period(seconds: Floats) -> int:
    """Returns the number of steps after which step times (n,) repeat, 1 if they do not.

    It is the lag of the highest peak of the autocorrelation after its first dip below 0 (Box and
    Jenkins, Time Series Analysis, chapter 2): a correlation that only fades with the lag is not a
    period.
    """
    n = len(seconds)
    most = n // LEAST_PERIODS
    if most < 2:
        return 1
    longer = np.clip(seconds / np.median(seconds) - 1, 0, MOST_LONGER)
    longer -= longer.mean()
    spectrum = np.fft.rfft(longer, 2 * n)
    correlation = np.fft.irfft(spectrum * np.conj(spectrum))[: most + 1]
    if not correlation[0] > 0:
        return 1
    alike = correlation / correlation[0] * n / (n - np.arange(most + 1))
    dips = np.flatnonzero(alike < 0)
    if not len(dips):
        return 1
    first = int(dips[0])
    peak = alike[first:].max()
    # its multiples are as high, apart from noise
    lag = first + int(np.argmax(alike[first:] >= 0.9 * peak))
    return lag if peak >= max(REGULAR, SURE_SIGMAS / np.sqrt(n)) else 1


def queue_swing(queue_depth: Floats) -> int:
    """Returns by how many batches the queue of a loader changed over a run's steps (n,), 0 for a
    loader without one.

    The lowest and the highest twentieth of the depths do not count, so that a long run may fill its
    queue once.
    """
    depths = arrays.known(queue_depth)
    if not len(depths):
        return 0
    return int(np.ceil(np.quantile(depths, 0.95) - np.quantile(depths, 0.05)))


def run_blocks(steps: Series) -> RunBlocks:
    """Returns up to 40 blocks of neighbouring steady steps; none without steady steps.

    All blocks have the same number of samples, so their harmonic mean is samples over time of all
    steady steps. If step times repeat (a stall with every n-th batch), a block is at least a whole
    period, and there are fewer blocks; likewise where the loader's queue fills and empties
    (`queue_swing`), unless the loop hardly waits for data.
    """
    steady = steady_state(steps) & np.isfinite(steps["step_s"]) & (steps["samples"] > 0)
    seconds = steps["step_s"][steady]
    samples = steps["samples"][steady]
    if not len(seconds):
        return NONE
    n = _how_many({name: values[steady] for name, values in steps.items()})
    made = np.concatenate([[0.0], np.cumsum(samples)])
    passed = np.concatenate([[0.0], np.cumsum(seconds)])
    edges = np.linspace(0, made[-1], n + 1)
    at = np.interp(edges, made, passed)
    took = np.diff(at)
    begin_s, end_s = _on_the_clock(steps, steady, at, passed)
    whole = took > 0
    per_block = float(made[-1] / n)
    return RunBlocks(per_block / took[whole], per_block, begin_s[whole], end_s[whole])


def _how_many(steady: Series) -> int:
    seconds = steady["step_s"]
    total_s = float(seconds.sum())
    n = min(MOST_BLOCKS, max(arrays.BOOTSTRAP_BLOCKS, int(total_s / LEAST_BLOCK_S)))
    n = min(n, len(seconds) // period(seconds))
    if np.nansum(steady["data_wait_s"]) > thresholds.MODERATE_FRAC * total_s:
        least = max(1, LEAST_QUEUES * queue_swing(steady["queue_depth"]))
        n = min(n, max(arrays.MIN_BLOCKS, len(seconds) // least))
    return n


def _on_the_clock(steps: Series, steady: Mask, at: Floats, passed: Floats) -> tuple[Floats, Floats]:
    """Returns when blocks began and ended. `at`, (n + 1,), are their edges in seconds of steady
    steps; `passed` are the seconds of steady steps at the steps' edges. A block that evaluation or
    the start of an epoch interrupts goes on after that.
    """
    if "t_start_s" not in steps:
        unknown = np.full(len(at) - 1, math.nan)
        return unknown, unknown
    start_s = steps["t_start_s"][steady]
    at_begin = np.clip(np.searchsorted(passed, at[:-1], side="right") - 1, 0, len(start_s) - 1)
    at_end = np.clip(np.searchsorted(passed, at[1:], side="left") - 1, 0, len(start_s) - 1)
    begin_s = start_s[at_begin] + at[:-1] - passed[at_begin]
    end_s = start_s[at_end] + at[1:] - passed[at_end]
    return np.asarray(begin_s), np.asarray(end_s)


def over_epochs(steps: Series) -> float:
    """Returns samples/s over whole epochs as a multiple of that of the steady steps; NaN without a
    second epoch."""
    if not np.diff(steps["epoch"]).any():
        return math.nan
    keep = steady_state(steps)
    if not keep.any():
        return math.nan
    return _weighted_per_s(steps, whole_epochs(steps)) / _weighted_per_s(steps, keep.astype(float))


def _weighted_per_s(steps: Series, weights: Floats) -> float:
    return float((steps["samples"] * weights).sum() / np.nansum(steps["step_s"] * weights))


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What other programs did during each block of a run."""

    others_cores: Floats
    """(n,) CPU cores that they took, on average; NaN where telemetry does not say."""
    disturbed: Mask
    """(n,) whether that disturbed the block. False where it is not known: such a block counts."""


def disturbance(
    blocks: RunBlocks, telemetry: Series, environment: Mapping[str, Any]
) -> Disturbance:
    """Returns who else ran during the blocks, from telemetry (`DISTURBANCE_COLUMNS`).

    A block is disturbed if other programs took `OTHERS_CORES` or more in it, and somebody waited
    for a core then: threads of the job (the run queue), or anybody by the kernel's count of CPU
    pressure. Where neither was counted, other programs' CPU time decides alone. Telemetry that is
    absent, or too coarse for a block, disturbs nothing.
    """
    cores = float(environment.get("cpu_count") or math.nan)
    t_s = telemetry["t_s"]
    others = (telemetry["cpu_pct"] * cores - telemetry["job_cpu_pct"]) / 100
    others_cores = _mean_in(blocks, t_s, others)
    waited = np.fmax(
        _mean_in(blocks, t_s, arrays.column(telemetry, "job_cpu_wait_pct") / 100),
        _mean_in(blocks, t_s, arrays.column(telemetry, "cpu_pressure_pct") / 100),
    )
    disturbed = (others_cores >= thresholds.OTHERS_CORES) & ~(waited < WAITED_FRAC)
    return Disturbance(others_cores, np.asarray(disturbed))


DISTURBANCE_COLUMNS = ("t_s", "cpu_pct", "job_cpu_pct", "job_cpu_wait_pct", "cpu_pressure_pct")
"""Telemetry columns that `disturbance` needs."""


def _mean_in(blocks: RunBlocks, t_s: Floats, values: Floats) -> Floats:
    """Returns the mean of a telemetry column over each block, NaN where too little is known. A
    value is of the time since the sample before.
    """
    if len(t_s) < 2:
        return np.full(len(blocks.per_s), math.nan)
    span_s = np.diff(t_s)
    known = np.isfinite(values[1:])
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, values[1:], 0.0) * span_s)])
    covered_s = np.concatenate([[0.0], np.cumsum(np.where(known, span_s, 0.0))])

    def between(cumulated: Floats) -> Floats:
        ends = np.interp(blocks.end_s, t_s, cumulated)
        return np.asarray(ends - np.interp(blocks.begin_s, t_s, cumulated))

    known_s = between(covered_s)
    enough = known_s >= LEAST_KNOWN_FRAC * (blocks.end_s - blocks.begin_s)
    enough &= known_s > 0
    return np.where(enough, between(sums) / np.where(enough, known_s, 1.0), math.nan)


def usable(blocks: Floats) -> Floats:
    return np.asarray(blocks[_is_usable(blocks)], dtype=np.float64)


def _is_usable(blocks: Floats) -> Mask:
    return np.asarray(np.isfinite(blocks) & (blocks > 0))


def counts(run: RunOutcome) -> bool:
    """Returns whether a run gave a figure, and did not fail."""
    return run.status not in OUT_OF_THE_RACE and len(usable(run.blocks_per_s)) > 0


def undisturbed(run: RunOutcome) -> faster.RunBlocks:
    """Returns the blocks of a run that other programs did not disturb."""
    keep = _is_usable(run.blocks_per_s)
    if len(run.disturbed):
        keep &= ~run.disturbed
    return _blocks(run, keep)


def all_blocks(run: RunOutcome) -> faster.RunBlocks:
    return _blocks(run, _is_usable(run.blocks_per_s))


def _blocks(run: RunOutcome, keep: Mask) -> faster.RunBlocks:
    per_s = run.blocks_per_s[keep]
    samples = np.full(len(per_s), run.block_samples)
    return faster.RunBlocks(samples, samples / per_s)


@dataclass(frozen=True, slots=True)
class CountedSpeed:
    """What a run adds to the figure of its setting."""

    per_s: float = math.nan
    """samples/s of what counts of it; NaN where its round does not count, or it gave no figure."""
    left_out_frac: float = math.nan
    """Share of its time that does not count, as other programs disturbed it; NaN without a figure."""


def counted_speed(run: RunOutcome) -> CountedSpeed:
    """Returns what a run adds to the figure of its setting, which is all samples over all time of them
    (before `faster.in_all_rounds`).
    """
    if not counts(run):
        return CountedSpeed()
    kept = undisturbed(run)
    all_s = float(all_blocks(run).seconds.sum())
    if is_spoiled(run):
        return CountedSpeed(left_out_frac=1.0)
    return CountedSpeed(kept.per_s, 1 - float(kept.seconds.sum()) / all_s)


def is_spoiled(run: RunOutcome) -> bool:
    """Returns whether other programs disturbed so much of a run that too few blocks are left for
    its round to count. A run that was too short for four blocks from the start is not: more of the
    same length would not help.
    """
    left = len(undisturbed(run).seconds)
    return left < min(arrays.MIN_BLOCKS, len(all_blocks(run).seconds))


def spoiled(entry: Entry) -> dict[int, float]:
    """Returns the rounds of a setting that do not count -> the cores that other programs used then.
    Such a round is run again. A slow round without other programs counts: it may be the setting's
    own fault.
    """
    runs = {o.round: o for o in entry.outcomes if counts(o)}
    return {number: o.others_cores for number, o in sorted(runs.items()) if is_spoiled(o)}


def rounds_of(entry: Entry) -> dict[int, faster.RunBlocks]:
    """Returns the undisturbed blocks of a setting's runs that count, by round; if a round has two
    runs, the later's."""
    runs = {o.round: undisturbed(o) for o in entry.outcomes if counts(o) and not is_spoiled(o)}
    return dict(sorted(runs.items()))


def all_rounds_of(entry: Entry) -> dict[int, faster.RunBlocks]:
    """Returns the same with what other programs disturbed: what there is to show where nothing else
    is left."""
    runs = {o.round: all_blocks(o) for o in entry.outcomes if counts(o)}
    return dict(sorted(runs.items()))


def whole_runs_of(entry: Entry) -> dict[int, BusyRun]:
    """Returns a setting's whole runs, by round, with what other programs did meanwhile; without
    those that were cut short."""
    return {o.round: _whole(o) for o in entry.outcomes if counts(o) and o.status == "done"}


def _whole(run: RunOutcome) -> BusyRun:
    blocks = all_blocks(run)
    n_steps = len(blocks.seconds)
    if run.summary is not None:
        n_steps = run.summary.n_steady_steps
    return BusyRun(
        per_s=blocks.per_s,
        n_steps=n_steps,
        others_cores=run.others_cores,
        cores=run.cores,
        node=run.node,
        waited=run.waited,
    )


def core_waits(steps: Series, telemetry: Series) -> float:
    """Returns how many threads of a job waited for a core in its steady state, on average; NaN where
    that was not counted. `steps` needs t_start_s, epoch and warmup; `telemetry` t_s and
    job_cpu_wait_pct."""
    inside = while_steady(steps, telemetry["t_s"])
    return arrays.mean(arrays.column(telemetry, "job_cpu_wait_pct")[inside]) / 100


def cores_for_all(environment: Mapping[str, Any]) -> float:
    """Returns the cores of the machine that a run was on; NaN where its job might use only a part of
    them, or that is not known."""
    cores = environment.get("cpu_count")
    of_job = environment.get("job_cpu_count")
    if not cores or not of_job or of_job < cores:
        return math.nan
    return float(cores)
