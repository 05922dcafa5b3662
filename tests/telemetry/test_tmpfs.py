"""The RAM disk that is found by looking."""

import os
from pathlib import Path

import psutil
import pytest

from tests.engine_fixtures import error_in_one_line
from vitprof.errors import DataError
from vitprof.telemetry.tmpfs import (
    LEAST_ROOM,
    PREFERRED,
    Tmpfs,
    find_tmpfs,
    is_in_ram,
    own_directory,
    ram_disk,
)

found = find_tmpfs()
needs_tmpfs = pytest.mark.skipif(
    found is None, reason="there is no tmpfs here that can be written to"
)


@needs_tmpfs
def test_it_is_one_and_room_is_left() -> None:
    types = {p.mountpoint: p.fstype for p in psutil.disk_partitions(all=True)}
    assert types[str(found.path)] in ("tmpfs", "ramfs")
    if types.get(str(PREFERRED)) == "tmpfs" and os.access(PREFERRED, os.W_OK):
        assert found.path == PREFERRED
        facts = os.statvfs(PREFERRED)
        assert 0 <= found.free_bytes <= max(0, facts.f_blocks * facts.f_frsize - LEAST_ROOM)
    assert is_in_ram(found.path / "anything")
    assert not is_in_ram(Path("/proc/self"))


@needs_tmpfs
def test_too_small_says_what_is_needed_and_where() -> None:
    with error_in_one_line(
        DataError, r"too small: the storage needs 1,0\d0 TiB and there is room for"
    ) as caught:
        ram_disk(2**50)
    assert str(found.path) in str(caught.value)
    assert ram_disk(0).path == found.path


def test_none_is_said_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: [])  # as on macOS
    assert find_tmpfs() is None
    with pytest.raises(DataError, match="no RAM disk"):
        ram_disk(1)


def test_what_others_put_there_is_not_followed(tmp_path: Path) -> None:
    tmpfs = Tmpfs(tmp_path, 1)
    own = own_directory(tmpfs)
    assert own.name == f"vitprof-{os.getuid()}"
    own.mkdir()
    assert own_directory(tmpfs) == own
    own.rmdir()
    own.symlink_to("/")
    with pytest.raises(DataError, match=own.name):
        own_directory(tmpfs)
