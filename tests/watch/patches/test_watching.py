"""How the watching of a process begins, pauses and ends, without a thread that sends or a program that
listens."""

from __future__ import annotations

import os
import signal
import struct
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.forking import exit_status_of, fork_doing
from tests.watch.test_transport import Clock, FakeConnection
from vitprof.measure.wire import Note
from vitprof.watch import transport
from vitprof.watch.events import FORKED, NAN, Description, Kind
from vitprof.watch.patches import CURRENT, watching
from vitprof.watch.patches.replay import ReplayPlan
from vitprof.watch.patches.watching import EnoughSteps, Watching, step_limit
from vitprof.watch.runs import Planned

VARIABLES = (
    "SOCKET",
    "STEPS",
    "DETACH_AFTER",
    "OVERRIDES",
    "HEADROOM",
    "LOG_TO",
    "DATA",
    "CONVERT",
)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeConnection]:
    """The program that listens."""
    for name in VARIABLES:
        monkeypatch.delenv(f"VITPROF_WATCH_{name}", raising=False)
    clock = Clock()
    connection = FakeConnection(clock)
    monkeypatch.setattr(transport, "perf_counter", clock)
    monkeypatch.setattr(watching, "connect", lambda: connection)
    before = CURRENT.recorder
    yield connection
    CURRENT.recorder = before


def trains(watched: Watching) -> None:
    watched.recorder.emit((Kind.STEPPED, 1.5, 7, 3, NAN, NAN, NAN))


def planned(*, quiet: bool = False) -> Planned:
    loader = SimpleNamespace()
    return Planned("mine", quiet, (), lambda: loader, replaces=False)  # type: ignore[arg-type]


def test_it_gives_up_once_in_one_line(
    program: FakeConnection, capsys: pytest.CaptureFixture[str]
) -> None:
    watched = Watching()
    CURRENT.recorder = watched.recorder
    watched.give_up("a defect\nof two lines")
    watched.give_up("again")
    line = "vitprof: gave up watching (a defect); training goes on\n"
    assert capsys.readouterr().err == line
    assert CURRENT.recorder is None
    assert watched.over
    trains(watched)
    assert Kind.STEPPED not in [row[0] for row in watched.recorder.buffer.take()[1]]


def test_a_fork_waits_for_nothing_that_another_thread_held(program: FakeConnection) -> None:
    """A script may fork by itself while a tracker writes."""
    watched = Watching()
    held = threading.Event()
    over = threading.Event()

    def write() -> None:
        with watched.recorder.forking:
            held.set()
            over.wait()

    thread = threading.Thread(target=write)
    thread.start()
    held.wait()
    watched.begin_anew_or_stop()  # as in the fork
    try:
        assert watched.recorder.forking.acquire(blocking=False)
    finally:
        over.set()
        thread.join()
        watched.finish()


def test_in_a_trial_it_ends_the_script(
    program: FakeConnection, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing else would end it after its steps."""
    ended: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *args: ended.append(args))
    monkeypatch.setenv("VITPROF_WATCH_OVERRIDES", "{}")
    Watching().give_up("gone")
    assert ended == [(os.getpid(), signal.SIGTERM)]
    assert "the trial ends" in capsys.readouterr().err


def test_a_hook_that_fails_ends_it(
    program: FakeConnection, capsys: pytest.CaptureFixture[str]
) -> None:
    watched = Watching()
    watched.recorder.give_up(ValueError("odd"))
    assert "gave up watching (ValueError: odd)" in capsys.readouterr().err
    assert watched.over


def test_to_detach_takes_all_hooks_back_and_sends_what_is_left(program: FakeConnection) -> None:
    watched = Watching()
    removed: list[None] = []
    hooks: Any = SimpleNamespace(remove=lambda: removed.append(None))
    watched.installed.append(hooks)
    trains(watched)
    watched.detach()
    assert removed == [None]
    assert program.is_closed
    (events,) = program.messages()
    assert isinstance(events, dict)
    assert events["kind"].tolist() == [Kind.STEPPED, Kind.FINISHED]


def test_a_script_that_clears_its_environment_is_recorded_by_the_command_around_it(
    program: FakeConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(watching, "connect_to_command", lambda path: asked.append(path) or program)
    monkeypatch.setenv("VITPROF_WATCH_SOCKET", "/there")
    watched = Watching()
    monkeypatch.delenv("VITPROF_WATCH_SOCKET")
    trains(watched)
    watched.finish()
    assert asked == ["/there"]


def test_the_end_of_the_process_takes_all_hooks_back(program: FakeConnection) -> None:
    """Python clears the modules, and then frees iterators that are left: hooks would fail by then."""
    watched = Watching()
    CURRENT.recorder = watched.recorder
    removed: list[None] = []
    hooks: Any = SimpleNamespace(remove=lambda: removed.append(None))
    watched.installed.append(hooks)
    trains(watched)
    watched.finish()
    assert removed == [None]
    assert CURRENT.recorder is None
    assert program.is_closed


def test_a_run_that_is_over_for_now_is_said_with_its_number(
    program: FakeConnection, capsys: pytest.CaptureFixture[str]
) -> None:
    watched = Watching()
    watched.plan(planned())
    trains(watched)
    program.coming = [[{"run": 12}]]
    watched.pause("done", "")
    watched.pause("done", "")
    err = capsys.readouterr().err
    assert err.startswith("vitprof: recorded as run 12: see ")
    assert err.count("\n") == 1, "it was over"
    end, events = program.messages()
    assert not isinstance(end, dict)
    assert end.values["facts"] == {"status": "done", "error": ""}
    assert isinstance(events, dict)
    assert events["kind"].tolist() == [Kind.STEPPED, Kind.PAUSED]
    assert events["object"][-1] == end.values["number"]


def test_a_run_without_a_number_yet_is_being_recorded(
    program: FakeConnection, capsys: pytest.CaptureFixture[str]
) -> None:
    watched = Watching()
    watched.plan(planned())
    trains(watched)
    watched.pause("done", "")
    assert capsys.readouterr().err.startswith("vitprof: the run is being recorded: see ")


@pytest.mark.parametrize("case", ["quiet", "nothing trained", "around the script"])
def test_nothing_is_said_of_a_run(
    program: FakeConnection,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    case: str,
) -> None:
    """That of a command around the script is said by the command."""
    if case == "around the script":
        monkeypatch.setenv("VITPROF_WATCH_SOCKET", "somewhere")
    watched = Watching()
    watched.plan(planned(quiet=case == "quiet"))
    if case != "nothing trained":
        trains(watched)
    program.coming = [[{"run": 12}]]
    watched.pause("done", "")
    assert capsys.readouterr().err == ""


def test_the_end_of_a_run_is_sent_and_what_follows_is_another_connections(
    program: FakeConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport.Transport, "begin", lambda self: None)
    watched = Watching()
    watched.plan(planned(quiet=True))
    trains(watched)
    watched.end_run("failed", "no more")
    assert program.is_closed
    second = FakeConnection(program.clock)
    monkeypatch.setattr(watched._transport, "_connect_to", lambda: second)
    watched.begin_run(planned(quiet=True))
    trains(watched)
    watched.pause("done", "")
    assert second.kinds()[-1] == "events"


@pytest.mark.parametrize("makes_workers", [False, True])
@pytest.mark.parametrize("parent_trains", [False, True])
def test_a_fork_of_a_process_that_trains_and_a_worker_record_nothing(
    program: FakeConnection,
    monkeypatch: pytest.MonkeyPatch,
    makes_workers: bool,
    parent_trains: bool,
) -> None:
    """Any other child may train itself."""
    begun: list[None] = []
    program.forget = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setattr(transport.Transport, "begin", lambda self: begun.append(None))
    monkeypatch.setattr(watching, "makes_workers", lambda: makes_workers)
    watched = Watching()
    CURRENT.recorder = watched.recorder
    if parent_trains:
        trains(watched)
        watched._transport._flush()
    watched.begin_anew_or_stop()
    records = not (makes_workers or parent_trains)
    assert len(begun) == records
    assert (CURRENT.recorder is not None) is records
    assert watched.over is not records


@pytest.mark.parametrize(
    ("forks", "is_told"),
    [
        (("child",), True),
        (("child", "child"), True),
        (("worker",), False),
        (("child", "worker"), False),
    ],
)
@pytest.mark.parametrize("was_sent", [False, True])
def test_a_process_that_trains_tells_once_that_what_it_forked_trains_too(
    program: FakeConnection,
    monkeypatch: pytest.MonkeyPatch,
    forks: tuple[str, ...],
    is_told: bool,
    was_sent: bool,
) -> None:
    """Not of the workers of loaders. `was_sent`: whether its own training was by then."""
    program.forget = lambda: None  # type: ignore[attr-defined]
    watched = Watching()

    def fork_each(kinds: tuple[str, ...]) -> int:
        if not kinds:
            trains(watched)
            return 0
        kind, *others = kinds

        def live() -> int:
            monkeypatch.setattr(watching, "makes_workers", lambda: kind == "worker")
            watched.begin_anew_or_stop()
            return fork_each(tuple(others))

        return exit_status_of(fork_doing(live))

    trains(watched)
    if was_sent:
        watched._transport._flush()
    assert fork_each(forks) == 0
    watched._transport._flush()
    watched._transport._flush()
    notes = [message for message in program.messages() if isinstance(message, Note)]
    described = [note.values["kind"] for note in notes if note.kind == "described"]
    assert described.count(FORKED) == is_told


def test_a_fork_waits_for_no_thread_that_described_something(program: FakeConnection) -> None:
    watched = Watching()
    trains(watched)
    with watched.recorder._numbering:
        watched.begin_anew_or_stop()  # as in the fork
        assert watched.recorder.describe("optimizer", {})


def test_what_is_forked_after_the_watching_tells_nothing(program: FakeConnection) -> None:
    watched = Watching()
    trains(watched)
    watched.detach()

    def train_there() -> None:
        watched.begin_anew_or_stop()
        trains(watched)

    assert exit_status_of(fork_doing(train_there)) == 0
    assert not watched._forked.is_news()


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no memory without a file")
def test_the_program_that_records_learns_where_to_see_a_wait(program: FakeConnection) -> None:
    watched = Watching()
    words = watched.recorder.pending
    header = watched._header()
    assert watched.recorder.pending is not words
    assert watched._header() == header, "the same for each run of a script"
    watched.recorder.pending[0] = 4.5
    shown = os.pread(header["pending"], 8, 0)
    assert struct.unpack("=d", shown) == (4.5,)
    watched.begin_anew_or_stop()
    watched.recorder.pending[0] = 7.5
    assert os.pread(header["pending"], 8, 0) == shown, "a fork says nothing of its parent"


def test_headroom_begins_or_is_refused_by_the_cores_word(
    program: FakeConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITPROF_WATCH_HEADROOM", "1")
    watched = Watching()
    headroom = watched.recorder.headroom
    assert isinstance(headroom, ReplayPlan)
    assert watched._header()["headroom"]
    assert watched._received({"headroom": 4, "facts": {}})
    assert headroom._train.is_it(Description(4, "loader", {}))
    assert watched._received({"headroom": 0, "refused": "several loaders"})
    assert headroom.refused == "several loaders"
    assert not watched._received({"answer": "steps"})


def test_without_a_limit_no_steps_are_counted(program: FakeConnection) -> None:
    watched = Watching()
    assert step_limit(watched) is None
    assert not watched.recorder.acts


@pytest.mark.parametrize("name", ["STEPS", "DETACH_AFTER"])
def test_a_limit_ends_the_script_or_its_watching(
    program: FakeConnection, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(f"VITPROF_WATCH_{name}", "1")
    watched = Watching()
    limit = watched.recorder.limit
    assert limit is not None
    limit.requested()
    program.coming = [[{"answer": "steps", "ended": 1, "loader": 4}]]
    if name == "STEPS":
        with pytest.raises(EnoughSteps):
            limit.requested()
    else:
        limit.requested()
    assert watched.over
    assert program.is_closed
