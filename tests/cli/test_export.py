"""`export`: every format, to a file or to standard output; `bundle` and `import`: runs as one file, to another home."""

import functools
import gzip
import json
from pathlib import Path

import pandas as pd
import pytest

from tests.cli.json_objects import told as read_json
from tests.cli.stored_runs import add, ids
from tests.command_line import Call, one_line, succeeds
from tests.store.test_nodes import made
from tests.ui.dashboard import add_run
from vitprof.cli.export import FORMATS
from vitprof.export.bundle import bundle_bytes
from vitprof.home import home
from vitprof.store import RunStore


@pytest.fixture
def export(call: Call, mine: RunStore) -> Call:
    """Exports of two runs."""
    add_run(mine, n=30, name="first ü")
    add_run(mine, n=3)
    return functools.partial(call, "export")


def test_every_format_makes_its_file(export: Call, tmp_path: Path) -> None:
    for kind in FORMATS:
        target = tmp_path / f"{kind}.out"
        assert export("1", "2", "--format", kind, "--output", str(target)) == (0, "", ""), kind
    assert (
        len(pd.read_csv(tmp_path / "csv.out"))
        == len(pd.read_parquet(tmp_path / "parquet.out"))
        == 2
    )
    assert (
        len(pd.read_csv(tmp_path / "steps-csv.out"))
        == len(pd.read_parquet(tmp_path / "steps-parquet.out"))
        == 33
    )
    assert read_json("export", (tmp_path / "json.out").read_text())["runs"][0]["steps"] is None
    assert (
        len(
            read_json("export", (tmp_path / "steps-json.out").read_text())["runs"][0]["steps"][
                "step"
            ]
        )
        == 30
    )
    assert (tmp_path / "html.out").read_text().startswith("<!DOCTYPE html>")
    assert json.loads((tmp_path / "trace.out").read_text())["traceEvents"]


def test_the_name_of_a_file_says_its_format(export: Call, tmp_path: Path) -> None:
    as_json = tmp_path / "runs.json"
    export("1", "--output", str(as_json))
    assert json.loads(as_json.read_text())["runs"][0]["run_id"] == 1
    plain = tmp_path / "runs"
    export("1", "--output", str(plain))
    assert plain.read_text().startswith("run_id,"), "without an end it is a table"


def test_text_goes_to_standard_output_as_it_would_to_a_file(export: Call, tmp_path: Path) -> None:
    target = tmp_path / "x.csv"
    for args in (["--format", "csv", "--steps"], ["--format", "steps-csv"], ["--steps"]):
        status, out, _ = export("1", *args)
        assert (status, export("1", *args, "--output", str(target))[0], out.encode()) == (
            0,
            0,
            target.read_bytes(),
        )
        assert "first ü" in out
    assert json.loads(export("1", "--format", "trace")[1])["traceEvents"]


def test_a_trace_is_compressed_where_its_name_says_so(export: Call, tmp_path: Path) -> None:
    target = tmp_path / "x.json.gz"
    assert export("1", "--format", "trace", "--output", str(target))[0] == 0
    assert json.loads(gzip.decompress(target.read_bytes()))["traceEvents"]


def test_what_cannot_be_bundled_or_imported_is_one_line(
    call: Call, mine: RunStore, tmp_path: Path
) -> None:
    running = add(mine, status="running")
    file = tmp_path / "x.vitprof"
    for run, why in ((running, f"run {running} is still going on"), (7, "there is no run 7")):
        assert why in one_line(call, "bundle", str(run), "-o", str(file), status=1)
        assert not file.exists()
    file.write_bytes(b"#!/bin/sh\nrm -rf /\n")
    for path, why in (
        (file, "not a file of runs"),
        (tmp_path / "none", "No such file"),
        (home(), "cannot be read"),
    ):
        assert why in one_line(call, "import", str(path), status=1)
    assert len(mine.runs()) == 1


def test_a_bundle_goes_elsewhere(
    call: Call, mine: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        add(mine)
    file = tmp_path / "two.vitprof"
    out = succeeds(call, "bundle", "1", "2", "--output", str(file))
    assert f"import it with python -m vitprof import {file}" in " ".join(out.split())
    assert call("import", str(file))[1] == "here already: runs 1, 2\n"
    monkeypatch.setenv("VITPROF_HOME", str(tmp_path / "elsewhere"))
    assert call("import", str(file)) == (0, "2 runs imported as runs 1, 2\n", "")
    out = call("import", str(file), "--json")[1]
    assert [(r["run_id"], r["already_here"]) for r in read_json("import", out)["runs"]] == [
        (1, True),
        (2, True),
    ]
    assert ids(call) == [2, 1]


def test_without_a_terminal_runs_that_may_be_of_one_job_stay_apart(
    call: Call, mine: RunStore, tmp_path: Path
) -> None:
    elsewhere = RunStore(f"sqlite:///{tmp_path / 'elsewhere.sqlite'}")
    file = tmp_path / "node.vitprof"
    file.write_bytes(bundle_bytes(elsewhere, [made(elsewhere, 2, host="b")]))
    elsewhere.close()
    whole = made(mine, 0)
    status, out, err = call("import", str(file))
    assert (status, out) == (0, "1 run imported as run 2\n")
    said, what_to_do = err.splitlines()
    assert f"run 2 may be of the job of run {whole}: their address and port are the same" in said
    assert what_to_do.endswith(f"import {file} --join")
    status, out, err = call("import", str(file), "--join")
    assert (status, err) == (0, "")
    assert f"run {whole} has the ranks of 2 commands" in out
    assert ids(call) == [whole]
