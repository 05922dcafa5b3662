"""Results for people: of a run, of a watched script, of a tournament and a search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from vitprof import formats
from vitprof.analysis.timing.loading import shares_in_words, transform_times
from vitprof.analysis.timing.utilisation import device_memory, sm_activity
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
from vitprof.analysis.verdict.headroom import own_headroom, own_headroom_sentence
from vitprof.cli.common import terminal
from vitprof.config.accelerators import is_simulated
from vitprof.config.own_script import code_line, is_own_key
from vitprof.experiments.tournament.planning import rounds_words
from vitprof.experiments.tournament.tournament_view import TournamentState
from vitprof.experiments.tuning import Tried, Tuning, candidate_in_words
from vitprof.program import program
from vitprof.recording.columns import RunSummary, json_number
from vitprof.recording.verdict import Verdict
from vitprof.store import StoredRun


def _storage(s: RunSummary) -> str:
    """Returns the size of the storage, how long making it took, and how much of it was in the page cache."""
    prepared = f", made in {formats.seconds(s.storage_prepare_s)}" if s.storage_prepare_s else ""
    cached = f", {formats.percent(s.page_cached_frac)} in the page cache at the start"
    return formats.size(s.storage_bytes) + prepared + (cached if math.isfinite(s.page_cached_frac) else "")


def _own_cost(s: RunSummary) -> str:
    """Returns the share of the run's time that vitprof's own measuring took."""
    inside = f", inside the loader about {formats.percent(s.loader_times_frac)}"
    return formats.percent(s.recording_frac) + (inside if math.isfinite(s.loader_times_frac) else "")


def show_run(run: StoredRun, console: Console) -> None:
    """Prints the main figures of a run as a table, and its verdict. Prints nothing for a run without steps."""
    s = run.summary
    if s is None or not s.n_steps:
        return
    simulated = " (simulated device)" if is_simulated(run.config.device) else ""
    table = Table(title=f"run {run.id}: {run.name}{simulated}", title_justify="left", show_header=False)
    interval = (
        f"  (95%: {formats.number(s.samples_per_s_low)} to {formats.number(s.samples_per_s_high)}, "
        f"n = {s.n_steady_steps} steps)"
        if math.isfinite(s.samples_per_s_low)
        else f"  (n = {s.n_steady_steps} steps)"
    )
    measured = f"  ({s.n_epochs_measured} measured)" if s.n_epochs_measured else "  (extrapolated)"
    for label, value in (
        ("throughput", formats.number(s.samples_per_s, "samples/s") + interval),
        ("epoch", formats.seconds(s.epoch_s) + measured),
        ("step", f"{formats.number(s.step_ms_median, 'ms')} median, {formats.number(s.step_ms_p95, 'ms')} p95"),
        ("data wait", formats.percent(s.data_wait_frac)),
        ("device idle", formats.percent(s.device_idle_frac)),
        ("GPU-util", formats.percent(s.gpu_util_pct_mean / 100)),
        ("SM activity", sm_activity(s, run.environment).words or formats.NOT_AVAILABLE),
        *((f"{memory.name}, peak", formats.size(memory.n_bytes)) for memory in device_memory(s)),
        ("memory, peak", formats.size(s.rss_peak_bytes)),
        ("CPU", formats.seconds(s.cpu_s_per_sample) + " a sample"),
        ("loss", f"{formats.number(s.loss_first)} first, {formats.number(s.loss_last)} last"),
        (
            "copied first",
            f"{formats.size(s.stage_bytes)} in {formats.seconds(s.stage_s)}"
            if s.stage_s > 0
            else formats.NOT_AVAILABLE,
        ),
        ("storage", _storage(s)),
        ("cache hit rate", formats.percent(s.cache_hit_frac)),
        ("left out", f"{s.n_unreadable:,} unreadable" if s.n_unreadable else formats.NOT_AVAILABLE),
        ("test accuracy", formats.percent(s.test_accuracy)),
        ("own recording", _own_cost(s)),
    ):
        if not value.startswith(formats.NOT_AVAILABLE):
            table.add_row(label, value)
    console.print(table)
    if run.verdict is not None:
        _tell(run.verdict, console)


def show_watched(run: StoredRun, console: Console) -> None:
    """Prints the result of watching a script: the verdict's sentence, what it is based on, and things to try.

    Prints nothing for a run without steps or verdict.
    """
    s = run.summary
    if s is None or not s.n_steps or run.verdict is None:
        return
    verdict = run.verdict
    console.print(f"\nvitprof run {run.id}: {run.name}", soft_wrap=True)
    console.print(verdict.sentence, soft_wrap=True)
    based = [f"{s.n_steady_steps:,} steady steps of {s.n_steps:,}"]
    if math.isfinite(s.samples_per_s):
        interval = f" (95%: {formats.number(s.samples_per_s_low)} to {formats.number(s.samples_per_s_high)})"
        known = math.isfinite(s.samples_per_s_low)
        based.append(f"{formats.number(s.samples_per_s, 'samples/s')}{interval if known else ''}")
    if math.isfinite(verdict.idle_frac):
        low, high = formats.percent(verdict.idle_frac_low), formats.percent(verdict.idle_frac_high)
        based.append(f"idle for data {formats.percent(verdict.idle_frac)} (95%: {low} to {high})")
    if math.isfinite(s.data_wait_frac):
        based.append(f"data wait {formats.percent(s.data_wait_frac)}")
    console.print(f"  based on {', '.join(based)}", soft_wrap=True)
    if transforms := shares_in_words(transform_times(run.facts)):
        console.print(f"  transforms: {transforms}", soft_wrap=True)
    for advice in verdict.advice:
        console.print(f"  try {advice.words}. {advice.reason}", soft_wrap=True)
    if verdict.kind != "inconclusive" and (headroom := own_headroom(run.facts)) is not None:
        console.print(own_headroom_sentence(headroom), soft_wrap=True)
    console.print(f"  for its charts type {program()} and open run {run.id} under History", soft_wrap=True)


def _tell(verdict: Verdict, console: Console) -> None:
    """Prints the verdict, things to try as options of `run`, and patterns found."""
    console.print(f"\n{verdict.sentence}", soft_wrap=True)
    for advice in verdict.advice:
        options = " ".join(
            f"--{'' if value is not False else 'no-'}{name.replace('_', '-')}"
            + ("" if isinstance(value, bool) else f" {value}")
            for name, value in advice.settings.items()
        )
        console.print(f"  try {advice.words}{f': {options}' if options else ''}. {advice.reason}", soft_wrap=True)
    for signature in verdict.signatures:
        console.print(f"  seen: {signature.sentence}", soft_wrap=True)


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
    tournament = now.tournament
    simulated = ", simulated device" if is_simulated(tournament.spec.base.device) else ""
    script = tournament.spec.script
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
        title=f"tournament {tournament.id}: {tournament.name}{simulated} ({tournament.status})",
        title_justify="left",
    )
    chosen = best.key if best is not None else None
    ranked = sorted((row for row in board.rows if row.rank is not None), key=lambda row: row.key != chosen)
    for row in ranked:
        table.add_row(*_cells(row, board, chosen))
    if ranked:
        terminal.out.print(table)
    else:
        terminal.out.print(f"tournament {tournament.id}: {tournament.name}: no setting gave a figure")
    for line in (*filter(None, [uneven_words(board)]), *_not_ranked(board)):
        terminal.out.print(line, soft_wrap=True)
    if script is None and (pay := _worth_telling(ranked, pays)):
        terminal.out.print(f"Against {key_in_words(board.baseline)}:")
        for p in pay:
            terminal.out.print(f"  {key_in_words(p.key)}: {p.sentence}", soft_wrap=True)
    if best is not None:
        terminal.out.print(best.sentence, soft_wrap=True)
        if script is not None and (line := code_line(script, best.key or "")):
            terminal.out.print(f"\n    {line}\n", soft_wrap=True)
    if tournament.note:
        terminal.err.print(tournament.note, soft_wrap=True)


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
    of_reason: dict[tuple[str, str], list[str]] = {}
    for row in board.rows:
        if row.rank is None:
            name = setting_in_words(row.entry) if is_own_key(row.key) else row.key
            of_reason.setdefault((row.entry.status, row.entry.reason), []).append(name)
    lines = []
    for (status, reason), keys in of_reason.items():
        more = f" and {len(keys) - 2} more" if len(keys) > 2 else ""
        lines.append(f"{status}: {', '.join(keys[:2])}{more}{f': {reason}' if reason else ''}")
    return lines


def _worth_telling(ranked: Sequence[LeaderboardRow], pays: Sequence[BreakEven]) -> list[BreakEven]:
    """Returns the break-even of the fastest setting of each strategy."""
    of = {p.key: p for p in pays}
    seen: set[str] = set()
    fastest = []
    for row in ranked:
        if row.entry.strategy not in seen and row.key in of:
            fastest.append(of[row.key])
        seen.add(row.entry.strategy)
    return fastest[:MAX_REASONS_SHOWN]


def show_tuning(tuning: Tuning) -> None:
    """Prints what was tried, what won, and the command that runs it."""
    table = Table("", "setting", "samples/s", "", title=f"settings of {tuning.strategy}", title_justify="left")
    for t in tuning.tried:
        remark = t.error or ("" if math.isfinite(t.samples_per_s) else "too few steps")
        table.add_row(
            f"rung {t.rung}" if t.rung else "check",
            candidate_in_words(t.candidate),
            formats.number(t.samples_per_s),
            remark,
        )
    terminal.out.print(table)
    mattered = importances(tuning.tried)
    shares = ", ".join(f"{name} {share:.0%}" for name, share in mattered.shares.items())
    sentence = f"{shares}. {mattered.sentence}" if shares else mattered.sentence
    terminal.out.print(f"hyperparameter importances: {sentence}", soft_wrap=True)
    terminal.out.print(tuning.sentence, soft_wrap=True)
    if tuning.enough:
        terminal.out.print(tuning.command, soft_wrap=True)


def tuning_object(tuning: Tuning) -> dict[str, Any]:
    """Returns the result of a search as plain values for JSON."""

    def tried(t: Tried) -> dict[str, Any]:
        own = {"rung": t.rung, "run_id": t.run_id, "samples_per_s": json_number(t.samples_per_s), "error": t.error}
        return vars(t.candidate) | own

    return {
        "strategy": tuning.strategy,
        "default": vars(tuning.default),
        "winner": vars(tuning.winner),
        "samples_per_s": json_number(tuning.samples_per_s),
        "gain": json_number(tuning.gain.value),
        "gain_low": json_number(tuning.gain.low),
        "gain_high": json_number(tuning.gain.high),
        "verified": tuning.verified,
        "simulated": is_simulated(tuning.config.device),
        "seconds": tuning.seconds,
        "n_candidates": tuning.n_candidates,
        "command": tuning.command,
        "sentence": tuning.sentence,
        "config": tuning.config.to_dict(),
        "importances": dict(importances(tuning.tried).shares),
        "tried": [tried(t) for t in tuning.tried],
    }
