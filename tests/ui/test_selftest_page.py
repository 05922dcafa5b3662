"""The page Self-test: one self-test for the whole server, in a thread; what it found, and what went wrong."""

import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import Mock

import pytest
from streamlit.testing.v1 import AppTest

from tests.selftest.test_selftest import FINE
from tests.ui.dashboard import add_run, app, click, said
from vitprof.errors import DeviceError
from vitprof.experiments.trials import OnProgress, Progress
from vitprof.jobs import users
from vitprof.selftest import CaseOutcome, SelftestReport
from vitprof.store import RunStore
from vitprof.ui import selftest
from vitprof.ui.selftest import work

WRONG = dataclasses.replace(
    FINE, case="decode, in line", cause="collate", right=("decode",), cause_ok=False
)


@pytest.fixture
def ended_by_hand(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A self-test that goes on until the event is set or it is stopped, and then has one right and one wrong case."""
    finish = threading.Event()

    def run(
        cases: Sequence[Any], rounds: int, *, progress: OnProgress, stop: Callable[[], bool]
    ) -> SelftestReport:
        progress(Progress("read, in the loop, reference run", 3, 12, 0.25, 40.0))
        while not finish.wait(0.01) and not stop():
            pass
        return SelftestReport((FINE, WRONG) if finish.is_set() else (FINE,), 12.0, 2)

    monkeypatch.setattr(selftest, "run_selftest", run)
    yield finish
    finish.set()
    work().close()


def test_progress_then_the_table_and_stop_shows_what_was_run_until_then(
    store: RunStore, ended_by_hand: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    person = "ada"
    monkeypatch.setattr(users, "_source", [lambda: person])
    other = add_run(store, n=0, status="running")
    at = app("selftest")
    assert at.button(key="selftest-button").disabled
    assert "would disturb the self-test" in said(at)
    store.update_run(other, status="done")
    at.run()
    assert "10 cases, 15 short jobs: about 0.5 to 1 minutes" in said(at)
    assert at.dataframe[0].value["verdict must blame"][0] == "reading"
    click(at, "selftest-button")
    assert any("about 40 s left" in str(bar.proto) for bar in at.get("progress"))
    assert [b.label for b in at.button] == ["Stop"], "it cannot be started twice"
    other_tab = app("selftest")
    assert [b.label for b in other_tab.button] == ["Stop"]
    ended_by_hand.set()
    work().wait()
    at.run()
    assert list(at.dataframe[0].value.iloc[:, 0]) == ["✓ right", "✗ wrong"]
    assert "Self-test failed: 1 of 2" in said(at)
    assert list(at.dataframe[0].value["verdict blames"]) == ["reading", "collating"]
    assert "the verdict blamed collating, expected decoding" in said(at)
    ended_by_hand.clear()
    click(at, "selftest-button")
    person = "bob"  # logged in meanwhile
    click(at, "selftest-stop")
    assert "others cannot stop it" in said(at)
    person = "ada"
    at.run().button(key="selftest-stop").click().run()
    work().wait()
    assert "Self-test stopped after 1 of 2 cases: 1 passed" in said(at.run())


def test_its_columns_fit_a_window_of_1366_px_and_no_case_is_cut() -> None:
    widths = [column.width or 0 for column in selftest.COLUMNS]
    assert sum(widths) <= 984
    longest = max(len(case.what) for cases, _ in selftest.CHOICES.values() for case in cases)
    assert longest * PX_A_CHARACTER <= widths[1]


PX_A_CHARACTER = 6.5
"""Width of a character of a table's cell, about."""


def on_gpu(
    monkeypatch: pytest.MonkeyPatch, result: SelftestReport[CaseOutcome] | Exception
) -> AppTest:
    """The page after a self-test on the GPU that gave `result`."""

    monkeypatch.setattr(selftest.gpu, "run_gpu_selftest", Mock(side_effect=[result]))
    at = app("selftest")
    at.selectbox(key="selftest-choice").set_value(selftest.ON_GPU).run()
    assert "6 cases on the first NVIDIA GPU: at most 5 minutes" in said(at)
    click(at, "selftest-button")
    work().wait()
    return at.run()


@pytest.mark.usefixtures("store")
def test_on_the_gpu_each_case_is_a_row_and_the_figures_can_be_taken_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcomes = (
        CaseOutcome("passed", "9 checked", case="clock mapping"),
        CaseOutcome("failed", "9 of 1000 inside", "991 marks are outside", case="known idle"),
        CaseOutcome("not run", wrong="no DALI", case="launch-bound"),
    )
    at = on_gpu(monkeypatch, SelftestReport(outcomes, 60.0, 3, machine={"device_name": "a GPU"}))
    assert not at.exception
    table = at.dataframe[0].value
    assert list(table.iloc[:, 0]) == ["passed", "failed", "not run"]
    assert list(table["measured"]) == [
        "9 checked",
        "9 of 1000 inside: 991 marks are outside",
        "no DALI",
    ]
    assert (
        "Self-test on the GPU failed: 1 of 3: known idle (991 marks are outside); not run: launch-bound"
        in said(at)
    )
    assert "send the file in with a bug report" in said(at)
    (button,) = at.get("download_button")
    assert button.proto.label == "Figures for a bug report"
    assert list(at.selectbox(key="selftest-choice").options) == [*selftest.CHOICES, selftest.ON_GPU]


@pytest.mark.usefixtures("store")
def test_what_goes_wrong_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    at = on_gpu(
        monkeypatch,
        DeviceError("the self-test on the GPU needs an NVIDIA GPU\nthat PyTorch can use"),
    )
    assert not at.exception
    (shown,) = at.error
    assert "needs an NVIDIA GPU that PyTorch can use" in shown.value
