"""`vitprof.runs` and `vitprof.run`: which runs, what is wrong, and what is left behind (nothing)."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import vitprof
from tests import ROOT
from tests.ui.dashboard import add_run
from vitprof.errors import ConfigError, StoreError, VitprofError
from vitprof.program import install_command
from vitprof.store import RunStore


def ids(*args: Any, **filters: Any) -> list[int]:
    return [run.id for run in vitprof.runs(*args, **filters)]


@pytest.mark.slow
def test_the_newest_first_and_filtered_as_the_command_does(stored: RunStore) -> None:
    helper = add_run(stored, n=0, group_key="headroom:1", role="A", status="failed")
    assert (ids(), ids(helpers=True)) == ([2, 1], [helper, 2, 1])
    assert ids(ascending=True, limit=1) == ids("#1") == ids(verdict="input-bound") == ids(device="cpu") == [1]
    assert ids("memory") == ids(tag="kept") == ids(strategy=["memory", "lmdb"]) == ids(sort="samples_per_s", limit=1)
    assert (ids(tag="kept"), ids(status=("done", "failed"), dataset="digits")) == ([2], [2, 1])
    assert ids(status="failed") == []


def test_an_empty_store_has_no_runs() -> None:
    assert vitprof.runs() == []
    with pytest.raises(StoreError, match=r"^there is no run 1; "):
        vitprof.run(1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"status": "finished"}, "status: 'finished' is not possible; choose one of queued, running, done"),
        ({"sort": "size"}, "sort: 'size' is not possible; choose one of id, name, "),
        ({"limit": 0}, "limit: 0 is not possible; give a whole number of at least 1"),
        ({"limit": 2.5}, "limit: 2.5 is not possible; give a whole number"),
    ],
    ids=str,
)
def test_a_bad_value_is_said(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        vitprof.runs(**given)
    assert str(raised.value).startswith(said)


def test_a_number_may_be_of_numpy_and_must_be_whole(stored: RunStore) -> None:
    assert vitprof.run(np.int64(2)).tags == ("kept",)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="run_id: '2' is not possible; give a whole number"):
        vitprof.run("2")  # type: ignore[arg-type]


def test_a_run_of_another_version_is_left_out(stored: RunStore) -> None:
    from sqlalchemy import update

    from vitprof.store.database import runs as table

    with stored.transaction() as db:
        db.execute(update(table).where(table.c.id == 2).values(config={"warp": 9}))
    assert ids() == [1]
    with pytest.raises(StoreError, match="run 2 was written by another version"):
        vitprof.run(2)


@pytest.mark.slow
def test_nothing_heavy_comes_along_and_nothing_stays(stored: RunStore) -> None:
    """In a process of its own: no package that a list of runs does not need, no open store, no thread."""
    script = """
import os, sys, threading
import vitprof
found = vitprof.runs()
print(found[0], found[1]._repr_html_(), found[0].summary.samples_per_s)
print(*sorted({"torch", "streamlit", "pandas", "plotly", "pyarrow"} & set(sys.modules)))
files = [os.path.realpath(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")]
print(*[name for name in files if "sqlite" in name])
print(threading.active_count())
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, env=env)
    said, heavy, opened, threads = ended.stdout.splitlines()
    assert said.startswith("<vitprof run 2 'memory, batch 128, on simulated:5,0', done, simulated: Not input-bound: ")
    assert (heavy, opened, threads) == ("", "", "1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "what"),
    [
        ("pandas", lambda run: run.steps),
        ("plotly.graph_objects", lambda run: run.figure("gaps")),
        ("sqlalchemy", lambda run: vitprof.runs()),
    ],
    ids=["pandas", "plotly", "sqlalchemy"],
)
def test_a_missing_package_is_one_line(
    stored: RunStore, monkeypatch: pytest.MonkeyPatch, package: str, what: Any
) -> None:
    run = vitprof.run(1)
    again = ("vitprof.notebook.figures", "vitprof.notebook.one", "vitprof.charts", "vitprof.store")
    imported = {name: module for name, module in sys.modules.items() if name.startswith(again)}
    for name, module in imported.items():  # before it went missing; afterwards all is as it was
        parent, _, child = name.rpartition(".")
        monkeypatch.setattr(imported.get(parent) or sys.modules[parent], child, module)
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)  # type: ignore[arg-type]
    with pytest.raises(VitprofError) as raised:
        what(run)
    assert (
        str(raised.value) == f"the package {package.partition('.')[0]} is not installed: {install_command('dashboard')}"
    )
