"""The command line for what the History page does: `runs` searched and paged, `bundle` and `import`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_line import Call
from vitprof.config import RunConfig
from vitprof.config.resolve import resolve
from vitprof.home import home
from vitprof.records import STEP_COLUMNS, RunSummary
from vitprof.store import RunStore


@pytest.fixture
def mine() -> Iterator[RunStore]:
    """The command line's own store."""
    opened = RunStore()
    yield opened
    opened.close()


def add(store: RunStore, speed: float = 100.0, *, status: str = "done", **config: object) -> int:
    run_id = store.create_run(resolve(RunConfig(**{"steps": 5, "device": "cpu", **config})))
    rows = [[float(step) if name in ("step", "t_start_s") else 0.0 for name in STEP_COLUMNS] for step in range(3)]
    store.append_steps(run_id, rows)
    summary = RunSummary(n_steps=3, samples_per_s=speed, device_idle_frac=0.25)
    store.update_run(run_id, status=status, summary=summary, t_origin_s=float(run_id))
    return run_id


def ids(call: Call, *args: str) -> list[int]:
    status, out, err = call("runs", "--json", *args)
    assert (status, err) == (0, "")
    return [run["run_id"] for run in json.loads(out)["runs"]]


def test_runs_are_filtered_sorted_and_paged(call: Call, mine: RunStore) -> None:
    slow, fast = add(mine, 10.0), add(mine, 1000.0, strategy="memory", status="failed")
    middle = add(mine, 100.0, strategy="memory", name="the one in the middle", device="simulated:5,0")
    mine.tag(middle, ["kept"])
    mine.update_run(slow, verdict={"kind": "input-bound"})
    assert ids(call) == [middle, fast, slow]
    assert ids(call, "--ascending") == [slow, fast, middle]
    assert ids(call, "--sort", "samples_per_s") == [fast, middle, slow]
    assert ids(call, "--strategy", "memory", "--status", "done") == [middle]
    assert ids(call, "--strategy", "memory", "--strategy", "per-sample") == [middle, fast, slow]
    assert ids(call, "--verdict", "input-bound") == ids(call, "--text", f"#{slow}") == [slow]
    assert ids(call, "--tag", "kept") == ids(call, "--text", "MIDDLE one") == ids(call, "--device", "simulated:5,0")
    assert ids(call, "--dataset", "photos") == []
    assert ids(call, "--limit", "2") == [middle, fast]
    assert ids(call, "--limit", "2", "--page", "2") == [slow]
    out = call("runs", "--limit", "2")[1]
    assert "1 to 2 of 3 runs; --limit and --page show others" in out
    assert "the one in the middle (simulated)" in out
    assert "kept" in out
    assert "there is no page 3: 3 runs, 2 a page" in call("runs", "--limit", "2", "--page", "3")[1]
    assert "no run matches" in call("runs", "--text", "nothing like it")[1]


def test_runs_made_for_another_are_listed_when_asked_for(call: Call, mine: RunStore) -> None:
    own = add(mine)
    helper = mine.create_run(RunConfig(), group_key=f"headroom:{own}", role="A")
    mine.update_run(helper, status="done")
    assert ids(call) == [own]
    assert ids(call, "--helpers") == [helper, own]


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["runs", "--limit", "0"], "--limit 0: give a whole number of at least 1"),
        (["runs", "--limit", "many"], "--limit many: give a whole number of at least 1"),
        (["runs", "--page", "-1"], "--page -1: give a whole number of at least 1"),
        (["runs", "--page", "99999999999999999999"], "--page 99999999999999999999: give a whole number of at least 1"),
        (["runs", "--sort", "size"], "--sort size: choose one of id, name, strategy, samples_per_s, idle_frac"),
        (["bundle", "one", "-o", "x"], "RUN one: give a whole number, as `runs` lists them"),
        (["bundle", "1", "-o", "/"], "--output /: it is a directory; give a file"),
        (["bundle", "1", "-o", "/no/such/x"], "--output /no/such/x: there is no directory /no/such"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_a_bad_value_is_one_line(call: Call, args: list[str], complaint: str) -> None:
    assert call(*args) == (2, "", f"vitprof: {complaint}\n")


def test_a_bundle_goes_to_another_home(
    call: Call, mine: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        add(mine)
    file = tmp_path / "two.vitprof"
    status, out, err = call("bundle", "1", "2", "--output", str(file))
    assert (status, err) == (0, "")
    assert f"python -m vitprof import {file} takes it in" in " ".join(out.split())
    assert call("import", str(file))[1] == "2 runs were here already: runs 1, 2\n"
    monkeypatch.setenv("VITPROF_HOME", str(tmp_path / "elsewhere"))
    assert call("import", str(file)) == (0, "2 runs imported as runs 1, 2\n", "")
    status, out, _ = call("import", str(file), "--json")
    assert [(r["run_id"], r["already_here"]) for r in json.loads(out)["runs"]] == [(1, True), (2, True)]
    assert ids(call) == [2, 1]


def test_what_cannot_be_bundled_or_imported_is_one_line(call: Call, mine: RunStore, tmp_path: Path) -> None:
    running = add(mine, status="running")
    file = tmp_path / "x.vitprof"
    for run, why in ((running, f"run {running} is still going on"), (7, "there is no run 7")):
        status, out, err = call("bundle", str(run), "-o", str(file))
        assert (status, out, err.count("\n")) == (1, "", 1)
        assert why in err
        assert not file.exists()
    file.write_bytes(b"#!/bin/sh\nrm -rf /\n")
    for path, why in ((file, "not a file of runs"), (tmp_path / "none", "No such file"), (home(), "cannot be read")):
        status, out, err = call("import", str(path))
        assert (status, out, err.count("\n")) == (1, "", 1)
        assert why in err
    assert len(mine.runs()) == 1
