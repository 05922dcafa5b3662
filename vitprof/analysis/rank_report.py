"""The ranks of one distributed job, in words: which of them the others wait for, by what cause, and what that costs."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from vitprof import formats
from vitprof.analysis.arrays import Interval
from vitprof.recording.verdict import NoVerdict, NoVerdictReason

HEAVIER = 1.1
"""From this ratio of what ranks were given (numbers of the largest tensor, or samples) one has heavier data."""
RARELY = 0.03
SCOPE = "Compared up to each step's first backward pass: who is late after it, or in a wait of its own, is not seen."
NO_FORWARD = "no times of its forward pass without waits for other ranks"


@dataclass(frozen=True)
class RankFigures:
    """One rank, over the steps that all ranks made."""

    rank: int
    data_wait_frac: float
    """Share of the time blocked in next(loader)."""
    exposed_frac: float
    """The part of that which cost device time."""
    own_ms: float
    """Mean milliseconds of a step before the collective: exposed data wait; where they are known, what it does between
    two steps (logging, checkpoints) and the forward pass."""
    given: float
    """Numbers in its batches' largest tensor, on average, as a multiple of the other ranks' median; by samples where
    those are not known."""
    last_frac: float
    """Share of the steps in which it was last."""
    waits_for_others_frac: float
    """Share of the time in which it waited for the last one."""


@dataclass(frozen=True)
class Stretch:
    """Some steps in a row, by their numbers."""

    first: int
    last: int


@dataclass(frozen=True)
class Ranks:
    """The ranks of a run."""

    figures: tuple[RankFigures, ...]
    n_steps: int
    """Steps behind the figures: those of all ranks, without warm-up."""
    lost_s: float = math.nan
    """How much earlier the last rank would be if all had their data at once, summed: what data cost the job."""
    lost_frac: float = math.nan
    straggler: int | None = None
    """The rank that the others wait for; None where there is none, or it cannot be told."""
    stragglers: tuple[int, ...] = ()
    """It, and others that are as late."""
    within: tuple[Stretch, ...] = ()
    """The stretches in which it is late, where it is so for a time only."""
    cause: str = ""
    """input, heavier data, compute, between steps, or machine; "" without a straggler."""
    on: str = ""
    """Its node; "" where there is one node."""
    machine: str = ""
    """What was found of its machine, where that is the cause."""
    saves: Interval = field(default_factory=lambda: Interval(math.nan, math.nan, math.nan))
    """Share of the time that it holds up the others, with its interval; of a wandering one, of all of them."""
    wandering: bool = False
    """Whether another rank is last each time."""
    of_epochs: tuple[tuple[int, int], ...] = ()
    """Epoch, and the rank that was last in most of its steps."""
    one_off: tuple[int, float] = (0, 0.0)
    """Steps in which one rank held up all others for several steps' time, and the seconds of that."""
    one_off_frac: float = 0.0
    """The share of the time of that."""
    one_off_ranks: tuple[int, ...] = ()
    """Those ranks."""
    waits_alone: bool = False
    """Whether only waits for data were compared, as the time of the forward pass is not known."""
    not_all: int = 0
    """Steps that one rank made and another did not."""
    not_between: int = 0
    """Steps of which it is not known what a rank did before them: another collective came there, or no optimizer."""
    not_between_frac: float = 0.0
    """Their share of the time."""
    not_forward: int = 0
    """Steps that are not compared, as another collective is in their forward pass."""
    not_forward_frac: float = 0.0
    """Their share of the time."""
    waiting: tuple[float, ...] = ()
    """A rank that waits for others outside the backward pass, too, and by which share of the time more than the one
    that does so least; () where that is little, or not seen."""
    in_doubt: bool = False
    """Whether what data cost is not known, as one does so, and their waits for data differ."""
    why_not: str = ""
    """Why nothing can be told; "" where it can."""

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON (`recording.rank_facts.RankFacts`), with null for what is not known."""
        within = [step for stretch in self.within for step in (stretch.first, stretch.last)]
        plain = {
            **asdict(self),
            "within": within,
            "saves": list(self.saves),
            "sentences": list(self.sentences),
        }
        return cast("dict[str, Any]", json.loads(json.dumps(plain), parse_constant=lambda _: None))

    @property
    def sentences(self) -> tuple[str, ...]:
        """Returns what to say about it, the most important first."""
        n = len(self.figures)
        if self.why_not:
            return (f"{n} ranks: {self.why_not}.",)
        found = [f"{n} ranks: {self._named()}."]
        cost = (
            f"{formats.percent(self.lost_frac)} of the time, "
            f"{formats.seconds(self.lost_s)} in {self.n_steps:,} steps"
        )
        if not self.in_doubt:
            found.append(
                f"Waits for data cost {cost}: so much earlier the last rank would be without them."
            )
        if self.one_off[0]:
            times = formats.count(self.one_off[0], "step")
            who = ", ".join(map(str, self.one_off_ranks))
            ranks = f"rank {who}" if len(self.one_off_ranks) == 1 else f"one of ranks {who}"
            found.append(
                f"In {times} {ranks} held up the others for long, {formats.seconds(self.one_off[1])} in all."
            )
        if self.not_between_frac > RARELY:
            steps = _share_of(self.not_between, self.not_between_frac)
            found.append(
                f"What each does before {steps} is not known: other collectives come there, or in the loader."
            )
        if self.not_forward_frac > RARELY:
            steps = _share_of(self.not_forward, self.not_forward_frac)
            found.append(
                f"{steps} with other collectives before the backward pass are not compared."
            )
        if self.not_all > RARELY * self.n_steps:
            found.append(
                f"{formats.count(self.not_all, 'step')} that not all ranks made are in none of these figures."
            )
        return (*found, SCOPE)

    def _named(self) -> str:
        between = f"{formats.percent(self.saves.low)} to {formats.percent(self.saves.high)}"
        share = f"{formats.percent(self.saves.value)} of the time ({between})"
        if self.wandering:
            last = ", ".join(
                f"rank {f.rank} in {formats.percent(f.last_frac)}" for f in self.figures
            )
            what = {"input": "waits longest for its data", "compute": "computes longest"}.get(
                self.cause, "is last"
            )
            what += ", by how much it is given," * (self.cause == "heavier data")
            return f"the one that {what} changes ({last} of the steps), and the others wait {share}"
        if self.straggler is None:
            more = f", but {waits_for_others(*self.waiting)}" if self.waiting else ""
            if self.waits_alone:
                unknown = f"how long each computes is not known ({NO_FORWARD})"
                return f"no rank's data hold up the others clearly; {unknown}{more}"
            if len(self.one_off_ranks) == 1 and self.one_off[0] > 1 and self.one_off_frac > RARELY:
                rare = _share_of(self.one_off[0], self.one_off_frac)
                return f"rank {self.one_off_ranks[0]} holds up the others in {rare}"
            between = ", between its steps" * (self.not_between_frac <= RARELY)
            return f"no rank holds up the others clearly by its data{between} or up to its first backward pass{more}"
        mine = next(f for f in self.figures if f.rank == self.straggler)
        why = {
            "input": f"its data come late: it waits for them {formats.percent(mine.data_wait_frac)} of the time",
            "heavier data": f"its batches are heavier, {formats.number(mine.given)} times what the others get",
            "compute": f"from its batch to its backward pass it takes longer{_as_given(mine.given)}",
            "between steps": "it does more between its steps: logging, metrics, checkpoints",
            "machine": self.machine,
        }[self.cause]
        where = f" (on {self.on})" if self.on else ""
        at_least = (
            "" if self.cause in ("input", "between steps") else "at least "
        )  # its backward pass is not seen
        steps = " and ".join(f"{each.first:,} to {each.last:,}" for each in self.within)
        when = f", about in steps {steps}" if steps else ""
        who = f"rank {self.straggler}{where} holds"
        if len(self.stragglers) > 1:
            who = f"ranks {', '.join(map(str, self.stragglers))}{where} hold"
        return f"{who} up the others for {at_least}{share}{when}; cause: {self.cause} ({why})"


def waits_for_others(rank: float, share: float) -> str:
    """Returns that a rank waits for others where these are not compared."""
    return f"rank {rank:.0f} waits for others {formats.percent(share)} of the time outside the backward pass"


def _share_of(steps: int, share: float) -> str:
    return f"{formats.count(steps, 'step')} ({formats.percent(share)} of the time)"


def _as_given(given: float) -> str:
    if math.isnan(given):
        return "; how much data it gets is not known"
    return (
        ", by more than its data explain"
        if given >= HEAVIER
        else ", with as many values in its largest tensor"
    )


def unknown_waits(facts: Mapping[str, Any], n_steps: int) -> NoVerdict | None:
    """Returns why waits in the loader are not known to be for data; None where they are."""
    unknown = facts.get("unknown_loader_waits") or 0
    if unknown <= RARELY * n_steps:
        return None
    return NoVerdict("collective_in_loader", n=unknown)


RANKS_DIFFER_FRAC = 0.05
"""By which share of the time what data cost the job may differ from the wait of rank 0, whose figures are judged."""


def too_little_of_rank_0(facts: Mapping[str, Any]) -> NoVerdict | None:
    """Returns why the figures of rank 0, or of one node, say too little about a distributed job.

    It waits, or may wait, for the data of another. None where they say enough.
    """
    if missing := facts.get("missing_ranks"):
        return NoVerdict("missing_ranks", n=missing)
    ranks = facts.get("ranks") or {}
    n = facts.get("world_size") or 1
    if n > 1 and not ranks and facts.get("watched") and not facts.get("job"):
        return NoVerdict("lone_rank", n=n)
    if ranks and (why := unknown_waits(facts, ranks["n_steps"])):
        return why
    if ranks.get("in_doubt"):
        return NoVerdict("ranks_in_doubt")
    lost = ranks.get("lost_frac")
    own = ranks["figures"][0]["exposed_frac"] if lost is not None else 0.0
    if lost is None or abs(lost - own) < RANKS_DIFFER_FRAC:
        return None
    reason: NoVerdictReason = "rank_0_early" if lost < own else "rank_0_late"
    return NoVerdict(reason, frac=lost, rank_0_frac=own)
