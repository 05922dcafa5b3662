"""The one recommended setting and its reason."""

from __future__ import annotations

import math

from tournament_entries import entry

from vitprof.analysis.tournament import Entry, Recommendation, leaderboard, recommend

GIB = 2.0**30


def of(*made: Entry) -> Recommendation:
    found = recommend(leaderboard(made, baseline=made[0].key, n_train=0))
    assert found is not None
    return found


def test_the_fastest_where_nothing_ties_with_it() -> None:
    found = of(entry("base", 1000), entry("a", 4000, workers=2), entry("b", 2000))
    assert found.key == "a/b64/w2/as-is"
    assert found.ties == ()
    assert found.sentence.startswith("Use a, batch 64, 2 workers: 4,0")
    assert "times that of base, batch 64 (3." in found.sentence or "times that of base, batch 64 (4." in found.sentence
    assert "3 runs)." in found.sentence
    assert "batch size" not in found.sentence


def test_of_those_that_tie_the_cheapest() -> None:
    base = entry("base", 1000, rss_peak_bytes=GIB)
    ram = entry("ram", 4000, rss_peak_bytes=8 * GIB)
    disk = entry("disk", 4000, rss_peak_bytes=GIB, disk=5 * GIB, prepare_s=60.0)
    many = entry("many", 4000, rss_peak_bytes=1.05 * GIB, workers=8)
    few = entry("few", 4000, rss_peak_bytes=1.05 * GIB, workers=2)
    found = of(base, ram, disk, many, few)
    assert found.key == few.key
    assert set(found.ties) == {ram.key, disk.key, many.key}
    assert "cannot be told from" in found.sentence
    for words in ("memory (1.00 GiB against up to 8.00 GiB)", "disk (0 B against up to 5.00 GiB)", "workers (2"):
        assert words in found.sentence
    assert "base" not in found.sentence.partition("cannot be told")[2]


def test_alike_in_all_costs_the_faster_and_unknown_costs_last() -> None:
    found = of(entry("base", 1000), entry("a", 4000), entry("b", 4000, seed=3))
    assert "none costs clearly less" in found.sentence
    known = entry("known", 4000, rss_peak_bytes=9 * GIB)
    unknown = entry("unknown", 4000, disk=math.nan)
    assert of(entry("base", 1000), unknown, known).key == known.key
    assert "more; " in of(entry("base", 1), *(entry(f"s{i}", 4000, seed=i, noise=0) for i in range(6))).sentence


def test_the_baseline_is_kept_where_nothing_is_faster() -> None:
    found = of(entry("base", 1000), entry("a", 500))
    assert found.sentence.startswith("Keep base, batch 64, the baseline, at ")
    assert "nothing that was tried is faster" in found.sentence


def test_what_a_reader_has_to_know() -> None:
    found = of(entry("base", 1000), entry("a", 4000, batch_size=512, runs=1))
    assert "changes how the model learns" not in of(entry("base", 1000), entry("a", 4000)).sentence
    assert "also changes how the model learns" in found.sentence
    assert "With one run of a setting" in found.sentence
    lost = of(entry("base", 1000, runs=0), entry("a", 4000))
    assert "no figures to compare with" in lost.sentence


def test_failed_settings_are_never_recommended() -> None:
    found = of(entry("base", 1000), entry("a", 9000, status="failed"))
    assert found.key == "base/b64/w-/as-is"
    none = leaderboard([entry("base", 1, runs=0)], baseline="base/b64/w-/as-is", n_train=0)
    assert recommend(none) is None
