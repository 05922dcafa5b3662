"""One truth: table, sentence, store, list and CSV say the same of a tournament in which much went wrong."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter

from tests.ui.dashboard import add_run, app, said
from tests.ui.tournaments import DEVICE, KEYS, add_tournament
from vitprof.analysis.tournament import recommend
from vitprof.experiments.tournament.tournament_view import TournamentView
from vitprof.export.tournament import tournament_csv
from vitprof.recording.columns import TELEMETRY_COLUMNS
from vitprof.store import RunStore
from vitprof.store.groups import read_role, role_of


def test_page_store_list_and_downloads_say_the_same(store: RunStore) -> None:
    """A tournament with a round that others spoiled, a run left half done, a failed setting and added rounds."""
    number = add_tournament(store, {"per-sample": 0.02, "memory": 0.001}, failed="tensordataset")
    group = f"tournament:{number}"

    def made(strategy: str, round_: int, wait_s: float, *, status: str = "done", others: bool = False) -> None:
        role = role_of(KEYS[strategy], round_)
        run_id = add_run(
            store, wait_s=wait_s, group_key=group, role=role, strategy=strategy, device=DEVICE, status=status
        )
        busy = {"t_s": 100.2, "cpu_pct": 100.0 if others else 25.0, "job_cpu_pct": 100.0}
        store.append_telemetry(run_id, 1, [[busy.get(name, float("nan")) for name in TELEMETRY_COLUMNS]])

    for round_ in (3, 4, 5):  # added
        made("per-sample", round_, 0.02)
        made("memory", round_, 0.00099)  # the best: what others took then is known
    made("memory", 6, 0.02, others=True)
    made("per-sample", 6, 0.02, status="interrupted")
    made("per-sample", 6, 0.02)
    for run in store.runs(group_key=group):
        store.update_run(run.id, environment={"cpu_count": 4})
    per_setting = Counter(read_role(run.role)[0] for run in store.runs(group_key=group))
    at = app("tournament", tournament=str(number))
    frame = at.dataframe[0].value
    runs = dict(zip(frame["Setting"], frame["Runs"], strict=True))
    assert runs == {
        "memory, batch 128": "5 of 6",
        "per-sample, batch 128": "6 of 7",
        "tensordataset, batch 128": "0 of 1",
    }
    assert [per_setting[KEYS[name.partition(",")[0]]] for name in runs] == [6, 7, 1]
    assert "Done: 14 runs" in said(at)
    assert "memory, batch 128: round 6 not counted: other programs used 3.0 CPU cores" in said(at)
    (times,) = re.findall(r"([\d.]+) times that of per-sample, batch 128 \(([\d.]+) to ([\d.]+), 5 runs", said(at))
    assert frame["Speed-up"][0] == f"{times[0]}x ({times[1]}-{times[2]})"
    assert (frame["Rank"][0], frame["vs baseline"][0], frame["Result"][0]) == (1, "faster", "★ recommended")
    throughput = frame["Samples/s"][0].partition(" ")[0]
    assert f"Use memory, batch 128: {throughput} samples/s" in said(at)
    view = TournamentView(store, number)
    now = view.look()
    best = recommend(view.board(now))
    (row,) = [
        r
        for r in csv.DictReader(io.StringIO(tournament_csv(now.tournament, view.board(now), (), best)))
        if r["recommended"] == "true"
    ]
    assert (row["key"], row["rank"], f"{row['n_runs']} of {row['n_made']}", row["against_baseline"]) == (
        KEYS["memory"],
        "1",
        "5 of 6",
        "faster",
    )
    assert f"recommended: memory, batch 128, {throughput} samples/s" in said(app("tournament"))
