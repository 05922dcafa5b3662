"""Progress bars of runs on a terminal."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from typing import Protocol

from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from vitprof import formats, names
from vitprof.cli.common import terminal
from vitprof.experiments import trials
from vitprof.store import RunStore, StoredRun

POLL_S = 0.1


class Show(Protocol):
    """A function that shows how far a run is, after the words `of_many`."""

    def __call__(self, run: StoredRun, of_many: str = "") -> None: ...


ShowOverall = Callable[[str, float, float], None]
"""Shows the progress of many runs: what is running, the share done (0 to 1), seconds left or NaN."""


def shows_progress() -> bool:
    return sys.stderr.isatty() and terminal.err.is_terminal


def _bar(left: ProgressColumn) -> Progress:
    words, share = TextColumn("{task.description}", markup=False), TextColumn("{task.percentage:>3.0f}%")
    return Progress(words, BarColumn(), share, left, console=terminal.err, transient=True)


@contextlib.contextmanager
def progress() -> Iterator[Show]:
    """Yields a function that shows a run's progress: a bar on a terminal, else a line with what the run waits for."""
    if not shows_progress():
        yield say_waiting()
        return
    with _bar(TimeRemainingColumn()) as bar:
        task = bar.add_task("queued", total=None)
        stage = ""

        def show(run: StoredRun, of_many: str = "") -> None:
            nonlocal stage
            if run.stage != stage:
                stage = run.stage
                bar.reset(task)
            bar.update(
                task,
                description=names.harmless(of_many + (run.message or run.stage or run.status)),
                total=None if run.progress is None else 1.0,
                completed=run.progress or 0.0,
            )

        yield show


def trial_progress(store: RunStore, show: Show) -> Callable[[trials.Progress], None]:
    return lambda p: show(store.run(p.run_id or 0), f"{p.words}, {p.done + 1} of {p.total}: ")


def say_waiting() -> Show:
    """Returns a function that prints, once, what a queued run waits for: otherwise nothing explains the delay."""
    shown = ""

    def show(run: StoredRun, of_many: str = "") -> None:
        nonlocal shown
        if run.status == "queued" and run.message not in ("", shown):
            shown = run.message
            terminal.show(f"run {run.id} is {shown}", console=terminal.err)

    return show


@contextlib.contextmanager
def overall_progress() -> Iterator[ShowOverall | None]:
    if not shows_progress():
        yield None
        return
    with _bar(TextColumn("{task.fields[left]}")) as bar:
        task = bar.add_task("starting", total=1.0, left="")

        def show(words: str, fraction: float, left_s: float) -> None:
            left = f"about {formats.seconds(math.ceil(left_s))} left" if math.isfinite(left_s) else ""
            bar.update(task, description=words, completed=fraction, left=left)

        yield show
