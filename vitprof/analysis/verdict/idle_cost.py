"""What the idle time of a run's devices cost: seconds, money and joules, and what of it a fix gets back.

All surfaces show the same `IdleCost`. Its seconds are the shares of the verdict times the wall clock
of training, times the devices. Ranks train in step: while one waits for its data, the others wait for
it. Where that does not hold there is no verdict, and then no cost.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from vitprof import formats
from vitprof.config.device_rate import DeviceRate
from vitprof.recording.columns import RunSummary
from vitprof.recording.idle_cost import (
    EnergyBy,
    IdleCost,
    RecoverableBy,
    Spent,
    TimeCost,
    TimePart,
    TimePartName,
    WhyNoClaim,
)
from vitprof.recording.verdict import Verdict

HOUR_S = 3600.0
WORTH_SAYING = 0.005
"""Share of the time below which a part is left out of the words: it reads as 0%."""
OF_OTHER_PROGRAMS = ("cpu_contention", "unclear")
"""Causes with which it is not known what the run would cost by itself."""
PART_WORDS: dict[TimePartName, str] = {
    "compute": "compute",
    "waiting": "waiting for data",
    "launches": "launching kernels",
    "between-steps": "between steps",
    "other": "idle otherwise",
}
"""Part of the training time -> what it is called; in this order."""
WITH_COPIES = "waiting for data and copies"
"""What waiting is called where copies to the device have a part in it."""
Shares = Mapping[TimePartName, float]
"""Part of the training time -> its share, 0 to 1; they add up to 1."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """How many times as fast the job is with a fix, as far as it was tried; NaN where it was not."""

    proven_times: float = math.nan
    """By runs of a fix and of the job before it, on a quiet machine."""
    measured_times: float = math.nan
    """By replayed batches: the most that a fix of loading can gain."""


def idle_cost_of(
    verdict: Verdict,
    summary: RunSummary,
    shares: Shares,
    evidence: Evidence,
    rate: DeviceRate | None,
) -> IdleCost | None:
    """Returns what the idle time of a run cost; None where its times are not known, and for a run that
    replays its batches.

    `shares`: where the training time went. Only what a fix gets back is called recoverable: what a
    proof has shown, else what replayed batches have, else at most the wait for data.
    """
    if verdict.replay or not summary.training_s > 0:
        return None
    disturbed = is_disturbed(verdict)
    words = dict(PART_WORDS)
    if verdict.copies_included:
        words["waiting"] = WITH_COPIES
    claims = _Claims(
        n_devices=n_devices_of(verdict),
        rate=rate,
        simulated=verdict.simulated,
        disturbed=disturbed,
    )
    recoverable_frac = _known(verdict.idle_frac)
    by: RecoverableBy = "at most"
    if disturbed:
        recoverable_frac = math.nan
        by = ""
    elif math.isfinite(evidence.proven_times):
        recoverable_frac = 1 - 1 / evidence.proven_times
        by = "proven"
    elif math.isfinite(evidence.measured_times):
        # below 1 where the replay happened to be slower
        recoverable_frac = max(0.0, 1 - 1 / evidence.measured_times)
        by = "measured"
    power_w, energy_by = claims.power_of(summary)
    so_far = claims.time_cost(summary.training_s, power_w, shares, words, recoverable_frac)
    epoch = None
    if summary.epoch_s > 0:
        epoch = claims.time_cost(summary.epoch_s, power_w, shares, words, recoverable_frac)
    return claims.idle_cost(
        by,
        so_far,
        epoch,
        energy_by=energy_by,
        energy_expected=verdict.device == "gpu",
        epoch_measured=summary.n_epochs_measured > 0,
    )


def idle_cost_so_far(
    training_s: float, shares: Shares, rate: DeviceRate | None, *, n_devices: int, simulated: bool
) -> IdleCost | None:
    """Returns what the idle time of a run that goes on has cost. Its energy is known once it has ended."""
    if not training_s > 0:
        return None
    claims = _Claims(n_devices=n_devices, rate=rate, simulated=simulated, disturbed=False)
    waiting_frac = shares["waiting"]
    so_far = claims.time_cost(training_s, math.nan, shares, PART_WORDS, waiting_frac)
    return claims.idle_cost(
        "at most", so_far, None, energy_by="", energy_expected=False, epoch_measured=False
    )


def n_devices_of(verdict: Verdict) -> int:
    """Returns how many devices trained: one for each rank. The ranks that train on a CPU share it."""
    return 1 if verdict.device == "cpu" else max(1, verdict.n_ranks)


def is_disturbed(verdict: Verdict) -> bool:
    """Returns whether other programs have a part in the idle time, so that it is not the run's own."""
    return (
        verdict.cores_taken is not None
        or verdict.other_programs is not None
        or verdict.cause in OF_OTHER_PROGRAMS
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claims:
    """What may be told of a run's costs."""

    n_devices: int
    rate: DeviceRate | None
    simulated: bool
    disturbed: bool

    @property
    def allowed(self) -> bool:
        """Returns whether money and energy may be told."""
        return not (self.simulated or self.disturbed)

    def power_of(self, summary: RunSummary) -> tuple[float, EnergyBy]:
        """Returns the mean power of all devices together (W), and how it is known; NaN and "" where
        it is not known of each of them."""
        if not self.allowed or summary.n_energy_gpus != self.n_devices:
            return math.nan, ""
        if math.isfinite(summary.energy_j):
            return summary.energy_j / summary.training_s, "counter"
        if math.isfinite(summary.energy_by_power_j):
            return summary.energy_by_power_j / summary.training_s, "power"
        return math.nan, ""

    def time_cost(
        self,
        wall_s: float,
        power_w: float,
        shares: Shares,
        words: Mapping[TimePartName, str],
        recoverable_frac: float,
    ) -> TimeCost:
        """Returns what `wall_s` seconds of training cost. `recoverable_frac`: the share that a fix
        gets back, NaN where that is not told."""
        seconds = wall_s * self.n_devices
        money = math.nan
        if self.rate is not None and self.allowed:
            money = seconds / HOUR_S * self.rate.per_hour
        whole = Spent(seconds=seconds, money=money, joules=wall_s * power_w)
        total = math.fsum(shares.values())
        parts = tuple(
            TimePart(name=name, words=words[name], seconds=seconds * shares[name] / total)
            for name in words
            if name in shares
        )
        recoverable = None
        if math.isfinite(recoverable_frac):
            recoverable = _share_of(whole, recoverable_frac)
        return TimeCost(
            whole=whole,
            parts=parts,
            waiting=_share_of(whole, shares["waiting"] / total),
            recoverable=recoverable,
        )

    def idle_cost(
        self,
        by: RecoverableBy,
        so_far: TimeCost,
        epoch: TimeCost | None,
        *,
        energy_by: EnergyBy,
        energy_expected: bool,
        epoch_measured: bool,
    ) -> IdleCost:
        """Returns all of it."""
        why: WhyNoClaim = ""
        if self.simulated:
            why = "simulated"
        elif self.disturbed:
            why = "other programs"
        return IdleCost(
            n_devices=self.n_devices,
            recoverable_by=by,
            rate_per_hour=math.nan if self.rate is None else self.rate.per_hour,
            currency="" if self.rate is None else self.rate.currency,
            energy_by=energy_by,
            energy_expected=energy_expected,
            why_no_claim=why,
            so_far=so_far,
            epoch=epoch,
            epoch_measured=epoch_measured,
        )


def _share_of(whole: Spent, frac: float) -> Spent:
    return Spent(seconds=whole.seconds * frac, money=whole.money * frac, joules=whole.joules * frac)


def _known(frac: float) -> float:
    return frac if math.isfinite(frac) else 0.0


# In words.

ENERGY_BY_WORDS: dict[EnergyBy, str] = {
    "counter": "by NVML's energy counter",
    "power": "by samples of its power",
}
"""Where energy comes from -> the same in a sentence."""
NO_CLAIM: dict[WhyNoClaim, str] = {
    "simulated": "Money is left out: the device is simulated.",
    "other programs": "Money and energy are left out: other programs ran.",
}
"""Why money and energy are left out -> a sentence."""


def cost_in_words(cost: IdleCost) -> str:
    """Returns "of 6.00 s of training: 1.70 s compute, 4.30 s waiting for data (recoverable: up to 4.30
    s). That is up to 0.00299 USD at 2.50 USD an hour, up to 860 J by NVML's energy counter. An epoch of
    ..."."""
    sentences = [f"{_time_in_words(cost)}.", _price_in_words(cost), _epoch_in_words(cost)]
    return " ".join(sentence for sentence in sentences if sentence)


def _time_in_words(cost: IdleCost) -> str:
    """Returns where the training time went, and what of it is recoverable."""
    whole_s = cost.so_far.whole.seconds
    named = []
    for part in cost.so_far.parts:
        if part.seconds < WORTH_SAYING * whole_s:
            continue
        words = f"{formats.seconds(part.seconds)} {part.words}"
        if part.name == "waiting":
            words += _recoverable_in_words(cost)
        named.append(words)
    of_all = formats.seconds(whole_s)
    if cost.n_devices > 1:
        of_all += f" on {cost.n_devices} devices"
    return f"of {of_all} of training: {', '.join(named)}"


def _recoverable_in_words(cost: IdleCost) -> str:
    """Returns " (recoverable: 4.06 s, proven)", " (recoverable: up to 4.30 s)"; "" where it is not told."""
    recoverable = cost.so_far.recoverable
    if recoverable is None:
        return ""
    seconds = formats.seconds(recoverable.seconds)
    if cost.recoverable_by == "at most":
        return f" (recoverable: up to {seconds})"
    return f" (recoverable: {seconds}, {cost.recoverable_by})"


def _is_worth_saying(cost: IdleCost) -> bool:
    recoverable = cost.so_far.recoverable
    if recoverable is None:
        return False
    return recoverable.seconds >= WORTH_SAYING * cost.so_far.whole.seconds


def _price_in_words(cost: IdleCost) -> str:
    """Returns what the recoverable time cost in money and energy, or why that is not told."""
    has_rate = math.isfinite(cost.rate_per_hour)
    if cost.why_no_claim:
        # of energy nobody expects to hear where nobody asked for money
        return NO_CLAIM[cost.why_no_claim] if has_rate else ""
    recoverable = cost.so_far.recoverable
    if recoverable is None or not _is_worth_saying(cost):
        return ""
    up_to = "up to " if cost.recoverable_by == "at most" else ""
    told = []
    if math.isfinite(recoverable.money):
        money = formats.money(recoverable.money, cost.currency)
        rate = formats.money(cost.rate_per_hour, cost.currency)
        told.append(f"{up_to}{money} at {rate} an hour of a device")
    if math.isfinite(recoverable.joules):
        energy = formats.energy(recoverable.joules)
        told.append(f"up to {energy} {ENERGY_BY_WORDS[cost.energy_by]}")
    sentences = []
    if told:
        sentences.append(f"That is {', '.join(told)}.")
    if cost.energy_expected and not cost.energy_by:
        sentences.append("Energy: not available.")
    return " ".join(sentences)


def _epoch_in_words(cost: IdleCost) -> str:
    """Returns the same of an epoch: "Per epoch: up to 8.50 s of 12.2 s, 0.00590 USD, 1.70 kJ."."""
    if cost.epoch is None or cost.epoch.recoverable is None or not _is_worth_saying(cost):
        return ""
    recoverable = cost.epoch.recoverable
    whole = formats.seconds(cost.epoch.whole.seconds)
    if not cost.epoch_measured:
        whole = f"about {whole}"
    told = [f"{formats.seconds(recoverable.seconds)} of {whole}"]
    if math.isfinite(recoverable.money):
        told.append(formats.money(recoverable.money, cost.currency))
    if math.isfinite(recoverable.joules):
        # energy is known as the most that it can be, also where the time is proven
        at_most = "" if cost.recoverable_by == "at most" else "up to "
        told.append(f"{at_most}{formats.energy(recoverable.joules)}")
    up_to = "up to " if cost.recoverable_by == "at most" else ""
    return f"Per epoch: {up_to}{', '.join(told)}."
