"""Who asks: the person whose page it is, also in a thread that works for them; nobody in particular elsewhere."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from vitprof.config import RunConfig
from vitprof.errors import JobError, StoreError
from vitprof.jobs import users
from vitprof.jobs.manager import JobManager
from vitprof.store import RunStore


def test_only_who_started_something_stops_it_also_from_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


@contextmanager
def manager(store: RunStore) -> Iterator[None]:
    made = JobManager(store)
    yield
    made.shutdown()


@pytest.mark.parametrize(
    ("allowed", "user", "may"),
    [(None, "ada", True), ("bob, ada", "ada", True), ("bob", "ada", False), ("b", "", True)],
)
def test_only_those_who_are_named_may_make_runs(
    monkeypatch: pytest.MonkeyPatch, store: RunStore, allowed: str | None, user: str, may: bool
) -> None:
    monkeypatch.setattr(users, "_source", [lambda: user])
    monkeypatch.delenv(users.MAY_RUN, raising=False)
    if allowed is not None:
        monkeypatch.setenv(users.MAY_RUN, allowed)
    with manager(store):
        run_id = 0 if not may else store.create_run(RunConfig())
        if may:
            store.edit(run_id, note="mine")
            store.update_run(run_id, status="done")
            store.delete(run_id)
            return
        for change in (
            lambda: store.create_run(RunConfig()),
            lambda: store.edit(1, note=""),
            lambda: store.delete(1),
        ):
            with pytest.raises(
                StoreError, match="ada may see runs, but not make or change any: VITPROF_MAY_RUN"
            ):
                change()
