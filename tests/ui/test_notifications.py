"""A word when what a person watched has ended: once, with the verdict or the reason."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from tests.ui.dashboard import add_run, drawn_by, read, shown
from vitprof.config import RunConfig
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.experiments.tournament.planning import create_tournament
from vitprof.recording.verdict import Verdict
from vitprof.store import RunStore
from vitprof.store.tournaments import claim, set_status
from vitprof.ui import notifications


def script() -> None:
    """Any page: what app.py does on each of its runs, and a run being looked at."""
    import streamlit as st

    from vitprof.ui import notifications, resources

    for run_id in st.session_state.get("shown", ()):
        notifications.watch(resources.store().run(run_id))
    if st.session_state.get("ends"):
        resources.store().update_run(st.session_state["ends"], status="stopped")
    notifications.announce()


def elsewhere(at: AppTest) -> AppTest:
    """The same session on a page that shows no run."""
    at.session_state["shown"] = ()
    return shown(at)


def page(
    *run_ids: int, said: Sequence[tuple[str, str]] = (), watched: Mapping[str, Any] | None = None
) -> AppTest:
    state = {
        "shown": run_ids,
        notifications.TO_SAY: [*said],
        notifications.WATCHED: dict(watched or {}),
    }
    return drawn_by(script, state)


def words(at: AppTest) -> list[str]:
    return [read(word.value) for word in at.toast]


def test_a_watched_run_is_announced_once_with_its_verdict(store: RunStore) -> None:
    before, run_id = add_run(store), add_run(store, status="running", name="*mine*")
    at = page(before, run_id)
    assert not words(at), "one that had ended when it was opened is no news"
    verdict = Verdict(
        simulated=False,
        kind="input-bound",
        sentence="Input-bound: it waits 9% of the time.",
    )
    store.update_run(run_id, status="done", verdict=verdict.to_dict())
    assert words(elsewhere(at)) == ["***mine*** done: Input-bound. It waits 9% of the time."]
    assert not words(shown(at))


def test_a_run_that_ends_while_its_own_page_is_drawn_is_not_announced_there(
    store: RunStore,
) -> None:
    at = page(add_run(store, status="running"))
    at.session_state["ends"] = at.session_state["shown"][0]
    assert not words(shown(at))
    assert not words(shown(at))
    assert not words(elsewhere(at))


def test_a_word_for_the_next_page_is_said_once_and_a_failure_says_why(store: RunStore) -> None:
    run_id = add_run(store, n=0, status="queued", name="a")
    at = page(
        run_id,
        said=[("it is *there*", ":material/tune:")],
        watched={"gone": partial(notifications._run, 99)},
    )
    assert words(at) == ["it is *there*"]
    assert list(at.session_state[notifications.WATCHED]) == [f"run {run_id}"], (
        "one that is gone is passed over"
    )
    store.update_run(run_id, status="failed", error="disk full; free some")
    assert words(elsewhere(at)) == ["**a** failed: disk full; free some"]


def test_a_group_and_a_tournament_are_announced_when_nothing_of_them_is_live(
    store: RunStore,
) -> None:
    group, spec = "headroom:7", TournamentSpec(RunConfig(device="cpu"), ("memory",), (64,))
    ids = [add_run(store, n=0, status="queued", group_key=group) for _ in range(2)]
    gone, number = create_tournament(store, spec), create_tournament(store, spec)
    claim(store, number)
    looks = {str(n): partial(notifications._tournament, n) for n in (gone + 7, number)}
    at = page(watched={group: partial(notifications._group, group, "Headroom of run 7"), **looks})
    assert list(at.session_state[notifications.WATCHED]) == [group, str(number)]
    store.update_run(ids[0], status="done")
    assert not words(shown(at))
    store.update_run(ids[1], status="failed")
    assert words(shown(at)) == ["Headroom of run 7: ended, 1 of 2 runs without a result."]
    set_status(store, number, "done", owner=None)
    assert words(shown(at)) == [f"Tournament {number} is done."]
    assert not words(shown(at))


def test_more_than_a_few_are_counted_and_are_news_once(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [add_run(store, n=0, status="stopped") for _ in range(5)]
    said = words(page(watched={str(n): partial(notifications._run, n) for n in ids}))
    assert (len(said), said[-1]) == (notifications.MAX_TOASTS + 1, "2 more have ended.")
    run_id = add_run(store, n=0, status="running", name="a")
    monkeypatch.setattr(st, "session_state", {})
    notifications.watch(store.run(run_id))
    assert not notifications._ended()
    store.update_run(run_id, status="done")
    assert notifications._ended()
    notifications.watch(store.run(run_id))
    assert not notifications._ended()
