"""NVML, NVIDIA's management library, made safe to call: figures that it does not have are NaN, and
nothing raises.

Every pynvml call passes through `Nvml.call` (nvitop's idea). One place handles missing libraries,
old drivers, figures that a GPU does not have, and GPUs that fall off the bus in the middle of a
run.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pynvml

BETWEEN_S = 0.1
"""Least time (s) between two samples of the counters: "should be greater than 100ms due to the
internal sample refresh rate" (NVML's reference, nvmlGpmMetricsGet). A read before that returns the
last figures again."""
NEEDS_HOPPER = "this GPU has no GPM counters; Hopper and later have them"
METRICS: dict[str, str] = {
    "gpu_sm_active_pct": "NVML_GPM_METRIC_SM_UTIL",
    "gpu_sm_occupancy_pct": "NVML_GPM_METRIC_SM_OCCUPANCY",
}
"""Field of a telemetry sample -> NVML's metric: "percentage of SMs that were busy", "percentage of
warps that were active vs theoretical maximum"."""
Call = Callable[..., Any]
"""Calls a function of pynvml by its name, with its arguments; returns None where it has no answer
(`Nvml.call`)."""


@dataclass(frozen=True)
class GpuInfo:
    """The constant properties of a GPU, or of a slice of one in MIG mode."""

    index: int
    """NVML's number of the GPU: its order on the PCI bus.

    CUDA's order may differ. For a slice, its GPU's number."""
    name: str
    uuid: str
    """`GPU-...`, for a slice `MIG-...`; the one name that means the same to NVML, CUDA and
    torch."""
    memory_bytes: float
    """Device memory in all; NaN where it cannot be read."""
    driver: str
    """Version of the driver; empty where it cannot be read."""
    power_limit_w: float = math.nan
    """The GPU's power limit, as set now; NaN where it cannot be read.

    For a slice, its GPU's limit."""
    slice_of: str = ""
    """UUID of the GPU that this is a slice of; empty for a GPU."""


def cards(call: Call) -> Iterator[GpuInfo]:
    """Yields the GPUs in NVML's order, each followed by its slices; leaves out those that do not
    answer.
    """
    driver = driver_version(call)
    for index in range(call("nvmlDeviceGetCount") or 0):
        handle = call("nvmlDeviceGetHandleByIndex", index)
        if handle is None:
            continue
        gpu = _info(call, index, handle, driver)
        if gpu is None:
            continue
        yield gpu
        for part in _slices(call, handle):
            info = _info(call, index, part, driver)
            if info is not None:
                yield replace(info, slice_of=gpu.uuid, power_limit_w=gpu.power_limit_w)


def _slices(call: Call, handle: Any) -> Iterator[Any]:
    # Of two modes, the current one and that after the next reset.
    mode = call("nvmlDeviceGetMigMode", handle)
    if mode is not None and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE:
        for place in range(call("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            part = call("nvmlDeviceGetMigDeviceHandleByIndex", handle, place)
            if part is not None:
                yield part


def _info(call: Call, index: int, handle: Any, driver: str) -> GpuInfo | None:
    uuid = call("nvmlDeviceGetUUID", handle)
    if uuid is None:
        return None
    total = math.nan
    memory = memory_of(call, handle)
    if memory is not None:
        total = float(memory.total)
    name = call("nvmlDeviceGetName", handle) or "NVIDIA GPU"
    limit_w = math.nan
    milliwatts = call("nvmlDeviceGetEnforcedPowerLimit", handle)
    if milliwatts is not None:
        limit_w = milliwatts / 1e3
    return GpuInfo(index, name, uuid, total, driver, limit_w)


def driver_version(call: Call) -> str:
    """Returns the version of the driver, such as 580.65.06; empty where it cannot be read."""
    return call("nvmlSystemGetDriverVersion") or ""


def free_bytes(call: Call, uuid: str) -> float:
    """Returns the free device memory of a GPU or a slice, in bytes; NaN where it cannot be read."""
    handle = call("nvmlDeviceGetHandleByUUID", uuid)
    if handle is None:
        return math.nan
    memory = memory_of(call, handle)
    if memory is None:
        return math.nan
    return float(memory.free)


def memory_of(call: Call, handle: Any) -> Any:
    """Returns NVML's figures for the device memory (version 1 from drivers before 510); None where
    it has none.
    """
    # The old package pynvml lacks it.
    version_2 = getattr(pynvml, "nvmlMemory_v2", None)
    if version_2 is not None:
        memory = call("nvmlDeviceGetMemoryInfo", handle, version_2)
        if memory is not None:
            return memory
    return call("nvmlDeviceGetMemoryInfo", handle)


class Gpm:
    """The counters of one GPU, or of one slice of it, from one reading to the next.

    `close` frees their memory.
    """

    def __init__(
        self, ask: Callable[..., Any], causes: dict[str, str], card: Any, instance: int | None
    ) -> None:
        """`ask` and `causes` are those of `Nvml`; `card` is the GPU's handle.

        `instance` is the GPU instance of a slice in MIG mode, else None.
        """
        self._ask = ask
        self._causes = causes
        self._card = card
        self._instance = instance
        self._values: dict[str, float] = {}
        self._since_s = math.nan
        self._before: Any = None
        self._samples: list[Any] = []
        self.why_not = ""
        """Why the last reading had no figures, for people; "" where it had some, and after the
        first reading."""
        support = self._answer("nvmlGpmQueryDeviceSupport", card)
        if support is not None and not support.isSupportedDevice:
            self.why_not = NEEDS_HOPPER
        self._works = not self.why_not

    def read(self, now: float) -> dict[str, float]:
        """Returns the figures for the time since the last reading, in percent, without those not
        available.

        `now` is in seconds.
        """
        if not self._works or 0 <= now - self._since_s <= BETWEEN_S:
            return self._values
        self.why_not = ""
        self._values = {}
        sample = self._sample()
        if sample is not None and self._before is not None:
            self._values = self._metrics(self._before, sample)
        self._before = sample
        self._since_s = now
        return self._values

    def start_anew(self) -> None:
        """Forgets the last reading, so that the next figures do not cover the time since then."""
        self._before = None
        self._since_s = math.nan
        self._values = {}

    def close(self) -> None:
        """Frees the memory of the samples. May be called again."""
        while self._samples:
            self._ask("nvmlGpmSampleFree", self._samples.pop())

    def _sample(self) -> Any:
        """Returns the counters as they are now, in the one of the two samples that does not hold
        the last reading.
        """
        while len(self._samples) < 2:
            sample = self._answer("nvmlGpmSampleAlloc")
            if sample is None:
                return None
            self._samples.append(sample)
        first, second = self._samples
        free = second if self._before is first else first
        if self._instance is None:
            got = self._answer("nvmlGpmSampleGet", self._card, free)
        else:
            got = self._answer("nvmlGpmMigSampleGet", self._card, self._instance, free)
        if got is None:
            return None
        return free

    def _metrics(self, before: Any, after: Any) -> dict[str, float]:
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(METRICS)
        request.sample1 = before
        request.sample2 = after
        for place, metric in enumerate(METRICS.values()):
            request.metrics[place].metricId = getattr(pynvml, metric)
        if self._answer("nvmlGpmMetricsGet", request) is None:
            return {}
        values = {}
        for place, name in enumerate(METRICS):
            metric = request.metrics[place]
            if metric.nvmlReturn != pynvml.NVML_SUCCESS:
                self.why_not = f"NVML: {pynvml.NVMLError(metric.nvmlReturn)}"
            elif math.isfinite(metric.value):
                values[name] = float(metric.value)
        return values

    def _answer(self, function: str, *args: Any) -> Any:
        """Returns what NVML answers; None with `why_not` set where it does not."""
        answer = self._ask(function, *args)
        if answer is None:
            self.why_not = f"NVML: {self._causes.get(function, 'no answer')}"
        return answer


NO_GPU_MESSAGE = "NVML finds no NVIDIA GPU here"
NO_NVML_MESSAGE = "NVML does not start"
RETRY_S = 5.0
"""How often (s) to try a lost GPU again: every call to one can take long, and it seldom comes
back."""
NO_PROCESS = "NVML lists none of the job's processes; in a container it may not see them"
PCIE_S = 1.0
"""Age (s) up to which a PCIe figure is used again: NVML counts for 20 ms for each, and blocks the
caller meanwhile."""
GPU_FIELDS: dict[str, str] = {
    "gpu_util_pct": "GPU-util",
    "gpu_mem_used_bytes": "GPU memory in use",
    "gpu_mem_job_bytes": "GPU memory of the job",
    "gpu_power_w": "power",
    "gpu_energy_j": "energy",
    "gpu_sm_clock_mhz": "clock",
    "gpu_temp_c": "temperature",
    "pcie_rx_bytes_per_s": "PCIe",
    "gpu_sm_active_pct": "SM activity",
    "gpu_sm_occupancy_pct": "SM occupancy",
}
"""The fields of a telemetry sample that come from NVML, in the order of the record, with their
names for people."""

# Fields that take one answer: how to get it from a handle, its conversion to the field's unit, and
# whether to ask the whole card where the job has a slice of one (MIG).
_PLAIN: dict[str, tuple[Callable[[Call, Any], Any], Callable[[Any], float], bool]] = {
    "gpu_util_pct": (
        lambda ask, gpu: ask("nvmlDeviceGetUtilizationRates", gpu),
        lambda rates: float(rates.gpu),
        False,
    ),
    "gpu_power_w": (
        lambda ask, gpu: ask("nvmlDeviceGetPowerUsage", gpu),
        lambda milliwatts: milliwatts / 1e3,
        True,
    ),
    # A slice shares its card's counter with other jobs: it has none of its own.
    "gpu_energy_j": (
        lambda ask, gpu: ask("nvmlDeviceGetTotalEnergyConsumption", gpu),
        lambda millijoules: millijoules / 1e3,
        False,
    ),
    "gpu_sm_clock_mhz": (
        lambda ask, gpu: ask("nvmlDeviceGetClockInfo", gpu, pynvml.NVML_CLOCK_SM),
        float,
        True,
    ),
    "gpu_temp_c": (
        lambda ask, gpu: ask("nvmlDeviceGetTemperature", gpu, pynvml.NVML_TEMPERATURE_GPU),
        float,
        True,
    ),
    "gpu_mem_used_bytes": (memory_of, lambda memory: float(memory.used), False),
}

_NO_GPU = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
_ABSENT = (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_NOT_SUPPORTED)
_LOST = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED)


class _LostError(Exception):
    """Raised where the GPU no longer answers: a further call could block."""


@dataclass
class _Device:
    """What is remembered of a GPU between reads."""

    handle: Any = None
    card: Any = None
    """The handle again; for a slice, that of its GPU."""
    gpm: Gpm | None = None
    tried_s: float = math.nan
    """When a lost GPU was last tried."""
    pcie: float = math.nan
    pcie_s: float = -math.inf
    processes: dict[int, float] = field(default_factory=dict)


class Nvml:
    """A session with NVML. For one thread at a time; several sessions in a process do not disturb
    each other.
    """

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._devices: dict[str, _Device] = {}
        self._failure: int = pynvml.NVML_SUCCESS
        self._cause = ""
        self._answers = self._troubles = 0
        self.causes: dict[str, str] = {}
        """Function -> why its last call had no answer; functions that answered are not in it."""
        self.lost: dict[str, str] = {}
        """GPU as named to `read` -> why it has no figures at present.

        It is tried again every `RETRY_S`."""
        self.why_not: dict[str, dict[str, str]] = {}
        """GPU as named to `read` -> field -> why its last reading lacks the field, in words for
        people."""
        self.reason = self.detail = ""
        """Why NVML does not run or lists no GPU, in one line for people; and NVML's own message."""
        self.call("nvmlInit")
        self._open = self._failure == pynvml.NVML_SUCCESS
        if not self._open:
            self.reason = NO_NVML_MESSAGE
            if self._failure in _NO_GPU:
                self.reason = NO_GPU_MESSAGE
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
        for device in self._devices.values():
            if device.gpm is not None:
                with contextlib.suppress(_LostError):
                    device.gpm.close()
        self._devices.clear()
        if self._open:
            self._open = False
            self.call("nvmlShutdown")
        self.available = False

    def call(self, function: str, *args: Any) -> Any:
        """Returns the result of pynvml's `function`; None if it has no answer, and `causes` then
        says why.
        """
        try:
            if not hasattr(pynvml, function):
                raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
            # The old package pynvml, a folder, takes and returns bytes.
            if hasattr(pynvml, "__path__"):
                args = tuple(arg.encode() if isinstance(arg, str) else arg for arg in args)
            answer = getattr(pynvml, function)(*args)
            if isinstance(answer, bytes):
                # A GPU's name need not be UTF-8.
                answer = answer.decode()
        except (pynvml.NVMLError, UnicodeDecodeError) as error:
            self._failure = getattr(error, "value", pynvml.NVML_ERROR_UNKNOWN)
            if self._failure not in _ABSENT:
                self._troubles += 1
            self._cause = self.causes[function] = str(error)
            return None
        self._failure = pynvml.NVML_SUCCESS
        self._answers += 1
        self.causes.pop(function, None)
        return answer

    def gpus(self) -> list[GpuInfo]:
        """Returns the GPUs that answer, in NVML's order, each followed by its slices."""
        if not self.available:
            return []
        return list(cards(self.call))

    def read(self, gpu: str, pids: Collection[int]) -> dict[str, float]:
        """Returns the current figures (`GPU_FIELDS`) of a GPU, named by its UUID.

        `pids` are the job's processes. A figure that cannot be read is NaN; `why_not` then says
        why. All are NaN while the GPU is lost, see `lost`.
        """
        nothing = dict.fromkeys(GPU_FIELDS, math.nan)
        if not self.available:
            return nothing
        device = self._devices.setdefault(gpu, _Device())
        now = self._clock()
        if gpu in self.lost and 0 <= now - device.tried_s < RETRY_S:
            return nothing
        answers = self._answers
        troubles = self._troubles
        try:
            values = self._read(gpu, device, pids, now)
        except _LostError:
            values = None
        # "Unknown error" from one function is a problem of that function; from all of them, it is
        # one of the GPU.
        silent = self._answers == answers and self._troubles > troubles
        if values is None or silent:
            self.lost[gpu] = self._cause
            device.tried_s = now
            device.pcie_s = -math.inf
            if device.gpm is not None:
                device.gpm.start_anew()
            return nothing
        self.lost.pop(gpu, None)
        return nothing | values

    def energy_j(self, gpu: str) -> float:
        """Returns what a GPU, named by its UUID, has used since its driver was loaded, in joules; NaN
        where that cannot be read.
        """
        handle = self.call("nvmlDeviceGetHandleByUUID", gpu)
        if handle is None:
            return math.nan
        millijoules = self.call("nvmlDeviceGetTotalEnergyConsumption", handle)
        return math.nan if millijoules is None else millijoules / 1e3

    def processes(self, gpu: str) -> dict[int, float]:
        """Returns the processes that compute on a GPU that was `read` before: id -> its bytes
        there, NaN if unknown.
        """
        if gpu in self.lost or gpu not in self._devices:
            return {}
        return self._devices[gpu].processes

    def _ask(self, function: str, *args: Any) -> Any:
        """Returns what `call` returns, for a GPU that is being read.

        Raises `_LostError` if the GPU is lost.
        """
        answer = self.call(function, *args)
        if self._failure in _LOST:
            raise _LostError
        return answer

    def _read(
        self, gpu: str, device: _Device, pids: Collection[int], now: float
    ) -> dict[str, float]:
        """Returns the figures. Raises `_LostError` as soon as the GPU says that it is lost."""
        if device.handle is None:
            self._find(gpu, device)
        values = {}
        reasons = {}
        for name, (get, convert, whole) in _PLAIN.items():
            answer = get(self._ask, device.card if whole else device.handle)
            if answer is None:
                reasons[name] = f"NVML: {self._cause}"
            else:
                values[name] = convert(answer)
        # None of the job's processes: no CUDA context yet, or a container, where NVML may list
        # nothing, or pids of the host. The two look alike, so the figure is unknown, not 0. A
        # process has no size under Windows' WDDM.
        listed = self._ask("nvmlDeviceGetComputeRunningProcesses", device.handle) or []
        sizes = [(each.pid, _size(each.usedGpuMemory)) for each in listed]
        device.processes = dict(sizes)
        of_job = [size for pid, size in sizes if pid in pids]
        if of_job and not math.isnan(sum(of_job)):
            values["gpu_mem_job_bytes"] = sum(of_job)
        else:
            reasons["gpu_mem_job_bytes"] = NO_PROCESS
        if not 0 <= now - device.pcie_s < PCIE_S:
            rate = self._ask(
                "nvmlDeviceGetPcieThroughput", device.card, pynvml.NVML_PCIE_UTIL_RX_BYTES
            )
            device.pcie = math.nan
            if rate is not None:
                # NVML's manual: "throughput in KB/s"
                device.pcie = rate * 1e3
            device.pcie_s = now
        values["pcie_rx_bytes_per_s"] = device.pcie
        if math.isnan(device.pcie):
            reasons["pcie_rx_bytes_per_s"] = (
                f"NVML: {self.causes.get('nvmlDeviceGetPcieThroughput', 'no answer')}"
            )
        if device.gpm is not None:
            values |= device.gpm.read(now)
            if device.gpm.why_not:
                missing = [name for name in METRICS if name not in values]
                reasons |= dict.fromkeys(missing, device.gpm.why_not)
        self.why_not[gpu] = reasons
        return values

    def _find(self, gpu: str, device: _Device) -> None:
        """Sets the handles of a GPU that is read for the first time.

        Raises `_LostError` where there is none.
        """
        handle = self._ask("nvmlDeviceGetHandleByUUID", gpu)
        if handle is None:
            raise _LostError
        card = handle
        instance = None
        if gpu.startswith("MIG-"):
            card = self._ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle) or handle
            instance = self._ask("nvmlDeviceGetGpuInstanceId", handle)
        device.gpm = Gpm(self._ask, self.causes, card, instance)
        device.handle = handle
        device.card = card


def _size(used: int | None) -> float:
    return math.nan if used is None else float(used)
