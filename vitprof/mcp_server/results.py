"""What the tools return. A figure that is not known is null."""

from dataclasses import dataclass, field

from typing_extensions import TypedDict


class RunLine(TypedDict):
    """A run in a list."""

    run_id: int
    name: str
    status: str
    verdict: str
    samples_per_s: float | None
    idle_frac: float | None
    """Share of the training time in which the device computed nothing."""
    simulated: bool
    """Whether the device was simulated."""
    tags: list[str]
    made: str


@dataclass
class RunList:
    """Runs of the store."""

    total: int
    """Runs that match, also those that are not listed."""
    runs: list[RunLine]


class Part(TypedDict):
    """A part of the training time."""

    name: str
    frac: float
    """Its share; all parts add up to 1."""


class Gain(TypedDict):
    """How many times as fast the script would be if its data were free: no fix of loading gains more."""

    times: float | None
    low: float | None
    high: float | None
    measured: bool
    """False: estimated from the waits."""


class Proven(TypedDict):
    """What alternating runs with and without a fix have shown."""

    fix: str
    times: float | None
    """Where quiet is false: at least so many times, while other programs ran."""
    low: float | None
    high: float | None
    quiet: bool
    """False: other programs ran, so it is not firm for an idle machine. Claim it only together with that."""
    tournament_id: int
    """Pass it to `patch`, if can_patch."""
    can_patch: bool


class Advised(TypedDict):
    """Something to change."""

    place: int
    """Pass it to `prove` as advice."""
    words: str
    why: str


class Figure(TypedDict):
    """A figure in words."""

    name: str
    value: str
    meaning: str


@dataclass
class RunAnswer:
    """Whether the device of a run was starved, by what, what a fix gains, and what to do next."""

    run_id: int
    name: str
    status: str
    simulated: bool
    headline: str = ""
    """The verdict in a few words."""
    reason: str = ""
    """The figure behind it, or why there is no verdict."""
    conclusive: bool = False
    """Whether there is a verdict. If not, do not advise a fix: the reason says what to do first."""
    waits_for: str = ""
    idle_frac: float | None = None
    """Share of the training time in which the device waited for `waits_for`."""
    idle_low: float | None = None
    """Lower end of its 95% interval."""
    idle_high: float | None = None
    n_steps: int = 0
    causes: list[Part] = field(default_factory=list)
    """Where the training time goes."""
    gain_at_most: Gain | None = None
    proven: Proven | None = None
    fix: str = ""
    """What to change first; once that is proven, also what may gain clearly more; "" where nothing is advised."""
    cost: str = ""
    """What the idle time cost, and what of it a fix gets back; "" where that is not known."""
    advice: list[Advised] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    next_tool: str = ""
    """The tool to call next."""
    next_command: str = ""
    """What a person types for the same."""
    figures: list[Figure] = field(default_factory=list)
    error: str = ""
    """What failed; "" if nothing did."""


@dataclass
class Watched:
    """A command that was watched."""

    exit_status: int
    """The script's own; 130 where it was ended after its steps or stopped."""
    run: RunAnswer | None
    """None where no training loop over a DataLoader was seen."""
    remarks: list[str]
    """What vitprof said."""
    output_end: list[str]
    """The last lines that the script printed."""


class Setting(TypedDict):
    """A setting of a tournament."""

    key: str
    words: str
    status: str
    reason: str
    recommended: bool
    baseline: bool
    samples_per_s: float | None
    speed_up: float | None
    """Over the baseline."""
    low: float | None
    high: float | None
    against_baseline: str
    """faster, slower, equal (within 5%), undecided, or faster while busy: in all rounds, but other programs ran
    in them; "" for the baseline."""
    at_least: float | None
    """Where it is faster while busy: at least how many times as fast, for the machine as it was then."""
    idle_frac: float | None
    n_runs: int


@dataclass
class TournamentAnswer:
    """What a tournament has shown."""

    tournament_id: int
    name: str
    status: str
    recommendation: str
    """What to use and how sure that is; "" while nothing has run."""
    decided: bool
    """Whether one setting is recommended: surely, and not only while other programs ran."""
    code: str
    """For a user's script: the DataLoader's arguments as code; "" where nothing is to be changed."""
    settings: list[Setting]
    others_cores: float
    """CPU cores that other programs used meanwhile, at least; 0 where they used next to none."""
    note: str
    """What stopped or paused it."""
    question: str
    """What a person has to agree to before it goes on: call `resume`."""
    next_tool: str
    next_command: str
    remarks: list[str]


@dataclass
class Compared:
    """Which of two runs is faster, and how far to trust that."""

    sentence: str
    faster_run: int | None
    """None where it is undecided, equal, or the runs are not alike."""
    ratio: float | None
    """Speed of run_b over that of run_a."""
    low: float | None
    high: float | None
    trust: str
    """What the ratio rests on."""
    firm: bool
    """Whether the two ran alternately on a quiet machine. Otherwise prove it before you claim it."""
    differences: list[str]
    """What else differs between the runs."""
    tournament_id: int | None
    """The tournament that ran both alternately."""


class Check(TypedDict):
    """A check of the machine."""

    name: str
    found: str
    verdict: str
    meaning: str


@dataclass
class Doctor:
    """Whether this machine has what vitprof needs."""

    ok: bool
    """Whether no verdict is bad."""
    checks: list[Check]


@dataclass
class Patched:
    """The change of a script that a tournament recommends. Nothing is written."""

    diff: str
    """For `git apply -p0`; "" where nothing can be changed for sure: the remarks say what to do by hand."""
    remarks: list[str]
