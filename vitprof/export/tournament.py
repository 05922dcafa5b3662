"""A tournament's results as a CSV file, a JSON object, and a table for a README."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, Literal

from vitprof import formats
from vitprof.analysis import faster_while_busy
from vitprof.analysis.tournament import entries
from vitprof.analysis.tournament.leaderboard import Leaderboard, LeaderboardRow, article_table
from vitprof.analysis.tournament.recommend import BreakEven, Recommendation
from vitprof.config.own_script import code_line
from vitprof.export.tables import csv_text
from vitprof.recording import codec, columns
from vitprof.store.tournaments import StoredTournament


@dataclasses.dataclass(frozen=True)
class TrialFigures:
    """A setting with its figures, which are null where it has none.

    Intervals hold with 95% in all looks together.
    """

    rank: int | None
    """1 for the fastest, shared by settings that are as fast (`standing` equal)."""
    key: str
    """The setting: strategy/b batch size/w workers (- for none)/page cache; for a user's own script
    own-script/ and the changed arguments of its DataLoader."""
    strategy: str
    """How samples are stored, loaded and brought to the device."""
    batch_size: int
    """Samples for each step."""
    workers: int | None
    """Worker processes or threads; null where the strategy has none."""
    page_cache: Literal["as-is", "warm", "cold"]
    """The system's cache of the files at the start."""
    status: entries.Status
    """Its state; cut: ended early by early stop."""
    reason: str
    """Why it was cut, failed or refused; else empty."""
    baseline: bool
    """Whether the others are compared with it."""
    recommended: bool
    """Whether it is the one setting to use."""
    n_made: int
    """Its runs in the store, including those that failed, were stopped or were disturbed by other
    programs."""
    n_runs: int
    """Runs behind the figures."""
    n_steps: int
    """Steady steps of these runs."""
    samples_per_s: float | None
    """All samples over all training time of these runs that other programs did not disturb, of
    whole epochs where each run began a second one: what settings are ranked by."""
    samples_per_s_low: float | None
    """Lower end of its interval."""
    samples_per_s_high: float | None
    """Upper end of its interval."""
    speed_up: float | None
    """samples_per_s over the baseline's."""
    speed_up_low: float | None
    """Lower end of its interval."""
    speed_up_high: float | None
    """Upper end of its interval."""
    against_baseline: faster_while_busy.Outcome | Literal[""] | None
    """faster, slower, equal (known to differ by less than 5%), undecided, or faster while busy: in
    all rounds, but other programs ran in them; empty for the baseline."""
    at_least: float | None
    """Where it is faster while busy: at least how many times as fast as the baseline, while other
    programs ran; on a quiet machine it may be less."""
    standing: str | None
    """The same against the fastest with its page cache; fastest for that one."""
    near_best: float | None
    """Probability that no other setting with its page cache is faster by more than 5%."""
    epoch_s: float | None
    """Seconds for an epoch: measured where all settings saw a whole one, else from the
    throughput."""
    epoch_s_low: float | None
    """Lower end of its interval."""
    epoch_s_high: float | None
    """Upper end of its interval."""
    gpu_mem_bytes: float | None
    """Peak device memory of the job: NVML's figure, or what PyTorch reserved where NVML has
    none."""
    gpu_util_pct: float | None
    """Mean of NVML's utilisation while training."""
    device_idle_frac: float | None
    """Share of the training time in which the device computed nothing."""
    rss_bytes: float | None
    """Peak resident memory of the job's processes."""
    prepare_s: float
    """Seconds that its storage took to build, 0 where it needs none."""
    disk_bytes: float
    """Disk space of its storage."""
    ram_bytes: float
    """RAM disk and memory for the samples that it keeps."""
    break_even_epochs: float | None
    """Epochs after which its preparation has paid for itself against the baseline; null for
    never."""
    break_even_epochs_low: float | None
    """Lower end, by the intervals of the epoch's seconds."""
    break_even_epochs_high: float | None
    """Upper end."""
    losses: str | None
    """For a user's own script: how the setting changes its losses; null where they are the same, or
    not known."""
    pixels: str | None
    """For a user's own script: how the pixels of another decoder compare with its own; null where the setting has
    none."""
    break_even: str | None
    """Break-even in words."""


OF_ROW = {
    "samples_per_s_low": "low",
    "samples_per_s_high": "high",
    "epoch_s_low": "epoch_low",
    "epoch_s_high": "epoch_high",
}
"""Fields of `TrialFigures` that have another name in a row of the leaderboard."""
ALWAYS = ("rank", "n_runs", "n_steps")
"""Fields of a row of the leaderboard that are known without runs."""
FIELDS = tuple(field.name for field in dataclasses.fields(TrialFigures))
COSTS_END = FIELDS.index("losses")
"""The CSV has the fields before it; "losses" is at its end, and those after it are not in it."""
TOURNAMENT_HEADER = (
    "tournament_id",
    "tournament",
    *FIELDS[:COSTS_END],
    "dataset",
    "device",
    "schema_version",
    "simulated",
    "losses",
)


def _trials(
    board: Leaderboard, pays: Iterable[BreakEven], best: Recommendation | None
) -> list[TrialFigures]:
    paying = {p.key: p for p in pays}
    return [_trial(row, board, paying.get(row.key), best) for row in board.rows]


def _trial(
    row: LeaderboardRow, board: Leaderboard, pay: BreakEven | None, best: Recommendation | None
) -> TrialFigures:
    values: dict[str, Any] = {
        "baseline": row.key == board.baseline,
        "recommended": best is not None and row.key == best.recommended,
        "at_least": None,
        "losses": row.entry.losses or None,
        "pixels": row.entry.pixels or None,
    }
    if row.while_busy is not None:  # known without a run that counts
        values["against_baseline"] = row.against_baseline
        values["at_least"] = row.while_busy.times
    if pay is not None:
        values |= {
            "break_even_epochs": pay.epochs,
            "break_even_epochs_low": pay.low,
            "break_even_epochs_high": pay.high,
            "break_even": pay.sentence,
        }
    for name in FIELDS:
        if name in values:
            continue
        # What describes the setting is in its entry; the figures are in the row, and null without
        # runs.
        figure = None
        if row.n_runs or name in ALWAYS:
            figure = getattr(row, OF_ROW.get(name, name), None)
        values[name] = getattr(row.entry, name, figure)
    return TrialFigures(**values)


def tournament_csv(
    tournament: StoredTournament,
    board: Leaderboard,
    pays: Iterable[BreakEven] = (),
    best: Recommendation | None = None,
) -> str:
    """Returns a CSV file with a row for each trial, the ranked ones first; those that did not run
    have a reason.
    """
    base = tournament.spec.base
    shared = {
        "tournament_id": tournament.id,
        "tournament": tournament.name,
        "dataset": base.dataset,
        "device": base.device,
        "schema_version": columns.SCHEMA_VERSION,
        "simulated": base.simulated,
    }
    trials = (shared | vars(trial) for trial in _trials(board, pays, best))
    rows = ([trial[name] for name in TOURNAMENT_HEADER] for trial in trials)
    return csv_text(TOURNAMENT_HEADER, rows)


def tournament_object(
    tournament: StoredTournament,
    board: Leaderboard,
    pays: Iterable[BreakEven] = (),
    best: Recommendation | None = None,
) -> dict[str, Any]:
    """Returns the results as plain values for JSON; None for what is not available."""
    listed = {"schema_version": columns.SCHEMA_VERSION, **listed_object(tournament)}
    return listed | {
        "baseline": board.baseline,
        "best": board.best,
        "recommendation": _recommended(best, tournament) if best else None,
        "trials": [codec.to_plain(trial) for trial in _trials(board, pays, best)],
    }


def listed_object(tournament: StoredTournament) -> dict[str, Any]:
    """Returns what a tournament runs, and its state."""
    same = {name: getattr(tournament, name) for name in ("name", "created_utc", "status", "note")}
    return {
        "tournament_id": tournament.id,
        **same,
        "simulated": tournament.spec.base.simulated,
        "spec": tournament.spec.to_dict(),
    }


def _recommended(best: Recommendation, tournament: StoredTournament) -> dict[str, Any]:
    plain: dict[str, Any] = codec.to_plain(best)
    plain["key"] = best.recommended
    if tournament.spec.script is not None:
        plain["code"] = code_line(tournament.spec.script, best.recommended or "") or None
    return plain


def tournament_markdown(
    tournament: StoredTournament, board: Leaderboard, best: Recommendation | None = None
) -> str:
    """Returns the article's table: seconds for an epoch, GPU memory and GPU-util by batch size, in
    Markdown.
    """
    table = article_table(board)
    where = f"{tournament.spec.base.dataset}, device {tournament.spec.base.device}"
    if tournament.spec.base.simulated:
        where += " (simulated)"
    header = ["setting", *(f"batch {n:,}" for n in table.batch_sizes)]
    lines = [
        f"Seconds for an epoch (95% interval) on {where}; {tournament.spec.repeats} rounds.",
        "",
        _markdown_row(header),
        "|".join(["", *("---" for _ in header), ""]),
    ]
    for line in table.lines:
        lines.append(_markdown_row([_cell_text(line.name), *map(_cell, line.cells)]))
    if best:
        lines += ["", best.sentence]
    return "\n".join(lines).rstrip() + "\n"


def _markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: LeaderboardRow | None) -> str:
    """Returns the figures of a setting, in one cell; why it has none, where it has none."""
    if cell is None:
        return ""
    if math.isnan(cell.epoch_s):
        why: str = cell.entry.status
        if cell.entry.reason:
            why += f": {cell.entry.reason}"
        return _cell_text(why)
    epoch = formats.seconds(cell.epoch_s)
    if not math.isnan(cell.epoch_low):
        epoch += f" ({formats.seconds(cell.epoch_low)} to {formats.seconds(cell.epoch_high)})"
    parts = [epoch]
    if not math.isnan(cell.gpu_mem_bytes):
        parts.append(formats.size(cell.gpu_mem_bytes))
    if not math.isnan(cell.gpu_util_pct):
        parts.append(f"GPU-util {formats.percent(cell.gpu_util_pct / 100)}")
    if cell.entry.status == "cut":
        parts.append("cut short")
    return ", ".join(parts)


def _cell_text(text: str) -> str:
    """Returns `text` for a cell of a Markdown table."""
    return text.replace("|", "\\|").replace("\n", " ")
