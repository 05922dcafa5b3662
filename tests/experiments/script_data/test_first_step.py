"""Files that samples are read from: where they are, and how long reading one takes."""

import math
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from vitprof.experiments.script_data import first_step
from vitprof.experiments.script_data.facts import FileFacts
from vitprof.experiments.script_data.first_step import file_facts


def test_where_files_are_and_how_long_they_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / str(i) for i in range(3)]
    for path in paths:
        path.write_bytes(b"x" * 50_000)
    found = file_facts([*paths, tmp_path / "gone"])
    assert (found.n, found.mean_bytes, found.example) == (3, 50_000, str(paths[0]))
    assert tmp_path.is_relative_to(found.mount)
    assert found.warm_s > 0
    assert math.isfinite(found.cold_s) != bool(found.why_not_cold)
    monkeypatch.setattr(first_step, "MOST_READ_BYTES", 40_000)
    assert file_facts(paths).why_not_cold == "they are too large to be read as a whole"
    # From Python 3.13 on a dataclass compares field by field, and NaN is equal to nothing.
    assert repr(file_facts([])) == repr(FileFacts())
    mounts = [
        Mock(mountpoint="/", fstype="ext4"),
        Mock(mountpoint=str(tmp_path), fstype="fuse.gcsfuse"),
    ]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)
    assert (file_facts(paths).in_network, file_facts(paths).mount) == (True, str(tmp_path))
