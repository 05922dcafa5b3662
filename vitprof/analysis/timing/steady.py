"""Which steps figures rest on, when events happened (monotonic clock), a run as rules see it, and stops."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from vitprof.analysis.arrays import Floats, Mask, Series, column, mean
from vitprof.config import RunConfig
from vitprof.formats import count, seconds
from vitprof.recording.columns import Stop


def decode_wait_s(steps: Series) -> Floats:
    """Returns how long the device took to decode the batch after the loop had it; 0 where that is not known."""
    return np.nan_to_num(column(steps, "decode_wait_s"))


def prepare_s(steps: Series) -> Floats:
    """Returns how long the device prepared the batch after the previous step; 0 where that is not known."""
    return np.nan_to_num(column(steps, "device_prepare_s"))


def got_s(steps: Series) -> Floats:
    return np.asarray(steps["t_start_s"] + steps["data_wait_s"] - decode_wait_s(steps))


def launched_s(steps: Series) -> Floats:
    """Returns when the step was launched; NaN where `host_s` is not known."""
    return np.asarray(got_s(steps) + steps["host_s"])


def begin_s(steps: Series) -> Floats:
    """Returns where the gap before the step begins: at the end of the previous step, or where the recorder resumed."""
    return np.asarray(steps["compute_start_s"] - steps["gap_s"] - prepare_s(steps))


def end_s(steps: Series) -> Floats:
    return np.asarray(steps["compute_start_s"] + steps["compute_s"] - prepare_s(steps))


def first_of_epoch(steps: Series, *, epoch_before: float = -np.inf) -> Mask:
    """Returns which steps begin an epoch, the run's first included; `epoch_before` is that of the step before these."""
    return np.asarray(np.diff(steps["epoch"], prepend=epoch_before) > 0)


def past_warmup(steps: Series, *, epoch_before: float = -np.inf) -> tuple[Mask, Mask]:
    """Returns which steps after the warm-up are inside an epoch, and which of them begin one."""
    warm = steps["warmup"] == 0
    first = first_of_epoch(steps, epoch_before=epoch_before)
    return np.asarray(warm & ~first), np.asarray(warm & first)


def steady_state(steps: Series) -> Mask:
    """Returns the steps for steady-state figures: neither warm-up nor the first of an epoch.

    If every step past the warm-up is the first of its epoch (a batch as large as the set), only the
    warm-up is left out. `summary.RunningTotals` adds up both masks of `past_warmup` as steps
    arrive, and chooses in the same way.
    """
    inside, begins = past_warmup(steps)
    return inside if inside.any() else begins


def epoch_starts(steps: Series) -> Mask:
    """Returns the steps that begin a later epoch, where they are not steady: start-up hides how long the first took."""
    inside, starts = past_warmup(steps)
    starts[:1] = False
    return starts & inside.any()


def training(steps: Series) -> Mask:
    """Returns the steps that are the wall clock of training: the steady ones and `epoch_starts`."""
    return steady_state(steps) | epoch_starts(steps)


def whole_epochs(steps: Series) -> Floats:
    """Returns how often each step counts for the wall clock of whole epochs: steady ones once, `epoch_starts` so often
    that there is one for each epoch's worth of steady steps, wherever the run began and ended.
    """
    starts = epoch_starts(steps)
    keep = steady_state(steps)
    inside = mean(np.diff(np.flatnonzero(first_of_epoch(steps)))) - 1
    return np.asarray(
        np.where(
            starts, keep.sum() / max(starts.sum() * inside, 1.0) if starts.any() else 0.0, keep
        )
    )


def while_steady(steps: Series, t_s: Floats) -> Mask:
    """Returns which moments `t_s`, (m,), are between the starts of the first and the last steady step."""
    start = steps["t_start_s"][steady_state(steps)]
    if not len(start):
        return np.zeros(len(t_s), dtype=bool)
    return np.asarray((t_s >= start[0]) & (t_s <= start[-1]))


@dataclass(frozen=True)
class Trace:
    """A run as the rules see it: its columns, and the masks and figures that several rules need."""

    steps: Series
    telemetry: Series
    config: RunConfig
    facts: Mapping[str, Any]
    """The run's facts and its environment in one mapping."""

    @cached_property
    def steady(self) -> Mask:
        return steady_state(self.steps)

    @cached_property
    def first(self) -> Mask:
        """Returns the first step of each epoch, the very first included."""
        return first_of_epoch(self.steps)

    @cached_property
    def n_steady(self) -> int:
        return int(self.steady.sum())

    @cached_property
    def step_s(self) -> float:
        """Returns the mean seconds of a steady step; NaN without one."""
        return mean(self.steps["step_s"][self.steady])

    @property
    def wait_s(self) -> Floats:
        """Returns the wait that counts in each step: the exposed wait, or the whole data wait of a loader-only run."""
        return (
            self.steps["data_wait_s"] if self.config.loader_only else self.steps["exposed_wait_s"]
        )

    def while_training(self, name: str) -> tuple[Floats, Floats]:
        """Returns (m,) times and finite values of a telemetry column between the first and the last steady step."""
        t = self.telemetry["t_s"]
        values = self.telemetry[name]
        inside = while_steady(self.steps, t) & np.isfinite(values)
        return t[inside], values[inside]


STOPS = "stops"
"""Fact of a run with stops: a list of `vitprof.recording.columns.Stop` as plain values."""
STOP_COLUMNS = (
    "step",
    "t_start_s",
    "data_wait_s",
    "decode_wait_s",
    "compute_start_s",
    "compute_s",
    "gap_s",
    "device_prepare_s",
    "warmup",
)
"""Step columns that `in_stops` needs, and those that tell a step from others of its rank."""
MIN_WAIT_S = 0.5
"""Seconds that the loop must have waited for a stopped worker: less shows in no figure of a run."""
SLACK_S = 0.05
"""Seconds by which a mark of the job may be inside a "paused" gap: job and recorder wake up at the
same moment, and a busy machine takes some 10 ms for each."""
STOP_WORDS: dict[str, str] = {
    "stopped": "{} was stopped (by a signal or a debugger)",
    "worker": "a worker of {} was stopped (by a signal or a debugger)",
    "paused": "neither {} nor the program that records it ran (both stopped, or the machine paused)",
    "asleep": "the machine slept",
}
"""`Stop.kind` -> what happened to the job, or to one of its ranks, in words."""


def stops_of(facts: Mapping[str, Any]) -> tuple[Stop, ...]:
    return tuple(Stop(**stop) for stop in facts.get(STOPS) or ())


def plain_stops(stops: Sequence[Stop]) -> list[dict[str, Any]]:
    return [asdict(stop) for stop in stops]


def in_stops(
    steps: Series, stops: Sequence[Stop], of_ranks: Mapping[int, Series] | None = None
) -> Mask:
    """Returns which steps a stop fell into. `steps` needs `STOP_COLUMNS`, and so does `of_ranks`: the
    steps of the job's other ranks.

    A stopped worker only hits the step that waited for it until it continued. If the job did
    something during a "paused" gap, the job was not stopped and the gap hits no step. While another
    rank is stopped this one goes on to where it waits for that: the step that it is in as the other
    one continues is hit, and no step before.
    """
    none = np.zeros(len(steps["t_start_s"]), dtype=bool)
    hit = (_hit(steps, stop, of_ranks or {}) for stop in stops)
    return np.asarray(np.logical_or.reduce([none, *hit]))


def stops_of_rank(stops: Sequence[Stop], rank: int, own: int) -> list[Stop]:
    """Returns the stops of a run, whose steps are those of the rank `own`, as another `rank` sees
    them."""
    seen = []
    for stop in stops:
        of = own if stop.rank is None else stop.rank
        seen.append(replace(stop, rank=None if of == rank else of))
    return seen


def stopped_s(steps: Series, stops: Sequence[Stop]) -> Floats:
    """Returns how many seconds of each step were a stop, for the steps that `in_stops` finds."""
    begin, end = _spans(steps)
    stopped = np.zeros(len(begin))
    for stop in stops:
        if stop.kind != "asleep":  # no clock counted it
            longest = np.where(_hit(steps, stop), np.nan_to_num(end - begin), 0.0)
            stopped += np.minimum(longest, stop.seconds)
    return stopped


def stop_sentence(stop: Stop, n_steps: int) -> str:
    """Returns what to know of a stop that fell into `n_steps` steps."""
    who = "the job" if stop.rank is None else f"rank {stop.rank}"
    what = f"{seconds(stop.seconds)} in which {STOP_WORDS[stop.kind].format(who)}"
    steps = count(n_steps, "step")
    others = f"are left out: the figures of the steady state are those of the other steps (left out: {steps})"
    return f"{what} {others if n_steps else 'fell into no step'}"


def _hit(steps: Series, stop: Stop, of_ranks: Mapping[int, Series] | None = None) -> Mask:
    begin, end = _spans(steps)
    if stop.rank is not None:
        goes_on = np.asarray((begin <= stop.t_end_s) & (end >= stop.t_end_s))
        of_rank = (of_ranks or {}).get(stop.rank)
        if stop.kind == "stopped" or of_rank is None:
            return goes_on
        # its loader may have had batches ready
        return goes_on & _hit(of_rank, replace(stop, rank=None)).any()
    over = np.asarray((begin < stop.t_end_s) & (end > stop.t_start_s))
    if stop.kind == "worker":
        requested_s = steps["t_start_s"]
        got = got_s(steps)
        waited = np.minimum(got, stop.t_end_s) - np.maximum(requested_s, stop.t_start_s)
        return np.asarray((got >= stop.t_end_s) & (waited >= MIN_WAIT_S))
    if stop.kind == "paused":
        marks = np.concatenate([steps["t_start_s"], got_s(steps), end])
        if ((marks > stop.t_start_s + SLACK_S) & (marks < stop.t_end_s - SLACK_S)).any():
            return np.zeros_like(over)
    return over


def _spans(steps: Series) -> tuple[Floats, Floats]:
    """Returns when each step began and ended, on the host or the device, whichever was first and last."""
    return np.fmin(steps["t_start_s"], begin_s(steps)), np.fmax(got_s(steps), end_s(steps))
