"""The facts about data sets, models and slow drives, against where they come from."""

import pytest

from vitprof.config import RunConfig
from vitprof.config.catalog import (
    SLOW_DRIVES,
    SlowDrive,
    model_preset,
    slow_drive,
)


def test_tiny_is_the_model_of_reference_section_1() -> None:
    tiny = model_preset("tiny")
    shape = (tiny.image_size, tiny.patch_size, tiny.dim, tiny.depth, tiny.heads, tiny.mlp_dim, tiny.head)
    assert shape == (28, 7, 64, 6, 8, 128, "mlp")
    assert tiny.scale == pytest.approx(tiny.dim**-0.5)
    assert tiny.lr == pytest.approx(0.003)


def test_slow_drives() -> None:
    network = SLOW_DRIVES["network-drive"]
    epoch_s = 5981 * (network.latency_ms / 1e3 + 100_000 / (network.mb_s * 1e6))
    assert epoch_s == pytest.approx((24 - 3) * 60, rel=0.01)  # the article on a mounted network drive
    assert SLOW_DRIVES["mechanical-disk"].serial
    assert not network.serial
    assert slow_drive(RunConfig(location="slow-drive")) == SLOW_DRIVES["network-drive"]
    config = RunConfig(slow_drive="mechanical-disk", slow_mb_s=5, slow_latency_ms=0)
    assert slow_drive(config) == SlowDrive(5, 0, serial=True)
