"""Who asks: the person whose page it is, also in a thread that works for them; nobody in particular elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from vitprof.errors import JobError
from vitprof.jobs import users


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Who is at the page."""
    now = ["ada"]
    monkeypatch.setattr(users, "_source", [])
    users.ask_with(lambda: now[0])
    return now


def test_without_logins_everybody_is_this_machines_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "_source", [])
    assert users.who() == ""
    users.check_may_stop("run 1", "ada")  # of a time with logins


def test_only_who_started_something_stops_it(person: list[str]) -> None:
    users.check_may_stop("run 1", "ada")
    users.check_may_stop("run 1", "")
    with pytest.raises(JobError, match=r"^run 1 was started by bob; others cannot stop it$"):
        users.check_may_stop("run 1", "bob")


def test_a_thread_asks_for_whoever_had_it_started(person: list[str]) -> None:
    seen: list[str] = []
    carried = threading.Thread(target=users.carried(lambda: seen.append(users.who())))
    person[0] = "bob"
    for thread in (carried, threading.Thread(target=lambda: seen.append(users.who()))):
        thread.start()
        thread.join()
    assert seen == ["ada", "bob"]
    assert users.who() == "bob"
