"""Whose turn it is: one job at a time on a machine, unless jobs on different devices agreed to share it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.engine_fixtures import wait_until
from tests.stored_series import rewrite
from vitprof.config import RunConfig
from vitprof.home import home, lock_dir
from vitprof.jobs import scheduling
from vitprof.jobs.scheduling import (
    Holder,
    MachineLock,
    ahead_of,
    concurrently_running,
    holders,
    queue_of,
    why_waiting,
)
from vitprof.store import RunStore


def add(
    store: RunStore,
    device: str = "cpu",
    *,
    status: str = "queued",
    shares: bool = False,
    **columns: Any,
) -> int:
    run_id = store.create_run(RunConfig(device=device, share_machine=shares))
    store.update_run(run_id, status=status, **columns)
    return run_id


def ids(store: RunStore, run_id: int) -> list[int]:
    return [int(ahead.name.removeprefix("run ")) for ahead in ahead_of(store, run_id)]


def test_auto_waits_for_the_gpu_that_cuda_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "visible_gpus", lambda: ["a GPU"])
    assert (queue_of("auto"), queue_of("cpu"), queue_of("cuda:3")) == ("cuda:0", "cpu", "cuda:3")
    monkeypatch.setattr(scheduling, "visible_gpus", lambda: [])
    assert queue_of("auto") == "cpu"


def test_jobs_run_side_by_side_where_both_share_and_the_devices_differ(store: RunStore) -> None:
    for first, second, waits in (
        *(
            (("cuda:0", one), ("cuda:1", two), not (one and two))
            for one in (False, True)
            for two in (False, True)
        ),
        (("cuda:0", True), ("cuda:0", True), True),
        (("cuda:0", True), ("cpu", True), False),
        (("simulated:1,0", True), ("cpu", True), True),
    ):
        one, two = (add(store, device, shares=shares) for device, shares in (first, second))
        assert (ids(store, one), ids(store, two)) == ([], [one] if waits else [])
        for run_id in (one, two):
            store.update_run(run_id, status="done")


def test_a_run_that_shares_does_not_overtake_one_that_wants_to_be_alone(store: RunStore) -> None:
    going_on = add(store, "cuda:0", shares=True, status="running")
    alone = add(store, "cuda:2")
    late = add(store, "cuda:1", shares=True)
    assert ids(store, late) == [alone]
    assert ids(store, alone) == [going_on]


def test_runs_of_another_machine_and_of_programs_that_are_gone_are_not_waited_for(
    store: RunStore,
) -> None:
    add(store, status="running", owner_host="elsewhere")
    add(store, status="running", owner_started=1.0)
    add(store, status="done")
    unreadable = add(store, status="running")
    rewrite(store, unreadable, RunConfig().to_dict() | {"warmup_steps": 10**12})
    earlier = add(store, shares=True)
    rewrite(
        store, earlier, {k: v for k, v in RunConfig().to_dict().items() if k != "share_machine"}
    )
    mine = add(store, "cuda:0", shares=True)
    later = add(store, status="running")
    assert ids(store, mine) == [unreadable, earlier], (
        "a config from before there was a choice shares nothing"
    )
    assert [run.id for run in concurrently_running(store, mine)] == [unreadable, later]
    assert ids(store, 999) == concurrently_running(store, 999) == []


def test_the_words_say_what_for_and_why(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "visible_gpus", lambda: [])
    first = add(store, "auto", status="running")
    add(store, "cuda:0", shares=True)
    last = add(store, "cuda:0", shares=True)
    ahead = ahead_of(store, last)
    said = f"waiting for run {first} on cpu and 1 more; jobs run one at a time so that they do not take each other's"
    assert why_waiting(ahead, shares=False) == f"{said} CPU and disk"
    assert why_waiting(ahead, shares=True).endswith(
        "; it was started to run alone (share_machine off)"
    )
    assert why_waiting(ahead[1:], shares=True).endswith(
        " on cuda:0; a device takes one job at a time"
    )


HOLDER = """
from vitprof.jobs.scheduling import MachineLock
lock = MachineLock(7, "cpu", shares=False, store_url="sqlite:////elsewhere/runs.sqlite")
print(lock.acquire(), flush=True)
input()
"""
"""Another program, with a store of its own, that has its turn."""


@pytest.fixture
def other() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLDER]
    with subprocess.Popen(
        command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        yield process
        process.kill()


def lock(run: int = 1, device: str = "cpu", *, shares: bool = False) -> MachineLock:
    return MachineLock(run, device, shares=shares, store_url="sqlite:///here")


def test_a_job_of_another_store(
    store: RunStore, other: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = store.create_run(RunConfig(device="cpu"))
    mine = MachineLock(run_id, "cpu", shares=False, store_url=store.url)
    assert not mine.acquire()
    (seen,) = ahead_of(store, run_id)
    words = why_waiting([seen], shares=False)
    assert words.startswith(
        f"waiting for run 7 of another store on cpu (a watched script, process {other.pid}, since "
    )
    (file,) = lock_dir().glob("job-*.lock")
    written = json.loads(file.read_text())
    assert (written["pid"], written["home"]) == (other.pid, str(home()))
    assert file.stat().st_mode & 0o777 == 0o666, "every user can read and take it"
    other.send_signal(signal.SIGSTOP)
    wait_until(
        lambda: ahead_of(store, run_id)[0].owner.endswith("; it is stopped"), "that it is stopped"
    )
    assert not mine.acquire(), "a stopped program has its turn still"
    monkeypatch.setattr(scheduling, "_user", lambda: "somebody")
    assert f", user {written['user']}, since" in ahead_of(store, run_id)[0].owner
    other.kill()
    other.wait()
    assert ahead_of(store, run_id) == []
    assert mine.acquire()
    assert mine.acquire(), "it has its turn already"
    mine.release()
    mine.release()
    assert holders() == []


def test_who_begins_anyway_is_waited_for_too_and_who_fits_does_not_wait() -> None:
    first, anyway, late = lock(1, "cuda:0", shares=True), lock(2), lock(3)
    fits = lock(4, "cuda:1", shares=True)
    assert first.acquire()
    assert fits.acquire()
    assert not late.acquire()
    assert first.others() == [fits.holder]
    fits.release()
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
        wait_until(mine.acquire, "its turn")
        began.append(n)
        assert len(began) == len(over) + 1, "two at once"
        over.append(n)
        mine.release()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert sorted(over) == list(range(8))


def test_what_anybody_can_put_into_the_folder_stops_nobody_and_lets_nobody_in(
    tmp_path: Path,
) -> None:
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
    (silent,) = holders()
    assert silent.who.startswith(f"{psutil.Process().name()}, process {os.getpid()}, since ")
    assert silent.who.endswith(
        "; it does not say what it runs: begin without waiting with --anyway, or Run now"
    )
    first.release()
    assert second.acquire()
    second.release()


@pytest.fixture
def seen_by_all(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that every user may look into, with the locks and the home.

    pytest's own are closed to others, also those that were opened: by any pytest that the same user
    starts meanwhile (`TempPathFactory.getbasetemp`).
    """
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    monkeypatch.setenv("VITPROF_LOCKS", str(folder / "locks"))
    monkeypatch.setenv("VITPROF_HOME", str(folder / "home"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize("junk", ["unreadable", "read-only", "linked", "taken folder"])
def test_files_of_another_user_switch_nothing_off(seen_by_all: Path, junk: str) -> None:
    """Each in a process of the same user, as a lock is one of a process: nobody, whom the files keep out."""
    folder = lock_dir()
    folder.mkdir(mode=0o700 if junk == "taken folder" else 0o1777)
    folder.chmod(0o700 if junk == "taken folder" else 0o1777)
    mine = seen_by_all / "mine"
    mine.write_text("kept")
    for n in range(scheduling.N_PLACES):
        path = folder / f"job-{n}.lock"
        if junk == "linked":
            path.hardlink_to(mine)
        path.touch()
        path.chmod({"unreadable": 0o600, "read-only": 0o644}.get(junk, 0o666))
    first, second = lock(1), lock(2)
    made_home = seen_by_all / "home"
    made_home.mkdir(exist_ok=True)
    os.chown(made_home, 65534, 65534)
    os.setegid(65534)
    os.seteuid(65534)
    try:
        assert first.acquire()
        assert "cannot be seen" in first.not_seen
        assert [h.run for h in holders()] == [1]
        assert not second.acquire()
        first.release()
        assert second.acquire()
        second.release()
    finally:
        os.seteuid(0)
        os.setegid(0)
    assert mine.read_text() == "kept"


def test_one_that_stops_as_it_looks_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, scheduling._one_at_a_time():
        patch.setattr(scheduling, "CHECK_S", 0.0)
        first, second = lock(1), lock(2)
        assert first.acquire()
        assert not second.acquire()
        first.release()
    full = lock()
    monkeypatch.setattr(scheduling, "N_PLACES", 0)
    assert full.acquire()
    assert "all 0 places are taken" in full.not_seen
    (tmp_path / "a-file").touch()
    monkeypatch.setenv("VITPROF_LOCKS", str(tmp_path / "a-file"))
    mine = lock()
    assert mine.acquire()
    assert (mine.others(), holders()) == ([], [])
    assert mine.not_seen.startswith(
        f"other programs' jobs on this machine cannot be seen ({tmp_path / 'a-file'}: "
    )
    mine.release()


def test_what_a_person_calls_the_program_and_a_user_without_a_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "streamlit", raising=False)
    for arguments, name in (
        (["/usr/bin/vitprof", "run", "--steps"], "python -m vitprof run"),
        (["/x/train.py", "--lr"], "train.py"),
        ([""], "a program"),
    ):
        monkeypatch.setattr(sys, "argv", arguments)
        assert scheduling.caller() == name
    monkeypatch.setitem(sys.modules, "streamlit", sys)
    assert scheduling.caller() == "the dashboard"
    monkeypatch.setattr(scheduling.getpass, "getuser", lambda: {}["no such user"])
    assert lock().holder.user == str(os.getuid())
    assert Holder().who.startswith(
        "a program that cannot be named; it does not say what it runs: begin without"
    )
