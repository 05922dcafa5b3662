"""A run before its first step: its place in the queue, Cancel, and the phases of its start."""

import math
import os
import time
from types import SimpleNamespace

import pytest
from streamlit.testing.v1 import AppTest

from tests.ui.dashboard import add_run, address, app, click, read, said
from vitprof.analysis.verdict.advice_rules import END_OTHERS
from vitprof.config import RunConfig
from vitprof.jobs.scheduling import MachineLock
from vitprof.recording.columns import Phase
from vitprof.recording.verdict import Advice, Signature, Verdict
from vitprof.store import RunStore
from vitprof.ui import resources
from vitprof.ui.profile import live


def shown(at: AppTest) -> set[str]:
    return {button.key for button in at.button if button.key} & {"stop-button", "cancel-button"}


def test_a_queued_run_has_a_place_and_is_cancelled_or_begins(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = add_run(store, n=0, status="running", name="long")
    second = add_run(store, n=0, status="queued", name="next", device="cuda:7")
    third = add_run(store, n=0, status="queued", device="simulated:1,0")
    stop = lambda self, run_id: store.update_run(run_id, status="stopped")  # noqa: E731
    monkeypatch.setattr(type(resources.manager()), "may_stop", lambda self, run_id: True)
    monkeypatch.setattr(type(resources.manager()), "stop", stop)
    one_at_a_time = "jobs run one at a time so that they do not take each other's CPU and disk"
    waits = f"Waiting for run {running} on cpu"
    next_one = app(run=str(second))
    assert f"{waits}; {one_at_a_time}. It is 2nd in the queue." in said(next_one)
    assert shown(next_one) == {"cancel-button"}
    at = app(run=str(third))
    assert f"{waits} and 1 more; {one_at_a_time}. It is 3rd in the queue." in said(at)
    assert shown(at) == {"cancel-button"}
    click(at, "cancel-button")
    assert store.run(third).status == "stopped"
    assert at.title[0].value == "long", "the run that has the device"
    store.update_run(running, status="done")
    assert shown(next_one.run()) == {"stop-button"}, "nothing is before it"
    store.update_run(second, status="running", stage="starting")
    assert shown(next_one.run()) == {"stop-button"}


def test_a_job_of_another_program_is_named_and_may_be_passed(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    monkeypatch.setattr(type(resources.manager()), "may_stop", lambda self, run_id: True)
    monkeypatch.setattr(
        type(resources.manager()), "run_now", lambda self, run_id: begun.append(run_id)
    )
    run_id = add_run(store, n=0, status="queued")
    other = MachineLock(7, "cpu", shares=False, store_url="sqlite:///elsewhere")
    assert other.acquire()
    at = app(run=str(run_id))
    assert (
        f"Waiting for run 7 of another store on cpu (the dashboard, process {os.getpid()}, since "
        in said(at)
    )
    assert shown(at) == {"cancel-button"}
    click(at, "run-now-button")
    other.release()
    assert begun == [run_id]


def test_a_disturbed_run_is_repeated_when_quiet(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id, busy_pct, begun = (
        add_run(store),
        [math.nan, 70.0, 5.0, 70.0, 5.0, 5.0, 5.0],
        list[RunConfig](),
    )
    again = add_run(store)
    at = app(run=str(run_id))
    assert "run-when-quiet" not in {button.key for button in at.button}
    found = Signature("other-programs", "Others.", math.nan, math.nan, {}, "psutil")
    verdict = Verdict(
        kind="inconclusive", sentence="Disturbed.", simulated=False, signatures=(found,)
    )
    store.update_run(run_id, verdict=verdict.to_dict())
    watch = SimpleNamespace(read=lambda: SimpleNamespace(cores=2, cpu_pct=busy_pct.pop(0)))
    monkeypatch.setattr(resources, "machine_watch", lambda: watch)
    monkeypatch.setattr(
        type(resources.manager()), "submit", lambda self, config: begun.append(config) or again
    )
    click(at.run(), "run-when-quiet")
    assert "Waiting for a quiet machine: measuring." in said(at)
    assert "other programs use 1.4 of 2 cores" in said(at.run())
    while busy_pct:
        assert not begun
        at.run()
    assert (begun, address(at)["run"]) == ([store.run(run_id).config], str(again))


def test_a_start_shows_its_phases_until_there_is_a_step(store: RunStore) -> None:
    run_id = add_run(store, n=0, status="running")
    store.update_run(run_id, stage="preparing", phases=[Phase("startup", 102.0, 102.4)])
    text = said(app(run=str(run_id)))
    assert "Start the process and load PyTorch 2.40 s" in text
    assert ":material/pending: Prepare the data" in text
    assert ":gray[:material/radio_button_unchecked: First batch]" in text
    stepping = add_run(store, status="running")
    assert "First batch" not in said(app(run=str(stepping)))


def test_a_run_that_nobody_named_stays_when_it_ends(store: RunStore) -> None:
    run_id = add_run(store, status="running", name="long")
    at = app()
    assert at.title[0].value == "long"
    store.update_run(run_id, status="stopped")
    at.run()
    assert at.title[0].value == "long"
    assert "Stopped. What was measured until then is kept." in said(at)
    store.delete(run_id)
    at.run()
    assert not at.exception
    assert "Is your GPU starved by data loading?" in at.title[0].value


def test_the_time_left_of_a_run_with_a_time_is_that(store: RunStore) -> None:
    run_id = add_run(store, n=0, status="running", steps=None, seconds=800.0)
    store.update_run(
        run_id, stage="training", training_since_s=time.perf_counter() - 100, progress=0.01
    )
    (bar,) = app(run=str(run_id)).get("progress")
    assert read(bar.proto.text) == "training, about 12 min left", (
        "a first step that is slow says nothing of the others"
    )


def test_the_time_left_counts_the_steps_that_are_missing(store: RunStore) -> None:
    """It said 10 s, of the time budget alone, where 20 steps of 3.6 s each were missing."""
    step_s = 3.6
    least = 33
    run_id = add_run(store, n=0, status="running", steps=None, seconds=20.0, least_steps=30)
    for n in (13, 31):
        trained_s = n * step_s
        store.update_run(run_id, progress=n / least)
        left_s = live.seconds_left(store.run(run_id), trained_s + 1.0, trained_s)
        assert left_s == pytest.approx((least - n) * step_s - 1.0), "it falls between steps, too"
    store.update_run(run_id, progress=0.25)
    left_s = live.seconds_left(store.run(run_id), 5.0, 5.0)
    assert left_s == pytest.approx(15.0), "with quick steps the seconds are over later"
    store.update_run(run_id, progress=0.01)
    left_s = live.seconds_left(store.run(run_id), 5.0, 5.0)
    assert left_s == pytest.approx(195.0), "it takes ten times its seconds at most"
    slow = add_run(store, n=0, status="running", steps=None, seconds=200.0, least_steps=30)
    began_s = time.perf_counter() - 600
    store.update_run(slow, stage="training", training_since_s=began_s, progress=1 / 3)
    (bar,) = app(run=str(slow)).get("progress")
    assert read(bar.proto.text) == "training, about 20 min left"


def test_where_other_programs_hide_what_is_slow_the_card_proves_what_helps_in_any_case(
    store: RunStore,
) -> None:
    run_id = add_run(store, device="simulated:5,0")
    memory = Advice({"strategy": "memory"}, "strategy memory", "One call picks a whole batch.")
    verdict = Verdict(
        kind="input-bound",
        device="simulated",
        cause="unclear",
        idle_frac=0.7,
        n_judged=40,
        advice=(END_OTHERS, memory),
        simulated=True,
    )
    store.update_run(run_id, verdict=verdict.to_dict())
    at = app(run=str(run_id))
    assert "or strategy memory: it helps whichever stage is slow" in said(at)
    keys = [button.key for button in at.button if (button.key or "").startswith("prove-")]
    assert keys == ["prove-1"], "once, in the card"
