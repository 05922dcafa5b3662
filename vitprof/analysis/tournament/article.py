"""The table of the article on whole data sets in memory: epoch seconds, GPU memory and GPU-util by batch size."""

from __future__ import annotations

from dataclasses import dataclass

from vitprof.analysis.tournament.entries import Status, setting_in_words
from vitprof.analysis.tournament.rows import Leaderboard, LeaderboardRow


@dataclass(frozen=True)
class ArticleCell:
    """A setting at one batch size. NaN where there is no figure; `status` and `reason` then say why."""

    key: str
    status: Status
    reason: str
    epoch_s: float
    """Seconds for an epoch."""
    low: float
    """Lower end of its interval."""
    high: float
    """Upper end of its interval."""
    gpu_mem_bytes: float
    gpu_util_pct: float
    samples_per_s: float
    speed_up: float
    against_baseline: str
    """See `LeaderboardRow.against_baseline`."""


@dataclass(frozen=True)
class ArticleLine:
    """A setting at all batch sizes."""

    name: str
    """The strategy, its workers and its page cache: "pt-memory, 2 workers, cold"."""
    cells: tuple[ArticleCell | None, ...]
    """In the order of the table's batch sizes; None where the setting was not part of the tournament."""


@dataclass(frozen=True)
class ArticleTable:
    """A table whose rows are settings and whose columns are batch sizes."""

    batch_sizes: tuple[int, ...]
    """Ascending."""
    lines: tuple[ArticleLine, ...]


def article_table(board: Leaderboard) -> ArticleTable:
    """Returns the leaderboard as the article prints it.

    Settings are in the order of their best rank, unranked ones last.
    """
    batches = tuple(sorted({row.entry.batch_size for row in board.rows}))
    lines: dict[tuple[str, int | None, str], dict[int, LeaderboardRow]] = {}
    for row in board.rows:  # the ranked ones come first, by rank
        entry = row.entry
        lines.setdefault((entry.strategy, entry.workers, entry.page_cache), {})[entry.batch_size] = row
    return ArticleTable(
        batches,
        tuple(
            ArticleLine(
                setting_in_words(next(iter(cells.values())).entry, batch=False),
                tuple(_cell(cells[batch]) if batch in cells else None for batch in batches),
            )
            for cells in lines.values()
        ),
    )


def _cell(row: LeaderboardRow) -> ArticleCell:
    return ArticleCell(
        key=row.key,
        status=row.entry.status,
        reason=row.entry.reason,
        epoch_s=row.epoch_s,
        low=row.epoch_low,
        high=row.epoch_high,
        gpu_mem_bytes=row.gpu_mem_bytes,
        gpu_util_pct=row.gpu_util_pct,
        samples_per_s=row.samples_per_s,
        speed_up=row.speed_up,
        against_baseline=row.against_baseline,
    )
