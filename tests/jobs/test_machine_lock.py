"""One job at a time on a machine, whatever home, store or program it is of: with real processes that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine_fixtures import wait_until
from vitprof.config import RunConfig
from vitprof.home import home, lock_dir
from vitprof.jobs import machine_lock
from vitprof.jobs.scheduling import Holder, MachineLock, ahead_of, caller, holders, why_waiting
from vitprof.store import RunStore

HOLDER = """
from vitprof.jobs.scheduling import MachineLock
lock = MachineLock(7, "cpu", shares=False, store_url="sqlite:////elsewhere/runs.sqlite")
print(lock.acquire(), flush=True)
input()
"""
"""Another program, with a store of its own, that has its turn."""


@pytest.fixture
def other() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        yield process
        process.kill()


def lock(run: int = 1, device: str = "cpu", *, shares: bool = False) -> MachineLock:
    return MachineLock(run, device, shares=shares, store_url="sqlite:///here")


@pytest.mark.slow
def test_a_job_of_another_store_is_waited_for_shown_with_its_owner_and_gone_with_its_program(
    store: RunStore, other: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = store.create_run(RunConfig(device="cpu"))
    mine = MachineLock(run_id, "cpu", shares=False, store_url=store.url)
    assert not mine.acquire()
    (seen,) = ahead_of(store, run_id)
    words = why_waiting([seen], shares=False)
    assert words.startswith(f"waiting for run 7 of another store on cpu (a watched script, process {other.pid}, since ")
    (file,) = lock_dir().glob("job-*.lock")
    written = json.loads(file.read_text())
    assert (written["pid"], written["home"]) == (other.pid, str(home()))
    assert file.stat().st_mode & 0o777 == 0o666, "every user can read and take it"
    other.send_signal(signal.SIGSTOP)
    wait_until(lambda: ahead_of(store, run_id)[0].owner.endswith("; it is stopped"), "that it is stopped")
    assert not mine.acquire(), "a stopped program has its turn still"
    monkeypatch.setattr(machine_lock, "_user", lambda: "somebody")
    assert f", user {written['user']}, since" in ahead_of(store, run_id)[0].owner
    other.kill()
    other.wait()
    assert ahead_of(store, run_id) == []
    assert mine.acquire()
    assert mine.acquire(), "it has its turn already"
    mine.release()
    mine.release()
    assert holders() == []


def test_who_begins_anyway_is_waited_for_too() -> None:
    first, anyway, late = lock(1), lock(2), lock(3)
    assert first.acquire()
    assert anyway.acquire(anyway=True)
    assert first.others() == [anyway.holder]
    first.release()
    assert not late.acquire()
    anyway.release()
    assert late.acquire()
    late.release()


def test_of_many_that_ask_at_once_one_has_its_turn() -> None:
    began, over = [], []
    together = threading.Barrier(8)

    def work(n: int) -> None:
        mine = lock(n)
        together.wait()
        while not mine.acquire():
            time.sleep(0.001)
        began.append(n)
        assert len(began) == len(over) + 1, "two at once"
        over.append(n)
        mine.release()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(over) == list(range(8))


def test_jobs_that_fit_together_do_not_wait() -> None:
    first, second, third = lock(1, "cuda:0", shares=True), lock(2, "cuda:1", shares=True), lock(3, "cuda:2")
    assert first.acquire()
    assert second.acquire()
    assert not third.acquire()
    assert first.others() == [second.holder]
    first.release()
    second.release()


def test_what_anybody_can_put_into_the_folder_stops_nobody_and_lets_nobody_in(tmp_path: Path) -> None:
    first = lock()
    assert first.acquire()
    folder = lock_dir()
    assert folder.stat().st_mode & 0o7777 == 0o1777
    for n in range(1_100):
        (folder / f"{n:08d}-junk.lock").touch()
    os.mkfifo(folder / "job-1.lock")
    (folder / "job-2.lock").symlink_to(tmp_path / "elsewhere")
    (folder / "job-3.lock").mkdir()
    (folder / "job-4.lock").write_bytes(b"[" * 10_000)
    (folder / "job-5.lock").write_text(json.dumps({"program": "\x1b[2J"}))
    assert holders() == [first.holder]
    second = lock(2)
    assert not second.acquire()
    (folder / "job-0.lock").write_text(json.dumps({"program": "\x1b[2J", "run": 4, "pid": 1}))
    (strange,) = holders()
    assert "\x1b" not in strange.who
    (folder / "job-0.lock").write_text("nothing")
    assert [h.who for h in holders()] == ["a program that does not say which"]
    first.release()
    assert second.acquire()
    second.release()


def test_one_that_looks_through_the_places_and_stops_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_lock, "CHECK_S", 0.0)
    first, second = lock(1), lock(2)
    with machine_lock._one_at_a_time():
        assert first.acquire()
        assert not second.acquire()
    first.release()


def test_where_no_place_can_be_taken_the_reason_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = lock()
    monkeypatch.setattr(machine_lock, "N_PLACES", 0)
    assert full.acquire()
    assert "all 0 places are taken" in full.not_seen
    (tmp_path / "a-file").touch()
    monkeypatch.setenv("VITPROF_LOCKS", str(tmp_path / "a-file"))
    mine = lock()
    assert mine.acquire()
    assert mine.others() == holders() == []
    assert mine.not_seen.startswith(f"other programs' jobs on this machine cannot be seen ({tmp_path / 'a-file'}: ")
    mine.release()


def test_what_a_person_calls_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "streamlit", raising=False)
    for arguments, name in (
        (["/usr/bin/vitprof", "run", "--steps"], "python -m vitprof run"),
        (["/x/train.py", "--lr"], "train.py"),
        ([""], "a program"),
    ):
        monkeypatch.setattr(sys, "argv", arguments)
        assert caller() == name
    monkeypatch.setitem(sys.modules, "streamlit", sys)
    assert caller() == "the dashboard"


def test_a_user_without_a_name_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> str:
        raise KeyError

    monkeypatch.setattr(machine_lock.getpass, "getuser", fails)
    assert lock().holder.user == str(os.getuid())
    assert Holder().who == "a program that does not say which"
