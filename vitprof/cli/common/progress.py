"""A progress bar on a terminal."""

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from vitprof import names
from vitprof.cli.common import terminal
from vitprof.experiments import trials
from vitprof.store import RunStore, StoredRun

PROGRESS_EVERY_S = 0.1

Show = Callable[[str, float | None], None]
"""Shows what is running, and the share of it that is done (0 to 1; None while that is not known)."""


def shows_progress() -> bool:
    return sys.stderr.isatty() and terminal.err.is_terminal


@contextlib.contextmanager
def progress() -> Iterator[Show]:
    """Yields a function that shows progress: a bar on a terminal, otherwise nothing."""
    if not shows_progress():
        yield lambda words, fraction: None
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
        task = bar.add_task("starting", total=None)

        def show(words: str, fraction: float | None) -> None:
            # something else has begun
            if (fraction or 0.0) < bar.tasks[0].completed:
                bar.reset(task)
            total = None if fraction is None else 1.0
            bar.update(
                task, description=names.harmless(words), total=total, completed=fraction or 0.0
            )

        yield show


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
