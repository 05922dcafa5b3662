"""Runs of the store that `vitprof.runs()` reads."""

from collections.abc import Iterator

import pytest

from tests.ui.dashboard import add_run
from vitprof.jobs.finalise import settle
from vitprof.store import RunStore


@pytest.fixture
def stored() -> Iterator[RunStore]:
    """The store with two runs: 1 waits half of its time for data, 2 never and is on a simulated device."""
    opened = RunStore()
    for number, more in enumerate(
        ({}, {"wait_s": 0.0, "device": "simulated:5,0", "strategy": "memory"}), 1
    ):
        add_run(opened, **more)  # type: ignore[arg-type]
        opened.update_run(number, **settle(opened, number, 100.0, 101.0))
    opened.tag(2, ["kept"])
    yield opened
    opened.close()
