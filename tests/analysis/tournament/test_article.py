"""The article's table."""

from __future__ import annotations

import math

import pytest

from tests.analysis.tournament.tournament_entries import entry
from vitprof.analysis.tournament import article_table, leaderboard


def test_rows_are_settings_and_columns_batch_sizes() -> None:
    slow = entry("per-sample", 1000, batch_size=1000)
    made = [
        entry("pt-memory", 9000, batch_size=1000, gpu_mem_peak_bytes=1.7e9, gpu_util_pct_mean=30.0),
        entry("pt-memory", 5000, batch_size=500),
        slow,
        entry("pt-memory", 8000, batch_size=1000, workers=2, page_cache="cold"),
        entry("hdf5", 100, batch_size=5000, runs=0, status="refused", reason="batch is larger than the set"),
    ]
    table = article_table(leaderboard(made, baseline=slow.key, n_train=60_000))
    assert table.batch_sizes == (500, 1000, 5000)
    assert [line.name for line in table.lines] == [
        "pt-memory",
        "pt-memory, 2 workers, cold cache",
        "per-sample",
        "hdf5",
    ]
    first = table.lines[0].cells
    assert [cell.key if cell else None for cell in first] == [made[1].key, made[0].key, None]
    assert first[1] is not None
    assert first[1].epoch_s == pytest.approx(60 / 9, rel=0.02)
    assert first[1].low < first[1].epoch_s < first[1].high
    assert (first[1].gpu_mem_bytes, first[1].gpu_util_pct) == (1.7e9, 30)
    assert first[1].speed_up == pytest.approx(9, rel=0.02)
    refused = table.lines[3].cells[2]
    assert refused is not None
    assert (refused.status, refused.reason) == ("refused", "batch is larger than the set")
    assert math.isnan(refused.epoch_s)
    assert table.lines[3].cells[:2] == (None, None)
