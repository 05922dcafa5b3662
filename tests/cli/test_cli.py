"""The command line as a whole: usage, help, and what goes wrong outside of any command."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.command_line import Call, one_line
from vitprof import cli
from vitprof.config import RunConfig
from vitprof.store import RunStore


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["run", "--xyzzy"], "No such option: --xyzzy. See 'python -m vitprof run --help'"),
        (["run", "--batch-size"], "Option '--batch-size' requires an argument. See 'python -m vitprof run --help'"),
        (["run", "--json=yes"], "Option '--json' does not take a value"),
        (["run", "spare"], "extra argument"),
        (["frobnicate"], "No such command 'frobnicate'. See 'python -m vitprof --help'"),
        (["export", "1", "--format", "xml"], "--format xml: choose one of csv, steps-csv, parquet"),
        (["export", "1", "--format", "parquet"], "--format parquet: a terminal cannot show it; give --output"),
        (["export", "1", "--csv", "x.csv", "--output", "y"], "--csv x.csv: it names file and format"),
        (["export", "1", "--output", "/no/such/x"], "--output /no/such/x: there is no directory /no/such"),
        (["export", "--csv", "x.csv"], "Missing argument 'RUN'"),
        (["bundle", "1", "-o", "/"], "--output /: it is a directory; give a file"),
        (["delete", "1e3"], "RUN 1e3: give a whole number"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_understood_is_one_line(call: Call, args: list[str], named: str) -> None:
    assert named in one_line(call, *args)


def test_home_that_cannot_be_written_to(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("VITPROF_HOME", str(tmp_path / "file"))
    for args in (["runs"], ["run", "--strategy", "memory"], ["run", "--strategy", "memory", "--json"]):
        err = one_line(call, *args, status=1)
        assert err.startswith(f"vitprof: cannot write to {tmp_path / 'file'}: ")
        assert err.endswith("set VITPROF_HOME to a directory that can be written to\n")


def test_a_database_that_is_none(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITPROF_DB", "nonsense")
    assert "VITPROF_DB" in one_line(call, "runs", status=1)


def test_interrupted_where_nothing_runs(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RunStore, "count_runs", interrupted)
    assert call("runs") == (130, "", "vitprof: interrupted\n")


def test_a_terminal_that_cannot_show_a_character(mine: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    mine.create_run(RunConfig(name="50 µs"))
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii", write_through=True))
    monkeypatch.setattr(sys, "argv", ["vitprof", "runs"])
    cli.main()
    assert rb"50 \xb5s" in shown.getvalue()


@pytest.mark.slow
def test_a_reader_that_has_gone() -> None:
    root = str(ROOT)
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing) as gone:
        ended = subprocess.run(
            [sys.executable, "-m", "vitprof", "strategies", "--json"],
            check=False,
            stdout=gone,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": root},
        )
    assert (ended.returncode, ended.stderr) == (1, b"")
