"""Finds the ranks of a distributed job that the others wait for.

In data-parallel training all ranks end a step together: who is early waits in the collective, so that step times and
times in the backward pass are the same for all, whoever is slow (a straggler in compute is hidden inside the
all-reduce). What is a rank's own is the time before: its exposed wait for data, and its forward pass. The straggler is
the rank that is last by these; it waits least in the collective.

A rank is named where it is last by an interval over blocks of neighbouring steps (their means are nearly independent,
Law and Kelton, Simulation Modeling and Analysis, section 9.5.3), never by one step or by the mean alone.
"""

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from vitprof import formats
from vitprof.analysis import thresholds
from vitprof.analysis.arrays import Floats, Interval, Mask, Series
from vitprof.analysis.intervals import interval_of_blocks
from vitprof.analysis.rank_report import (
    HEAVIER,
    NO_FORWARD,
    RANKS_DIFFER_FRAC,
    RankFigures,
    Ranks,
    Stretch,
    unknown_waits,
    waits_for_others,
)
from vitprof.analysis.verdict.rendering import why_none_in_words

OWN = ("exposed_wait_s", "between_s", "forward_s")
NAMES = (
    "step",
    "epoch",
    "warmup",
    "t_start_s",
    "data_wait_s",
    "step_s",
    "samples",
    "batch_values",
    "read_s",
    "transform_s",
    "collectives",
    "awaited_s",
    *OWN,
)
"""The columns that are needed."""
LEAST_FRAC = 0.02
"""A rank is named from this share of the time that fixing it alone would save: less is within noise between runs."""
WANDERING_FRAC = 0.1
"""The same for a culprit that changes: some of it is chance, as one of several is always last."""
SURE = 0.9995
"""Quantile at the upper end of the interval by which a rank is last: 99.9%, as each rank is
tried."""
SLOWER_CLOCK = 0.95
"""Up to this ratio to the slowest of the others' clocks a GPU's is the cause."""
SLOWER_READS, LIKE_TRANSFORMS = 1.5, 1.2
"""From this ratio of its reads' time for a batch's values a node's disk is slower, where transforms take as long."""
LEAST_DISK_MB_PER_S = 1.0
"""What a disk delivers at least, for reads to be from it: else files are in memory."""
ALIKE = 0.8
"""Down to this ratio of their median lengths, steps may be of ranks that all wait for each other."""
QUARTERS, ELSEWHERE = 4, 0.1
"""So many parts of the steps are looked at, too; and the most that a rank late in some is so elsewhere, in ratio."""
DOUBT = 0.25
"""From this ratio of what it seems to cost a straggler's own waits for others put that in doubt."""
RARE_FRAC = 0.02
"""Up to this share of the steps, what holds up the others once is left out of a rank's mean."""
ONE_OFF = 3.0
"""In such multiples of the median step, what one rank holds up the others in one step is counted as one-off."""


def ranks_of(steps: Mapping[int, Series], facts: Mapping[str, Any] | None = None) -> Ranks | None:
    """Compares the steps of several ranks (`NAMES`, (n,) each); returns None for one rank. `facts`: those of the run
    (`recording.Facts`), of which its nodes and clocks are read.
    """
    if len(steps) < 2:
        return None
    ranks = sorted(steps)
    of_each = [steps[rank] for rank in sorted(steps)]
    common, dropped = _common(of_each)
    common, whole = _between_collectives(common)
    n = len(common["step_s"][0])
    if n < thresholds.MIN_STEPS:
        made = "steps" if whole else "rounds of steps with a collective at the end"
        why = f"they made {n} {made} together after the warm-up, and {thresholds.MIN_STEPS} are needed"
        if unknown := [
            rank for rank in ranks if np.isnan(steps[rank]["exposed_wait_s"]).mean() > 0.5
        ]:
            why = f"the waits of rank {unknown[0]} are not known: no loader that vitprof knows gives it its batches"
        return Ranks(tuple(RankFigures(rank, *[math.nan] * 6) for rank in ranks), n, why_not=why)
    compared = RankComparison(ranks, common, facts or {})
    lengths = np.median(common["step_s"], axis=1)
    if lengths.min() < ALIKE * lengths.max():
        between = " to ".join(
            formats.seconds(float(length)) for length in (lengths.min(), lengths.max())
        )
        why = f"their steps differ in length ({between}): not all of them wait for each other"
        return Ranks(compared.figures(), n, why_not=why)
    if collective := unknown_waits(facts or {}, n):
        why = why_none_in_words(collective).removesuffix(".")
        return Ranks(compared.figures(), n, why_not=why)
    named = compared.late() or compared.changing() or compared.only_heavier()
    doubt = compared.in_doubt(named)
    costs = compared.costs() | {
        "not_all": _not_all(of_each),
        "not_forward": dropped[0],
        "not_forward_frac": dropped[1],
    }
    return Ranks(compared.figures(), n, **costs | (doubt if "why_not" in doubt else named | doubt))


Late = tuple[list[int], Interval]
"""Rows of ranks that are later than all others, and by which share of the time."""


class RankComparison:
    """Compares what several ranks did in the steps that all of them made, up to where they wait for each other."""

    def __init__(
        self, ranks: Sequence[int], common: Mapping[str, Floats], facts: Mapping[str, Any]
    ) -> None:
        """`common`: columns of shape (ranks, n)."""
        self._ranks = ranks
        self._common = common
        self._facts = facts
        self._values = _values_of_ranks(common)
        """Numbers in the batches of each rank, as a multiple of the other ranks' median."""
        self._samples = _times_the_others(common["samples"])
        self._parts = {
            "wait": common["exposed_wait_s"],
            "between": np.nan_to_num(common["between_s"]),
            "works": np.nan_to_num(common["forward_s"]),
        }
        self._own: Floats = sum(self._parts.values(), np.zeros_like(common["step_s"]))
        self._total_s = float(common["step_s"].max(axis=0).sum())
        self._last = self._own.argmax(axis=0)
        self._n = self._own.shape[1]
        self._step_s = self._total_s / self._n
        self._leads = self._own.max(axis=0) - np.sort(self._own, axis=0)[-2]
        """By how much the last is later than the one before it (s)."""
        self._once = self._leads > ONE_OFF * float(np.median(common["step_s"][0]))
        self._counts = ~self._once if self._once.mean() <= RARE_FRAC else np.ones(self._n, bool)
        self._waits_alone = bool(np.isnan(common["forward_s"]).any())

    def figures(self) -> tuple[RankFigures, ...]:
        """Returns the figures of each rank."""
        early_s = self._own.max(axis=0) - self._own
        return tuple(
            RankFigures(
                rank,
                float(self._common["data_wait_s"][i].sum() / self._total_s),
                float(self._parts["wait"][i].sum() / self._total_s),
                float(self._own[i].mean() * 1e3),
                self._values[i],
                float((self._last == i).mean()),
                float(early_s[i].sum() / self._total_s),
            )
            for i, rank in enumerate(self._ranks)
        )

    def costs(self) -> dict[str, Any]:
        """Returns what data cost, and what is known of all ranks together, whoever is named."""
        free = self._own - self._parts["wait"]
        unknown = np.isnan(self._common["between_s"]).any(axis=0)
        unknown_s, late_s = (
            float(self._common[n].max(axis=0)[unknown].sum()) for n in ("step_s", "late_s")
        )
        wall_s = max(self._total_s, float(np.ptp(self._common["t_start_s"][0])))
        once_s = float(self._leads[self._once].sum())
        lost_s = float((self._own.max(axis=0) - free.max(axis=0)).sum())
        return {
            "lost_s": lost_s,
            "lost_frac": lost_s / self._total_s,
            "of_epochs": _of_epochs(self._common["epoch"][0], self._last, self._ranks),
            "waits_alone": self._waits_alone,
            "not_between": int(unknown.sum()),
            "not_between_frac": min(1.0, (unknown_s + late_s) / wall_s),
            "one_off_ranks": tuple(self._ranks[i] for i in np.unique(self._last[self._once])),
            "one_off": (int(self._once.sum()), once_s),
            "one_off_frac": once_s / self._total_s,
        }

    def late(self) -> dict[str, Any]:
        """Returns the ranks that the others wait for, and why; nothing where there are none."""
        late, within = self._when(_late(self._own, self._counts, self._step_s))
        if late is None:
            return {}
        most, saves = late
        cause = _cause(most, self._parts, self._values, self._samples)
        machine = _machine(cause, most, self._ranks, self._common, self._facts)
        return {
            "straggler": self._ranks[most[0]],
            "stragglers": tuple(self._ranks[i] for i in most),
            "saves": saves,
            "within": self._steps_of(within),
            "cause": "machine" if machine else cause,
            "machine": machine,
            "on": _host(self._ranks[most[0]], self._facts.get("nodes") or ()),
        }

    def _when(self, late: Late | None) -> tuple[Late | None, Mask]:
        """Returns who is late, and in which steps (n,), where it is so for a time only; in none of them else."""
        never = np.zeros(self._n, bool)
        for_a_time = _late_for_a_time(self._own, self._counts, self._step_s)
        if for_a_time is None:
            return late, never
        if late is None:
            return for_a_time
        (most, _), then = for_a_time
        if most != late[0]:
            return late, never
        lead = self._own[most].min(axis=0) - np.delete(self._own, most, axis=0).max(axis=0)
        only_then = lead[~then].mean() <= ELSEWHERE * lead[then].mean()
        return late, then if only_then else never

    def _steps_of(self, within: Mask) -> tuple[Stretch, ...]:
        """Returns the stretches of steps that are True in `within` (n,)."""
        step = self._common["step"][0]
        edges = np.flatnonzero(np.diff(np.concatenate([[False], within, [False]]).astype(int)))
        return tuple(
            Stretch(int(step[first]), int(step[end - 1]))
            for first, end in zip(edges[::2], edges[1::2], strict=True)
        )

    def changing(self) -> dict[str, Any]:
        """Returns by what another rank is last each time; nothing where that is not so, or costs little."""
        saves = _share(self._leads[self._counts], self._step_s)
        if not saves.low >= WANDERING_FRAC:  # also NaN
            return {}
        at_last = (self._last[None], np.arange(self._n)[None])
        values = self._common["batch_values"]
        of_last = {
            name: np.concatenate([of[at_last], np.median(of, axis=0)[None]])
            for name, of in self._parts.items()
        }
        heavier = (
            float(np.nanmean(values[at_last] / np.median(values, axis=0)))
            if np.isfinite(values).all()
            else math.nan
        )
        return {
            "saves": saves,
            "cause": _cause([0], of_last, [heavier, 1.0], [1.0, 1.0]),
            "wandering": True,
        }

    def in_doubt(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what waits for other ranks outside the backward pass say of what is `named`; nothing where there are
        few. Who is late before such a wait is not compared with who is late after it; but who holds up the others does
        not wait for them.
        """
        awaited_s = self._common["awaited_s"]
        wall_s = np.ptp(self._common["t_start_s"][0])
        order = np.argsort(awaited_s.mean(axis=1))
        late = [self._ranks.index(rank) for rank in named.get("stragglers", ())]
        waits = order[-1] if not late else next(i for i in order if i in late)
        more = _share(
            (awaited_s[waits] - awaited_s[order[0]])[self._counts],
            max(self._step_s, wall_s / self._n),
        )
        least = max(LEAST_FRAC, DOUBT * named["saves"].value) if late else LEAST_FRAC
        if named.get("wandering") or not more.low > 0 or more.value < least:
            return {}
        doubt: dict[str, Any] = {"waiting": (self._ranks[waits], more.value)}
        if late:
            doubt["why_not"] = (
                f"{waits_for_others(*doubt['waiting'])}: which rank holds up the others is not known"
            )
        if np.ptp([each.exposed_frac for each in self.figures()]) >= RANKS_DIFFER_FRAC:
            doubt |= {"in_doubt": True, "lost_s": math.nan, "lost_frac": math.nan}
        return doubt

    def only_heavier(self) -> dict[str, Any]:
        """Returns why nothing can be said of a rank that has heavier data; nothing where there is none."""
        if not self._waits_alone or not max(self._values) >= HEAVIER:
            return {}
        rank = self._ranks[int(np.argmax(self._values))]
        given = formats.number(max(self._values))
        others = "times what the others got, but whether they wait for it is not known"
        return {"why_not": f"rank {rank} was given {given} {others} ({NO_FORWARD})"}


def _late(own: Floats, counts: np.ndarray, step_s: float) -> Late | None:
    """Returns the rank, or the fewest ranks together (those of a slow node, at most half), that are clearly last."""
    kept = own[:, counts]
    order = np.argsort(-kept.mean(axis=1))
    for size in range(1, len(own) // 2 + 1):
        saves = _share(kept[order[:size]].min(axis=0) - kept[order[size:]].max(axis=0), step_s)
        if saves.low > 0 and saves.value >= LEAST_FRAC:
            return sorted(int(i) for i in order[:size]), saves
    return None


def _late_for_a_time(own: Floats, counts: np.ndarray, step_s: float) -> tuple[Late, Mask] | None:
    """Returns the ranks that are clearly last in some quarters of the steps, if they are the same
    in all of these; and which steps (n,) these are. Quarters between two of them are not: nobody
    was late there.
    """
    n = own.shape[1]
    late_parts = []
    for part in np.array_split(np.arange(n), QUARTERS):
        if counts[part].sum() >= thresholds.MIN_STEPS and (
            late := _late(own[:, part], counts[part], step_s)
        ):
            late_parts.append((*late, part))
    if not 0 < len(late_parts) < QUARTERS or any(
        most != late_parts[0][0] for most, *_ in late_parts
    ):
        return None
    saves = Interval(*(sum(of[i] * len(part) / n for _, of, part in late_parts) for i in range(3)))
    then = np.zeros(n, bool)
    for *_, part in late_parts:
        then[part] = True
    return ((late_parts[0][0], saves), then) if saves.value >= LEAST_FRAC else None


def _host(rank: int, nodes: Sequence[Mapping[str, Any]]) -> str:
    return next((str(node["host"]) for node in nodes if rank in node["ranks"]), "")


def _machine(
    cause: str,
    most: list[int],
    ranks: Sequence[int],
    common: Mapping[str, Floats],
    facts: Mapping[str, Any],
) -> str:
    """Returns how the stragglers' machine explains the cause; "" where it does not."""
    rank = ranks[most[0]]
    nodes = facts.get("nodes") or ()
    clocks = dict(facts.get("clocks") or {})
    for node in nodes:
        clocks |= node.get("clocks") or {}
    cores = _others_cores(rank, nodes)
    if cause in ("input", "compute") and cores:
        return (
            f"other programs took {formats.number(cores)} cores there, and no other node is as busy"
        )
    if cause == "compute" and len(clocks) == len(ranks):
        slow = [str(ranks[i]) for i in most]
        slow_mhz = max(clocks[i] for i in slow)
        others = min(mhz for each, mhz in clocks.items() if each not in slow)
        if slow_mhz <= SLOWER_CLOCK * others:
            return (
                f"its GPU's clock was {slow_mhz:,.0f} MHz, that of the others {others:,.0f} or more"
            )
    return _slow_disk(rank, ranks, common, nodes) if cause == "input" else ""


def _slow_disk(
    rank: int,
    ranks: Sequence[int],
    common: Mapping[str, Floats],
    nodes: Sequence[Mapping[str, Any]],
) -> str:
    there = next((node for node in nodes if rank in node["ranks"]), None)
    if there is None or (there.get("disk_mb_per_s") or 0.0) < LEAST_DISK_MB_PER_S:
        return ""
    if (
        there["others_cores"] is None or there["others_cores"] >= thresholds.OTHERS_CORES
    ):  # they may read, too
        return ""
    on_node = np.isin(ranks, there["ranks"])
    values = common["batch_values"].mean(axis=1)
    read_s, transform_s = (common[name].mean(axis=1) / values for name in ("read_s", "transform_s"))
    slower = (
        on_node.any()
        and not on_node.all()
        and read_s[on_node].min() >= SLOWER_READS * read_s[~on_node].max()
    )
    if not slower or transform_s[on_node].mean() > LIKE_TRANSFORMS * transform_s[~on_node].mean():
        return ""
    ms = [
        formats.number(float(common["read_s"][which].mean()) * 1e3, "ms")
        for which in (on_node, ~on_node)
    ]
    return f"reading a batch takes {ms[0]} there, from a disk at {there['disk_mb_per_s']:,.0f} MB/s, elsewhere {ms[1]}"


def _others_cores(rank: int, nodes: Sequence[Mapping[str, Any]]) -> float:
    """Returns the cores that other programs took on the rank's node, if they did so on no other; else 0."""
    most_cores = {rank in node["ranks"]: 0.0 for node in nodes}
    for node in nodes:
        if node["others_cores"] is None:
            return 0.0
        most_cores[rank in node["ranks"]] = max(
            most_cores[rank in node["ranks"]], node["others_cores"]
        )
    busy = most_cores.get(True, 0.0) >= thresholds.OTHERS_CORES > most_cores.get(False, math.inf)
    return most_cores[True] if busy else 0.0


def _common(steps: list[Series]) -> tuple[dict[str, Floats], tuple[int, float]]:
    """Returns the columns of the steps that all ranks made, without warm-up, (ranks, n) each, with how much later than
    usual each began ("late_s"); and how many others were left out, as another collective is in their forward pass, with
    their share of the time.
    """
    numbers = steps[0]["step"][steps[0]["warmup"] == 0]
    for each in steps[1:]:
        numbers = np.intersect1d(numbers, each["step"][each["warmup"] == 0])
    rows = [np.searchsorted(each["step"], numbers) for each in steps]
    columns = {
        name: np.array([each[name][row] for each, row in zip(steps, rows, strict=True)])
        for name in NAMES
    }
    since_s = np.diff(columns["t_start_s"], prepend=columns["t_start_s"][:, :1])
    usual_s = (
        np.nan_to_num(np.median(columns["step_s"], axis=1, keepdims=True)) if len(numbers) else 0.0
    )
    columns["late_s"] = np.maximum(0.0, since_s - usual_s)
    columns["awaited_s"] = np.cumsum(np.nan_to_num(columns["awaited_s"]), axis=1)
    known = np.isfinite(columns["step_s"]).all(axis=0) & np.isfinite(columns["exposed_wait_s"]).all(
        axis=0
    )
    forward = known & np.isfinite(columns["forward_s"]).all(axis=0)
    dropped = known & ~forward if forward.sum() > known.sum() / 2 else np.zeros_like(known)
    step_s = columns["step_s"].max(axis=0, initial=0.0)
    gone = int(dropped.sum()), float(step_s[dropped].sum() / max(step_s[known].sum(), 1e-9))
    common = {name: values[:, known & ~dropped] for name, values in columns.items()}
    return common | {
        "awaited_s": np.diff(common["awaited_s"], prepend=0.0)
    }, gone  # with those of dropped steps


def _not_all(steps: list[Series]) -> int:
    """Returns how many steps after the warm-up one rank made that another did not, as with uneven data (`Join`)."""
    counts = [each["step"][each["warmup"] == 0] for each in steps]
    return max(map(len, counts)) - len(reduce(np.intersect1d, counts))


def _between_collectives(common: dict[str, Floats]) -> tuple[dict[str, Floats], bool]:
    """Returns the same; where gradients are accumulated, with the sums of the steps up to each collective, as the ranks
    wait for each other there only. And whether each step has one.
    """
    first = ~(common["collectives"][0] == 0)  # also where they are not known
    if first.all():
        return common, True
    starts = np.flatnonzero(first)
    if not len(starts):
        return {name: of[:, :0] for name, of in common.items()}, False
    labels = (
        "step",
        "epoch",
        "warmup",
        "t_start_s",
        "late_s",
        "between_s",
    )  # the optimizer steps before the first
    return {
        name: of[:, starts]
        if name in labels
        else np.add.reduceat(of[:, starts[0] :], starts - starts[0], axis=1)
        for name, of in common.items()
    }, False


def _values_of_ranks(common: Mapping[str, Floats]) -> list[float]:
    known = np.isfinite(common["batch_values"]).all()
    return _times_the_others(common["batch_values"] if known else common["samples"])


def _times_the_others(values: Floats) -> list[float]:
    means = values.mean(axis=1)
    if not (means > 0).all():
        return [math.nan] * len(means)
    return [float(means[i] / np.median(np.delete(means, i))) for i in range(len(means))]


def _share(seconds: Floats, step_s: float) -> Interval:
    """Returns the mean of `seconds`, one for each step, as a share of a step, with its interval of
    99.9%."""
    return interval_of_blocks(seconds / step_s, SURE)


def _cause(
    most: list[int], parts: Mapping[str, Floats], values: list[float], samples: list[float]
) -> str:
    """Returns why these rows are later than the median of the others. `values`, `samples`: how much they got, and how
    many samples, as ratios to the others.
    """
    late_s = {name: of[most].mean() for name, of in parts.items()}
    others = {
        name: float(np.median(np.delete(of, most, axis=0), axis=0).mean())
        for name, of in parts.items()
    }
    largest = max(late_s, key=lambda name: late_s[name] - others[name])
    if largest == "between":
        return "between steps"
    ratio = float(np.mean([values[i] for i in most]))
    # attention takes up to the square of a sequence's length; more samples of one size take as many times as long
    longer = largest == "works" and ratio >= HEAVIER * float(np.mean([samples[i] for i in most]))
    for_its_size = late_s[largest] <= HEAVIER * ratio ** (2 if longer else 1) * others[largest]
    if ratio >= HEAVIER and for_its_size:
        return "heavier data"
    return "input" if largest == "wait" else "compute"


def _of_epochs(
    epochs: Floats, last: np.ndarray, ranks: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    last_ranks = []
    for epoch in np.unique(epochs):
        of_epoch = last[epochs == epoch]
        if len(of_epoch) >= thresholds.MIN_STEPS:
            last_ranks.append((int(epoch), ranks[int(np.bincount(of_epoch).argmax())]))
    return tuple(last_ranks)
