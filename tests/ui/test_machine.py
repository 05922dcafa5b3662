"""The machine as it is now, as the empty page shows it."""

from __future__ import annotations

import dataclasses
import math

import pytest
from streamlit.testing.v1 import AppTest

from vitprof.telemetry import GpuInfo, GpuNow, MachineNow
from vitprof.telemetry.machine import GpuProcess
from vitprof.ui.profile import welcome

GPU = GpuNow(
    info=GpuInfo(0, "NVIDIA H100", "GPU-1", 80 * 2**30, "580.1", 700.0),
    util_pct=37.0,
    memory_bytes=20 * 2**30,
    power_w=310.4,
    temp_c=51.0,
    processes=tuple(GpuProcess(100 + n, "python" if n else "", n * 2.0**30 if n else math.nan) for n in range(7)),
    lost="",
)
NOW = MachineNow((GPU,), 16, 12.5, 2.25, 2.0**33, 2.0**35, 0.0, 2.0**20, 2.0**38, 2.0**40)
NOTHING = MachineNow((), 1, *(math.nan,) * 8)


class Watch:
    def __init__(self, seen: MachineNow) -> None:
        self.read = lambda: seen


def script() -> None:
    from vitprof.ui.profile.welcome import draw_machine

    draw_machine()


def drawn(seen: MachineNow, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The bars: what they say, and how full they are."""
    monkeypatch.setattr(welcome, "machine_watch", lambda: Watch(seen))
    at = AppTest.from_function(script, default_timeout=60).run()
    assert not at.exception
    bars = {bar.proto.text.replace("\\", ""): bar.proto.value for bar in at.get("progress")}
    texts = [*at.caption, *at.warning]
    return bars | {text.value.replace("\\", ""): -1 for text in texts}


def test_what_can_be_read_is_in_a_bar_each(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(NOW, monkeypatch) == {
        "GPU 0: NVIDIA H100, busy 37%, 310 of 700 W, 51 °C": 37,
        "Its memory: 20.0 GiB of 80.0 GiB": 25,
        "On it: python (106) 6.00 GiB, python (105) 5.00 GiB, python (104) 4.00 GiB, python (103) 3.00 GiB, "
        "python (102) 2.00 GiB and 2 more": -1,
        "CPU: 12% of 16 cores, load 2.2": 12,
        "Memory: 8.00 GiB of 32.0 GiB": 25,
        "Disk: reads 0 B/s, writes 1.00 MiB/s, 768 GiB free": 25,
    }


def test_what_cannot_be_read_is_not_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    found = drawn(NOTHING, monkeypatch)
    assert found == {"CPU: 1 core, measuring": 0, "Memory: n/a of n/a": 0, "Disk: n/a": 0}
    blind = dataclasses.replace(GPU, power_w=math.nan, temp_c=math.nan, processes=())
    assert "GPU 0: NVIDIA H100, busy 37%, power n/a, temperature n/a" in drawn(
        dataclasses.replace(NOW, gpus=(blind,)), monkeypatch
    )
    gone = dataclasses.replace(GPU, lost="GPU is lost")
    assert drawn(dataclasses.replace(NOW, gpus=(gone,)), monkeypatch)[
        "GPU 0: NVIDIA H100 does not answer: GPU is lost."
    ]
