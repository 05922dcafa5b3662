"""`headroom` and `run --headroom` from the command line."""

import contextlib
import signal

import pytest

from tests.cli.json_objects import told as read_json
from tests.cli.stored_runs import add
from tests.command_line import Call, one_line, succeeds
from tests.engine_fixtures import small_home  # noqa: F401
from vitprof import cli
from vitprof.store import RunStore

HERE = ["--threads", "1", "--device", "simulated:4,5", "--isolation", "thread", "--no-evaluate"]
RUN = ["run", "--strategy", "memory", "--batch-size", "32", "--steps", "14", *HERE]


@pytest.mark.usefixtures("small_home")
class TestHeadroom:
    @pytest.mark.measured
    def test_after_a_run(self, call: Call) -> None:
        status, out, err = call(*RUN, "--headroom", "--json")
        found = read_json("run", out)["headroom"]
        assert (status, found["baseline_role"], found["simulated"]) == (0, "C", True)
        assert [(a["role"], a["n_runs"]) for a in found["anchors"]] == [
            ("A", 2),
            ("B", 2),
            ("C", 2),
        ]
        assert [p["name"] for p in found["parts"]] == ["transfer", "preparation"]
        assert found["sentence"].startswith("With free data")
        shown_again = ("headroom", "1", "--repeats", "0")  # not measured again
        assert read_json("headroom", call(*shown_again, "--json")[1])["headroom"] == found
        status, out, err = call(*shown_again)
        assert status == 0
        assert "headroom of run 1, on a simulated device" in out
        assert "With free data the steps of this job would run" in out
        assert "no run over a cold page cache (D): storage memory is in memory" in err

    def test_none_was_measured(self, call: Call, mine: RunStore) -> None:
        add(mine)
        known = ("headroom", "1", "--repeats", "0")
        assert "the headroom of run 1 is not measured" in succeeds(call, *known)
        assert read_json("headroom", succeeds(call, *known, "--json"))["headroom"] is None

    def test_nothing_could_be_measured(self, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
        call(*RUN)
        monkeypatch.setattr("vitprof.engine.train._fit", lambda job: 1 / 0)
        status, out, err = call("headroom", "1")
        assert status == 1
        assert "Headroom is not known" in out
        assert "anchor A: 1 of 1 runs did not finish" in err

    def test_an_interrupt_shows_what_is_finished(
        self, call: Call, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        call(*RUN)

        once = iter([signal.SIGINT])

        def interrupt(words: str, fraction: float | None) -> None:
            if "anchor B" in words and (number := next(once, None)) is not None:
                signal.raise_signal(number)

        monkeypatch.setattr(cli.run, "progress", lambda: contextlib.nullcontext(interrupt))
        monkeypatch.setattr("vitprof.experiments.trials.TRIALS_EVERY_S", 0.001)
        before = signal.getsignal(signal.SIGINT)
        status, out, err = call("headroom", "1")
        assert status == 130
        assert "anchor C" in out
        assert "1 run" in out
        assert err.splitlines()[-1] == "vitprof: interrupted"
        assert signal.getsignal(signal.SIGINT) is before

    def test_bad_values(self, call: Call) -> None:
        said = one_line(call, *RUN, "--headroom", "--loader-only")
        assert said.startswith("vitprof: --loader-only: headroom")
        assert call("headroom", "7") == (
            1,
            "",
            "vitprof: there is no run 7; python -m vitprof runs lists them\n",
        )
        assert "no runs; " in call("runs")[1]
