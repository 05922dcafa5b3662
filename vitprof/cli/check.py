"""`check`: checks runs against bounds, for CI. Exit status 0: all met, 1: one is missed, 2: one is undecided."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from vitprof.analysis.compare.bounds import Bound, Judged, Kind, judge_bound
from vitprof.analysis.compare.guard import (
    ALLOWED_TOPICS,
    CHECKED_STEPS,
    GUARDED_TELEMETRY,
    CheckedRun,
    Comparability,
    comparable,
    run_facts,
    why_not_judged,
)
from vitprof.cli.common import terminal
from vitprof.cli.common.options import texts
from vitprof.cli.common.terminal import EXIT_BAD_VALUE, EXIT_FAILED, AsJson, check_output, complain, print_json, remark
from vitprof.config.accelerators import is_simulated
from vitprof.config.bounds import LEAST_PER_S
from vitprof.errors import ConfigError, VitprofError, one_line
from vitprof.export import write_text
from vitprof.export.junit import Case, junit_xml
from vitprof.recording.columns import json_number
from vitprof.store import RunStore

EXIT_UNDECIDED = 2
"""The same as for a bad value: a check that could not be made is neither a pass nor a regression."""
A_SHARE = "give a share such as 10% or 0.1"
SUITE = "vitprof check"


def check(
    runs: Annotated[
        str,
        typer.Argument(
            metavar="RUNS",
            help="repeated runs of one setting, separated by commas: numbers as `runs` lists them, or files that "
            "`bundle` wrote",
            show_default=False,
        ),
    ],
    max_idle: Annotated[
        str, typer.Option(metavar="SHARE", help="largest share of the time that the device may idle, such as 10%")
    ] = "",
    max_data_wait: Annotated[
        str, typer.Option(metavar="SHARE", help="largest share of the time that the loop may wait for data")
    ] = "",
    min_samples_per_s: Annotated[str, typer.Option(metavar="NUMBER", help="lowest throughput in samples/s")] = "",
    against: Annotated[
        str, typer.Option(metavar="RUNS", help="the baseline for --max-slowdown, given in the same way as RUNS")
    ] = "",
    max_slowdown: Annotated[
        str, typer.Option(metavar="SHARE", help="how far samples/s may be below the baseline's, such as 5%")
    ] = "",
    allow: Annotated[
        str,
        typer.Option(
            metavar="TOPICS",
            help=f"compare runs that differ in these, separated by commas: {', '.join(ALLOWED_TOPICS)}",
        ),
    ] = "",
    junit: Annotated[Path | None, typer.Option(help="write the outcomes to this file as JUnit XML")] = None,
    as_json: AsJson = False,
) -> None:
    """Check runs against bounds, for CI. Exit status 0: all met, 1: one is missed, 2: undecided or refused."""
    bounds = _bounds(max_idle, max_data_wait, min_samples_per_s, max_slowdown, against)
    allowed = texts("allow", allow) if allow else ()
    for topic in allowed:
        if topic not in ALLOWED_TOPICS:
            raise ConfigError("allow", topic, f"choose one of {', '.join(ALLOWED_TOPICS)}")
    check_output(junit, "junit")
    try:
        with contextlib.closing(RunStore()) as store:
            mine = _side(store, runs, terminal.RUN)
            base = _side(store, against, "against") if against else []
        judged, between = _judge(bounds, mine, base, allowed)
        if junit is not None:
            write_text(junit, _junit(judged, mine, base))
    except ConfigError:
        raise
    except VitprofError as error:  # not 1 as elsewhere: here that means that a bound is missed
        complain(one_line(error), EXIT_BAD_VALUE)
    status = _exit_status(judged)
    if as_json:
        print_json(_object(judged, mine, base, between, status))
    else:
        for line in judged:
            terminal.out.print(f"{line.outcome:<9}  {line.sentence}{_simulated(mine)}", soft_wrap=True)
        for difference in between.remarks:
            remark(difference)
    if status:
        raise typer.Exit(status)


# what was asked for


def _bounds(idle: str, wait: str, least: str, slowdown: str, against: str) -> list[Bound]:
    """Returns the bounds that were given. Raises `ConfigError` for a bad value; ends the program if there is none."""
    if against and not slowdown:
        raise ConfigError("against", against, "give --max-slowdown too: how much slower may it be?")
    if slowdown and not against:
        raise ConfigError("max_slowdown", slowdown, "give --against too: slower than what?")
    asked: list[tuple[Kind, str]] = [
        ("max_idle", idle),
        ("max_data_wait", wait),
        ("min_samples_per_s", least),
        ("max_slowdown", slowdown),
    ]
    bounds = [Bound(kind, _limit(kind, text)) for kind, text in asked if text]
    if not bounds:
        options = ", ".join(f"--{kind.replace('_', '-')}" for kind, _ in asked)
        complain(f"there is nothing to check: give at least one of {options}", EXIT_BAD_VALUE)
    return bounds


def _limit(kind: Kind, text: str) -> float:
    if kind != "min_samples_per_s":
        return share(kind, text)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not LEAST_PER_S.least <= value <= LEAST_PER_S.most:  # NaN too
        raise ConfigError(
            kind, text, f"give a number of samples a second above 0, such as 900, up to {LEAST_PER_S.most:g}"
        )
    return value


def share(name: str, text: str) -> float:
    """Returns a share from 0 to 1: 0.1 for "10%" and for "0.1". Raises `ConfigError` that names the option `name`."""
    number, percent, rest = text.strip().partition("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        raise ConfigError(name, text, A_SHARE) from None
    if rest or not 0 <= value <= 1:  # NaN too
        raise ConfigError(name, text, f"{A_SHARE}, from 0% to 100%")
    return value


# the runs


def _side(store: RunStore, given: str, name: str) -> list[CheckedRun]:
    """Returns the runs that an option names, each once.

    Raises `ConfigError` for what is neither a number nor a file, `VitprofError` for a run that cannot be read.
    """
    from vitprof.jobs.finalise import settle_interrupted

    settle_interrupted(store)
    runs: dict[tuple[object, ...], CheckedRun] = {}
    for part in (given,) if Path(given).is_file() else texts(name, given):
        if not (part.isascii() and part.isdecimal()) and not Path(part).exists():
            raise ConfigError(name, part, "there is no such file; give run numbers, as `runs` lists them, or files")
        for run in [_stored(store, int(part))] if part.isascii() and part.isdecimal() else _bundled(Path(part)):
            runs.setdefault(run.identity, run)
    return list(runs.values())


def _stored(store: RunStore, run_id: int) -> CheckedRun:
    from vitprof.export.bundle import identity

    run = store.run(run_id)
    steps = store.steps(run_id, names=CHECKED_STEPS)
    telemetry = store.telemetry(run_id, names=("t_s", *GUARDED_TELEMETRY))
    facts = run_facts(run.id, run.name, run.config, run.environment, run.facts, run.summary, steps, telemetry)
    return CheckedRun(facts, run.status, run.error, steps, identity(run, run.owner_host))


def _bundled(path: Path) -> Iterator[CheckedRun]:
    """Yields the runs of a file that `bundle` wrote, without helpers such as anchors of headroom."""
    from vitprof.export.bundle import identity, read_bundle

    for bundled in read_bundle(path, "read"):
        if not bundled.parent:
            run = bundled.recording
            steps, telemetry = run.steps or {}, run.telemetry or {}
            facts = run_facts(
                run.run_id, run.name, run.config, run.environment, run.facts, run.summary, steps, telemetry
            )
            facts = dataclasses.replace(facts, source=path.name)
            yield CheckedRun(facts, run.status, run.error or "", steps, identity(run))


# the answer


def _judge(
    bounds: Sequence[Bound], runs: Sequence[CheckedRun], baseline: Sequence[CheckedRun], allowed: Sequence[str]
) -> tuple[list[Judged], Comparability]:
    """Returns the outcome of each bound, and how the runs compare.

    A baseline that cannot be used affects no bound but `max_slowdown`.
    """
    alone = [refusal for run in runs if (refusal := why_not_judged(run, allowed))]
    alone += comparable(runs, [], allowed).refusals
    between = comparable(runs, baseline, allowed)
    compared = [refusal for run in (*runs, *baseline) if (refusal := why_not_judged(run, allowed))]
    compared += between.refusals
    judged = []
    for bound in bounds:
        refused = compared if bound.kind == "max_slowdown" else list(alone)
        if bound.kind == "max_idle" and any(run.facts.config.loader_only for run in runs):
            refused = [*refused, "a loader-only run has no device work; check --max-data-wait or --min-samples-per-s"]
        if refused:
            judged.append(Judged(bound, "refused", None, " ".join(dict.fromkeys(refused))))
        else:
            judged.append(judge_bound(bound, [run.steps for run in runs], [run.steps for run in baseline]))
    return judged, between


def _exit_status(judged: Sequence[Judged]) -> int:
    outcomes = {line.outcome for line in judged}
    return EXIT_FAILED if "missed" in outcomes else EXIT_UNDECIDED if outcomes - {"met"} else 0


def _simulated(runs: Sequence[CheckedRun]) -> str:
    return " (simulated device)" if any(is_simulated(run.facts.config.device) for run in runs) else ""


def _labels(runs: Sequence[CheckedRun]) -> list[str]:
    return [run.facts.label for run in runs]


def _junit(judged: Sequence[Judged], runs: Sequence[CheckedRun], baseline: Sequence[CheckedRun]) -> str:
    kinds: dict[str, Any] = {"met": "passed", "missed": "failure", "undecided": "error", "refused": "error"}
    cases = [
        Case(line.bound.title, kinds[line.outcome], line.outcome, line.sentence + _simulated(runs)) for line in judged
    ]
    return junit_xml(SUITE, cases, {"runs": ", ".join(_labels(runs)), "baseline": ", ".join(_labels(baseline))})


def _object(
    judged: Sequence[Judged],
    runs: Sequence[CheckedRun],
    baseline: Sequence[CheckedRun],
    between: Comparability,
    status: int,
) -> dict[str, Any]:
    """Returns the object for `--json`; null for what is not known."""
    found = []
    for line in judged:
        figure = line.figure
        found.append(
            {
                "bound": line.bound.kind,
                "limit": line.bound.limit,
                "outcome": line.outcome,
                "value": json_number(figure.value) if figure else None,
                "low": json_number(figure.low) if figure else None,
                "high": json_number(figure.high) if figure else None,
                "n_runs": figure.n_runs if figure else None,
                "n_steps": figure.n_steps if figure else None,
                "between_runs": figure.between_runs if figure else None,
                "reason": line.reason or None,
                "sentence": line.sentence,
            }
        )
    return {
        "exit_status": status,
        "runs": _labels(runs),
        "baseline": _labels(baseline),
        "simulated": bool(_simulated(runs)),
        "bounds": found,
        "remarks": list(between.remarks),
    }
