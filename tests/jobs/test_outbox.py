"""A store that is unavailable while a job reports: nothing is lost, nobody waits, and the run says what happened."""

import errno
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from tests.clock import Clock
from tests.engine_fixtures import wait_until
from tests.jobs.reported import ReportingJob
from vitprof.config import RunConfig
from vitprof.config.resolve import resolve
from vitprof.errors import StoreError, StoreGoneError, StoreOverwrittenError
from vitprof.jobs import outbox as outbox_module
from vitprof.jobs import spool as spool_module
from vitprof.jobs import written_run as written_run_module
from vitprof.jobs.finalise import settle_interrupted
from vitprof.jobs.spool import PREFIX
from vitprof.jobs.supervisor import JobRecorder
from vitprof.jobs.written_run import WrittenRun
from vitprof.store import RunStore
from vitprof.store.chunks import chunks_of, loaded

LIMIT_S = 60.0


@pytest.fixture
def store(impatient_store: RunStore, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.setattr(outbox_module, "RETRY_S", 0.005)
    return impatient_store


@pytest.fixture
def lock(store: RunStore) -> Iterator[sqlite3.Connection]:
    """Another program, which can keep the store to itself."""
    assert store.file is not None
    with closing(
        sqlite3.connect(store.file, isolation_level=None, check_same_thread=False)
    ) as made:
        made.execute("PRAGMA busy_timeout = 10000")
        yield made


class Recording:
    """A recorder and its job, whose `at` runs as the job goes on."""

    def __init__(
        self, store: RunStore, seconds: float, at: Callable[[float], None], **job: Any
    ) -> None:
        self.store, self.id, clock = store, store.create_run(resolve(RunConfig())), Clock()
        self.job = ReportingJob(clock, seconds, at, **job)
        self.recorder = JobRecorder(
            store, self.id, threading.Event(), clock, start=lambda: self.job
        )

    @property
    def outbox(self) -> outbox_module.Outbox:
        return self.recorder.outbox

    def lock_at(self, when: float, now: float, lock: sqlite3.Connection) -> None:
        if now == when:
            assert self.outbox.wait(LIMIT_S)
            lock.execute("BEGIN EXCLUSIVE")

    def is_unavailable(self) -> None:
        wait_until(lambda: self.outbox.unavailable, "the store to be seen to be unavailable")

    def whole(self) -> Any:
        """The run, when the store has it; every step of it is there."""
        assert self.outbox.wait(LIMIT_S)
        run: Any = self.store.run(self.id)
        assert self.store.steps(self.id)["step"].tolist() == list(range(self.job.n_steps))
        assert run.summary.n_steps == self.job.n_steps
        return run


def spools(store: RunStore) -> list[Path]:
    assert store.file is not None
    top = store.file.parent.parent
    return sorted(path for path in top.rglob("*") if path.name.startswith("vitprof-"))


@pytest.mark.parametrize("seconds", [4.0, 120.0])
def test_a_lock_costs_nothing(store: RunStore, lock: sqlite3.Connection, seconds: float) -> None:
    seen = []

    def at(now: float) -> None:
        recording.lock_at(2.0, now, lock)
        if now == 3.0:
            recording.is_unavailable()
        if now == 2.0 + seconds:
            seen.extend(spools(store))
            lock.rollback()

    recording = Recording(store, seconds + 4.0, at)
    recording.recorder.run()
    run = recording.whole()
    assert (run.status, run.error) == ("done", "")
    (notice,) = run.notices
    assert notice.startswith("the run store could not be written for ")
    assert notice.endswith(
        "(database is locked); what was measured meanwhile waited and is complete"
    )
    (spool,) = seen
    assert spool.parent == store.file.parent
    assert spool.stat().st_mode & 0o777 == 0o600 if spool.exists() else not spools(store)


def test_a_lock_until_after_the_end(store: RunStore, lock: sqlite3.Connection) -> None:
    recording = Recording(store, 6.0, lambda now: recording.lock_at(2.0, now, lock))
    recording.recorder.run()
    assert (recording.outbox.unavailable, store.run(recording.id).status) == (
        "database is locked",
        "running",
    )
    lock.rollback()
    assert recording.whole().status == "done"
    assert not spools(store)


class Full:
    """A disk without room: SQLite's own error for the database, the system's for a file beside it."""

    def __init__(
        self, store: RunStore, monkeypatch: pytest.MonkeyPatch, *, everywhere: bool = False
    ) -> None:
        self.now, self._everywhere = False, everywhere
        self._beside = str(store.file.parent) if store.file else ""
        write = os.pwrite

        def pwrite(descriptor: int, *args: Any) -> int:
            place = os.readlink(f"/proc/self/fd/{descriptor}")
            if self.now and (self._everywhere or place.startswith(self._beside)):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(descriptor, *args)

        monkeypatch.setattr(spool_module.os, "pwrite", pwrite)
        sa.event.listen(store._engine, "checkout", self._on_use)

    def _on_use(self, connection: Any, *_: Any) -> None:
        connection.execute(
            f"PRAGMA max_page_count = {1 if self.now else 1 << 30}"
        )  # 1: as many as there are


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="asks Linux what a descriptor is")
@pytest.mark.parametrize("everywhere", [False, True])
def test_a_disk_that_is_full_and_freed(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, everywhere: bool
) -> None:
    """What the disk cannot take waits in the temporary directory; where that is full too, in memory."""
    full, seen = Full(store, monkeypatch, everywhere=everywhere), []

    def at(now: float) -> None:
        if now == 2.0:
            assert recording.outbox.wait(LIMIT_S)
            full.now = True
        if now == 100.0:  # so much that no page of the database has room for it
            recording.is_unavailable()
        if now == 130.0:
            seen.extend(spools(store))
            full.now = False

    recording = Recording(store, 135.0, at)
    recording.recorder.run()
    run = recording.whole()
    assert (run.status, run.error) == ("done", "")
    assert (
        "(database or disk is full); what was measured meanwhile waited and is complete"
        in run.notices[0]
    )
    assert {path.parent.name for path in seen} == (set() if everywhere else {"temporary"})
    assert not spools(store)


def test_what_has_no_room_is_told(
    store: RunStore, lock: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "MOST_BYTES", 40_000)

    def at(now: float) -> None:
        recording.lock_at(2.0, now, lock)
        if now == 3.0:
            recording.is_unavailable()
        if now == 20.0:
            lock.rollback()
            assert recording.outbox.wait(LIMIT_S)

    recording = Recording(store, 22.0, at)
    recording.recorder.run()
    assert recording.outbox.wait(LIMIT_S)
    run = store.run(recording.id)
    n = store.n_steps(recording.id)
    assert run.status == "done"
    (notice,) = run.notices
    assert notice.endswith(
        f"{220 - n} steps of that time are lost: the 0 MB for waiting data were full"
    )
    assert 40 < n < 220


def test_a_program_that_ends_first_leaves_it_to_the_next_one(
    store: RunStore,
    lock: sqlite3.Connection,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vitprof.jobs.supervisor.LEAVE_AFTER_S", 0.01)
    recording = Recording(store, 6.0, lambda now: recording.lock_at(2.0, now, lock))
    recording.recorder.run()
    (path,) = spools(store)
    said = f"unavailable (database is locked): what it could not take is in {path} until vitprof starts again"
    assert said in recording.recorder.leave()
    settle_interrupted(store)  # still unavailable: it waits for the next time
    assert spools(store) == [path]
    assert capsys.readouterr().err == ""
    lock.rollback()
    settle_interrupted(store)
    assert capsys.readouterr().err.startswith(f"vitprof: run {recording.id}: ")
    run: Any = recording.store.run(recording.id)
    assert (run.status, run.error) == ("done", "")
    assert run.summary.n_steps == store.n_steps(recording.id) == 60
    assert run.summary.wall_s == pytest.approx(6.0)
    assert "was imported later" in run.notices[0]
    assert not spools(store)
    settle_interrupted(store)
    assert (capsys.readouterr().err, repr(store.run(recording.id))) == ("", repr(run))
    assert PREFIX in path.name


def other_store(store: RunStore) -> None:
    """Puts an empty store in place of the store's file, as a restored backup."""
    assert store.file is not None
    backup = store.file.with_name("backup.sqlite")
    with closing(RunStore(f"sqlite:///{backup}")):
        pass
    no_store(store)
    os.replace(backup, store.file)


def no_store(store: RunStore) -> None:
    assert store.file is not None
    for path in store.file.parent.glob(f"{store.file.name}*"):
        path.unlink()


@pytest.mark.parametrize(
    ("change", "why"), [(no_store, "its file was deleted"), (other_store, "its file was replaced")]
)
def test_a_store_file_that_is_deleted_or_replaced_loses_nothing(
    store: RunStore,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[RunStore], None],
    why: str,
) -> None:
    def at(now: float) -> None:
        if now == 3.0:
            assert recording.outbox.wait(LIMIT_S)
            change(store)

    recording = Recording(store, 6.0, at)
    recording.recorder.run()
    with pytest.raises(StoreGoneError, match=f"{why.removeprefix('its file ')} while vitprof had"):
        store.runs()
    (path,) = spools(store)
    said = f"the run store is unavailable ({why}): what it could not take is in {path} until vitprof starts again"
    assert recording.recorder.leave() == said
    with closing(RunStore(str(store._parsed))) as anew:
        settle_interrupted(anew)
        (run,) = anew.runs()
        assert (run.status, run.error) == ("done", "")
        assert anew.steps(run.id)["step"].tolist() == list(range(60))
        assert run.summary is not None
        assert run.summary.wall_s == pytest.approx(6.0)
        assert why in run.notices[0]
    assert "60 steps that waited for the run store" in capsys.readouterr().err
    assert not spools(store)


def checkpoint(store: RunStore, how: str) -> None:
    """Brings the last changes into the store's file, as each program does from time to time."""
    with closing(sqlite3.connect(str(store.file))) as db:
        assert db.execute(f"PRAGMA wal_checkpoint({how})").fetchone()[0] == 0


def copied_over(store: RunStore, backup: Path) -> None:
    """Does what `cp` does: the file stays the same one."""
    assert store.file is not None
    before = store.file.stat()
    shutil.copyfile(backup, store.file)
    assert os.path.samestat(before, store.file.stat())


def earlier(store: RunStore, tmp_path: Path) -> Path:
    checkpoint(store, "TRUNCATE")
    return Path(shutil.copyfile(str(store.file), tmp_path / "backup.sqlite"))


def of_another_store(_store: RunStore, tmp_path: Path) -> Path:
    backup = tmp_path / "backup.sqlite"
    with closing(RunStore(f"sqlite:///{backup}")) as other:
        # it was written to more often
        for _ in range(60):
            other.update_run(1, message="")
    return backup


@pytest.mark.parametrize("how", ["TRUNCATE", "PASSIVE"])
@pytest.mark.parametrize("make_backup", [earlier, of_another_store])
def test_a_store_file_that_is_overwritten_in_place_loses_nothing(
    store: RunStore,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    make_backup: Callable[[RunStore, Path], Path],
    how: str,
) -> None:
    """SQLite goes on without an error, and would mix what was there with what is there now."""
    backups = []

    def at(now: float) -> None:
        if now == 1.0:
            assert recording.outbox.wait(LIMIT_S)
            backups.append(make_backup(store, tmp_path))
        if now == 3.0:
            assert recording.outbox.wait(LIMIT_S)
            checkpoint(store, how)
            store.runs()  # looks at the file
        if now == 4.0:
            assert recording.outbox.wait(LIMIT_S)
            copied_over(store, backups[0])

    recording = Recording(store, 6.0, at)
    recording.recorder.run()
    why = "its file was overwritten"
    with pytest.raises(StoreOverwrittenError, match="was overwritten while vitprof had it open"):
        store.runs()
    (path,) = spools(store)
    said = f"the run store is unavailable ({why}): what it could not take is in {path} until vitprof starts again"
    assert recording.recorder.leave() == said
    store.close()
    with closing(RunStore(str(store._parsed))) as anew:
        before = [run.id for run in anew.runs()]
        assert before == ([recording.id] if make_backup is earlier else [])
        settle_interrupted(anew)
        (run,) = anew.runs()
        assert (run.status, run.error) == ("done", "")
        assert anew.steps(run.id)["step"].tolist() == list(range(60))
        assert run.summary is not None
        assert run.summary.wall_s == pytest.approx(6.0)
        assert why in run.notices[0]
        assert "lost" not in run.notices[0]
        with anew.transaction() as db:
            assert db.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
    assert "60 steps that waited for the run store" in capsys.readouterr().err
    assert not spools(store)


def test_a_copy_of_what_is_there_changes_nothing(store: RunStore, tmp_path: Path) -> None:
    def at(now: float) -> None:
        if now == 3.0:
            assert recording.outbox.wait(LIMIT_S)
            copied_over(store, earlier(store, tmp_path))

    recording = Recording(store, 6.0, at)
    recording.recorder.run()
    run = recording.whole()
    assert (run.status, run.notices) == ("done", ())


def damaged(store: RunStore) -> None:
    """Says in the schema that a table begins at a page that is not there, as where two states are mixed."""
    with closing(sqlite3.connect(str(store.file))) as db:
        db.execute("PRAGMA writable_schema = ON")
        db.execute("UPDATE sqlite_master SET rootpage = 99999 WHERE name = 'series'")
        (version,) = db.execute("PRAGMA schema_version").fetchone()
        db.execute(f"PRAGMA schema_version = {version + 1}")
        db.commit()


def test_a_store_that_is_damaged_loses_no_run(
    store: RunStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backups = []

    def at(now: float) -> None:
        if now == 3.0:
            assert recording.outbox.wait(LIMIT_S)
            backups.append(earlier(store, tmp_path))
            damaged(store)

    recording = Recording(store, 6.0, at)
    recording.recorder.run()
    with pytest.raises(StoreOverwrittenError) as caught:
        store.runs()
    line = str(caught.value)
    assert line.endswith("put a backup in its place, without runs.sqlite-wal next to it")
    assert "\n" not in line
    (path,) = spools(store)
    assert "(its file is damaged: " in recording.recorder.leave()
    store.close()
    with pytest.raises(StoreError):
        RunStore(str(store._parsed))
    assert spools(store) == [path], "it waits for a store that can be used"
    no_store(store)
    shutil.copyfile(backups[0], str(store.file))
    with closing(RunStore(str(store._parsed))) as anew:
        settle_interrupted(anew)
        (run,) = anew.runs()
        assert run.status == "done"
        assert anew.steps(run.id)["step"].tolist() == list(range(60))
    assert "60 steps that waited for the run store" in capsys.readouterr().err


def test_three_runs_of_a_store_that_is_overwritten_are_whole(
    store: RunStore, tmp_path: Path
) -> None:
    backups = []

    def at(now: float) -> None:
        if now == 1.0:
            assert all(each.outbox.wait(LIMIT_S) for each in recordings)
            backups.append(earlier(store, tmp_path))
        if now == 3.0:
            assert all(each.outbox.wait(LIMIT_S) for each in recordings)
            checkpoint(store, "PASSIVE")
            store.runs()  # looks at the file
            copied_over(store, backups[0])

    # Two that have told all they will tell before it, without an end; the third one is in the middle.
    recordings = []
    for _ in range(2):
        recordings.append(Recording(store, 2.0, lambda now: None))
        recordings[-1].outbox.add(message="goes on")
        # a run begins in a store that waits 10 ms for another writer
        assert recordings[-1].outbox.wait(LIMIT_S)
    recordings.append(Recording(store, 6.0, at))
    recordings[-1].recorder.run()
    for each in recordings[:-1]:
        each.recorder.run()
    assert len(spools(store)) == 3
    for each in recordings:
        each.recorder.leave()
    store.close()
    with closing(RunStore(str(store._parsed))) as anew:
        settle_interrupted(anew)
        steps = [len(anew.steps(run.id)["step"]) for run in anew.runs(oldest_first=True)]
        assert steps == [20, 20, 60]


def test_what_was_written_of_a_long_run_is_kept_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = WrittenRun(tmp_path)
    for at in range(300):
        steps = {"step": np.arange(5.0) + 5 * at, "step_s": np.full(5, 0.1)}
        of_ranks = {"step": np.array([1.0 * at, 1.0 * at]), "rank": np.array([1.0, 2.0])}
        written.add([*chunks_of("steps", steps), *chunks_of("ranks", of_ranks)], {})
    found = [loaded(kind, data) for kind, data in written.rows()]  # type: ignore[arg-type]
    assert sum(chunk.rows for chunk in found if chunk.kind == "steps") == 1500
    assert sum(chunk.rows for chunk in found if chunk.kind == "ranks") == 600
    assert len(found) < 300
    assert list(tmp_path.iterdir()) == []
    assert sum(written.lost.values()) == 0
    monkeypatch.setattr(written_run_module, "MOST_BYTES", 0)
    for at in range(200):
        written.add(list(chunks_of("steps", {"step": np.array([2000.0 + at])})), {})
    assert (written.lost["steps"] > 0, written.why_lost) == (
        True,
        "0 MB of a run are kept next to the store",
    )


def test_the_writing_thread_has_ended_once_all_is_known_to_be_written(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who ends the program, or closes the store, leaves no thread behind."""
    outbox = outbox_module.Outbox(store, store.run(store.create_run(resolve(RunConfig()))))
    choose_next = outbox_module.Outbox._choose_next
    is_ending, may_end = threading.Event(), threading.Event()

    def choose_slowly(self: outbox_module.Outbox) -> bool:
        goes_on = choose_next(self)
        if not goes_on:
            is_ending.set()
            may_end.wait(LIMIT_S)
        return goes_on

    monkeypatch.setattr(outbox_module.Outbox, "_choose_next", choose_slowly)
    outbox.add(message="written")
    assert is_ending.wait(LIMIT_S)
    assert outbox.wait(0.0)
    writer = outbox._writer
    assert writer is not None
    assert writer.is_alive(), "nobody was to wait"
    threading.Timer(0.01, may_end.set).start()
    assert outbox.wait(LIMIT_S)
    assert not writer.is_alive()
