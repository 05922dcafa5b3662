"""The footer of a Parquet file: what it says of its columns, and whatever else is in its place."""

import random

import numpy as np
import pytest

from tests.alarm import cpu_alarm
from tests.recording.archives import parquet
from vitprof.recording.footer import MAX_BYTES, is_uncompressed

SERIES = {"a": np.arange(10.0), "b": np.full(10, np.nan)}


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd"])
def test_whether_columns_are_compressed(codec: str) -> None:
    assert is_uncompressed(parquet(SERIES, compression=codec)) == (codec == "none")
    assert is_uncompressed(parquet(SERIES, compression={"a": "none", "b": codec})) == (
        codec == "none"
    )
    assert is_uncompressed(parquet({}))


def test_damaged_footers() -> None:
    good = parquet(SERIES)
    length = int.from_bytes(good[-8:-4], "little")
    chance = random.Random(1)
    for data in (
        b"",
        b"PAR1",
        good[:-1],
        good[:-8] + (MAX_BYTES + 1).to_bytes(4, "little") + b"PAR1",
    ):
        with pytest.raises(ValueError, match="does not end with a footer"):
            is_uncompressed(data)
    refused = 0
    with cpu_alarm(5.0):
        for _ in range(1000):
            damaged = bytearray(good)
            for _ in range(3):
                damaged[-8 - chance.randrange(1, length)] = chance.randrange(256)
            try:
                is_uncompressed(bytes(damaged))
            except ValueError:
                refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    "footer", [b"\x1c" * 900_000, b"\x19" * 900_000, b"\x19\xf8" + b"\xff" * 12]
)
def test_footers_that_are_nested_or_have_no_end(footer: bytes) -> None:
    data = footer + len(footer).to_bytes(4, "little") + b"PAR1"
    with cpu_alarm(5.0), pytest.raises(ValueError, match="its footer"):
        is_uncompressed(data)
