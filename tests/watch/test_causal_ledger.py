"""Which pauses processes owe each other while a stage seems faster, at times that nobody measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitprof.watch import causal_ledger
from vitprof.watch.causal_ledger import CAUSAL, PROCESS, STAGES, Ledger, Maker, SharedWords

READ = STAGES.index("read") + 1
COMPUTE = STAGES.index("compute") + 1


def words() -> SharedWords:
    return SharedWords([0.0] * 5)


def test_others_pause_for_a_share_of_a_stage_and_who_ran_it_does_not() -> None:
    shared = words()
    loop, worker, other = (Ledger(shared, slot) for slot in range(3))
    shared.speed_up(READ, 0.25)
    worker.ran(READ, 0.4)
    worker.ran(COMPUTE, 9.0)  # does not seem faster
    assert (loop.due_s(), worker.due_s(), other.due_s()) == pytest.approx((0.1, 0.0, 0.1))
    other.ran(READ, 0.8)
    assert (loop.due_s(), worker.due_s(), other.due_s()) == pytest.approx((0.3, 0.2, 0.1))
    loop.paused(0.3)
    assert loop.due_s() == 0.0


def test_nothing_is_owed_where_no_stage_seems_faster() -> None:
    shared = words()
    ledger = Ledger(shared, 1)
    ledger.ran(READ, 1.0)
    shared.speed_up(READ, 0.5)
    shared.speed_up(0, 0.0)
    ledger.ran(READ, 1.0)
    assert shared.owed_s() == 0.0


def test_a_wait_counts_as_a_pause_and_no_more_than_is_owed() -> None:
    shared = words()
    loop, worker = Ledger(shared, 0), Ledger(shared, 1)
    shared.speed_up(READ, 0.5)
    worker.ran(READ, 0.2)
    loop.waited(0.06)
    assert loop.due_s() == pytest.approx(0.04)
    loop.waited(5.0)
    assert loop.due_s() == 0.0
    worker.ran(READ, 0.2)
    assert loop.due_s() == pytest.approx(0.1), "the rest of that wait is not kept for later"


def test_a_wait_counts_up_to_what_was_settled_when_the_batch_was_passed_on() -> None:
    shared = words()
    loop, worker, other = (Ledger(shared, slot) for slot in range(3))
    shared.speed_up(READ, 0.5)
    worker.ran(READ, 0.2)
    settled_s = worker.settled_s
    other.ran(READ, 0.2)  # while the batch is on its way
    loop.waited(5.0, settled_s)
    assert loop.due_s() == pytest.approx(0.1)


def test_who_slept_for_too_long_pauses_for_less_next_time() -> None:
    shared = words()
    loop, worker = Ledger(shared, 0), Ledger(shared, 1)
    shared.speed_up(READ, 0.5)
    worker.ran(READ, 0.2)
    now = [0.0, 0.13]
    slept: list[float] = []
    loop.pay(lambda: now.pop(0), slept.append)
    assert slept == pytest.approx([0.1])
    worker.ran(READ, 0.2)
    assert loop.due_s() == pytest.approx(0.07)
    loop.waited(1.0, most_s=0.0)
    assert loop.due_s() == pytest.approx(0.07), "what was settled stays so"


def test_what_is_owed_is_forgiven_where_no_block_is_measured() -> None:
    shared = words()
    loop, worker = Ledger(shared, 0), Ledger(shared, 1)
    shared.speed_up(READ, 0.5)
    worker.ran(READ, 20.0)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        shared.end()  # the epoch has ended meanwhile

    loop.pay(iter([0.0, causal_ledger.LONGEST_SLEEP_S]).__next__, sleep)
    assert slept == [causal_ledger.LONGEST_SLEEP_S]
    assert loop.due_s() == 0.0
    shared.speed_up(COMPUTE, 0.5)
    assert loop.due_s() == 0.0
    worker.ran(READ, 1.0)
    assert shared.owed_s() == pytest.approx(10.0)


def test_short_pauses_are_put_off() -> None:
    shared = words()
    loop, worker = Ledger(shared, 0), Ledger(shared, 1)
    shared.speed_up(READ, 0.5)
    worker.ran(READ, causal_ledger.LEAST_PAUSE_S)
    assert loop.due_s() == 0.0
    worker.ran(READ, causal_ledger.LEAST_PAUSE_S)
    assert loop.due_s() > 0


def test_a_worker_waits_between_batches_but_for_what_sending_takes() -> None:
    shared = words()
    loop = Ledger(shared, 0)
    maker = Maker(Ledger(shared, 1), is_worker=True)
    maker.sent(1.0)
    maker.begin(1.01)  # indices were there
    shared.speed_up(COMPUTE, 0.5)
    loop.ran(COMPUTE, 0.2)
    maker.sent(2.0)
    maker.begin(2.05)
    assert maker.ledger.due_s() == pytest.approx(0.1 - 0.04)


def test_processes_share_words_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "owed")
    one = SharedWords.in_file(path)
    one.speed_up(READ, 0.25)
    one.owe(0, 1.5)
    monkeypatch.setenv(CAUSAL, path)
    monkeypatch.setattr(PROCESS, "maker", None)
    causal_ledger.join_as_worker(3)
    maker = PROCESS.maker
    assert maker is not None
    assert maker.ledger.due_s() == 0.0, "what was owed before it began is none of its"
    maker.made(2.0, 0.0, 0.0)
    assert one.owed_s() == pytest.approx(2.0)
    causal_ledger.join_as_worker(3)
    assert PROCESS.maker is maker, "an epoch's new fetcher goes on with it"


def test_without_a_causal_profile_nothing_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CAUSAL, raising=False)
    monkeypatch.setattr(PROCESS, "maker", None)
    causal_ledger.join_as_worker(0)
    assert PROCESS.maker is None
