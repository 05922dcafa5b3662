"""The slow drives that can be imitated."""

from __future__ import annotations

import pytest

from vitprof.config import RunConfig
from vitprof.config.drives import PRESETS, SlowDrive, slow_drive


def test_presets_say_what_the_reference_says() -> None:
    network = PRESETS["network-drive"]
    epoch_s = 5981 * (network.latency_ms / 1e3 + 100_000 / (network.mb_s * 1e6))
    assert epoch_s == pytest.approx((24 - 3) * 60, rel=0.01)  # the article on a mounted network drive
    assert PRESETS["mechanical-disk"].serial
    assert not network.serial


def test_settings_replace_the_presets() -> None:
    assert slow_drive(RunConfig(location="slow-drive")) == PRESETS["network-drive"]
    config = RunConfig(slow_drive="mechanical-disk", slow_mb_s=5, slow_latency_ms=0)
    assert slow_drive(config) == SlowDrive(5, 0, serial=True)
