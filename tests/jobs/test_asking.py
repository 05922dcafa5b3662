"""Who asks: the person whose page it is, also in a thread that works for them; nobody in particular elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from vitprof.errors import JobError
from vitprof.jobs import asking


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Who is at the page."""
    now = ["ada"]
    monkeypatch.setattr(asking, "_source", [])
    asking.ask_with(lambda: now[0])
    return now


def test_without_logins_everybody_is_this_machines_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_source", [])
    assert asking.who() == ""
    asking.check_may_stop("run 1", "ada")  # of a time with logins


def test_only_who_started_something_stops_it(person: list[str]) -> None:
    asking.check_may_stop("run 1", "ada")
    asking.check_may_stop("run 1", "")
    with pytest.raises(JobError, match=r"^run 1 was started by bob; others cannot stop it$"):
        asking.check_may_stop("run 1", "bob")


def test_a_thread_asks_for_whoever_had_it_started(person: list[str]) -> None:
    seen: list[str] = []
    carried = threading.Thread(target=asking.carried(lambda: seen.append(asking.who())))
    person[0] = "bob"
    for thread in (carried, threading.Thread(target=lambda: seen.append(asking.who()))):
        thread.start()
        thread.join()
    assert seen == ["ada", "bob"]
    assert asking.who() == "bob"
