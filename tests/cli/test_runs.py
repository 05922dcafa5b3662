"""`runs`: searched, filtered and paged as on the History page; `delete`: one that is there and has ended."""

import csv
import re
import socket
from pathlib import Path

import pytest

from tests.cli.json_objects import told as read_json
from tests.cli.stored_runs import add, ids
from tests.command_line import Call, one_line, succeeds
from vitprof.config import RunConfig
from vitprof.recording.columns import SCHEMA_VERSION, STEP_COLUMNS
from vitprof.store import RunStore
from vitprof.store.database import now_utc


def test_empty(call: Call) -> None:
    assert "no runs; " in succeeds(call, "runs")
    assert read_json("runs", call("runs", "--json")[1]) == {
        "schema_version": SCHEMA_VERSION,
        "runs": [],
    }


def test_one_run_is_shown(call: Call, mine: RunStore) -> None:
    run = add(mine, 1234.0, name="the one")
    mine.update_run(run, error="it broke", notices=["beside another"])
    out = succeeds(call, "runs", str(run))
    assert "the one" in out
    assert out.endswith("beside another\nit broke\n")
    assert read_json("runs-one", call("runs", str(run), "--json")[1])["name"] == "the one"
    one_line(call, "runs", "99", status=1)


def test_runs_are_filtered_sorted_and_paged(call: Call, mine: RunStore) -> None:
    slow, fast = add(mine, 10.0), add(mine, 1000.0, strategy="memory", status="failed")
    middle = add(
        mine, 100.0, strategy="memory", name="the one in the middle", device="simulated:5,0"
    )
    mine.tag(middle, ["kept"])
    mine.update_run(slow, verdict={"kind": "input-bound"})
    assert (ids(call), ids(call, "--ascending")) == ([middle, fast, slow], [slow, fast, middle])
    assert ids(call, "--sort", "samples_per_s") == [fast, middle, slow]
    assert ids(call, "--strategy", "memory", "--status", "done") == [middle]
    assert ids(call, "--strategy", "memory", "--strategy", "per-sample") == [middle, fast, slow]
    assert ids(call, "--verdict", "input-bound") == ids(call, "--text", f"#{slow}") == [slow]
    assert (
        ids(call, "--tag", "kept")
        == ids(call, "--text", "MIDDLE one")
        == ids(call, "--device", "simulated:5,0")
    )
    assert (ids(call, "--dataset", "photos"), ids(call, "--limit", "2")) == ([], [middle, fast])
    assert ids(call, "--limit", "2", "--page", "2") == [slow]
    out = call("runs", "--limit", "2")[1]
    assert "1 to 2 of 3 runs; --limit and --page show others" in out
    assert "the one in the middle (simulated)" in out
    assert "kept" in out
    assert "there is no page 3: 3 runs, 2 a page" in call("runs", "--limit", "2", "--page", "3")[1]
    assert "no runs; " in call("runs", "--text", "nothing like it")[1]


def test_runs_made_for_another_are_listed_when_asked_for(call: Call, mine: RunStore) -> None:
    own = add(mine)
    helper = mine.create_run(RunConfig(), group_key=f"headroom:{own}", role="A")
    mine.update_run(helper, status="done")
    assert (ids(call), ids(call, "--helpers")) == ([own], [helper, own])


def test_two_are_listed_exported_and_one_deleted(
    call: Call, mine: RunStore, tmp_path: Path
) -> None:
    for name, batch_size in (("first", 50), ("second", 100)):
        add(mine, name=name, batch_size=batch_size)
    out = succeeds(call, "runs")
    assert out.index("second") < out.index("first")
    assert out.count("done") == 2
    target = tmp_path / "both.csv"
    assert call("export", "1", "2", "--csv", str(target)) == (0, "", "")
    assert [(r["run_id"], r["batch_size"]) for r in csv.DictReader(target.open())] == [
        ("1", "50"),
        ("2", "100"),
    ]
    assert call("export", "1", "2", "--csv", str(target), "--steps") == (0, "", "")
    steps = list(csv.DictReader(target.open()))
    assert list(steps[0]) == ["run_id", "name", *STEP_COLUMNS, "simulated"]
    assert [(r["run_id"], r["step"]) for r in steps] == [
        (i, str(n)) for i in "12" for n in range(3)
    ]
    assert [p.name for p in tmp_path.iterdir() if p.suffix in (".csv", ".tmp")] == ["both.csv"]
    assert call("delete", "1") == (0, "", "")
    assert (ids(call), call("delete", "1")[0]) == ([2], 1)
    assert call("restore", "1") == (0, "", "")
    assert ids(call) == [2, 1]
    assert call("restore", "1") == (1, "", "vitprof: there is no deleted run 1\n")
    assert call("delete", "1") == (0, "", "")
    assert call("prune") == (0, "0 runs erased\n", "")
    assert call("prune", "--keep-days", "0") == (0, "1 run erased\n", "")
    assert call("restore", "1")[0] == 1


def test_old_runs_are_erased_when_asked_to(call: Call, mine: RunStore) -> None:
    young, old = (mine.create_run(RunConfig()) for _ in range(2))
    mine.update_run(young, status="done")
    mine.update_run(old, status="done", created_utc=now_utc(92))
    for wrong in (
        ("--keep", "90"),
        ("--keep", "d"),
        ("--keep", "99999d"),
        ("--all",),
        ("--dry-run",),
    ):
        status, out, err = call("prune", *wrong)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert wrong[0] in err
    assert call("prune", "--keep", "13w", "--dry-run")[1].startswith(
        "would erase 1 run: 0 B made before "
    )
    assert ids(call) == [old, young]
    assert re.fullmatch(
        r"1 run made before \S+ erased: 0 B\n", succeeds(call, "prune", "--keep", "90d")
    )
    assert ids(call) == [young]


def test_who_made_a_run_and_where_is_said_where_that_differs(
    call: Call, mine: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITPROF_PROJECT", "vit")
    for user in ("ada", "bob"):
        monkeypatch.setenv("VITPROF_USER", user)
        mine.update_run(mine.create_run(RunConfig()), status="done")
    out = succeeds(call, "runs")
    assert [f"{user}@{socket.gethostname()}" in out for user in ("ada", "bob")] == [True, True]
    out = succeeds(
        call, "runs", "--user", "ada", "--project", "vit", "--host", socket.gethostname()
    )
    assert ("@" in out, "done" in out) == (False, True)
    assert "no runs" not in out
    assert "there is no page" not in succeeds(call, "runs", "--project", "other")


def test_only_a_run_whose_program_is_gone_is_interrupted_and_can_be_deleted(
    call: Call, mine: RunStore
) -> None:
    gone, going_on = mine.create_run(RunConfig()), mine.create_run(RunConfig())
    mine.update_run(gone, owner_started=1.0)
    shown = read_json("runs", call("runs", "--json")[1])["runs"]
    assert [run["status"] for run in shown] == ["queued", "interrupted"]
    assert call("delete", str(gone)) == (0, "", "")
    said = f"vitprof: run {going_on} is still going on; stop it first\n"
    assert call("delete", str(going_on)) == (1, "", said)
    assert ids(call) == [going_on]
