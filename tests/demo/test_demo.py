"""The demonstration's home: what is put there, when, and that nothing of the user's is touched."""

import contextlib
import re
import sqlite3
from pathlib import Path
from unittest.mock import Mock

import pytest

from benchmarks.demonstration import HOST
from vitprof import demo
from vitprof.errors import VitprofError
from vitprof.recording.columns import LIVE_STATUSES
from vitprof.store import RunQuery, RunStore
from vitprof.store.tournaments import list_tournaments

MOST_BYTES = 500_000


@pytest.fixture
def place(vitprof_home: Path) -> Path:
    """The home of a demonstration that has just been made."""
    made, replaced = demo.make_home()
    assert (made, replaced) == (vitprof_home / "demo", False)
    return made


def test_it_is_small_names_no_folder_of_its_machine_and_has_what_every_page_is_to_show(
    place: Path,
) -> None:
    with contextlib.closing(sqlite3.connect(place / "recordings.sqlite")) as db:
        text = "\n".join(db.iterdump())
    assert demo.RUNS.stat().st_size <= MOST_BYTES
    assert not re.findall(r"/tmp/\S+|/home/(?!me\b)\w+", text)
    with contextlib.closing(RunStore(f"sqlite:///{place / 'recordings.sqlite'}")) as store:
        runs = store.runs()
        (tournament,) = list_tournaments(store)
        assert len(runs) == store.count_runs(RunQuery(helpers=True))  # each can be read
        assert len(store.steps(demo.FIRST_SHOWN)["step"]) > 100
    assert (tournament.id, tournament.status) == (demo.TOURNAMENT, "done")
    assert not [run.id for run in runs if run.status in LIVE_STATUSES]
    assert {run.environment["hostname"] for run in runs} == {HOST}
    own = {
        run.verdict.kind
        for run in runs
        if run.verdict and not run.group_key and run.status == "done"
    }
    assert own == {"input-bound", "not input-bound", "launch-bound"}
    assert {run.group.kind for run in runs if run.group} == {"headroom", "tournament"}
    (watched,) = [run for run in runs if run.config.strategy == "own-script"]
    assert {"RandomResizedCrop", "ToTensor"} <= set(watched.facts["transforms"])
    (failed,) = [run for run in runs if run.status == "failed"]
    assert "worker" in failed.error


def test_it_stays_until_the_recording_changes(
    place: Path, vitprof_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "mine").touch()
    assert demo.make_home() == (place, False)
    assert (place / "mine").exists()
    (place / demo.MARK).write_text("of another version")
    assert demo.make_home() == (place, True)
    assert sorted(path.name for path in place.iterdir()) == [demo.MARK, "recordings.sqlite"]
    assert [path.name for path in vitprof_home.iterdir()] == ["demo"], (
        "nothing else is left in the user's home"
    )
    assert not demo.is_demonstration()
    monkeypatch.setenv("VITPROF_HOME", str(place))
    assert demo.is_demonstration()


def test_a_folder_of_something_else_is_left_alone(vitprof_home: Path) -> None:
    mine = vitprof_home / "demo" / "mine"
    mine.mkdir(parents=True)
    with pytest.raises(
        VitprofError, match=r"demo is not a demonstration of vitprof's; move it away$"
    ):
        demo.make_home()
    assert mine.is_dir()


def test_a_disk_that_cannot_take_it(vitprof_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(Path, "write_text", full)  # the last file of it
    with pytest.raises(VitprofError, match="No space left on device"):
        demo.make_home()
    assert not list(vitprof_home.iterdir()), "no half of a store"
