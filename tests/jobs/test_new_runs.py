"""A store that cannot be used when a run begins: the run goes on, and comes into the store when that can be used."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.clock import Clock
from tests.engine_fixtures import wait_until
from tests.jobs.reported import ReportingJob, step_columns
from vitprof.config import RunConfig
from vitprof.config.resolve import resolve
from vitprof.errors import StoreAwayError, StoreError
from vitprof.jobs import outbox as outbox_module
from vitprof.jobs.finalise import settle_interrupted
from vitprof.jobs.spool import VALUES, Spool, import_left
from vitprof.jobs.supervisor import JobRecorder
from vitprof.store import RunStore
from vitprof.store.chunks import chunks_of
from vitprof.store.database import NO_ANSWER, Database
from vitprof.store.new_run import NewRun

LIMIT_S = 60.0
RESTARTING = StoreAwayError("the run store failed: it is restarting", "it is restarting")


class Opening:
    """How opening the store goes: `fails` is raised; None opens it; while `hangs`, nothing comes of it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.fails: Exception | None = None
        self._patch = patch
        self._may_go_on = threading.Event()
        self._may_go_on.set()
        really_open = Database._open

        def opened(store: Database) -> None:
            assert self._may_go_on.wait(LIMIT_S)
            if self.fails is not None:
                raise self.fails
            really_open(store)

        patch.setattr(Database, "_open", opened)

    def hang(self) -> None:
        """Nothing comes of it, and nobody is patient."""
        self._patch.setattr(outbox_module, "OPENING_PATIENCE_S", 0.0)
        self._may_go_on.clear()

    def answer(self) -> None:
        self._may_go_on.set()


@pytest.fixture
def opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opening]:
    monkeypatch.setattr(outbox_module, "RETRY_S", 0.005)
    monkeypatch.setattr(outbox_module, "OPENING_PATIENCE_S", LIMIT_S)
    monkeypatch.setattr("vitprof.jobs.supervisor.LEAVE_AFTER_S", 0.01)
    (tmp_path / "temporary").mkdir()
    (tmp_path / "beside").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    made = Opening(monkeypatch)
    yield made
    made.answer()


@pytest.fixture
def store(opening: Opening, tmp_path: Path) -> Iterator[RunStore]:
    """A store that is not open yet."""
    url = f"sqlite:///{tmp_path}/beside/runs.sqlite?timeout=0.01"
    with closing(RunStore(url, opens=False)) as made:
        yield made


def files(tmp_path: Path) -> list[Path]:
    return sorted(tmp_path.rglob("vitprof-*"))


class Recording:
    """A recorder of a new run, whose job reports for six seconds; `at` is called as it goes on."""

    def __init__(self, store: RunStore, at: Callable[[float], None] = lambda now: None) -> None:
        self.news: list[tuple[int, str]] = []
        clock = Clock()
        self.new = NewRun.of(resolve(RunConfig(name="mine")), {"command": "python train.py"})
        job = ReportingJob(clock, 6.0, at)
        self.recorder = JobRecorder(
            store, self.new, threading.Event(), clock, start=lambda: job, on_news=self._note
        )

    def _note(self) -> None:
        self.news.append((self.recorder.run_id, self.recorder.outbox.refused))

    def ends(self) -> None:
        """Waits for the thread that may be opening the store still: it ends with its program."""
        writer = self.recorder.outbox._writer
        assert writer is not None
        writer.join(LIMIT_S)
        assert not writer.is_alive()

    def becomes_unavailable(self) -> None:
        wait_until(lambda: self.recorder.outbox.unavailable, "the store to be unavailable")


def whole(store: RunStore) -> Any:
    """The run, which is the only one; every step of it is there."""
    (run,) = store.runs()
    assert (run.name, run.status, run.facts["command"]) == ("mine", "done", "python train.py")
    assert store.steps(run.id)["step"].tolist() == list(range(60))
    assert run.summary is not None
    assert run.summary.n_steps == 60
    return run


def test_a_store_that_can_be_used_has_the_run_at_once(store: RunStore, tmp_path: Path) -> None:
    recording = Recording(store)
    recording.recorder.run()
    assert recording.recorder.outbox.wait(LIMIT_S)
    assert whole(store).notices == ()
    assert recording.news[-1] == (1, "")
    assert recording.recorder.leave() == ""
    assert not files(tmp_path)


@pytest.mark.parametrize("hangs", [False, True])
def test_one_that_can_be_used_later_gets_all_of_it(
    store: RunStore, opening: Opening, tmp_path: Path, hangs: bool
) -> None:
    if hangs:
        opening.hang()
    else:
        opening.fails = RESTARTING
    seen: list[Path] = []

    def at(now: float) -> None:
        if now == 3.0:
            recording.becomes_unavailable()
            seen.extend(files(tmp_path))
            opening.fails = None
            opening.answer()

    recording = Recording(store, at)
    recording.recorder.run()
    assert recording.recorder.outbox.wait(LIMIT_S)
    (notice,) = whole(store).notices
    assert notice.startswith("the run store could not be written for ")
    assert notice.endswith("what was measured meanwhile waited and is complete")
    assert [recording.news[0], recording.news[-1]] == [(0, ""), (1, "")]
    # beside a store that hangs its file would hang, too
    assert [path.parent.name for path in seen] == ["temporary" if hangs else "beside"]
    assert not files(tmp_path)


@pytest.mark.parametrize("hangs", [False, True])
def test_one_that_cannot_be_used_until_the_end_gets_it_from_the_next_program(
    store: RunStore,
    opening: Opening,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    hangs: bool,
) -> None:
    if hangs:
        opening.hang()
    else:
        opening.fails = RESTARTING
    recording = Recording(store)
    recording.recorder.run()
    line = recording.recorder.leave()
    (path,) = files(tmp_path)
    why = NO_ANSWER if hangs else "it is restarting"
    said = f"the run store is unavailable ({why}): what it could not take is in {path} until"
    assert line.startswith(said)
    assert recording.recorder.run_id == 0
    opening.fails = None
    opening.answer()
    recording.ends()
    store.open(LIMIT_S)
    settle_interrupted(store)
    assert "60 steps that waited for the run store" in capsys.readouterr().err
    run = whole(store)
    assert "was imported later" in run.notices[0]
    settle_interrupted(store)
    assert capsys.readouterr().err == ""
    assert len(store.runs()) == 1
    assert not files(tmp_path)


def left(store: RunStore, new: NewRun, **ended: Any) -> Path:
    """Five steps of a new run, in a file that nobody holds any more."""
    spool = Spool(store, new.run, "it is restarting", new=new)
    spool.append("steps", next(chunks_of("steps", step_columns(0, 5))).data)
    spool.append_values({"status": "running", "t_origin_s": 0.0, **ended})
    (path,) = [file.path for file in spool.files]
    spool.leave()
    return path


def gone_run() -> NewRun:
    """A new run of a program that has ended."""
    new = NewRun.of(resolve(RunConfig(name="mine")))
    return NewRun({**new.columns, "owner_started": 1.0})


def test_of_a_program_that_was_killed(store: RunStore) -> None:
    store.open()
    left(store, gone_run())
    settle_interrupted(store)
    (run,) = store.runs()
    assert (run.status, run.name, store.n_steps(run.id)) == ("interrupted", "mine", 5)
    assert run.summary is not None


@pytest.mark.parametrize("deleted", [False, True])
def test_of_one_that_was_killed_just_after_the_store_took_the_run(
    store: RunStore, capsys: pytest.CaptureFixture[str], deleted: bool
) -> None:
    """It is no second run; and one that was deleted meanwhile stays deleted."""
    store.open()
    new = gone_run()
    run_id = store.add_new(new)
    assert store.add_new(new, again=True) == run_id
    if deleted:
        store.update_run(run_id, status="done")
        store.delete(run_id)
    path = left(store, new)
    settle_interrupted(store)
    if deleted:
        assert store.runs() == []
        said = f"a run of {new.columns['created_utc']} is not in the store any more"
        assert said in capsys.readouterr().err
    else:
        (run,) = store.runs()
        assert (run.id, run.status, store.n_steps(run_id)) == (run_id, "interrupted", 5)
    assert not path.exists()


def test_two_programs_that_were_killed_are_two_runs(store: RunStore) -> None:
    store.open()
    first = gone_run()
    second = NewRun({**first.columns, "owner_pid": 7})
    for new in (first, second):
        left(store, new)
    settle_interrupted(store)
    assert [store.n_steps(run.id) for run in store.runs()] == [5, 5]


def test_a_run_that_is_not_imported_yet_is_not_called_interrupted(store: RunStore) -> None:
    store.open()
    new = gone_run()
    run_id = store.add_new(new)
    left(store, new)
    times = iter([0.0, 1.0, 21.0, 21.0])
    lines, waiting = import_left(store, lambda *_: None, clock=lambda: next(times))
    assert waiting == {run_id}
    assert lines[0].startswith(f"a run of {new.columns['created_utc']}: what waited for the run")


@pytest.mark.parametrize(
    "columns",
    [
        {"name": 7},
        {"config": []},
        {"status": "fast"},
        {"no_such_column": 1},
        {"id": 3},
        {"created_utc": None},
        {"owner_started": "soon"},
    ],
)
def test_a_file_that_does_not_say_what_run_it_is_of_is_set_aside(
    store: RunStore, tmp_path: Path, capsys: pytest.CaptureFixture[str], columns: dict[str, Any]
) -> None:
    store.open()
    good = gone_run()
    spool = Spool(store, good.run, "it is restarting")
    spool._header["whole"] = True
    spool.append(VALUES, json.dumps({**good.columns, **columns}).encode())
    spool.leave()
    settle_interrupted(store)
    assert "cannot be read (it has values that no run has): it is now" in capsys.readouterr().err
    assert store.runs() == []
    assert [path.name.startswith("vitprof-damaged-") for path in files(tmp_path)] == [True]


def test_a_store_that_refuses_the_run_gets_nothing(
    store: RunStore, opening: Opening, tmp_path: Path
) -> None:
    """There is nothing to wait for where it can only be read, or is of another version."""
    opening.fails = StoreError("it can only be read here")
    recording = Recording(store)
    recording.recorder.run()
    assert recording.recorder.outbox.refused == "it can only be read here"
    assert recording.recorder.leave() == ""
    assert recording.news[-1] == (0, "it can only be read here")
    assert not files(tmp_path)


def test_what_is_waited_for_at_the_end_is_no_store_that_hangs(
    store: RunStore, opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that ended before anybody could notice that nothing comes."""
    opening.hang()
    outbox = outbox_module.Outbox(store, NewRun.of(resolve(RunConfig())))
    monkeypatch.setattr(outbox_module, "OPENING_PATIENCE_S", LIMIT_S)
    outbox.add(message="short")
    assert not outbox.unavailable
    monkeypatch.setattr(outbox_module, "OPENING_PATIENCE_S", 0.0)
    outbox.wait_for_end(LIMIT_S)
    assert outbox.unavailable == NO_ANSWER
    outbox.leave()
