"""A store that does not answer: opening it ends, with a line, and so does a query."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psutil
import pytest
import sqlalchemy as sa

from tests.store.postgresql import Server
from vitprof.attempts import Attempt
from vitprof.errors import StoreAwayError, one_line
from vitprof.store import RunStore, database
from vitprof.store import server as connections

LIMIT_S = 60.0


class Stuck:
    """A file system that does not answer, until `answer`."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.n_asked = 0
        self._answers = threading.Event()
        really_open = database.Database._open

        def stuck_open(store: database.Database) -> None:
            self.n_asked += 1
            assert self._answers.wait(LIMIT_S)
            really_open(store)

        patch.setattr(database.Database, "_open", stuck_open)

    def answer(self) -> None:
        self._answers.set()


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stuck]:
    made = Stuck(monkeypatch)
    yield made
    made.answer()


def test_a_file_system_that_does_not_answer_is_one_line(
    stuck: Stuck, vitprof_home: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "OPEN_WITHIN_S", 0.01)
    with pytest.raises(StoreAwayError) as refused:
        RunStore()
    assert refused.value.why == "it does not answer"
    assert one_line(refused.value) == (
        f"the run store sqlite:///{vitprof_home}/recordings.sqlite does not answer: "
        "see whether it can be reached from here, or set VITPROF_DB to another one"
    )
    assert not vitprof_home.exists(), "nothing was asked of the disk before"


def test_it_is_asked_once_however_often_it_is_tried(stuck: Stuck, vitprof_home: Any) -> None:
    """A thread that hangs stays: one for each try would be thousands in a long run."""
    with closing(RunStore(opens=False)) as store:
        for _ in range(3):
            with pytest.raises(StoreAwayError, match="does not answer"):
                store.open(0.0)
        stuck.answer()
        store.open(LIMIT_S)
        assert store.runs() == []
        assert stuck.n_asked == 1
        store.open(0.0)


def test_a_try_that_failed_does_not_undo_the_next_one(
    vitprof_home: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that learns late of its failure left the store to be opened a second time, beside its users."""
    is_failing = [True]
    n_opened: list[int] = []
    has_learned = threading.Event()
    may_go_on = threading.Event()
    really_open = database.Database._open
    really_result = Attempt.result

    def opened(store: Any) -> None:
        n_opened.append(1)
        if is_failing:
            raise StoreAwayError("it is restarting", "it is restarting")
        really_open(store)

    def result_late(attempt: Attempt[None], within_s: float | None) -> None:
        try:
            really_result(attempt, within_s)
        finally:
            if threading.current_thread() is late:
                has_learned.set()
                assert may_go_on.wait(LIMIT_S)

    def try_to_open() -> None:
        with contextlib.suppress(StoreAwayError):
            store.open()

    monkeypatch.setattr(database.Database, "_open", opened)
    monkeypatch.setattr(Attempt, "result", result_late)
    with closing(RunStore(opens=False)) as store:
        late = threading.Thread(target=try_to_open)
        late.start()
        assert has_learned.wait(LIMIT_S)
        try_to_open()
        is_failing.clear()
        store.open()
        may_go_on.set()
        late.join(LIMIT_S)
        store.open()
        assert store.runs() == []
    assert len(n_opened) == 2


def test_bringing_a_store_to_this_version_may_take_longer(
    vitprof_home: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_made = database.Database._made_or_migrated
    is_made = threading.Event()

    def made_slowly(store: Any, *args: Any) -> Any:
        assert store._has_answered.is_set()
        is_made.set()
        return really_made(store, *args)

    monkeypatch.setattr(database.Database, "_made_or_migrated", made_slowly)
    with closing(RunStore()) as store:
        assert store.runs() == []
    assert is_made.is_set()


def test_a_store_that_is_not_open_takes_nothing(vitprof_home: Any) -> None:
    with closing(RunStore(opens=False)) as store, pytest.raises(StoreAwayError, match="not open"):
        store.runs()


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("postgresql+psycopg://h/d", {"connect_timeout": 5, "tcp_user_timeout": 30_000}),
        ("postgresql+psycopg://h/d?connect_timeout=60", {"tcp_user_timeout": 30_000}),
        ("postgresql+pg8000://h/d", {}),
        ("sqlite:///x", {}),
    ],
)
def test_what_the_driver_is_told(
    url: str, named: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGCONNECT_TIMEOUT", raising=False)
    arguments = connections.connect_arguments(sa.make_url(url))
    assert {n: v for n, v in arguments.items() if not n.startswith("keepalives")} == named
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "7")
    assert "connect_timeout" not in connections.connect_arguments(sa.make_url(url))


class Silent:
    """A connection whose server sends what `came` says, at these times (s)."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("psycopg")
        self.now_s = 0.0
        self.closed = False
        kind = connections._limited_connection()
        patch.setattr(connections.time, "monotonic", lambda: self.now_s)
        patch.setattr(kind, "close", lambda _: setattr(self, "closed", True))
        patch.setattr(kind, "__del__", lambda _: None)
        self._connection = kind.__new__(kind)

    def query(self, came: dict[float, int]) -> Any:
        """Does what psycopg does: looks, and goes on with what is there, 0 for nothing."""

        def steps() -> Any:
            for _ in range(3):
                while not (yield 1):
                    pass
            return "rows"

        limited = self._connection._limited(steps())
        next(limited)
        try:
            for at_s, ready in came.items():
                self.now_s = at_s
                limited.send(ready)
        except StopIteration as over:
            return over.value
        return None


def test_a_server_that_is_silent_too_long_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = Silent(monkeypatch)
    with pytest.raises(Exception, match="timeout expired") as raised:
        silent.query({0.1: 0, 29.9: 0, 30.0: 0})
    assert connections.is_unanswered(raised.value)
    assert silent.closed


def test_one_that_says_something_now_and_then_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = Silent(monkeypatch)
    assert silent.query({29.0: 1, 58.0: 1, 87.0: 1}) == "rows"
    assert not silent.closed


@pytest.fixture
def paused(server: Server) -> Iterator[list[psutil.Process]]:
    """All processes of the server, once a test has stopped them; they go on afterwards."""
    stopped = list[psutil.Process]()
    yield stopped
    for process in stopped:
        # one whose program hung up has ended
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


@pytest.mark.measured
def test_a_server_that_is_paused_within_a_query(
    server: Server,
    paused: list[psutil.Process],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its machine goes on answering, so the system sees nothing wrong."""
    with closing(RunStore(server.database())) as store:
        assert store.runs() == []
        with store.transaction() as db:
            monkeypatch.setattr(db.connection.driver_connection, "answer_within_s", 1.0)
        paused += server.processes()
        for process in paused:
            process.suspend()
        began_s = time.monotonic()
        with pytest.raises(StoreAwayError, match="does not answer"):
            store.runs()
        assert time.monotonic() - began_s < LIMIT_S / 2
        with pytest.raises(StoreAwayError, match="does not answer"):
            RunStore(f"{store._parsed.render_as_string()}&connect_timeout=2")
        for process in paused:
            process.resume()
        paused.clear()
        assert store.runs() == []


@pytest.mark.measured
def test_an_address_at_which_nobody_ever_answers(vitprof_home: Any) -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        began_s = time.monotonic()
        with pytest.raises(StoreAwayError, match="does not answer: see whether it can be reached"):
            RunStore(f"postgresql://me:s3cret@127.0.0.1:{mute.getsockname()[1]}/x")
    assert time.monotonic() - began_s < LIMIT_S / 2


def test_a_line_of_the_command_line(
    stuck: Stuck, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "OPEN_WITHIN_S", 0.01)
    status, out, err = call("runs")
    assert (status, out) == (1, "")
    assert err.startswith("vitprof: the run store sqlite:///")
    assert err.count("\n") == 1
