"""Where the time of making a batch goes (stages, workers, transforms), and for how much of it the device idled."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vitprof import formats
from vitprof.analysis import arrays, intervals, thresholds
from vitprof.analysis.arrays import Floats, Interval, Ints, Mask, Series, column, known, mean
from vitprof.analysis.timing import core_waits
from vitprof.analysis.timing.gaps import Gaps, RunGaps, excess_of_starts_s
from vitprof.analysis.timing.steady import (
    epoch_starts,
    first_of_epoch,
    steady_state,
    whole_epochs,
)
from vitprof.config import RunConfig, own_script
from vitprof.config.parts import LOADERS
from vitprof.recording import columns, verdict

STAGE_WORDS: dict[str, str] = {
    "sampler": "sampler",
    "read": "reading",
    "decode": "decoding",
    "transform": "transforms",
    "collate": "collating",
    "rest": "Python between the stages",
    "hand_over": "hand-over",
}
"""Stage of loading, or the rest of the time -> its name in a sentence."""
OF_OWN_SCRIPTS = STAGE_WORDS | {"read": "dataset"}
"""The same of a user's own script, whose Dataset reads and decodes at once."""


def stage_words(config: RunConfig) -> dict[str, str]:
    """Returns what the stages of loading are called in a run with this config."""
    return OF_OWN_SCRIPTS if own_script.is_own_script(config) else STAGE_WORDS


@dataclass(frozen=True)
class StageTime:
    """One stage of loading a batch, or the rest of the time."""

    name: str
    words: str
    ms: Interval
    """Mean milliseconds a batch, with its 95% interval; NaN if the loader cannot tell."""
    frac: float
    """Share of the known loading time of a batch; NaN if `ms` is."""


@dataclass(frozen=True)
class Loading:
    """Where the loading time of a batch goes: the sampler, making it (its stages and the rest), handing it over."""

    n: int
    """Batches behind the figures: steps whose loader could tell anything."""
    stages: tuple[StageTime, ...]
    """One for each of `STAGE_WORDS`, in that order."""
    busy_frac: float
    """Share of the time that it was making batches, 0 to 1; near 1 it is the bottleneck."""
    queue_depth: float
    """Mean number of batches that were ready when the loop asked; NaN if there is no queue."""
    queue_empty_frac: float
    """Share of the batches for which none was ready when the loop asked, 0 to 1; NaN if there is no queue."""
    largest: str
    """The largest stage in words ("reading", "decoding", ...); empty if no stage is known."""


def loading_of(steps: Series, config: RunConfig) -> Loading:
    """Returns the stages of a batch's loading time over the steady state of a run; `config` is
    resolved.

    Threads fill each batch together. Their measured stages are thread-seconds, which may add up to
    more than the time from start to end of a batch, and the rest of that time is not known (NaN).
    """
    threads = config.loader == "threads"
    makers = max(1, config.workers or 1) if config.loader in ("dataloader", "threads") else 1
    keep = steady_state(steps)
    made = np.maximum(steps["made_end_s"][keep] - steps["made_start_s"][keep], 0.0)
    per_batch: dict[str, Floats] = {
        name: column(steps, f"{name}_s")[keep]
        for name in ("sampler", *columns.TIMED_STAGES, "hand_over")
    }
    worked = _added(per_batch[name] for name in columns.TIMED_STAGES)
    # Clocks are read one after the other: the stages may pass the whole by a microsecond.
    per_batch["rest"] = np.full_like(made, np.nan) if threads else np.maximum(made - worked, 0.0)
    timed = {name: 1e3 * known(per_batch[name]) for name in STAGE_WORDS}
    ms = {
        name: intervals.ratio_interval(values, np.ones(len(values)))
        for name, values in timed.items()
    }
    total_ms = math.fsum(i.value for i in ms.values() if math.isfinite(i.value))
    stages = tuple(
        StageTime(n, words, ms[n], ms[n].value / (total_ms or math.nan))
        for n, words in stage_words(config).items()
    )
    depth = known(steps["queue_depth"][keep])
    making = worked if threads else made
    step_s = float(np.nansum(steps["step_s"][keep][np.isfinite(making)]))
    busy = (
        float(np.nansum(making)) / (makers * step_s)
        if step_s > 0 and np.isfinite(made).any()
        else math.nan
    )
    return Loading(
        n=int(np.isfinite(list(per_batch.values())).any(axis=0).sum()),
        stages=stages,
        busy_frac=min(busy, 1.0) if math.isfinite(busy) else math.nan,
        queue_depth=mean(depth),
        queue_empty_frac=float((depth == 0).mean()) if len(depth) else math.nan,
        largest=max((s for s in stages if s.frac > 0), key=lambda s: s.frac).words
        if total_ms > 0
        else "",
    )


def _added(stages: Iterable[Floats]) -> Floats:
    return np.asarray(sum(map(np.nan_to_num, stages)))


@dataclass(frozen=True)
class WorkerTime:
    """The batches of one worker process, over the chosen steps."""

    worker: int
    n_batches: int
    made_s: float
    made_p95_s: float
    busy_frac: float
    """Share of the time that it was making batches, 0 to 1. Near 1 for all workers: use more of
    them, or give them less work."""


def by_worker(steps: Series, keep: Mask) -> tuple[WorkerTime, ...]:
    """Returns one entry for each worker process that made a batch of the steps in `keep`, (n,) bool; or none."""
    made = steps["made_end_s"] - steps["made_start_s"]
    timed = keep & np.isfinite(steps["worker"]) & np.isfinite(made)
    span_s = float(np.nansum(steps["step_s"][timed]))
    workers = []
    for worker in np.unique(steps["worker"][timed]):
        took = made[timed & (steps["worker"] == worker)]
        busy = min(float(took.sum()) / span_s, 1.0) if span_s > 0 else math.nan
        workers.append(
            WorkerTime(
                int(worker), len(took), float(np.median(took)), float(np.percentile(took, 95)), busy
            )
        )
    return tuple(workers)


MOST_TRANSFORMS = 6
"""Transforms that a sentence names at most."""


@dataclass(frozen=True)
class TransformTime:
    """One transform of the Composes that the training data go through."""

    name: str
    """Its class, or the name of its function; a second one of the same name is "Normalize (2)"."""
    s_per_sample: float
    """Mean seconds a sample in the batches after the warm-up, on the clock of the process that makes them."""
    calls: int
    """How often the Compose was called for these batches."""
    frac: float
    """Share of the time of all transforms, 0 to 1; NaN if they take no time."""
    without_waits: core_waits.Bounds
    """Its seconds a sample, and what they would be if each thread always had a core."""
    cpu_s_per_sample: float = math.nan
    """CPU time of all threads of its process meanwhile; NaN where that is not known."""


def transform_times(facts: Mapping[str, Any]) -> tuple[TransformTime, ...]:
    """Returns the fact "transforms", name -> {"s_per_sample", "calls"}, in the order of the Compose; empty without."""
    transforms = facts.get("transforms")
    times = {
        name: one
        for name, one in (transforms.items() if isinstance(transforms, Mapping) else ())
        if isinstance(one, Mapping)
        and one.get("s_per_sample") is not None
        and one.get("calls") is not None
    }
    whole_s = math.fsum(float(one["s_per_sample"]) for one in times.values())
    return tuple(_transform_time(name, one, whole_s) for name, one in times.items())


def _transform_time(name: str, one: Mapping[str, Any], whole_s: float) -> TransformTime:
    took_s = float(one["s_per_sample"])
    # waits are rare and long: calls that were not looked at may have had more of them
    looked_s = one.get("looked_s_per_sample")
    unseen_s = 0.0 if looked_s is None else max(0.0, took_s - float(looked_s))
    return TransformTime(
        name,
        took_s,
        int(one["calls"]),
        frac=took_s / whole_s if whole_s > 0 else math.nan,
        without_waits=core_waits.bounds_of(
            took_s,
            float(one.get("queued_s_per_sample") or 0.0),
            float(one.get("threads_queued_s_per_sample") or 0.0) + unseen_s,
        ),
        cpu_s_per_sample=float(one.get("cpu_s_per_sample") or math.nan),
    )


def heaviest(transforms: Sequence[TransformTime]) -> TransformTime | None:
    """Returns the transform that takes longest; None if none takes any time, and where another one may take longest
    if each thread had a core."""
    times = {t.name: t.without_waits for t in transforms if t.frac > 0}
    name = core_waits.surely_longest(times)
    return next((t for t in transforms if t.name == name), None)


def why_unreliable(transforms: Sequence[TransformTime]) -> str:
    """Returns why the shares of the transforms are not what they are on a quiet machine, in a sentence; "" where they
    are."""
    known = [t for t in transforms if t.frac > 0]
    if not known or heaviest(known) is not None:
        return ""
    most = max(known, key=lambda t: t.without_waits.took - t.without_waits.at_least)
    waited = formats.percent(most.without_waits.lost_frac)
    whose = f"the threads of {most.name} were ready to run and had no core for up to {waited} of its time"
    return f"These shares are not reliable: {whose}. Run again when quiet."


def shares_in_words(transforms: Sequence[TransformTime]) -> str:
    """Returns the largest shares of the transforms' time, the largest first: "RandomResizedCrop 61%, ToTensor 25%"."""
    largest = sorted((t for t in transforms if t.frac > 0), key=lambda t: -t.frac)
    shares = [f"{t.name} {formats.percent(t.frac)}" for t in largest[:MOST_TRANSFORMS]]
    if rest := largest[MOST_TRANSFORMS:]:
        shares.append(f"{len(rest)} more {formats.percent(math.fsum(t.frac for t in rest))}")
    return ", ".join(shares)


ROUNDING_S = 1e-9
"""Seconds a batch below which a stage is only rounding of clock readings."""
MIN_EVENT_FRAC = 1 / 3
"""Share of the idle time that one step must have to be reported. Close to a threshold, leaving out
any step can move a run across it: that is what the interval is for."""


@dataclass(frozen=True)
class Exposure:
    """How long the device idled for data over the wall clock of training, and for what."""

    n: int
    idle: Interval
    """Exposed data wait and exposed copies as a share of the time, with the 95% interval."""
    between: Interval
    """The same over the steady steps, between epoch starts."""
    host: Interval
    """The rest of the idle time as a share: Python, launches, recording."""
    outside: Interval
    """Share of the time, between steps and epochs, in which the script did something else, such as
    logging or metrics. The device may have worked on that."""
    launches: Interval
    """Share of the time that the device waited for launches inside its steps; NaN where that is not known."""
    paced: Interval
    """`host` and `launches`, where known: the host was slower than the device."""
    host_paced: bool
    """Whether the device was done with a step as soon as all of it was launched. If `launches` is
    not known, it may have waited for them inside the steps."""
    idle_ms: float
    """Exposed data wait and copies, milliseconds a steady batch."""
    step_s: float
    """Mean time of a steady step."""
    shares: tuple[verdict.Share, ...]
    """The largest first; empty if the device never idled for data."""
    starts: verdict.EpochStarts
    event: verdict.SingleEvent | None
    """The step that decides the class of the run; None if the class is the same without it."""


def synchronous(config: RunConfig) -> bool:
    """Returns whether batches are made in the training loop itself. `config` is resolved."""
    loader = LOADERS.get(config.loader or "")
    return loader is not None and (
        loader.made_by == "loop" or (loader.made_by == "processes" and not config.workers)
    )


def find_exposure(
    config: RunConfig,
    steps: Series,
    phases: Sequence[columns.Phase],
    run_gaps: RunGaps | None = None,
) -> Exposure:
    """Returns the idle time of the device while it trained, split by cause. `config` is resolved;
    needs a step. `run_gaps` are its gaps, if already known.

    Exact, from marks: for how much of each data wait and copy the device idled, what of the wait
    came after the batch was made (hand_over), what the device spent on decoding it, what a sampler took, in
    the loop's process (sampler), and how long iterators took to begin and to end (epoch_start: workers start);
    where that is not known and each step begins an epoch, what came before the batch was begun. The rest of
    the wait is apportioned among the stages of making a batch: by the batch's own stages if it is
    made in the loop, else by the mean stages of all, since the loop then waits for the workers'
    pace; hand-over counts only as far as batches come slower than they are made.

    `Share.frac` divides the idle time in proportion. `Share.exposed_ms` is how much it would fall
    without the stage: all of the stage, divided by the number of workers, but at most the wait. So
    these may add up to more than `idle_ms`.
    """
    run_gaps = run_gaps or RunGaps.of(steps, phases)
    gaps = run_gaps.steady
    every = run_gaps.training
    waited = every.exposed_wait_ns / 1e9
    copied = every.by_step("h2d")
    idle = waited + copied
    gap = every.idle_s
    launches = every.launches_s
    starts = epoch_starts(steps)[every.index]
    outside = every.by_step("outside") + np.where(
        starts, every.by_step("epoch_boundary") - waited, 0.0
    )
    whole = gap + every.compute_ns / 1e9
    python = gap - idle - outside
    parts = [idle, python, outside]
    if len(launches):
        parts += [launches, python + launches]
    of_idle, of_host, of_outside, *rest = intervals.share_intervals(parts, whole, starts)
    of_launches, of_both = rest or (arrays.UNKNOWN, of_host)
    usual_s = mean(idle[~starts])
    n = int(starts.sum())
    first_s = float(steps["data_wait_s"][0])
    with_first = float((idle.sum() + first_s) / (whole.sum() + first_s))
    of_start = verdict.EpochStarts(epoch_frac=with_first, first_s=first_s)
    if n:
        wait_s = mean(idle[starts])
        weights = whole_epochs(steps)[every.index]
        excess_s = excess_of_starts_s(idle, starts) / n
        epoch_frac = float((idle * weights).sum() / (whole * weights).sum())
        frac = n * excess_s / float(whole.sum())
        of_start = verdict.EpochStarts(n, wait_s, excess_s, frac, epoch_frac)
    shares = (
        _shares(config, steps, gaps, waited[~starts], copied[~starts])
        if idle[~starts].sum() > 0
        else ()
    )
    return Exposure(
        n=len(gaps.index),
        idle=of_idle,
        between=intervals.share_interval(idle[~starts], whole[~starts]) if n else of_idle,
        host=of_host,
        outside=of_outside,
        launches=of_launches,
        paced=of_both,
        host_paced=host_paced(steps, gaps.index),
        idle_ms=usual_s * 1e3,
        step_s=mean(whole[~starts]),
        shares=_with_starts(shares, of_start, float(idle.sum()), len(whole)),
        starts=of_start,
        event=_single_event(steps["step"][every.index], idle, whole, starts),
    )


def _with_starts(
    shares: tuple[verdict.Share, ...], starts: verdict.EpochStarts, idle_s: float, n: int
) -> tuple[verdict.Share, ...]:
    """Returns shares of the idle time between epoch starts as shares of all of it, `idle_s` in `n` steps."""
    if not starts.excess_s > 0:
        return shares
    frac = starts.n * starts.excess_s / idle_s
    ms = starts.n * starts.excess_s / n * 1e3
    of_all = {share.name: replace(share, frac=share.frac * (1 - frac)) for share in shares}
    # iterators that begin between them are there already
    begun = of_all.get("epoch_start", verdict.Share("epoch_start", 0.0, 0.0, 0.0))
    of_all["epoch_start"] = verdict.Share(
        "epoch_start", begun.frac + frac, begun.exposed_ms + ms, begun.own_ms + ms
    )
    return tuple(sorted(of_all.values(), key=lambda share: -share.frac))


def host_paced(steps: Series, rows: Ints) -> bool:
    """Returns whether those steps ended as they were launched."""
    compute_s = column(steps, "compute_s")[rows]
    host_s = column(steps, "host_s")[rows]
    got_s = (column(steps, "t_start_s") + column(steps, "data_wait_s"))[rows]
    lag_s = known(column(steps, "compute_start_s")[rows] + compute_s - got_s - host_s)
    most_s = max(
        columns.LEAST_LAG_S,
        columns.LAG_FRAC * float(np.median(known(compute_s) if len(lag_s) else 0)),
    )
    return len(lag_s) > 0 and float(np.median(lag_s)) < most_s


def _single_event(
    numbers: Floats, waits: Floats, whole: Floats, starts: Mask
) -> verdict.SingleEvent | None:
    """Returns the step that alone decides the class of a run; `waits` and `whole` are the seconds
    of each step.

    A mean is at the mercy of one outlier (Huber and Ronchetti, Robust Statistics, 2009, section
    1.1). So the share and its lower end are computed again without the longest wait; None also if
    that has under a third of the idle time, or if the other steps have no interval.
    """
    worst = int(np.where(starts, 0.0, waits).argmax()) if len(waits) else 0
    if not waits.sum() > 0 or waits[worst] < MIN_EVENT_FRAC * waits.sum():
        return None
    idle = intervals.share_interval(waits, whole, starts)
    without = intervals.share_interval(
        np.delete(waits, worst), np.delete(whole, worst), np.delete(starts, worst)
    )
    if not math.isfinite(without.low):
        return None
    edges = (thresholds.MODERATE_FRAC, thresholds.INPUT_BOUND_FRAC)
    if (
        np.searchsorted(edges, idle[:2], "right") == np.searchsorted(edges, without[:2], "right")
    ).all():
        return None
    return verdict.SingleEvent(int(numbers[worst]), float(waits[worst]), without.value)


def _starting(steps: Series, gaps: Gaps, most: Floats) -> Floats:
    """Returns how much of each wait, at most `most`, an iterator took to begin, until its batch was begun, and to
    end: workers start, and are ended. A script may make an iterator for each batch. Where that was not recorded
    it is known where each step begins an epoch: what came before its batch was begun.
    """
    firsts = first_of_epoch(steps)[gaps.index]
    begun_after = column(steps, "made_start_s") - column(steps, "t_start_s")
    by_marks = np.where(firsts, np.nan_to_num(begun_after[gaps.index]), 0.0)
    recorded = column(steps, "iterator_s")[gaps.index]
    return np.clip(np.where(np.isfinite(recorded), recorded, by_marks), 0.0, most)


def _beyond_pace_frac(gaps: Gaps, pace_s: float, after_made_s: float) -> float:
    """Returns the share that costs time of `after_made_s`, the seconds a step after its batch was made.

    A batch is handed over while its worker makes the next one, and the sampler gives the indices of a later one. As
    long as workers are always busy, the loop waits for their pace, `pace_s` a batch, however long both take.
    """
    if not math.isfinite(pace_s) or not after_made_s > 0:
        return 1.0
    step_s = float((gaps.idle_s + gaps.compute_ns / 1e9).mean())
    return min(1.0, max(0.0, step_s - pace_s) / after_made_s)


def _shares(
    config: RunConfig, steps: Series, gaps: Gaps, waited: Floats, copied: Floats
) -> tuple[verdict.Share, ...]:
    def of(name: str) -> Floats:
        return column(steps, name)[gaps.index]

    loops = synchronous(config)
    workers = max(1, config.workers or 1)
    threads = config.loader == "threads"
    stages: dict[str, Floats] = {name: of(f"{name}_s") for name in columns.TIMED_STAGES}
    made = of("made_end_s") - of("made_start_s")
    decode_wait = of("decode_wait_s")
    hand_over = of("hand_over_s")
    thread_s = mean(np.asarray(sum(stages.values()))) if threads else math.nan
    if not threads:  # there the stages are seconds of several threads, more than the time it took
        measured = _added(stages.values())
        stages["rest"] = np.where(measured > 0, np.maximum(made - measured, 0.0), np.nan)
    on_device = np.isfinite(decode_wait)
    if (
        on_device.any()
    ):  # the rest of such a batch's time is the decoder's, from first byte to last image
        stages["decode"] = np.where(on_device, stages["rest"], stages["decode"])
        stages["rest"] = np.where(on_device, 0.0, stages["rest"])
    sampled = np.minimum(np.nan_to_num(of("sampler_s")), waited)
    handed = np.minimum(np.nan_to_num(hand_over), waited - sampled)
    if not loops:
        # all threads work on each batch, and on others meanwhile
        pace_s = (thread_s if threads else mean(made)) / workers
        costs_frac = _beyond_pace_frac(gaps, pace_s, float((sampled + handed).mean()))
        sampled = sampled * costs_frac
        handed = handed * costs_frac
    decoded = np.minimum(np.nan_to_num(decode_wait), waited - sampled - handed)
    starting = _starting(steps, gaps, waited - sampled - handed - decoded)
    making = waited - sampled - handed - decoded - starting
    own_s = {name: float(np.nan_to_num(mean(took))) for name, took in stages.items()}
    all_s = sum(own_s.values())
    making_s = float(making.mean())
    waited_s = float(waited.mean())
    if not all_s > 0:
        own_s["loading"] = making_s
        seconds = {"loading": (making_s, making_s)}
    elif loops:
        total = _added(stages.values())
        seconds = {}
        for name, took in stages.items():
            # a batch whose stages are not known is split like the others
            own = np.where(total > 0, np.nan_to_num(took), own_s[name])
            share = own / np.where(total > 0, total, all_s)
            seconds[name] = float((making * share).mean()), float(np.minimum(own, waited).mean())
    else:  # with a faster stage hand-over hides behind compute too
        seconds = {
            name: (making_s * took / all_s, min(took / workers, waited_s))
            for name, took in own_s.items()
        }
    if decoded.any():
        of_wait, saved = seconds.get("decode", (0.0, 0.0))
        decoded_s = float(decoded.mean())
        seconds["decode"] = of_wait + decoded_s, min(saved + decoded_s, waited_s)
        own_s["decode"] = max(own_s.get("decode", 0.0), decoded_s)
    for name, exposed in (
        ("sampler", sampled),
        ("epoch_start", starting),
        ("hand_over", handed),
        ("transfer", copied),
    ):
        seconds[name] = (float(exposed.mean()),) * 2
    own_s |= {
        "sampler": float(np.nan_to_num(of("sampler_s")).mean()),
        "epoch_start": float(starting.mean()),
        "hand_over": float(np.nan_to_num(hand_over).mean()),
        "transfer": float(np.nan_to_num(of("h2d_s")).mean()),
    }
    whole = float((waited + copied).mean())
    shares = (
        verdict.Share(name, of_wait / whole, saved * 1e3, own_s[name] * 1e3)
        for name, (of_wait, saved) in seconds.items()
        if of_wait > ROUNDING_S
    )
    return tuple(sorted(shares, key=lambda share: -share.frac))
