"""A script ends after exactly so many steps, by the count of the core, which is asked as seldom as can be.

The core is the real one, and the script is written by hand.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import pytest

from tests.watch.core.written import CHECK, MAIN, OTHER, TRAIN, Script
from vitprof.measure.wire import Note
from vitprof.watch.core.log import row_of
from vitprof.watch.core.messages import RunMessages
from vitprof.watch.events import Kind
from vitprof.watch.patches.limits import StepLimit, ThreadState

N = 7


class EnoughError(Exception):
    """Is raised where the script would be ended."""


class Limited(Script):
    """A script whose hooks ask for a limit of `N` steps, as those of a real one do."""

    def __init__(self) -> None:
        super().__init__()
        self.run = RunMessages({})
        self.limit = StepLimit(N, self._ask, self._reached)
        self.n_asked = 0
        self.ended: ThreadState | None = None
        self._n_sent = 0
        self.n_told = 0
        """Steps that a run was told of."""

    def _add(self, kind: Kind, thread: int, number: int, *values: float) -> None:
        super()._add(kind, thread, number, *values)
        if kind is Kind.REQUESTED:
            _, gradients = values
            self.limit.requested(gradients=gradients == 1.0)
        elif kind is Kind.BACKWARD:
            self.limit.worked()
        elif kind is Kind.STEPPED:
            self.limit.updated()

    def _ask(self) -> ThreadState:
        self.n_asked += 1
        new = self.log.events[self._n_sent :]
        self._n_sent = len(self.log.events)
        self.run.add(self.log.descriptions.values(), [row_of(event) for event in new])
        told = self.run.settle(self.now_s)
        self.n_told += sum(len(each["step"]) for each in told if not isinstance(each, Note))
        answer = self.run.answer(Note("steps", {"thread": MAIN})).values
        return ThreadState(answer["ended"], answer["loader"])

    def _reached(self, ended: ThreadState) -> None:
        self.ended = ended
        raise EnoughError


def plain(script: Script) -> None:
    script.train()


def fetches_two_at_once(script: Script) -> None:
    script.fetch(TRAIN)
    script.train()


def zips_two_loaders(script: Script) -> None:
    script.fetch(OTHER)
    script.train()


def evaluates_after_each_step(script: Script) -> None:
    script.train()
    script.fetch(CHECK, quiet=True)


def evaluates_with_gradients(script: Script) -> None:
    script.train(2)
    script.fetch(CHECK)
    script.backward()


def asks_without_gradients(script: Script) -> None:
    script.fetch(TRAIN, quiet=True)
    script.backward()
    script.update()


def trains_on_batches_that_nobody_sees(script: Script) -> None:
    script.backward()
    script.update()


def accumulates_without_gradients(script: Script) -> None:
    script.fetch(TRAIN, quiet=True)
    script.backward()
    asks_without_gradients(script)


def evaluates_often_and_asks_without_gradients(script: Script) -> None:
    asks_without_gradients(script)
    for _ in range(5):
        script.fetch(CHECK, quiet=True)


def updates_three_times_on_a_batch(script: Script) -> None:
    script.train()
    for _ in range(2):
        script.backward()
        script.update()


@pytest.mark.parametrize(
    "body",
    [
        plain,
        fetches_two_at_once,
        zips_two_loaders,
        evaluates_after_each_step,
        evaluates_with_gradients,
        asks_without_gradients,
        accumulates_without_gradients,
        evaluates_often_and_asks_without_gradients,
        trains_on_batches_that_nobody_sees,
        updates_three_times_on_a_batch,
    ],
)
def test_a_script_ends_after_exactly_so_many_steps(body: Callable[[Script], None]) -> None:
    script = Limited()
    with contextlib.suppress(EnoughError):
        for _ in range(10 * N):
            body(script)
    assert script.ended is not None
    assert script.ended.steps == N
    told = script.run.close()
    n_told = sum(len(each["step"]) for each in told if not isinstance(each, Note))
    assert script.n_told + n_told == N, "the last one is whole, and none has begun after it"


def test_the_first_question_is_at_the_soonest_possible_step() -> None:
    script = Limited()
    script.train(N)
    assert script.n_asked == 0, "the last one has not ended"
    with pytest.raises(EnoughError):
        script.fetch(TRAIN)
    assert script.n_asked == 1
    assert script.ended == ThreadState(N, TRAIN)


def test_after_an_answer_it_is_asked_when_there_can_be_as_many_as_are_missing() -> None:
    asked: list[int] = []
    n_requests = 0

    def ask() -> ThreadState:
        asked.append(n_requests)
        return ThreadState(n_requests // 2, TRAIN)

    limit = StepLimit(10, ask, lambda ended: None)
    for n_requests in range(1, 21):  # noqa: B007
        limit.requested()
    assert asked == [11, 16, 18, 19, 20]


def test_an_update_counts_only_without_a_request_before_it() -> None:
    """As where a script trains on batches that no hook sees."""
    limit = StepLimit(3, lambda: pytest.fail("two steps have ended at most"), pytest.fail)
    for _ in range(3):
        limit.requested()
        limit.updated()
    reached: list[ThreadState] = []
    limit = StepLimit(3, lambda: ThreadState(3, TRAIN), reached.append)
    for _ in range(3):
        limit.requested()
        limit.updated()
    limit.updated()
    assert reached == [ThreadState(3, TRAIN)]


def test_a_thread_that_only_fetches_is_not_ended() -> None:
    reached: list[ThreadState] = []
    asked: list[int] = []

    def ask() -> ThreadState:
        asked.append(threading.get_ident())
        return ThreadState(0, 0)

    limit = StepLimit(3, ask, reached.append)
    limit.requested()
    fetching = threading.Thread(target=lambda: [limit.requested() for _ in range(10)])
    fetching.start()
    fetching.join()
    assert reached == []
    assert set(asked) == {fetching.ident}, "each thread is counted by itself"
    assert len(asked) == len(range(4, 11, 3))


def test_where_nobody_answers_nobody_is_asked_again() -> None:
    asked: list[None] = []
    limit = StepLimit(2, lambda: asked.append(None), lambda _: pytest.fail("nobody said so"))
    for _ in range(20):
        limit.requested()
    assert len(asked) == 1
