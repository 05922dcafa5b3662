"""What each stage of a batch uses of the cores: by a clock, and by files, of the tests' own."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from vitprof.measure import core_use, stage_look
from vitprof.measure.core_use import CoreTimes
from vitprof.measure.stage_look import (
    MOST_SAMPLES,
    REST,
    LookedBatch,
    LookSchedule,
    StageLook,
    StageUses,
    begin_look,
    looked_batch,
)

OTHER = 99_999_999
"""The number of another thread of the process's."""
READ, DECODE = 0.001, 0.003
"""Seconds that a sample takes in two stages."""


class Process:
    """A process of two threads, by its clocks and by the files in which Linux says what each used and waited."""

    def __init__(self, tasks: Path) -> None:
        self._tasks = tasks
        self._used_ns = {threading.get_native_id(): [0, 0], OTHER: [0, 0]}
        self.wall_s = self.cpu_s = 0.0
        for number in self._used_ns:
            (tasks / str(number)).mkdir()
        self.passes(0.0)

    def passes(self, cpu_s: float, own_s: float = 0.0, other_s: float = 0.0) -> None:
        """The thread uses a core for `cpu_s` and waits for one for `own_s`; the other thread waits for `other_s`
        meanwhile."""
        self.wall_s += cpu_s + own_s
        self.cpu_s += cpu_s
        own, *others = self._used_ns.values()
        own[0] += round(cpu_s * 1e9)
        own[1] += round(own_s * 1e9)
        for other in others:
            other[1] += round(other_s * 1e9)
        for number, (used_ns, queued_ns) in self._used_ns.items():
            (self._tasks / str(number) / "schedstat").write_text(f"{used_ns} {queued_ns} 1\n")

    def sleeps(self, seconds: float, other_s: float = 0.0) -> None:
        """The thread waits for something else than a core."""
        self.wall_s += seconds
        self.passes(0.0, other_s=other_s)

    def ends_the_other(self) -> None:
        """The other thread ends: its file has nothing any more."""
        (self._tasks / str(OTHER) / "schedstat").write_text("")
        del self._used_ns[OTHER]


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Process:
    made = Process(tmp_path)
    monkeypatch.setattr(core_use, "TASKS", str(tmp_path))
    for module in (core_use, stage_look):
        monkeypatch.setattr(module, "perf_counter", lambda: made.wall_s)
        monkeypatch.setattr(module, "process_time", lambda: made.cpu_s)
    return made


def looking(samples: int, rest: str = REST, *, is_alone: bool = False) -> StageLook:
    look = begin_look(1, samples, rest=rest, is_alone=is_alone)
    assert look is not None
    return look


def by_stage(batch: LookedBatch) -> dict[str, CoreTimes]:
    return {name: CoreTimes(*use) for name, use in batch.stages}


def sample(process: Process, look: StageLook, *, decode_waits: float = 0.0) -> None:
    """Reads and decodes a sample, with some Python between these."""
    look.begin_sample()
    process.passes(0.0001)
    before = look.enter("read")
    process.passes(READ, own_s=0.0005)
    look.enter(before)
    process.passes(0.0002)
    look.enter("decode")
    process.passes(DECODE, own_s=decode_waits, other_s=0.002)
    look.enter("")


def test_each_stage_has_what_it_used_and_what_remains_is_the_rest(process: Process) -> None:
    look = looking(4)
    for _ in range(4):
        sample(process, look, decode_waits=0.001)
    look.collate()
    process.passes(0.005, own_s=0.001, other_s=0.003)
    look.close()
    batch = looked_batch(look, (0.006, 0.016, 0.0, 0.006))
    uses = by_stage(batch)
    assert uses["read"] == pytest.approx((0.006, 0.004, 0.002, 0.0))
    assert uses["decode"] == pytest.approx((0.016, 0.012, 0.004, 0.008))
    assert uses["rest"] == pytest.approx((0.0012, 0.0012, 0.0, 0.0))
    assert uses["collate"] == pytest.approx((0.006, 0.005, 0.001, 0.003))
    assert set(uses) == {"read", "decode", "rest", "collate"}, "no transform took any time"


def test_of_a_large_batch_some_samples_tell(process: Process) -> None:
    """The thread is followed in at most 64 of them, and all threads in 8."""
    n = 4 * MOST_SAMPLES
    look = looking(n)
    reads = 0
    of_others = look._files.others_queued_ns

    def counted() -> int:
        nonlocal reads
        reads += 1
        return of_others()

    look._files.others_queued_ns = counted  # type: ignore[method-assign]
    for number in range(n):
        sample(process, look, decode_waits=0.001 if number % 4 == 0 else 0.0)
    look.collate()
    look.close()
    assert reads < 8 * 8
    uses = by_stage(looked_batch(look, (n * 0.0015, n * 0.004, 0.0, 0.0)))
    assert uses["decode"] == pytest.approx((n * 0.004, n * 0.003, n * 0.001, n * 0.002)), (
        "as if all were like those that were followed"
    )
    assert uses["read"].queued_s == pytest.approx(n * 0.0005)


def test_an_error_leaves_no_stage_open(process: Process) -> None:
    """A sample that cannot be decoded is left out; what follows is no decoding."""
    look = looking(2)
    look.begin_sample()
    look.enter("decode")
    process.passes(0.001)
    sample(process, look)
    look.collate()
    look.close()
    uses = by_stage(looked_batch(look, (0.0015, 0.004, 0.0, 0.0)))
    assert uses["decode"].cpu_s == pytest.approx(0.004)
    assert uses["rest"].wall_s == pytest.approx(0.0003)


def test_a_stage_without_a_clock_of_its_own_has_the_rest_of_the_dataset(process: Process) -> None:
    """Of MNIST only the transforms have one: the rest of a sample is its conversion to an image."""
    look = looking(3, rest="decode")
    for _ in range(3):
        look.begin_sample()
        process.passes(0.002, own_s=0.001)
        look.enter("transform")
        process.passes(0.004, other_s=0.002)
        look.enter("")
    look.collate()
    look.close()
    uses = by_stage(looked_batch(look, (0.0, 0.009, 0.012, 0.0)))
    assert uses["decode"] == pytest.approx((0.009, 0.006, 0.003, 0.0))
    assert uses["transform"] == pytest.approx((0.012, 0.012, 0.0, 0.006))


def test_a_piece_of_a_batch_that_threads_make_stands_for_all(process: Process) -> None:
    look = StageLook(8, 2)
    for _ in range(2):
        sample(process, look, decode_waits=0.001)
    look.close()
    batch = looked_batch(look, (0.009, 0.024, 0.0, 0.0001))
    assert (batch.counts_for, {name for name, _ in batch.stages}) == (8, {"read", "decode"})
    decode = by_stage(batch)["decode"]
    assert decode == pytest.approx((0.024, 0.018, 0.006, 0.012))


@pytest.mark.parametrize(("is_alone", "queued_s"), [(False, 0.005), (True, 0.001)])
def test_what_threads_wait_that_do_not_help_costs_no_more_than_sleep(
    process: Process, is_alone: bool, queued_s: float
) -> None:
    """Threads of a loader have a batch each. One waits for another's lock of Python, or it does not wait at all."""
    look = looking(1, rest="", is_alone=is_alone)
    look.begin_sample()
    look.enter("decode")
    process.passes(0.004, own_s=0.001, other_s=0.004)
    process.sleeps(0.001, other_s=0.001)
    look.close()
    uses = by_stage(looked_batch(look, (0.0, 0.006, 0.0, 0.0)))
    assert uses["decode"] == pytest.approx((0.006, 0.004, 0.001, queued_s))


def test_a_stage_in_no_followed_sample_is_not_known(process: Process) -> None:
    look = looking(1, rest="")
    sample(process, look)
    look.close()
    uses = by_stage(looked_batch(look, (0.0015, 0.003, 0.002, 0.001)))
    assert set(uses) == {"read", "decode"}


def test_reading_takes_nothing_of_a_stage_and_is_counted(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program interrupts one of the reads: looking does not take that."""
    read = core_use._schedstat
    reads = 0

    def slowly(descriptor: int) -> tuple[int, int]:
        nonlocal reads
        reads += 1
        process.wall_s += 2e-6 + (0.5 if reads == 8 else 0.0)
        return read(descriptor)

    monkeypatch.setattr(core_use, "_schedstat", slowly)
    look = looking(2)
    for _ in range(2):
        sample(process, look)
    look.collate()
    look.close()
    batch = looked_batch(look, (0.003, 0.006, 0.0, 0.0))
    assert look.own_in("decode").wall_s == pytest.approx(2 * DECODE)
    assert by_stage(batch)["rest"].wall_s == pytest.approx(2 * 0.0003)
    assert reads >= 2 * 2 * 4, "each change of the stage reads the files of two threads"
    assert batch.cost_s == pytest.approx(reads * 2e-6)


def test_a_run_has_the_sums_of_its_batches_as_often_as_they_count() -> None:
    """What remains of a batch may be below 0, or more waits than time: the other stages were known from some of its
    samples."""
    sums = StageUses()
    assert sums.facts() == {}
    sums.add(LookedBatch(1, (("read", CoreTimes(1.0, 0.5, 0.1, 0.2)),), 0.001))
    pinned = [["read", CoreTimes(1.0, 0.5, 0.1, 0.2)], ["rest", CoreTimes(0.1, -0.1, 0.3, 0.0)]]
    sums.add(LookedBatch(8, pinned, 0.002))  # type: ignore[arg-type]
    making = sums.facts()["making"]
    assert making["looked_batches"] == 9
    assert making["looking_s"] == pytest.approx(0.003)
    assert making["stages"]["read"] == pytest.approx(
        {"took_s": 9.0, "cpu_s": 4.5, "queued_s": 0.9, "threads_queued_s": 1.8}
    )
    rest = making["stages"]["rest"]
    assert (rest["cpu_s"], rest["queued_s"]) == (0.0, rest["took_s"])


def test_one_of_four_long_batches_is_looked_at_and_later_one_of_32() -> None:
    schedule = LookSchedule()
    assert [schedule.next_counts_for() for _ in range(100)] == [0] * 100, "they take no time"
    schedule.took_s = core_use.LEAST_BATCH_S
    early = [schedule.next_counts_for() for _ in range(core_use.OFTEN)]
    later = [schedule.next_counts_for() for _ in range(10 * core_use.LATER)]
    assert (sum(early), max(early)) == (core_use.OFTEN / 4, 1)
    assert [count for count in later if count] == [8] * 10
    off = LookSchedule(is_on=False)
    off.took_s = 1.0
    assert not any(off.next_counts_for() for _ in range(8))


def test_a_look_gives_its_descriptors_back_once(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = list[int]()
    close = os.close
    monkeypatch.setattr(core_use.os, "close", lambda fd: (closed.append(fd), close(fd)))
    look = looking(1)
    look.close()
    look.close()
    assert len(closed) == 2


def test_a_system_that_does_not_say_what_threads_wait_for_has_no_look(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(core_use, "TASKS", str(tmp_path / "gone"))
    assert begin_look(1, 4) is None


def test_a_thread_that_ends_has_waited_for_no_less(process: Process) -> None:
    """Linux has no file of it any more: all that it ever waited seemed to be given back."""
    process.passes(0.0, other_s=5.0)
    look = looking(1)
    look.begin_sample()
    look.enter("decode")
    process.passes(DECODE, other_s=0.002)
    look.enter("decode")
    process.ends_the_other()
    process.passes(DECODE)
    look.close()
    decode = by_stage(looked_batch(look, (0.0, 2 * DECODE, 0.0, 0.0)))["decode"]
    assert decode.threads_queued_s == pytest.approx(0.002)
