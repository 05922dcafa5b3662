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
from vitprof.analysis.arrays import BOOTSTRAP_BLOCKS, Floats, Interval, Series
from vitprof.analysis.ranks import HEAVIER, NO_FORWARD, RankFigures, Ranks

OWN = ("exposed_wait_s", "between_s", "forward_s")
NAMES = (
    "step",
    "epoch",
    "warmup",
    "data_wait_s",
    "step_s",
    "samples",
    "batch_values",
    "read_s",
    "transform_s",
    "collectives",
    *OWN,
)
"""The columns that are needed."""
LEAST_FRAC = 0.02
"""A rank is named from this share of the time that fixing it alone would save: less is within noise between runs."""
WANDERING_FRAC = 0.1
"""The same for a culprit that changes: some of it is chance, as one of several is always last."""
SURE = 3.9
"""Standard errors: Student's t with 19 degrees of freedom at 99.9%, as each rank is tried."""
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
    ranks, facts = sorted(steps), facts or {}
    common, whole = _between_collectives(_common([steps[rank] for rank in ranks]))
    n = len(common["step_s"][0])
    if n < thresholds.MIN_STEPS:
        made = "steps" if whole else "rounds of steps with a collective at the end"
        why = f"they made {n} {made} together after the warm-up, and {thresholds.MIN_STEPS} are needed"
        if unknown := [rank for rank in ranks if np.isnan(steps[rank]["exposed_wait_s"]).all()]:
            why = f"the waits of rank {unknown[0]} are not known: no loader that vitprof knows gives it its batches"
        return Ranks(tuple(RankFigures(rank, *[math.nan] * 6) for rank in ranks), n, why_not=why)
    wait, forward, given = common["exposed_wait_s"], common["forward_s"], _given(common)
    parts = {"wait": wait, "between": np.nan_to_num(common["between_s"]), "works": np.nan_to_num(forward)}
    own = sum(parts.values(), np.zeros_like(wait))
    total_s, last = float(common["step_s"].max(axis=0).sum()), own.argmax(axis=0)
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
    lengths = np.median(common["step_s"], axis=1)
    if lengths.min() < ALIKE * lengths.max():
        between = " to ".join(formats.seconds(float(length)) for length in (lengths.min(), lengths.max()))
        return Ranks(
            figures, n, why_not=f"their steps differ in length ({between}): not all of them wait for each other"
        )
    second = np.sort(own, axis=0)[-2]
    once = own.max(axis=0) - second > ONE_OFF * float(np.median(common["step_s"][0]))
    lost_s = float((own.max(axis=0) - (own - wait).max(axis=0)).sum())
    found = {
        "lost_s": lost_s,
        "lost_frac": lost_s / total_s,
        "of_epochs": _of_epochs(common["epoch"][0], last, ranks),
        "waits_alone": bool(np.isnan(forward).any()),
        "not_all": _not_all([steps[rank] for rank in ranks]),
        "not_between": int(np.isnan(common["between_s"]).any(axis=0).sum()),
        "one_off_ranks": tuple(ranks[i] for i in np.unique(last[once])),
        "one_off": (int(once.sum()), float((own.max(axis=0) - second)[once].sum())),
    }
    counts = ~once if once.mean() <= RARE_FRAC else np.ones(n, bool)
    late = _late(own, counts, total_s / n)
    for_a_time = _late_for_a_time(own, counts, total_s / n)
    if late is not None or for_a_time is not None:
        most, saves, part = late or for_a_time  # type: ignore[misc]
        if late is not None and for_a_time is not None and for_a_time[0] == most:
            lead, (first, end) = (
                own[most].min(axis=0) - np.delete(own, most, axis=0).max(axis=0),
                for_a_time[2] or (0, 0),
            )
            outside = np.concatenate([lead[:first], lead[end + 1 :]])
            part = for_a_time[2] if outside.mean() <= ELSEWHERE * lead[first : end + 1].mean() else None
        cause = _cause(most, parts, given)
        machine = _machine(cause, most, ranks, common, facts)
        named = {"straggler": ranks[most[0]], "stragglers": tuple(ranks[i] for i in most), "saves": saves}
        named |= {"within": tuple(int(step) for step in common["step"][0][list(part)]) if part else ()}
        named |= {"cause": "machine" if machine else cause, "machine": machine}
        named |= {"on": _host(ranks[most[0]], facts.get("nodes") or ())}
        return Ranks(figures, n, **named, **found)  # type: ignore[arg-type]
    changing = _share((own.max(axis=0) - second)[counts], total_s / n)
    if changing.low >= WANDERING_FRAC:
        here = last[None], np.arange(n)[None]
        of_last = {name: np.concatenate([of[here], np.median(of, axis=0)[None]]) for name, of in parts.items()}
        values = common["batch_values"]
        heavier = float(np.nanmean(values[here] / np.median(values, axis=0))) if np.isfinite(values).all() else math.nan
        cause = _cause([0], of_last, [heavier, 1.0])
        return Ranks(figures, n, saves=changing, cause=cause, wandering=True, **found)  # type: ignore[arg-type]
    if found["waits_alone"] and max(given) >= HEAVIER:
        heavy = figures[int(np.argmax(given))]
        why = (
            f"rank {heavy.rank} was given {formats.number(heavy.given)} times what the others got, but whether they "
            f"wait for it is not known ({NO_FORWARD})"
        )
        return Ranks(figures, n, why_not=why, **found)  # type: ignore[arg-type]
    return Ranks(figures, n, **found)  # type: ignore[arg-type]


Late = tuple[list[int], Interval, tuple[int, int] | None]
"""Rows of ranks that are later than all others, by which share of the time, and the first and last step of that."""


def _late(own: Floats, counts: np.ndarray, step_s: float) -> Late | None:
    """Returns the rank, or the fewest ranks together (those of a slow node, at most half), that are clearly last."""
    kept = own[:, counts]
    order = np.argsort(-kept.mean(axis=1))
    for size in range(1, len(own) // 2 + 1):
        saves = _share(kept[order[:size]].min(axis=0) - kept[order[size:]].max(axis=0), step_s)
        if saves.low > 0 and saves.value >= LEAST_FRAC:
            return sorted(int(i) for i in order[:size]), saves, None
    return None


def _late_for_a_time(own: Floats, counts: np.ndarray, step_s: float) -> Late | None:
    """Returns the ranks that are clearly last in some quarters of the steps, if they are the same in all of these."""
    n, found = own.shape[1], []
    for part in np.array_split(np.arange(n), QUARTERS):
        if counts[part].sum() >= thresholds.MIN_STEPS and (late := _late(own[:, part], counts[part], step_s)):
            found.append((late[0], late[1], part))
    if not 0 < len(found) < QUARTERS or any(most != found[0][0] for most, *_ in found):
        return None
    saves = Interval(*(sum(of[i] * len(part) / n for _, of, part in found) for i in range(3)))
    return (found[0][0], saves, (int(found[0][2][0]), int(found[-1][2][-1]))) if saves.value >= LEAST_FRAC else None


def _host(rank: int, nodes: Sequence[Mapping[str, Any]]) -> str:
    return next((str(node["host"]) for node in nodes if rank in node["ranks"]), "")


def _machine(
    cause: str, most: list[int], ranks: list[int], common: Mapping[str, Floats], facts: Mapping[str, Any]
) -> str:
    """Returns what of the stragglers' machine explains the cause; "" where nothing does."""
    rank, nodes, clocks = ranks[most[0]], facts.get("nodes") or (), dict(facts.get("clocks") or {})
    for node in nodes:
        clocks |= node.get("clocks") or {}
    if cause in ("input", "compute") and (cores := _taken(rank, nodes)):
        return f"other programs took {formats.number(cores)} cores there, and no other node is as busy"
    if cause == "compute" and len(clocks) == len(ranks):
        slow = [str(ranks[i]) for i in most]
        mine, others = max(clocks[i] for i in slow), min(mhz for each, mhz in clocks.items() if each not in slow)
        if mine <= SLOWER_CLOCK * others:
            return f"its GPU's clock was {mine:,.0f} MHz, that of the others {others:,.0f} or more"
    return _slow_disk(rank, ranks, common, nodes) if cause == "input" else ""


def _slow_disk(rank: int, ranks: list[int], common: Mapping[str, Floats], nodes: Sequence[Mapping[str, Any]]) -> str:
    there = next((node for node in nodes if rank in node["ranks"]), None)
    if there is None or (there.get("disk_mb_per_s") or 0.0) < LEAST_DISK_MB_PER_S:
        return ""
    if there["others_cores"] is None or there["others_cores"] >= thresholds.OTHERS_CORES:  # they may read, too
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
    labels = ("step", "epoch", "warmup", "between_s")  # the optimizer steps before the first of them
    return {
        name: of[:, starts] if name in labels else np.add.reduceat(of[:, starts[0] :], starts - starts[0], axis=1)
        for name, of in common.items()
    }, False


def _given(common: Mapping[str, Floats]) -> list[float]:
    values = common["batch_values"] if np.isfinite(common["batch_values"]).all() else common["samples"]
    means = values.mean(axis=1)
    if not (means > 0).all():
        return [math.nan] * len(means)
    return [float(means[i] / np.median(np.delete(means, i))) for i in range(len(means))]


def _share(seconds: Floats, step_s: float) -> Interval:
    """Returns the mean of `seconds`, one for each step, as a share of a step, with its interval over blocks."""
    blocks = [float(block.mean()) / step_s for block in np.array_split(seconds, BOOTSTRAP_BLOCKS) if len(block)]
    mean = float(np.mean(seconds)) / step_s if len(seconds) else math.nan
    error = SURE * float(np.std(blocks, ddof=1)) / math.sqrt(len(blocks)) if len(blocks) > 1 else math.inf
    return Interval(mean, mean - error, mean + error)


def _cause(most: list[int], parts: Mapping[str, Floats], given: list[float]) -> str:
    """Returns why these rows are later than the median of the others."""
    mine = {name: of[most].mean() for name, of in parts.items()}
    others = {name: float(np.median(np.delete(of, most, axis=0), axis=0).mean()) for name, of in parts.items()}
    largest = max(mine, key=lambda name: mine[name] - others[name])
    if largest == "between":
        return "between steps"
    ratio = float(np.mean([given[i] for i in most]))
    # attention takes up to the square of a sequence's length
    for_its_size = mine[largest] <= HEAVIER * ratio ** (2 if largest == "works" else 1) * others[largest]
    if ratio >= HEAVIER and for_its_size:
        return "heavier data"
    return "input" if largest == "wait" else "compute"


def _of_epochs(epochs: Floats, last: np.ndarray, ranks: list[int]) -> tuple[tuple[int, int], ...]:
    found = []
    for epoch in np.unique(epochs):
        mine = last[epochs == epoch]
        if len(mine) >= thresholds.MIN_STEPS:
            found.append((int(epoch), ranks[int(np.bincount(mine).argmax())]))
    return tuple(found)
