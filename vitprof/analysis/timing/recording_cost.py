"""The cost of measuring a run, from the run's own clock readings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitprof.analysis.arrays import Mask, Series, column
from vitprof.analysis.timing.gaps import Gaps, every_gap
from vitprof.analysis.timing.steady import steady_state
from vitprof.analysis.timing.step_times import launched_s
from vitprof.config import RunConfig
from vitprof.config.parts import STORAGES
from vitprof.recording.columns import Phase


@dataclass(frozen=True)
class RecordingCost:
    """The time between the launch of a step and the request for the next batch, over steady steps.

    It is an upper bound on vitprof's recording and reports, since it includes the loop's own check whether to stop. Not
    included: clock readings inside the loader (they are part of the data wait; `loader_times` switches them off), and
    the moments in which the thread that sends reports holds Python's lock elsewhere in a step. NaN where not known.
    """

    frac: float
    """Share of the time of the steps, 0..1: sum of the spans / sum of the step times."""
    s_per_step: float
    """Mean of the spans, in seconds."""
    exposed_frac: float
    """The part of it in which the device idled, as a share of the same time. On an asynchronous device with steps
    queued the rest is hidden and costs nothing; on the CPU all of it is exposed."""
    exposed_s_per_step: float
    """That part, in seconds a step."""
    n: int
    """Number of steps."""


NOT_KNOWN = RecordingCost(math.nan, math.nan, math.nan, math.nan, 0)


def recording_cost(steps: Series, phases: Sequence[Phase] = (), gaps: Gaps | None = None) -> RecordingCost:
    """Returns the cost of recording `steps`, the (n,) columns of `StepRecord`.

    A step counts if it is steady and the next one follows in the same epoch without a phase (an evaluation) in between.
    Its time goes from its own request for a batch to the next one's, so the share is exact for the loop. `gaps` are
    those of all steps, if already known.
    """
    followed = _followed(steps, phases)
    if not followed.any():
        return NOT_KNOWN
    launched = launched_s(steps)
    asked_s = steps["t_start_s"]
    index = np.flatnonzero(followed)
    spent = np.maximum(asked_s[index + 1] - launched[index], 0.0)
    total = float((asked_s[index + 1] - asked_s[index]).sum())
    next_ones = np.zeros(len(followed), dtype=bool)
    next_ones[index + 1] = True
    gaps = (every_gap(steps, phases) if gaps is None else gaps).only(next_ones)
    known = len(gaps.step) == len(index) and bool(np.isfinite(steps["gap_s"][index + 1]).all())
    exposed = gaps.seconds("logging") if known else math.nan
    return RecordingCost(
        frac=float(spent.sum()) / total if total > 0 else math.nan,
        s_per_step=float(spent.mean()),
        exposed_frac=exposed / total if total > 0 else math.nan,
        exposed_s_per_step=exposed / len(index),
        n=len(index),
    )


LAPS_A_SAMPLE: dict[str, int] = {"idx": 1, "imagefolder": 4, "memory-float": 0}
"""Storage -> laps (clock readings) that its Dataset notes for each sample: of its transforms, or of a file's pieces of
64 KB, decoding and transforms."""
LAPS_OF_FORM: dict[str, int] = {"encoded": 2, "pixels": 0}
"""The same by the form of a storage, for all others."""
LAPS_A_BATCH = 2
"""Laps that are noted for each batch."""


def loader_times_s(config: RunConfig, lap_s: float) -> float:
    """Returns about how many seconds measuring inside the loader takes for each batch of the resolved `config`.

    The laps of each sample and batch are counted; `lap_s`, the seconds that one takes, was measured when the run began.
    In worker processes that time is theirs, and costs the loop nothing while they keep up. NaN if the storage is not
    known.
    """
    if not config.loader_times:
        return 0.0
    if config.storage is None:
        return math.nan
    a_sample = LAPS_A_SAMPLE.get(config.storage, LAPS_OF_FORM.get(STORAGES[config.storage].form, 0))
    return lap_s * (LAPS_A_BATCH + a_sample * config.batch_size)


def _followed(steps: Series, phases: Sequence[Phase]) -> Mask:
    """Returns which steps count (see `recording_cost`). (n,) bool."""
    n = len(steps["step"])
    followed = np.zeros(n, dtype=bool)
    if n < 2:
        return followed
    launched = launched_s(steps)[:-1]
    asked_s = steps["t_start_s"][1:]
    followed[:-1] = (
        steady_state(steps)[:-1]
        & (np.diff(steps["epoch"]) == 0)
        & (np.diff(steps["step"]) == 1)
        & np.isfinite(launched)
        & np.isfinite(asked_s)
        & ~(column(steps, "outside_s")[1:] > 0)  # the script's own work there cannot be told from recording
    )
    for phase in phases:
        followed[:-1] &= (asked_s <= phase.t_start_s) | (launched >= phase.t_end_s)
    return followed
