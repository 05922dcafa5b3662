"""`read`: says from a trace of torch.profiler whether the device was starved."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from vitprof import formats
from vitprof.cli.common import terminal, watched_result
from vitprof.cli.common.progress import progress, shows_progress
from vitprof.config.bounds import RUN_BOUNDS
from vitprof.experiments import answers
from vitprof.export import tables
from vitprof.recording.shared_machine import as_shown
from vitprof.traces.trace_file import OnProgress, Progress

TRACE_HELP = "trace that torch.profiler has written, as JSON; .gz too"
NAME_HELP = "name of the run; the file's if not given"
BATCH_HELP = "samples of a batch, which no trace tells: without it there are no samples/s"
WORKERS_HELP = "workers of its train DataLoader, whose number no trace tells"
MARKDOWN_HELP = "print the answer as Markdown, to paste into an issue, instead of the summary"
SAY_EVERY_S = 5.0
"""Seconds between lines about how far the file is read, where no terminal can show a bar."""


def read(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help=TRACE_HELP, show_default=False)],
    name: Annotated[str, typer.Option(help=NAME_HELP, show_default=False)] = "",
    batch_size: Annotated[
        int | None,
        terminal.number("batch_size", RUN_BOUNDS["batch_size"], BATCH_HELP, show_default=False),
    ] = None,
    workers: Annotated[
        int | None,
        terminal.number("workers", RUN_BOUNDS["workers"], WORKERS_HELP, show_default=False),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help=MARKDOWN_HELP)] = False,
    as_json: terminal.AsJson = False,
) -> None:
    """Read a trace of torch.profiler as a run: was the device starved, by what, and by how much."""
    from vitprof.jobs.trace_runs import add_trace

    name = terminal.name_to_keep(name)
    with terminal.open_store() as store:
        with _shown() as on_progress:
            run = add_trace(
                store,
                trace,
                name=name,
                batch_size=batch_size,
                workers=workers,
                on_progress=on_progress,
            )
        if as_json:
            answer = answers.answer_of_run(store, run)
            terminal.print_json(tables.run_object(run, answer=answer))
            return
        if markdown:
            terminal.show(*watched_result.markdown_lines(store, run))
        else:
            terminal.show(*watched_result.result_lines(store, run))
        terminal.show(*as_shown(run.notices), console=terminal.err)


@contextlib.contextmanager
def _shown() -> Iterator[OnProgress]:
    """Yields what shows how far the file is read: a bar on a terminal, else a line now and then."""
    if not shows_progress():
        yield said_now_and_then(terminal.remark)
        return
    with progress() as show:

        def draw(now: Progress) -> None:
            show(f"reading, {now.n_events:,} events", now.done_bytes / max(1, now.total_bytes))

        yield draw


def said_now_and_then(
    say: Callable[[str], object], clock: Callable[[], float] = time.monotonic
) -> OnProgress:
    """Returns what says how far the file is read, at most every `SAY_EVERY_S`, and not before."""
    said_s = clock()

    def tell(now: Progress) -> None:
        nonlocal said_s
        if clock() - said_s < SAY_EVERY_S:
            return
        said_s = clock()
        share = formats.percent(now.done_bytes / max(1, now.total_bytes))
        say(f"read {share} of {formats.size(now.total_bytes)}, {now.n_events:,} events")

    return tell
