"""NVML, NVIDIA's management library, made safe to ask: what it cannot answer is NaN, and nothing here raises.

Every pynvml call passes through `Nvml.call` (nvitop's idea): one place knows missing libraries, old drivers, figures
that a GPU does not have, and GPUs that fall off the bus in the middle of a run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import pynvml

NO_GPU_MESSAGE = "no NVIDIA GPU here: device figures are not available"
NO_NVML_MESSAGE = "NVML does not start: device figures are not available"

RETRY_S = 5.0
"""A lost GPU is asked again this often: every call to one can take long, and it seldom comes back."""

PCIE_S = 1.0
"""Age up to which a PCIe figure is used again. NVML counts for 20 ms to answer and blocks the caller meanwhile."""

GPU_FIELDS: tuple[str, ...] = (
    "gpu_util_pct",
    "gpu_mem_used_bytes",
    "gpu_mem_job_bytes",
    "gpu_power_w",
    "gpu_sm_clock_mhz",
    "gpu_temp_c",
    "pcie_rx_bytes_per_s",
)
"""The fields of a telemetry sample that come from NVML, in the order of the record."""

# Fields that are one call: function, its argument after the handle, and how its answer becomes the field's unit.
_PLAIN: dict[str, tuple[str, tuple[Any, ...], Callable[[Any], float]]] = {
    "gpu_util_pct": ("nvmlDeviceGetUtilizationRates", (), lambda rates: float(rates.gpu)),
    "gpu_power_w": ("nvmlDeviceGetPowerUsage", (), lambda milliwatts: milliwatts / 1e3),
    "gpu_sm_clock_mhz": ("nvmlDeviceGetClockInfo", (pynvml.NVML_CLOCK_SM,), float),
    "gpu_temp_c": ("nvmlDeviceGetTemperature", (pynvml.NVML_TEMPERATURE_GPU,), float),
}

_NO_GPU = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
_ABSENT = (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_NOT_SUPPORTED)
_LOST = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED)


@dataclass(frozen=True)
class GpuInfo:
    """What does not change about a GPU."""

    index: int
    """NVML's number of the GPU: order on the PCI bus. CUDA's own order may differ."""
    name: str
    uuid: str
    """`GPU-...`; the one name that means the same to NVML, CUDA and torch."""
    memory_bytes: float
    """Device memory in all; NaN where it cannot be read."""
    driver: str
    """Version of the driver; empty where it cannot be read."""
    power_limit_w: float = math.nan
    """What the GPU may draw at most, as set now; NaN where it cannot be read."""


@dataclass
class _Device:
    """What is remembered of a GPU between reads."""

    handle: Any = None
    asked_s: float = math.nan
    """When a lost GPU was last asked."""
    pcie: float = math.nan
    pcie_s: float = -math.inf


class Nvml:
    """A session with NVML. For one thread at a time; several sessions in a process do not disturb each other."""

    available: bool
    """Whether NVML runs and knows a GPU."""
    reason: str
    """Why not, in one line for people; empty when available."""
    detail: str
    """NVML's own words for the cause; empty when available."""
    causes: dict[str, str]
    """Function -> why its last call had no answer; functions that answered are not in it."""
    lost: dict[str | int, str]
    """GPU as named to `read` -> why it has no figures at present. It is asked again every `RETRY_S`."""

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._devices: dict[str | int, _Device] = {}
        self._failure: int = pynvml.NVML_SUCCESS
        self._cause = ""
        self._answers = self._troubles = 0
        self.causes = {}
        self.lost = {}
        self.reason = self.detail = ""
        self.call("nvmlInit")
        self._open = self._failure == pynvml.NVML_SUCCESS
        if not self._open:
            self.reason = NO_GPU_MESSAGE if self._failure in _NO_GPU else NO_NVML_MESSAGE
            self.detail = self.causes["nvmlInit"]
        elif not self.call("nvmlDeviceGetCount"):
            self.reason = NO_GPU_MESSAGE
            self.detail = self.causes.get("nvmlDeviceGetCount", "the driver lists no GPU")
            self.close()
        self.available = not self.reason

    def __enter__(self) -> Nvml:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the session. May be called again; figures read afterwards are NaN."""
        self._devices.clear()
        if self._open:
            self._open = False
            self.call("nvmlShutdown")
        self.available = False

    def call(self, function: str, *args: Any) -> Any:
        """Returns what pynvml's `function` returns; None if it has no answer, and `causes` then says why."""
        try:
            if not hasattr(pynvml, function):
                raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
            answer = getattr(pynvml, function)(*args)
        except (pynvml.NVMLError, UnicodeDecodeError) as error:  # pynvml decodes whatever the driver calls a GPU
            self._failure = getattr(error, "value", pynvml.NVML_ERROR_UNKNOWN)
            self._troubles += self._failure not in _ABSENT
            self._cause = self.causes[function] = str(error)
            return None
        self._failure = pynvml.NVML_SUCCESS
        self._answers += 1
        self.causes.pop(function, None)
        return answer

    def gpus(self) -> list[GpuInfo]:
        """Returns the GPUs that NVML knows, in its order; one that does not answer is left out."""
        if not self.available:
            return []
        driver = self.call("nvmlSystemGetDriverVersion") or ""
        found = []
        for index in range(self.call("nvmlDeviceGetCount") or 0):
            handle = self.call("nvmlDeviceGetHandleByIndex", index)
            uuid = None if handle is None else self.call("nvmlDeviceGetUUID", handle)
            if uuid is None:
                continue
            memory = self._memory(handle)
            total = math.nan if memory is None else float(memory.total)
            name = self.call("nvmlDeviceGetName", handle) or "NVIDIA GPU"
            milliwatts = self.call("nvmlDeviceGetEnforcedPowerLimit", handle)
            limit = math.nan if milliwatts is None else milliwatts / 1e3
            found.append(GpuInfo(index, name, uuid, total, driver, limit))
        return found

    def read(self, gpu: str | int, pids: Collection[int]) -> dict[str, float]:
        """Returns the present figures of a GPU, named by UUID or by NVML's index; `pids` are the job's processes.

        NaN for a figure that cannot be read. All are NaN while the GPU is lost; `lost` then says why.
        """
        nothing = dict.fromkeys(GPU_FIELDS, math.nan)
        if not self.available:
            return nothing
        device = self._devices.setdefault(gpu, _Device())
        now = self._clock()
        if gpu in self.lost and 0 <= now - device.asked_s < RETRY_S:
            return nothing
        answers, troubles = self._answers, self._troubles
        values = self._read(gpu, device, pids, now)
        # "Unknown error" from one function is that function's; from all of them it is how a GPU in trouble looks.
        silent = self._answers == answers and self._troubles > troubles
        if values is None or silent:
            self.lost[gpu] = self._cause
            device.asked_s, device.pcie_s = now, -math.inf
            return nothing
        self.lost.pop(gpu, None)
        return nothing | values

    def processes(self, gpu: str | int) -> dict[int, float]:
        """Returns the processes that compute on a GPU that was read before, and their device memory, NaN if unknown."""
        device = self._devices.get(gpu)
        if device is None or device.handle is None or gpu in self.lost:
            return {}
        listed = self.call("nvmlDeviceGetComputeRunningProcesses", device.handle) or []
        sizes = {process.pid: process.usedGpuMemory for process in listed}
        return {pid: math.nan if size is None else float(size) for pid, size in sizes.items()}

    def _read(self, gpu: str | int, device: _Device, pids: Collection[int], now: float) -> dict[str, float] | None:
        """Returns the figures, or None as soon as the GPU says that it is lost: a further call could block."""
        if device.handle is None:
            by = "nvmlDeviceGetHandleByIndex" if isinstance(gpu, int) else "nvmlDeviceGetHandleByUUID"
            device.handle = self.call(by, gpu)
            if device.handle is None:
                return None
        values = {}
        for name, (function, args, convert) in _PLAIN.items():
            answer = self.call(function, device.handle, *args)
            if self._failure in _LOST:
                return None
            if answer is not None:
                values[name] = convert(answer)
        memory = self._memory(device.handle)
        if self._failure in _LOST:
            return None
        if memory is not None:
            values["gpu_mem_used_bytes"] = float(memory.used)
        values["gpu_mem_job_bytes"] = self._job_memory(device.handle, pids)
        if self._failure in _LOST:
            return None
        if not 0 <= now - device.pcie_s < PCIE_S:
            rate = self.call("nvmlDeviceGetPcieThroughput", device.handle, pynvml.NVML_PCIE_UTIL_RX_BYTES)
            device.pcie = math.nan if rate is None else rate * 1e3  # NVML's manual: "throughput in KB/s"
            device.pcie_s = now
        values["pcie_rx_bytes_per_s"] = device.pcie
        return None if self._failure in _LOST else values

    def _memory(self, handle: Any) -> Any:
        # Version 2 tells memory in use from what the driver keeps for itself, as nvidia-smi does; drivers before 510
        # know version 1 only.
        memory = self.call("nvmlDeviceGetMemoryInfo", handle, pynvml.nvmlMemory_v2)
        if memory is None and self._failure in _ABSENT:
            memory = self.call("nvmlDeviceGetMemoryInfo", handle)
        return memory

    def _job_memory(self, handle: Any, pids: Collection[int]) -> float:
        # None of our processes in the list: no CUDA context yet, or a container, where NVML may list nothing or pids
        # of the host. The two look alike, so the figure is unknown, not 0. No size for a process: Windows' WDDM.
        listed = self.call("nvmlDeviceGetComputeRunningProcesses", handle) or []
        sizes = [process.usedGpuMemory for process in listed if process.pid in pids]
        if not sizes or None in sizes:
            return math.nan
        return float(sum(sizes))


def list_gpus() -> list[GpuInfo]:
    """Returns the NVIDIA GPUs of this machine; none where NVML cannot say. Never raises."""
    with Nvml() as nvml:
        return nvml.gpus()
