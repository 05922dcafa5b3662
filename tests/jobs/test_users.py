"""Who asks: the person whose page it is, also in a thread that works for them; nobody in particular elsewhere."""

import threading

import pytest

from vitprof.errors import JobError
from vitprof.jobs import users


def test_only_who_started_something_stops_it_also_from_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "_source", [])
    assert users.who() == "", "without logins everybody is this machine's user"
    users.check_may_stop("run 1", "ada")  # of a time with logins
    person = ["ada"]
    users.ask_with(lambda: person[0])
    users.check_may_stop("run 1", "ada")
    users.check_may_stop("run 1", "")
    with pytest.raises(JobError, match=r"^run 1 was started by bob; others cannot stop it$"):
        users.check_may_stop("run 1", "bob")
    seen: list[str] = []
    carried = threading.Thread(target=users.carried(lambda: seen.append(users.who())))
    person[0] = "bob"
    for thread in (carried, threading.Thread(target=lambda: seen.append(users.who()))):
        thread.start()
        thread.join()
    assert seen == ["ada", "bob"]
    assert users.who() == "bob"
