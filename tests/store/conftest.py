"""The tests of the store run on both databases: an SQLite file, and a PostgreSQL server of their own."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.store.postgresql import Server, server  # noqa: F401
from vitprof.store import RunStore

DATABASES = ("sqlite", "postgresql")


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database that is empty."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'runs.sqlite'}"
    postgresql: Server = request.getfixturevalue("server")
    return postgresql.schema()


@pytest.fixture
def store(url: str) -> Iterator[RunStore]:
    with closing(RunStore(url)) as opened:
        yield opened
