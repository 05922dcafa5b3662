"""AMD's management library by its Python package, read as NVML is; no AMD GPU has tried it yet."""

from __future__ import annotations

import contextlib
import importlib
import math
from collections import Counter
from collections.abc import Collection
from operator import attrgetter
from typing import Any

from vitprof.telemetry.nvml import GPU_FIELDS, GpuInfo

PREFIX = "AMD-"
"""The name of a GPU begins with it; its domain, bus and device follow, as on the PCI bus: AMD-0000:03:00."""
MIB = 1 << 20
NOT_OFFERED = "not read by amdsmi"
NO_FIGURE = "amdsmi: not available"

WATTS = ("socket_power", "current_socket_power", "average_socket_power")
JUNCTION_NOW = ("AmdSmiTemperatureType.JUNCTION", "AmdSmiTemperatureMetric.CURRENT")
# The function of each field, names of its arguments, keys of its answer (the first with a figure counts), and the least
# and the most that a GPU has: versions differ in what stands for "unknown": "N/A", 65535, or 0 W.
_FIELDS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...], float, float]] = {
    "gpu_util_pct": ("amdsmi_get_gpu_activity", (), ("gfx_activity",), 0, 100),
    "gpu_mem_used_bytes": ("amdsmi_get_gpu_vram_usage", (), ("vram_used",), 1, math.inf),
    "gpu_power_w": ("amdsmi_get_power_info", (), WATTS, 1, 65_534),
    "gpu_sm_clock_mhz": ("amdsmi_get_clock_info", ("AmdSmiClkType.GFX",), ("clk", "cur_clk"), 1, 65_534),
    "gpu_temp_c": ("amdsmi_get_temp_metric", JUNCTION_NOW, (), 1, 200),
}


class Amdsmi:
    """A session with the library, for one thread at a time. Figures that it does not have are NaN; nothing raises."""

    def __init__(self) -> None:
        self.reason, self.detail = "amdsmi does not start", ""
        """Why there are no figures, in one line for people; and the library's own message."""
        self.lost: dict[str | int, str] = {}
        self.why_not: dict[str | int, dict[str, str]] = {}
        """GPU as named to `read` -> field -> why its last reading lacks the field."""
        self._handles: dict[str, Any] = {}
        try:
            self._library = importlib.import_module("amdsmi")
            self._library.amdsmi_init()
            handles = self._library.amdsmi_get_processor_handles()
            names = [PREFIX + self._library.amdsmi_get_gpu_device_bdf(h).partition(".")[0].lower() for h in handles]
            # several of a name are partitions of one GPU: which of them is meant is not known
            self._handles = {n: h for n, h in zip(names, handles, strict=True) if Counter(names)[n] == 1}
        except Exception as error:  # whatever a library raises that is not there, or fits no driver
            self.detail = str(error) or type(error).__name__
        self.available = not self.detail

    def close(self) -> None:
        if self.available:
            self.available = False
            with contextlib.suppress(Exception):
                self._library.amdsmi_shut_down()

    def gpus(self) -> list[GpuInfo]:
        """Returns the GPUs, without partitions of one."""
        found = []
        for index, (name, handle) in enumerate(self._handles.items()):
            driver = ""
            with contextlib.suppress(Exception):
                driver = str(self._library.amdsmi_get_gpu_driver_info(handle)["driver_version"])
            found.append(GpuInfo(index, "AMD GPU", name, math.nan, driver))
        return found

    def read(self, gpu: str | int, pids: Collection[int]) -> dict[str, float]:
        """Returns the figures (`GPU_FIELDS`) of a GPU by its name; NaN where unknown, see `why_not`."""
        values, reasons = dict.fromkeys(GPU_FIELDS, math.nan), dict.fromkeys(GPU_FIELDS, NOT_OFFERED)
        if not self.available or gpu not in self._handles:
            return values
        handle = self._handles[str(gpu)]
        for name, (function, arguments, keys, least, most) in _FIELDS.items():
            try:
                answer = getattr(self._library, function)(handle, *(attrgetter(a)(self._library) for a in arguments))
                figures = [answer.get(key) for key in keys] if keys else [answer]
                values[name] = next(filter(math.isfinite, (_figure(f, least, most) for f in figures)), math.nan)
                reasons[name] = NO_FIGURE
            except Exception as error:  # of any kind: each version lacks functions that another has
                reasons[name] = f"amdsmi: {error}"
        values["gpu_mem_used_bytes"] *= MIB
        with contextlib.suppress(Exception):
            listed = self._library.amdsmi_get_gpu_process_list(handle)
            sizes = [_figure(p["memory_usage"]["vram_mem"], 1, math.inf) for p in listed if p["pid"] in pids]
            values["gpu_mem_job_bytes"] = sum(sizes) if sizes else math.nan
        self.why_not[gpu] = {name: reasons[name] for name, value in values.items() if math.isnan(value)}
        return values


def _figure(value: Any, least: float, most: float) -> float:
    return float(value) if isinstance(value, int | float) and least <= value <= most else math.nan
