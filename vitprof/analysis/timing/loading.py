"""Where the time of making a batch goes: its stages, the workers that make it, and each transform.

How much of it is fetching and how much is preparing takes other runs to measure: `vitprof.analysis.verdict.headroom`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitprof import formats
from vitprof.analysis.arrays import Floats, Mask, Series, known, mean
from vitprof.analysis.bootstrap import UNKNOWN, Interval, ratio_intervals
from vitprof.analysis.timing.steady import steady_state
from vitprof.config import RunConfig
from vitprof.recording.columns import TIMED_STAGES

STAGE_WORDS: dict[str, str] = {
    "read": "reading",
    "decode": "decoding",
    "transform": "transforms",
    "collate": "collating",
    "rest": "Python and waiting for a turn",
    "hand_over": "hand-over",
}
"""Stage of loading, or the rest of the time -> its name in a sentence."""


@dataclass(frozen=True)
class StageTime:
    """One stage of loading a batch, or the rest of the time."""

    name: str
    """A key of `STAGE_WORDS`."""
    words: str
    """Its name in a sentence."""
    ms: Interval
    """Mean milliseconds a batch, with its 95% interval; NaN if the loader cannot tell."""
    frac: float
    """Share of the known loading time of a batch; NaN if `ms` is."""


@dataclass(frozen=True)
class Loading:
    """Where the loading time of a batch goes: making it (its stages and the rest), then handing it over."""

    n: int
    """Batches behind the figures: steps whose loader could tell anything."""
    stages: tuple[StageTime, ...]
    """One for each of `STAGE_WORDS`, in that order."""
    made_ms: Interval
    """Mean milliseconds from the first read of a batch until it is made."""
    busy_frac: float
    """Share of the time that workers or threads (or the loop itself) were making batches, 0 to 1; near 1 they are the
    bottleneck."""
    queue_depth: float
    """Mean number of batches that were ready when the loop asked; NaN if there is no queue."""
    queue_empty_frac: float
    """Share of the batches for which none was ready when the loop asked, 0 to 1; NaN if there is no queue."""
    largest: str
    """The largest stage in words ("reading", "decoding", ...); empty if no stage is known."""

    def stage(self, name: str) -> StageTime:
        """Returns the stage of that name. Raises `KeyError` if there is none."""
        return dict(zip(STAGE_WORDS, self.stages, strict=True))[name]


def loading_time(steps: Series, *, keep: Mask | None = None, makers: int = 1, shared: bool = False) -> Loading:
    """Returns the stages of a batch's loading time over the steps in `keep` ((n,) bool; all if None).

    `makers` is the number of worker processes or threads (1: the loop itself, or one thread ahead). With `shared` they
    fill each batch together. The measured stages are then thread-seconds, which may add up to more than the time from
    start to end of a batch, and the rest of that time is not known (NaN).
    """
    names = ("made_start_s", "made_end_s", "hand_over_s", "queue_depth", "step_s", *(f"{m}_s" for m in TIMED_STAGES))
    column = {name: steps[name] if keep is None else steps[name][keep] for name in names}
    made = np.maximum(column["made_end_s"] - column["made_start_s"], 0.0)
    measured: dict[str, Floats] = {name: column[f"{name}_s"] for name in TIMED_STAGES}
    per_batch = measured | {"hand_over": column["hand_over_s"]}
    worked = np.sum([np.where(np.isfinite(v), v, 0.0) for v in measured.values()], axis=0)
    # Clocks are read one after the other: the stages may pass the whole by a microsecond.
    per_batch["rest"] = np.full_like(made, np.nan) if shared else np.maximum(made - worked, 0.0)
    ms = {name: _mean_ms(per_batch[name]) for name in STAGE_WORDS}
    total_ms = math.fsum(i.value for i in ms.values() if math.isfinite(i.value))
    stages = tuple(
        StageTime(n, STAGE_WORDS[n], ms[n], ms[n].value / total_ms if total_ms > 0 else math.nan) for n in STAGE_WORDS
    )
    timed = [s for s in stages if s.frac > 0]
    depth = known(column["queue_depth"])
    making = worked if shared else made
    step_s = float(np.nansum(column["step_s"][np.isfinite(making)]))
    busy = float(np.nansum(making)) / (makers * step_s) if step_s > 0 and np.isfinite(made).any() else math.nan
    told_any = np.isfinite(np.stack(list(per_batch.values()))).any(axis=0)
    return Loading(
        n=int(told_any.sum()),
        stages=stages,
        made_ms=_mean_ms(made),
        busy_frac=min(busy, 1.0) if math.isfinite(busy) else math.nan,
        queue_depth=mean(depth),
        queue_empty_frac=float((depth == 0).mean()) if len(depth) else math.nan,
        largest=max(timed, key=lambda s: s.frac).words if timed else "",
    )


def loading_of(steps: Series, config: RunConfig) -> Loading:
    """Returns the loading times of a run over its steady state; `config` is resolved."""
    return loading_time(
        steps,
        keep=steady_state(steps),
        makers=max(1, config.workers or 1) if config.loader in ("dataloader", "threads") else 1,
        shared=config.loader == "threads",
    )


def _mean_ms(values_s: Floats) -> Interval:
    finite = known(values_s)
    return ratio_intervals(finite[None] * 1e3, np.ones(len(finite)))[0] if len(finite) else UNKNOWN


@dataclass(frozen=True)
class WorkerTime:
    """The batches of one worker process, over the chosen steps."""

    worker: int
    """Its number, from 0."""
    n_batches: int
    """Batches that it made."""
    made_s: float
    """Median seconds to make a batch."""
    made_p95_s: float
    """Seconds that 95% of its batches take at most."""
    busy_frac: float
    """Share of the time that it was making batches, 0 to 1. Near 1 for all workers: use more of them, or give them less
    work."""


def by_worker(steps: Series, keep: Mask) -> tuple[WorkerTime, ...]:
    """Returns one entry for each worker process that made a batch of the steps in `keep`, (n,) bool; or none."""
    made = steps["made_end_s"] - steps["made_start_s"]
    timed = keep & np.isfinite(steps["worker"]) & np.isfinite(made)
    span_s = float(np.nansum(steps["step_s"][timed]))
    found = []
    for worker in np.unique(steps["worker"][timed]):
        took = made[timed & (steps["worker"] == worker)]
        busy = min(float(took.sum()) / span_s, 1.0) if span_s > 0 else math.nan
        found.append(WorkerTime(int(worker), len(took), float(np.median(took)), float(np.percentile(took, 95)), busy))
    return tuple(found)


TRANSFORMS = "transforms"
"""Fact of a run: name -> {"s_per_sample", "calls"}, in the order of the Compose (`vitprof.watch.transforms`)."""
TOLD = 6
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


def transform_times(facts: Mapping[str, Any]) -> tuple[TransformTime, ...]:
    """Returns the transforms in the order of the Compose; empty if the facts have none."""
    transforms = facts.get(TRANSFORMS)
    if not isinstance(transforms, Mapping):
        return ()
    known = {
        name: (float(one["s_per_sample"]), int(one["calls"]))
        for name, one in transforms.items()
        if isinstance(one, Mapping) and one.get("s_per_sample") is not None and one.get("calls") is not None
    }
    whole_s = math.fsum(seconds for seconds, _ in known.values())
    return tuple(
        TransformTime(name, seconds, calls, seconds / whole_s if whole_s > 0 else math.nan)
        for name, (seconds, calls) in known.items()
    )


def heaviest(found: Sequence[TransformTime]) -> TransformTime | None:
    """Returns the transform that takes longest; None if none takes any time."""
    return max((t for t in found if t.frac > 0), key=lambda t: t.frac, default=None)


def shares_in_words(found: Sequence[TransformTime]) -> str:
    """Returns the largest shares of the transforms' time, the largest first: "RandomResizedCrop 61%, ToTensor 25%"."""
    largest = sorted((t for t in found if t.frac > 0), key=lambda t: -t.frac)
    shares = [f"{t.name} {formats.percent(t.frac)}" for t in largest[:TOLD]]
    if (left := len(largest) - TOLD) > 0:
        shares.append(f"{left} more {formats.percent(math.fsum(t.frac for t in largest[TOLD:]))}")
    return ", ".join(shares)
