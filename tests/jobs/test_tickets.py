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
from vitprof.home import lock_dir
from vitprof.jobs.concurrent_jobs import Beside
from vitprof.jobs.machine_lock import Holder, caller, tickets
from vitprof.jobs.scheduling import ahead_of, why_waiting
from vitprof.jobs.tickets import Ticket
from vitprof.store import RunStore

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="flock")
HOLDER = """
import sys
from vitprof.jobs.tickets import Ticket
ticket = Ticket(7, "cpu", shares=False, store_url="sqlite:////elsewhere/runs.sqlite")
print(len(ticket.ahead(lambda other: False)), flush=True)
for line in sys.stdin:
    ticket.begun(int(line))
    print("done", flush=True)
"""
"""Another program, with a store of its own, that has its turn; a number on its standard input is its job's process."""


class Other:
    """That program."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.said() == "0"

    def said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def begins(self, pid: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{pid}\n")
        self.process.stdin.flush()
        assert self.said() == "done"


@pytest.fixture
def other() -> Iterator[Other]:
    other = Other()
    yield other
    other.process.kill()
    other.process.communicate()


def never(_: Holder) -> bool:
    return False


def drawn(run: int = 1, device: str = "cpu", *, shares: bool = False) -> Ticket:
    return Ticket(run, device, shares=shares, store_url="sqlite:///here")


@pytest.mark.slow
def test_a_job_of_another_store_is_waited_for_shown_with_its_owner_and_gone_with_its_program(
    store: RunStore, other: Other
) -> None:
    run_id = store.create_run(RunConfig(device="cpu"))
    mine = Ticket(run_id, "cpu", shares=False, store_url=store.url)
    (ahead,) = mine.ahead(never)
    assert (ahead.running, ahead.number) == (True, 1)
    (seen,) = ahead_of(store, run_id)
    words = why_waiting([seen], shares=False)
    pid = other.process.pid
    assert words.startswith(f"waiting for run 7 of another store on cpu (a watched script, process {pid}, since ")
    other.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: ahead_of(store, run_id)[0].owner.endswith("; it is stopped"), "that it is stopped")
    assert mine.ahead(never), "a stopped program has its turn still"
    other.process.kill()
    other.process.wait()
    assert mine.ahead(never) == []
    assert ahead_of(store, run_id) == []
    assert [path.suffix for path in lock_dir().iterdir()] == [".running"], "what a killed program left is cleared away"
    mine.close()
    assert list(lock_dir().iterdir()) == []


def test_the_job_that_a_killed_program_left_is_waited_for(other: Other) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as job:
        other.begins(job.pid)
        other.process.kill()
        other.process.wait()
        mine = drawn()
        (ahead,) = mine.ahead(never)
        assert ahead.who.endswith("; it was killed, and its job goes on")
        assert mine.ahead(never, anyway=True) == [], "the way out"
        job.kill()
    second = drawn(2)
    assert [t.number for t in second.ahead(never)] == [2], "mine alone"
    mine.close()
    second.close()


def test_of_many_that_ask_at_once_one_has_its_turn_in_the_order_of_drawing() -> None:
    began, over = [], []
    together = threading.Barrier(8)

    def work(n: int) -> None:
        ticket = drawn(n)
        together.wait()
        while ticket.ahead(never):
            time.sleep(0.001)
        began.append(ticket._number)
        assert len(began) == len(over) + 1, "two at once"
        over.append(n)
        ticket.close()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert began == sorted(began)
    assert len(over) == 8


def test_jobs_that_fit_together_do_not_wait() -> None:
    first, second = drawn(1, "cuda:0", shares=True), drawn(2, "cuda:1", shares=True)
    assert first.ahead(never) == second.ahead(lambda other: other.shares) == []
    assert [t.number for t in first.others()] == [2]
    first.close()
    first.close()
    second.close()


def test_what_anybody_can_put_into_the_folder_stops_nobody(tmp_path: Path) -> None:
    drawn().close()
    folder = lock_dir()
    assert folder.stat().st_mode & 0o7777 == 0o1777
    os.mkfifo(folder / "00000001-a.running")
    (folder / "00000002-b.running").symlink_to(tmp_path / "elsewhere")
    (folder / "00000003-c.running").mkdir()
    (folder / "00000004-d.running").write_bytes(b"[" * 10_000)
    (folder / "00000005-e.waiting").write_text(json.dumps({"program": "\x1b[2J", "job_pid": 1}))
    (folder / "x.running").touch()
    assert tickets() == []
    mine = drawn()
    assert mine.ahead(never) == []
    mine.close()


def test_where_no_ticket_can_be_drawn_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a-file").touch()
    monkeypatch.setenv("VITPROF_LOCKS", str(tmp_path / "a-file"))
    mine = drawn()
    assert mine.ahead(never) == mine.others() == tickets() == []
    assert mine.why_not.startswith(f"other programs' jobs on this machine cannot be seen ({tmp_path / 'a-file'}: ")
    mine.close()


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


class TestBeside:
    @pytest.mark.slow
    def test_jobs_of_this_store_and_of_others_are_noted_once(self, store: RunStore, other: Other) -> None:
        mine, theirs = (store.create_run(RunConfig(device="cpu", name=name)) for name in ("mine", "theirs"))
        for run_id in (mine, theirs):
            store.update_run(run_id, status="running")
        ticket = Ticket(mine, "cpu", shares=False, store_url=store.url)
        also = Ticket(theirs, "cpu", shares=False, store_url=store.url)
        assert ticket.ahead(never, anyway=True) == also.ahead(never, anyway=True) == []
        beside = Beside(store, mine)
        for _ in range(2):
            beside.look(ticket)
        assert beside.n == 2
        assert beside.notices[0].startswith(f"run {theirs} on cpu (theirs) ran at the same time: they shared CPU")
        assert beside.notices[1].startswith("run 7 of another store on cpu (a watched script, process ")
        ticket.close()
        also.close()

    def test_one_that_began_and_ended_while_nobody_looked_is_noted_afterwards(self, store: RunStore) -> None:
        earlier, mine, queued, late = (store.create_run(RunConfig(device="cpu", name=n)) for n in "abcd")
        store.update_run(mine, status="running")
        beside = Beside(store, mine)
        ticket = drawn(mine)
        for run_id, began_s in ((earlier, time.perf_counter()), (late, time.perf_counter()), (queued, None)):
            store.update_run(run_id, status="done", t_origin_s=began_s)
        beside.look(ticket)
        assert [line.partition(" ran")[0] for line in beside.notices] == [f"run {late} on cpu (d)"]
        beside.look(ticket)
        assert beside.n == 1
        ticket.close()
