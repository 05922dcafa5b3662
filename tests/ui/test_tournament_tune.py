"""Tuning one strategy on the Tournament page: one for the whole server, in a thread; what it found."""

import re
import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from streamlit.testing.v1 import AppTest

from tests.ui.dashboard import add_run, app, charts, click, read, said
from tests.ui.tournaments import spec
from vitprof.analysis.arrays import Interval
from vitprof.analysis.tournament.tuning import Candidate
from vitprof.config import RunConfig
from vitprof.errors import JobError
from vitprof.experiments.tournament.planning import create_tournament
from vitprof.experiments.trials import Progress
from vitprof.experiments.tuning import Tried, Tuning
from vitprof.store import RunStore
from vitprof.store.tournaments import claim, list_tournaments
from vitprof.ui.notifications import TO_SAY
from vitprof.ui.tournament import state
from vitprof.ui.tournament.state import work

OWN, BEST = Candidate(2, 2, 128), Candidate(4, 2, 512)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A search that goes on until its event "finish" is set or it is stopped."""
    seen: dict[str, Any] = {"finish": threading.Event()}

    def tune(
        manager: Any, base: RunConfig, seconds: float, *, batch_sizes: Any, progress: Any, stop: Any
    ) -> Tuning:
        seen.update(base=base, seconds=seconds, batch_sizes=batch_sizes)
        progress(Progress("rung 1 of 2: batch 512", 1, 4, 0.25, best_per_s=1234.0))
        while not seen["finish"].wait(0.01) and not stop():
            pass
        tried = (Tried(OWN, 1, 1, 1000.0, ""), Tried(BEST, 0, 2, 2000.0, ""))
        config = RunConfig(**{**base.to_dict(), "workers": 4, "batch_size": 512})
        return Tuning(
            base.strategy,
            OWN,
            BEST,
            config,
            2000.0,
            Interval(2.0, 1.9, 2.1),
            True,
            tried,
            9,
            12.0,
            stop(),
        )

    monkeypatch.setattr(state, "tune", tune)
    yield seen
    seen["finish"].set()
    work().close()


def page() -> AppTest:
    return app("tournament", mode="Tune one strategy", device="simulated:5,0")


@pytest.mark.usefixtures("store")
def test_from_the_form_to_the_sidebar(asked: dict[str, Any]) -> None:
    at = page()
    assert re.search(r"Time for about 1\d of \d\d settings\.", said(at))
    at.number_input(key="tune_seconds").set_value(30.0).run()
    assert re.search(
        r"Time for about \d of \d\d settings: too few to say anything\. Give it about \d min\.",
        said(at),
    )
    at.toggle(key="tune_same_batch").set_value(True).run()
    click(at, "tune-start")
    assert any("best so far 1,230 samples/s" in str(bar.proto) for bar in at.get("progress"))
    assert "tune-start" not in {b.key for b in at.button}, "it cannot be started twice"
    assert (asked["seconds"], asked["batch_sizes"], asked["base"].strategy) == (
        30.0,
        (128,),
        "workers",
    )
    asked["finish"].set()
    work().wait()
    at.run()
    assert "batch 512, 4 workers, prefetch 2 reaches 2,000 samples/s, 2.00 times" in said(at)
    assert "--workers 4" in at.code[0].value
    assert list(at.dataframe[0].value["Stage"]) == ["rung 1", "check"]
    assert "Too few trials: 1 setting has a figure, at least 4 are needed" in said(at)
    assert [*charts(at)] == ["tune-history"]
    click(at, "tune-use")
    assert at.number_input(key="set-workers").value == 4
    assert (
        at.session_state[TO_SAY][0][0]
        == "The settings of the tuning are in the sidebar. Press Run to start."
    )


@pytest.mark.usefixtures("asked")
def test_no_tournament_starts_beside_it_and_stop_shows_the_best_so_far(store: RunStore) -> None:
    tuned = page()
    click(tuned, "tune-start")
    at = app("tournament", device="simulated:5,0")
    assert at.button(key="tournament-start").disabled
    assert "a strategy is being tuned" in said(at)
    with pytest.raises(JobError, match="being tuned"):
        state.start(spec(), "")
    assert not list_tournaments(store)
    click(tuned, "tune-stop")
    work().wait()
    assert "reaches 2,000 samples/s" in said(tuned.run())


@pytest.mark.usefixtures("asked")
def test_it_does_not_start_beside_a_tournament_or_other_runs(store: RunStore) -> None:
    run_id = add_run(store, n=0, status="running")
    at = page()
    assert at.button(key="tune-start").disabled
    assert "they would disturb it" in said(at)
    store.update_run(run_id, status="done")
    made = create_tournament(store, spec())
    claim(store, made)
    at.run()
    assert at.button(key="tune-start").disabled
    assert "A tournament or other runs are running" in said(at)
    with pytest.raises(JobError, match="is running"):
        state.start_tuning(RunConfig(), 30.0, False)
    assert not work().running


@pytest.mark.usefixtures("store")
def test_what_cannot_be_tuned_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    at = page()
    at.selectbox(key="tune_strategy").set_value("dali").run()
    assert "Not possible here" in at.error[0].value
    assert at.button(key="tune-start").disabled
    failed = JobError("nothing could be tuned: no run gave a figure")
    monkeypatch.setattr(state, "tune", Mock(side_effect=failed))
    at.selectbox(key="tune_strategy").set_value("memory").run()
    click(at, "tune-start")
    work().wait()
    at.run()
    (error,) = at.error
    assert "nothing could be tuned: no run gave a figure" in read(error.value)
