"""Loaders of any kind behind a proxy, and what is done as a batch is requested."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.utils.data.dataloader
from torch.utils.data import DataLoader, TensorDataset

from vitprof.watch.core.log import event_of
from vitprof.watch.events import Buffer, Event, Kind
from vitprof.watch.patches import CURRENT, Recorder, dataloader, iterables, own_iterations
from vitprof.watch.patches.hydra import Jobs
from vitprof.watch.patches.limits import StepLimit, ThreadState
from vitprof.watch.patches.replay import CHANGED, ReplayPlan

BATCH = torch.ones(2, 3)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """What records in this process, for this test; with the hooks of DataLoaders."""
    recorder = Recorder(Buffer())
    monkeypatch.setattr(CURRENT, "recorder", recorder)
    installed = dataloader.install(recorder, torch.utils.data.dataloader)
    yield recorder
    installed.remove()


def events(recorder: Recorder) -> list[Event]:
    return [event_of(row) for row in recorder.buffer.take()[1]]


def kinds(recorder: Recorder) -> list[Kind]:
    return [event.kind for event in events(recorder)]


class Loader:
    """Any iterable."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def begin(batches: Iterable[Any], **more: Any) -> Any:
    loader = Loader(batches)
    return iterables.begin_recorded(loader, lambda: iter(loader), {"dataset": "mine"}, **more)


STEP = [Kind.REQUESTED, Kind.RECEIVED]


def test_an_iteration_over_anything_is_recorded(recorder: Recorder) -> None:
    assert list(begin([BATCH, BATCH])) == [BATCH, BATCH]
    descriptions, rows = recorder.buffer.take()
    found = [event_of(row) for row in rows]
    last = [Kind.REQUESTED, Kind.EXHAUSTED]
    assert [event.kind for event in found] == [Kind.BEGUN, *STEP, *STEP, *last]
    assert [event.value("samples") for event in found if event.kind is Kind.RECEIVED] == [2, 2]
    assert found[-1].value("failed") == 0.0
    loader, iterator, *_ = descriptions
    assert (loader.kind, loader.facts) == ("loader", {"dataset": "mine"})
    assert (iterator.kind, iterator.facts) == ("iterator", {"loader": loader.number})
    assert {event.object for event in found} == {iterator.number}


def test_an_error_of_the_loader_is_its_own(recorder: Recorder) -> None:
    batches = begin(1 / x for x in (1, 0))
    next(batches)
    with pytest.raises(ZeroDivisionError):
        next(batches)
    assert events(recorder)[-1].value("failed") == 1.0


def test_what_is_no_part_of_a_run_is_not_recorded(recorder: Recorder) -> None:
    assert list(begin([BATCH], requested=lambda iterator: False)) == [BATCH]
    assert kinds(recorder) == [Kind.BEGUN]


def test_an_iterable_inside_another_one_is_a_part_of_it(recorder: Recorder) -> None:
    def outer() -> Iterator[Any]:
        yield from begin([BATCH, BATCH])

    assert len(list(begin(outer()))) == 2
    found = events(recorder)
    assert len({event.object for event in found}) == 1


def test_a_dataloader_inside_it_is_recorded_within(recorder: Recorder) -> None:
    inner = DataLoader(TensorDataset(BATCH), batch_size=2)
    list(begin(inner))
    around = [Kind.REQUESTED, Kind.REQUESTED]
    assert kinds(recorder) == [
        *(Kind.BEGUN, Kind.BEGUN),
        *(*around, Kind.RECEIVED, Kind.RECEIVED),
        *(*around, Kind.EXHAUSTED, Kind.EXHAUSTED),
    ]


def test_without_a_recorder_it_is_the_iterator_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CURRENT, "recorder", None)
    assert type(begin([BATCH])) is type(iter([]))


def test_an_error_of_ours_is_none_of_the_scripts(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = begin([BATCH, BATCH])
    monkeypatch.setattr(recorder, "default_device", lambda: 1 / 0)
    assert len(list(batches)) == 2
    assert isinstance(recorder.failed, ZeroDivisionError)


def test_steps_that_the_script_marks_are_recorded(recorder: Recorder) -> None:
    iterables.record_mark(recorder, entering=True)
    iterables.record_mark(recorder, entering=False)
    assert kinds(recorder) == [Kind.ENTERED, Kind.LEFT]


def batches_of(how: str, n: int) -> Iterator[Any]:
    """Begins an iteration of so many batches."""
    if how == "any iterable":
        return iter(begin([torch.full((2, 1), float(i)) for i in range(n)]))
    dataset = TensorDataset(torch.arange(float(2 * n)).view(2 * n, 1))
    return iter(DataLoader(dataset, batch_size=2, collate_fn=lambda rows: rows[0][0]))


@pytest.mark.parametrize("how", ["any iterable", "DataLoader"])
def test_kept_batches_are_served_in_place_of_new_ones(recorder: Recorder, how: str) -> None:
    headroom = ReplayPlan()
    recorder.measure_headroom(headroom)
    iterator = batches_of(how, 3)
    descriptions, _ = recorder.buffer.take()
    (loader,) = (each for each in descriptions if each.kind == "loader")
    headroom.begin(loader.number, loader.facts)
    first = next(iterator)
    headroom.block = 1
    kept = next(iterator)
    headroom.block = 2
    second = next(iterator)
    assert kept is not first
    assert torch.equal(kept, first)
    assert not torch.equal(second, first)
    found = events(recorder)
    blocks = [event.value("block") for event in found if event.kind is Kind.BLOCK]
    assert blocks == [0, 1, 2]
    requested = [event for event in found if event.kind is Kind.REQUESTED]
    received = [event for event in found if event.kind is Kind.RECEIVED]
    assert len(requested) == len(received) == 3


def test_batches_that_are_requested_to_evaluate_are_none_of_it(recorder: Recorder) -> None:
    recorder.measure_headroom(ReplayPlan())
    iterator = batches_of("DataLoader", 3)
    with torch.no_grad():
        next(iterator)
    assert Kind.BLOCK not in kinds(recorder)


def test_a_batch_that_the_script_changed_is_not_served_and_that_is_described(
    recorder: Recorder,
) -> None:
    headroom = ReplayPlan()
    recorder.measure_headroom(headroom)
    iterator = batches_of("DataLoader", 4)
    descriptions, _ = recorder.buffer.take()
    (loader,) = (each for each in descriptions if each.kind == "loader")
    headroom.begin(loader.number, loader.facts)
    next(iterator)
    headroom.block = 1
    next(iterator).add_(1.0)
    second = next(iterator)
    assert second.item() == 2.0, "a new one"
    descriptions, _ = recorder.buffer.take()
    assert [each.facts for each in descriptions if each.kind == "headroom"] == [
        {"refused": CHANGED}
    ]


@pytest.mark.parametrize("how", ["any iterable", "DataLoader"])
def test_a_limit_holds_the_script_up_and_ends_it_within_the_request(
    recorder: Recorder, how: str
) -> None:
    answers = iter([ThreadState(1, 1), ThreadState(2, 1)])

    def end(ended: ThreadState) -> None:
        raise SystemExit(ended.steps)

    recorder.limit_steps(StepLimit(2, lambda: next(answers), end))
    iterator = batches_of(how, 9)
    for _ in range(3):
        next(iterator)
    assert kinds(recorder)[-3:] == [Kind.REQUESTED, Kind.OWN, Kind.RECEIVED]
    with pytest.raises(SystemExit, match="2"):
        next(iterator)
    assert recorder.failed is None


def test_requests_without_gradients_are_known_to_the_limit(recorder: Recorder) -> None:
    asked: list[None] = []
    limit = StepLimit(1, lambda: asked.append(None), lambda ended: None)
    recorder.limit_steps(limit)
    iterator = batches_of("DataLoader", 9)
    with torch.no_grad():
        next(iterator)
        limit.worked()
        next(iterator)
    assert len(asked) == 1


class Opening(DataLoader[Any]):
    def __iter__(self) -> Any:
        return super().__iter__()


class Generating(DataLoader[Any]):
    def __iter__(self) -> Any:
        yield from super().__iter__()


@pytest.mark.parametrize("kind", [Opening, Generating])
def test_an_iteration_begins_with_the_classs_own_iter_once_that_is_known(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, kind: type[DataLoader[Any]]
) -> None:
    monkeypatch.setattr(own_iterations, "perf_counter", lambda: 0.25)
    loader = kind(TensorDataset(BATCH))
    list(loader)
    list(loader)
    begun = [event.value("since_s") for event in events(recorder) if event.kind is Kind.BEGUN]
    first, second = begun
    assert first > second == 0.25


def test_a_plain_dataloader_begins_as_it_is_begun(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_iterations, "perf_counter", lambda: 0.25)
    loader = DataLoader(TensorDataset(BATCH))
    list(loader)
    list(loader)
    begun = [event.value("since_s") for event in events(recorder) if event.kind is Kind.BEGUN]
    assert 0.25 not in begun


def test_the_loader_of_a_number_is_found_by_its_iterators_too(recorder: Recorder) -> None:
    """One that is made in a `for` statement is gone, and its iterator is not."""
    loader = DataLoader(TensorDataset(BATCH), batch_size=2)
    iterator = iter(loader)
    (begun,) = events(recorder)
    number = int(begun.value("loader"))
    found = recorder.loader(number)
    assert found.facts["batch_size"] == 2
    assert [reference() for reference in found.alive] == [loader, iterator]
    del loader
    again = recorder.loader(number)
    assert again.facts == found.facts
    assert [reference() for reference in again.alive] == [iterator]
    assert recorder.loader(number + 1000).alive == ()


def test_a_loader_of_a_data_set_that_is_watched_is_declared_in_a_loop_too(
    recorder: Recorder,
) -> None:
    dataset = TensorDataset(BATCH)
    recorder.declared.add(DataLoader(dataset), "mine")
    list(DataLoader(dataset, batch_size=2))
    list(DataLoader(TensorDataset(BATCH)))
    descriptions, _ = recorder.buffer.take()
    first, second = (each.facts for each in descriptions if each.kind == "loader")
    assert (first["name"], first["declared"]) == ("mine", True)
    assert "declared" not in second
    assert json.dumps(first)


def test_hydras_next_job_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs()
    assert not jobs.begins_another(), "it is not there"
    job = SimpleNamespace(job=SimpleNamespace(num=0))
    config = SimpleNamespace(HydraConfig=SimpleNamespace(get=lambda: job))
    monkeypatch.setitem(sys.modules, "hydra.core.hydra_config", config)  # type: ignore[arg-type]
    assert [jobs.begins_another() for _ in range(2)] == [False, False]
    job.job.num = 1
    assert [jobs.begins_another() for _ in range(2)] == [True, False]
