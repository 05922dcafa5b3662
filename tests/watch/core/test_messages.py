"""What a run is told of a watched process, by events that are written by hand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.watch.core.written import CHECK, HELPER, MAIN, OTHER, SAMPLES, TRAIN, Script
from tests.watch.core.written_device import DeviceScript
from vitprof.measure.step_columns import Columns
from vitprof.measure.wire import Message, Note
from vitprof.watch.core.log import WERE_DROPPED, row_of
from vitprof.watch.core.messages import (
    DEVICE_COLUMNS,
    FEW_UPDATES,
    RunMessages,
    is_answer,
    main_loader,
    of_process,
)
from vitprof.watch.events import COLUMNS, FORKED, NAN, Description, Kind

PROCESS = {"pid": 17, "world_size": 1, "rank": 0, "recorded": True, "python": "3.11"}


class Run:
    """A run that is told of a script, as its events arrive."""

    def __init__(self, script: Script, **process: Any) -> None:
        self.script = script
        self.messages = RunMessages({**PROCESS, **process})
        self.told: list[Message] = []
        self._n_sent = 0

    def settle(self, later_s: float = 0.0) -> list[Message]:
        """Sends what is new, and settles so much later; returns what is told."""
        events = self.script.log.events[self._n_sent :]
        self._n_sent += len(events)
        rows = [row_of(event) for event in events]
        told = self.messages.add(self.script.log.descriptions.values(), rows)
        told += self.messages.settle(self.script.now_s + later_s)
        self.told += told
        return told

    def close(self) -> Run:
        """Sends what is left; nothing follows."""
        self.settle()
        self.told += self.messages.close()
        return self

    def note(self, kind: str) -> list[dict[str, Any]]:
        return [m.values for m in self.told if isinstance(m, Note) and m.kind == kind]

    @property
    def facts(self) -> dict[str, Any]:
        """Returns what was said last of each."""
        return {name: fact for facts in self.note("facts") for name, fact in facts.items()}

    @property
    def steps(self) -> Columns:
        columns = columns_of(self.told)
        return {name: np.concatenate([each[name] for each in columns]) for name in columns[0]}


def columns_of(messages: Iterable[Message]) -> list[Columns]:
    return [message for message in messages if not isinstance(message, Note)]


def kinds(messages: Iterable[Message]) -> list[str]:
    return [m.kind if isinstance(m, Note) else "steps" for m in messages]


def described(script: Script, number: int, kind: str, **facts: Any) -> None:
    script.log.descriptions[number] = Description(number, kind, facts)


def test_nothing_is_told_before_a_step_is_certain() -> None:
    script = Script()
    run = Run(script)
    assert run.settle() == []
    script.fetch(TRAIN)
    script.backward()
    assert run.settle() == []


def test_the_environment_comes_first() -> None:
    script = Script()
    script.train(8)
    run = Run(script)
    assert kinds(run.settle()) == ["environment", "stage", "steps"]
    script.train(4)
    assert kinds(run.settle()) == ["steps"], "and once"
    (environment,) = run.note("environment")
    assert {name: environment[name] for name in ("pid", "world_size", "rank")} == {
        "pid": 17,
        "world_size": 1,
        "rank": 0,
    }
    assert "python" not in environment
    assert environment["device"] == "cpu"
    assert environment["watched"] == {"dataset": str(TRAIN), "batch_size": int(SAMPLES)}
    (stage,) = run.note("stage")
    assert stage["name"] == "training"


def test_how_batches_are_handed_over_is_of_the_loader_that_trains() -> None:
    script = Script()
    script.train(8)
    script.begin(CHECK)
    described(script, 901, "batch", loader=TRAIN, tensors=3, storages=2)
    described(script, 902, "worker", loader=TRAIN, sharing="file_system", torch_threads=1)
    described(script, 903, "iterator", loader=TRAIN, pids=[4, 5], start_method="spawn")
    described(script, 904, "worker", loader=CHECK, sharing="file_descriptor", torch_threads=9)
    run = Run(script)
    run.settle()
    assert run.facts["handed_over"] == {
        "tensors": 3,
        "storages": 2,
        "sharing": "file_system",
        "torch_threads": 1,
        "start_method": "spawn",
    }


def test_workers_are_those_of_the_loader_that_trains_and_of_what_took_its_place() -> None:
    script = Script()
    run = Run(script)
    described(script, 901, "iterator", loader=TRAIN, pids=[4, 5], start_method="fork")
    described(script, 902, "iterator", loader=CHECK, pids=[6, 7], start_method="fork")
    script.train(8)
    run.settle()
    run.settle()
    assert run.note("workers") == [{"pids": [4, 5]}], "once"
    described(script, 903, "iterator", loader=TRAIN, pids=[8, 9], start_method="fork")
    script.train(4)
    run.settle()
    assert run.note("workers")[1:] == [{"pids": [8, 9]}]


def test_each_step_is_told_once() -> None:
    script = Script()
    run = Run(script)
    for _ in range(5):
        script.train(4)
        run.settle()
    run.close()
    assert run.steps["step"].tolist() == list(range(20))
    assert run.steps["samples"].tolist() == 20 * [SAMPLES]
    assert run.messages.close() == []


def test_whether_the_process_ended_by_itself_is_told_last() -> None:
    script = Script()
    script.train(8)
    assert not Run(script).close().note("end"), "it was killed"
    script.work(Kind.FINISHED)
    run = Run(script).close()
    assert run.note("end") == [{"status": "done", "error": ""}]
    assert kinds(run.told)[-1] == "end"


def test_a_process_that_trains_nothing_tells_nothing() -> None:
    script = Script()
    for _ in range(9):
        script.fetch(CHECK, quiet=True)
    script.work(Kind.FINISHED)
    assert Run(script).close().told == []


def test_a_loader_around_a_dataloader_has_the_facts_of_that_too() -> None:
    script = Script()
    described(script, TRAIN, "loader", dataset="Samples", name="mine", declared=True)
    described(script, OTHER, "loader", dataset="Inner", num_workers=2, batch_size=3)
    script.begin(TRAIN)
    script.begin(OTHER)
    outer, inner = (event.object for event in script.log.events[-2:])
    for _ in range(6):
        script.fetch(TRAIN)
        requested, received = script.log.events[-2:]
        inside = [event._replace(object=inner) for event in (requested, received)]
        script.log.events[-1:-1] = inside
        assert requested.object == outer
        script.backward()
        script.update()
    (environment,) = Run(script).close().note("environment")
    watched = {"dataset": "Inner", "name": "mine", "num_workers": 2, "batch_size": 3}
    assert environment["watched"] == watched


def test_a_run_keeps_its_name_where_another_loader_trained() -> None:
    """`vitprof.watch(a)`, and steps on the batches of b: watching gave up with KeyError: 'name'."""
    script = Script()
    script.train(6)
    described(script, CHECK, "loader", dataset="Samples", name="mine", declared=True)
    script.fetch(CHECK)
    run = Run(script, declares=True).close()
    (environment,) = run.note("environment")
    assert environment["watched"]["name"] == "mine"


def test_evaluations_are_phases() -> None:
    script = Script()
    for _ in range(2):
        script.train(6)
        for _ in range(3):
            script.fetch(CHECK, quiet=True)
    first, last = Run(script).close().note("phase")
    assert first["name"] == last["name"] == "evaluate"
    for phase in (first, last):
        assert phase["t_end_s"] - phase["t_start_s"] == pytest.approx(0.030)


def test_steps_that_ask_several_loaders_have_the_facts_and_the_waits_of_each() -> None:
    script = Script()
    for _ in range(12):
        script.fetch(OTHER)
        script.train()
    script.exhaust(OTHER)
    facts = Run(script).close().facts
    assert facts["unclear_loaders_steps"] == 0
    first, second = facts["loaders"]
    # without those of the warm-up
    assert first == {"dataset": str(OTHER), "batches": 7, "wait_s": pytest.approx(0.07)}
    assert second == {"dataset": str(TRAIN), "batches": 7, "wait_s": pytest.approx(0.07)}


def test_a_loader_that_is_made_anew_for_each_epoch_is_not_one_of_several() -> None:
    """The first step of the next epoch waits for the end of the last one, too: for another loader."""
    script = Script()
    for loader in (TRAIN, OTHER, CHECK):
        script.train(8, loader)
        script.exhaust(loader)
    assert "loaders" not in Run(script).close().facts


def test_zipped_loaders_that_are_made_anew_for_each_epoch_take_the_places_of_those_before() -> None:
    """Else each had the share of its epoch: "16% of the wait is for the loader of D", of six epochs."""
    script = Script()
    epochs = [(201, 202), (203, 204), (205, 206)]
    for places in epochs:
        for loader, name in zip(places, ("few", "many"), strict=True):
            described(script, loader, "loader", dataset=name)
        for _ in range(8):
            for loader in places:
                script.fetch(loader)
            script.backward()
            script.update()
        script.exhaust(places[0])
    few, many = Run(script).close().facts["loaders"]
    # with the ends of two epochs
    assert few == {"dataset": "few", "batches": 19, "wait_s": pytest.approx(0.21)}
    assert many == {"dataset": "many", "batches": 19, "wait_s": pytest.approx(0.19)}


def test_the_waits_of_a_loader_count_in_steps_that_ask_it_alone_too() -> None:
    """Else the one that is asked in each third step seemed to be waited for most."""
    script = Script()
    for n in range(45):
        script.fetch(TRAIN)
        if n % 3 == 2:
            script.fetch(OTHER)
        script.backward()
        script.update()
    often, seldom = Run(script).close().facts["loaders"]
    assert (often["batches"], often["wait_s"]) == (40, pytest.approx(0.40))
    assert (seldom["batches"], seldom["wait_s"]) == (14, pytest.approx(0.14))


def test_zipped_loaders_that_are_alike_are_two() -> None:
    script = Script()
    for loader in (TRAIN, OTHER):
        described(script, loader, "loader", dataset="alike")
    for _ in range(12):
        script.fetch(OTHER)
        script.train()
    assert [each["batches"] for each in Run(script).close().facts["loaders"]] == [7, 7]


@pytest.mark.parametrize(("kind", "fetched_by"), [("source", "a thread"), ("loader", "no loader")])
def test_waits_that_are_not_known_are_counted(kind: str, fetched_by: str) -> None:
    """As of a script that keeps its batches; where some came out of a queue, a thread fetches."""
    script = Script()
    described(script, TRAIN, kind)
    script.train(8)
    for _ in range(10):
        script.backward()
        script.update()
    run = Run(script).close()
    assert run.facts["unknown_wait_steps"] == 10
    assert run.facts["fetched_by"] == fetched_by
    assert np.isnan(run.steps["data_wait_s"]).tolist() == [False] * 8 + [True] * 10


def test_known_waits_are_not_counted() -> None:
    script = Script()
    script.train(8)
    facts = Run(script).close().facts
    assert not {"unknown_wait_steps", "fetched_by", "loaders", "several_threads_train"} & {*facts}


def test_several_threads_that_train_are_a_fact() -> None:
    script = Script()
    for _ in range(8):
        for thread in (MAIN, HELPER):
            script.fetch(TRAIN, thread=thread)
            script.backward(thread)
            script.update(thread=thread)
    run = Run(script).close()
    assert run.facts["several_threads_train"] is True
    assert len(run.steps["step"]) == 8, "those of one are told"


def test_a_forked_process_that_trains_is_a_fact_once_it_is_described() -> None:
    script = Script()
    script.train(8)
    run = Run(script)
    run.settle()
    assert "forked_process_trains" not in run.facts
    described(script, 900, FORKED)
    assert run.close().facts["forked_process_trains"] is True


@pytest.mark.parametrize("n", [FEW_UPDATES, FEW_UPDATES + 1, 30])
def test_many_updates_on_the_only_batch_are_a_fact_at_the_end(n: int) -> None:
    script = Script()
    script.fetch(TRAIN)
    for _ in range(n):
        script.backward()
        script.update()
    run = Run(script)
    run.settle(10.0)
    assert "updates_on_one_batch" not in run.facts
    expected = n if n > FEW_UPDATES else None
    assert run.close().facts.get("updates_on_one_batch") == expected


def pause(script: Script, number: int, status: str, error: str = "") -> None:
    described(script, number, "end", status=status, error=error)
    script.work(Kind.PAUSED, number=number)


def test_a_run_that_is_over_for_now_ends_and_what_follows_goes_on_with_it() -> None:
    script = Script()
    script.train(6)
    pause(script, 901, "done")
    run = Run(script)
    assert kinds(run.settle()) == ["environment", "stage", "steps", "end"]
    script.passes(5.0)
    assert run.settle() == []
    script.train(5)
    pause(script, 902, "failed", "no more")
    assert kinds(run.settle()) == ["environment", "stage", "steps", "end"]
    ends = [{"status": "done", "error": ""}, {"status": "failed", "error": "no more"}]
    assert run.note("end") == ends
    assert run.steps["step"].tolist() == list(range(11))
    assert run.steps["gap_s"].max() < 1.0, "what was between is in no step"
    assert run.messages.close() == [], "it was over"


def test_both_runs_may_arrive_at_once() -> None:
    script = Script()
    script.train(6)
    pause(script, 901, "done")
    script.train(5)
    pause(script, 902, "stopped")
    run = Run(script)
    assert kinds(run.settle()) == 2 * ["environment", "stage", "steps", "end"]


def test_a_pause_without_a_step_is_no_run() -> None:
    script = Script()
    script.fetch(TRAIN)
    pause(script, 901, "done")
    assert Run(script).close().told == []


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"error": "ValueError"}, "a hook of vitprof's failed (ValueError)"),
        ({"why": "the clock was replaced"}, "the clock was replaced"),
    ],
)
def test_a_failure_is_a_fact(facts: dict[str, Any], why: str) -> None:
    script = Script()
    script.train(8)
    described(script, 900, "failure", **facts)
    assert Run(script).close().facts["partly_watched"] == why


def test_events_that_were_dropped_are_a_fact() -> None:
    script = Script()
    script.train(8)
    script.work(Kind.DROPPED)
    assert Run(script).close().facts["partly_watched"] == WERE_DROPPED


def test_a_fact_is_told_again_where_it_has_changed() -> None:
    script = Script()
    described(script, 900, "stages", loader=TRAIN, samples=4, composes=[[["Crop"], 4, [2.0]]])
    script.train(8)
    run = Run(script)
    run.settle()
    assert run.note("facts") == [{"transforms": {"Crop": {"s_per_sample": 0.5, "calls": 4}}}]
    script.train(4)
    run.settle()
    assert len(run.note("facts")) == 1
    described(script, 900, "stages", loader=TRAIN, samples=8, composes=[[["Crop"], 8, [2.0]]])
    script.train(4)
    run.settle()
    assert run.facts["transforms"]["Crop"] == {"s_per_sample": 0.25, "calls": 8}


class OnDevices(Script):
    """A script whose losses are on one device, and whose optimizer's parameters may be on another."""

    def __init__(self, loss: int, parameters: int) -> None:
        super().__init__()
        self._loss = float(loss)
        self._parameters = float(parameters)

    def backward(self, thread: int = MAIN) -> None:
        self._add(Kind.BACKWARD, thread, 0, NAN, self._loss)

    def update(self, optimizer: int = 11, thread: int = MAIN) -> None:
        self._add(Kind.STEPPED, thread, optimizer, self._parameters)


def describe_devices(script: Script) -> None:
    for number, name in ((801, "cpu"), (802, "cuda:0"), (803, "cuda:1")):
        described(script, number, "device", name=name, environment={"device": name.upper()})


@pytest.mark.parametrize(
    ("loss", "parameters", "device"),
    [(801, 801, "CPU"), (802, 802, "CUDA:0"), (802, 801, "CUDA:0"), (803, 803, "CUDA:1")],
    ids=["the CPU", "a GPU", "an optimizer that is offloaded", "another GPU"],
)
def test_the_device_is_the_one_that_is_trained_on(loss: int, parameters: int, device: str) -> None:
    script = OnDevices(loss, parameters)
    describe_devices(script)
    script.train(8)
    (environment,) = Run(script).close().note("environment")
    assert environment["device"] == device


def test_of_devices_that_are_described_one_that_computes_is_told() -> None:
    """That of a loop over a loader of any kind is described before anything is seen of it."""
    script = OnDevices(803, 803)
    described(script, 802, "device", name="cuda:0", environment={"device": "guessed"})
    described(script, 803, "device", name="cuda:1", environment={"device": "seen"})
    script.train(8)
    (environment,) = Run(script).close().note("environment")
    assert environment["device"] == "seen"


def test_of_a_device_that_is_not_timed_there_are_no_times() -> None:
    script = OnDevices(801, 801)
    facts = {"device": "mps", "untimed_device": "mps"}
    described(script, 801, "device", name="mps", environment=facts)
    script.train(8)
    run = Run(script).close()
    (environment,) = run.note("environment")
    assert environment["untimed_device"] == "mps"
    for name in DEVICE_COLUMNS:
        assert np.isnan(run.steps[name]).all(), name
    for name in ("data_wait_s", "step_s"):
        assert np.isfinite(run.steps[name]).all(), name


def test_a_device_that_works_on_its_own_has_its_columns() -> None:
    script = DeviceScript()
    run = Run(script)
    script.train(6)
    assert not columns_of(run.settle()), "they wait for it"
    script.pass_marks()
    run.close()
    assert np.isfinite(run.steps["compute_s"]).all()
    assert len(run.steps["step"]) == 6


def test_a_tracker_is_told_the_sums_where_that_was_asked_for() -> None:
    script = Script()
    script.train(12)
    run = Run(script, tracks=True)
    answers = [each.values for each in run.settle() if is_answer(each)]
    (answer,) = answers
    assert answer["thread"] == MAIN
    n_told = len(run.steps["step"])
    assert (answer["tracked"]["n"], answer["tracked"]["step"]) == (n_told - 5, n_told - 1)
    assert not [each for each in Run(script).settle() if is_answer(each)]


def test_where_headroom_is_measured_the_process_is_told_once_which_loader_trains() -> None:
    script = Script()
    script.train(8)
    run = Run(script, headroom=True)
    answers = [each.values for each in run.settle() if is_answer(each)]
    assert answers == [{"headroom": TRAIN, "facts": {"dataset": str(TRAIN)}}]
    script.train(4)
    assert not [each for each in run.settle() if is_answer(each)]


def test_headroom_is_refused_where_a_step_asks_several_loaders() -> None:
    script = Script()
    for _ in range(8):
        script.fetch(OTHER)
        script.train()
    run = Run(script, headroom=True).close()
    (answer,) = (each.values for each in run.told if is_answer(each))
    assert answer["headroom"] == 0
    assert "several loaders" in answer["refused"]
    assert run.facts["replay_refused"] == answer["refused"]


def test_headroom_that_the_process_gave_up_is_a_fact() -> None:
    script = Script()
    script.train(8)
    described(script, 900, "headroom", refused="too large")
    assert Run(script, headroom=True).close().facts["replay_refused"] == "too large"


def test_steps_on_kept_batches_are_none_of_the_run() -> None:
    script = Script()
    for block in (0, 1, 2):
        for _ in range(8):
            script.fetch(TRAIN)
            received = script.log.events.pop()
            script._add(Kind.BLOCK, MAIN, received.object, block, 0.0)
            script.log.events.append(received)
            script.backward()
            script.update()
    run = Run(script, headroom=True).close()
    assert run.steps["step"].tolist() == list(range(16))
    assert list(run.facts["replay"]) == ["0", "1"]
    assert run.facts["replay"]["1"]["steps"] == 8
    (phase,) = run.note("phase")
    assert phase["name"] == "headroom"


def steps_of(run: Run, thread: int) -> dict[str, Any]:
    return run.messages.answer(Note("steps", {"thread": thread})).values


def test_how_many_steps_have_ended_is_answered_at_once() -> None:
    """Before they are told: a limit of steps is exact."""
    script = Script()
    run = Run(script)
    run.settle()
    nothing = {"answer": "steps", "ended": 0, "loader": 0}
    assert steps_of(run, MAIN) == nothing
    script.train(3)
    run.settle()
    assert steps_of(run, MAIN) == {"answer": "steps", "ended": 2, "loader": TRAIN}
    assert run.told == []
    script.train(6)
    script.fetch(TRAIN)
    run.settle()
    assert steps_of(run, MAIN) == {"answer": "steps", "ended": 9, "loader": TRAIN}
    assert steps_of(run, HELPER) == nothing


def test_the_main_loader_is_the_one_whose_batches_most_steps_have() -> None:
    script = Script()
    script.train(4)
    script.exhaust(TRAIN)
    script.train(2, OTHER)
    run = Run(script)
    run.close()
    (environment,) = run.note("environment")
    assert environment["watched"]["dataset"] == str(TRAIN)
    assert main_loader([]) is None


# as they arrive from a process


def arriving(script: Script, size: int = 7) -> Iterable[Message]:
    """Yields what a process sends: all descriptions, then so many events at a time."""
    for each in script.log.descriptions.values():
        facts = {"number": each.number, "kind": each.kind, "facts": each.facts}
        yield Note("described", facts)
    rows = [row_of(event) for event in script.log.events]
    for begin in range(0, len(rows), size):
        figures = np.array(rows[begin : begin + size], dtype=float)
        yield dict(zip(COLUMNS, figures.T, strict=True))


def test_what_a_process_sends_becomes_what_a_run_is_told() -> None:
    script = Script()
    script.train(12)
    script.work(Kind.FINISHED)
    told = list(of_process(PROCESS, arriving(script)))
    assert kinds(told)[0] == "environment"
    assert kinds(told)[-1] == "end"
    assert sum(len(each["step"]) for each in columns_of(told)) == 12


def test_the_time_settles_the_last_steps_of_a_process_that_waits() -> None:
    script = Script()
    script.train(6)
    script.fetch(TRAIN)
    told: list[Message] = []
    n_before_the_end: list[int] = []

    def sent() -> Iterator[Message]:
        yield from arriving(script)
        yield Note("clock", {"now_s": script.now_s + 2.0})
        n_before_the_end.append(sum(len(each["step"]) for each in columns_of(told)))

    for each in of_process(PROCESS, sent()):
        told.append(each)
    assert n_before_the_end == [6]


def test_a_failure_that_no_event_follows_is_read() -> None:
    script = Script()
    script.train(8)
    failure = {"number": 900, "kind": "failure", "facts": {"error": "ValueError"}}
    told = list(of_process(PROCESS, [*arriving(script), Note("described", failure)]))
    (facts,) = (each.values for each in told if isinstance(each, Note) and each.kind == "facts")
    assert facts == {"partly_watched": "a hook of vitprof's failed (ValueError)"}


def test_questions_are_answered_in_their_place() -> None:
    script = Script()
    script.train(6)
    questions = [Note("steps", {"thread": MAIN}), Note("close", {})]
    told = list(of_process(PROCESS, [*arriving(script, size=99), *questions]))
    answers = [each.values for each in told if is_answer(each)]
    assert answers == [{"answer": "steps", "ended": 5, "loader": TRAIN}, {"answer": "close"}]
    assert kinds(told)[-1] == "answer", "all steps were told before that"
    assert sum(len(each["step"]) for each in columns_of(told)) == 6


def test_an_event_of_another_version_is_an_error() -> None:
    row = [99.0, 1.0, 1.0, 0.0, math.nan, math.nan, math.nan]
    columns = dict(zip(COLUMNS, np.array([row]).T, strict=True))
    with pytest.raises(ValueError, match="99"):
        list(of_process(PROCESS, [columns]))


def zipped_with_itself(script: Script, n: int) -> None:
    """Two iterators of one loader, asked by turns."""
    for thread in (MAIN, HELPER):
        script.begin(TRAIN, thread)
    for _ in range(n):
        for iterator in (MAIN, HELPER):
            script.fetch_of(TRAIN, iterator)
        script.backward()
        script.update()


def test_iterators_of_one_loader_that_are_open_at_once_are_told() -> None:
    script = Script()
    zipped_with_itself(script, 8)
    assert Run(script).close().facts["iterators_at_once"] is True
    script = Script()
    for _ in range(3):
        script.train(6)
        script.exhaust(TRAIN)
    assert "iterators_at_once" not in Run(script).close().facts, "one after another"


def test_iterators_of_a_validation_that_are_open_at_once_say_nothing_of_the_training() -> None:
    script = Script()
    script.train(6)
    for thread in (MAIN, HELPER):
        script.begin(CHECK, thread)
    for iterator in (MAIN, HELPER, MAIN):
        script.fetch_of(CHECK, iterator, quiet=True)
    script.train(6)
    assert "iterators_at_once" not in Run(script).close().facts


def test_iterators_that_give_a_single_batch_are_told_of_the_loader_that_is_waited_for() -> None:
    script = Script()
    for _ in range(12):
        script.fetch(TRAIN)
        script.begin(OTHER, seconds=0.010)
        script.train(loader=OTHER)
    assert Run(script).close().facts["batches_of_an_iterator"] == 1.0
    script = Script()
    for _ in range(5):
        script.begin(TRAIN)
        script.train(6)
    assert Run(script).close().facts["batches_of_an_iterator"] > 4
    script = Script()
    script.train(20)
    assert "batches_of_an_iterator" not in Run(script).close().facts


@pytest.mark.parametrize(("n_batches", "expected"), [(1, 40.0), (2, 20.0)])
def test_the_steps_of_an_epoch_follow_from_the_length_of_the_loader(
    n_batches: int, expected: float
) -> None:
    """A framework fetches at once all batches over which gradients are accumulated."""
    script = Script()
    described(script, TRAIN, "loader", epoch_batches=40)
    for _ in range(12):
        for _ in range(n_batches):
            script.fetch(TRAIN)
        script.backward()
        script.update()
    assert Run(script).close().facts["epoch_steps"] == expected


def test_the_steps_of_an_epoch_are_not_known_where_its_loader_feeds_some_of_them() -> None:
    script = Script()
    described(script, TRAIN, "loader", epoch_batches=40)
    described(script, OTHER, "loader", epoch_batches=None)
    for _ in range(12):
        script.train()
        script.train(loader=OTHER)
    assert "epoch_steps" not in Run(script).close().facts
