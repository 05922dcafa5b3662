"""What a tournament and a search for settings look like on a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from vitprof import formats
from vitprof.analysis.tournament import BreakEven, Leaderboard, LeaderboardRow, Recommendation, spoiled_words
from vitprof.cli.common import terminal
from vitprof.config.accelerators import is_simulated
from vitprof.experiments.tournament.tournament_view import TournamentState
from vitprof.experiments.tuning.candidates import Tried, Tuning, candidate_in_words
from vitprof.records import json_number

MAX_REASONS_SHOWN = 6
"""Settings of which the break-even is told: the fastest of each strategy, these many at most."""


def running_words(standing: TournamentState, board: Leaderboard) -> str:
    """Returns what a tournament is doing, in a line."""
    p = standing.progress
    rounds = standing.tournament.spec.repeats
    of = f"of {rounds}" if p.current_round <= rounds else "(added until it is decided)"
    doing = f"{p.current_key}, round {p.current_round} {of}" if p.current_key else "between runs"
    lead = f"; ahead: {board.best}" if board.best else ""
    return f"{p.done} of {p.total} runs, {doing}{lead}"


def show_board(
    standing: TournamentState,
    board: Leaderboard,
    pays: Sequence[BreakEven],
    best: Recommendation | None,
) -> None:
    """The leaderboard, what did not run and why, break-even and the recommendation."""
    found = standing.tournament
    simulated = ", simulated device" if is_simulated(found.spec.base.device) else ""
    table = Table(
        "",
        "strategy",
        "batch",
        "workers",
        "page cache",
        "samples/s",
        "95%",
        "speed-up",
        "95%",
        "epoch",
        "GPU memory",
        "GPU-util",
        "idle",
        "n",
        "",
        title=f"tournament {found.id}: {found.name}{simulated} ({found.status})",
        title_justify="left",
    )
    ranked = [row for row in board.rows if row.rank is not None]
    for row in ranked:
        table.add_row(*_cells(row, board))
    if ranked:
        terminal.out.print(table)
    else:
        terminal.out.print(f"tournament {found.id}: {found.name}: no trial has given a figure")
    for line in _not_ranked(board):
        terminal.out.print(line, soft_wrap=True)
    if told := _worth_telling(ranked, pays):
        terminal.out.print(f"Against {board.baseline}:")
        for p in told:
            terminal.out.print(f"  {p.key} {p.sentence}", soft_wrap=True)
    if best is not None:
        terminal.out.print(best.sentence, soft_wrap=True)
    if found.note:
        terminal.err.print(found.note, soft_wrap=True)


def _interval(low: float, high: float) -> str:
    return f"{formats.number(low)} to {formats.number(high)}" if math.isfinite(low) and math.isfinite(high) else ""


def _cells(row: LeaderboardRow, board: Leaderboard) -> list[str]:
    entry = row.entry
    remarks = [
        "baseline"
        if row.key == board.baseline
        else "as fast as the baseline"
        if row.against_baseline == "equal"
        else "",
        "as fast as the best" if row.standing == "equal" else "",
        "too few steps"
        if row.too_few is not None
        else "undecided"
        if "undecided" in (row.against_baseline, row.standing)
        else "",
        spoiled_words(row),
        entry.reason if entry.status == "cut" else "" if entry.status == "done" else entry.status,
    ]
    util = formats.percent(row.gpu_util_pct / 100)
    memory = formats.size(row.gpu_mem_bytes)
    return [
        str(row.rank),
        entry.strategy,
        str(entry.batch_size),
        "" if entry.workers is None else str(entry.workers),
        entry.page_cache,
        formats.number(row.samples_per_s),
        _interval(row.low, row.high),
        f"{row.speed_up:.2f}" if math.isfinite(row.speed_up) else "",
        _interval(row.speed_up_low, row.speed_up_high),
        formats.seconds(row.epoch_s),
        memory if memory != formats.NOT_AVAILABLE else "",
        util if util != formats.NOT_AVAILABLE else "",
        formats.percent(row.device_idle_frac),
        f"{row.n_runs} x {round(row.n_steps / row.n_runs)} steps" if row.n_runs else "",
        "; ".join(filter(None, remarks)),
    ]


def _not_ranked(board: Leaderboard) -> list[str]:
    """Returns a line for each reason why trials have no place."""
    why: dict[tuple[str, str], list[str]] = {}
    for row in board.rows:
        if row.rank is None:
            why.setdefault((row.entry.status, row.entry.reason), []).append(row.key)
    lines = []
    for (status, reason), keys in why.items():
        more = f" and {len(keys) - 2} more" if len(keys) > 2 else ""
        lines.append(f"{status}: {', '.join(keys[:2])}{more}{f': {reason}' if reason else ''}")
    return lines


def _worth_telling(ranked: Sequence[LeaderboardRow], pays: Sequence[BreakEven]) -> list[BreakEven]:
    """Returns the break-even of the fastest setting of each strategy."""
    of = {p.key: p for p in pays}
    seen: set[str] = set()
    told = []
    for row in ranked:
        if row.entry.strategy not in seen and row.key in of:
            told.append(of[row.key])
        seen.add(row.entry.strategy)
    return told[:MAX_REASONS_SHOWN]


def show_tuning(found: Tuning) -> None:
    """Shows what was tried, what won, and the command that runs it."""
    table = Table("", "setting", "samples/s", "", title=f"settings of {found.strategy}", title_justify="left")
    for t in found.tried:
        remark = t.error or ("" if math.isfinite(t.samples_per_s) else "too few steps")
        table.add_row(
            f"rung {t.rung}" if t.rung else "check",
            candidate_in_words(t.candidate),
            formats.number(t.samples_per_s),
            remark,
        )
    terminal.out.print(table)
    terminal.out.print(found.sentence, soft_wrap=True)
    terminal.out.print(found.command, soft_wrap=True)


def tuning_object(found: Tuning) -> dict[str, Any]:
    """Returns what a search found, as plain values for JSON."""

    def tried(t: Tried) -> dict[str, Any]:
        own = {"rung": t.rung, "run_id": t.run_id, "samples_per_s": json_number(t.samples_per_s), "error": t.error}
        return vars(t.candidate) | own

    return {
        "strategy": found.strategy,
        "default": vars(found.default),
        "winner": vars(found.winner),
        "samples_per_s": json_number(found.samples_per_s),
        "gain": json_number(found.gain.value),
        "gain_low": json_number(found.gain.low),
        "gain_high": json_number(found.gain.high),
        "verified": found.verified,
        "simulated": is_simulated(found.config.device),
        "seconds": found.seconds,
        "n_candidates": found.n_candidates,
        "command": found.command,
        "sentence": found.sentence,
        "config": found.config.to_dict(),
        "tried": [tried(t) for t in found.tried],
    }
