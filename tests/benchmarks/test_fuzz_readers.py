"""Some damaged copies for each reader of own data and of bundles; the benchmark makes 10,000."""

from pathlib import Path

import pytest

from benchmarks.fuzz_readers import READERS, fuzz

COPIES = range(12)
FAILED_ONCE = [
    # Arrow ended the process, when it was asked for the codec of a column.
    ("bundle-import", 1, (29, 96, 223)),
    # Arrow read columns of different lengths.
    ("bundle-check", 2, (686,)),
]
"""Reader, seed, and the numbers of copies."""


@pytest.mark.parametrize("reader", READERS)
def test_damaged_copies_are_read_or_refused_in_one_line(reader: str, tmp_path: Path) -> None:
    result = fuzz(reader, COPIES, 1, tmp_path, None)
    assert not result.failures
    assert result.outcomes.total() == len(COPIES)


@pytest.mark.parametrize(("reader", "seed", "copies"), FAILED_ONCE)
def test_copies_that_failed_once(
    reader: str, seed: int, copies: tuple[int, ...], tmp_path: Path
) -> None:
    assert not fuzz(reader, copies, seed, tmp_path, None).failures
