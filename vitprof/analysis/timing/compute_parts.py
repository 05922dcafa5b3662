"""What the compute of a step is made of: the forward pass, the backward pass, the optimizer, and the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vitprof import formats
from vitprof.analysis.arrays import Floats, Mask, Series, column, median
from vitprof.recording.columns import RunSummary

PARTS = ("forward", "backward", "optimizer", "other")
"""The parts in their order in a step. other: what is none of the three, such as logging, metrics, a
schedule of the learning rate, and what the device does to prepare the batch."""


@dataclass(frozen=True)
class ComputePart:
    """A part of the compute of steps."""

    name: str
    """One of `PARTS`."""
    frac: float
    """Its share of the compute of these steps, 0..1: the sum of one over the sum of the other. NaN
    where it is not known: an update by hand is no step of an optimizer, and counts as other."""
    median_s: float
    """Its median time in a step."""


@dataclass(frozen=True)
class DividedCompute:
    """The compute of steps whose parts are known."""

    n: int
    """Number of these steps. On a GPU they are a part of all."""
    median_s: float
    """Median compute of these steps."""
    parts: tuple[ComputePart, ...]
    """One for each of `PARTS`. The shares that are known add up to 1."""


def part_seconds(steps: Series) -> dict[str, Floats]:
    """Returns the seconds of each part in each step, (n,) by the names of `PARTS`; NaN in steps whose
    forward and backward passes are not known.

    What of the optimizer is not known counts as other.
    """
    forward_s, backward_s, optimizer_s = (column(steps, f"{name}_compute_s") for name in PARTS[:-1])
    rest_s = column(steps, "compute_s") - forward_s - backward_s - np.nan_to_num(optimizer_s)
    # A difference is off by rounding.
    rest_s = np.maximum(0.0, rest_s)
    seconds = dict(zip(PARTS, (forward_s, backward_s, optimizer_s, rest_s), strict=True))
    are_known = np.isfinite(rest_s)
    return {name: np.where(are_known, of_part, np.nan) for name, of_part in seconds.items()}


def divide_compute(steps: Series, counted: Mask) -> DividedCompute | None:
    """Returns the parts of compute over the steps in `counted` whose forward and backward passes are
    known; None if there is none.

    Where an optimizer stepped in some of them, only the steps in which it is known count.
    """
    compute_s = column(steps, "compute_s")
    seconds = part_seconds(steps)
    known = counted & np.isfinite(seconds["other"])
    has_optimizer = known & np.isfinite(seconds["optimizer"])
    if has_optimizer.any():
        known = has_optimizer
    total_s = float(compute_s[known].sum())
    if not total_s > 0:
        return None
    parts = []
    for name, of_part in seconds.items():
        frac = float(of_part[known].sum()) / total_s
        parts.append(ComputePart(name, frac, median(of_part[known])))
    return DividedCompute(int(known.sum()), median(compute_s[known]), tuple(parts))


def divided_figures(divided: DividedCompute | None) -> dict[str, float]:
    """Returns these figures by their names in a `RunSummary`, but for their number; nothing where none is
    known."""
    if divided is None:
        return {}
    figures = {"compute_ms_median": divided.median_s * 1e3}
    for part in divided.parts:
        figures[f"{part.name}_compute_frac"] = part.frac
        figures[f"{part.name}_compute_ms_median"] = part.median_s * 1e3
    return figures


def divided_compute_of(summary: RunSummary) -> DividedCompute | None:
    """Returns the inverse of `divided_figures`."""
    if not summary.n_divided_steps:
        return None
    parts = []
    for name in PARTS:
        frac = getattr(summary, f"{name}_compute_frac")
        parts.append(ComputePart(name, frac, getattr(summary, f"{name}_compute_ms_median") / 1e3))
    return DividedCompute(summary.n_divided_steps, summary.compute_ms_median / 1e3, tuple(parts))


def divided_in_words(divided: DividedCompute) -> str:
    """Returns the compute of a step and the share of each part in a few words:
    "Compute of a step (median 12 ms): forward 41%, backward 46%, optimizer 9%, rest 4%"."""
    median = formats.seconds(divided.median_s)
    return f"Compute of a step (median {median}): {parts_in_words(divided)}"


def parts_in_words(divided: DividedCompute) -> str:
    """Returns the share of each part in a few words: "forward 41%, backward 46%, optimizer 9%, rest 4%"."""
    shares = {part.name: part.frac for part in divided.parts}
    rest = "rest"
    if math.isnan(shares["optimizer"]):
        del shares["optimizer"]
        rest = "rest, with the update,"
    words = [f"{name} {formats.percent(frac)}" for name, frac in shares.items() if name != "other"]
    # In vitprof's own jobs a step of the optimizer is the last work.
    in_percent = formats.percent(shares["other"])
    if in_percent != formats.percent(0):
        words.append(f"{rest} {in_percent}")
    return ", ".join(words)
