"""Which run a watched loader belongs to."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vitprof.watch import api
from vitprof.watch.events import Buffer
from vitprof.watch.patches import Recorder
from vitprof.watch.runs import Planned, RunSequence, how_it_ended


class FakeRecording:
    """Notes what it is told: `runs.Recording`."""

    def __init__(self) -> None:
        self.planned: list[str] = []
        self.begun: list[str] = []
        """The names of the runs that were begun, also where one goes on with another loader."""
        self.done: list[str] = []

    def plan(self, run: Planned) -> None:
        self.planned.append(run.name)

    def begin_run(self, run: Planned) -> None:
        self.begun.append(run.name)

    def pause(self, status: str, error: str) -> None:
        self.done.append(f"paused {status} {error}".strip())

    def end_run(self, status: str, error: str) -> None:
        self.done.append(f"{status} {error}".strip())


class Loader:
    """Is gone with the last reference to it, as a Mock is not."""


class Script:
    """Watches loaders and loops over them."""

    def __init__(self) -> None:
        self.recording = FakeRecording()
        self.runs = RunSequence(lambda: self.recording)

    def watches(self, name: str, batch_size: int = 4) -> tuple[Any, Planned]:
        watched = Loader()
        loader = SimpleNamespace(batch_size=batch_size)
        return watched, self.runs.planned(watched, loader, name, quiet=False)

    def loops(self, run: Planned) -> Any:
        """Begins a loop, which is over when what is returned is gone."""
        iterator = Loader()
        self.runs.take(run, iterator)
        self.runs.take(run, iterator)
        return iterator


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    monkeypatch.delenv("VITPROF_WATCH_SOCKET", raising=False)
    monkeypatch.delenv("RANK", raising=False)
    return Script()


def test_another_loop_over_the_same_loader_or_one_like_it_is_the_same_run(script: Script) -> None:
    loader, run = script.watches("a")
    for _ in range(3):
        script.loops(run)
    assert (script.recording.done, script.recording.begun) == ([], ["a"])
    del loader
    _again, run = script.watches("a")
    script.loops(run)
    assert script.recording.done == [], "the first one is gone"
    assert script.recording.begun == ["a", "a"]
    assert script.recording.planned == ["a", "a"]


@pytest.mark.parametrize(
    ("other", "kept"),
    [(("b", 4), False), (("a", 8), False), (("a", 4), True)],
    ids=[
        "name",
        "arguments",
        "the cell of a notebook is run again: the first one is there when the second is made",
    ],
)
def test_any_other_loader_is_another_run(
    script: Script, other: tuple[str, int], kept: bool
) -> None:
    loader, run = script.watches("a")
    script.loops(run)
    if not kept:
        del loader
    _loader, run = script.watches(*other)
    script.loops(run)
    assert script.recording.done == ["done"]


def test_a_loader_beside_the_one_that_trains_is_no_run(script: Script) -> None:
    _a, train = script.watches("a")
    _b, beside = script.watches("b")
    under_way = script.loops(train)
    script.loops(beside)
    assert script.recording.done == []
    del under_way
    with torch.no_grad():
        script.loops(beside)
    assert script.recording.done == [], "a check"
    script.loops(beside)
    assert script.recording.done == ["done"]


def test_a_loader_has_one_run_and_says_so_once(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    _a, train = script.watches("a")
    _b, other = script.watches("b")
    for run in (train, other, train, train, other):
        script.loops(run)
    assert script.recording.done == ["done"]
    err = capsys.readouterr().err
    assert err.startswith("vitprof: not watching 'a' any more: 'b' was looped over after it. ")
    assert err.count("\n") == 1


def test_below_the_command_there_is_one_run_in_all(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITPROF_WATCH_SOCKET", "somewhere")
    _a, first = script.watches("a")
    _b, second = script.watches("b")
    script.loops(first)
    script.loops(second)
    script.runs.end(second)
    script.runs.end_cell(None)
    assert script.recording.done == []
    assert script.recording.begun == ["a", "b"]


@pytest.mark.parametrize(("steps", "begun"), [("", []), ("5", ["a", "b"])])
def test_other_ranks_only_count_where_all_end_after_the_same_step(
    script: Script, monkeypatch: pytest.MonkeyPatch, steps: str, begun: list[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("VITPROF_WATCH_SOCKET", "somewhere")
    monkeypatch.setenv("VITPROF_WATCH_STEPS", steps)
    _a, first = script.watches("a")
    _b, second = script.watches("b")
    script.loops(first)
    script.loops(second)
    assert script.recording.begun == begun
    monkeypatch.setenv("VITPROF_WATCH_SOCKET", "")
    _c, third = script.watches("c")
    script.loops(third)
    assert script.recording.begun == begun, "without the command nobody ends anything"


def test_a_closed_loader_is_not_watched_any_more(script: Script) -> None:
    _a, run = script.watches("a")
    script.loops(run)
    script.runs.end(run, ValueError("no more"))
    script.loops(run)
    script.runs.end_cell(None)
    assert script.recording.done == ["failed the script ended with ValueError: no more"]


@pytest.mark.parametrize(
    ("result", "paused"),
    [
        (SimpleNamespace(error_before_exec=None, error_in_exec=None), "paused done"),
        (SimpleNamespace(error_in_exec=KeyboardInterrupt()), "paused stopped"),
        (
            SimpleNamespace(error_before_exec=SyntaxError("no code")),
            "paused failed the script ended with SyntaxError: no code",
        ),
    ],
)
def test_a_run_is_paused_with_its_cell(script: Script, result: Any, paused: str) -> None:
    script.runs.end_cell(result)
    assert script.recording.done == [], "no run was begun"
    _a, run = script.watches("a")
    script.loops(run)
    script.runs.end_cell(result)
    assert script.recording.done == [paused]
    script.loops(run)
    assert script.recording.begun == ["a"], "the next loop goes on with it"


def test_a_framework_begins_the_run_of_its_loader(script: Script) -> None:
    loader = Loader()
    run = script.runs.begun(loader, "fit", quiet=True)
    assert (script.recording.begun, script.runs.any_begun) == (["fit"], True)
    script.runs.end(run)
    assert script.recording.done == ["done"]


@pytest.mark.parametrize("begun", ["", "by itself", "by its data set"])
@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_script_whose_watched_loader_nobody_looped_over_is_told_once_for_all_ranks(
    script: Script,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    begun: str,
    rank: str,
) -> None:
    """Also a DataLoader that a framework makes of the data set of the watched one is looped over."""
    recorder = Recorder(Buffer())
    monkeypatch.setattr(api, "RUNS", script.runs)
    monkeypatch.setattr(api, "the_watching", lambda: SimpleNamespace(recorder=recorder))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(2, 1)))
    recorder.declared.add(loader, "a")
    _a, run = script.watches("a")
    if begun == "by itself":
        script.loops(run)
    elif begun:
        other = torch.utils.data.DataLoader(loader.dataset, batch_size=2)
        assert recorder.declared.facts_as_begun(other) == {"name": "a", "declared": True}
    monkeypatch.setenv("RANK", rank)
    api._say_unused()
    err = capsys.readouterr().err
    says = not begun and rank == "0"
    assert err.count("\n") == err.count("vitprof: nothing was recorded: ") == says


def test_a_run_that_ends_with_a_worker_says_by_which_signal() -> None:
    gone = RuntimeError("DataLoader worker (pid(s) 5) exited unexpectedly")
    gone.__cause__ = RuntimeError("DataLoader worker (pid 5) is killed by signal: Killed. ")
    status, error = how_it_ended(gone)
    assert status == "failed"
    assert "(pid 5) is killed by signal: Killed" in error
