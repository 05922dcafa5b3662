"""Each location: where the files are, what was copied, and nothing left behind."""

import os
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest.mock import Mock

import pytest

from tests.engine_fixtures import never, silent
from vitprof.config import RunConfig
from vitprof.engine.locations import Located, open_location
from vitprof.engine.locations.throttle import TokenBucket
from vitprof.engine.storage.contract import Location
from vitprof.errors import DataError
from vitprof.telemetry.tmpfs import find_tmpfs

FAST: dict[str, Any] = {"slow_mb_s": 1000.0, "slow_latency_ms": 0.0}


at = partial(open_location, progress=silent, stop=never, clock=perf_counter)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    top = tmp_path / "prepared" / "memmap"
    top.mkdir(parents=True)
    (top / "train.npy").write_bytes(b"x" * 10_000)
    return top


@pytest.fixture(autouse=True)
def _nothing_is_left(vitprof_home: Path) -> Any:
    ram = find_tmpfs()
    yield
    assert not (vitprof_home / "locations").exists()
    if ram is not None:
        mine = f".{os.getpid()}."
        left = ram.path / f"vitprof-{os.getuid()}"
        assert not [p for p in (left.iterdir() if left.exists() else []) if mine in p.name]


def read(place: Location) -> bytes:
    place.reading(10_000, 1)
    return (place.root / "train.npy").read_bytes()


def test_disk(directory: Path) -> None:
    with at(RunConfig(location="disk"), directory) as located:
        assert located == Located(Location(directory), "")
        assert (located.copied.seconds, located.copied.n_bytes) == (0, 0)
        assert read(located.location) == b"x" * 10_000


@pytest.mark.skipif(find_tmpfs() is None, reason="there is no tmpfs here that can be written to")
def test_ram_disk(directory: Path) -> None:
    ram = find_tmpfs()
    assert ram is not None
    with at(RunConfig(location="ram-disk"), directory) as located:
        assert located.location.root.is_relative_to(ram.path)
        assert located.location.throttle is None
        assert read(located.location) == b"x" * 10_000
        assert str(ram.path) in located.note
        assert located.copied.n_bytes == 10_000
        assert located.copied.seconds > 0
        assert (
            os.stat(located.location.root.parent).st_mode & 0o077 == 0
        )  # others are not to read it
    assert not located.location.root.exists()


def test_ram_disk_that_is_too_small(directory: Path) -> None:
    with (directory / "sparse").open("wb") as file:
        file.truncate(2**43)
    with pytest.raises(DataError, match="RAM disk"), at(RunConfig(location="ram-disk"), directory):
        pass


def test_slow_drive(directory: Path) -> None:
    with at(RunConfig(location="slow-drive", **FAST), directory) as located:
        assert located.location.root == directory
        bucket = located.location.throttle
        assert isinstance(bucket, TokenBucket)
        assert (bucket.drive.mb_s, bucket.drive.latency_ms) == (1000, 0)
        assert read(located.location) == b"x" * 10_000
        assert located.unmeasured == Location(directory)
        assert located.note.startswith("throttled to 1,000 MB/s")
        assert located.copied.seconds == 0
    bucket.wait(10**15, 1)  # let go of with the location


def test_workers_that_wait_for_a_slow_drive_are_let_go_before_they_are_waited_for(
    directory: Path,
) -> None:
    """They read ahead: some 27 s for a batch of digits that silent wants, and 10 s until they were given up."""
    with at(RunConfig(location="slow-drive", slow_latency_ms=600_000), directory) as located:
        located.let_go()
        assert read(located.location) == b"x" * 10_000


def test_training_s_files_are_staged_and_no_others(directory: Path) -> None:
    """Evaluation is not measured: it reads the files where they are."""
    progress = Mock()
    theirs = ("test.npy", "test/3/a.png", "images/test-000/a.png")
    for name in theirs:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(b"y")
    (directory / "train" / "testing").mkdir(parents=True)
    (directory / "train" / "testing" / "a.png").write_bytes(b"z")
    with at(RunConfig(location="staged", **FAST), directory, progress=progress) as located:
        assert located.location.root != directory
        assert located.unmeasured == Location(directory)
        assert read(located.location) == b"x" * 10_000
        assert located.copied.n_bytes == 10_001
        assert located.copied.seconds > 0
        assert "throttled" in located.note
        progress.assert_called()
        assert (located.location.root / "train" / "testing" / "a.png").exists()
        for name in theirs:
            assert not (located.location.root / name).exists()
            assert (located.unmeasured.root / name).exists()


@pytest.mark.parametrize("location", ["disk", "ram-disk", "slow-drive", "staged"])
def test_an_error_of_the_job_goes_through(directory: Path, location: str) -> None:
    if location == "ram-disk" and find_tmpfs() is None:
        pytest.skip("there is no tmpfs here that can be written to")

    with pytest.raises(KeyError, match="mine"), at(RunConfig(location=location, **FAST), directory):
        raise KeyError("mine")
    assert (directory / "train.npy").exists()
