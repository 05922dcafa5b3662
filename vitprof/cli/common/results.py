"""Results for people: of a run, of a tournament and of a search."""

import math
from collections.abc import Sequence
from typing import Any

from vitprof import formats, store
from vitprof.analysis.tournament import entries, recommend
from vitprof.analysis.tournament.leaderboard import (
    Leaderboard,
    LeaderboardRow,
    runs_words,
    spoiled_words,
    uneven_words,
)
from vitprof.analysis.tournament.tuning import importances
from vitprof.cli.common import terminal
from vitprof.config import own_script
from vitprof.experiments.tournament.planning import rounds_words
from vitprof.experiments.tournament.tournament_view import TournamentState
from vitprof.experiments.tuning import Tuning, candidate_in_words, run_command
from vitprof.export.tables import figures_in_words
from vitprof.recording.verdict import Verdict

MAX_REASONS_SHOWN = 6
"""The most settings whose break-even is shown; they are the fastest of each strategy."""


def show_run(run: store.StoredRun) -> None:
    if run.summary is None or not run.summary.n_steps:
        return
    simulated = " (simulated device)" if run.simulated else ""
    terminal.show_table(
        (), figures_in_words(run), f"run {run.id}: {run.name}{simulated}", show_header=False
    )
    if run.verdict is not None and (run.status != "failed" or run.verdict.kind != "inconclusive"):
        # of one that failed early its error says more
        _show_verdict(run.verdict)
    terminal.show(*(f"  {sentence}" for sentence in on_ranks(run)))
    if (
        run.verdict is not None
        and run.verdict.kind != "inconclusive"
        and own_script.is_own_script(run.config)
    ):
        terminal.show(*to_compare(run))


def on_ranks(run: store.StoredRun) -> list[str]:
    """Returns lines on the ranks of a distributed job; none of another one."""
    return [str(sentence) for sentence in run.facts.get("ranks", {}).get("sentences", ())]


def to_compare(run: store.StoredRun) -> list[str]:
    """Returns the line with the tournament to type for a watched run, if its loader has settings to compare."""
    command = str(run.facts.get("command", "COMMAND"))
    advised = run.verdict.sentence if run.verdict else ""
    line = own_script.to_compare(run.environment, run.config.workers or 0, command, advised)
    return [f"  to compare settings of its DataLoader type {line}"] if line else []


def _show_verdict(verdict: Verdict) -> None:
    terminal.show(f"\n{verdict.sentence}")
    for advice in verdict.advice:
        options = " ".join(
            f"--{'' if value is not False else 'no-'}{name.replace('_', '-')}"
            + ("" if isinstance(value, bool) else f" {value}")
            for name, value in advice.settings.items()
        )
        terminal.show(f"  try {advice.words}{f': {options}' if options else ''}. {advice.reason}")
    terminal.show(*(f"  seen: {signature.sentence}" for signature in verdict.signatures))


def running_words(now: TournamentState, board: Leaderboard) -> str:
    p = now.progress
    spec = now.tournament.spec
    doing = f"{entries.key_in_words(p.words)}, round {p.round}" if p.words else "between runs"
    rounds = "added because it is not decided yet" if p.round > spec.repeats else rounds_words(spec)
    lead = f"; fastest so far: {entries.key_in_words(board.best)}" if board.best else ""
    return f"{p.done} of {p.total} runs done; {doing} ({rounds}){lead}"


def show_board(
    now: TournamentState,
    board: Leaderboard,
    pays: Sequence[recommend.BreakEven],
    best: recommend.Recommendation | None,
) -> None:
    tournament = now.tournament
    simulated = ", simulated device" if tournament.spec.base.simulated else ""
    script = tournament.spec.script
    setting = ("strategy", "batch", "workers", "page cache") if script is None else ("setting",)
    header = (
        "",
        *setting,
        "samples/s",
        "speed-up",
        "epoch",
        "GPU memory",
        "GPU-util",
        "idle",
        "runs",
        "",
    )
    title = f"tournament {tournament.id}: {tournament.name}"
    chosen = best.key if best is not None else None
    ranked = sorted(
        (row for row in board.rows if row.rank is not None), key=lambda row: row.key != chosen
    )
    if ranked:
        cells = (_cells(row, board, chosen) for row in ranked)
        terminal.show_table(header, cells, f"{title}{simulated} ({tournament.status})")
    else:
        terminal.out.print(f"{title}: no setting gave a figure")
    terminal.show(*filter(None, [uneven_words(board)]), *_not_ranked(board))
    if script is None and (pay := _worth_telling(ranked, pays)):
        terminal.out.print(f"Against {entries.key_in_words(board.baseline)}:")
        terminal.show(*(f"  {entries.key_in_words(p.key)}: {p.sentence}" for p in pay))
    if best is not None:
        terminal.show(best.sentence)
        if script is not None and (line := own_script.code_line(script, best.key or "")):
            terminal.show(f"\n    {line}\n")
    if tournament.note:
        terminal.show(tournament.note, console=terminal.err)


def _with_interval(value: str, low: float, high: float) -> str:
    known = math.isfinite(low) and math.isfinite(high)
    return f"{value} ({formats.number(low)}-{formats.number(high)})" if known else value


def _cells(row: LeaderboardRow, board: Leaderboard, chosen: str | None) -> list[str]:
    entry = row.entry
    words = {"equal": "as fast as", "undecided": "undecided against"}
    against = ((row.against_baseline, "the baseline"), (row.standing, "the fastest"))
    compared = [f"{words[outcome]} {other}" for outcome, other in against if outcome in words]
    remarks = [
        "recommended" if row.key == chosen else "",
        "baseline" if row.key == board.baseline else "",
        *(["too few steps"] if row.too_few is not None else compared),
        spoiled_words(row),
        entry.losses,
        entry.reason if entry.status == "cut" else "" if entry.status == "done" else entry.status,
    ]
    speed_up = f"{formats.number(row.speed_up)}x" if math.isfinite(row.speed_up) else ""
    own = row.key == board.baseline
    util = formats.percent(row.gpu_util_pct / 100)
    memory = formats.size(row.gpu_mem_bytes)
    workers = "" if entry.workers is None else str(entry.workers)
    setting = [entry.strategy, str(entry.batch_size), workers, entry.page_cache]
    return [
        str(row.rank),
        *([entries.setting_in_words(entry)] if own_script.is_own_key(entry.key) else setting),
        _with_interval(formats.number(row.score.value), *row.score[1:]),
        speed_up if own else _with_interval(speed_up, row.speed_up_low, row.speed_up_high),
        formats.seconds(row.epoch_s),
        *("" if figure == formats.NOT_AVAILABLE else figure for figure in (memory, util)),
        formats.percent(row.device_idle_frac),
        f"{runs_words(row)} x {round(row.n_steps / row.n_runs)} steps"
        if row.n_runs
        else runs_words(row),
        "; ".join(filter(None, remarks)),
    ]


def _not_ranked(board: Leaderboard) -> list[str]:
    of_reason: dict[tuple[str, str], list[str]] = {}
    for row in board.rows:
        if row.rank is None:
            name = (
                entries.setting_in_words(row.entry) if own_script.is_own_key(row.key) else row.key
            )
            of_reason.setdefault((row.entry.status, row.entry.reason), []).append(name)
    lines = []
    for (status, reason), keys in of_reason.items():
        more = f" and {len(keys) - 2} more" if len(keys) > 2 else ""
        lines.append(f"{status}: {', '.join(keys[:2])}{more}{f': {reason}' if reason else ''}")
    return lines


def _worth_telling(
    ranked: Sequence[LeaderboardRow], pays: Sequence[recommend.BreakEven]
) -> list[recommend.BreakEven]:
    of = {p.key: p for p in pays}
    seen: set[str] = set()
    fastest = []
    for row in ranked:
        if row.entry.strategy not in seen and row.key in of:
            fastest.append(of[row.key])
        seen.add(row.entry.strategy)
    return fastest[:MAX_REASONS_SHOWN]


def show_tuning(tuning: Tuning) -> None:
    rows = []
    for t in tuning.tried:
        wrong = t.error or ("" if math.isfinite(t.samples_per_s) else "too few steps")
        level = f"rung {t.rung}" if t.rung else "check"
        rows.append(
            (level, candidate_in_words(t.candidate), formats.number(t.samples_per_s), wrong)
        )
    terminal.show_table(("", "setting", "samples/s", ""), rows, f"settings of {tuning.strategy}")
    mattered = importances(tuning.tried)
    shares = ", ".join(f"{name} {share:.0%}" for name, share in mattered.shares.items())
    sentence = f"{shares}. {mattered.sentence}" if shares else mattered.sentence
    terminal.show(f"hyperparameter importances: {sentence}", tuning.sentence)
    if tuning.gains:
        terminal.show(run_command(tuning.config))


def tuning_object(tuning: Tuning) -> dict[str, Any]:
    same = (
        "strategy",
        "default",
        "winner",
        "samples_per_s",
        "verified",
        "seconds",
        "n_candidates",
        "sentence",
    )
    values = {name: getattr(tuning, name) for name in same} | {
        "command": run_command(tuning.config)
    }
    values |= {
        "gain": tuning.gain.value,
        "gain_low": tuning.gain.low,
        "gain_high": tuning.gain.high,
    }
    values |= {"simulated": tuning.config.simulated, "config": tuning.config.to_dict()}
    tried = [
        vars(t.candidate) | {n: v for n, v in vars(t).items() if n != "candidate"}
        for t in tuning.tried
    ]
    return values | {"importances": importances(tuning.tried).shares, "tried": tried}
