"""What the screen says of a store that is away, and that its keys are answered meanwhile."""

import io
import select
import threading
from collections.abc import Iterator

import pytest
from rich.console import Console

from vitprof.cli.top.reading import StoreReader
from vitprof.cli.top.rows import Snapshot
from vitprof.cli.top.screen import REFRESH_S, SILENT_S, TopScreen, Wakeups
from vitprof.errors import StoreAwayError, StoreError, StoreGoneError

WITHIN_S = 60.0
CONSOLE = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), width=80, height=8)


class Reader(StoreReader):
    """Reads a store that is away, silent or gone, as it is told."""

    def __init__(self) -> None:
        self.error: StoreError | None = None
        self.may_answer = threading.Event()
        self.may_answer.set()

    def read(self, opened: int | None = None) -> Snapshot:
        assert self.may_answer.wait(WITHIN_S)
        if self.error is not None:
            raise self.error
        return Snapshot(at_s=0.0, opened=opened)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def reader() -> Reader:
    return Reader()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def wakeups() -> Wakeups:
    return Wakeups()


@pytest.fixture
def top(reader: Reader, wakeups: Wakeups, clock: Clock) -> Iterator[TopScreen]:
    made = TopScreen(reader, Snapshot(at_s=0.0), wakeups, clock)
    yield made
    reader.may_answer.set()
    made.end()


def read_again(top: TopScreen, clock: Clock, wakeups: Wakeups) -> str:
    """Lets the next read be due, begin and end; returns the last line of the screen."""
    clock.now_s += REFRESH_S
    top.refresh()
    ready, _, _ = select.select([wakeups.fd], [], [], WITHIN_S)
    assert ready, "the end of a read wakes"
    wakeups.clear()
    top.refresh()
    return last_line(top)


def last_line(top: TopScreen) -> str:
    return top.picture(CONSOLE).plain.splitlines()[-1]


def test_a_store_that_is_away_is_said_until_it_is_back(
    top: TopScreen, reader: Reader, clock: Clock, wakeups: Wakeups
) -> None:
    assert last_line(top).startswith("q quit")
    reader.error = StoreAwayError("the run store x failed: no route", "no route")
    assert read_again(top, clock, wakeups) == "the run store x failed: no route"
    assert read_again(top, clock, wakeups) == "the run store x failed: no route"
    reader.error = None
    assert read_again(top, clock, wakeups).startswith("q quit")


def test_a_store_that_is_gone_ends_it(
    top: TopScreen, reader: Reader, clock: Clock, wakeups: Wakeups
) -> None:
    reader.error = StoreGoneError("its file was deleted", "deleted")
    with pytest.raises(StoreGoneError):
        read_again(top, clock, wakeups)


def test_a_store_that_is_silent_is_said_and_read_by_one_thread_only(
    top: TopScreen, reader: Reader, clock: Clock
) -> None:
    reader.may_answer.clear()
    clock.now_s += REFRESH_S
    top.refresh()
    before = threading.active_count()
    clock.now_s += SILENT_S + 1
    top.refresh()
    assert threading.active_count() == before
    assert last_line(top) == "the run store does not answer; this is what it said before"
