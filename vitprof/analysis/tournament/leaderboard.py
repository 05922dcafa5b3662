"""The leaderboard of a tournament: each setting's throughput, and its speed-up over the baseline, with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from vitprof.analysis.bootstrap import Interval
from vitprof.analysis.thresholds import MIN_STEPS
from vitprof.analysis.tournament.entries import OUT_OF_THE_RACE, Entry
from vitprof.analysis.tournament.rows import Leaderboard, LeaderboardRow, Standing
from vitprof.analysis.tournament.scores import (
    NO_SCORE,
    Comparison,
    Rounds,
    Score,
    comparison,
    near_best,
    ratio,
    rounds_of,
    score,
    spoiled,
    sure_level,
    throughput,
    usable,
    within_low,
)
from vitprof.recording.columns import RunSummary


def leaderboard(entries: Sequence[Entry], *, baseline: str, n_train: int, seed: int = 0) -> Leaderboard:
    """Returns the leaderboard of `entries`, ranked by score. Their order does not matter.

    `baseline` is the key of the setting that speed-ups are relative to; they are NaN if it gave no figures. `n_train`
    is the number of training images in an epoch (0 if not known), `seed` that of the bootstrap. Failed and refused
    trials keep the figures of their earlier rounds but are not ranked.

    An epoch's time is the measured one (`RunSummary.epoch_s`) if every ranked run saw a whole epoch, and n_train /
    samples_per_s for all settings otherwise: a fast setting's measured epochs include the wait at their start, which
    the extrapolated one of a slow setting would not. Raises ValueError for two entries with the same key, or if the
    baseline is not among them.
    """
    by_key = {entry.key: entry for entry in sorted(entries, key=lambda e: e.key)}
    if len(by_key) < len(entries):
        raise ValueError("two entries of the tournament have the same key")
    if baseline not in by_key:
        raise ValueError(f"the baseline {baseline!r} is not one of the tournament's entries")
    runs = {key: rounds_of(entry) for key, entry in by_key.items()}
    level = sure_level(max(map(len, runs.values())))
    few = {key: n for key, n in ((key, _n_steps(by_key[key], runs[key])) for key in by_key) if 0 < n < MIN_STEPS}
    scores = {key: score(mine, key, seed) for key, mine in runs.items()}
    scores |= {key: Score(scores[key].value, NO_SCORE.draws) for key in few}
    speeds = {key: throughput(mine, _samples(by_key[key], mine), key, seed) for key, mine in runs.items()}
    ranked = [key for key, e in by_key.items() if e.status not in OUT_OF_THE_RACE and math.isfinite(scores[key].value)]
    ranked.sort(key=lambda key: (-scores[key].value, key))
    caches = {key: e.page_cache for key, e in by_key.items()}
    bests = {caches[key]: key for key in reversed(ranked)}
    best = bests.get(caches[baseline], ranked[0] if ranked else None)
    cut = {key for key, e in by_key.items() if e.status == "cut"}
    whole_epochs = all(_saw_whole_epochs(by_key[key], runs[key]) for key in ranked)
    near = {
        key: value
        for cache in bests
        for key, value in near_best({k: scores[k] for k in ranked if caches[k] == cache}, cut).items()
    }

    def over(key: str, base: str) -> Interval:
        if key == base and runs[key]:
            return Interval(1.0, 1.0, 1.0)
        return ratio(scores[key], scores[base], level)

    def outcome(key: str, base: str) -> Comparison:
        """Returns how two settings compare, as both the rows and the recommendation say it."""
        first = bests.get(caches[key])
        other = base if key == first else key
        if caches[key] == caches[base] and first in (key, base) and near.get(other, 0.0) >= level:
            return "equal"  # a setting that may be recommended as within 5% of the fastest is never called "slower"
        return comparison(over(key, base))

    standings: dict[str, Standing] = {
        key: "fastest" if key == bests[caches[key]] else outcome(key, bests[caches[key]]) for key in ranked
    }
    rows = []
    for key in (*ranked, *(key for key in by_key if key not in ranked)):
        gain = over(key, baseline)
        standing = standings.get(key, "")
        rows.append(
            _row(
                None if not standing else ranked.index(bests[caches[key]] if standing == "equal" else key) + 1,
                by_key[key],
                runs[key],
                _without_interval(speeds[key]) if key in few else speeds[key],
                gain,
                against_baseline="" if key == baseline or math.isnan(gain.value) else outcome(key, baseline),
                standing=standing,
                near_best=near.get(key, math.nan),
                too_few=few.get(key),
                n_train=n_train,
                whole_epochs=whole_epochs,
                score=math.exp(scores[key].value),
                within=within_low(runs[key], key, seed),
            )
        )
    return Leaderboard(tuple(rows), baseline, best, n_train, level)


def _without_interval(known: Interval) -> Interval:
    return Interval(known.value, math.nan, math.nan)


def _n_steps(entry: Entry, runs: Rounds) -> int:
    """Returns the steady steps behind the figures.

    A run without a summary counts its blocks, which are never more: a block is at least one step.
    """
    summaries = _counted(entry, runs)
    return sum(summaries[number].n_steady_steps if number in summaries else len(runs[number]) for number in runs)


def _counted(entry: Entry, runs: Rounds) -> dict[int, RunSummary]:
    """Returns the summaries, by round, of the runs behind the figures, as far as these have ended."""
    last = {
        o.round: o.summary for o in entry.outcomes if o.status not in OUT_OF_THE_RACE and len(usable(o.blocks_per_s))
    }
    return {number: s for number, s in last.items() if number in runs and s is not None}


def _samples(entry: Entry, runs: Rounds) -> dict[int, float]:
    """Returns the weight of each round: its steady steps, all of one batch size. Equal weights if not all are known."""
    steps = {number: float(s.n_steady_steps) for number, s in _counted(entry, runs).items()}
    return steps if len(steps) == len(runs) and all(steps.values()) else dict.fromkeys(runs, 1.0)


def _saw_whole_epochs(entry: Entry, runs: Rounds) -> bool:
    summaries = _counted(entry, runs)
    return len(summaries) == len(runs) and all(s.n_epochs_measured and s.epoch_s > 0 for s in summaries.values())


def _row(
    rank: int | None,
    entry: Entry,
    runs: Rounds,
    speed: Interval,
    gain: Interval,
    *,
    against_baseline: Literal[""] | Comparison,
    standing: Standing,
    near_best: float,
    too_few: int | None,
    n_train: int,
    whole_epochs: bool,
    score: float,
    within: float,
) -> LeaderboardRow:
    summaries = _counted(entry, runs).values()
    epoch_s = n_train / speed.value if n_train else math.nan
    if whole_epochs and _saw_whole_epochs(entry, runs) and runs:
        epoch_s = math.exp(math.fsum(math.log(s.epoch_s) for s in summaries) / len(summaries))

    def known(name: str) -> list[float]:
        values = [float(getattr(s, name)) for s in summaries]
        return [v for v in values if math.isfinite(v)]

    def mean(name: str) -> float:
        values = known(name)
        return math.fsum(values) / len(values) if values else math.nan

    return LeaderboardRow(
        rank=rank,
        entry=entry,
        n_runs=len(runs),
        n_steps=sum(s.n_steady_steps for s in summaries),
        samples_per_s=speed.value,
        low=speed.low,
        high=speed.high,
        speed_up=gain.value,
        speed_up_low=gain.low,
        speed_up_high=gain.high,
        against_baseline=against_baseline,
        epoch_s=epoch_s,
        epoch_low=epoch_s * speed.value / speed.high,
        epoch_high=epoch_s * speed.value / speed.low,
        gpu_mem_bytes=max(known("gpu_mem_peak_bytes"), default=math.nan),
        gpu_util_pct=mean("gpu_util_pct_mean"),
        device_idle_frac=mean("device_idle_frac"),
        rss_bytes=max(known("rss_peak_bytes"), default=math.nan),
        too_few=too_few,
        standing=standing,
        near_best=near_best,
        score=score,
        within_low=within,
        spoiled=spoiled(entry),
    )
