"""The throttled drive: rates in a time of its own, and one state for all processes."""

import multiprocessing
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.clock import Clock
from tests.engine.locations import Time
from tests.engine_fixtures import error_in_one_line
from vitprof.config.drives import SLOW_DRIVES, SlowDrive
from vitprof.engine.locations.throttle import BURST_S, TokenBucket, describe
from vitprof.errors import DataError

NETWORK = SlowDrive(10.0, 100.0, serial=False)
DISK = SlowDrive(10.0, 100.0, serial=True)


def bucket(tmp_path: Path, drive: SlowDrive, time: Time) -> TokenBucket:
    return TokenBucket(tmp_path / "drive", drive, clock=time, sleep=time.sleep)


@pytest.mark.parametrize("drive", [NETWORK, DISK])
def test_one_reader_gets_the_bandwidth_and_waits_for_each_file(
    tmp_path: Path, drive: SlowDrive
) -> None:
    time = Time()
    slow = bucket(tmp_path, drive, time)
    for _ in range(100):
        slow.wait(1_000_000, 0)
    assert time.now - 1000 == pytest.approx(10.0, abs=2 * BURST_S)
    (tmp_path / "drive").unlink()
    slow = bucket(tmp_path, drive, time := Time())
    for _ in range(20):
        slow.wait(100_000, 1)
    slow.wait(500_000, 5)  # a batch of five, opened one after another
    assert time.now - 1000 == pytest.approx(25 * 0.11, abs=25 * BURST_S)


def test_a_pause_of_the_reader_saves_nothing_up(tmp_path: Path) -> None:
    time = Time()
    slow = bucket(tmp_path, DISK, time)
    slow.wait(0, 1)
    time.now += 50
    before = time.now
    slow.wait(1_000_000, 1)
    assert time.now - before == pytest.approx(0.2, abs=2 * BURST_S)


def test_latencies_overlap_on_a_network_and_not_on_a_disk(tmp_path: Path) -> None:
    time = Time()
    network = TokenBucket(tmp_path / "network", NETWORK, clock=time)
    due = [network._reserve(100_000, 1) - time.now for _ in range(20)]
    assert due[:10] == pytest.approx([0.11] * 10)  # ten readers at once wait no longer than one
    assert due[19] == pytest.approx(0.2, abs=2 * BURST_S)  # then the line is full: 20 * 10 ms
    disk = TokenBucket(tmp_path / "disk", DISK, clock=time)
    due = [disk._reserve(100_000, 1) - time.now for _ in range(3)]
    assert due == pytest.approx([0.11, 0.22, 0.33], abs=2 * BURST_S)


def work(slow: TokenBucket) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(slow._reserve, [1_000_000] * 100, [0] * 100))


def test_processes_and_threads_share_it(tmp_path: Path) -> None:
    """A forked process has what its parent has open, one that is sent the bucket as it is pickled has not."""
    slow = TokenBucket(
        tmp_path / "drive", SlowDrive(1.0, 0.0, False), clock=Clock()
    )  # it stands still
    slow._reserve(1_000_000, 0)  # open here too, before a fork
    sent = pickle.dumps(slow)
    context = multiprocessing.get_context("fork")
    workers = [
        context.Process(target=work, args=(slow,)),
        context.Process(target=lambda: work(pickle.loads(sent))),
    ]
    for worker in workers:
        worker.start()
    work(slow)
    for worker in workers:
        worker.join()
    assert slow._reserve(0, 0) == 301  # 1 + 3 processes * 100, none lost


def test_closing_lets_go_whoever_waits_also_in_another_process(tmp_path: Path) -> None:
    slow = TokenBucket(tmp_path / "drive", NETWORK)
    slow.wait(10, 0)
    other = pickle.loads(pickle.dumps(slow))
    assert (other.path, other.drive) == (slow.path, slow.drive)
    waiting = [
        threading.Thread(target=of.wait, args=(10**12, 1), daemon=True)
        for of in (slow, slow, other)
    ]
    for thread in waiting:
        thread.start()
    slow.close()
    for thread in waiting:
        thread.join(60)
    assert not any(thread.is_alive() for thread in waiting)


def test_a_stop_and_a_removed_state_end_a_wait(tmp_path: Path) -> None:
    time = Time()
    slow = bucket(tmp_path, NETWORK, time)
    slow.wait(10**12, 1, lambda: time.now > 1005)
    assert time.now == pytest.approx(1005, abs=0.2)
    (tmp_path / "drive").unlink()
    again = pickle.loads(pickle.dumps(TokenBucket(tmp_path / "other", NETWORK)))
    (tmp_path / "other").unlink()
    again.wait(10**12, 1)


def test_it_says_what_the_drive_does_and_where_its_state_cannot_be_written(tmp_path: Path) -> None:
    assert (
        describe(SlowDrive(30.0, 207.0, serial=False))
        == "throttled to 30.0 MB/s and 207 ms for each file"
    )
    assert "one after another" in describe(SLOW_DRIVES["mechanical-disk"])
    with error_in_one_line(DataError, match="nowhere/drive"):
        TokenBucket(tmp_path / "nowhere" / "drive", NETWORK)
