"""The verdict on a run, as `vitprof.analysis.verdict` fills it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vitprof.recording import codec
from vitprof.recording.columns import Figure

Kind = Literal[
    "not input-bound", "moderately input-bound", "input-bound", "launch-bound", "inconclusive"
]


@dataclass(frozen=True)
class Share:
    """The share of one stage of loading, or of the rest, in the device's idle time."""

    name: str
    """read, decode, transform, collate, rest, hand_over, transfer, epoch_start (what the waits with
    which epochs begin are more than those of other steps), or loading if the stages are not
    known."""
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
    """Machine word: worker-period, slow-worker, epoch-start, first-batch, garbage-collection,
    cold-to-warm, memory-growth, other-programs."""
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
    samples_per_s: Figure = math.nan
    """Measured or predicted throughput with it; NaN if there is neither."""
    low: Figure = math.nan
    """Lower end of the 95% interval."""
    high: Figure = math.nan
    """Upper end of the 95% interval."""
    measured: bool = False
    """Whether that figure was measured by a run; if not, it is predicted."""


@dataclass(frozen=True)
class SingleEvent:
    """The step with the longest wait, without which a run would be in another class."""

    step: int
    """Its number in the run."""
    idle_s: Figure
    """Seconds that the device idled for its data."""
    idle_frac_without: Figure
    """Share of the time that the device idled for data in all other steps."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a run was input-bound, by what, and what to do about it.

    Shares are of the training time: steady steps and those that begin a later epoch."""

    kind: Kind
    """The verdict in a word or two."""
    sentence: str
    """The whole verdict in one sentence."""
    idle_frac: Figure = math.nan
    """Share of the time that the device idled for data: exposed data wait and exposed copies."""
    idle_frac_low: Figure = math.nan
    """Lower end of its 95% interval, which decides the kind."""
    idle_frac_high: Figure = math.nan
    """Upper end of its 95% interval."""
    host_frac: Figure = math.nan
    """Share of the time that the device idled for the loop itself: Python, launches, recording."""
    launch_frac: Figure = math.nan
    """Share of the time that the device waited for launches inside its steps, which other figures
    count as compute; NaN if not known."""
    cause: str = ""
    """read, decode, transform, collate, rest, hand_over, transfer, epoch_start, loading (stages not
    known), slow_drive, cpu_contention; launches where the host is slower than the device; empty if
    the device never idled for data, or for an inconclusive verdict."""
    cause_frac: Figure = math.nan
    """The cause's share of the idle time for data (`exposure.find_exposure`); 1 for launches."""
    cause_ms_per_batch: Figure = math.nan
    """Milliseconds a batch by which the device's idle time would fall without the cause."""
    shares: tuple[Share, ...] = ()
    """All shares of the idle time for data, the largest first."""
    speed_up_if_free: Figure = math.nan
    """How many times as fast the job would be if data were free."""
    speed_up_low: Figure = math.nan
    """Lower end of its 95% interval."""
    speed_up_high: Figure = math.nan
    """Upper end of its 95% interval."""
    speed_up_measured: bool = False
    """Whether the speed-up was measured by replaying batches; if not, it is an upper bound, from
    the gaps."""
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

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON; NaN becomes None."""
        plain: dict[str, Any] = codec.to_plain(self)
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Verdict:
        """Returns the verdict that `to_dict` was called on; ignores unknown names.

        Raises `ValueError`.
        """
        return codec.from_plain(cls, values)
