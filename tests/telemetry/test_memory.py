"""The use of shared memory."""

import math
import os
from pathlib import Path

from vitprof.telemetry.memory import shared_memory


def test_shared_memory_is_used_and_free(tmp_path: Path) -> None:
    facts = os.statvfs(tmp_path)
    found = shared_memory(tmp_path)
    assert 0 < found.used_bytes < facts.f_blocks * facts.f_frsize
    assert found.free_bytes > 0
    assert all(math.isnan(each) for each in shared_memory(tmp_path / "none"))
