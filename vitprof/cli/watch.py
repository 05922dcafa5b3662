"""`watch`: somebody's own training script, unchanged, measured from inside."""

from __future__ import annotations

import shlex
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from vitprof.analysis.verdict.own_headroom import own_headroom, own_headroom_sentence
from vitprof.cli.common import terminal
from vitprof.cli.common.run_summary import show_run
from vitprof.cli.common.stopping import stop_asked
from vitprof.cli.common.terminal import check_output, complain, json_text
from vitprof.config.own_script import own_config
from vitprof.errors import JobError, StoreError, VitprofError, one_line
from vitprof.export import run_object, write_text
from vitprof.store import RunStore

POLL_S = 0.2
EXIT_NOT_FOUND = 127
"""What a shell says of a command that it cannot find."""


def watch(
    command: Annotated[
        list[str],
        typer.Argument(
            help="what to run, after --: python train.py --epochs 1", metavar="-- COMMAND...", show_default=False
        ),
    ],
    name: Annotated[str, typer.Option(help="what to call the run; the command if not given")] = "",
    steps: Annotated[int | None, typer.Option(min=1, help="end the script after this many training steps")] = None,
    detach_after: Annotated[
        int | None, typer.Option(min=1, help="let the script go on unobserved after this many training steps")
    ] = None,
    headroom: Annotated[
        bool,
        typer.Option(
            "--headroom",
            help="measure how much faster free data would make it: some batches are given again, so it trains on them "
            "more often, and an epoch lasts longer",
        ),
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the run to this file as JSON")] = None,
) -> None:
    """Watch your own training script: nothing in it changes, its output and its exit status stay its own."""
    check_output(json_file, "json")
    try:
        store = RunStore()
    except VitprofError as error:
        terminal.err.print(f"vitprof: not watching: {one_line(error)}", soft_wrap=True)
        raise SystemExit(_unobserved(command)) from None
    try:
        status = _watched(store, command, name or shlex.join(command), steps, detach_after, headroom, json_file)
    finally:
        store.close()
    raise SystemExit(status)


def _unobserved(command: list[str]) -> int:
    """Runs the command as it is; its exit status."""
    try:
        with stop_asked():
            return subprocess.run(command, check=False).returncode
    except OSError as error:
        complain(f"cannot start {command[0]}: {error.strerror or error}", EXIT_NOT_FOUND)


def _watched(
    store: RunStore,
    command: list[str],
    name: str,
    steps: int | None,
    detach_after: int | None,
    headroom: bool,
    json_file: Path | None,
) -> int:
    """Runs the command and records it; tells of the run at its end. Returns the command's exit status."""
    from vitprof.jobs.command import CommandRunner
    from vitprof.jobs.supervisor import JobRecorder

    try:
        runner = CommandRunner(command, steps=steps, detach_after=detach_after, headroom=headroom)
    except JobError as error:
        complain(one_line(error), EXIT_NOT_FOUND)
    stop = threading.Event()
    run_id = store.create_run(own_config(name))
    failed: list[VitprofError] = []

    def record() -> None:
        try:
            JobRecorder(store, run_id, stop, start=lambda: runner).run()
        except VitprofError as error:  # the script goes on without us
            failed.append(error)

    recording = threading.Thread(target=record, name="vitprof-recorder")
    with stop_asked() as asked:
        recording.start()
        while recording.is_alive():
            recording.join(POLL_S)
            if asked.by == "SIGTERM":  # of Ctrl-C the terminal tells the script itself
                stop.set()
    code = runner.returncode or 0
    if failed:
        terminal.err.print(f"vitprof: watching failed: {one_line(failed[0])}", soft_wrap=True)
        with suppress(StoreError):
            store.update_run(run_id, status="failed", stage="", error=one_line(failed[0]))
        return _status(code)
    run = store.run(run_id)
    show_run(run, terminal.err)
    if headroom and (found := own_headroom(run.facts)) is not None:
        terminal.err.print(own_headroom_sentence(found), soft_wrap=True)
    for notice in run.notices:
        terminal.err.print(notice, soft_wrap=True)
    if run.error:
        terminal.err.print(f"vitprof: run {run_id}: {run.error}", soft_wrap=True)
    if json_file is not None:
        write_text(json_file, json_text(run_object(run)))
    return _status(code)


def _status(code: int) -> int:
    """Returns an exit status as a shell gives it: 128 and the number of the signal that ended the command."""
    return code if code >= 0 else 128 - code
