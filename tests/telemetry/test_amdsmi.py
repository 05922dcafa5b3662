"""AMD's library by a stand-in with its documented calls: no AMD GPU has tried this."""

import math
import os
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from vitprof.recording.columns import TELEMETRY_COLUMNS
from vitprof.telemetry.nvml import GPU_FIELDS
from vitprof.telemetry.sampler import NO_FIGURE, NO_FIGURES, TO_HAVE_AMDS, Amdsmi, Telemetry

GPU = "AMD-0000:c1:00"
ANSWERS: dict[str, Any] = {
    "amdsmi_get_gpu_device_bdf": "0000:C1:00.0",
    "amdsmi_get_gpu_driver_info": {"driver_version": "6.12.12"},
    "amdsmi_get_gpu_activity": {"gfx_activity": 0, "umc_activity": 3},
    "amdsmi_get_gpu_vram_usage": {"vram_total": 196592, "vram_used": 2048},
    "amdsmi_get_power_info": {
        "socket_power": "N/A",
        "current_socket_power": 475,
        "average_socket_power": "N/A",
    },
    "amdsmi_get_clock_info": {"clk": 2100, "max_clk": 2100},
    "amdsmi_get_temp_metric": 52,
    "amdsmi_get_gpu_process_list": [
        {"pid": os.getpid(), "memory_usage": {"vram_mem": 7 << 20}},
        {"pid": 1, "memory_usage": {"vram_mem": 1 << 30}},
    ],
}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    library = SimpleNamespace(
        calls=[],
        amdsmi_init=lambda: library.calls.append("init"),
        amdsmi_shut_down=lambda: library.calls.append("shut down"),
        amdsmi_get_processor_handles=lambda: ["handle"],
        AmdSmiClkType=SimpleNamespace(GFX=0),
        AmdSmiTemperatureType=SimpleNamespace(JUNCTION=1),
        AmdSmiTemperatureMetric=SimpleNamespace(CURRENT=0),
        **{name: lambda *_, answer=answer: answer for name, answer in ANSWERS.items()},
    )
    monkeypatch.setitem(sys.modules, "amdsmi", library)  # type: ignore[arg-type]
    return library


def sampled(gpu: str = GPU) -> tuple[dict[str, float], Telemetry]:
    telemetry = Telemetry(pid=os.getpid(), device="cuda:0", gpu_uuid=gpu, sink=lambda rows: None)
    row = dict(zip(TELEMETRY_COLUMNS, telemetry.sample(), strict=True))
    telemetry.stop()
    return {
        name: value for name, value in row.items() if name in GPU_FIELDS and math.isfinite(value)
    }, telemetry


def test_every_figure_in_its_unit(library: SimpleNamespace) -> None:
    figures, telemetry = sampled()
    assert figures == {
        "gpu_util_pct": 0,
        "gpu_mem_used_bytes": 2 << 30,
        "gpu_mem_job_bytes": 7 << 20,
        "gpu_power_w": 475,
        "gpu_sm_clock_mhz": 2100,
        "gpu_temp_c": 52,
    }
    assert telemetry.facts["driver_version"] == "6.12.12"
    assert (telemetry.notices, library.calls) == ([], ["init", "shut down"])


@pytest.mark.parametrize("unknown", ["N/A", 65535, None])
def test_what_is_not_known_is_not_a_figure(library: SimpleNamespace, unknown: Any) -> None:
    library.amdsmi_get_gpu_activity = lambda handle: {"gfx_activity": unknown}
    library.amdsmi_get_power_info = lambda handle: {
        "average_socket_power": unknown,
        "socket_power": 0,
    }
    library.amdsmi_get_clock_info = lambda handle, kind: {"cur_clk": unknown}
    library.amdsmi_get_temp_metric = Mock(side_effect=RuntimeError("AMDSMI_STATUS_NOT_SUPPORTED"))
    del library.amdsmi_get_gpu_process_list
    figures, telemetry = sampled()
    assert figures == {"gpu_mem_used_bytes": 2 << 30}
    missing = telemetry.facts["gpu_not_available"]
    assert f"GPU-util, power, clock ({NO_FIGURE})" in missing
    assert "temperature (amdsmi: AMDSMI_STATUS_NOT_SUPPORTED)" in missing


def test_a_gpu_that_is_not_the_jobs_is_not_read(library: SimpleNamespace) -> None:
    figures, telemetry = sampled("AMD-0000:03:00")
    reason = "amdsmi does not list the GPU of this run (cuda:0, AMD-0000:03:00)"
    assert (figures, telemetry.notices) == ({}, [NO_FIGURES.format(reason, TO_HAVE_AMDS)])


def test_partitions_of_a_gpu_are_not_told_apart(library: SimpleNamespace) -> None:
    library.amdsmi_get_processor_handles = lambda: [0, 1]
    library.amdsmi_get_gpu_device_bdf = lambda handle: f"0000:c1:00.{handle}"
    assert Amdsmi().gpus() == []
    assert not sampled()[0]


@pytest.mark.parametrize("installed", [True, False])
def test_without_library_no_figures(
    library: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    """NVML, which such a machine lacks too, is not asked instead."""
    if installed:
        library.amdsmi_init = lambda: 1 // 0
    else:
        monkeypatch.setitem(sys.modules, "amdsmi", None)  # type: ignore[arg-type]
    figures, telemetry = sampled()
    assert figures == {}
    assert telemetry.notices[0].startswith("amdsmi does not start (")
    assert "NVML" not in telemetry.notices[0]
