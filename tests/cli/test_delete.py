"""`delete`: a run that is there and has ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_line import Call
from vitprof.config import RunConfig
from vitprof.store import RunStore


@pytest.mark.parametrize("args", [["delete", "7"], ["export", "7", "--csv", "{}/x.csv"]])
@pytest.mark.parametrize("run", ["7", "99999999999999999999"])
def test_no_such_run(call: Call, args: list[str], run: str, tmp_path: Path) -> None:
    status, out, err = call(*(a.replace("7", run).format(tmp_path) for a in args))
    assert (status, out, err) == (1, "", f"vitprof: there is no run {run}; python -m vitprof runs lists them\n")
    assert not (tmp_path / "x.csv").exists()


def test_one_that_goes_on_is_not_deleted(call: Call) -> None:
    store = RunStore()
    run_id = store.create_run(RunConfig())
    store.close()
    status, _, err = call("delete", str(run_id))
    assert (status, err) == (1, f"vitprof: run {run_id} is still going on; stop it first\n")
