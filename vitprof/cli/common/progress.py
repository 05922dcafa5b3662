"""Progress: a bar on a terminal, and lines now and then in a log."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Protocol

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from vitprof import names
from vitprof.cli.common import terminal
from vitprof.cli.common.progress_lines import ProgressLines
from vitprof.experiments import trials
from vitprof.store import RunStore, StoredRun

PROGRESS_EVERY_S = 0.1


class Show(Protocol):
    """Shows what is running, and the share of it that is done."""

    @property
    def is_due(self) -> bool:
        """Returns whether what is shown now is seen: words may take a while to compute."""

    def __call__(self, words: str, fraction: float | None) -> None:
        """Shows `words`; `fraction`: 0 to 1, None while that is not known."""


class ProgressBar:
    """A bar on a terminal."""

    is_due = True

    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar = bar
        self._task = task

    def __call__(self, words: str, fraction: float | None) -> None:
        """Shows the words and the share. A share that falls begins another bar."""
        done = fraction or 0.0
        if done < self._bar.tasks[0].completed:
            self._bar.reset(self._task)
        total = None if fraction is None else 1.0
        self._bar.update(self._task, description=names.harmless(words), total=total, completed=done)


def shows_progress() -> bool:
    """Returns whether standard error is a terminal, which shows a bar."""
    return sys.stderr.isatty() and terminal.err.is_terminal


@contextlib.contextmanager
def progress() -> Iterator[Show]:
    """Yields what shows progress: a bar on a terminal, otherwise a line now and then."""
    if not shows_progress():
        yield ProgressLines()
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
    )
    # It estimates the time left by what it saw in this hour: whole jobs may pass between two changes.
    made = Progress(
        *columns,
        TimeRemainingColumn(),
        console=terminal.err,
        transient=True,
        speed_estimate_period=3600,
    )
    with made as bar:
        yield ProgressBar(bar, bar.add_task("starting", total=None))


def run_progress(show: Show) -> Callable[..., None]:
    """Returns a function that shows a run's progress, after other words.

    Without a terminal it prints, once, what a queued run waits for: otherwise nothing explains the delay.
    """
    printed = ""

    def show_run(run: StoredRun, before: str = "") -> None:
        nonlocal printed
        show(before + (run.message or run.stage or run.status), run.progress)
        if run.status == "queued" and run.message not in ("", printed) and not shows_progress():
            printed = run.message
            terminal.show(f"run {run.id} is {printed}", console=terminal.err)

    return show_run


def trial_progress(store: RunStore, show: Show) -> Callable[[trials.Progress], None]:
    """Returns a function that shows the run that an experiment has come to."""
    show_run = run_progress(show)
    return lambda p: show_run(store.run(p.run_id or 0), f"{p.words}, {p.done + 1} of {p.total}: ")
