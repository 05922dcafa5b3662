"""Who asks for jobs to start and to stop, where people log in to the dashboard."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

from vitprof.errors import JobError

P = ParamSpec("P")
R = TypeVar("R")

_source: list[Callable[[], str]] = []
_carried: ContextVar[str | None] = ContextVar("who asked for a thread's work", default=None)


def ask_with(source: Callable[[], str]) -> None:
    """Has `who` ask `source`, which returns a name, or "" where nobody logs in."""
    _source[:] = [source]


def who() -> str:
    """Returns who asks; "" for whoever uses this machine, such as from the command line."""
    carried = _carried.get()
    if carried is not None:
        return carried
    return _source[0]() if _source else ""


def carried(work: Callable[P, R]) -> Callable[P, R]:
    """Returns `work` for another thread, which asks there for whoever asks here."""
    name = who()

    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        _carried.set(name)
        return work(*args, **kwargs)

    return run


def may_stop(started_by: str) -> bool:
    """Returns whether who asks may stop what `started_by` started: their own, and this machine's user everything."""
    return who() in ("", started_by) or not started_by


def check_may_stop(what: str, started_by: str) -> None:
    """Raises `JobError` where who asks may not stop it."""
    if not may_stop(started_by):
        raise JobError(f"{what} was started by {started_by}; others cannot stop it")
