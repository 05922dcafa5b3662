"""Headroom of a user's own script: blocks of steps on kept batches, compared with blocks on new ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from vitprof.analysis.bootstrap import MIN_BLOCKS, Interval, ratio_interval

REPLAY, REFUSED = "replay", "replay_refused"
"""Facts of a run: its blocks of steps, and why batches were not replayed (`vitprof.watch.replay`)."""
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


class Measured(NamedTuple):
    """The speed-up of a script's own loop, for the verdict's sentence."""

    speed_up: float
    speed_up_low: float
    speed_up_high: float


def measured_headroom(facts: Mapping[str, Any]) -> Measured | None:
    """Returns the speed-up in the facts of a run; None if it was not measured, or with too few blocks."""
    found = own_headroom(facts)
    return None if found is None or math.isnan(found.speed_up.value) else Measured(*found.speed_up)


def own_headroom(facts: Mapping[str, Any]) -> OwnHeadroom | None:
    """Returns the headroom in the facts of a run; None if it was not measured."""
    told = facts.get(REPLAY)
    if not isinstance(told, Mapping):
        return None
    blocks = {int(number): block for number, block in told.items() if block["steps"]}
    pairs = [(blocks[n], blocks[n + 1]) for n in sorted(blocks) if n % 2 == 0 and n + 1 in blocks]
    refused = str(facts.get(REFUSED) or "")
    if len(pairs) < MIN_BLOCKS:
        unknown = Interval(math.nan, math.nan, math.nan)
        return OwnHeadroom(unknown, unknown, len(pairs), refused)
    new, kept = (np.array([_a_step(pair[i]) for pair in pairs]).T for i in (0, 1))
    return OwnHeadroom(ratio_interval(new[0], kept[0]), ratio_interval(new[1], kept[1]), len(pairs), refused)


def _a_step(block: Mapping[str, float]) -> tuple[float, float]:
    """Returns the mean seconds of a step, and those without its data wait."""
    return block["step_s"] / block["steps"], (block["step_s"] - block["data_wait_s"]) / block["steps"]


def own_headroom_sentence(found: OwnHeadroom) -> str:
    """Returns the headroom in words, with its interval and n."""
    if math.isnan(found.speed_up.value):
        why = f": {found.refused}" if found.refused else f", of which {MIN_BLOCKS} are needed; train for longer"
        return f"Headroom is undecided: {found.n_pairs} pairs of blocks were measured{why}."
    measured = f"95%: {found.speed_up.low:.2f}x to {found.speed_up.high:.2f}x, {found.n_pairs} pairs of blocks"
    if found.speed_up.low <= 1:
        said = f"Headroom: free data would gain nothing that can be told from noise ({measured})."
    else:
        said = f"Headroom: with free data this loop would run {found.speed_up.value:.2f}x as fast ({measured})."
    if found.training.low > PERCEPTIBLE:
        slower, low, high = (f"{100 * (ratio - 1):.0f}%" for ratio in found.training)
        said += f" Of that, training itself takes {slower} longer ({low} to {high}) while batches are being made."
    return said
