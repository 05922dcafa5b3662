"""`tournament` from the command line: what it runs, prints and writes, and how it goes on after an end of any kind."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import sqlalchemy as sa

from tests import ROOT
from tests.cli.json_objects import told as read_json
from tests.command_line import Call, one_line
from tests.csv_cells import csv_rows
from tests.engine_fixtures import descendants, digits_home, full_home, gone, small_home, wait_until  # noqa: F401
from tests.ui.tournaments import KEYS, add_tournament
from vitprof.cli.tournament.jobs import _strategies
from vitprof.config import RunConfig
from vitprof.errors import VitprofError
from vitprof.experiments.tournament.tournament_view import TournamentView
from vitprof.export.tournament import TOURNAMENT_HEADER
from vitprof.recording.columns import SCHEMA_VERSION
from vitprof.store import RunStore
from vitprof.store.database import tournaments
from vitprof.store.tournaments import tournament

HERE = ["--threads", "1", "--device", "simulated:1,5", "--isolation", "thread", "--steps", "18"]
TWO = "tournament --strategies memory,dali --batch-sizes 16,32 --repeats 2 --no-until-decided"
QUICK = [*TWO.split(), *HERE]
EITHER = "memory, batch (?:16|32)"
UNDECIDED = re.compile(
    rf"(undecided between {EITHER} and {EITHER} after \d rounds; more rounds may decide it\n)?"
)
"""What may be said at the end: the one that is ahead comes first, and rounds that other programs
disturbed are run again."""


def without_waits(err: str) -> str:
    """Returns what was said, without what a queued run waits for: that depends on the machine."""
    return "".join(re.findall(r"^(?!run \d+ is ).*\n", err, flags=re.MULTILINE))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitprof.experiments.trials.TRIALS_EVERY_S", 0.005)
    monkeypatch.setattr("vitprof.cli.tournament.running.TOURNAMENT_EVERY_S", 0.01)


@pytest.mark.usefixtures("small_home")
class TestTournament:
    def test_what_is_known_of_one_is_a_table_csv_json_and_markdown(
        self, call: Call, mine: RunStore, tmp_path: Path
    ) -> None:
        """Of one whose runs are given: which is faster is no matter of this machine."""
        waits = {"per-sample": 0.02, "tensordataset": 0.005, "memory": 0.001}
        add_tournament(mine, waits, name="=mine")
        shown = ("tournament", "--resume", "1")
        status, out, err = call(*shown, "--csv", str(tmp_path / "t.csv"))
        assert (status, err) == (0, "")
        assert "tournament 1: =mine, simulated device (done)" in out
        assert "Against per-sample, batch 128:" in out
        assert "Use memory, batch 128: " in out
        found = csv_rows(tmp_path / "t.csv")
        assert tuple(found[0]) == TOURNAMENT_HEADER
        assert [row["rank"] for row in found] == ["1", "2", "3"]
        assert [row["recommended"] for row in found] == ["true", "false", "false"]
        best, _, base = found
        assert (best["key"], best["baseline"]) == (KEYS["memory"], "false")
        assert (base["baseline"], base["speed_up"], base["tournament"]) == ("true", "1.0", "'=mine")
        low, value, high = (float(best[f"samples_per_s{end}"]) for end in ("_low", "", "_high"))
        assert low <= value <= high
        assert float(best["speed_up"]) > 1
        told = read_json("tournament", call(*shown, "--json")[1])
        assert (told["recommendation"]["key"], told["best"]) == (best["key"], best["key"])
        lines = call(*shown, "--markdown")[1].splitlines()
        assert lines[2:4] == ["| setting | batch 128 |", "|---|---|"]
        assert lines[4].startswith("| memory")

    @pytest.mark.measured
    def test_table_csv_and_json(self, call: Call, tmp_path: Path) -> None:
        status, out, err = call(*QUICK, "--csv", str(tmp_path / "t.csv"), "--name", "=mine")
        # two rounds decide only where runs hardly differ, which a busy machine does not give
        assert status == 0
        assert UNDECIDED.fullmatch(without_waits(err))
        assert "tournament 1: =mine, simulated device (done)" in out
        assert (
            "refused: dali, batch 16, 2 threads; dali, batch 32, 2 threads: strategy dali: it cannot load digits"
            in out
        )
        assert "Against memory, batch 16:" in out
        found = csv_rows(tmp_path / "t.csv")
        assert (tuple(found[0]), [r["rank"] for r in found]) == (
            TOURNAMENT_HEADER,
            ["1", "2", "", ""],
        )
        best, base = found[0], found[1]
        assert (best["key"], best["baseline"]) == ("memory/b32/w-/as-is", "false")
        recommended = [r for r in found if r["recommended"] == "true"]
        assert len(recommended) == (not err)
        if recommended:
            assert recommended[0] is best
            assert "Use memory, batch 32: " in out
        else:
            assert "Undecided so far: " in out
        assert (base["baseline"], base["speed_up"], base["tournament"]) == ("true", "1.0", "'=mine")
        assert (
            float(best["samples_per_s_low"])
            <= float(best["samples_per_s"])
            <= float(best["samples_per_s_high"])
        )
        assert float(best["speed_up"]) > 1
        assert (found[2]["status"], found[2]["samples_per_s"], found[2]["against_baseline"]) == (
            "refused",
            "",
            "",
        )
        assert {(r["simulated"], r["schema_version"]) for r in found} == {
            ("true", str(SCHEMA_VERSION))
        }
        # shown again: nothing is run
        n = len(RunStore().runs())
        status, out, err = call("tournament", "--resume", "1", "--json")
        told = read_json("tournament", out)
        assert (status, told["status"], told["simulated"]) == (0, "done", True)
        use = recommended[0]["key"] if recommended else None
        assert (told["recommendation"]["key"], told["best"]) == (use, best["key"])
        assert [t["rank"] for t in told["trials"]] == [1, 2, None, None]
        assert (told["spec"]["strategies"], len(RunStore().runs())) == (["memory", "dali"], n)
        status, out, err = call("tournament", "--resume", "1", "--markdown")
        lines = out.splitlines()
        assert status == 0
        assert "simulated" in lines[0]
        assert lines[2:4] == ["| setting | batch 16 | batch 32 |", "|---|---|---|"]
        assert lines[4].startswith("| memory")
        status, out, _ = call("tournament", "--list")
        assert status == 0
        assert "=mine (simulated)" in out
        listed = read_json("tournament-list", call("tournament", "--list", "--json")[1])
        assert listed["tournaments"][0]["name"] == "=mine"

    def test_no_trial_gives_a_figure(self, call: Call) -> None:
        status, out, _ = call("tournament", "--strategies", "dali", *HERE)
        assert status == 1
        assert "no setting gave a figure" in out
        assert "refused: dali, batch 128, 2 threads" in out

    def test_an_interrupt_pauses(self, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
        once = iter([signal.SIGINT])
        state = TournamentView.state

        def interrupting(self: Any) -> Any:
            now = state(self)
            if now.progress.done == 1 and (number := next(once, None)) is not None:
                os.kill(os.getpid(), number)
            return now

        monkeypatch.setattr(TournamentView, "state", interrupting)
        status, out, err = call(*QUICK[:-1], "30")
        assert status == 130
        assert "(paused)" in out
        again = "continue with python -m vitprof tournament resume 1"
        assert err.splitlines()[-1] == f"vitprof: tournament 1 is paused; {again}"
        assert "paused by Ctrl-C" in err
        status, out, err = call("tournament", "--resume", "1")
        assert status == 0
        assert UNDECIDED.fullmatch(without_waits(err))
        assert "(done)" in out

    def test_too_few_steps_and_a_csv_that_fails(
        self, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = "tournament --strategies memory --batch-sizes 16 --repeats 1 --no-until-decided"
        asked = [*one.split(), *HERE[:-1]]

        full = VitprofError("t.csv cannot be written: the disk is full")
        monkeypatch.setattr("vitprof.cli.tournament.running.write_text", Mock(side_effect=full))
        status, out, err = call(*asked, "10", "--csv", str(tmp_path / "t.csv"))
        assert status == 1
        assert "5 steady steps of memory, batch 16 are too few" in out
        assert err.endswith("t.csv cannot be written: the disk is full\n")
        status, out, err = call(*asked, "4")
        assert status == 1
        assert "no steady step: the first 5 are warm-up; give it more steps" in out

    def test_all_that_can_run_here(self) -> None:
        found = _strategies("all", RunConfig())
        assert {"per-sample", "memory", "device"} <= set(found)
        assert "dali" not in found

    def test_there_is_none(self, call: Call) -> None:
        said = "vitprof: there is no tournament 7; python -m vitprof tournament --list lists them\n"
        assert one_line(call, "tournament", "--resume", "7", status=1) == said
        assert "no tournaments yet" in call("tournament", "--list")[1]


@pytest.mark.measured
@pytest.mark.usefixtures("full_home")
def test_goes_on_after_a_kill(call: Call) -> None:
    """A program that was killed in mid-trial: the trial is run again, what was done is not."""
    asked = "tournament --strategies memory --batch-sizes 500,1000 --repeats 1 --no-until-decided --steps 6000"
    command = [
        sys.executable,
        "-m",
        "vitprof",
        *asked.split(),
        *["--threads", "1", "--device", "simulated:10,0"],
    ]
    started = subprocess.Popen(
        [*command, "--isolation", "thread"], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    with contextlib.closing(RunStore()) as store:
        try:
            wait_until(lambda: any(r.stage == "training" for r in store.runs()), "a trial trains")
        finally:
            family = descendants(started.pid)
            started.kill()
            started.wait()
        assert gone(family)
        assert tournament(store, 1).status == "paused"
        with store.transaction() as db:  # the rest need not take as long
            spec = db.execute(sa.select(tournaments.c.spec)).scalar_one()
            db.execute(
                sa.update(tournaments).values(spec={**spec, "base": {**spec["base"], "steps": 14}})
            )
        status, out, err = call("tournament", "--resume", "1", "--json")
        assert (status, err, read_json("tournament", out)["status"]) == (0, "", "done")
        found = [(r.role, r.status) for r in store.runs(oldest_first=True)]
    first, second = "memory/b500/w-/as-is#1", "memory/b1000/w-/as-is#1"
    # where another program got in, more rounds follow
    assert found[:3] == [(first, "interrupted"), (first, "done"), (second, "done")]
    assert {status for _, status in found[3:]} <= {"done"}
