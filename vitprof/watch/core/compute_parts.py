"""What the compute of a step is made of, on a device that works at once: the CPU.

A step works from where it has its batches to where it ends. Backward passes and steps of optimizers
were seen from their beginnings to their ends; what the script does between them is told by what
follows:

    then follows                  | the time until then is
    ------------------------------+--------------------------------------------------
    a backward pass               | forward: the model, the loss
    an optimizer's step, after a  | backward: clipping and scaling of gradients are
    backward pass                 | part of it, as on a GPU
    an optimizer's step that has  | forward: the step calls a closure, as Lightning's
    a backward pass in it         | do, and what follows the pass in it is optimizer
    an optimizer's step, right    | none of them
    after another one             |
    nothing more, or a request    | none of them: logging, metrics, schedules

A step of an optimizer within a backward pass (in a hook of a gradient) is optimizer, not backward.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from vitprof.measure.step_columns import Columns
from vitprof.watch.core.loop import Step
from vitprof.watch.core.timeline import Work
from vitprof.watch.events import NAN, Kind

BACKWARD, STEPPED = Kind.BACKWARD, Kind.STEPPED


class ComputeParts(NamedTuple):
    """Seconds of each part of a step's compute, by their columns. What is none of them is the rest."""

    forward_compute_s: float
    backward_compute_s: float
    optimizer_compute_s: float


NOT_KNOWN = ComputeParts(NAN, NAN, NAN)


def part_columns(steps: Sequence[Step], *, optimizers_step: bool) -> Columns:
    """Returns the columns of what compute is made of, (n,) each. `optimizers_step`: whether the training
    is updated by optimizers of PyTorch's; else nobody has seen when it is."""
    rows = np.array([compute_parts(step) for step in steps]).reshape(-1, len(NOT_KNOWN))
    columns = dict(zip(ComputeParts._fields, rows.T, strict=True))
    if not optimizers_step:
        columns["optimizer_compute_s"] = np.full(len(steps), np.nan)
    return columns


def compute_parts(step: Step) -> ComputeParts:
    """Returns what a step's compute is made of; NaN where it cannot be told."""
    if not step.fetches or not step.wait_is_known:
        return NOT_KNOWN
    if len(step.fetches) == 1 and len(step.work) == 2:
        parts = _of_usual_step(step, *step.work)
        if parts is not None:
            return parts
    work = [each for each in step.work if each.kind is BACKWARD or each.kind is STEPPED]
    spans = _spans(step, work)
    if spans is None:
        return NOT_KNOWN
    parts = _divide(step.fetches[step.n_of_last_epoch].received_s, spans)
    if all(each.kind is not BACKWARD for each in work):
        # Gradients were made in a way that is not seen.
        return parts._replace(forward_compute_s=NAN, backward_compute_s=NAN)
    return parts


def _of_usual_step(step: Step, backward: Work, stepped: Work) -> ComputeParts | None:
    """Returns the parts of a step as most are: a batch, a backward pass, and then an update. None for
    any other. It takes a fifth of the time of the general rule, which says the same."""
    if backward.kind is not BACKWARD or stepped.kind is not STEPPED:
        return None
    received_s = step.fetches[0].received_s
    # False where any of them is not known.
    is_in_order = backward.at_s <= backward.until_s <= stepped.since_s <= stepped.at_s
    if not (is_in_order and received_s <= backward.at_s and stepped.at_s <= step.end_s):
        return None
    return ComputeParts(
        backward.at_s - received_s,
        stepped.since_s - backward.at_s,
        stepped.at_s - stepped.since_s,
    )


class StepPart(enum.Enum):
    """What a moment of a step is part of."""

    FORWARD = enum.auto()
    BACKWARD = enum.auto()
    OPTIMIZER = enum.auto()
    OTHER = enum.auto()
    """None of them, or a wait, which is no compute."""


@dataclass(slots=True, eq=False)
class _Span:
    """A wait, a backward pass, or an optimizer's step."""

    kind: Kind
    """`REQUESTED`, `BACKWARD` or `STEPPED`."""
    begin_s: float
    end_s: float
    pass_follows: bool = False
    """Whether a backward pass in it, an optimizer's step, is still to come."""

    def part(self) -> StepPart:
        """Returns what the time in it is, where nothing else goes on within."""
        if self.kind is BACKWARD:
            return StepPart.BACKWARD
        if self.kind is STEPPED:
            return StepPart.FORWARD if self.pass_follows else StepPart.OPTIMIZER
        return StepPart.OTHER


@dataclass(frozen=True, slots=True)
class _Edge:
    """Where a span begins or ends."""

    at_s: float
    span: _Span
    begins: bool


def _spans(step: Step, work: Sequence[Work]) -> list[_Span] | None:
    """Returns the waits and the work since a step's first batch came; None where the end of any is not
    known, or where an optimizer's step has several passes in it: between them it searches, as LBFGS
    does, and what of that is forward cannot be told."""
    first, *later = step.fetches[step.n_of_last_epoch :]
    waits = [_Span(Kind.REQUESTED, each.since_s, each.received_s) for each in later]
    passes = [_Span(BACKWARD, each.at_s, each.until_s) for each in work if each.kind is BACKWARD]
    updates = [_Span(STEPPED, each.since_s, each.at_s) for each in work if each.kind is STEPPED]
    spans = sorted([*waits, *passes, *updates], key=lambda span: span.begin_s)
    for span in spans:
        # False where any of them is not known.
        if not first.received_s <= span.begin_s <= span.end_s <= step.end_s:
            return None
    for update in updates:
        n_passes = sum(update.begin_s <= each.begin_s < update.end_s for each in passes)
        if n_passes > 1:
            return None
        update.pass_follows = n_passes == 1
    return spans


def _divide(begun_s: float, spans: Sequence[_Span]) -> ComputeParts:
    """Returns the seconds of each part since a step began to work. What follows its last span is none."""
    edges = []
    for span in spans:
        edges += [_Edge(span.begin_s, span, begins=True), _Edge(span.end_s, span, begins=False)]
    edges.sort(key=lambda edge: edge.at_s)
    seconds = dict.fromkeys(StepPart, 0.0)
    going_on: list[_Span] = []
    has_worked = has_passed = False
    at_s = begun_s
    for number, edge in enumerate(edges):
        span = edge.span
        if going_on:
            part = going_on[-1].part()
        elif span.kind is Kind.REQUESTED and not has_worked:
            # Of several batches all are there as the forward pass begins.
            part = StepPart.OTHER
        else:
            part = _part_before(edges[number:], has_passed=has_passed)
        seconds[part] += edge.at_s - at_s
        at_s = edge.at_s
        if not edge.begins:
            going_on.remove(span)
            has_passed = span.kind is BACKWARD or (has_passed and span.kind is not STEPPED)
            continue
        if span.kind is BACKWARD:
            for around in going_on:
                around.pass_follows = False
        has_worked = has_worked or span.kind is not Kind.REQUESTED
        going_on.append(span)
    return ComputeParts(
        seconds[StepPart.FORWARD], seconds[StepPart.BACKWARD], seconds[StepPart.OPTIMIZER]
    )


def _part_before(edges: Sequence[_Edge], *, has_passed: bool) -> StepPart:
    """Returns what the time is in which nothing goes on, by the work that follows. `has_passed`: whether
    there was a backward pass since the last update."""
    for edge in edges:
        if not edge.begins or edge.span.kind is Kind.REQUESTED:
            continue
        if edge.span.kind is BACKWARD or edge.span.pass_follows:
            return StepPart.FORWARD
        return StepPart.BACKWARD if has_passed else StepPart.OTHER
    return StepPart.OTHER
