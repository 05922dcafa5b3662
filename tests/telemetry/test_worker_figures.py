"""Figures of workers, by processes that are made up."""

import math
import os
from collections.abc import Callable

import pytest

from vitprof.telemetry import worker_figures
from vitprof.telemetry.memory import Memory
from vitprof.telemetry.processes import ProcessFigures, process_figures
from vitprof.telemetry.worker_figures import MOST_SHARE, READ_EVERY_S, MemoryRounds, Workers

MAIN, ONE, OTHER = 10, 11, 12
MIB = 2.0**20


def process(cpu_s: float, threads: int = 2) -> ProcessFigures:
    return ProcessFigures(cpu_s, 0.0, 1 << 20, False, MAIN, threads)


def memory(pid: int) -> Memory | None:
    """A worker has as many MiB as its id."""
    return Memory(pid * MIB, 2 * pid * MIB, 3 * pid * MIB)


def workers(read: Callable[[int], Memory | None] = memory) -> Workers:
    made = Workers(read, lambda: 7.0)
    made.follow([ONE, OTHER])
    return made


def test_threads_and_cpu_are_the_mean_over_the_workers() -> None:
    found = workers()
    first = found.sample(100.0, {MAIN: process(50.0), ONE: process(1.0, 3), OTHER: process(2.0, 8)})
    assert first.worker_threads == 5.5
    assert math.isnan(first.worker_cpu_pct)
    second = found.sample(102.0, {MAIN: process(52.0), ONE: process(3.0), OTHER: process(6.0)})
    assert second.worker_cpu_pct == 150.0
    assert second.workers_age_s == 2.0


def test_memory_is_read_of_one_worker_with_each_sample_and_told_of_all() -> None:
    asked = list[int]()

    def read(pid: int) -> Memory | None:
        asked.append(pid)
        return memory(pid)

    found = workers(read)
    processes = {ONE: process(1.0), OTHER: process(1.0)}
    told = [found.sample(100 + 0.2 * n, processes) for n in range(160)]
    private = [each.worker_private_bytes for each in told]
    at = [n for n, value in enumerate(private) if not math.isnan(value)]
    assert at == [1, 76, 151], "every 15 s"
    assert (private[1], told[1].worker_pss_bytes, told[1].worker_rss_bytes) == (
        11.5 * MIB,
        23 * MIB,
        34.5 * MIB,
    )
    assert told[1].memory_available_bytes == 7.0
    assert sorted(asked) == [ONE] * 3 + [OTHER] * 3


def test_workers_that_took_others_place_are_told_apart() -> None:
    found = workers()
    processes = {ONE: process(1.0), OTHER: process(1.0)}
    for now in (100.0, 100.2, 103.0):
        last = found.sample(now, processes)
    assert last.workers_age_s == pytest.approx(3.0)
    found.follow([21, 22])
    none = found.sample(103.2, processes)
    assert all(map(math.isnan, none)), "they are not seen yet"
    anew = {21: process(0.1), 22: process(0.1)}
    told = [found.sample(now, anew) for now in (103.4, 103.6)]
    assert told[0].workers_age_s == 0.0
    assert math.isnan(told[0].worker_cpu_pct)
    assert told[1].worker_private_bytes == 21.5 * MIB, "at once, not 15 s later"


def test_a_worker_that_cannot_be_read_makes_the_mean_unknown() -> None:
    found = workers(lambda pid: None if pid == ONE else memory(pid))
    processes = {ONE: process(1.0), OTHER: process(1.0)}
    told = [found.sample(100 + 0.2 * n, processes) for n in range(5)]
    assert all(math.isnan(each.worker_private_bytes) for each in told)
    assert all(math.isnan(each.memory_available_bytes) for each in told)


def test_reading_large_workers_takes_a_hundredth_of_a_core_at_most() -> None:
    spent_s = 0.0

    def read(pid: int) -> Memory | None:
        nonlocal spent_s
        spent_s += 0.5
        return memory(pid)

    rounds = MemoryRounds(read, lambda: spent_s)
    told = [now for now in range(1000) if rounds.next(float(now), [ONE, OTHER]) is not None]
    assert told == [1 + each for each in range(0, 1000, round(1.0 / MOST_SHARE))]
    assert READ_EVERY_S < 1.0 / MOST_SHARE


def test_without_workers_nothing_is_known() -> None:
    assert all(map(math.isnan, Workers().sample(100.0, {MAIN: process(1.0)})))


def test_threads_of_a_real_process() -> None:
    assert process_figures(os.getpid()).threads == len(os.listdir("/proc/self/task"))
    assert worker_figures.memory_of(os.getpid()) is not None
