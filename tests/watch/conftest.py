"""What tests of watching share."""

from collections.abc import Iterator

import pytest

from tests.watch.watching import Host


@pytest.fixture(scope="package")
def host() -> Iterator[Host]:
    """A process that has PyTorch loaded, which takes seconds; gone when tests elsewhere look for processes."""
    host = Host(
        "tests.watch.scripts",
        None,
        "tests.watch.in_python",
        "tests.watch.own_scripts",
    )
    yield host
    host.close()


@pytest.fixture(scope="package")
def frameworks() -> Iterator[Host]:
    """The same with training frameworks."""
    host = Host("tests.watch.frameworks", None, "tests.watch.recipes")
    yield host
    host.close()
