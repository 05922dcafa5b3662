"""The loop that trains, as the threads of a trace show it: its steps, waits, epochs and evaluations.

**Where a step begins and ends.** As in every recording a step begins with the request for its batch,
which is the beginning of `enumerate(DataLoader)#...__next__`, and its work ends with the step of the
optimizer. An iteration of the profiler (`ProfilerStep#`) is no step: it goes from one `prof.step()` to
the next one, so the wait for a batch lies at its beginning where the loop calls that last, and at its
end where the loop calls it first. What both have in common is how many requests there are between two
steps of the optimizer (or, without one, between two calls of `prof.step()`). By these requests:

* As many as usual are those of the step. Several loaders that are zipped make two of each step.
* One more than usual: the first one ended the epoch, which PyTorch records like any other request. Its
  wait is part of the step that begins the next epoch.
* Many more than usual: an evaluation was between them. Those directly before the optimizer's step are
  of the training, and all before them of the evaluation.
* Where gradients are accumulated and the profiler counts each batch, each batch is a step, as in a
  script that is watched; without the profiler's steps all batches of an update are one.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vitprof.traces.events import HostSpan, ThreadSpans

OTHERS_TRAIN_FRAC = 0.05
"""Share of the optimizer's steps in other threads from which several threads train."""
BY_UPDATES = "Optimizer.step"
BY_ITERATIONS = "ProfilerStep"
NO_STEPS = (
    "no step of a training is in it: call prof.step() in the loop, or record a step of an optimizer"
)


class NoStepsError(ValueError):
    """A trace in which nothing trains."""


@dataclass(frozen=True, slots=True)
class LoopStep:
    """A step of the loop, on the host's clock."""

    fetches: tuple[HostSpan, ...]
    """Its requests for batches in their order; none where it was not seen how its batch came."""
    begin_s: float
    """When it began: with its first request, or where the step before ended."""
    updated: HostSpan | None
    """From its optimizer's first step to the end of its last one; None where none was seen."""
    next_begin_s: float
    """When the step after it began, an evaluation, or the end of an epoch."""
    epoch: int
    after_evaluation: bool
    n_batches: int
    """Batches that it has: a request that ended an epoch came back without one."""


@dataclass(frozen=True, slots=True)
class Loop:
    """The loop that trains."""

    steps: tuple[LoopStep, ...]
    evaluations: tuple[HostSpan, ...]
    steps_by: str
    """What tells the steps apart: `BY_UPDATES` or `BY_ITERATIONS`."""
    first_iteration: int | None
    """The number of the profiler's first step; None without one."""
    loader_class: str
    """The class of the iterator that most batches came from; "" where no batch was seen."""
    fetched_elsewhere: bool
    """Whether batches were requested in other threads alone."""
    others_train: bool
    """Whether optimizers step in other threads, too."""


@dataclass(frozen=True, slots=True)
class _Group:
    """What lies between two ends of training work: the requests, then the update."""

    fetches: tuple[HostSpan, ...]
    updated: HostSpan | None
    end_s: float
    """When it ended on the host."""


def find_loop(threads: Mapping[tuple[str, str], ThreadSpans]) -> Loop:
    """Returns the loop of the thread in which optimizers step, or, without these, in which the
    profiler does.

    Raises `NoStepsError` where there is none.
    """
    counts = {
        name: (len(spans.updates), len(spans.iterations), len(spans.fetches))
        for name, spans in threads.items()
    }
    training = max(counts, key=lambda name: counts[name], default=None)
    if training is None:
        raise NoStepsError(NO_STEPS)
    spans = threads[training]
    # Without a call of prof.step() all of the trace is its first iteration.
    if not spans.updates and len(spans.iterations) < 2:
        raise NoStepsError(NO_STEPS)
    others = [of_thread for name, of_thread in threads.items() if name != training]
    n_others = sum(len(of_thread.updates) for of_thread in others)
    groups = _groups(spans)
    usual = _usual(groups)
    steps, evaluations = _steps(groups, usual, spans)
    if not steps:
        raise NoStepsError(NO_STEPS)
    fetched = [fetch for step in steps for fetch in step.fetches]
    classes = Counter(fetch.label.partition(".")[0] for fetch in fetched)
    common = classes.most_common(1)
    return Loop(
        steps=tuple(steps),
        evaluations=tuple(evaluations),
        steps_by=BY_UPDATES if spans.updates else BY_ITERATIONS,
        first_iteration=_number(spans.iterations[0]) if spans.iterations else None,
        loader_class=common[0][0] if common else "",
        fetched_elsewhere=not spans.fetches and any(each.fetches for each in others),
        others_train=n_others > OTHERS_TRAIN_FRAC * max(1, len(spans.updates)),
    )


def _number(iteration: HostSpan) -> int | None:
    return int(iteration.label) if iteration.label.isdecimal() else None


def _groups(spans: ThreadSpans) -> list[_Group]:
    """Returns the requests and updates in groups, each of which ends with training work."""
    if not spans.updates:
        return _groups_of_iterations(spans)
    if not spans.fetches:
        return _groups_without_loader(spans)
    groups = list[_Group]()
    fetches = list[HostSpan]()
    updates = list[HostSpan]()
    of_both = [(span.start_s, True, span) for span in spans.updates]
    of_both += [(span.start_s, False, span) for span in spans.fetches]
    for _, is_update, span in sorted(of_both, key=lambda each: each[:2]):
        # Several optimizers, and several steps on a batch, are one update.
        if not is_update and updates:
            groups.append(_group(fetches, updates))
            fetches = []
            updates = []
        if is_update:
            updates.append(span)
        else:
            fetches.append(span)
    if updates:
        groups.append(_group(fetches, updates))
    return groups


def _group(fetches: Sequence[HostSpan], updates: Sequence[HostSpan]) -> _Group:
    updated = HostSpan(updates[0].start_s, updates[-1].end_s, updates[0].label)
    return _Group(tuple(fetches), updated, updated.end_s)


def _groups_of_iterations(spans: ThreadSpans) -> list[_Group]:
    """Returns a group for each iteration of the profiler: no optimizer is seen to step.

    Where the loop calls `prof.step()` first, an iteration ends with the request of the next step,
    and the work of the last one is not in the trace.
    """
    groups = list[_Group]()
    starts_s = [fetch.start_s for fetch in spans.fetches]
    first = 0
    for iteration in spans.iterations:
        end = max(first, bisect_left(starts_s, iteration.end_s))
        groups.append(_Group(tuple(spans.fetches[first:end]), None, iteration.end_s))
        first = end
    if _fetches_last(spans.iterations, groups) and groups[-1].fetches:
        del groups[-1]
    return groups


def _fetches_last(iterations: Sequence[HostSpan], groups: Sequence[_Group]) -> bool:
    """Returns whether requests are at the ends of the profiler's iterations, not at their beginnings."""
    heads_s = []
    tails_s = []
    for iteration, group in zip(iterations, groups, strict=True):
        if group.fetches:
            heads_s.append(group.fetches[0].start_s - iteration.start_s)
            tails_s.append(iteration.end_s - group.fetches[-1].end_s)
    return bool(heads_s) and float(np.median(heads_s)) > float(np.median(tails_s))


def _groups_without_loader(spans: ThreadSpans) -> list[_Group]:
    """Returns a group for each iteration of the profiler in which an optimizer steps; without
    iterations, for each of these steps."""
    if not spans.iterations:
        return [_group((), [update]) for update in spans.updates]
    starts_s = [iteration.start_s for iteration in spans.iterations]
    of_iteration: dict[int, list[HostSpan]] = {}
    for update in spans.updates:
        of_iteration.setdefault(bisect_right(starts_s, update.start_s), []).append(update)
    return [_group((), updates) for updates in of_iteration.values()]


def _usual(groups: Sequence[_Group]) -> int:
    """Returns how many requests most groups have, of those that are whole; 0 without any request."""
    # The first one may have begun before the trace.
    whole = groups[1:] or groups
    numbers = Counter(len(group.fetches) for group in whole)
    if not sum(number * times for number, times in numbers.items()):
        return 0
    most = max(numbers.values())
    return max(1, min(number for number, times in numbers.items() if times == most))


def _steps(
    groups: Sequence[_Group], usual: int, spans: ThreadSpans
) -> tuple[list[LoopStep], list[HostSpan]]:
    """Returns the steps, and the evaluations before some of them."""
    steps = list[LoopStep]()
    evaluations = list[HostSpan]()
    iteration_starts_s = [iteration.start_s for iteration in spans.iterations]
    epoch = 0
    before_s = math.nan
    for place, group in enumerate(groups):
        n_more = len(group.fetches) - usual
        is_first = place == 0
        is_cut = is_first and n_more < 0
        next_begin_s = _next_begin(groups, place, spans)
        previous_end_s = before_s
        before_s = group.end_s
        if is_cut:
            continue
        own = group.fetches[max(0, n_more) :]
        ends_epoch = n_more == 1 and not is_first
        has_evaluated = n_more > 1 and not is_first
        if ends_epoch:
            own = group.fetches
        if ends_epoch or has_evaluated:
            epoch += 1
        if has_evaluated:
            evaluated = group.fetches[:n_more]
            evaluations.append(HostSpan(evaluated[0].start_s, own[0].start_s, ""))
        begin_s = previous_end_s
        if own:
            begin_s = own[0].start_s
        elif math.isnan(begin_s):
            begin_s = _begin_without_fetch(group, spans)
        step = LoopStep(
            fetches=own,
            begin_s=begin_s,
            updated=group.updated,
            next_begin_s=next_begin_s,
            epoch=epoch,
            after_evaluation=has_evaluated,
            n_batches=len(own) - int(ends_epoch),
        )
        steps += _split(step, usual, iteration_starts_s)
    return steps, evaluations


def _next_begin(groups: Sequence[_Group], place: int, spans: ThreadSpans) -> float:
    """Returns when what comes after a group begins; after the last one infinity where its update was
    seen, as the device works on, else its end."""
    if place + 1 < len(groups):
        following = groups[place + 1]
        return following.fetches[0].start_s if following.fetches else groups[place].end_s
    end_s = groups[place].end_s
    later_s = [fetch.start_s for fetch in spans.fetches if fetch.start_s >= end_s]
    if later_s:
        return later_s[0]
    return end_s if groups[place].updated is None else math.inf


def _begin_without_fetch(group: _Group, spans: ThreadSpans) -> float:
    """Returns when the first step of a loop began whose batches were not seen."""
    starts_s = [each.start_s for each in spans.iterations if each.start_s <= group.end_s]
    if starts_s:
        return starts_s[-1]
    return group.updated.start_s if group.updated is not None else group.end_s


def _split(step: LoopStep, usual: int, iteration_starts_s: Sequence[float]) -> list[LoopStep]:
    """Returns a step for each batch where the profiler counts each; else the step itself."""
    own = step.fetches[len(step.fetches) - usual :]
    iterations = {bisect_right(iteration_starts_s, fetch.start_s) for fetch in own}
    if usual < 2 or len(own) < usual or len(iterations) < usual:
        return [step]
    begins_s = [step.begin_s, *(fetch.start_s for fetch in own[1:])]
    ends_s = [*begins_s[1:], step.next_begin_s]
    n_before = len(step.fetches) - usual
    parts = []
    for number, fetch in enumerate(own):
        is_first = number == 0
        parts.append(
            LoopStep(
                fetches=(*step.fetches[:n_before], fetch) if is_first else (fetch,),
                begin_s=begins_s[number],
                updated=step.updated if number == usual - 1 else None,
                next_begin_s=ends_s[number],
                epoch=step.epoch,
                after_evaluation=step.after_evaluation and is_first,
                n_batches=1,
            )
        )
    return parts
