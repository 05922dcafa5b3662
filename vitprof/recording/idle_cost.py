"""What the idle time of a run's devices cost, as `vitprof.analysis.verdict.idle_cost` fills it."""

import math
from dataclasses import dataclass
from typing import Literal

from vitprof.recording.columns import Figure

RecoverableBy = Literal["", "proven", "measured", "at most"]
"""How it is known what a fix gets back. proven: by runs of the fix and of the job before it; measured:
by replaying batches; at most: it is the whole wait for data; "": it is not told."""
EnergyBy = Literal["", "counter", "power"]
"""Where energy comes from: NVML's counter of total energy, or samples of the power; "" where it is not
known."""
WhyNoClaim = Literal["", "simulated", "other programs"]
"""Why money and energy are left out; "" where that is for want of figures alone."""
TimePartName = Literal["compute", "waiting", "launches", "between-steps", "other"]
"""What a part of the training time went into. waiting: for data, and for copies where these matter;
other: what a run that goes on does not tell apart."""


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Time, money and energy, summed over all devices of a run."""

    seconds: Figure
    """Seconds of all devices together."""
    money: Figure = math.nan
    """What these cost at the given rate; null without one."""
    joules: Figure = math.nan
    """The energy of that time. For a part of the time it is the part's share of the energy, which is
    the most that it can be: a device that waits draws less than one that computes."""


@dataclass(frozen=True, kw_only=True)
class TimePart:
    """A part of the training time."""

    name: TimePartName
    """What it went into."""
    words: str
    """The same in words: "waiting for data and copies"."""
    seconds: Figure
    """Seconds of all devices together."""


@dataclass(frozen=True, kw_only=True)
class TimeCost:
    """What a stretch of training cost, and what of that went into waiting for data."""

    whole: Spent
    """All of it."""
    parts: tuple[TimePart, ...]
    """Where its time went; the parts add up to `whole`."""
    waiting: Spent
    """The part in which the devices waited for data."""
    recoverable: Spent | None
    """What a fix gets back, or may get back at most (`IdleCost.recoverable_by`); null where that is not
    told."""


@dataclass(frozen=True, kw_only=True)
class IdleCost:
    """What the idle time of a run's devices cost, so far and in an epoch."""

    n_devices: int
    """Devices that trained."""
    recoverable_by: RecoverableBy
    """How it is known what is recoverable."""
    rate_per_hour: Figure
    """The price of an hour of one device; null where none is given."""
    currency: str
    """The currency of that price; empty where none is given."""
    energy_by: EnergyBy
    """Where energy comes from; empty where it is not known."""
    energy_expected: bool
    """Whether the devices are such that could tell what they use."""
    why_no_claim: WhyNoClaim
    """Why money and energy are left out, where that is not for want of figures."""
    so_far: TimeCost
    """The training time of the run."""
    epoch: TimeCost | None
    """The training time of an epoch; null where that is not known."""
    epoch_measured: bool
    """Whether the time of an epoch was measured; else it is extrapolated from the throughput."""
