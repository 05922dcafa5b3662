"""A store with recorded runs, imported once for all tests of a process: that takes seconds."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.top.recorded import ended
from vitprof.home import STORE_FILE
from vitprof.store import RunStore
from vitprof.store.database import now_utc


@dataclass(frozen=True)
class Template:
    """A store to copy."""

    file: Path
    runs: dict[str, int]
    """The numbers of its runs, by name."""


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    file = tmp_path_factory.mktemp("recorded") / STORE_FILE
    with closing(RunStore(f"sqlite:///{file}")) as store:
        return Template(file, ended(store))


@pytest.fixture
def recorded(template: Template, vitprof_home: Path) -> dict[str, int]:
    """Recorded runs in the command line's own store, as if they had just ended: their numbers, by name."""
    vitprof_home.mkdir()
    shutil.copyfile(template.file, vitprof_home / STORE_FILE)
    with closing(RunStore()) as store:
        for run_id in template.runs.values():
            store.update_run(run_id, created_utc=now_utc())
    return template.runs


@pytest.fixture
def store(recorded: dict[str, int]) -> Iterator[RunStore]:
    """The command line's own store, with these runs."""
    with closing(RunStore()) as opened:
        yield opened
