"""`export`: every format from the command line, to a file or to standard output."""

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from tests.cli.json_objects import told as read_json
from tests.ui.dashboard import add_run
from vitprof import cli
from vitprof.cli.export import FORMATS
from vitprof.store import RunStore

Call = Callable[..., tuple[int, bytes, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Call:
    """Run `export` here: (exit status, bytes of standard output, standard error)."""
    store = RunStore()
    add_run(store, n=30, name="first ü")
    add_run(store, n=3)
    store.close()

    def run(*args: str) -> tuple[int, bytes, str]:
        monkeypatch.setattr(sys, "argv", ["vitprof", "export", *args])
        try:
            cli.main()
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0
        out, err = capfdbinary.readouterr()
        return status, out, err.decode()

    return run


@pytest.mark.slow
def test_every_format_makes_its_file(call: Call, tmp_path: Path) -> None:
    for kind in FORMATS:
        target = tmp_path / f"{kind}.out"
        assert call("1", "2", "--format", kind, "--output", str(target)) == (0, b"", ""), kind
    assert len(pd.read_csv(tmp_path / "csv.out")) == len(pd.read_parquet(tmp_path / "parquet.out")) == 2
    assert len(pd.read_csv(tmp_path / "steps-csv.out")) == len(pd.read_parquet(tmp_path / "steps-parquet.out")) == 33
    assert read_json("export", (tmp_path / "json.out").read_text())["runs"][0]["steps"] is None
    assert len(read_json("export", (tmp_path / "steps-json.out").read_text())["runs"][0]["steps"]["step"]) == 30
    assert (tmp_path / "html.out").read_text().startswith("<!DOCTYPE html>")
    assert json.loads((tmp_path / "trace.out").read_text())["traceEvents"]
    assert len(list((tmp_path / "tensorboard.out").iterdir())) == 2


def test_text_goes_to_standard_output_as_it_would_to_a_file(call: Call, tmp_path: Path) -> None:
    target = tmp_path / "x.csv"
    for args in (["--format", "csv", "--steps"], ["--format", "steps-csv"], ["--steps"]):
        status, out, _ = call("1", *args)
        assert (status, call("1", *args, "--output", str(target))[0], out) == (0, 0, target.read_bytes())
        assert "first ü".encode() in out
    assert json.loads(call("1", "--format", "trace")[1])["traceEvents"]


def test_a_trace_is_compressed_where_its_name_says_so(call: Call, tmp_path: Path) -> None:
    target = tmp_path / "x.json.gz"
    assert call("1", "--format", "trace", "--output", str(target))[0] == 0
    assert json.loads(gzip.decompress(target.read_bytes()))["traceEvents"]
