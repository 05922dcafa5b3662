"""How fast a drive reads, past the page cache."""

import math
import os
from pathlib import Path

import pytest

from vitprof.engine.locations.drive import BLOCK, read_rate


def test_all_is_read_once_and_divided_by_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.bin").write_bytes(bytes(3 * BLOCK + 5))
    (tmp_path / "b.bin").write_bytes(bytes(BLOCK))
    (tmp_path / "empty").touch()
    real, seen = os.open, []
    monkeypatch.setattr(os, "O_DIRECT", 0)  # a RAM disk has no direct reads
    monkeypatch.setattr(
        os, "open", lambda path, flags: seen.append(os.path.basename(path)) or real(path, flags)
    )
    moments = iter([0.0, *[0.01] * 20, 2.0])
    last = [0.0]

    def clock() -> float:
        last[0] = next(moments, 2.0)
        return last[0]

    rate = read_rate(tmp_path, lasts_s=1.0, clock=clock)
    assert sorted(seen) == ["a.bin"] * 4 + ["b.bin"]
    assert rate == pytest.approx((4 * BLOCK + 5) / last[0])


def test_where_it_cannot_be_told_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert math.isnan(read_rate(tmp_path))
    (tmp_path / "small").write_bytes(b"few")
    assert math.isnan(read_rate(tmp_path))
    (tmp_path / "large").write_bytes(bytes(2 * BLOCK))
    assert math.isnan(read_rate(tmp_path, lasts_s=0.0))
    monkeypatch.delattr(os, "O_DIRECT")
    assert math.isnan(read_rate(tmp_path))
