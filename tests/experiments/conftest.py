"""What tests of experiments share: a job manager that leaves nothing behind."""

from collections.abc import Iterator

import pytest

from tests.engine_fixtures import vitprof_threads, wait_until
from vitprof.jobs.manager import JobManager
from vitprof.store import RunStore


@pytest.fixture
def manager(store: RunStore) -> Iterator[JobManager]:
    opened = JobManager(store)
    yield opened
    opened.shutdown()
    wait_until(lambda: vitprof_threads() == [], "the end of its threads")
