"""What commands print with `--json`, as types, which docs/json.md is made from; `schema` prints JSON Schemas."""

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired

import typer
from typing_extensions import TypedDict

from vitprof.analysis.compare import bounds as of_check
from vitprof.analysis.timing.compute_parts import DividedCompute
from vitprof.analysis.tournament import recommend
from vitprof.analysis.verdict import headroom
from vitprof.cli.common import terminal
from vitprof.config import strategies, tournament_spec
from vitprof.datasets.own import registry
from vitprof.experiments.script_data import facts
from vitprof.export import bundle, tournament
from vitprof.jobs.preflight import MachineCheck
from vitprof.program import program
from vitprof.recording import codec, recording
from vitprof.selftest import CaseOutcome, Result
from vitprof.store.tournaments import TournamentStatus


class Printed(TypedDict):
    """One JSON object."""

    schema_version: int
    """Version of the fields and their meaning."""


class Runs(Printed):
    """Runs of the store, in the order that was asked for."""

    runs: list[recording.Recording]
    """One for each run."""


class OwnDataset(Printed):
    """The Dataset of a user's own script."""

    dataset: facts.DatasetFacts
    """What it is, by the samples that were read of it."""


class OwnSets(Printed):
    """The user's own data sets."""

    datasets: list[registry.OwnSet]
    """One for each name."""


class OwnLook(Printed):
    """A look at one of them."""

    look: registry.LookReport
    """What was found."""


@dataclass(frozen=True, kw_only=True)
class Headroom(headroom.Headroom):
    """How many times as fast the job would be if its data were free, measured by replaying batches."""

    sentence: str
    """The result in a sentence."""


@dataclass(frozen=True, kw_only=True)
class FinishedRun(recording.Recording):
    """A job that was run."""

    headroom: Headroom | None = None
    """How much faster it would be with free data; null without `--headroom`, and where nothing was measured."""


class RunHeadroom(Printed):
    """How much faster a run of the store would be with free data."""

    run_id: int
    """The run."""
    headroom: Headroom | None
    """What was measured; null where nothing was."""


class ReplayedVerdict(TypedDict):
    """What watching says of the steps."""

    kind: str
    """The kind of bottleneck, as in a run's verdict."""
    sentence: str
    """The verdict in words."""


class ReplayedEvaluation(TypedDict):
    """A time in which the script asked loaders that do not feed its training."""

    begin_s: float
    """Seconds since the first event."""
    end_s: float
    """Seconds since the first event."""


class Replayed(Printed):
    """What watching makes of the events in a file."""

    steps: int
    """Training steps; 0 where nothing trains."""
    epochs: int
    """Iterations over the loaders that feed them."""
    samples: float
    """Samples in all batches of these steps."""
    data_wait_s: float
    """Seconds that they waited for batches, where that is known."""
    unknown_waits: int
    """Steps whose wait is not known: their batches were not seen."""
    evaluations: list[ReplayedEvaluation]
    """Evaluations, in order."""
    fed_by: list[recording.WatchedLoader]
    """The loaders that feed the training; of a queue, pool or future the name of its class alone."""
    several_threads_train: bool
    """Whether other threads train, too: the steps are those of one."""
    divided_compute: DividedCompute | None
    """What the compute of a step is made of; null where that is known of no steady step."""
    verdict: ReplayedVerdict | None
    """The verdict on these steps, as on a CPU; null where nothing trains, or not all is in the file."""


class CheckedBound(TypedDict):
    """A bound, and whether it was met. Figures are null where it was refused."""

    bound: of_check.Kind
    """Which bound it is."""
    limit: float
    """Its limit: a share; samples/s for min_samples_per_s."""
    outcome: of_check.Outcome
    """Met or missed where the whole interval is on that side of the limit."""
    value: float
    """What was measured, in the limit's unit."""
    low: float
    """Lower end of its 95% interval."""
    high: float
    """Upper end of its 95% interval."""
    n_runs: int | None
    """Runs behind it; for a slowdown those of both sides."""
    n_steps: int | None
    """Steady steps of these runs."""
    between_runs: bool | None
    """Whether the interval includes the noise from run to run."""
    reason: str | None
    """Why it was refused, or what would decide it; null where it is decided."""
    sentence: str
    """The result in one line."""


class Check(Printed):
    """Runs checked against bounds."""

    exit_status: int
    """0: all met, 1: one is missed, 2: one is undecided or refused."""
    runs: list[str]
    """Labels of the runs."""
    baseline: list[str]
    """Labels of the runs that they are compared with."""
    simulated: bool
    """Whether a device was simulated."""
    bounds: list[CheckedBound]
    """One for each bound that was given."""
    remarks: list[str]
    """Differences between the runs that were allowed."""


@dataclass(frozen=True, kw_only=True)
class Strategy(strategies.Strategy):
    """A strategy, as it is for this data set on this machine."""

    available: bool
    """Whether it can run here."""
    availability: Literal["ok", "note", "bad"]
    """ok: runs as it should; note: runs, with a limit; bad: would fail."""
    reason: str
    """Why it is not ok, in one line; empty if it is."""


class Strategies(Printed):
    """The strategies, for one data set."""

    dataset: str
    """Data set that the strategies were checked for."""
    strategies: list[Strategy]
    """One for each strategy."""


class Recommendation(TypedDict):
    """One setting, with its reason; or why none can be named yet."""

    key: str | None
    """The setting to use; null while it is too early, not decided, or known only while other programs ran."""
    sentences: list[str]
    """What to use, how much faster it is, how sure that is, and the reason; the most important first."""
    equals: list[str]
    """Settings that are as fast; while undecided, those that can be the fastest."""
    code: NotRequired[str | None]
    """For a user's own script: the DataLoader's arguments as code; null where nothing is to be changed."""
    probability: float
    """Probability that no other setting is faster by more than 5%."""
    disturbed: bool
    """Whether other programs took cores in every run of a setting."""
    outcome: recommend.Outcome
    """What the tournament has come to. Only recommended is a change to make: the others are faster while busy
    (in all rounds, but other programs ran in them), fastest while busy, undecided, too early."""
    while_busy: str | None
    """The setting that was faster than the baseline by most while other programs ran; null where none surely was."""


class ListedTournament(TypedDict):
    """What a tournament runs, and its state."""

    tournament_id: int
    """Number of the tournament in the store."""
    name: str
    """Its name."""
    status: TournamentStatus
    """Its state now."""
    created_utc: str
    """When it was made, ISO 8601 with a Z."""
    note: str
    """What stopped or paused it, in words; empty if nothing did."""
    spec: tournament_spec.TournamentSpec
    """Every combination of its strategies, batch sizes, workers and page caches runs once in a round."""
    simulated: bool
    """Whether the device was simulated."""


class Tournament(Printed, ListedTournament):
    """The leaderboard and the recommendation, also while the tournament is not done."""

    baseline: str
    """Key of the setting that the others are compared with."""
    best: str | None
    """Key of the fastest setting; null while none has a figure."""
    recommendation: Recommendation | None
    """Which setting to use; null while none has a figure."""
    trials: list[tournament.TrialFigures]
    """One for each setting, the ranked ones first."""


class Tournaments(Printed):
    """All tournaments, newest first."""

    tournaments: list[ListedTournament]
    """One for each tournament."""


class Doctor(Printed):
    """Whether the machine has what vitprof needs. The exit status is 1 if a verdict is bad."""

    checks: list[MachineCheck]
    """The checks, the most important first."""


class Report(Printed):
    """A self-test."""

    ok: bool
    """Whether no case failed and it was not stopped."""
    stopped: bool
    """Whether it was stopped before its end."""
    sentence: str
    """The result in one line."""
    seconds: float
    """How long it took."""
    asked: int
    """Cases that were asked for; fewer have results where it was stopped."""


@dataclass(frozen=True, kw_only=True)
class Case(Result):
    """The result of a case of a self-test: medians over its rounds."""

    ok: bool
    """Whether cause, size and idle share are right, and no job failed."""
    wrong: str
    """What is wrong, in words; empty if nothing is."""


class Selftest(Report):
    """Jobs slowed down in known ways on a simulated device, and whether vitprof named the cause and its size."""

    results: list[Case]
    """One for each case that was run."""


class GpuSelftest(Report):
    """Whether what vitprof reports is true on this machine's GPU. `selftest-gpu.json` in `VITPROF_HOME` holds the same,
    without anything that identifies the machine."""

    advice: str
    """What to read or do next."""
    machine: dict[str, Any]
    """Device, software and processor; depends on the device."""
    results: list[CaseOutcome]
    """One for each case, also those that could not be run."""


class Import(Printed):
    """The runs of a file that `bundle` wrote."""

    runs: list[bundle.ImportedRun]
    """One for each run of the file."""


PRINTED: dict[str, tuple[Any, str]] = {
    "run": (FinishedRun, "run --json"),
    "runs": (Runs, "runs --json"),
    "runs-one": (recording.Recording, "runs RUN --json"),
    "watch": (recording.Recording, "watch --json FILE -- COMMAND"),
    "read": (recording.Recording, "read TRACE --json"),
    "replay": (Replayed, "replay FILE --json"),
    "data": (OwnDataset, "data --json -- COMMAND"),
    "datasets": (OwnSets, "datasets list --json"),
    "look": (OwnLook, "datasets add --json"),
    "export": (Runs, "export RUN... --format json"),
    "headroom": (RunHeadroom, "headroom RUN --json"),
    "strategies": (Strategies, "strategies --json"),
    "tournament": (Tournament, "tournament ... --json"),
    "tournament-list": (Tournaments, "tournament --list --json"),
    "convert": (Tournament, "convert --plan --json -- COMMAND"),
    "check": (Check, "check RUNS ... --json"),
    "doctor": (Doctor, "doctor --json"),
    "selftest": (Selftest, "selftest --json"),
    "selftest-gpu": (GpuSelftest, "selftest --gpu --json"),
    "import": (Import, "import FILE --json"),
}
"""Name of a schema -> the type of the object, and the command that prints it (without `vitprof`)."""


NAME_HELP = "name of the schema; lists them if not given"


def schema(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help=NAME_HELP, show_default=False)] = "",
) -> None:
    """Print the JSON Schema (draft 2020-12) of what a command prints with --json."""
    if name in PRINTED:
        text = json.dumps(codec.schema(PRINTED[name][0], name), indent=2, ensure_ascii=False)
        terminal.print_text(f"{text}\n")
    elif name:
        raise typer.BadParameter(
            f"there is no {name}; choose one of {', '.join(PRINTED)}", param_hint="NAME"
        )
    else:
        rows = ((one, f"{program()} {command}") for one, (_, command) in PRINTED.items())
        terminal.show_table(("schema", "output of"), rows)
