"""Calls that may never come back: to a file system, or a program, that does not answer.

Python cannot end such a call. But who made it need not wait for it: it is made in a thread of its own.
"""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Attempt(Generic[Result]):
    """A call that has begun, in a thread that does not keep the program from ending."""

    def __init__(self, call: Callable[[], Result], name: str) -> None:
        """`name`: of the thread."""
        self._call = call
        self._results: list[Result] = []
        self._error: BaseException | None = None
        self._over = threading.Event()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        try:
            self._results.append(self._call())
        except BaseException as error:
            self._error = error
        finally:
            self._over.set()

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def result(self, within_s: float | None) -> Result:
        """Waits up to `within_s` for the call, None: for as long as it takes, and returns its result.

        Raises what the call raised, and `TimeoutError` where it goes on.
        """
        if not self._over.wait(within_s):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._results[0]
