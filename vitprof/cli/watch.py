"""`watch`: measures a user's own training script from inside, without changing it."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitprof import errors, formats
from vitprof.analysis import thresholds
from vitprof.analysis.arrays import Series
from vitprof.analysis.timing import summary
from vitprof.attempts import Attempt
from vitprof.cli import dashboard
from vitprof.cli.common import terminal, watched_result
from vitprof.cli.common.progress_lines import ProgressLines
from vitprof.cli.common.status_line import can_show, status_line
from vitprof.config import bounds, own_script
from vitprof.config.device_rate import device_rate
from vitprof.experiments import answers
from vitprof.export import tables, write_text
from vitprof.export.trackers import TrackerLink
from vitprof.jobs.command import CommandRunner
from vitprof.jobs.event_files import EventFiles
from vitprof.jobs.signals import SignalRelay, shares_group
from vitprof.jobs.unseen import UNSEEN_AFTER_S
from vitprof.masking import masked_command
from vitprof.names import MAX_NAME
from vitprof.program import why_not_started
from vitprof.recording.shared_machine import as_shown
from vitprof.store import MissingError, RunStore, StoredRun, chunks
from vitprof.store.new_run import NewRun
from vitprof.watch.core.columns import WARMUP_STEPS

if TYPE_CHECKING:
    from vitprof.jobs.supervisor import JobRecorder

STATUS_EVERY_S = 0.5
EXIT_NOT_FOUND = 127
"""A shell's exit status for a command that it cannot find."""
CLEARED_WITHIN_S = 1.0
"""How long (s) after the script's end to wait until what killed programs left is removed."""
ADDRESS_S = 1.0
"""How long (s) it may take to find out where a dashboard runs."""
ADD_EVERY_S = 0.5
"""Seconds between updates of the figures; the status line is redrawn as often. An update costs the same
for one step as for hundreds."""
WAITING = "waiting for a training loop over a DataLoader"
COMMAND_HELP = "command to run, after --: python train.py --epochs 1"
STEPS_HELP = "end the script after this many training steps"
DETACH_HELP = "stop watching after this many training steps; the script goes on"
HEADROOM_HELP = (
    "measure how much faster the script would be with free data: some batches are used again, so it trains on them "
    "more often and an epoch takes longer"
)
CAUSAL_HELP = "measure what a faster stage would give: everything else pauses now and then, so the script takes longer"
EVENTS_HELP = (
    "keep the times of what was seen in this file, for a bug report: no data, no names of files"
)
BOTH = "--headroom and --causal: each needs the steps for itself; choose one"
MARKDOWN_HELP = "print the answer as Markdown, to paste into an issue, instead of the summary"
LOG_HELP = "write live figures and the verdict into the script's own active run of this tracker: mlflow or wandb"


def watch(
    command: Annotated[
        list[str], typer.Argument(help=COMMAND_HELP, metavar="-- COMMAND...", show_default=False)
    ],
    name: Annotated[str, typer.Option(help="name of the run; the command if not given")] = "",
    steps: Annotated[int | None, terminal.number("steps", bounds.WATCHED_STEPS, STEPS_HELP)] = None,
    detach_after: Annotated[
        int | None, terminal.number("detach_after", bounds.WATCHED_STEPS, DETACH_HELP)
    ] = None,
    headroom: Annotated[bool, typer.Option("--headroom", help=HEADROOM_HELP)] = False,
    causal: Annotated[bool, typer.Option("--causal", help=CAUSAL_HELP)] = False,
    log_to: Annotated[str, typer.Option(help=LOG_HELP, show_default=False)] = "",
    json_file: Annotated[
        Path | None, typer.Option("--json", help="write the run to this file as JSON")
    ] = None,
    events: Annotated[Path | None, typer.Option(help=EVENTS_HELP)] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help=MARKDOWN_HELP)] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="print errors only: no status line, no summary")
    ] = False,
) -> None:
    """Watch your own training script. The script, its output and its exit status stay the same."""
    if headroom and causal:
        terminal.complain(BOTH, terminal.EXIT_BAD_VALUE)
    _check_steps(steps)
    name = terminal.name_to_keep(name)
    terminal.check_output(json_file, "json")
    terminal.check_output(events, "events")
    _check_rate()
    event_files = EventFiles(events) if events is not None else None
    link = TrackerLink(log_to) if log_to else None
    so_far = None if quiet else WatchedSoFar()
    with terminal.signals_relayed() as signals, contextlib.ExitStack() as stack:
        try:
            # nothing is asked of it before the script runs
            store = stack.enter_context(contextlib.closing(RunStore(opens=False)))
            on_steps = None if so_far is None else so_far.take
            runner = CommandRunner(
                command,
                steps=steps,
                detach_after=detach_after,
                headroom=headroom,
                causal=causal,
                on_steps=on_steps,
                events=event_files,
                variables=stack.enter_context(link).variables if link else None,
            )
        except errors.JobError as error:
            terminal.complain(errors.one_line(error), EXIT_NOT_FOUND)
        except Exception as error:  # whatever it is, the script starts
            _say(f"not watching: {errors.one_line(error)}")
            stack.close()
            raise SystemExit(_unobserved(command, signals)) from None
        signals.to(runner.signalled)
        try:
            from vitprof.jobs.killed_jobs import clear_orphans

            cleared = Attempt(clear_orphans, "vitprof-cleaner")
            masked = masked_command([word[: 10 * MAX_NAME] for word in command[:MAX_NAME]])
            name = name or shlex.join([os.path.basename(masked[0]), *masked[1:]])
            run = _watched(store, runner, name, shlex.join(masked), so_far, quiet=quiet)
            if event_files is not None and not event_files.written:
                _say(f"{events} was not written: no process fetched a batch, or trained")
            if run is not None:
                from vitprof.jobs import finalise, nodes

                run, line = nodes.join(store, run, finalise.settle)
                if line:
                    _say(line)
                _show_result(store, run, quiet=quiet, markdown=markdown)
                if link is not None:
                    line = link.conclude(run)
                    if line:
                        _say(line)
                if json_file is not None:
                    _write_json(store, run, json_file)
        except (Exception, SystemExit) as error:
            # the script goes on, and how it ends is how this command does
            _say(errors.one_line(error))
            runner.finish()
        with contextlib.suppress(Exception):
            cleared.result(CLEARED_WITHIN_S)
    raise SystemExit(_status(runner.returncode or 0))


def _check_steps(steps: int | None) -> None:
    """Refuses a number of steps that can end in no verdict, before the script runs for it."""
    least = WARMUP_STEPS + thresholds.MIN_STEPS
    if steps is None or steps >= least:
        return
    why = (
        f"the first {WARMUP_STEPS} are its warm-up, and a verdict needs {thresholds.MIN_STEPS} more"
    )
    terminal.complain(f"--steps {steps}: give {least} or more: {why}", terminal.EXIT_BAD_VALUE)


def _check_rate() -> None:
    """Says what is wrong with the price of a device, if anything is. The script runs all the same."""
    try:
        device_rate()
    except errors.VitprofError as error:
        _say(f"{errors.one_line(error)}; until then no money is told")


def _say(line: str) -> None:
    # the terminal may be gone; for a closed pipe rich exits
    with contextlib.suppress(Exception, SystemExit):
        terminal.show(f"vitprof: {line}", console=terminal.err)


def _say_where(run_id: int) -> None:
    """Says where a dashboard shows a run, if one runs."""
    address = ""
    # the home, where that is noted, may be on a drive that does not answer
    with contextlib.suppress(TimeoutError):
        address = Attempt(lambda: dashboard.address_of(run_id), "vitprof-address").result(ADDRESS_S)
    if address:
        _say(f"run {run_id} is shown at {address}")


def _unobserved(command: list[str], signals: SignalRelay) -> int:
    """Runs the script without watching it, and returns its exit status."""
    try:
        process = subprocess.Popen(command)
    except OSError as error:
        why = why_not_started(command[0], error)
        terminal.complain(f"cannot start {command[0]}: {why}", EXIT_NOT_FOUND)

    def pass_on(number: int, to_group: bool) -> None:
        if not (to_group and shares_group(process.pid)):
            process.send_signal(number)

    signals.to(pass_on)
    return _status(process.wait())


def _watched(
    store: RunStore,
    runner: CommandRunner,
    name: str,
    command: str,
    so_far: WatchedSoFar | None,
    *,
    quiet: bool,
) -> StoredRun | None:
    """Records the script to its end. Returns its run; None where the store does not have all of it."""
    from vitprof.jobs.supervisor import JobRecorder

    stop = threading.Event()
    follows = threading.Event()
    failed: list[str] = []
    new = NewRun.of(own_script.own_config(name), {"command": command, "directory": os.getcwd()})

    def start() -> CommandRunner:
        follows.set()
        return runner

    recorder = JobRecorder(store, new, stop, start=start)

    def record() -> None:
        try:
            recorder.run()
            not_stored = recorder.leave()
            if not_stored:
                failed.append(f"{_named(recorder.run_id)} has ended, but {not_stored}")
        except Exception as error:  # the script goes on, not recorded
            failed.append(f"watching failed: {errors.one_line(error)}")
            runner.finish()

    recording = threading.Thread(target=record, name="vitprof-recorder")
    recording.start()
    remarks = _Remarks(store, recorder, with_address=so_far is not None and can_show(sys.stderr))
    warn_s = math.inf if quiet else time.monotonic() + UNSEEN_AFTER_S
    with _shown_progress(so_far) as show:
        while recording.is_alive():
            # before, a recorder takes it for a job that has not begun
            if runner.stopping and follows.is_set():
                stop.set()
            remarks.make()
            show(recorder.run_id, _state(runner))
            if time.monotonic() > warn_s and runner.returncode is None:
                warn_s = math.inf
                line = runner.unseen()
                if line:
                    _say(f"after {UNSEEN_AFTER_S:g} s, {line}")
            recording.join(STATUS_EVERY_S)
    remarks.make()
    if failed:
        _say(failed[0])
    if failed or recorder.outbox.refused:
        return None
    run_id = recorder.run_id
    with contextlib.suppress(MissingError):
        return store.run(run_id)
    _say(f"run {run_id} was deleted, or another node's command has put it into the run of rank 0")
    return None


@contextlib.contextmanager
def _shown_progress(so_far: WatchedSoFar | None) -> Iterator[Callable[[int, str], None]]:
    """Yields a function that shows the figures so far of a run, by its number, and its state: at the
    bottom of a terminal, or as a line now and then in a log. None: it shows nothing.
    """
    if so_far is None:
        yield lambda run_id, state: None
        return
    if can_show(sys.stderr):
        with status_line() as show:
            yield lambda run_id, state: show(f"vitprof {so_far.words(run_id, state)}")
        return
    lines = ProgressLines(_say)

    def show_in_log(run_id: int, state: str) -> None:
        if lines.is_due:
            lines(so_far.words(run_id, state))

    yield show_in_log


def _named(run_id: int) -> str:
    """Returns what the run is called, also where the store has not taken it."""
    return f"run {run_id}" if run_id else "the script"


class _Remarks:
    """What is said about the store while the script runs, each once."""

    def __init__(self, store: RunStore, recorder: JobRecorder, *, with_address: bool) -> None:
        """`with_address`: says where a dashboard shows the run."""
        self._store = store
        self._recorder = recorder
        self._says_where = with_address
        self._is_settled = False
        """Whether the store has taken the run, or refused it."""
        self._has_warned = False

    def make(self) -> None:
        """Says what is new."""
        if self._is_settled:
            return
        outbox = self._recorder.outbox
        why = outbox.unavailable
        self._is_settled = bool(outbox.refused or self._recorder.run_id)
        if outbox.refused:
            _say(f"not watching: {outbox.refused}")
        elif self._recorder.run_id and self._says_where:
            _say_where(self._recorder.run_id)
        elif why and not self._has_warned:
            self._has_warned = True
            _say(
                f"the run store {self._store.url} cannot be used now ({why}): what is measured waits for it"
            )


def _state(runner: CommandRunner) -> str:
    if runner.returncode is not None:
        return "the script has ended"
    if runner.stopping:
        return "asked to end"
    if runner.unobserved:
        return "not watched any more"
    return ""


def _show_result(store: RunStore, run: StoredRun, *, quiet: bool, markdown: bool) -> None:
    result = []
    if markdown:
        result = watched_result.markdown_lines(store, run)
    elif not quiet:
        result = watched_result.result_lines(store, run)
    if result:
        result.insert(0, "")
    lines = [*result, *as_shown(run.notices)]
    if run.error:
        lines.append(f"vitprof: run {run.id}: {run.error}")
    terminal.show(*lines, console=terminal.err)


def _write_json(store: RunStore, run: StoredRun, file: Path) -> None:
    """Writes a run with its answer as JSON."""
    answer = answers.answer_of_run(store, run)
    write_text(file, terminal.json_text(tables.run_object(run, answer=answer)))


def _status(code: int) -> int:
    """Returns an exit status as a shell gives it: 128 plus the signal's number if a signal ended the
    command.
    """
    return code if code >= 0 else 128 - code


class WatchedSoFar:
    """The figures of all steps received so far. One thread calls `take`, another one `words`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since_s = clock()
        self._running = summary.RunningTotals()
        self._steps = 0
        self._blocks: list[Series] = []
        """Blocks of steps that are not in the figures yet."""
        self._added_s = -math.inf

    def take(self, steps: Series) -> None:
        if not chunks.n_rows(steps):
            return
        self._steps += chunks.n_rows(steps)
        self._blocks.append(steps)
        now = self._clock()
        if now - self._added_s >= ADD_EVERY_S:
            self._added_s = now
            self._running.add(chunks.joined("steps", self._blocks))
            self._blocks.clear()

    def words(self, run_id: int, state: str = "") -> str:
        """Returns a line about the run, with the dashboard's figures. `run_id`: 0 if it is not stored
        yet.
        """
        totals = self._running.totals
        figures = [f"{self._steps:,} steps"]
        if not self._steps:
            figures = [f"{WAITING}, {self._clock() - self._since_s:.0f} s"]
        elif not totals.steps:
            figures.append("warming up")
        else:
            figures.append(formats.number(totals.samples_per_s, "samples/s"))
            figures.append(f"data wait {formats.percent(totals.share(totals.data_wait_s))}")
            figures.append(f"device idle {formats.percent(totals.share(totals.gap_s))}")
        run = "run"
        if run_id:
            run += f" {run_id}"
        if state:
            run += f", {state}"
        return f"{run}: {', '.join(figures)}"
