"""A tournament's results as a CSV file, a JSON object, and a table for a README."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vitprof import formats
from vitprof.analysis.tournament import (
    BreakEven,
    Leaderboard,
    LeaderboardRow,
    Recommendation,
    article_table,
)
from vitprof.config.accelerators import is_simulated
from vitprof.config.own_script import code_line
from vitprof.export.csv import csv_text
from vitprof.recording.columns import SCHEMA_VERSION, json_number
from vitprof.store.tournaments import StoredTournament

FIGURES = (
    "n_runs",
    "n_steps",
    "samples_per_s",
    "low",
    "high",
    "speed_up",
    "speed_up_low",
    "speed_up_high",
    "against_baseline",
    "standing",
    "near_best",
    "epoch_s",
    "epoch_low",
    "epoch_high",
    "gpu_mem_bytes",
    "gpu_util_pct",
    "device_idle_frac",
    "rss_bytes",
)
"""Fields of a row of the leaderboard."""
WITH_UNITS = {
    "low": "samples_per_s_low",
    "high": "samples_per_s_high",
    "epoch_low": "epoch_s_low",
    "epoch_high": "epoch_s_high",
}
"""Fields of `FIGURES` whose names need their unit outside a row of the leaderboard."""
SETTING = ("strategy", "batch_size", "workers", "page_cache", "status", "reason")
COSTS = ("prepare_s", "disk_bytes", "ram_bytes")
TOURNAMENT_HEADER = (
    "tournament_id",
    "tournament",
    "rank",
    "key",
    *SETTING,
    "baseline",
    "recommended",
    "n_made",
    *(WITH_UNITS.get(name, name) for name in FIGURES),
    *COSTS,
    "break_even_epochs",
    "break_even_epochs_low",
    "break_even_epochs_high",
    "dataset",
    "device",
    "schema_version",
    "simulated",
    "losses",
)


def _values(
    found: StoredTournament, board: Leaderboard, pays: Iterable[BreakEven], best: Recommendation | None
) -> Iterable[dict[str, Any]]:
    paying = {p.key: p for p in pays}
    base = found.spec.base
    for row in board.rows:
        pay = paying.get(row.key)
        yield {
            "tournament_id": found.id,
            "tournament": found.name,
            "rank": row.rank,
            "key": row.key,
            **{name: getattr(row.entry, name) for name in SETTING},
            "baseline": row.key == board.baseline,
            "recommended": best is not None and row.key == best.key,
            "n_made": row.entry.n_made,
            **{WITH_UNITS.get(name, name): _figure(row, name) for name in FIGURES},
            **{name: getattr(row.entry, name) for name in COSTS},
            "break_even_epochs": pay.epochs if pay else None,
            "break_even_epochs_low": pay.low if pay else None,
            "break_even_epochs_high": pay.high if pay else None,
            "dataset": base.dataset,
            "device": base.device,
            "schema_version": SCHEMA_VERSION,
            "simulated": is_simulated(base.device),
            "losses": row.entry.losses or None,
        }


def _figure(row: LeaderboardRow, name: str) -> Any:
    return getattr(row, name) if row.n_runs or name in ("n_runs", "n_steps") else None


def tournament_csv(
    found: StoredTournament, board: Leaderboard, pays: Iterable[BreakEven] = (), best: Recommendation | None = None
) -> str:
    """Returns a CSV file with a row for each trial, the ranked ones first; those that did not run have a reason."""
    rows = _values(found, board, pays, best)
    return csv_text(TOURNAMENT_HEADER, ([row[name] for name in TOURNAMENT_HEADER] for row in rows))


def tournament_object(
    found: StoredTournament, board: Leaderboard, pays: Iterable[BreakEven] = (), best: Recommendation | None = None
) -> dict[str, Any]:
    """Returns the results as plain values for JSON; None for what is not available."""
    pays = tuple(pays)
    shared = ("tournament_id", "tournament", "dataset", "device", "schema_version", "simulated")
    sentences = {p.key: p.sentence for p in pays}
    trials = []
    for row in _values(found, board, pays, best):
        own = {n: json_number(v) if isinstance(v, float) else v for n, v in row.items() if n not in shared}
        trials.append(own | {"break_even": sentences.get(row["key"])})
    return {
        "schema_version": SCHEMA_VERSION,
        "tournament_id": found.id,
        "name": found.name,
        "created_utc": found.created_utc,
        "status": found.status,
        "note": found.note,
        "simulated": is_simulated(found.spec.base.device),
        "spec": found.spec.to_dict(),
        "baseline": board.baseline,
        "best": board.best,
        "recommendation": _recommended(best, found) if best else None,
        "trials": trials,
    }


def _recommended(best: Recommendation, found: StoredTournament) -> dict[str, Any]:
    plain: dict[str, Any] = {"key": best.key, "sentence": best.sentence, "equals": list(best.equals)}
    if found.spec.script is not None:
        plain |= {"code": code_line(found.spec.script, best.key or "") or None}
    return plain | {"probability": json_number(best.probability)}


def tournament_markdown(found: StoredTournament, board: Leaderboard, best: Recommendation | None = None) -> str:
    """Returns the article's table: seconds for an epoch, GPU memory and GPU-util by batch size, in Markdown."""
    table = article_table(board)
    where = f"{found.spec.base.dataset}, device {found.spec.base.device}"
    simulated = " (simulated)" if is_simulated(found.spec.base.device) else ""
    lines = [
        f"Seconds for an epoch (95% interval) on {where}{simulated}; {found.spec.repeats} rounds.",
        "",
        "| setting | " + " | ".join(f"batch {n:,}" for n in table.batch_sizes) + " |",
        "|---" * (len(table.batch_sizes) + 1) + "|",
    ]
    lines += [f"| {_cell_text(t.name)} | " + " | ".join(map(_cell, t.cells)) + " |" for t in table.lines]
    return "\n".join([*lines, "", *([best.sentence] if best else [])]).rstrip() + "\n"


def _cell(cell: LeaderboardRow | None) -> str:
    if cell is None:
        return ""
    if cell.epoch_s != cell.epoch_s:
        return _cell_text(f"{cell.entry.status}: {cell.entry.reason}" if cell.entry.reason else cell.entry.status)
    said = [
        f"{formats.seconds(cell.epoch_s)} ({formats.seconds(cell.epoch_low)} to {formats.seconds(cell.epoch_high)})"
    ]
    if cell.epoch_low != cell.epoch_low:
        said = [formats.seconds(cell.epoch_s)]
    if cell.gpu_mem_bytes == cell.gpu_mem_bytes:
        said.append(formats.size(cell.gpu_mem_bytes))
    if cell.gpu_util_pct == cell.gpu_util_pct:
        said.append(f"GPU-util {formats.percent(cell.gpu_util_pct / 100)}")
    if cell.entry.status == "cut":
        said.append("cut short")
    return ", ".join(said)


def _cell_text(text: str) -> str:
    """Returns `text` for a cell of a Markdown table."""
    return text.replace("|", "\\|").replace("\n", " ")
