"""Headroom: how much faster the same job would run if its data were free, from four measured anchors: A replays batches
kept on the device, B in host memory (adds the transfer), C runs over a warm page cache (adds the preparation), D over a
cold one (adds the storage). The last two differences are the preparation stall and the fetch stall of DS-Analyzer
(Mohan et al., VLDB 2021, section 3).
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitprof import formats
from vitprof.analysis.arrays import (
    MIN_BLOCKS,
    UNKNOWN,
    Floats,
    Interval,
    Series,
)
from vitprof.analysis.faster import ROUNDING_FRAC, of_intervals
from vitprof.analysis.intervals import interval_of_pairs, interval_of_runs
from vitprof.analysis.timing.steady import steady_state
from vitprof.recording import columns

ANCHOR_WORDS: dict[str, str] = {
    "A": "data on the device",
    "B": "data in host memory",
    "C": "the strategy, files in memory",
    "D": "the strategy, files not in memory",
}
"""Anchor -> where its data are, in the order of what they add."""
ANCHOR_ROLES: tuple[str, ...] = tuple(ANCHOR_WORDS)
ADDED_STAGE: dict[str, str] = {"B": "transfer", "C": "preparation", "D": "storage"}
"""Anchor -> the stage that it adds to the one before."""


@dataclass(frozen=True)
class Anchor:
    """One anchor, over all its repeats."""

    role: str
    """A, B, C or D."""
    s_per_sample: columns.Figure
    """Time of the steady steps / their samples; NaN if no run gave any."""
    low: columns.Figure
    """Lower end of the 95% interval, which contains the figure of each repeat; NaN if not known."""
    high: columns.Figure
    """Upper end of that interval."""
    n_runs: int
    """Runs behind it."""
    n_steps: int
    """Steady steps of all repeats together."""

    @property
    def interval(self) -> Interval:
        return Interval(self.s_per_sample, self.low, self.high)


@dataclass(frozen=True)
class StageCost:
    """What a stage of loading costs: the difference of two anchors."""

    name: str
    """transfer, preparation or storage; two of them together where the anchor between them is missing."""
    s_per_sample: columns.Figure
    """Seconds; negative by chance, or if the stage costs nothing."""
    low: columns.Figure
    """Lower end of the 95% interval."""
    high: columns.Figure
    """Upper end of the 95% interval."""
    share: columns.Figure
    """Its share of the time of the slowest anchor (D if there is one)."""
    distinguishable: bool
    """Whether the whole interval is above 0 and rounding. If not, the cost is only known to be at most `high`."""


@dataclass(frozen=True)
class Headroom:
    """How many times as fast the job would be if its data were free, measured by replaying batches."""

    anchors: tuple[Anchor, ...]
    """By role: data are on the device (A), in host memory (B), in files in memory (C), in files not in memory (D)."""
    parts: tuple[StageCost, ...]
    """What each stage of loading costs: the difference of two anchors."""
    speed_up: columns.Figure
    """Time of the anchor `baseline_role` / time of A."""
    speed_up_low: columns.Figure
    """Lower end of its 95% interval."""
    speed_up_high: columns.Figure
    """Upper end of its 95% interval."""
    baseline_role: str
    """The anchor that is the job as configured: C, or D for cold files or a slow drive; empty without either."""
    notes: tuple[str, ...]
    """What a reader should know, such as which anchors are missing."""
    simulated: bool = False
    """Whether it was measured on a simulated device."""
    pending: tuple[str, ...] = ()
    """Anchors without a figure whose runs are queued or running."""


def anchor(role: str, runs: Sequence[Series]) -> Anchor:
    """Returns the anchor `role` over its repeats, the columns of their steps, all steady steps
    pooled.

    The interval is that of the noise within the repeats (`analysis.intervals`), widened to contain
    each repeat: the steps of a repeat share one moment of the machine. Where the steps alone give
    none there is none: two or three repeats that happen to agree would seem surer than they are.
    """
    per_run: list[tuple[Floats, Floats]] = []
    for steps in runs:
        steady = steady_state(steps) & np.isfinite(steps["step_s"])
        if steps["samples"][steady].sum() > 0:
            per_run.append((steps["step_s"][steady], steps["samples"][steady]))
    if not per_run:
        return Anchor(role, math.nan, math.nan, math.nan, 0, 0)
    n_steps = sum(len(s) for s, _ in per_run)
    pooled = interval_of_runs(per_run)
    singles = [float(s.sum() / n.sum()) for s, n in per_run]
    low = pooled.low
    high = pooled.high
    if len(singles) > 1:
        low = float(np.min([low, *singles]))
        high = float(np.max([high, *singles]))
    return Anchor(role, pooled.value, low, high, len(per_run), n_steps)


def headroom(
    anchors: Sequence[Anchor],
    *,
    baseline: str = "C",
    notes: Sequence[str] = (),
    simulated: bool = False,
    pending: Sequence[str] = (),
) -> Headroom:
    """Returns the stages and the speed-up of `anchors`.

    `baseline` is the role of the job as configured; if it was not measured, D or else C takes its
    place. `pending` are the anchors still to come. The interval of a difference is made from the
    two single ones as in Zou and Donner (Statistics in Medicine 2008); that of the ratio in the
    same way on logarithms (`faster.of_intervals`).
    """
    ordered = sorted(anchors, key=lambda a: ANCHOR_ROLES.index(a.role))
    known = [a for a in ordered if a.n_runs]
    remarks = list(notes)
    stages: list[StageCost] = []
    for before, after in itertools.pairwise(known):
        between = ANCHOR_ROLES[
            ANCHOR_ROLES.index(before.role) + 1 : ANCHOR_ROLES.index(after.role) + 1
        ]
        stage = _cost(" and ".join(ADDED_STAGE[role] for role in between), before, after, known[-1])
        if stage.high < 0:
            remarks.append(
                f"{stage.name}: the job took {formats.seconds(-stage.s_per_sample)} a sample less with it than "
                "without; the machine changed meanwhile, or the anchor before it costs more by itself"
            )
        stages.append(stage)
    by_role = {a.role: a for a in known}
    role = baseline
    if baseline not in by_role:
        role = next((a.role for a in reversed(known) if a.role in "CD"), "")
    gain = UNKNOWN
    if role and "A" in by_role:
        gain = of_intervals(by_role[role].interval, by_role["A"].interval)
    return Headroom(
        tuple(ordered), tuple(stages), *gain, role, tuple(remarks), simulated, tuple(pending)
    )


def _cost(name: str, before: Anchor, after: Anchor, slowest: Anchor) -> StageCost:
    difference = after.s_per_sample - before.s_per_sample
    low = difference - math.hypot(after.s_per_sample - after.low, before.high - before.s_per_sample)
    high = difference + math.hypot(
        after.high - after.s_per_sample, before.s_per_sample - before.low
    )
    beyond_rounding = low > ROUNDING_FRAC * after.s_per_sample
    return StageCost(
        name,
        difference,
        low,
        high,
        difference / slowest.s_per_sample,
        distinguishable=beyond_rounding,
    )


def headroom_sentence(found: Headroom, batch_size: int) -> str:
    """Returns one sentence: the speed-up with free data, and what each stage costs a step of `batch_size` samples."""
    by_role = {a.role: a for a in found.anchors if a.n_runs}
    if math.isnan(found.speed_up):
        missing = (
            "batches on the device (anchor A)"
            if "A" not in by_role
            else "the strategy itself (anchor C)"
        )
        wanted = ["A"] if "A" not in by_role else [role for role in "CD" if role not in by_role]
        if to_come := [role for role in wanted if role in found.pending]:
            return f"Headroom is not known yet: anchor {to_come[0]} is still to come."
        return f"Headroom is not known: {missing} could not be measured."
    where = " on this simulated device" if found.simulated else ""
    base = by_role[found.baseline_role]
    lost = [stage for stage in found.parts if stage.distinguishable]
    lost.sort(key=lambda stage: stage.s_per_sample, reverse=True)
    costs = ", ".join(f"{stage.name} {_of_a_step(stage, batch_size)}" for stage in lost)
    rest = [stage.name for stage in found.parts if not stage.distinguishable]
    unclear = f"{' and '.join(rest)} cannot be told apart from zero" if rest else ""
    known = math.isfinite(found.speed_up_low)
    no_gain = found.speed_up_low <= 1
    much = f"at most {found.speed_up_high:.2f}" if no_gain else f"{found.speed_up:.2f}"
    times = f"With free data the steps of this job would run {much} times as fast{where}"
    if known and not no_gain:
        times += f" ({found.speed_up_low:.2f} to {found.speed_up_high:.2f})"
    cold = " with files not in memory" if found.baseline_role == "D" else ""
    step = f"of each step's {formats.seconds(base.s_per_sample * batch_size)}{cold}"
    lost_words = "; ".join(filter(None, (costs and f"{step}, {costs}", unclear)))
    return f"{times}{': ' + lost_words if lost_words else ''}."


def _of_a_step(stage: StageCost, batch_size: int) -> str:
    low, high = (formats.seconds(v * batch_size) for v in (stage.low, stage.high))
    return f"costs {formats.seconds(stage.s_per_sample * batch_size)} ({low} to {high})"


REPLAY, REFUSED = "replay", "replay_refused"
"""Facts of a run: its blocks of steps, and why batches were not replayed (`vitprof.watch.patches.replay`)."""
PERCEPTIBLE = 1.02
"""A slowdown of training by loading is reported if the whole interval of its ratio is above this."""


@dataclass(frozen=True)
class OwnHeadroom:
    """How much faster a script's own loop runs if its batches are ready at once."""

    speed_up: Interval
    """Time of a step on a new batch / time of a step on a kept one; NaN with fewer than four pairs of blocks."""
    training: Interval
    """The same ratio without the data wait: how much loading slows down training itself."""
    n_pairs: int
    """Pairs of blocks: one on new batches, and the one on kept batches that came after it."""
    refused: str
    """Why kept batches were not replayed; "" if they were."""


def own_headroom(facts: Mapping[str, Any]) -> OwnHeadroom | None:
    """Returns the headroom in the facts of a run; None if it was not measured."""
    replay = facts.get(REPLAY)
    if not isinstance(replay, Mapping):
        return None
    blocks = {int(number): block for number, block in replay.items() if block["steps"]}
    pairs = [(blocks[n], blocks[n + 1]) for n in sorted(blocks) if n % 2 == 0 and n + 1 in blocks]
    refused = str(facts.get(REFUSED) or "")
    if len(pairs) < MIN_BLOCKS:
        return OwnHeadroom(UNKNOWN, UNKNOWN, len(pairs), refused)
    new, kept = (np.array([_a_step(pair[i]) for pair in pairs]).T for i in (0, 1))
    return OwnHeadroom(
        interval_of_pairs(new[0], kept[0]),
        interval_of_pairs(new[1], kept[1]),
        len(pairs),
        refused,
    )


def _a_step(block: Mapping[str, float]) -> tuple[float, float]:
    return block["step_s"] / block["steps"], (block["step_s"] - block["data_wait_s"]) / block[
        "steps"
    ]


def own_headroom_sentence(found: OwnHeadroom) -> str:
    if math.isnan(found.speed_up.value):
        reason = (
            f": {found.refused}"
            if found.refused
            else f", and {MIN_BLOCKS} are needed; train for longer"
        )
        return f"Headroom is undecided: {found.n_pairs} pairs of blocks were measured{reason}."
    measured = f"95%: {found.speed_up.low:.2f}x to {found.speed_up.high:.2f}x, {found.n_pairs} pairs of blocks"
    if found.speed_up.low <= 1:
        sentence = (
            f"Headroom: free data would gain nothing that can be told from noise ({measured})."
        )
    else:
        times = f"{found.speed_up.value:.2f}x as fast ({measured})"
        sentence = f"Headroom: with free data the steps of this loop would run {times}."
    if found.training.low > PERCEPTIBLE:
        slower, low, high = (f"{100 * (ratio - 1):.0f}%" for ratio in found.training)
        sentence += f" Of that, training itself takes {slower} longer ({low} to {high}) while batches are being made."
    return sentence
