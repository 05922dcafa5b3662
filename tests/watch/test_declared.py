"""Which run a watched loader belongs to."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vitprof.watch import declared as runs
from vitprof.watch.declared import Planned, Runs
from vitprof.watch.loaders import Loaders


class FakeWatcher:
    def __init__(self) -> None:
        self.wanted: Any = None
        self.done: list[str] = []
        self.has_begun = False
        self.loaders = Loaders()
        self.loaders.let_go = lambda: self.done.append("goes on")  # type: ignore[method-assign]

    def guard(self, *_: Any) -> None: ...

    def pause(self, status: str, error: str, *, over: bool = False) -> None:
        self.done.append(f"{status} {error}".strip() + ", another run" * over)


class Loader:
    """Is gone with the last reference to it, as a Mock is not."""


class Script:
    """Watches loaders and loops over them."""

    def __init__(self, loop: FakeWatcher) -> None:
        self.runs, self.loop = Runs(), loop

    def watches(self, name: str, batch_size: int = 4) -> tuple[Any, Planned]:
        watched = Loader()
        return watched, self.runs.planned(
            watched, SimpleNamespace(batch_size=batch_size), name, quiet=False
        )

    def loops(self, run: Planned) -> Any:
        """Begins a loop, which is over when what is returned is gone."""
        iterator = Loader()
        self.runs.take(run, iterator)
        self.runs.take(run, iterator)
        return iterator


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    loop = FakeWatcher()
    monkeypatch.setattr(runs, "the_watcher", lambda: loop)
    monkeypatch.setattr(runs.atexit, "register", lambda *_: None)
    monkeypatch.delenv("VITPROF_WATCH_SOCKET", raising=False)
    monkeypatch.delenv("RANK", raising=False)
    return Script(loop)


def test_another_loop_over_the_same_loader_or_one_like_it_is_the_same_run(script: Script) -> None:
    loader, run = script.watches("a")
    for _ in range(3):
        script.loops(run)
    assert (script.loop.done, script.loop.wanted.name) == ([], "a")
    del loader
    _again, run = script.watches("a")
    script.loops(run)
    assert script.loop.done == ["goes on"], "the first one is gone"


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
    assert script.loop.done == ["done, another run"]


def test_a_loader_beside_the_one_that_trains_is_no_run(script: Script) -> None:
    _a, train = script.watches("a")
    _b, beside = script.watches("b")
    under_way = script.loops(train)
    script.loops(beside)
    assert script.loop.done == []
    del under_way
    with torch.no_grad():
        script.loops(beside)
    assert script.loop.done == [], "a check"
    script.loops(beside)
    assert script.loop.done == ["done, another run"]


def test_a_loader_has_one_run_and_says_so_once(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    _a, train = script.watches("a")
    _b, other = script.watches("b")
    for run in (train, other, train, train, other):
        script.loops(run)
    assert script.loop.done == ["done, another run"]
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
    assert script.loop.done == ["goes on"]


@pytest.mark.parametrize(("steps", "done"), [("", []), ("5", ["goes on"])])
def test_other_ranks_only_count_where_all_end_after_the_same_step(
    script: Script, monkeypatch: pytest.MonkeyPatch, steps: str, done: list[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("VITPROF_WATCH_SOCKET", "somewhere")
    monkeypatch.setenv("VITPROF_WATCH_STEPS", steps)
    _a, first = script.watches("a")
    _b, second = script.watches("b")
    script.loops(first)
    script.loops(second)
    assert script.loop.done == done
    monkeypatch.setenv("VITPROF_WATCH_SOCKET", "")
    _c, third = script.watches("c")
    script.loops(third)
    assert script.loop.done == done, "without the command nobody ends anything"


def test_a_closed_loader_is_not_watched_any_more(script: Script) -> None:
    _a, run = script.watches("a")
    script.loops(run)
    script.runs.end(run, ValueError("no more"))
    script.loops(run)
    script.runs.end_cell(None)
    assert script.loop.done == ["failed the script ended with ValueError: no more, another run"]


@pytest.mark.parametrize(("begun", "rank"), [(False, "0"), (False, "1"), (True, "0")])
def test_a_script_whose_watched_loader_nobody_looped_over_is_told_once_for_all_ranks(
    script: Script,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    begun: bool,
    rank: str,
) -> None:
    monkeypatch.setenv("RANK", rank)
    script.watches("a")
    script.loop.has_begun = begun
    script.runs._say_unused()
    err, says = capsys.readouterr().err, not begun and rank == "0"
    assert err.count("\n") == err.count("vitprof: nothing was recorded: ") == says
