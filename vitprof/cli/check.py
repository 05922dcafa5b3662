"""`check`: checks runs against bounds, for CI. Exit status 0: all met, 1: one is missed, 2: one is undecided."""

import contextlib
import dataclasses
import functools
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from vitprof.analysis.arrays import Series
from vitprof.analysis.compare import guard
from vitprof.analysis.compare.bounds import Bound, Judged, Kind, judge_bound
from vitprof.cli.common import terminal
from vitprof.cli.common.options import texts
from vitprof.config.bounds import LEAST_PER_S
from vitprof.datasets.own import registry
from vitprof.errors import ConfigError, VitprofError, one_line
from vitprof.export import write_text
from vitprof.recording.recording import Recording
from vitprof.store import RunStore

EXIT_UNDECIDED = 2
"""The same as for a bad value: a check that could not be made is neither a pass nor a regression."""
A_SHARE = "give a share such as 10% or 0.1"
SUITE = "vitprof check"
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold (https://www.w3.org/TR/xml/#charsets)."""
FIGURES = ("value", "low", "high", "n_runs", "n_steps", "between_runs")
"""Fields of a figure that `--json` prints; null where the bound was refused."""
RUNS_HELP = (
    "repeated runs of one setting, separated by commas: "
    "numbers as `runs` lists them, or files that `bundle` wrote"
)
AGAINST_HELP = "the baseline for --max-slowdown, given in the same way as RUNS"
ALLOW_HELP = (
    f"compare runs that differ in these, separated by commas: {', '.join(guard.ALLOWED_TOPICS)}"
)


def _share_option(help_text: str) -> Any:
    return typer.Option(metavar="SHARE", help=help_text)


def check(
    runs: Annotated[str, typer.Argument(metavar="RUNS", help=RUNS_HELP, show_default=False)],
    max_idle: Annotated[
        str, _share_option("largest share of the time that the device may idle, such as 10%")
    ] = "",
    max_data_wait: Annotated[
        str, _share_option("largest share of the time that the loop may wait for data")
    ] = "",
    min_samples_per_s: Annotated[
        str, typer.Option(metavar="NUMBER", help="lowest throughput in samples/s")
    ] = "",
    against: Annotated[str, typer.Option(metavar="RUNS", help=AGAINST_HELP)] = "",
    max_slowdown: Annotated[
        str, _share_option("how far samples/s may be below the baseline's, such as 5%")
    ] = "",
    allow: Annotated[str, typer.Option(metavar="TOPICS", help=ALLOW_HELP)] = "",
    junit: Annotated[
        Path | None, typer.Option(help="write the outcomes to this file as JUnit XML")
    ] = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Check runs against bounds, for CI. Exit status 0: all met, 1: one is missed, 2: undecided or refused."""
    bounds = _bounds(max_idle, max_data_wait, min_samples_per_s, max_slowdown, against)
    allowed = texts("allow", allow) if allow else ()
    for topic in allowed:
        if topic not in guard.ALLOWED_TOPICS:
            raise ConfigError("allow", topic, f"choose one of {', '.join(guard.ALLOWED_TOPICS)}")
    terminal.check_output(junit, "junit")
    try:
        # of files nothing is kept: what their runs say of data sets is known meanwhile
        with registry.guests(), contextlib.ExitStack() as stack:
            # opened for run numbers alone: where all are files, there may be no home to write to
            opened = functools.cache(lambda: stack.enter_context(terminal.open_store(settle=True)))
            candidates = _side(opened, runs, terminal.RUN)
            base = _side(opened, against, "against") if against else []
            judged, between = _judge(bounds, candidates, base, allowed)
        if junit is not None:
            write_text(junit, _junit(judged, candidates, base))
    except ConfigError:
        raise
    except VitprofError as error:
        # not 1 as elsewhere: here that means that a bound is missed
        terminal.complain(one_line(error), terminal.EXIT_BAD_VALUE)
    status = _exit_status(judged)
    if as_json:
        terminal.print_json(_object(judged, candidates, base, between, status))
    else:
        terminal.show(
            *(f"{line.outcome:<9}  {line.sentence}{_simulated(candidates)}" for line in judged)
        )
        for difference in between.remarks:
            terminal.remark(difference)
    if status:
        raise typer.Exit(status)


# what was asked for


def _bounds(idle: str, wait: str, least: str, slowdown: str, against: str) -> list[Bound]:
    """Raises `ConfigError` for a bad value; ends the program if no bound was given."""
    if against and not slowdown:
        raise ConfigError("against", against, "give --max-slowdown too: how much slower may it be?")
    if slowdown and not against:
        raise ConfigError("max_slowdown", slowdown, "give --against too: slower than what?")
    limits = dict(zip(get_args(Kind), (idle, wait, least, slowdown), strict=True))
    bounds = [Bound(kind, _limit(kind, text)) for kind, text in limits.items() if text]
    if not bounds:
        options = ", ".join(f"--{kind.replace('_', '-')}" for kind in limits)
        terminal.complain(
            f"there is nothing to check: give at least one of {options}", terminal.EXIT_BAD_VALUE
        )
    return bounds


def _limit(kind: Kind, text: str) -> float:
    if kind != "min_samples_per_s":
        return share(kind, text)
    limit: float = terminal.within(kind, LEAST_PER_S)(text)
    return limit


def share(name: str, text: str) -> float:
    """Returns a share from 0 to 1: 0.1 for "10%" and for "0.1".

    Raises `ConfigError` that names the option `name`.
    """
    number, percent, rest = text.strip().partition("%")
    try:
        value = float(number)
    except ValueError:
        raise ConfigError(name, text, A_SHARE) from None
    if percent:
        value /= 100
    if rest or not 0 <= value <= 1:  # NaN too
        raise ConfigError(name, text, f"{A_SHARE}, from 0% to 100%")
    return value


# the runs

Side = Sequence[guard.CheckedRun]
"""The runs that are checked, or those that they are compared with."""


def _side(opened: Callable[[], RunStore], text: str, name: str) -> list[guard.CheckedRun]:
    """Returns the runs that the option `name` names, each once; `opened` opens the store.

    Raises `ConfigError`, `StoreError`.
    """
    # a file's name may have commas
    parts = (text,) if Path(text).is_file() else texts(name, text)
    runs: dict[tuple[object, ...], guard.CheckedRun] = {}
    for part in parts:
        if part.isascii() and part.isdecimal():
            run = _stored(opened(), int(part))
            runs.setdefault(run.identity, run)
            continue
        if not Path(part).exists():
            why = "there is no such file; give run numbers, as `runs` lists them, or files"
            raise ConfigError(name, part, why)
        for run in _bundled(Path(part)):
            runs.setdefault(run.identity, run)
    return list(runs.values())


def _stored(store: RunStore, run_id: int) -> guard.CheckedRun:
    run = store.run(run_id)
    telemetry = store.telemetry(run_id, names=("t_s", *guard.GUARDED_TELEMETRY))
    return _checked(
        run, store.steps(run_id, names=guard.CHECKED_STEPS), telemetry, host=run.owner_host
    )


def _bundled(path: Path) -> Iterator[guard.CheckedRun]:
    """Yields the runs of a file that `bundle` wrote, without helpers such as anchors of headroom."""
    from vitprof.export.bundle import read_bundle

    for bundled in read_bundle(path, "read"):
        if not bundled.parent:
            run = bundled.recording
            yield _checked(run, run.steps or {}, run.telemetry or {}, source=path.name)


def _checked(
    run: Recording, steps: Series, telemetry: Series, *, host: str = "", source: str = ""
) -> guard.CheckedRun:
    from vitprof.export.bundle import identity

    about = (run.run_id, run.config, run.environment, run.facts, run.summary)
    facts = dataclasses.replace(guard.run_facts(*about, steps, telemetry), source=source)
    return guard.CheckedRun(facts, run.status, run.error or "", steps, identity(run, host))


# the answer


def _judge(
    bounds: Sequence[Bound], runs: Side, baseline: Side, allowed: Sequence[str]
) -> tuple[list[Judged], guard.Comparability]:
    """Returns the outcomes, and how the runs compare.

    A bad baseline affects no bound but `max_slowdown`.
    """
    alone = _refusals(runs, allowed)
    alone += guard.comparable(runs, [], allowed).refusals
    between = guard.comparable(runs, baseline, allowed)
    compared = _refusals([*runs, *baseline], allowed)
    compared += between.refusals
    judged = []
    for bound in bounds:
        refused = list(compared if bound.kind == "max_slowdown" else alone)
        if bound.kind == "max_idle" and any(run.facts.config.loader_only for run in runs):
            no_device_work = "a loader-only run has no device work"
            refused.append(f"{no_device_work}; check --max-data-wait or --min-samples-per-s")
        if refused:
            judged.append(Judged(bound, "refused", None, " ".join(dict.fromkeys(refused))))
            continue
        line = judge_bound(bound, [run.steps for run in runs], [run.steps for run in baseline])
        if line.outcome == "met":
            # a bound that is met by the part that was seen is not known to be met
            reason = max(guard.beyond(run, bound.kind) for run in runs)
            if reason:
                line = dataclasses.replace(line, outcome="undecided", reason=reason)
        judged.append(line)
    return judged, between


def _refusals(runs: Side, allowed: Sequence[str]) -> list[str]:
    """Returns why runs cannot be judged, a line for each of these runs."""
    reasons = [guard.why_not_judged(run, allowed) for run in runs]
    return [reason for reason in reasons if reason]


def _exit_status(judged: Sequence[Judged]) -> int:
    outcomes = {line.outcome for line in judged}
    if "missed" in outcomes:
        return terminal.EXIT_FAILED
    if outcomes - {"met"}:
        return EXIT_UNDECIDED
    return 0


def _simulated(runs: Side) -> str:
    if any(run.facts.config.simulated for run in runs):
        return " (simulated device)"
    return ""


def _labels(runs: Side) -> list[str]:
    return [run.facts.label for run in runs]


def _junit(judged: Sequence[Judged], runs: Side, baseline: Side) -> str:
    """Returns the outcomes as `testsuites` with one `testsuite`, as Jenkins, GitLab and GitHub's actions
    for test reports read it.

    Undecided and refused bounds are errors: whether they hold could not be determined.
    """
    element_of = {"met": "system-out", "missed": "failure"}
    elements = [element_of.get(line.outcome, "error") for line in judged]
    counts = {
        "tests": str(len(judged)),
        "failures": str(elements.count("failure")),
        "errors": str(elements.count("error")),
    }
    root = ET.Element("testsuites", {"name": SUITE} | counts)
    suite = ET.SubElement(root, "testsuite", {"name": SUITE, "skipped": "0"} | counts)
    properties = ET.SubElement(suite, "properties")
    for name, side in (("runs", runs), ("baseline", baseline)):
        labels = NOT_XML.sub("\ufffd", ", ".join(_labels(side)))
        ET.SubElement(properties, "property", name=name, value=labels)
    for line, element in zip(judged, elements, strict=True):
        text = NOT_XML.sub("\ufffd", line.sentence + _simulated(runs))
        case = ET.SubElement(suite, "testcase", classname=SUITE, name=line.bound.title)
        attributes = {}
        if element != "system-out":
            attributes = {"type": line.outcome, "message": text}
        ET.SubElement(case, element, attributes).text = text
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _object(
    judged: Sequence[Judged], runs: Side, baseline: Side, between: guard.Comparability, status: int
) -> dict[str, Any]:
    """Returns what `--json` prints."""
    bounds = []
    for line in judged:
        figures = {name: getattr(line.figure, name, None) for name in FIGURES}
        bounds.append(
            {
                "bound": line.bound.kind,
                "limit": line.bound.limit,
                "outcome": line.outcome,
                **figures,
                "reason": line.reason or None,
                "sentence": line.sentence,
            }
        )
    return {
        "exit_status": status,
        "runs": _labels(runs),
        "baseline": _labels(baseline),
        "simulated": bool(_simulated(runs)),
        "bounds": bounds,
        "remarks": between.remarks,
    }
