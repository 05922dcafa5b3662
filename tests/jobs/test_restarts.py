"""A training that its launcher started again is one run, with the steps of all starts."""

import json
import queue
import socket
import sys
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
import pytest

from tests import ROOT
from tests.jobs.test_command import recorded
from tests.watch.core.written import MAIN, Script
from vitprof.jobs import nodes
from vitprof.jobs.collector import Listener
from vitprof.jobs.command import CommandRunner
from vitprof.jobs.nodes import Place, Places
from vitprof.jobs.restarts import Start, StepsOfStarts, restarts_in_words
from vitprof.measure.wire import Message, Note, write_message
from vitprof.store import RunStore
from vitprof.watch.core.log import row_of
from vitprof.watch.events import COLUMNS, Kind

LIMIT_S = 60.0
FIRST, SECOND = "a" * 32, "b" * 32
"""Ids of the stores by which processes met."""


def process(rank: int = 0, restarts: int = 0, meeting: str = FIRST, **more: Any) -> dict[str, Any]:
    """What a rank of torchrun's says as it connects."""
    facts = {"pid": 100 * restarts + rank + 1, "world_size": 2, "rank": rank, "local_rank": rank}
    job = f"10.0.0.1/29500/none//{meeting}" if meeting else ""
    return {
        **facts,
        "recorded": True,
        "launcher": "there",
        "restarts": restarts,
        "job": job,
        **more,
    }


def steps(n: int, epoch: float = 0.0) -> dict[str, np.ndarray]:
    return {"step": np.arange(n, dtype=float), "epoch": np.full(n, epoch)}


@pytest.mark.parametrize(
    ("later", "is_restart"),
    [
        (process(restarts=1, meeting=SECOND), True),
        (process(restarts=1, meeting=""), True),
        (process(meeting=SECOND), True),  # a node has joined or left, which torchrun does not count
        (process(rank=1), False),
        (process(meeting=""), False),
        (process(restarts=1, meeting=SECOND, launcher="elsewhere"), False),
        (process(restarts=1, meeting=SECOND, launcher=""), False),
    ],
)
def test_which_process_is_of_a_later_start(later: dict[str, Any], is_restart: bool) -> None:
    first, second = Start.of(process()), Start.of(later)
    assert second.follows(first) is is_restart
    assert not first.follows(second) or first.meeting != second.meeting


def placed(places: Places, **of: Any) -> Place | None:
    described = process(**of)
    return places.place(described, described)


def test_the_processes_of_a_later_start_have_the_places_of_those_before() -> None:
    places = Places(lambda facts: None)
    for rank in (1, 0):
        assert placed(places, rank=rank) == Place(rank, 0)
        assert placed(places, rank=rank) is None, "another training of this start"
    assert not places.leave(Place(1, 0))
    assert places.leave(Place(0, 0)), "the run may be over"
    assert placed(places, restarts=2, meeting=SECOND) == Place(0, 1)
    assert placed(places, rank=1, restarts=2, meeting=SECOND) == Place(1, 1)
    assert placed(places, restarts=2, meeting=SECOND) is None
    assert (places.first, places.n_restarts) == (0, 2), "the first of them trained nothing"
    assert not places.leave(Place(1, 1))
    assert places.leave(Place(0, 1))
    assert places.unrecorded().startswith("2 other processes of the command trained")


def test_nodes_may_have_other_numbers_after_a_restart() -> None:
    """Who comes first to the new rendezvous has rank 0."""
    places = Places(lambda facts: None)
    assert placed(places, rank=2, local_rank=0) == Place(2, 0)
    assert placed(places, rank=3, local_rank=1) == Place(3, 0)
    for rank in (2, 3):
        places.leave(Place(rank, 0))
    assert placed(places, rank=0, local_rank=0, meeting=SECOND) == Place(2, 1)
    assert placed(places, rank=1, local_rank=1, meeting=SECOND) == Place(3, 1)


def test_a_training_beside_one_that_goes_on_is_none_of_its_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A script of torchrun's that starts another one gives it its own environment."""
    monkeypatch.setattr(nodes, "ENDED_WITHIN_S", 0.01)
    places = Places(lambda facts: None)
    assert placed(places) == Place(0, 0)
    assert placed(places, meeting=SECOND) is None
    assert (places.n_restarts, places.steps.restarted_at) == (0, [])


def test_two_trainings_of_one_shell_are_two() -> None:
    """Each with a torchrun of its own, whose id is "none" by default."""
    places = Places(lambda facts: None)
    assert placed(places) == Place(0, 0)
    places.leave(Place(0, 0))
    assert placed(places, meeting=SECOND, launcher="another") is None
    assert places.unrecorded()


def test_steps_of_all_starts_are_one_series_for_all_ranks() -> None:
    of_starts = StepsOfStarts()
    # Rank 0 has made one step less when the job was ended.
    for n in (5, 6):
        assert of_starts.numbered(steps(n, epoch=1.0), 0) is not None
    of_starts.begin(SECOND)
    assert of_starts.restarted_at == [{"step": 6, "meeting": SECOND}]
    for _ in range(2):
        again = of_starts.numbered(steps(4), 1)
        assert again is not None
        assert (again["step"].tolist(), set(again["epoch"])) == ([6, 7, 8, 9], {2.0})
    assert of_starts.numbered(steps(9), 0) is None, "these numbers are taken"


def test_what_is_counted_is_added_up_over_the_starts() -> None:
    of_starts = StepsOfStarts()
    for n in (3, 7):
        facts = of_starts.facts({"unknown_wait_steps": n, "fetched_by": "a thread"})
        assert facts == {"unknown_wait_steps": n, "fetched_by": "a thread"}
    of_starts.begin(SECOND)
    assert of_starts.facts({"unknown_wait_steps": 2}) == {"unknown_wait_steps": 9}
    assert of_starts.facts({"unknown_wait_steps": 4}) == {"unknown_wait_steps": 11}
    assert of_starts.facts({"unclear_loaders_steps": 1}) == {"unclear_loaders_steps": 1}


def test_what_is_said_of_restarts() -> None:
    at = [{"step": 40, "meeting": ""}, {"step": 1081, "meeting": ""}]
    assert restarts_in_words(0, []) == ""
    assert restarts_in_words(1, at[:1]) == (
        "its launcher started the training again 1 time: step 40 is the first one of a new start, "
        "and the time between the starts is in no figure"
    )
    assert "again 2 times: steps 40 and 1,081 are the first ones" in restarts_in_words(2, at)
    assert restarts_in_words(3, []).endswith("3 times before any step was seen")


class Connected:
    """A process that sends its events."""

    def __init__(self, ours: socket.socket, described: dict[str, Any]) -> None:
        self._ours = ours
        self._stream: IO[bytes] = ours.makefile("wb")
        self._send(Note("process", described))

    def trains(self, n: int, *, finishes: bool = False) -> None:
        script = Script()
        script.train(n)
        if finishes:
            script.work(Kind.FINISHED)
        for each in script.log.descriptions.values():
            facts = {"number": each.number, "kind": each.kind, "facts": each.facts}
            self._send(Note("described", facts))
        rows = np.array([row_of(event) for event in script.log.events], dtype=float)
        self._send(dict(zip(COLUMNS, rows.T, strict=True)))

    def asks(self) -> dict[str, Any]:
        self._send(Note("steps", {"thread": MAIN}))
        return dict(json.loads(self._ours.recv(4096)))

    def ends(self) -> None:
        self._stream.close()
        self._ours.close()

    def _send(self, message: Message) -> None:
        write_message(self._stream, message)
        self._stream.flush()


class Command:
    """Who listens to the processes of a command, which connect one after another."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[socket.socket | None] = queue.Queue()
        self.listener = Listener(self._connections(), "restarts")

    def _connections(self) -> Iterator[socket.socket]:
        yield from iter(self._waiting.get, None)

    def starts(self, **of: Any) -> Connected:
        ours, theirs = socket.socketpair()
        ours.settimeout(LIMIT_S)
        connected = Connected(ours, process(**of))
        self._waiting.put(theirs)
        return connected

    def told(self) -> list[Message]:
        """Returns all that a run was told, after the end."""
        self._waiting.put(None)
        self.listener.join(LIMIT_S)
        told = []
        while not self.listener.inbox.empty():
            message = self.listener.inbox.get_nowait()
            if message is not None:
                told.append(message)
        return told


def test_a_run_is_told_of_one_training() -> None:
    command = Command()
    for restarts, n in enumerate((6, 8)):
        ranks = [
            command.starts(rank=rank, restarts=restarts, meeting=(FIRST, SECOND)[restarts])
            for rank in range(2)
        ]
        for rank in ranks:
            # the second one is killed within a step
            rank.trains(n, finishes=bool(restarts))
        for rank in ranks:
            rank.ends()
    told = command.told()
    notes = [each for each in told if isinstance(each, Note)]
    kinds = [note.kind for note in notes if note.kind != "rank"]
    assert kinds == ["environment", "stage", "restarted", "stage", "end"]
    assert next(note.values for note in notes if note.kind == "restarted") == {
        "restarts": 1,
        "restarted_at": [{"step": 6, "meeting": SECOND}],
    }
    assert {note.values["pid"] for note in notes if note.kind == "rank"} == {1, 2, 101, 102}
    of_ranks: dict[float, list[float]] = {0.0: [], 1.0: []}
    for each in told:
        if not isinstance(each, Note):
            rank = each["rank"][0] if "rank" in each else 0.0
            of_ranks[rank] += each["step"].tolist()
    assert of_ranks == {0.0: list(range(14)), 1.0: list(range(14))}


def test_a_run_whose_first_rank_trained_only_after_the_restart_begins_with_that() -> None:
    command = Command()
    first = command.starts(rank=1)
    first.trains(6)
    first.ends()
    second = command.starts(restarts=1, meeting=SECOND)
    second.trains(8, finishes=True)
    second.ends()
    notes = [each for each in command.told() if isinstance(each, Note)]
    kinds = [note.kind for note in notes if note.kind != "rank"]
    assert kinds == ["restarted", "environment", "stage", "end"]


def test_each_start_counts_its_own_steps_towards_a_limit() -> None:
    command = Command()
    for restarts in range(2):
        rank = command.starts(restarts=restarts, meeting="", world_size=1)
        rank.trains(6)
        assert rank.asks()["ended"] == 5
        rank.ends()
    told = [each["step"] for each in command.told() if not isinstance(each, Note)]
    assert np.concatenate(told).tolist() == list(range(12))


STARTED_AGAIN = """
import os, socket
from tests.jobs.test_restarts import Connected, SECOND, process
for restarts, n in enumerate((40, 60)):
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ["VITPROF_WATCH_SOCKET"])
    started = Connected(connection, process(restarts=restarts, world_size=1, meeting=""))
    started.trains(n, finishes=restarts == 1)
    started.ends()
"""


def test_a_run_that_was_started_again_has_all_steps_and_says_so(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an elastic restart the run was the first attempt alone: 39 of 159 steps, with a verdict."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    run = recorded(store, "again", lambda: CommandRunner([sys.executable, "-c", STARTED_AGAIN]))
    assert (run.status, run.error) == ("done", "")
    assert "partly_watched" not in run.facts, "the first start was ended by its launcher"
    assert run.notices == (
        "its launcher started the training again 1 time: step 40 is the first one of a new start, "
        "and the time between the starts is in no figure",
    )
    assert (run.facts["restarts"], run.facts["restarted_at"]) == (
        1,
        [{"step": 40, "meeting": ""}],
    )
    of_run = store.steps(run.id)
    assert of_run["step"].tolist() == list(range(100))
    assert np.flatnonzero(of_run["warmup"]).tolist() == [*range(5), *range(40, 45)]
    assert np.flatnonzero(np.diff(of_run["epoch"])).tolist() == [39]
    assert run.summary.n_steps == 100
