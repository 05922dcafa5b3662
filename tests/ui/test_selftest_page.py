"""The page Self-test: one self-test for the whole server, in a thread; what it found, and what went wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from tests.ui.dashboard import add_run, app, said
from vitprof.errors import JobError
from vitprof.experiments.selftest import QUICK, Result, SelftestProgress, SelftestReport
from vitprof.store import RunStore
from vitprof.ui import selftest
from vitprof.ui.selftest import work

RIGHT = Result(
    case="read, in the loop",
    what="20 ms in reading",
    expected_ms=20.0,
    reported_ms=20.1,
    error_ms=0.1,
    tolerance_ms=2.0,
    cause="read",
    right=("read",),
    idle_frac=0.5,
    true_idle_frac=0.5,
    idle_error_frac=0.0,
    rounds=1,
    retries=0,
    cause_ok=True,
    size_ok=True,
    idle_ok=True,
)
WRONG = Result(
    **vars(RIGHT) | {"case": "decode, in the loop", "cause": "collate", "right": ("decode",), "cause_ok": False}
)


@pytest.fixture
def ended_by_hand(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A self-test that goes on until the event is set or it is stopped, and then has one right and one wrong case."""
    finish = threading.Event()

    def run(
        cases: Sequence[Any], rounds: int, *, progress: Callable[[SelftestProgress], None], stop: Callable[[], bool]
    ) -> SelftestReport:
        progress(SelftestProgress("read, in the loop, reference run", 3, 12, 40.0))
        while not finish.wait(0.01) and not stop():
            pass
        return SelftestReport((RIGHT, WRONG) if finish.is_set() else (RIGHT,), 12.0, 2)

    monkeypatch.setattr(selftest, "run_selftest", run)
    yield finish
    finish.set()
    work().close()


def start(at: AppTest) -> AppTest:
    return at.button(key="selftest-button").click().run()


@pytest.mark.usefixtures("store")
def test_how_long_it_takes_is_said() -> None:
    assert "10 cases, 15 short jobs: about 0.5 to 1 minutes" in said(app("selftest"))


@pytest.mark.usefixtures("store")
def test_progress_then_the_table(ended_by_hand: threading.Event) -> None:
    at = start(app("selftest"))
    assert not at.exception
    assert any("about 40 s left" in str(bar.proto) for bar in at.get("progress"))
    assert [b.label for b in at.button] == ["Stop"], "it cannot be started twice"
    other_tab = app("selftest")
    assert [b.label for b in other_tab.button] == ["Stop"]
    ended_by_hand.set()
    work().wait()
    at.run()
    assert list(at.dataframe[0].value.iloc[:, 0]) == ["right", "wrong"]
    assert "Selftest failed: 1 of 2" in said(at)
    assert "the verdict named collate, right is decode" in said(at)


@pytest.mark.usefixtures("store")
def test_stop_shows_what_was_run_until_then(ended_by_hand: threading.Event) -> None:
    at = start(app("selftest"))
    at.button(key="selftest-stop").click().run()
    work().wait()
    at.run()
    assert "Selftest stopped after 1 of 2 cases: 1 passed" in said(at)


@pytest.mark.usefixtures("ended_by_hand")
def test_it_does_not_start_beside_other_runs(store: RunStore) -> None:
    add_run(store, n=0, status="running")
    at = app("selftest")
    assert at.button(key="selftest-button").disabled
    assert "would disturb the self-test" in said(at)


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("error", [JobError("no process could be started"), ZeroDivisionError("a bug")])
def test_what_goes_wrong_is_one_line(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> SelftestReport:
        raise error

    monkeypatch.setattr(selftest, "run_selftest", fail)
    at = app("selftest")
    selftest.start(QUICK, 1)
    work().wait()
    at.run()
    assert not at.exception
    (shown,) = at.error
    assert str(error) in shown.value
    assert "\n" not in shown.value
