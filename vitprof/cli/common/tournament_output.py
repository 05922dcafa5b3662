"""Prints tournaments and searches for settings on a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from vitprof import formats
from vitprof.analysis.tournament import (
    BreakEven,
    Leaderboard,
    LeaderboardRow,
    Recommendation,
    importances,
    key_in_words,
    runs_words,
    setting_in_words,
    spoiled_words,
    uneven_words,
)
from vitprof.cli.common import terminal
from vitprof.config.accelerators import is_simulated
from vitprof.config.own_script_words import code_line, is_own_key
from vitprof.experiments.candidates import Tried, Tuning, candidate_in_words
from vitprof.experiments.tournament.planning import rounds_words
from vitprof.experiments.tournament.tournament_view import TournamentState
from vitprof.recording.columns import json_number

MAX_REASONS_SHOWN = 6
"""The most settings whose break-even is shown; they are the fastest of each strategy."""


def running_words(now: TournamentState, board: Leaderboard) -> str:
    """Returns one line that says what a tournament is doing."""
    p, spec = now.progress, now.tournament.spec
    doing = f"{key_in_words(p.words)}, round {p.round}" if p.words else "between runs"
    rounds = "added because it is not decided yet" if p.round > spec.repeats else rounds_words(spec)
    lead = f"; fastest so far: {key_in_words(board.best)}" if board.best else ""
    return f"{p.done} of {p.total} runs done; {doing} ({rounds}){lead}"


def show_board(
    now: TournamentState,
    board: Leaderboard,
    pays: Sequence[BreakEven],
    best: Recommendation | None,
) -> None:
    """Prints the leaderboard, the settings that did not run and why, break-even and the recommendation."""
    found = now.tournament
    simulated = ", simulated device" if is_simulated(found.spec.base.device) else ""
    script = found.spec.script
    table = Table(
        "",
        *(("strategy", "batch", "workers", "page cache") if script is None else ("setting",)),
        "samples/s",
        "speed-up",
        "epoch",
        "GPU memory",
        "GPU-util",
        "idle",
        "runs",
        "",
        title=f"tournament {found.id}: {found.name}{simulated} ({found.status})",
        title_justify="left",
    )
    chosen = best.key if best is not None else None
    ranked = sorted((row for row in board.rows if row.rank is not None), key=lambda row: row.key != chosen)
    for row in ranked:
        table.add_row(*_cells(row, board, chosen))
    if ranked:
        terminal.out.print(table)
    else:
        terminal.out.print(f"tournament {found.id}: {found.name}: no setting gave a figure")
    for line in (*filter(None, [uneven_words(board)]), *_not_ranked(board)):
        terminal.out.print(line, soft_wrap=True)
    if script is None and (told := _worth_telling(ranked, pays)):
        terminal.out.print(f"Against {key_in_words(board.baseline)}:")
        for p in told:
            terminal.out.print(f"  {key_in_words(p.key)}: {p.sentence}", soft_wrap=True)
    if best is not None:
        terminal.out.print(best.sentence, soft_wrap=True)
        if script is not None and (line := code_line(script, best.key or "")):
            terminal.out.print(f"\n    {line}\n", soft_wrap=True)
    if found.note:
        terminal.err.print(found.note, soft_wrap=True)


def _with_interval(value: str, low: float, high: float) -> str:
    known = math.isfinite(low) and math.isfinite(high)
    return f"{value} ({formats.number(low)}-{formats.number(high)})" if known else value


def _cells(row: LeaderboardRow, board: Leaderboard, chosen: str | None) -> list[str]:
    entry = row.entry
    against = {"equal": "as fast as the baseline", "undecided": "undecided against the baseline"}
    fastest = {"equal": "as fast as the fastest", "undecided": "undecided against the fastest"}
    remarks = [
        "recommended" if row.key == chosen else "",
        "baseline" if row.key == board.baseline else "",
        *(
            ["too few steps"]
            if row.too_few is not None
            else [against.get(row.against_baseline, ""), fastest.get(row.standing, "")]
        ),
        spoiled_words(row),
        entry.losses,
        entry.reason if entry.status == "cut" else "" if entry.status == "done" else entry.status,
    ]
    speed_up = f"{formats.number(row.speed_up)}x" if math.isfinite(row.speed_up) else ""
    own = row.key == board.baseline
    util = formats.percent(row.gpu_util_pct / 100)
    memory = formats.size(row.gpu_mem_bytes)
    return [
        str(row.rank),
        *_setting(row),
        _with_interval(formats.number(row.samples_per_s), row.low, row.high),
        speed_up if own else _with_interval(speed_up, row.speed_up_low, row.speed_up_high),
        formats.seconds(row.epoch_s),
        memory if memory != formats.NOT_AVAILABLE else "",
        util if util != formats.NOT_AVAILABLE else "",
        formats.percent(row.device_idle_frac),
        f"{runs_words(row)} x {round(row.n_steps / row.n_runs)} steps" if row.n_runs else runs_words(row),
        "; ".join(filter(None, remarks)),
    ]


def _setting(row: LeaderboardRow) -> list[str]:
    entry = row.entry
    if is_own_key(entry.key):
        return [setting_in_words(entry)]
    workers = "" if entry.workers is None else str(entry.workers)
    return [entry.strategy, str(entry.batch_size), workers, entry.page_cache]


def _not_ranked(board: Leaderboard) -> list[str]:
    """Returns a line for each reason why settings have no rank."""
    why: dict[tuple[str, str], list[str]] = {}
    for row in board.rows:
        if row.rank is None:
            name = setting_in_words(row.entry) if is_own_key(row.key) else row.key
            why.setdefault((row.entry.status, row.entry.reason), []).append(name)
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
    """Prints what was tried, what won, and the command that runs it."""
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
    mattered = importances(found.tried)
    shares = ", ".join(f"{name} {share:.0%}" for name, share in mattered.shares.items())
    said = f"{shares}. {mattered.sentence}" if shares else mattered.sentence
    terminal.out.print(f"hyperparameter importances: {said}", soft_wrap=True)
    terminal.out.print(found.sentence, soft_wrap=True)
    if found.enough:
        terminal.out.print(found.command, soft_wrap=True)


def tuning_object(found: Tuning) -> dict[str, Any]:
    """Returns the result of a search as plain values for JSON."""

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
        "importances": dict(importances(found.tried).shares),
        "tried": [tried(t) for t in found.tried],
    }
