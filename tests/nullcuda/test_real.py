"""Tests for a real GPU that need copies, streams and events of it, and nothing that it computes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT, nullcuda

FILES = ("tests/engine/test_transfer.py", "tests/export/code/test_scripts.py")
NAMES = "TestCopyOnCuda or one_copy_out_of or TestCuda or copy_does_not_wait or copied_from_pinned or are_pinned"


@pytest.mark.slow
def test_copies_on_a_gpu(shm: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "gpu", "-k", NAMES, *FILES]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    env |= nullcuda.environment(shm)
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "25 passed" in done.stdout, done.stdout[-500:]
