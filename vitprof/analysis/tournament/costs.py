"""What settings cost: break-even (after how many epochs preparation has paid for itself), and Pareto fronts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from vitprof import formats
from vitprof.analysis.tournament.leaderboard import Leaderboard, LeaderboardRow

Cost = Literal["rss_bytes", "ram_bytes", "disk_bytes", "prepare_s"]


@dataclass(frozen=True)
class BreakEven:
    """A setting against the baseline, over the whole training."""

    key: str
    epochs: float
    """Epochs from which its total time is below the baseline's; 0: at once, inf: never, NaN: not known."""
    low: float
    """Fewest epochs that the interval of its speed-up allows."""
    high: float
    """Most epochs that it allows; inf where it may never pay."""
    extra_s: float
    """Seconds that it needs before the first epoch beyond the baseline's: building the storage and staging."""
    gain_s: float
    """Seconds by which an epoch is shorter than the baseline's."""
    sentence: str
    """In words: "pays for its preparation (12 s) after 3 epochs"."""


def setup_s(row: LeaderboardRow) -> float:
    """Returns the seconds that a setting costs before the first epoch: building its storage, and staging.

    Staging is done at the start of each run, so it counts for each training; 0 if nothing is staged. Building counts in
    full, though it is needed only once for a data set. NaN if that time is not known. What every start of a run costs
    is left out: opening files, and reading a set into memory.
    """
    staged = [o.summary.stage_s for o in row.entry.outcomes if o.summary and math.isfinite(o.summary.stage_s)]
    return row.entry.prepare_s + (math.fsum(staged) / len(staged) if staged else 0.0)


def break_even(board: Leaderboard) -> tuple[BreakEven, ...]:
    """Returns the break-even of each ranked setting but the baseline, by rank.

    That is where setup + epochs * epoch time falls below the baseline's: at extra / gain, both relative to the
    baseline. The interval follows from that of the speed-up; if that contains 1, its upper end is infinite. Empty while
    the baseline has no figures.
    """
    base = board.row(board.baseline)
    if base is None or not math.isfinite(base.epoch_s):
        return ()
    return tuple(_of(row, base) for row in board.rows if row.rank is not None and row.key != base.key)


def _of(row: LeaderboardRow, base: LeaderboardRow) -> BreakEven:
    extra = setup_s(row) - setup_s(base)
    # Measured epochs include the wait at their start: their ratio is near the speed-up, not equal to it.
    scale = base.epoch_s / row.epoch_s / row.speed_up

    def gain(speed_up: float) -> float:
        return base.epoch_s * (1 - 1 / (speed_up * scale))

    gains = (gain(row.speed_up), gain(row.speed_up_high), gain(row.speed_up_low))
    epochs, low, high = (_epochs(extra, g) for g in gains)
    return BreakEven(row.key, epochs, low, high, extra, gains[0], _sentence(row, extra, gains[0], (epochs, low, high)))


def _epochs(extra: float, gain: float) -> float:
    if math.isnan(extra) or math.isnan(gain):
        return math.nan
    if gain <= 0:
        return 0.0 if gain == 0 and extra < 0 else math.inf
    return max(0.0, extra / gain)


def _sentence(row: LeaderboardRow, extra: float, gain: float, found: tuple[float, float, float]) -> str:
    epochs, low, high = found
    cost = formats.seconds(abs(extra))
    if math.isnan(epochs):
        return "not known: the time of its preparation was not measured"
    if row.against_baseline == "undecided":
        return "not known: whether it is faster than the baseline is undecided"
    if row.against_baseline == "equal" and row.speed_up_low <= 1 <= row.speed_up_high:
        if extra > 0:
            return f"does not pay for its preparation ({cost}): it is as fast as the baseline, within 5%"
        saved = f" and saves {cost} of preparation" if extra < 0 else ", and needs no more preparation"
        return f"as fast as the baseline, within 5%{saved}"
    if gain < 0 and extra < 0:
        ahead = math.floor(extra / gain)
        until = f"ahead for the first {_count(ahead)} only" if ahead else "the first epoch already costs more than that"
        return f"slower, but saves {cost} of preparation: {until}"
    if math.isinf(epochs):
        return "never pays: it is slower than the baseline" + (
            f" and costs {cost} of preparation more" if extra else ""
        )
    if epochs == 0:
        return "faster from the first epoch on: it needs no preparation (reading the set at each start is not counted)"
    spread = ""
    if math.isfinite(low) and (_whole(low), _whole(high)) != (_whole(epochs), _whole(epochs)):
        spread = f" ({_whole(low):,} to {f'{_whole(high):,}' if math.isfinite(high) else 'never'})"
    return f"pays for its preparation ({cost}) after {_count(_whole(epochs))}{spread}"


def _whole(epochs: float) -> float:
    """Returns the whole epochs after which the total is no more than the baseline's."""
    return math.ceil(epochs) if math.isfinite(epochs) else epochs


def _count(epochs: float) -> str:
    return "1 epoch" if epochs == 1 else f"{epochs:,} epochs"


def cost(row: LeaderboardRow, against: Cost) -> float:
    """Returns the cost of a setting: bytes, or seconds for "prepare_s"; NaN where it is not known."""
    return row.rss_bytes if against == "rss_bytes" else float(getattr(row.entry, against))


def pareto(board: Leaderboard, against: Cost) -> tuple[str, ...]:
    """Returns the keys of the settings on the Pareto front, the cheapest first.

    No other setting has at least their throughput for at most their cost and is better in one of the two (Pareto,
    Manuale di economia politica, 1906, chapter 3). Only ranked settings whose cost is known are considered, by their
    estimates; intervals are ignored. Settings that are alike in both are on the front together.
    """
    known = [row for row in board.rows if row.rank is not None and math.isfinite(cost(row, against))]
    known.sort(key=lambda row: (cost(row, against), -row.samples_per_s, row.key))
    front: list[LeaderboardRow] = []
    for row in known:
        same = front and (cost(row, against), row.samples_per_s) == (cost(front[-1], against), front[-1].samples_per_s)
        if not front or same or row.samples_per_s > front[-1].samples_per_s:
            front.append(row)
    return tuple(row.key for row in front)
