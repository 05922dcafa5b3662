"""Processes with the null device."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import nullcuda
from tests.engine_fixtures import made_once
from tests.watch.watching import Host


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    lacking = nullcuda.missing()
    for item in items:
        if Path(item.path).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.nullcuda)
            if lacking:
                item.add_marker(pytest.mark.skip(reason=f"the null device {lacking}"))


@pytest.fixture(scope="session")
def shm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The memory that processes with the device share."""
    return tmp_path_factory.mktemp("nullcuda") / "shm"


@pytest.fixture(scope="module")
def host(shm: Path) -> Iterator[Host]:
    """Runs functions of `tests.nullcuda.scripts` in forks that have the device and have not used it."""
    host = Host("tests.nullcuda.scripts", nullcuda.environment(shm))
    yield host
    host.close()


@pytest.fixture(scope="package")
def forks(shm: Path) -> Iterator[Host]:
    """Runs functions of `tests.nullcuda.runs` in such forks."""
    host = Host("tests.nullcuda.runs", nullcuda.environment(shm))
    yield host
    host.close()


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(made_once(tmp_path_factory, "small-digits"))
