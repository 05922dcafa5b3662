"""`import`: the runs of a file that `bundle` wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.json_objects import told as read_json
from tests.cli.stored_runs import add, ids
from tests.command_line import Call, succeeds
from vitprof.store import RunStore


def test_a_bundle_goes_elsewhere(call: Call, mine: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        add(mine)
    file = tmp_path / "two.vitprof"
    out = succeeds(call, "bundle", "1", "2", "--output", str(file))
    assert f"import it with python -m vitprof import {file}" in " ".join(out.split())
    assert call("import", str(file))[1] == "2 runs were here already: runs 1, 2\n"
    monkeypatch.setenv("VITPROF_HOME", str(tmp_path / "elsewhere"))
    assert call("import", str(file)) == (0, "2 runs imported as runs 1, 2\n", "")
    out = call("import", str(file), "--json")[1]
    assert [(r["run_id"], r["already_here"]) for r in read_json("import", out)["runs"]] == [(1, True), (2, True)]
    assert ids(call) == [2, 1]
