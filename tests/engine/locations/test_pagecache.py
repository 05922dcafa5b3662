"""The page cache of real files on a real file system."""

import math
import mmap
import os
import secrets
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest

from tests.engine_fixtures import error_in_one_line, never, silent
from vitprof.engine.locations import pagecache
from vitprof.engine.locations.pagecache import (
    STILL_CACHED,
    cached_fraction,
    drop,
    set_page_cache,
    warm,
)
from vitprof.errors import DataError, JobStopped
from vitprof.telemetry.tmpfs import find_tmpfs, is_in_ram

MIB = 2**20


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Two large files, small ones and an empty one, on a disk."""
    if is_in_ram(tmp_path) or pagecache._mincore() is None or not hasattr(os, "posix_fadvise"):
        pytest.skip(f"{tmp_path} is in RAM, or this system does not tell what is cached")
    top = tmp_path / "files"
    (top / "small").mkdir(parents=True)
    for name in ("one", "other"):
        (top / name).write_bytes(secrets.token_bytes(4 * MIB))
    for i in range(20):
        (top / "small" / f"{i}.jpg").write_bytes(secrets.token_bytes(5000))
    (top / "empty").touch()
    return top


def test_cold_and_warm_and_as_it_is(directory: Path) -> None:
    told: list[tuple[float, str]] = []
    assert set_page_cache(directory, "as-is", silent, never) > 0.9  # just written
    assert set_page_cache(directory, "cold", lambda *p: told.append(p), never) <= STILL_CACHED
    assert set_page_cache(directory, "as-is", silent, never) <= STILL_CACHED
    assert set_page_cache(directory, "warm", lambda *p: told.append(p), never) > 0.99
    assert {message.split()[0] for _, message in told} == {"dropping", "reading"}
    assert told[-1][0] == 1
    assert all(0 <= fraction <= 1 for fraction, _ in told)


def test_a_part_is_told_and_of_many_files_some_are_asked(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [directory / "one", directory / "other"]
    drop(files)
    warm(files[:1])
    assert cached_fraction(files) == pytest.approx(0.5, abs=0.02)
    assert cached_fraction(files[:1]) > 0.99
    monkeypatch.setattr(pagecache, "MOST_FILES_EXAMINED", 5)
    small = sorted((directory / "small").iterdir())
    drop(small)
    warm(small[:10])
    assert 0.3 < cached_fraction(small) < 0.7


def test_mapped_pages_stay_and_that_is_said(directory: Path) -> None:
    with (
        (directory / "one").open("rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped,
    ):
        assert len(set(mapped[:: mmap.PAGESIZE])) > 1  # touched
        with pytest.raises(
            DataError, match="stay in the page cache; end the process that has these files mapped"
        ):
            drop([directory / "one"])
    assert drop([directory / "one"]) <= STILL_CACHED


def test_a_ram_disk_cannot_be_dropped() -> None:
    if (found := find_tmpfs()) is None:
        pytest.skip("there is no tmpfs here that can be written to")
    with NamedTemporaryFile(dir=found.path) as file:
        file.write(b"x" * 10_000)
        file.flush()
        with error_in_one_line(DataError, match="on a RAM disk"):
            drop([Path(file.name)])


def test_nothing_to_tell(tmp_path: Path) -> None:
    assert math.isnan(cached_fraction([]))
    (tmp_path / "empty").touch()
    assert math.isnan(set_page_cache(tmp_path, "as-is", silent, never))


def test_files_of_others_are_not_told(read_only_dir: Path) -> None:
    """Acting as silent, what another user owns looks cached to mincore whether it is or not."""
    theirs = Path("/etc/passwd")
    if os.access(theirs, os.W_OK, effective_ids=True) or theirs.stat().st_uid == os.geteuid():
        pytest.skip("every file can be written to here")
    assert math.isnan(cached_fraction([theirs]))


def test_a_system_that_cannot(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fadvise")
    with pytest.raises(DataError, match="cannot be dropped on"):
        set_page_cache(directory, "cold", silent, never)
    monkeypatch.setattr(pagecache, "_mincore", lambda: None)
    assert math.isnan(set_page_cache(directory, "warm", silent, never))


def test_a_stop_and_a_missing_file(directory: Path) -> None:
    for wanted in ("cold", "warm"):
        with pytest.raises(JobStopped):
            set_page_cache(directory, wanted, silent, lambda: True)
    for act in (cached_fraction, drop, warm):
        with pytest.raises(DataError, match="nowhere cannot be read"):
            act([directory / "nowhere"])
