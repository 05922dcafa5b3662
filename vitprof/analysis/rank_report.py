"""The ranks of one distributed job, in words: which of them the others wait for, by what cause, and what that costs."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from vitprof import formats
from vitprof.analysis.arrays import Interval
from vitprof.recording.verdict import LateRanks, NoVerdict, NoVerdictReason

HEAVIER = 1.1
"""From this ratio of what ranks were given (numbers of the largest tensor, or samples) one has heavier data."""
RARELY = 0.03
SCOPE = (
    "Ranks are compared up to the first backward pass of each step: delays after it, and waits of a "
    "rank of its own, are not seen."
)
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
        first, *more = (*_who_holds_up(self), *_what_data_cost(self), *_one_off(self))
        return (f"{n} ranks: {first}", *more, *_not_compared(self), SCOPE)


def _who_holds_up(ranks: Ranks) -> list[str]:
    """Returns which rank the others wait for, for how long, and why."""
    if ranks.wandering:
        return _wandering(ranks)
    if ranks.straggler is None:
        return _nobody(ranks)
    return _straggler(ranks)


def _share_held_up(ranks: Ranks) -> str:
    between = f"{formats.percent(ranks.saves.low)} to {formats.percent(ranks.saves.high)}"
    return f"{formats.percent(ranks.saves.value)} of the time ({between})"


LAST_ONES = {
    "input": "the rank that waits longest for its data changes",
    "compute": "the rank that computes longest changes",
    "heavier data": "the last rank changes with how much each is given",
}
"""Cause of ranks that are last by turns -> what is said of it."""


def _wandering(ranks: Ranks) -> list[str]:
    changes = LAST_ONES.get(ranks.cause, "the last rank changes")
    shares = [f"rank {f.rank} in {formats.percent(f.last_frac)}" for f in ranks.figures]
    return [
        f"{changes} ({', '.join(shares)} of the steps).",
        f"The others wait for it {_share_held_up(ranks)}.",
    ]


def _nobody(ranks: Ranks) -> list[str]:
    waiting = []
    if ranks.waiting:
        waiting = [f"But {waits_for_others(*ranks.waiting)}."]
    if ranks.waits_alone:
        return [
            "no rank's data clearly hold up the others.",
            f"How long each computes is not known ({NO_FORWARD}).",
            *waiting,
        ]
    n_steps, _ = ranks.one_off
    is_often = n_steps > 1 and ranks.one_off_frac > RARELY
    if len(ranks.one_off_ranks) == 1 and is_often:
        rare = _share_of(n_steps, ranks.one_off_frac)
        return [f"rank {ranks.one_off_ranks[0]} holds up the others in {rare}."]
    by = "its data or up to its first backward pass"
    if ranks.not_between_frac <= RARELY:
        by = "its data, between its steps or up to its first backward pass"
    return [f"no rank clearly holds up the others by {by}.", *waiting]


def _straggler(ranks: Ranks) -> list[str]:
    where = f" (on {ranks.on})" if ranks.on else ""
    who = f"rank {ranks.straggler}{where} holds"
    if len(ranks.stragglers) > 1:
        who = f"ranks {', '.join(map(str, ranks.stragglers))}{where} hold"
    # where it is slow in its backward pass, too, that is not seen
    at_least = "" if ranks.cause in ("input", "between steps") else "at least "
    stretches = " and ".join(f"{each.first:,} to {each.last:,}" for each in ranks.within)
    when = f", about in steps {stretches}" if stretches else ""
    return [
        f"{who} up the others for {at_least}{_share_held_up(ranks)}{when}.",
        f"The cause is {ranks.cause}: {_why_late(ranks)}.",
    ]


def _why_late(ranks: Ranks) -> str:
    figures = next(f for f in ranks.figures if f.rank == ranks.straggler)
    if ranks.cause == "input":
        waits = formats.percent(figures.data_wait_frac)
        return f"its data come late, and it waits for them {waits} of the time"
    if ranks.cause == "heavier data":
        return f"its batches are heavier, {formats.number(figures.given)} times what others get"
    if ranks.cause == "compute":
        return f"from its batch to its backward pass it takes longer{_as_given(figures.given)}"
    if ranks.cause == "between steps":
        return "it does more between its steps, such as logging, metrics, checkpoints"
    return ranks.machine


def _as_given(given: float) -> str:
    """Returns whether a rank that computes longer was given more."""
    if math.isnan(given):
        return "; how much data it gets is not known"
    if given >= HEAVIER:
        return ", by more than its data explain"
    return ", with as many values in its largest tensor"


def _what_data_cost(ranks: Ranks) -> list[str]:
    if ranks.in_doubt:
        return []
    cost = f"{formats.percent(ranks.lost_frac)} of the time"
    seconds = f"{formats.seconds(ranks.lost_s)} in {ranks.n_steps:,} steps"
    return [f"Waits for data cost {cost}: without them the last rank would be {seconds} earlier."]


def _one_off(ranks: Ranks) -> list[str]:
    n_steps, seconds = ranks.one_off
    if not n_steps:
        return []
    numbers = ", ".join(map(str, ranks.one_off_ranks))
    who = f"rank {numbers}" if len(ranks.one_off_ranks) == 1 else f"one of ranks {numbers}"
    steps = formats.count(n_steps, "step")
    return [f"In {steps} {who} held up the others for long, {formats.seconds(seconds)} in all."]


def _not_compared(ranks: Ranks) -> list[str]:
    """Returns which steps are left out, or not known in part, where they are more than a few."""
    left_out = []
    if ranks.not_between_frac > RARELY:
        steps = _share_of(ranks.not_between, ranks.not_between_frac)
        why = "other collectives come there, or in the loader"
        left_out.append(f"What each does before {steps} is not known: {why}.")
    if ranks.not_forward_frac > RARELY:
        steps = _share_of(ranks.not_forward, ranks.not_forward_frac)
        left_out.append(f"{steps} are not compared: a collective comes before the backward pass.")
    if ranks.not_all > RARELY * ranks.n_steps:
        steps = formats.count(ranks.not_all, "step")
        left_out.append(f"{steps} are in no figure, as not all ranks made them.")
    return left_out


def waits_for_others(rank: float, share: float) -> str:
    """Returns that a rank waits for others where these are not compared."""
    frac = formats.percent(share)
    return f"rank {rank:.0f} waits for others {frac} of the time outside the backward pass"


def _share_of(steps: int, share: float) -> str:
    return f"{formats.count(steps, 'step')} ({formats.percent(share)} of the time)"


def unknown_waits(facts: Mapping[str, Any], n_steps: int) -> NoVerdict | None:
    """Returns why waits in the loader are not known to be for data; None where they are."""
    unknown = facts.get("unknown_loader_waits") or 0
    if unknown <= RARELY * n_steps:
        return None
    return NoVerdict("collective_in_loader", n=unknown)


def late_ranks(facts: Mapping[str, Any]) -> LateRanks | None:
    """Returns which ranks the others wait for, of a run's facts; None where there are none."""
    ranks = facts.get("ranks")
    if not ranks or ranks["why_not"]:
        return None
    if ranks["straggler"] is None and not ranks["wandering"]:
        return None
    held_up = [math.nan if share is None else share for share in ranks["saves"]]
    late = () if ranks["wandering"] else tuple(ranks["stragglers"])
    return LateRanks(late, ranks["cause"], *held_up)


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
    if ranks:
        why = unknown_waits(facts, ranks["n_steps"])
        if why is not None:
            return why
    if ranks.get("in_doubt"):
        return NoVerdict("ranks_in_doubt")
    lost = ranks.get("lost_frac")
    own = ranks["figures"][0]["exposed_frac"] if lost is not None else 0.0
    if lost is None or abs(lost - own) < RANKS_DIFFER_FRAC:
        return None
    reason: NoVerdictReason = "rank_0_early" if lost < own else "rank_0_late"
    return NoVerdict(reason, frac=lost, rank_0_frac=own)
