"""Files that a program had to leave, as the next one finds them: whole, cut short, damaged, and somebody else's."""

import errno
import fcntl
import itertools
import json
import os
import resource
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.forking import exit_status_of, fork_doing
from tests.jobs.reported import step_columns, steps
from tests.stored_series import append_steps
from vitprof.config import RunConfig
from vitprof.config.resolve import resolve
from vitprof.jobs.finalise import settle_interrupted
from vitprof.jobs.spool import DAMAGED, VALUES, Spool, SpoolFile, import_left, places_of
from vitprof.recording.columns import TELEMETRY_COLUMNS
from vitprof.store import RunStore
from vitprof.store.chunks import chunks_of, columns_of

ENDED = {"status": "done", "stage": "", "error": "", "t_end_s": 100.0}


@pytest.fixture
def store(impatient_store: RunStore) -> RunStore:
    return impatient_store


def steps_entry(first: int, n: int) -> bytes:
    return next(chunks_of("steps", step_columns(first, n))).data


def begun(store: RunStore) -> int:
    """A run of a program that is gone, with its first ten steps in the store."""
    run_id = store.create_run(resolve(RunConfig()))
    store.update_run(run_id, status="running", t_origin_s=0.0, owner_started=1.0)
    append_steps(store, run_id, steps(0, 10).tolist())
    return run_id


def spool_of(store: RunStore, run_id: int, /, **changed: Any) -> Spool:
    spool = Spool(store, store.run(run_id), "database is locked")
    spool._header |= changed
    return spool


def left(store: RunStore, run_id: int, **ended: Any) -> Path:
    """Twenty more steps, of which the store has five already, in a file that nobody holds any more."""
    spool = spool_of(store, run_id)
    for first in range(5, 30, 5):
        spool.append("steps", steps_entry(first, 5))
    if ended:
        spool.append_values(ended)
    (path,) = [file.path for file in spool.files]
    spool.leave()
    return path


def test_of_a_program_that_was_killed(store: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    run_id = begun(store)
    path = left(store, run_id)
    settle_interrupted(store)
    run: Any = store.run(run_id)
    assert run.status == "interrupted"
    assert store.steps(run_id)["step"].tolist() == list(range(30))
    assert run.summary.n_steps == 30
    (notice,) = run.notices
    assert notice.startswith(
        "the run store could not be written (database is locked) when the program ended; what was"
    )
    said = f"vitprof: run {run_id}: 25 steps that waited for the run store ({path}) were imported\n"
    assert capsys.readouterr().err == said
    assert not path.exists()


def test_in_two_places_as_one_and_of_a_run_that_was_called_interrupted(store: RunStore) -> None:
    """Where the first disk was full on the way, and a program that does not know of files marked it before."""
    run_id = begun(store)
    store.mark_interrupted()
    left(store, run_id)
    other = spool_of(store, run_id, part=1)
    other._places = other._places[1:]
    samples = columns_of(
        steps(0, 3)[:, [1] + [2] * len(TELEMETRY_COLUMNS)], ("seq", *TELEMETRY_COLUMNS)
    )
    other.append("telemetry", next(chunks_of("telemetry", samples)).data)
    other.append_values(ENDED)
    other.leave()
    settle_interrupted(store)
    run: Any = store.run(run_id)
    assert (run.status, run.error, run.notices) == ("done", "", ())
    assert (run.summary.n_steps, run.summary.wall_s) == (30, 100.0)
    assert store.telemetry(run_id)["seq"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("cut", [False, True])
def test_what_is_damaged_is_read_up_to_there(
    store: RunStore, capsys: pytest.CaptureFixture[str], cut: bool
) -> None:
    run_id = begun(store)
    path = left(store, run_id, **ENDED)
    data = bytearray(path.read_bytes())
    spot = data.rindex(steps_entry(25, 5)) + len(steps_entry(25, 5)) // 2
    path.write_bytes(data[:spot] if cut else data[:spot] + b"\xff" + data[spot + 1 :])
    settle_interrupted(store)
    why = "its end is missing" if cut else "it is damaged"
    run = store.run(run_id)
    assert (store.n_steps(run_id), run.status) == (25, "interrupted")
    assert f"a part of what waited for the run store is lost: {why}" in run.notices
    taken, damaged = capsys.readouterr().err.splitlines()
    assert "20 steps" in taken
    aside = path.with_name(DAMAGED + path.name.removeprefix("vitprof-spool-"))
    assert damaged.endswith(
        f"could not be read to its end ({why}): it is now {aside}, and is not read again"
    )
    settle_interrupted(store)
    assert capsys.readouterr().err == ""
    assert aside.exists()


def test_without_a_header_or_its_run_it_is_one_line(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = begun(store)
    path, of_deleted = left(store, run_id), left(store, run_id)
    path.write_bytes(b"nonsense" * 100)
    (path.parent / "vitprof-spool-empty").touch()
    store.mark_interrupted()
    store.delete(run_id)
    settle_interrupted(store)
    lines = capsys.readouterr().err
    assert f"{path}, which waited for the run store, cannot be read (it is damaged)" in lines
    assert (
        f"run {run_id} is not in the store any more: what waited for it ({of_deleted}) was deleted"
        in lines
    )
    assert lines.count("\n") == 2
    assert not list(path.parent.glob("vitprof-spool-*"))


@pytest.mark.parametrize(
    "values",
    [
        *(
            ["a list"],
            {"no_such_column": 1},
            {"status": {"a": 1}},
            {"status": 7},
            {"phases": 5},
            {"phases": [[1]]},
        ),
        *(
            {"config": []},
            {"config": {"batch_size": "many"}},
            {"summary": "fast"},
            {"verdict": ["fast"]},
        ),
        *(
            {"notices": 3},
            {"facts": "none"},
            {"t_origin_s": "soon"},
            {"id": "x"},
            {"progress": 10**400},
        ),
        *({"t_end_s": "late"}, {"t_end_s": [1], "status": "done"}),
    ],
)
def test_values_that_nobody_writes(
    store: RunStore, capsys: pytest.CaptureFixture[str], values: Any
) -> None:
    run_id = begun(store)
    path = left(store, run_id)
    file: Any = SpoolFile.open_orphan(path)
    file.append(VALUES, json.dumps(values).encode())
    file.close()
    settle_interrupted(store)
    run = store.run(run_id)
    assert (store.n_steps(run_id), run.status) == (30, "interrupted")
    assert "could not be read to its end" in capsys.readouterr().err
    assert path.with_name(DAMAGED + path.name.removeprefix("vitprof-spool-")).exists()
    settle_interrupted(store)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "changed",
    [
        {"store": None},
        {"run": {}},
        {"run": [3]},
        {"part": "x"},
        {"why": 3},
        {"run": {"no_such_column": 1, "id": 1}},
    ],
)
def test_a_header_of_nobody(
    store: RunStore, capsys: pytest.CaptureFixture[str], changed: dict[str, Any]
) -> None:
    spool = spool_of(store, begun(store), **changed)
    spool.append("steps", steps_entry(5, 5))
    spool.leave()
    settle_interrupted(store)
    capsys.readouterr()
    settle_interrupted(store)
    assert capsys.readouterr().err == ""


def test_only_our_own_files_are_read(
    store: RunStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = begun(store)
    in_use, others = spool_of(store, run_id), spool_of(store, run_id, store="sqlite:/elsewhere")
    for spool in (in_use, others):
        spool.append("steps", steps_entry(10, 5))
    kept = [file.path for spool in (in_use, others) for file in spool.files]
    others.leave()
    real = left(store, run_id).rename(tmp_path / "real")
    for name, make in (("linked", os.symlink), ("twice", os.link)):
        make(real, places_of(store)[1] / f"vitprof-spool-{name}")
        kept.append(places_of(store)[1] / f"vitprof-spool-{name}")
    settle_interrupted(store)
    assert all(path.exists() for path in kept)
    assert (store.n_steps(run_id), capsys.readouterr().err) == (10, "")
    in_use.leave()


def test_it_takes_no_longer_than_it_may_also_where_the_store_is_still_unavailable(
    store: RunStore,
) -> None:
    """The rest is for the next time; until then nobody calls the run interrupted."""
    run_id = begun(store)
    path = left(store, run_id, **ENDED)
    assert store.file is not None
    with closing(sqlite3.connect(store.file)) as other:
        other.execute("begin exclusive")
        settle_interrupted(store)
    assert (path.exists(), store.run(run_id).status) == (True, "running")
    times = iter([0.0, 1.0, 1.0, 21.0])
    lines, waiting = import_left(store, lambda *_: None, clock=lambda: next(times))
    assert (waiting, store.n_steps(run_id)) == ({run_id}, 15)
    assert "the next start imports the rest" in lines[0]
    assert store.mark_interrupted(spare=waiting) == []
    settle_interrupted(store)
    assert (store.run(run_id).status, store.n_steps(run_id)) == ("done", 30)
    assert not path.exists()


def test_columns_of_another_version(store: RunStore) -> None:
    run_id = begun(store)
    spool = spool_of(store, run_id)
    rows = step_columns(10, 5)
    spool.append("steps", next(chunks_of("steps", {**rows, "new_s": rows["t_start_s"]})).data)
    spool.append("of another version", b"")
    spool.leave()
    settle_interrupted(store)
    found = store.steps(run_id)
    assert found["step"].tolist() == list(range(15))
    assert found["new_s"][10:] == pytest.approx(rows["t_start_s"])


@pytest.mark.parametrize("is_ours", [False, True])
def test_a_file_of_another_version_is_named_by_who_has_its_store(
    store: RunStore, capsys: pytest.CaptureFixture[str], is_ours: bool
) -> None:
    """The temporary directory has those of all stores; who has another one leaves them alone."""
    changed = {} if is_ours else {"store": "sqlite:/elsewhere"}
    spool = spool_of(store, begun(store), magic="vitprof spool 99", **changed)
    spool.append("steps", steps_entry(5, 5))
    (path,) = [file.path for file in spool.files]
    spool.leave()
    settle_interrupted(store)
    said = capsys.readouterr().err
    assert ("cannot be read (another version of vitprof wrote it)" in said) == is_ours
    assert path.exists() != is_ours


def n_entries(file: SpoolFile) -> tuple[int, str]:
    """How many entries of a file can be read, and why no more; each must be the next one."""
    n = 0
    try:
        for kind, payload in file.entries():
            assert (kind, payload) == ("steps", numbered(n))
            n += 1
    except ValueError as error:
        return n, str(error)
    return n, ""


def numbered(n: int) -> bytes:
    return n.to_bytes(4, "big") * 500


def test_a_program_that_is_killed_as_it_writes_leaves_all_that_it_wrote(store: RunStore) -> None:
    """Each entry that was added is whole; the one that it was at may be cut short."""
    header = spool_of(store, begun(store))._header | {"part": 0}
    directory = places_of(store)[1]
    reads, writes = os.pipe()

    def write_until_killed() -> None:
        file = SpoolFile.create(directory, header)
        for n in itertools.count():
            file.append("steps", numbered(n))
            os.write(writes, b".")

    child = fork_doing(write_until_killed)
    os.close(writes)
    with open(reads, "rb", buffering=0) as told:
        n = len(told.read(1))
        (path,) = directory.glob("vitprof-spool-*")
        assert SpoolFile.open_orphan(path) is None, "its program still writes it"
        while n < 200:
            n += len(told.read(100))
        os.kill(child, signal.SIGKILL)
        assert exit_status_of(child) == -signal.SIGKILL
        n += len(b"".join(iter(lambda: told.read(4096), b"")))
    file = SpoolFile.open_orphan(path)
    assert file is not None
    assert file.read_header([store.identity])
    found, why = n_entries(file)
    file.delete()
    assert found >= n
    assert why in ("", "its end is missing")


def test_wherever_a_file_was_cut_what_is_before_is_read(store: RunStore) -> None:
    spool = spool_of(store, begun(store))
    ends = []
    for n in range(8):
        spool.append("steps", numbered(n))
        ends.append(spool.files[0].size)
    (path,) = [file.path for file in spool.files]
    spool.leave()
    data = path.read_bytes()
    for cut in range(ends[0], ends[-1], 97):
        path.write_bytes(data[:cut])
        file = SpoolFile.open_orphan(path)
        assert file is not None
        assert file.read_header([store.identity])
        whole = sum(end <= cut for end in ends)
        found, why = n_entries(file)
        assert found == whole
        assert (why == "") == (cut in ends)
        file.close()


def test_a_file_that_may_not_grow_takes_whole_entries_only(store: RunStore) -> None:
    """As on a disk that is full, or with a limit of its user's."""
    spool = spool_of(store, begun(store))
    spool.append("steps", numbered(0))
    (file,) = spool.files
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.size + 1000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            file.append("steps", numbered(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert n_entries(file) == (1, "")
    assert file.path.stat().st_size == file.size, "nothing is left of the half that it took"
    file.append("steps", numbered(1))
    assert n_entries(file) == (2, "")
    spool.delete()


def test_where_the_file_system_has_no_locks_the_next_directory_takes_it(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS without its lock service."""
    own, temporary = places_of(store)
    lock = fcntl.flock

    def locked(descriptor: int, operation: int) -> None:
        if os.fstat(descriptor).st_ino in [path.stat().st_ino for path in own.glob("vitprof-*")]:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", locked)
    spool = spool_of(store, begun(store))
    assert spool.append("steps", steps_entry(5, 5))
    assert [file.path.parent for file in spool.files] == [temporary]
    assert not list(own.glob("vitprof-spool-*"))
    spool.delete()
