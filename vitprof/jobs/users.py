"""The user who starts and stops jobs, where the dashboard has a login."""

import os
from collections.abc import Callable
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

from vitprof.errors import JobError

P = ParamSpec("P")
R = TypeVar("R")

_source: list[Callable[[], str]] = []
_carried: ContextVar[str | None] = ContextVar("who asked for a thread's work", default=None)


def ask_with(source: Callable[[], str]) -> None:
    """Makes `who` call `source`, which returns the user's name, or "" where there is no login."""
    _source[:] = [source]


def who() -> str:
    """Returns the current user's name; "" for the user of this machine, such as on the command line."""
    carried = _carried.get()
    if carried is not None:
        return carried
    if not _source:
        return ""
    return _source[0]()


def carried(work: Callable[P, R]) -> Callable[P, R]:
    """Returns `work` for another thread, where `who` then returns the user who is current here."""
    name = who()

    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        _carried.set(name)
        return work(*args, **kwargs)

    return run


MAY_RUN = "VITPROF_MAY_RUN"
"""Environment variable: the users of a dashboard with a login who may make and change runs, separated
by commas. The others may only see runs. Where it is not set, all may."""


def why_not_run() -> str:
    """Returns why the current user may not make or change runs; "" where that is allowed."""
    allowed = os.environ.get(MAY_RUN)
    user = who()
    if allowed is None or not user or user in [name.strip() for name in allowed.split(",")]:
        return ""
    return f"{user} may see runs, but not make or change any: {MAY_RUN} names those who may"


def may_stop(started_by: str) -> bool:
    """Returns whether the current user may stop what `started_by` started."""
    return who() in ("", started_by) or not started_by


def check_may_stop(what: str, started_by: str) -> None:
    """Raises `JobError` where the current user may not stop `what`, which `started_by` started."""
    if not may_stop(started_by):
        raise JobError(f"{what} was started by {started_by}; others cannot stop it")
