"""Splits the time that the device idled for data by what the loader was doing meanwhile."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from vitprof.analysis.arrays import Floats, Ints, Series, column, mean
from vitprof.analysis.bootstrap import UNKNOWN, Interval, ratio_interval, ratio_intervals
from vitprof.analysis.thresholds import INPUT_BOUND_FRAC, MODERATE_FRAC
from vitprof.analysis.timing.gaps import Gaps, RunGaps
from vitprof.analysis.timing.steady import steady_state, wall_clock_weights
from vitprof.config import RunConfig
from vitprof.config.parts import LOADERS
from vitprof.recording.columns import TIMED_STAGES, Phase
from vitprof.recording.verdict import Share, SingleEvent

ROUNDING_S = 1e-9
"""Seconds a batch below which a stage is only rounding of clock readings."""
MIN_EVENT_FRAC = 1 / 3
"""Share of the idle time that one step must have to be reported. Close to a threshold, leaving out any step can move a
run across it: that is what the interval is for."""


class EpochStarts(NamedTuple):
    """The waits with which epochs begin, which the steady steps leave out."""

    wait_s: float = 0.0
    """Mean seconds that the device idled for data at the start of an epoch, other than the run's first one."""
    idle_s: float = 0.0
    """The same, summed over all epochs (`steady.wall_clock_weights`)."""
    span_s: float = 0.0
    """The time of the steps that begin an epoch, summed in the same way."""
    steady_s: float = 0.0
    """The time of the steady steps."""

    @property
    def frac(self) -> float:
        """Returns the share of the wall clock of training that is spent waiting at the starts of epochs."""
        return self.idle_s / (self.steady_s + self.span_s) if self.idle_s else 0.0

    def added_to(self, steady: Interval) -> Interval:
        """Returns a share of idle time for data of the steady steps as one of the wall clock of training."""
        whole_s = self.steady_s + self.span_s
        return Interval(*((share * self.steady_s + self.idle_s) / whole_s for share in steady))


@dataclass(frozen=True)
class Exposure:
    """How long the device idled for data over the steady steps, and for what."""

    n: int
    """Number of steady steps."""
    idle: Interval
    """Exposed data wait and exposed copies as a share of the time, with the 95% interval."""
    host: Interval
    """The rest of the idle time as a share: Python, launches, recording."""
    launches: Interval
    """Share of the time that the device waited for launches inside its steps; NaN where that is not known."""
    paced: Interval
    """`host` and `launches` together: the host was slower than the device. Only `host` where `launches` is not
    known."""
    idle_ms: float
    """Exposed data wait and copies, milliseconds a batch."""
    shares: tuple[Share, ...]
    """The largest first; empty if the device never idled for data."""
    starts: EpochStarts = EpochStarts()
    event: SingleEvent | None = None
    """The step that decides the class of the run; None if the class is the same without it."""

    @property
    def with_epoch_starts(self) -> Exposure:
        """Returns the shares of idle time over the wall clock of training, epoch starts included."""
        of_whole = self.starts.steady_s / (self.starts.steady_s + self.starts.span_s)
        paced = Interval(*(share * of_whole for share in self.paced))
        return dataclasses.replace(self, idle=self.starts.added_to(self.idle), paced=paced)


def synchronous(config: RunConfig) -> bool:
    """Returns whether batches are made in the training loop itself. `config` is resolved."""
    loader = LOADERS.get(config.loader or "")
    return loader is not None and (loader.made_by == "loop" or (loader.made_by == "processes" and not config.workers))


def find_exposure(
    config: RunConfig, steps: Series, phases: Sequence[Phase], run_gaps: RunGaps | None = None
) -> Exposure:
    """Returns the idle time of the device in steady state, split by cause. `config` is resolved; needs a step.

    `run_gaps` are its gaps, if already known.

    Exact, from marks of device and host: for how much of each data wait and copy the device idled. Of the wait, also
    what came after the batch was made (hand_over), and what the device spent on decoding it. Apportioned: the rest of
    the wait, among the stages of making a batch. A batch made in the loop is split by its own stages. If workers or
    threads make batches, the mean stages of all are used, since the loop then waits for their pace, not for the work on
    one batch, and hand-over counts only as far as batches come slower than they are made.

    `Share.frac` divides the idle time in proportion. `Share.exposed_ms` is how much the idle time would fall without
    the stage: all of the stage, divided by the number of workers, who share the work, but at most the wait. So these
    may add up to more than `idle_ms` if some of the loading is hidden behind the device's work.
    """
    run_gaps = run_gaps or RunGaps.of(steps, phases)
    gaps = run_gaps.steady
    waited, copied = gaps.exposed_wait_ns / 1e9, gaps.exposed_h2d_ns / 1e9
    gap = gaps.causes_ns.sum(axis=1) / 1e9 - gaps.by_step("evaluation")
    idle = waited + copied
    whole = gap + gaps.compute_ns / 1e9
    known = len(gaps.launches_s) > 0
    inside = gaps.launches_s if known else np.zeros(len(whole))
    of_idle, of_host, of_launches, of_both = ratio_intervals(
        np.stack([idle, gap - idle, inside, gap - idle + inside]), whole
    )
    n = len(whole)
    return Exposure(
        n=n,
        idle=of_idle,
        host=of_host,
        launches=of_launches if known else UNKNOWN,
        paced=of_both,
        idle_ms=float(idle.mean()) * 1e3 if n else math.nan,
        shares=_shares(config, steps, gaps, waited, copied) if idle.sum() > 0 else (),
        starts=_epoch_starts(steps, run_gaps),
        event=_single_event(gaps, of_idle),
    )


def _epoch_starts(steps: Series, gaps: RunGaps) -> EpochStarts:
    weights = wall_clock_weights(steps)
    starts = (weights > 0) & ~steady_state(steps)
    begins = gaps.every.only(starts)
    n = len(begins.index)
    if not n:
        return EpochStarts()
    idle_s = float(begins.exposed_wait_ns.sum() + begins.exposed_h2d_ns.sum()) / 1e9
    weight = float(weights[starts][0])
    return EpochStarts(idle_s / n, weight * idle_s, weight * begins.span_s, gaps.steady.span_s)


def _single_event(gaps: Gaps, idle: Interval) -> SingleEvent | None:
    """Returns the step that decides the class of a run.

    `gaps` are those of the steady steps, `idle` is the idle share over all of them. A mean is at the mercy of one
    outlier (Huber and Ronchetti, Robust Statistics, 2009, section 1.1). So the share and its lower end are computed
    again without the step with the longest wait; None also if that step has under a third of the idle time.
    """
    waits = (gaps.exposed_wait_ns + gaps.exposed_h2d_ns) / 1e9
    worst = int(waits.argmax()) if len(waits) else 0
    if not waits.sum() > 0 or waits[worst] < MIN_EVENT_FRAC * waits.sum():
        return None
    whole = (gaps.causes_ns.sum(axis=1) + gaps.compute_ns) / 1e9 - gaps.by_step("evaluation")
    without = ratio_interval(np.delete(waits, worst), np.delete(whole, worst))
    if _classes(idle) == _classes(without):
        return None
    return SingleEvent(int(gaps.step[worst]), float(waits[worst]), without.value)


def _classes(idle: Interval) -> tuple[int, int]:
    """Returns the class of the share and that of its lower end, which decides the verdict."""
    edges = (MODERATE_FRAC, INPUT_BOUND_FRAC)
    return int(np.searchsorted(edges, idle.value, side="right")), int(np.searchsorted(edges, idle.low, side="right"))


def _shares(config: RunConfig, steps: Series, gaps: Gaps, waited: Floats, copied: Floats) -> tuple[Share, ...]:
    rows = gaps.index
    stages = _stages(config, steps, rows)
    handed = np.minimum(np.nan_to_num(_column(steps, "hand_over_s", rows)), waited)
    if not synchronous(config) and handed.any():
        period = float((gaps.causes_ns.sum(axis=1) + gaps.compute_ns).mean()) / 1e9
        period -= float(gaps.by_step("evaluation").mean())
        handed = handed * min(1.0, _beyond_making(config, steps, rows, period) / float(handed.mean()))
    decoded = np.minimum(np.nan_to_num(_column(steps, "decode_wait_s", rows)), waited - handed)
    making = waited - handed - decoded
    known = {name: float(np.nan_to_num(mean(took))) for name, took in stages.items()}
    if not sum(known.values()) > 0:
        seconds = {"loading": (float(making.mean()), float(making.mean()))}
        known["loading"] = float(making.mean())
    elif synchronous(config):
        total = np.sum([np.nan_to_num(took) for took in stages.values()], axis=0)
        seconds = {}
        for name, took in stages.items():
            # a batch whose stages are not known is split like the others
            own = np.where(total > 0, np.nan_to_num(took), known[name])
            share = own / np.where(total > 0, total, sum(known.values()))
            seconds[name] = float((making * share).mean()), float(np.minimum(own, waited).mean())
    else:
        pace = max(1, config.workers or 1)
        typical, most = (
            float(making.mean()),
            float(waited.mean()),
        )  # with a faster stage hand-over hides behind compute too
        seconds = {name: (typical * took / sum(known.values()), min(took / pace, most)) for name, took in known.items()}
    if decoded.any():
        of_wait, saved = seconds.get("decode", (0.0, 0.0))
        on_device = float(decoded.mean())
        seconds["decode"] = of_wait + on_device, min(saved + on_device, float(waited.mean()))
        known["decode"] = max(known.get("decode", 0.0), on_device)
    seconds["hand_over"] = (float(handed.mean()),) * 2
    seconds["transfer"] = (float(copied.mean()),) * 2
    whole = float((waited + copied).mean())
    known["hand_over"] = float(np.nan_to_num(_column(steps, "hand_over_s", rows)).mean())
    known["transfer"] = float(np.nan_to_num(_column(steps, "h2d_s", rows)).mean())
    shares = [
        Share(name, of_wait / whole, saved * 1e3, known[name] * 1e3)
        for name, (of_wait, saved) in seconds.items()
        if of_wait > ROUNDING_S
    ]
    return tuple(sorted(shares, key=lambda share: -share.frac))


def _beyond_making(config: RunConfig, steps: Series, rows: Ints, period: float) -> float:
    """Returns how many seconds longer a batch takes to come than its workers need to make it; infinite if not known.

    A batch is handed over while its worker makes the next one. As long as workers are always busy, the loop waits for
    their pace, however long the hand-over takes.
    """
    if (
        config.loader == "threads"
    ):  # all threads work on each batch, whose time from start to end overlaps with that of others
        made = np.sum([_column(steps, f"{name}_s", rows) for name in TIMED_STAGES], axis=0)
    else:
        made = _column(steps, "made_end_s", rows) - _column(steps, "made_start_s", rows)
    made_s = mean(made)
    return max(0.0, period - made_s / max(1, config.workers or 1)) if math.isfinite(made_s) else math.inf


def _stages(config: RunConfig, steps: Series, rows: Ints) -> dict[str, Floats]:
    """Returns the seconds of each stage of making a batch, (n,) each; NaN if the loader cannot tell."""
    stages: dict[str, Floats] = {name: _column(steps, f"{name}_s", rows) for name in TIMED_STAGES}
    made = _column(steps, "made_end_s", rows) - _column(steps, "made_start_s", rows)
    if config.loader != "threads":  # there the stages are seconds of several threads, more than the time it took
        measured = np.sum([np.nan_to_num(took) for took in stages.values()], axis=0)
        stages["rest"] = np.where(measured > 0, np.maximum(made - measured, 0.0), np.nan)
    on_device = np.isfinite(_column(steps, "decode_wait_s", rows))
    if on_device.any():  # the rest of such a batch's time is the decoder's, from first byte to last image
        stages["decode"] = np.where(on_device, stages["rest"], stages["decode"])
        stages["rest"] = np.where(on_device, 0.0, stages["rest"])
    return stages


def _column(steps: Series, name: str, rows: Ints) -> Floats:
    """Returns a column for the steps in `rows`; NaN if an older run does not have it."""
    return column(steps, name)[rows]
