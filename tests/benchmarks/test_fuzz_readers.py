"""Some damaged copies for each reader of own data and of bundles; the benchmark makes 10,000."""

from pathlib import Path

import pytest

from benchmarks.fuzz_readers import READERS, fuzz

COPIES = range(12)
ENDED_THE_PROCESS = {"bundle-import": (29, 96, 223)}
"""Copies with which Arrow did, when it was asked for the codec of a column."""


@pytest.mark.parametrize("reader", READERS)
def test_damaged_copies_are_read_or_refused_in_one_line(reader: str, tmp_path: Path) -> None:
    copies = [*COPIES, *ENDED_THE_PROCESS.get(reader, ())]
    result = fuzz(reader, copies, 1, tmp_path, None)
    assert not result.failures
    assert result.outcomes.total() == len(copies)
