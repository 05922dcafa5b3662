"""`selftest`: checks whether vitprof's numbers are true on this machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import typer

from vitprof import formats
from vitprof.cli.common import terminal
from vitprof.cli.common.progress import overall_progress
from vitprof.errors import ConfigError
from vitprof.experiments.trials import Progress
from vitprof.selftest import CASES, QUICK, Outcome, Result, SelftestReport, n_jobs, run_selftest
from vitprof.selftest.gpu.driver import GPU_CASES, TOTAL_S, run_gpu_selftest

ROUNDS, QUICK_ROUNDS = 2, 1
QUICK_HELP = f"{len(QUICK)} cases in {n_jobs(QUICK, QUICK_ROUNDS)} short jobs, once; about half a minute to a minute"


def selftest(
    quick: Annotated[bool, typer.Option("--quick", help=QUICK_HELP)] = False,
    gpu: Annotated[
        bool,
        typer.Option("--gpu", help=f"{len(GPU_CASES)} cases on this machine's GPU; at most {TOTAL_S / 60:g} minutes"),
    ] = False,
    as_json: terminal.AsJson = False,
) -> None:
    """Check the numbers: slow jobs down in known ways and see whether vitprof finds the cause and its size.

    Runs on a simulated GPU, whose times are known by arithmetic; with --gpu on the real one.
    """
    if gpu and quick:
        raise ConfigError("quick", True, "there is no quick form of selftest --gpu; leave one of the two out")
    report: SelftestReport[Result] | SelftestReport[Outcome]
    with terminal.stop_asked() as stop, overall_progress() as bar:

        def show(p: Progress) -> None:
            if bar is not None:
                bar(p.words, p.fraction, p.seconds_left)

        if gpu:
            report = run_gpu_selftest(
                progress=show,
                ended=lambda outcome: None if as_json else terminal.show(outcome.words),
                stop=stop,
            )
        else:
            cases, rounds = (QUICK, QUICK_ROUNDS) if quick else (CASES, ROUNDS)
            report = run_selftest(cases, rounds, progress=show, stop=stop)
        stopped = stop()
    if stopped and not report.results:
        raise typer.Exit(terminal.EXIT_STOPPED)
    path = report.write() if gpu else None
    if as_json:
        terminal.print_json(report.to_dict())
    else:
        if not gpu:
            _show([r for r in report.results if isinstance(r, Result)], report.seconds)
        terminal.show(report.sentence)
        if gpu:
            terminal.show(f"Figures for a bug report: {path}", report.advice)
    if stopped:
        raise typer.Exit(terminal.EXIT_STOPPED)
    if not report.ok:
        raise typer.Exit(terminal.EXIT_FAILED)


def _ms(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else formats.NOT_AVAILABLE


def _show(results: Sequence[Result], seconds: float) -> None:
    """Prints a row for each case. Milliseconds are per batch, medians over the rounds."""
    measured = ("added, ms", "reported, ms", "error, ms", "idle, true", "idle, reported")
    rows = (
        (
            r.case,
            r.blamed,
            _ms(r.expected_ms),
            _ms(r.reported_ms),
            f"{r.error_ms:+.2f} of {_ms(r.tolerance_ms)}",
            formats.percent(r.true_idle_frac),
            formats.percent(r.idle_frac),
            f"{r.rounds}" + (f" ({r.retries} retried)" if r.retries else ""),
            "yes" if r.ok else "NO",
        )
        for r in results
    )
    header = ("case", "verdict blames", *measured, "rounds", "ok")
    terminal.show_table(header, rows, "What the device waits for, on a simulated device")
    terminal.show(
        "Added: how much longer the device has to wait for each batch, by arithmetic. A case passes within 10% or "
        f"0.3 ms, its idle share within a percentage point. It took {formats.seconds(seconds)}."
    )
