"""A store that can only be read here is read; what cannot be done with it is one line."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.command_line import Call
from tests.conftest import NOBODY
from vitprof.config import RunConfig
from vitprof.config.resolve import resolve
from vitprof.errors import StoreError
from vitprof.jobs.finalise import settle_interrupted
from vitprof.store import RunStore


@pytest.fixture
def filled(read_only_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes a home with a run that this test can only read."""

    def fill(changed: Callable[[Path], object] = lambda path: None) -> Path:
        if os.getuid() == 0:
            os.seteuid(0)
        read_only_dir.chmod(0o755)
        path = read_only_dir / "runs.sqlite"
        with closing(RunStore(f"sqlite:///{path}")) as store:
            run_id = store.create_run(resolve(RunConfig(name="kept")))
            store.update_run(run_id, status="running", owner_started=1.0)
        changed(path)
        read_only_dir.chmod(0o555)
        if os.getuid() == 0:
            os.seteuid(NOBODY)
        monkeypatch.setenv("VITPROF_HOME", str(read_only_dir))
        return path

    return fill


def leave_changes(path: Path) -> None:
    """As a program that was killed leaves them: in the -wal file."""
    db = sqlite3.connect(path)
    db.execute("update runs set note = 'changed last'")
    db.commit()
    copies = [Path(f"{path}{suffix}.copy") for suffix in ("-wal", "-shm")]
    for copy in copies:
        shutil.copy(copy.with_suffix(""), copy)
    db.close()
    for copy in copies:
        copy.rename(copy.with_suffix(""))
        copy.with_suffix("").chmod(0o644)


def test_it_is_read_and_left_as_it_is(filled: Callable[..., Path]) -> None:
    before = sorted(path.name for path in filled().parent.iterdir())
    with closing(RunStore()) as store:
        assert store.read_only
        assert store.run(1).name == "kept"
        settle_interrupted(store)  # its program is gone; who may write finds out
        assert store.run(1).status == "running"
        with pytest.raises(StoreError, match=r"^the run store .* failed: attempt to write a readonly database$"):
            store.create_run(resolve(RunConfig()))
        assert sorted(path.name for path in store.file.parent.iterdir()) == before


def test_with_changes_that_lie_beside_it(filled: Callable[..., Path]) -> None:
    filled(leave_changes)
    with closing(RunStore()) as store:
        assert store.run(1).note == "changed last"


@pytest.mark.slow
def test_changes_that_cannot_be_read_are_not_passed_over(filled: Callable[..., Path]) -> None:
    def left(path: Path) -> None:
        leave_changes(path)
        Path(f"{path}-shm").unlink()

    path = filled(left)
    with pytest.raises(StoreError) as caught:
        RunStore()
    assert str(caught.value) == (
        f"{path} can only be read here, and its last changes are in runs.sqlite-wal, which cannot be read without "
        "writing beside it: copy both to a directory that can be written to, and set VITPROF_DB to that copy"
    )


def test_one_of_an_older_version_says_what_to_do(filled: Callable[..., Path]) -> None:
    def old(path: Path) -> None:
        with closing(sqlite3.connect(path)) as db:
            db.execute("update vitprof_store set version = 3")
            db.commit()

    filled(old)
    with pytest.raises(StoreError, match=r"has to be brought up to date first \(store version 3, not \d+\): set VITPR"):
        RunStore()


@pytest.fixture
def commands_loaded(call: Call) -> None:
    """Runs the commands on a store of one's own: what they import may be where `read_only_dir`'s nobody cannot read."""
    with closing(RunStore()) as store:
        store.update_run(store.create_run(resolve(RunConfig())), status="running", owner_started=1.0)
    for args in (["runs"], ["runs", "1", "--json"], ["delete", "1"]):
        assert call(*args)[0] == 0


def test_the_command_line_reads_it(call: Call, commands_loaded: None, filled: Callable[..., Path]) -> None:
    filled()
    assert call("runs")[::2] == (0, "")
    status, out, err = call("runs", "1", "--json")
    assert (status, '"name": "kept"' in out, err) == (0, True, "")
    status, out, err = call("delete", "1")
    assert (status, out, err.count("\n")) == (1, "", 1)


def test_a_store_that_somebody_keeps_locked_is_read(vitprof_home: Path, call: Call) -> None:
    """Also where there is something to write down first, such as that a program is gone."""
    with closing(RunStore()) as store:
        store.update_run(store.create_run(resolve(RunConfig(name="kept"))), status="running", owner_started=1.0)
        assert store.file is not None
        path = store.file
    with closing(sqlite3.connect(path)) as other, pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITPROF_DB", f"sqlite:///{path}?timeout=0.01")
        other.execute("begin exclusive")
        status, out, err = call("runs", "1", "--json")
    assert (status, '"name": "kept"' in out, err) == (0, True, "")
