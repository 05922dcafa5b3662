"""Where a process is in its Python code: which place is told, and how it is asked for."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.engine_fixtures import wait_until
from vitprof.jobs.stack_requests import StackRequests
from vitprof.telemetry.looks import Stack
from vitprof.watch import stack_answers
from vitprof.watch.stack_answers import FETCH, LIBRARY, StackAnswers, note_maker, stack_of

LIMIT_S = 20.0
CALLS_NEXT = "def {name}(*next):\n    return next[0](*next[1:])\n"
SITE = "/venv/lib/python3.11/site-packages"


def function(module: str, file: str, name: str) -> Callable[..., Any]:
    """A function of a module in a file, in whose second line it calls its first argument with the rest."""
    space: dict[str, Any] = {"__name__": module}
    exec(compile(CALLS_NEXT.format(name=name), file, "exec"), space)
    return space[name]


FETCHES = function(FETCH, f"{SITE}/torch/utils/data/_utils/fetch.py", "fetch")
TRAINS = function("__main__", "/home/me/train.py", "train")
DATASET = function("dataset", "/home/me/dataset.py", "__getitem__")
HELPER = function("dataset", "/home/me/dataset.py", "read")
OPENS = function("PIL.Image", f"{SITE}/PIL/Image.py", "open")
DECODES = function("PIL.JpegImagePlugin", f"{SITE}/PIL/JpegImagePlugin.py", "load")
OURS = function("vitprof.watch.fetch_times", f"{SITE}/vitprof/watch/fetch_times.py", "fetch_timed")
FOLDER = function("torchvision.datasets.folder", f"{SITE}/torchvision/folder.py", "__getitem__")
TEMPORARY = function("tempfile", f"{LIBRARY}/tempfile.py", "mkstemp")


@pytest.mark.parametrize(
    ("calls", "own", "library"),
    [
        ((TRAINS, OURS, FETCHES, DATASET, OPENS), "dataset.py:2", "PIL.Image.open"),
        (
            (TRAINS, OURS, FETCHES, DATASET, HELPER, OPENS, DECODES),
            "dataset.py:2",
            "PIL.Image.open",
        ),
        ((TRAINS, FETCHES, OURS, DATASET, OURS, TEMPORARY), "dataset.py:2", "tempfile.mkstemp"),
        ((TRAINS, FETCHES, FOLDER, OPENS), "folder.py:2", "PIL.Image.open"),
        ((TRAINS, FETCHES, FOLDER, HELPER, OPENS), "dataset.py:2", "PIL.Image.open"),
        ((TRAINS, FETCHES), "fetch.py:2", ""),
        ((TRAINS, OPENS), "", ""),
    ],
)
def test_the_innermost_place_of_the_script_in_a_batch_is_told(
    calls: tuple[Callable[..., Any], ...], own: str, library: str
) -> None:
    found = _stack_within(calls)
    assert (found["own"], found["calls"]) == (own, library)


def _stack_within(calls: tuple[Callable[..., Any], ...]) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    # the frame of the last one; what calls this is none of it
    calls[0](*calls[1:], lambda: found.append(stack_of(sys._getframe(1))))
    return found[0]


def test_frames_are_told_from_the_innermost_on_without_ours() -> None:
    found = _stack_within((TRAINS, OURS, FETCHES, DATASET, OPENS))
    assert found["frames"][:4] == [
        "PIL.Image.open 2",
        "dataset.__getitem__ 2",
        f"{FETCH}.fetch 2",
        "__main__.train 2",
    ]
    assert len(found["frames"]) <= 8


def test_of_no_thread_nothing_is_told() -> None:
    assert stack_of(None) == {"own": "", "calls": "", "frames": []}


@pytest.fixture
def answers() -> Any:
    if not sys.platform.startswith("linux"):
        pytest.skip("no sockets without a file")
    answering = StackAnswers()
    yield answering
    answering.close()
    assert answering._answering.join(LIMIT_S)
    stack_answers.MAKER.thread = None
    stack_answers.MAKER.making = None


def asked(pid: int) -> Stack:
    requests = StackRequests(lambda: 1.0)
    requests.ask([pid])
    found: dict[int, Stack] = {}

    def has_come() -> bool:
        found.update(requests.answers())
        return pid in found

    wait_until(has_come, "an answer", LIMIT_S)
    return found[pid]


def test_a_process_answers_with_the_stack_of_the_thread_that_makes_batches(answers: Any) -> None:
    go = threading.Event()
    is_there = threading.Event()

    def waits() -> None:
        note_maker(is_worker=False)
        stack_answers.MAKING.now.file = "/data/1.jpg"
        is_there.set()
        go.wait(LIMIT_S)

    thread = threading.Thread(target=lambda: FETCHES(DATASET, waits))
    thread.start()
    try:
        assert is_there.wait(LIMIT_S)
        stack = asked(os.getpid())
    finally:
        go.set()
        thread.join()
    assert stack.makes_a_batch
    assert stack.own.startswith("test_stack_answers.py:")
    assert stack.opened == "/data/1.jpg"
    assert any("waits" in each for each in stack.frames)


def test_a_process_that_does_not_answer_is_named_after_a_second() -> None:
    now = [100.0]
    requests = StackRequests(lambda: now[0])
    requests.ask([os.getpid()])
    assert requests.answers() == {}, "nobody listens here"
    now[0] += 5.0
    assert requests.unanswered == frozenset()
    answering = StackAnswers()
    try:
        # it takes the connection and sends nothing: as if its thread never got Python's lock
        answering.close()
        assert answering._answering.join(LIMIT_S)
        silent = stack_answers.socket.socket(stack_answers.socket.AF_UNIX)
        silent.bind(stack_answers.stack_address(os.getpid()))
        silent.listen(1)
        requests.ask([os.getpid()])
        now[0] += 0.9
        assert requests.unanswered == frozenset()
        now[0] += 0.2
        assert requests.unanswered == {os.getpid()}
        requests.drop()
        assert requests.unanswered == frozenset()
        silent.close()
    finally:
        answering.close()
