"""A tournament's form in the URL: numbers beyond what a tournament may have are left out and named."""

from __future__ import annotations

from vitprof.config.bounds import TOURNAMENT_BOUNDS
from vitprof.ui.tournament.url_codec import LIMIT_MIN, read_choices


def test_numbers_that_no_tournament_may_have_are_named_and_left_out() -> None:
    query = {
        "batch_sizes": "32,1000000000000,999999999",
        "worker_counts": "2,513",
        "trial": "1000000000000-steps",
        "repeats": "101",
        "limit": "1e8",
    }
    found = read_choices(query)
    told = found.pop("rejected")
    assert found == {"batch_sizes": [32], "workers": [2]}
    assert [line.partition(" cannot be")[0] for line in told] == [
        "Batch sizes: 1000000000000",
        "Batch sizes: 999999999",
        "Worker counts: 513",
        "Trial: 1000000000000-steps",
        "Repeats: 101",
        "Limit: 1e8",
    ]


def test_the_most_that_a_tournament_may_have_is_read() -> None:
    repeats = int(TOURNAMENT_BOUNDS["repeats"].most)
    found = read_choices({"repeats": str(repeats), "limit": str(LIMIT_MIN.most), "trial": "1-steps"})
    assert found == {"repeats": repeats, "limit": LIMIT_MIN.most, "budget": "steps", "steps": 1}
