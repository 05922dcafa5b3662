"""The rows of `top`: what is listed of a run, in which order, and in which words. No store, no terminal."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from vitprof.analysis.verdict.answer import Answer, Part, causes_in_words, named_parts
from vitprof.formats import count, number, percent, seconds

Sort = Literal["newest", "idle", "slowest"]
SORTS: tuple[Sort, ...] = ("newest", "idle", "slowest")
"""What rows can be sorted by, in the order in which a key goes through them."""
QUIET_S = 10.0
"""Time (s) without a step from which it is said. The steps of a run reach the store twice a second."""
QUIET_STEPS = 5
"""Times the mean step that it takes as well: of a run whose steps take long, ten seconds are nothing."""


@dataclass(frozen=True, kw_only=True)
class TopRow:
    """A run in the list."""

    run_id: int
    name: str
    """The command of a watched script, else the run's name."""
    state: str
    """What it does now, or how it ended: "training", "queued", "done"."""
    live: bool
    queued: bool = False
    simulated: bool = False
    """Whether its device is simulated: such figures are labelled everywhere."""
    steps_per_s: float = math.nan
    """Steps in a second of the training so far; NaN where there are none yet."""
    answer: Answer | None = None
    """What the device waits for: so far, or of the verdict. None where nothing is known."""
    user: str = ""
    """Who started it."""
    pid: int
    """The process that trains, or that started it where that is not known."""
    host: str
    moment_s: float
    """Since when it goes on, or when it ended, in seconds since 1970; NaN where that is not known."""

    @property
    def idle_frac(self) -> float:
        """Returns the share of the training time that the device waited, as all pages and commands
        state it; NaN where it is not known."""
        return math.nan if self.answer is None else self.answer.frac

    @property
    def about(self) -> str:
        """Returns what it does, and whose it is: "training, anna, pid 4711 on node7"."""
        words = [self.state, "simulated" if self.simulated else "", self.who]
        return ", ".join(word for word in words if word)

    @property
    def who(self) -> str:
        """Returns "anna, pid 4711 on node7"; without the process of a run that has ended."""
        place = f"on {self.host}"
        if self.live:
            return f"{self.user}, pid {self.pid} {place}".removeprefix(", ")
        return f"{self.user} {place}".lstrip()


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What there was in the store at one moment."""

    rows: tuple[TopRow, ...] = ()
    has_older: bool = False
    """Whether the store has runs besides these."""
    at_s: float
    """The moment, in seconds since 1970."""
    opened: int | None = None
    """The run whose answer `answer_lines` are; None for none."""
    answer_lines: tuple[str, ...] = ()
    """The answer on that run, line by line."""


def in_order(rows: Iterable[TopRow], sort: Sort) -> list[TopRow]:
    """Returns the rows as they are listed: what trains, what is queued, what has ended; within each
    by `sort`, what is not known last."""

    def place(row: TopRow) -> tuple[bool, bool, bool, float, int]:
        figure = 0.0
        if sort == "idle":
            figure = -row.idle_frac
        elif sort == "slowest":
            figure = row.steps_per_s
        is_unknown = math.isnan(figure)
        return not row.live, row.queued, is_unknown, 0.0 if is_unknown else figure, -row.run_id

    return sorted(rows, key=place)


def next_sort(sort: Sort) -> Sort:
    return SORTS[(SORTS.index(sort) + 1) % len(SORTS)]


def headline(rows: Sequence[TopRow]) -> str:
    """Returns "2 running, 1 queued, 5 ended within the last hour"."""
    queued = sum(row.queued for row in rows)
    running = sum(row.live for row in rows) - queued
    words = [f"{running} running"]
    if queued:
        words.append(f"{queued} queued")
    words.append(f"{len(rows) - running - queued} ended within the last hour")
    return ", ".join(words)


def speed_in_words(row: TopRow) -> str:
    """Returns "81.2"; "" where there is no step to speak of."""
    return number(row.steps_per_s) if math.isfinite(row.steps_per_s) else ""


def idle_in_words(row: TopRow) -> str:
    """Returns "70%", as `vitprof runs` has it; "" where nothing is known."""
    return percent(row.idle_frac) if math.isfinite(row.idle_frac) else ""


def causes(row: TopRow) -> str:
    """Returns what the device waits for: "transforms 50%, decoding 16%"; without a verdict why there
    is none."""
    if row.answer is None:
        return ""
    if not row.answer.is_conclusive:
        return row.answer.headline
    return causes_in_words(row.answer)


def bar(row: TopRow, width: int) -> list[tuple[Part, int]]:
    """Returns the training time as a bar of `width` cells: its parts, what the device waits for
    first, then what it computes, each with its number of cells. Empty where they are not known."""
    if row.answer is None:
        return []
    parts = named_parts(row.answer)
    cells = shared_cells([part.frac for part in parts], width)
    return list(zip(parts, cells, strict=True))


def shared_cells(fracs: Sequence[float], width: int) -> list[int]:
    """Returns how many of `width` cells each share has. They add up to `width`: what rounding down
    leaves goes to the largest remainders (Hamilton's method)."""
    whole = math.fsum(fracs)
    if whole <= 0:
        return [0] * len(fracs)
    exact = [width * frac / whole for frac in fracs]
    cells = [math.floor(each) for each in exact]
    by_remainder = sorted(range(len(fracs)), key=lambda place: cells[place] - exact[place])
    for place in by_remainder[: width - sum(cells)]:
        cells[place] += 1
    return cells


def training_state(stage: str, step_s: float, quiet_s: float) -> str:
    """Returns what a run does that goes on: its stage, or for how long no step came of it.

    `step_s`: its mean step; `quiet_s`: how long ago the last one came.
    """
    if stage != "training" or not quiet_s > max(QUIET_S, QUIET_STEPS * step_s):
        return stage or "starting"
    return f"no step for {seconds(quiet_s)}"


def when(moment_s: float, now_s: float) -> str:
    """Returns the local time of a moment of this day, "10:32", of another one "29 Nov"; "" where it
    is not known. At most six characters."""
    if not math.isfinite(moment_s):
        return ""
    at = dt.datetime.fromtimestamp(moment_s)
    is_today = at.date() == dt.datetime.fromtimestamp(now_s).date()
    return f"{at:%H:%M}" if is_today else f"{at.day} {MONTHS[at.month - 1]}"


MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
"""Not of the locale: they have three characters everywhere."""


def what_to_type(called: str, *, has_older: bool) -> str:
    """Returns what stands in place of an empty list; `called`: how a person calls vitprof."""
    watching = f"{called} watch -- python train.py"
    if has_older:
        return f"nothing goes on or ended within the last hour; {called} runs lists earlier runs"
    return f"no runs; {watching} watches your script"


def hidden_in_words(above: int, below: int) -> str:
    """Returns "3 lines above, 5 lines below" of what does not fit; "" where all does."""
    words = []
    if above:
        words.append(f"{count(above, 'line')} above")
    if below:
        words.append(f"{count(below, 'line')} below")
    return ", ".join(words)
