"""Whether a setting changes the losses of a user's own script: step by step, bit for bit.

Two runs of the unchanged script show whether it gives the same losses twice. If not, nothing can be said of a setting
from the step at which those runs differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vitprof.analysis.arrays import Floats

Effect = Literal["unknown", "same", "changes", "not yet", "differs by itself"]


@dataclass(frozen=True)
class Losses:
    """The losses of one run. (n,) each."""

    step: Floats
    """Numbers of the steps, ascending."""
    loss: Floats
    """NaN where it is not known."""


@dataclass(frozen=True)
class LossEffect:
    """What a setting does to the losses."""

    effect: Effect
    """changes: other losses than those of the unchanged script. not yet: they differ, but the unchanged script has run
    only once, so that may be chance. differs by itself: the unchanged script gives other losses each time, so the
    effect of the setting cannot be told. unknown: there is no step with a loss of both."""
    step: int = -1
    """The first step at which they differ; -1 if there is none."""
    own_step: int = -1
    """The first step at which runs of this setting differ from each other; -1 if they do not, or there is only one."""

    @property
    def sentence(self) -> str:
        """Returns the effect in words, for the middle of a sentence; "" if there is nothing to say."""
        match self.effect:
            case "changes":
                more = f", and they differ from run to run from step {self.own_step}" if self.own_step >= 0 else ""
                return f"changes the losses: from step {self.step}{more}"
            case "not yet":
                return f"other losses from step {self.step}; one more round tells whether the setting changes them"
            case "differs by itself":
                return f"the script's losses differ from run to run, from step {self.step}, as it is"
            case _:
                return ""


def loss_effect(as_it_is: Sequence[Losses], mine: Sequence[Losses]) -> LossEffect:
    """Returns the effect of a setting on the losses: `mine` are those of its runs, `as_it_is` those of the unchanged
    script.
    """
    if not as_it_is or not mine:
        return LossEffect("unknown")
    own = _first([(a, b) for i, a in enumerate(mine) for b in mine[:i]])
    pairs = [(a, b) for a in as_it_is for b in mine]
    if not any(_common(a, b) for a, b in pairs):
        return LossEffect("unknown")
    by_itself = _first([(a, b) for i, a in enumerate(as_it_is) for b in as_it_is[:i]])
    partings = [_parting(a, b) for a, b in pairs]
    first = min(partings)
    if by_itself < math.inf:
        # runs that differ by chance do so at different steps; a setting's effect is at the same step in all pairs
        at_once = len(mine) > 1 and set(partings) == {first} and first < min(by_itself, own)
        if not at_once:
            return LossEffect("differs by itself", int(by_itself))
    elif first == math.inf:
        return LossEffect("same")
    elif len(as_it_is) < 2:
        return LossEffect("not yet", int(first))
    return LossEffect("changes", int(first), -1 if own == math.inf else int(own))


def _first(pairs: Sequence[tuple[Losses, Losses]]) -> float:
    """Returns the first step at which any of these pairs of runs differ; infinite if none does."""
    return min((_parting(a, b) for a, b in pairs), default=math.inf)


def _parting(a: Losses, b: Losses) -> float:
    steps, at_a, at_b = np.intersect1d(a.step, b.step, return_indices=True)
    mine, other = a.loss[at_a], b.loss[at_b]
    differ = (mine != other) & ~np.isnan(mine) & ~np.isnan(other)
    return float(steps[differ][0]) if differ.any() else math.inf


def _common(a: Losses, b: Losses) -> bool:
    _, at_a, at_b = np.intersect1d(a.step, b.step, return_indices=True)
    return bool((~np.isnan(a.loss[at_a]) & ~np.isnan(b.loss[at_b])).any())
