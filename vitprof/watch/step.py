"""`vitprof.step`: marks the step in a script, where that is not the whole body of its loop."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

from vitprof.watch.loop import the_loop

P = ParamSpec("P")
R = TypeVar("R")


class Step:
    """A context manager, `with vitprof.step():`, and a decorator, `@vitprof.step`.

    The time between two steps that is not the wait for a batch is recorded apart from their work. It does nothing where
    no training is watched, and never waits for the device. A step inside another one is part of it; if a batch has
    several steps, the work lasts from the beginning of the first to the end of the last.
    """

    @overload
    def __call__(self) -> Step: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Callable[P, R]: ...
    def __call__(self, function: Callable[P, R] | None = None) -> Step | Callable[P, R]:
        """Returns the context manager; for a function, returns a function that is a step each time it is called."""
        if function is None:
            return self

        @functools.wraps(function)
        def step_of(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return step_of

    def __enter__(self) -> None:
        loop = the_loop()
        loop.guard(loop.enter_step)

    def __exit__(self, *_: Any) -> None:
        loop = the_loop()
        loop.guard(loop.leave_step)


step = Step()
