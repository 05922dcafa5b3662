"""What a process uses of the cores for a batch: by a clock, and by files, of the tests' own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vitprof.measure import core_use
from vitprof.measure.core_use import CoreTimes
from vitprof.watch import fetch_times
from vitprof.watch.core.stages import stage_facts
from vitprof.watch.core_use import look_at
from vitprof.watch.events import CORES_OF_COMPOSE, CORES_OF_STAGES, Description
from vitprof.watch.fetch_times import MAKING, timed_compose, timed_fetch, unpacked

OTHER = 99_999_999
"""The number of a thread of the process's."""


class Process:
    """A process of two threads, by its clocks and by the files in which Linux says what each waited."""

    def __init__(self, tasks: Path) -> None:
        self._tasks = tasks
        self._queued_ns = {threading.get_native_id(): 0, OTHER: 0}
        self.wall_s = self.cpu_s = 0.0
        for number in self._queued_ns:
            (tasks / str(number)).mkdir()
        self.passes(0.0, 0.0)

    def passes(self, wall_s: float, cpu_s: float, own_s: float = 0.0, other_s: float = 0.0) -> None:
        self.wall_s += wall_s
        self.cpu_s += cpu_s
        own, other = self._queued_ns
        self._queued_ns[own] += round(own_s * 1e9)
        self._queued_ns[other] += round(other_s * 1e9)
        for number, queued_ns in self._queued_ns.items():
            (self._tasks / str(number) / "schedstat").write_text(f"1 {queued_ns} 1\n")


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Process:
    made = Process(tmp_path)
    monkeypatch.setattr(core_use, "TASKS", str(tmp_path))
    for module in (core_use, fetch_times):
        monkeypatch.setattr(module, "perf_counter", lambda: made.wall_s)
    monkeypatch.setattr(core_use, "process_time", lambda: made.cpu_s)
    monkeypatch.setattr(core_use, "EVERY", 1)
    monkeypatch.setattr(core_use, "LATER", 1)
    monkeypatch.setattr(fetch_times, "process_time", lambda: 0.0)
    monkeypatch.setattr(MAKING.now, "took_s", 1.0)
    monkeypatch.setattr(MAKING.now, "looks_at_threads", False)
    return made


class Compose:
    def __init__(self, transforms: Any) -> None:
        self.transforms = transforms

    def __call__(self, img):  # type: ignore[no-untyped-def]
        for t in self.transforms:
            img = t(img)
        return img

    __call__ = timed_compose(__call__)


class Resize:
    """Takes a core for 4 ms, and waits 1 ms for it."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def __call__(self, value: int) -> int:
        self._process.passes(0.005, 0.004, own_s=0.001)
        return value


class Blur:
    """Has two threads, of which one waits for a core while the other waits for it, busily."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def __call__(self, value: int) -> int:
        self._process.passes(0.012, 0.011, own_s=0.003, other_s=0.008)
        return value


def made(process: Process, fetch: Callable[[Any, Any], Any], samples: int) -> list[Any]:
    """Makes a batch; returns its entries."""
    fetcher = SimpleNamespace(_vitprof_worker=-1, _vitprof_clock=None)
    _, times = unpacked(timed_fetch(fetch)(fetcher, list(range(samples))))
    assert times is not None
    assert MAKING.now.look is None
    return list(times[6])


def test_each_transform_and_stage_has_what_it_used_of_the_cores(process: Process) -> None:
    compose = Compose([Resize(process), Blur(process)])

    def fetch(_self: Any, index: list[int]) -> list[int]:
        process.passes(0.010, 0.010)
        samples = [compose(value) for value in index]
        collate = fetch_times.CollateTimer(lambda batch: process.passes(0.002, 0.001) or batch)
        return collate(samples)

    entries = made(process, fetch, 4)
    by_name = {names[0]: (names, calls, seconds) for names, calls, seconds in entries}
    names, calls, seconds = by_name[CORES_OF_COMPOSE]
    assert (names[1:], calls) == (("Resize", "Blur"), 4)
    used = (0.005, 0.004, 0.001, 0.0, 0.012, 0.011, 0.003, 0.008)
    assert seconds == pytest.approx([4 * each for each in used])
    _, _, stages = by_name[CORES_OF_STAGES[0]]
    assert stages == pytest.approx([0.078, 0.070, 0.016, 0.032, 0.002, 0.001, 0.0, 0.0, 0.068])

    listed = [[list(names), calls, list(seconds)] for names, calls, seconds in entries]
    sums = Description(1, "stages", {"loader": 1, "samples": 4, "composes": listed})
    facts = stage_facts([sums], [1])
    assert facts["transforms"]["Blur"] == pytest.approx(
        {
            "s_per_sample": 0.012,
            "calls": 4,
            "cpu_s_per_sample": 0.011,
            "queued_s_per_sample": 0.003,
            "threads_queued_s_per_sample": 0.008,
            "looked_s_per_sample": 0.012,
        }
    )
    assert facts["making"]["looked_batches"] == 1
    assert facts["making"]["stages"]["transform"] == pytest.approx(
        {"took_s": 0.068, "cpu_s": 0.060, "queued_s": 0.016, "threads_queued_s": 0.032}
    )
    assert facts["making"]["stages"]["read"] == pytest.approx(
        {"took_s": 0.010, "cpu_s": 0.010, "queued_s": 0.0, "threads_queued_s": 0.0}
    )


@pytest.mark.parametrize(("samples", "looked_at"), [(4, 4), (8, 8), (64, 8)])
def test_a_few_calls_of_a_large_batch_are_looked_at(
    process: Process, samples: int, looked_at: int
) -> None:
    compose = Compose([Resize(process)])
    entries = made(process, lambda _self, index: [compose(value) for value in index], samples)
    assert [calls for names, calls, _ in entries if names[0] == CORES_OF_COMPOSE] == [looked_at]
    (whole,) = [seconds for names, _, seconds in entries if names == ("Resize",)]
    assert whole == pytest.approx((0.005 * samples,))


def test_a_short_batch_is_not_looked_at(process: Process) -> None:
    MAKING.now.took_s = 0.001
    entries = made(process, lambda _self, _index: process.passes(0.001, 0.001), 4)
    assert [names for names, *_ in entries] == [fetch_times.WORK]


def test_a_look_gives_its_descriptors_back_where_making_a_batch_fails(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = list[int]()
    monkeypatch.setattr(fetch_times, "queued_so_far", lambda: 0.0)
    close = core_use.os.close
    monkeypatch.setattr(core_use.os, "close", lambda fd: (closed.append(fd), close(fd)))

    def fetch(_self: Any, _index: Any) -> Any:
        raise ValueError("no such sample")

    with pytest.raises(ValueError, match="no such sample"):
        made(process, fetch, 4)
    assert len(closed) == 2
    assert MAKING.now.look is None


def test_a_system_that_does_not_say_what_threads_wait_for_has_no_look(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(core_use, "TASKS", str(tmp_path / "gone"))
    assert look_at([1, 2]) is None


def test_linux_says_what_a_process_uses() -> None:
    look = look_at([1])
    if look is None:
        pytest.skip("this system does not say what a thread waits for")
    before = look.now()
    sum(range(100_000))
    used = look.now().since(before)
    look.end()
    assert isinstance(used, CoreTimes)
    assert used.cpu_s > 0.0
    assert min(used) >= 0.0
