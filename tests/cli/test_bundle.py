"""`bundle` and `import`: runs as one file, to another home, or one line that says why not."""

from pathlib import Path

import pytest

from tests.cli.json_objects import told as read_json
from tests.cli.stored_runs import add, ids
from tests.command_line import Call, one_line, succeeds
from vitprof.home import home
from vitprof.store import RunStore


def test_what_cannot_be_bundled_or_imported_is_one_line(call: Call, mine: RunStore, tmp_path: Path) -> None:
    running = add(mine, status="running")
    file = tmp_path / "x.vitprof"
    for run, why in ((running, f"run {running} is still going on"), (7, "there is no run 7")):
        assert why in one_line(call, "bundle", str(run), "-o", str(file), status=1)
        assert not file.exists()
    file.write_bytes(b"#!/bin/sh\nrm -rf /\n")
    for path, why in ((file, "not a file of runs"), (tmp_path / "none", "No such file"), (home(), "cannot be read")):
        assert why in one_line(call, "import", str(path), status=1)
    assert len(mine.runs()) == 1


def test_a_bundle_goes_elsewhere(call: Call, mine: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        add(mine)
    file = tmp_path / "two.vitprof"
    out = succeeds(call, "bundle", "1", "2", "--output", str(file))
    assert f"import it with python -m vitprof import {file}" in " ".join(out.split())
    assert call("import", str(file))[1] == "here already: runs 1, 2\n"
    monkeypatch.setenv("VITPROF_HOME", str(tmp_path / "elsewhere"))
    assert call("import", str(file)) == (0, "2 runs imported as runs 1, 2\n", "")
    out = call("import", str(file), "--json")[1]
    assert [(r["run_id"], r["already_here"]) for r in read_json("import", out)["runs"]] == [(1, True), (2, True)]
    assert ids(call) == [2, 1]
