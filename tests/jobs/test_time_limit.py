"""Work that is given up: by an alarm on the clock, whatever it does."""

from __future__ import annotations

import itertools
import threading

import pytest

from vitprof.jobs.time_limit import TookTooLong, in_time


def test_what_is_done_in_time_is_as_without_a_limit() -> None:
    assert in_time(60.0, lambda: 42) == 42
    with pytest.raises(ZeroDivisionError):
        in_time(60.0, lambda: 1 // 0)


def test_work_without_an_end_is_given_up_and_its_thread_ends() -> None:
    caught = []

    def works_on() -> None:
        for _ in itertools.count():  # what catches every `Exception` does not keep it
            try:
                sum(range(1000))
            except Exception as error:
                caught.append(error)

    with pytest.raises(TookTooLong, match=r"^it took longer than 20.0 ms and was given up$"):
        in_time(0.02, works_on)
    assert not caught
    for thread in threading.enumerate():
        if thread.name == "vitprof-in-time":
            thread.join(5)
            assert not thread.is_alive()
