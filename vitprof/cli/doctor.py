"""What works on this machine: `strategies` that can run, `doctor` what vitprof needs, `selftest` its numbers."""

import dataclasses
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from vitprof import config, errors
from vitprof.cli.common import progress, terminal
from vitprof.config import bounds
from vitprof.config.availability import Availability, Machine, availability, look_around
from vitprof.config.strategies import STRATEGIES, Strategy
from vitprof.datasets import catalog
from vitprof.experiments.trials import Progress
from vitprof.selftest import CASES, QUICK, CaseOutcome, Result, SelftestReport, n_jobs, run_selftest
from vitprof.selftest.gpu.driver import GPU_CASES, TOTAL_S, run_gpu_selftest

N_IMAGES_HELP = "number of training images, where the data set can have any (photos)"


def strategies(
    dataset: Annotated[
        str, typer.Option("--dataset", help="data set to check them for")
    ] = config.RunConfig.dataset,
    n_images: Annotated[
        int | None, terminal.number("n_images", bounds.RUN_BOUNDS["n_images"], N_IMAGES_HELP)
    ] = None,
    as_json: terminal.AsJson = False,
) -> None:
    """List the loading strategies, and whether each can run here."""
    info = catalog.dataset_info(dataset, n_images)
    machine = look_around()
    if as_json:
        listed = [_as_object(s, info, machine) for s in STRATEGIES.values()]
        terminal.print_json({"dataset": info.name, "strategies": listed})
        return
    rows = []
    for s in STRATEGIES.values():
        takes = ", ".join(
            f"{name}={value}" for name, value in _knobs(s, info).items() if value is not None
        )
        lines = [s.what, f"When: {s.when}", f"Costs: {s.costs}", f"From: {s.origin}"]
        runs_here = _runs_here(availability(s, info, machine=machine))
        described = Group(*lines, f"Takes: {takes or 'no settings'}", runs_here)
        rows.append((Text.assemble((s.name, "bold"), "\n", s.title), described))
    terminal.show_table(
        ("strategy", "what it does, when it helps, what it costs"), rows, show_lines=True
    )


def _knobs(strategy: Strategy, info: catalog.DatasetInfo) -> dict[str, Any]:
    return strategy.knobs(strategy.combination(info), info)


def _runs_here(available: Availability) -> Text:
    word = "no" if available.verdict == "bad" else "yes"
    reason = f"; {available.reason}" if available.reason else ""
    return Text.assemble("Runs here: ", (word, terminal.VERDICT_COLOURS[available.verdict]), reason)


def _as_object(strategy: Strategy, info: catalog.DatasetInfo, machine: Machine) -> dict[str, Any]:
    available = availability(strategy, info, machine=machine)
    known = dataclasses.asdict(strategy) | dataclasses.asdict(strategy.combination(info))
    known["defaults"] = _knobs(strategy, info)
    return known | {
        "available": available.verdict != "bad",
        "availability": available.verdict,
        "reason": available.reason,
    }


def doctor(as_json: terminal.AsJson = False) -> None:
    """Check versions, GPU, NVML, shared memory, disk and database, with a verdict for each.

    The exit status is 1 if a verdict is bad. `schema doctor` describes the object of --json.
    """
    from vitprof.jobs.preflight import examine

    checks = list(examine())
    if as_json:
        terminal.print_json({"checks": checks})
    else:
        rows = []
        for check in checks:
            verdict = Text(check.verdict, style=terminal.VERDICT_COLOURS[check.verdict])
            meaning = f": {check.meaning}" if check.meaning else ""
            rows.append((check.name, check.found, Text.assemble(verdict, meaning)))
        terminal.show_table(("what", "found", "verdict"), rows)
    if any(check.verdict == "bad" for check in checks):
        raise typer.Exit(terminal.EXIT_FAILED)


ROUNDS = 2
QUICK_ROUNDS = 1
GPU_HELP = f"{len(GPU_CASES)} cases on this machine's GPU; at most {TOTAL_S / 60:g} minutes"
QUICK_HELP = f"{len(QUICK)} cases in {n_jobs(QUICK, QUICK_ROUNDS)} short jobs, once; about half a minute to a minute"

WHAT_IS_SHOWN = (
    "What the device waits for: the cause found, what it adds to each batch as reported and by arithmetic (within "
    "10% or 0.3 ms), and the idle share as reported and by arithmetic (within a point or 0.3 ms of a step)."
)


def selftest(
    quick: Annotated[bool, typer.Option("--quick", help=QUICK_HELP)] = False,
    gpu: Annotated[bool, typer.Option("--gpu", help=GPU_HELP)] = False,
    as_json: terminal.AsJson = False,
) -> None:
    """Check the numbers: slow jobs down in known ways and see whether vitprof finds the cause and its size.

    Runs on a simulated GPU, whose times are known by arithmetic; with --gpu on the real one.
    """
    if gpu and quick:
        raise errors.ConfigError(
            "quick", True, "there is no quick form of selftest --gpu; leave one of the two out"
        )
    report: SelftestReport[Result] | SelftestReport[CaseOutcome]
    with terminal.stop_requested() as stop, progress.progress() as bar:

        def show(p: Progress) -> None:
            bar(p.words, p.fraction)

        def ended(outcome: CaseOutcome) -> None:
            if not as_json:
                terminal.show(outcome.words)

        if gpu:
            report = run_gpu_selftest(progress=show, ended=ended, stop=stop)
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
            terminal.show(WHAT_IS_SHOWN, *(result.words for result in report.results))
        terminal.show(report.sentence)
        if gpu:
            terminal.show(f"Figures for a bug report: {path}", report.advice)
    if stopped:
        raise typer.Exit(terminal.EXIT_STOPPED)
    if not report.ok:
        raise typer.Exit(terminal.EXIT_FAILED)
