"""Tests for a real GPU that need copies, streams and events of it, and nothing that it computes."""

import re
from pathlib import Path

import pytest

from tests import ROOT
from tests.watch.watching import Host

FILES = (
    "tests/engine/test_transfer.py",
    "tests/export/code/test_scripts.py",
    "tests/watch/patches/test_copies.py",
)
NAMES = (
    "TestCopyOnCuda or one_copy_out_of or TestCuda or copy_does_not_wait or copied_from_pinned or are_pinned or "
    "test_copies.py"
)


@pytest.mark.measured
def test_copies_on_a_gpu(forks: Host, tmp_path: Path) -> None:
    words = ["-q", "-n", "0", "-m", "gpu", "-k", NAMES, *(str(ROOT / name) for name in FILES)]
    words.append(
        f"--basetemp={tmp_path / 'temporary'}"
    )  # others' permissions are taken away around its usual one
    done = forks.run("tests_of_a_gpu", watched=False, words=words)
    status, _, printed = done.returned.partition("\n")
    assert (done.status, status) == (0, "0"), done.complaint + printed[-4000:]
    passed = re.search(r"(\d+) passed", printed)
    assert passed is not None, printed[-500:]
    assert int(passed[1]) > 20
