"""`delete`: a run that is there and has ended."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.command_line import Call
from tests.ui.dashboard import add_run
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


def test_another_run_whose_program_is_gone_is_summed_up_on_the_way(call: Call) -> None:
    with closing(RunStore()) as store:
        left, other = add_run(store, status="running"), add_run(store)
        store.update_run(left, t_origin_s=90.0, owner_started=1.0, verdict=None)
        assert call("delete", str(other)) == (0, "", "")
        assert store.run(left).status == "interrupted"
        assert store.run(left).verdict is not None
