"""The verdict on a run as data, as `vitprof.analysis.verdict.verdict` fills it.

`vitprof.analysis.verdict.rendering` puts it into words.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vitprof.recording import codec
from vitprof.recording.columns import Figure

Kind = Literal[
    "not input-bound", "moderately input-bound", "input-bound", "launch-bound", "inconclusive"
]
DeviceKind = Literal["gpu", "simulated", "cpu", "untested"]
"""What trains: a GPU, one that is simulated, the CPU, or a device that vitprof times by calls that no
hardware has tried."""
NoVerdictReason = Literal[
    "loader_only",
    "partly_watched",
    "missing_ranks",
    "lone_rank",
    "collective_in_loader",
    "ranks_in_doubt",
    "rank_0_early",
    "rank_0_late",
    "several_threads",
    "forked_process",
    "no_loader",
    "fetched_elsewhere",
    "side_stream",
    "unclear_loaders",
    "no_steps",
    "too_few_steps",
    "untimed_device",
    "no_device_times",
    "steps_too_alike",
    "held_up",
    "interval_too_wide",
    "prepared_outside",
    "left_early",
    "read_in_step",
    "disturbed",
]
"""Why there is no verdict; `rendering.NO_VERDICT` has a sentence for each."""


@dataclass(frozen=True)
class Share:
    """The share of one stage of loading, or of the rest, in the device's idle time."""

    name: str
    """sampler, read, decode, transform, collate, rest, hand_over, transfer, epoch_start (what the waits with
    which epochs begin are more than those of other steps; where steps begin iterators, how long these
    take until a batch is begun, and to end), or loading if the stages are not known."""
    frac: Figure
    """Its share of the time that the device idled for data; all shares add up to 1."""
    exposed_ms: Figure
    """Milliseconds a batch by which the idle time would fall if this stage took no time."""
    own_ms: Figure
    """Milliseconds a batch that the stage itself takes, hidden or not, in whichever process."""


@dataclass(frozen=True)
class Signature:
    """A pattern in a run that points at one cause."""

    name: str
    """Machine word: worker-period, slow-worker, slow-samples, periodic-batches, late-batches, many-tensors, pickling,
    pinning-lock, open-descriptors, shared-memory-full, worker-memory, worker-threads, epoch-start, first-batch,
    garbage-collection, cold-to-warm, memory-growth, other-programs."""
    sentence: str
    """What was seen and where it comes from, in words."""
    cost_s_per_step: Figure
    """Seconds a step, spread over all steps that it concerns; NaN if it costs something other than
    time."""
    cost_frac: Figure
    """The same as a share of the time of those steps; NaN likewise."""
    evidence: Mapping[str, Figure]
    """The figures behind it; their names carry the units."""
    based_on: str
    """Source of the rule."""


@dataclass(frozen=True)
class Advice:
    """A piece of advice."""

    settings: Mapping[str, Any]
    """Fields of `RunConfig` to change (`apply`); empty if vitprof cannot set it."""
    words: str
    """What to do, worded to follow "try"."""
    reason: str
    """Why it should help, in a sentence."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of PyTorch's DataLoader to change in a user's own script: {"num_workers": 4}."""
    most_times: Figure = math.nan
    """How many times as fast the script would be with it, at most and about; NaN if not known."""
    in_short: str = ""
    """That of `words` which `most_times` is of, in a few words: "a lighter GaussianBlur"; "" where that
    is all of them."""


def advised_workers(advice: Iterable[Advice]) -> tuple[int, ...]:
    """Returns the numbers of workers that are advised for the DataLoader of a user's script."""
    numbers = (each.arguments.get("num_workers") for each in advice)
    return tuple(number for number in numbers if number is not None)


@dataclass(frozen=True)
class SingleEvent:
    """The step with the longest wait, without which a run would be in another class."""

    step: int
    """Its number in the run."""
    idle_s: Figure
    """Seconds that the device idled for its data."""
    idle_frac_without: Figure
    """Share of the time that the device idled for data in all other steps."""


@dataclass(frozen=True)
class EpochStarts:
    """The waits with which later epochs begin."""

    n: int = 0
    """Epoch starts seen, other than the run's first one."""
    wait_s: Figure = 0.0
    """Mean seconds that the device idled for data at one of them."""
    excess_s: Figure = 0.0
    """What that is more than at a steady step."""
    frac: Figure = 0.0
    """`excess_s` of all of them as a share of the wall clock of training."""
    epoch_frac: Figure = 0.0
    """Share of a whole epoch that the device idles for data; with the wait for the run's first
    batch where no other start was seen."""
    first_s: Figure = 0.0
    """Where no other start was seen: the wait for the run's first batch."""


@dataclass(frozen=True)
class HeldUp:
    """How a loader keeps Python from launching the model's work."""

    frac: Figure
    """Share of the time in which it does, beside the time that the device idles for data."""
    makers: Literal["worker", "thread"]
    """What makes batches: processes that share cores with Python, or threads that share its lock,
    too."""
    n: int
    """Their number."""


@dataclass(frozen=True)
class SlowestLoader:
    """The loader that is waited for longest, where a step asks several."""

    dataset: str
    """The class of its dataset."""
    frac: Figure
    """Its share of all waits for loaders."""
    nth: int = 1
    """Which of the loaders of that class it is, in the order in which steps asked them first."""
    n_alike: int = 1
    """Loaders of that class."""


@dataclass(frozen=True)
class OtherPrograms:
    """What other programs that keep the CPU busy did to a run."""

    idle_frac_without: Figure
    """Share of the time that the device would idle for data without them."""
    slow_training_too: bool
    """Whether they slow training as much as loading, as the CPU trains: the share stays the same
    without them."""


@dataclass(frozen=True)
class Program:
    """Another program that ran while the job trained."""

    name: str
    """The file name of its script or executable: "train.py", "chrome"."""
    pid: int
    """The id of its process; of several, of the one that used most."""
    cores: Figure
    """Cores that it used, on average, all its processes together."""
    processes: int = 1
    """How many of its processes used the CPU."""


@dataclass(frozen=True)
class CoresTaken:
    """What other programs took of the machine's cores while a run trained."""

    cores: Figure
    """Cores that they used together, on average."""
    of_cores: Figure
    """Cores of the machine."""
    programs: tuple[Program, ...] = ()
    """Those that used most, the largest first; empty where they were not looked at."""
    waited_frac: Figure = math.nan
    """Share of the time that the device idled for data in which loading may have been ready to run
    and had no core; NaN where that is not known."""


@dataclass(frozen=True)
class LateRanks:
    """The ranks of a distributed job that the others wait for (`analysis.rank_report`)."""

    ranks: tuple[int, ...]
    """Their numbers; empty where another one is last each time."""
    cause: str
    """input, heavier data, compute, between steps, or machine; empty where it changes."""
    frac: Figure
    """Share of the time that the others wait for them."""
    low: Figure
    """Lower end of its 95% interval."""
    high: Figure
    """Upper end of its 95% interval."""


@dataclass(frozen=True)
class Gain:
    """How many times as fast the job would be if data were free, with its 95% interval."""

    times: Figure
    """How many times as fast."""
    low: Figure
    """Lower end of its 95% interval."""
    high: Figure
    """Upper end of its 95% interval."""
    basis: Literal["estimate", "this run", "other runs"]
    """Estimated from the gaps, or measured by replaying batches: in this run or in others."""
    lost_less: bool = False
    """Whether those other runs lost less to loading than this one did."""
    between_starts: Figure = math.nan
    """What was measured for the steps between epoch starts, where that is not the whole gain."""


@dataclass(frozen=True)
class NoVerdict:
    """Why there is no verdict, with the figures that say so; those that do not apply are NaN or 0."""

    reason: NoVerdictReason
    """The reason in a word."""
    n: int = 0
    """What the reason counts: ranks, steps of unknown waits, collectives."""
    n_steps: int = 0
    """Steps recorded."""
    n_steady: int = 0
    """Steady steps among them."""
    needed: int = 0
    """Steady steps needed."""
    train_for: int = 0
    """Steps to train for so that enough are steady; 0 for a script of the user's own."""
    updates_on_one_batch: int = 0
    """Steps of the optimizer on one batch that was loaded once."""
    frac: Figure = math.nan
    """The share of the time that the reason is about: waits of the loop or of the job, or the time
    in which Python was kept from launching."""
    rank_0_frac: Figure = math.nan
    """Share of the time that rank 0 waits for data."""
    idle_frac: Figure = math.nan
    """Share of the time that the device idled for data, as far as that is known."""
    what: str = ""
    """The device, what ended watching, or how much was read in a step."""


OF_OTHER_PROGRAMS = ("cpu_contention", "unclear")
"""Causes that are not the job's own."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a run was input-bound, by what, and what to do about it.

    Shares are of the training time: steady steps and those that begin a later epoch."""

    kind: Kind
    """The verdict in a word or two."""
    sentence: str = ""
    """The whole verdict in words, as `rendering` said it when the run was judged."""
    why_none: NoVerdict | None = None
    """Why the verdict is inconclusive; None where it is not, and in runs of older versions."""
    device: DeviceKind | None = None
    """What trained; None in a verdict of a version that did not say so, which has its sentence
    alone."""
    device_name: str = ""
    """Its name, where `device` is "untested"."""
    n_ranks: int = 1
    """Ranks of the job; the figures are those of rank 0."""
    late_ranks: LateRanks | None = None
    """The ranks that the others wait for; None where there are none, or it cannot be told."""
    replay: str = ""
    """Where batches were kept in a run that replays them and loads nothing: device or host."""
    idle_frac: Figure = math.nan
    """Share of the time that the device idled for data: exposed data wait and exposed copies."""
    idle_frac_low: Figure = math.nan
    """Lower end of its 95% interval, which decides the kind."""
    idle_frac_high: Figure = math.nan
    """Upper end of its 95% interval."""
    n_judged: int = 0
    """Steps behind that share: steady ones, and those that begin a later epoch."""
    copies_included: bool = False
    """Whether copies to the device have a part in that share that is worth naming."""
    between_frac: Figure = math.nan
    """The same share of the steady steps alone, between epoch starts."""
    epoch_starts: EpochStarts | None = None
    """The waits with which epochs begin; None where nothing was measured."""
    host_frac: Figure = math.nan
    """Share of the time that the device idled for the loop itself: Python, kernel launches, recording."""
    launch_frac: Figure = math.nan
    """Share of the time that the device waited for kernel launches inside its steps, which other figures
    count as compute; NaN if not known."""
    paced_frac: Figure = math.nan
    """`host_frac` and, where known, `launch_frac`: the host was slower than the device."""
    paced_frac_low: Figure = math.nan
    """Lower end of its 95% interval, which decides whether a run is launch-bound."""
    paced_frac_high: Figure = math.nan
    """Upper end of its 95% interval."""
    host_paced: bool = False
    """Whether the device was done with a step as soon as all of it was launched."""
    gpu_util_frac: Figure = math.nan
    """Share of the time in which NVML saw a kernel run (GPU-util); NaN if not known."""
    outside_frac: Figure = math.nan
    """Share of the time between steps in which the script did something else, such as logging."""
    asleep_frac: Figure = math.nan
    """Share of the time that the script slept after its batch had come; NaN where it may have
    waited for a core."""
    left_early_frac: Figure = math.nan
    """Share of the time in which workers ended of loops that were left early: in no wait, but for loading."""
    before_model_frac: Figure = math.nan
    """Share of the time between the loader and the model, where batches may be prepared, too."""
    shares_cpu_with: Literal["", "training", "launches"] = ""
    """What loading takes CPU from: with free data that is faster, too, and an estimate may be low."""
    held_up: HeldUp | None = None
    """How the loader keeps Python from launching work; None where it hardly does."""
    cause: str = ""
    """read, decode, transform, collate, rest, hand_over, transfer, epoch_start, loading (stages not
    known), held_up, slow_drive, cpu_contention; unclear where another stage may take longest without other
    programs; launches where the host is slower than the device; empty if the device never idled for data, or for an
    inconclusive verdict."""
    of_own_script: bool = False
    """Whether a user's own script was judged: its Dataset reads and decodes at once."""
    cause_part: str = ""
    """What has that cause: the decoder, or the storage; "waits" for a dataset that mostly waits,
    "dataset" for another one of a user's script, "loop" where nothing is handed over."""
    cause_frac: Figure = math.nan
    """The cause's share of the idle time for data (`exposure.find_exposure`); 1 for launches."""
    cause_ms_per_batch: Figure = math.nan
    """Milliseconds a batch by which the device's idle time would fall without the cause."""
    shares: tuple[Share, ...] = ()
    """All shares of the idle time for data, the largest first."""
    slowest_loader: SlowestLoader | None = None
    """The loader that is waited for longest; None where a step asks one."""
    gain: Gain | None = None
    """What free data would gain; None where that cannot be told."""
    other_programs: OtherPrograms | None = None
    """What other programs did to the idle time; None where that is little."""
    cores_taken: CoresTaken | None = None
    """What other programs took in the steady state, where that is enough to be said, or they are
    the cause or make it unclear; None else."""
    advice: tuple[Advice, ...] = ()
    """What to try, the best first; at most three."""
    signatures: tuple[Signature, ...] = ()
    """Patterns found, the costliest first."""
    n_steps: int = 0
    """Steady steps behind the verdict."""
    simulated: bool
    """Whether the device was simulated."""
    single_event: SingleEvent | None = None
    """The one step without which the run would be in another class; None if no single step decides
    it."""

    @property
    def is_conclusive(self) -> bool:
        """Returns whether the run is in a class."""
        return self.kind != "inconclusive"

    @property
    def is_of_other_programs(self) -> bool:
        """Returns whether other programs are the cause of the idle time, or make it unclear."""
        return self.cause in OF_OTHER_PROGRAMS

    @property
    def n_epoch_starts(self) -> int:
        """Returns how many of the judged steps begin a later epoch; the others are steady ones."""
        return self.epoch_starts.n if self.epoch_starts is not None else 0

    @property
    def stated_idle_frac(self) -> float:
        """Returns the share of the time that the verdict states, the one idle figure of a run.

        The device idled for data and copies so long; in a launch-bound run it waited for Python.
        Without a class it is the share that is known all the same. NaN where none is known.
        """
        if self.kind == "launch-bound":
            return self.paced_frac
        if math.isfinite(self.idle_frac) or self.why_none is None:
            return self.idle_frac
        if self.why_none.reason in ("rank_0_late", "rank_0_early"):
            return self.why_none.frac
        return self.why_none.idle_frac

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON; NaN becomes None."""
        plain: dict[str, Any] = codec.to_plain(self)
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Verdict:
        """Returns the verdict that `to_dict` was called on; ignores unknown names.

        Raises `ValueError`.
        """
        return codec.from_plain(cls, with_gain(values))


def with_gain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a stored verdict with its `gain` as versions before schema 4 had it: in fields of
    its own."""
    times = values.get("speed_up_if_free")
    if times is None or "gain" in values:
        return dict(values)
    gain = {
        "times": times,
        "low": values.get("speed_up_low"),
        "high": values.get("speed_up_high"),
        "basis": "other runs" if values.get("speed_up_measured") else "estimate",
    }
    return {**values, "gain": gain}
