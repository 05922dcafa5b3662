"""The ranks of one distributed job: which of them the others wait for, by what cause, and what that costs.

In data-parallel training all ranks end a step together: who is early waits in the collective, so that step times and
times in the backward pass are the same for all, whoever is slow (a straggler in compute is hidden inside the
all-reduce). What is a rank's own is the time before: its exposed wait for data, and its forward pass. The straggler is
the rank that is last by these; it waits least in the collective.

A rank is named where it is last by an interval over blocks of neighbouring steps (their means are nearly independent,
Law and Kelton, Simulation Modeling and Analysis, section 9.5.3), never by one step or by the mean alone.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import numpy as np

from vitprof import formats
from vitprof.analysis import thresholds
from vitprof.analysis.arrays import BOOTSTRAP_BLOCKS, Floats, Interval, Series

OWN = ("exposed_wait_s", "between_s", "forward_s")
NAMES = ("step", "epoch", "warmup", "data_wait_s", "step_s", "samples", "batch_values", "read_s", "transform_s", *OWN)
"""The columns that are needed."""
LEAST_FRAC = 0.02
"""A rank is named from this share of the time that fixing it alone would save: less is within noise between runs."""
WANDERING_FRAC = 0.1
"""The same for a culprit that changes: some of it is chance, as one of several is always last."""
SURE = 3.9
"""Standard errors: Student's t with 19 degrees of freedom at 99.9%, as each rank is tried."""
HEAVIER = 1.1
"""From this ratio of what ranks were given (numbers of the largest tensor, or samples) one has heavier data."""
SLOWER_CLOCK = 0.95
"""Up to this ratio to the slowest of the others' clocks a GPU's is the cause."""
SLOWER_READS, LIKE_TRANSFORMS = 1.5, 1.2
"""From this ratio of its reads' time for a batch's values a node's disk is slower, where transforms take as long."""
LEAST_DISK_MB_PER_S = 1.0
"""What a disk delivers at least, for reads to be from it: else files are in memory."""
NO_FORWARD = "no times of its forward pass without waits for other ranks"
ONE_OFF = 3.0
"""In such multiples of the median step, what one rank holds up the others in one step is counted as one-off."""


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
class Ranks:
    """The ranks of a run."""

    figures: tuple[RankFigures, ...]
    n_steps: int
    """Steps behind the figures: those of all ranks, without warm-up."""
    lost_s: float
    """Exposed wait of the rank that waited longest in each step, summed: what data cost the job."""
    lost_frac: float
    straggler: int | None = None
    """The rank that the others wait for; None where there is none, or it cannot be told."""
    cause: str = ""
    """input, heavier data, compute, between steps, or machine; "" without a straggler, and where it changes."""
    on: str = ""
    """Its node; "" where there is one node."""
    machine: str = ""
    """What was found of its machine, where that is the cause."""
    saves: Interval = field(default_factory=lambda: Interval(math.nan, math.nan, math.nan))
    """Share of the time that it holds up the others, with its interval; of a wandering one, of all of them."""
    wandering: bool = False
    """Whether another rank is last each time, by its data."""
    of_epochs: tuple[tuple[int, int], ...] = ()
    """Epoch, and the rank that was last in most of its steps."""
    one_off: tuple[int, float] = (0, 0.0)
    """Steps in which one rank held up all others for several steps' time, and the seconds of that."""
    one_off_ranks: tuple[int, ...] = ()
    """Those ranks."""
    waits_alone: bool = False
    """Whether only waits for data were compared, as the time of the forward pass is not known."""
    why_not: str = ""
    """Why nothing can be told; "" where it can."""

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON (`recording.ranks.RankFacts`), with null for what is not known."""
        plain = {**asdict(self), "saves": list(self.saves), "sentences": list(self.sentences)}
        return cast("dict[str, Any]", json.loads(json.dumps(plain), parse_constant=lambda _: None))

    @property
    def sentences(self) -> tuple[str, ...]:
        """Returns what to say about it, the most important first."""
        n = len(self.figures)
        if self.why_not:
            return (f"{n} ranks: {self.why_not}.",)
        found = [f"{n} ranks: {self._named()}."]
        lost = (
            f"waits for data cost {formats.percent(self.lost_frac)} of the time: the longest of the ranks' in each step"
        )
        found.append(f"{lost[0].upper()}{lost[1:]}, {formats.seconds(self.lost_s)} in {self.n_steps:,} steps.")
        if self.one_off[0]:
            times, who = formats.count(self.one_off[0], "step"), ", ".join(map(str, self.one_off_ranks))
            ranks = f"rank {who}" if len(self.one_off_ranks) == 1 else f"one of ranks {who}"
            found.append(f"In {times} {ranks} held up the others for long, {formats.seconds(self.one_off[1])} in all.")
        return tuple(found)

    def _named(self) -> str:
        between = f"{formats.percent(self.saves.low)} to {formats.percent(self.saves.high)}"
        share = f"{formats.percent(self.saves.value)} of the time ({between})"
        if self.wandering:
            last = ", ".join(f"rank {f.rank} in {formats.percent(f.last_frac)}" for f in self.figures)
            return f"the one that waits longest for its data changes ({last} of the steps), and the others wait {share}"
        if self.straggler is None:
            if self.waits_alone:
                return f"no rank's data hold up the others clearly; how long each computes is not known ({NO_FORWARD})"
            return "no rank holds up the others clearly"
        mine = next(f for f in self.figures if f.rank == self.straggler)
        why = {
            "input": f"its data come late: it waits for them {formats.percent(mine.data_wait_frac)} of the time",
            "heavier data": f"its batches are heavier, {formats.number(mine.given)} times what the others get",
            "compute": "its forward pass takes longer, with as much data",
            "between steps": "it does more between its steps: logging, metrics, checkpoints",
            "machine": self.machine,
        }[self.cause]
        where = f" (on {self.on})" if self.on else ""
        at_least = "" if self.cause in ("input", "between steps") else "at least "  # its backward pass is not seen
        return f"rank {self.straggler}{where} holds up the others for {at_least}{share}; cause: {self.cause} ({why})"


def ranks_of(
    steps: Mapping[int, Series], nodes: Sequence[Mapping[str, Any]] = (), clocks: Mapping[str, float] | None = None
) -> Ranks | None:
    """Returns what can be told of the steps of several ranks (`NAMES`, (n,) each); None for one rank. `nodes`: the
    machines, where there are several (`recording.ranks.NodeFacts`). `clocks`: of the GPUs, by rank (MHz).
    """
    if len(steps) < 2:
        return None
    ranks = sorted(steps)
    common = _common([steps[rank] for rank in ranks])
    n = len(common["step_s"][0])
    if n < thresholds.MIN_STEPS:
        few = f"they made {n} steps together after the warm-up, and {thresholds.MIN_STEPS} are needed"
        nothing = [RankFigures(rank, *[math.nan] * 6) for rank in ranks]
        return Ranks(tuple(nothing), n, math.nan, math.nan, why_not=few)
    wait, forward, given = common["exposed_wait_s"], common["forward_s"], _given(common)
    between = np.nan_to_num(common["between_s"])
    total_s = float(common["step_s"].max(axis=0).sum())
    step_s = total_s / n
    own = wait + between + np.nan_to_num(forward)
    last = own.argmax(axis=0)
    ahead = own.max(axis=0) - own
    figures = tuple(
        RankFigures(
            rank,
            float(common["data_wait_s"][i].sum() / total_s),
            float(wait[i].sum() / total_s),
            float(own[i].mean() * 1e3),
            given[i],
            float((last == i).mean()),
            float(ahead[i].sum() / total_s),
        )
        for i, rank in enumerate(ranks)
    )
    second = np.sort(own, axis=0)[-2]
    once = own.max(axis=0) - second > ONE_OFF * float(np.median(common["step_s"][0]))
    found = {
        "lost_s": float(wait.max(axis=0).sum()),
        "lost_frac": float(wait.max(axis=0).sum() / total_s),
        "of_epochs": _of_epochs(common["epoch"][0], last, ranks),
        "waits_alone": bool(np.isnan(forward).any()),
        "one_off_ranks": tuple(ranks[i] for i in np.unique(last[once])),
        "one_off": (int(once.sum()), float((own.max(axis=0) - second)[once].sum())),
    }
    most = int(own[:, ~once].mean(axis=1).argmax()) if not once.all() else int(own.mean(axis=1).argmax())
    lead = own[most] - np.delete(own, most, axis=0).max(axis=0)
    saves = _share(lead[~once], step_s)
    if saves.low > 0 and saves.value >= LEAST_FRAC:
        cause, host = _cause(most, wait, between, forward, given), _host(ranks[most], nodes)
        if machine := _machine(cause, most, ranks, common, nodes, clocks or {}):
            cause = "machine"
        named = {"straggler": ranks[most], "cause": cause, "saves": saves, "on": host, "machine": machine}
        return Ranks(figures, n, **named, **found)  # type: ignore[arg-type]
    apart = _share((wait.max(axis=0) - np.sort(wait, axis=0)[-2])[~once], step_s)
    if apart.low >= WANDERING_FRAC:
        return Ranks(figures, n, saves=apart, wandering=True, **found)  # type: ignore[arg-type]
    if np.isnan(forward).any() and max(given) >= HEAVIER:
        heavy = figures[int(np.argmax(given))]
        why = (
            f"rank {heavy.rank} was given {formats.number(heavy.given)} times what the others got, but whether they "
            f"wait for it is not known ({NO_FORWARD})"
        )
        return Ranks(figures, n, why_not=why, **found)  # type: ignore[arg-type]
    return Ranks(figures, n, **found)  # type: ignore[arg-type]


def _host(rank: int, nodes: Sequence[Mapping[str, Any]]) -> str:
    return next((str(node["host"]) for node in nodes if rank in node["ranks"]), "")


def _machine(
    cause: str,
    most: int,
    ranks: list[int],
    common: Mapping[str, Floats],
    nodes: Sequence[Mapping[str, Any]],
    clocks: Mapping[str, float],
) -> str:
    """Returns what of the straggler's machine explains the cause; "" where nothing does."""
    rank = ranks[most]
    if cause in ("input", "compute") and (cores := _taken(rank, nodes)):
        return f"other programs took {formats.number(cores)} cores there, and no other node is as busy"
    if cause == "compute" and len(clocks) == len(ranks):
        mine, others = clocks[str(rank)], min(mhz for each, mhz in clocks.items() if each != str(rank))
        if mine <= SLOWER_CLOCK * others:
            return f"its GPU's clock was {mine:,.0f} MHz, that of the others {others:,.0f} or more"
    return _slow_disk(rank, ranks, common, nodes) if cause == "input" else ""


def _slow_disk(rank: int, ranks: list[int], common: Mapping[str, Floats], nodes: Sequence[Mapping[str, Any]]) -> str:
    there = next((node for node in nodes if rank in node["ranks"]), None)
    if there is None or (there.get("disk_mb_per_s") or 0.0) < LEAST_DISK_MB_PER_S:
        return ""
    here = np.isin(ranks, there["ranks"])
    values = common["batch_values"].mean(axis=1)
    read_s, transform_s = (common[name].mean(axis=1) / values for name in ("read_s", "transform_s"))
    slower = here.any() and not here.all() and read_s[here].min() >= SLOWER_READS * read_s[~here].max()
    if not slower or transform_s[here].mean() > LIKE_TRANSFORMS * transform_s[~here].mean():
        return ""
    ms = [formats.number(float(common["read_s"][which].mean()) * 1e3, "ms") for which in (here, ~here)]
    return f"reading a batch takes {ms[0]} there, from a disk at {there['disk_mb_per_s']:,.0f} MB/s, elsewhere {ms[1]}"


def _taken(rank: int, nodes: Sequence[Mapping[str, Any]]) -> float:
    """Returns the cores that other programs took on the rank's node, if they did so on no other; else 0."""
    taken = {rank in node["ranks"]: 0.0 for node in nodes}
    for node in nodes:
        if node["others_cores"] is None:
            return 0.0
        taken[rank in node["ranks"]] = max(taken[rank in node["ranks"]], node["others_cores"])
    busy = taken.get(True, 0.0) >= thresholds.OTHERS_CORES > taken.get(False, math.inf)
    return taken[True] if busy else 0.0


def _common(steps: list[Series]) -> dict[str, Floats]:
    """Returns the columns of the steps that all ranks made, without warm-up, (ranks, n) each."""
    numbers = steps[0]["step"][steps[0]["warmup"] == 0]
    for each in steps[1:]:
        numbers = np.intersect1d(numbers, each["step"][each["warmup"] == 0])
    rows = [np.searchsorted(each["step"], numbers) for each in steps]
    found = {name: np.array([each[name][row] for each, row in zip(steps, rows, strict=True)]) for name in NAMES}
    known = np.isfinite(found["step_s"]).all(axis=0) & np.isfinite(found["exposed_wait_s"]).all(axis=0)
    forward = known & np.isfinite(found["forward_s"]).all(axis=0)
    if forward.sum() > known.sum() / 2:
        known = forward
    return {name: values[:, known] for name, values in found.items()}


def _given(common: Mapping[str, Floats]) -> list[float]:
    values = common["batch_values"] if np.isfinite(common["batch_values"]).all() else common["samples"]
    means = values.mean(axis=1)
    return [float(means[i] / np.median(np.delete(means, i))) for i in range(len(means))]


def _share(seconds: Floats, step_s: float) -> Interval:
    """Returns the mean of `seconds`, one for each step, as a share of a step, with its interval over blocks."""
    blocks = [float(block.mean()) / step_s for block in np.array_split(seconds, BOOTSTRAP_BLOCKS) if len(block)]
    mean = float(np.mean(seconds)) / step_s if len(seconds) else math.nan
    error = SURE * float(np.std(blocks, ddof=1)) / math.sqrt(len(blocks)) if len(blocks) > 1 else math.inf
    return Interval(mean, mean - error, mean + error)


def _cause(most: int, wait: Floats, between: Floats, forward: Floats, given: list[float]) -> str:
    def more(of: Floats) -> float:
        return float((of[most] - np.median(np.delete(of, most, axis=0), axis=0)).mean())

    waits, works = more(wait), 0.0 if np.isnan(forward).any() else more(forward)
    if more(between) > max(waits, works):
        return "between steps"
    if works > waits:
        return "heavier data" if given[most] >= HEAVIER else "compute"
    others = float(np.median(np.delete(wait, most, axis=0)))
    for_its_size = float(wait[most].mean()) <= HEAVIER * given[most] * others
    return "heavier data" if given[most] >= HEAVIER and for_its_size else "input"


def _of_epochs(epochs: Floats, last: np.ndarray, ranks: list[int]) -> tuple[tuple[int, int], ...]:
    found = []
    for epoch in np.unique(epochs):
        mine = last[epochs == epoch]
        if len(mine) >= thresholds.MIN_STEPS:
            found.append((int(epoch), ranks[int(np.bincount(mine).argmax())]))
    return tuple(found)


STARVED = "almost certainly starved: "
"""How a reason begins where it is known that the job waits for data."""
RANKS_DIFFER_FRAC = 0.05
"""By which share of the time another rank may wait longer for data than rank 0, whose figures are judged."""


def too_little_of_rank_0(facts: Mapping[str, Any]) -> str:
    """Returns why the figures of rank 0, or of one node, say too little about a distributed job: it waits, or may wait,
    for the data of another; "" where they say enough.
    """
    if missing := facts.get("missing_ranks"):
        return (
            f"{formats.count(missing, 'rank')} of the job trained on other nodes and not in this run: whether the job "
            "waits for their data is not known; watch on each node, with one store (VITPROF_DB), or import their runs"
        )
    ranks = facts.get("ranks") or {}
    lost = ranks.get("lost_frac") or 0.0
    own = ranks["figures"][0]["exposed_frac"] if lost else 0.0
    if lost < own + RANKS_DIFFER_FRAC:
        return ""
    head = STARVED if lost >= thresholds.INPUT_BOUND_FRAC else ""
    return (
        f"{head}the job waits for data {formats.percent(lost)} of the time, for those of the rank that is last in each "
        f"step; rank 0, of which the figures are, waits {formats.percent(own)}"
    )
