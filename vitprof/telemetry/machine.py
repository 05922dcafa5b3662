"""What this machine does now, whichever program causes it: GPUs, CPU, memory, disk.

A page shows it while nothing runs. One reading serves everybody who looks, and is at most a second
old: two windows cost what one costs.
"""

import math
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from vitprof.telemetry.nvml import GpuInfo, Nvml
from vitprof.telemetry.processes import MachineCpu, Rate, disk_io_bytes

READ_EVERY_S = 1.0
"""Age (s) up to which a reading is used again."""
STALE_S = 5.0
"""Age (s) from which a reading is too old to compute current rates from."""


@dataclass(frozen=True)
class GpuProcess:
    """A process that computes on a GPU."""

    pid: int
    name: str
    """Its program's name; "" where it cannot be seen, such as in another container."""
    memory_bytes: float
    """Its device memory; NaN where it cannot be read."""


@dataclass(frozen=True)
class GpuNow:
    """A GPU at one moment. NaN where a figure cannot be read."""

    info: GpuInfo
    util_pct: float
    """NVML's utilisation: share of the past 1/6 to 1 s in which any kernel ran."""
    memory_bytes: float
    """Device memory in use, by all processes."""
    power_w: float
    temp_c: float
    processes: tuple[GpuProcess, ...]
    lost: str
    """Why it does not answer; "" if it does."""


@dataclass(frozen=True)
class MachineNow:
    """The machine at one moment.

    NaN where a figure cannot be read, or has no earlier reading to compare with.
    """

    gpus: tuple[GpuNow, ...]
    cores: int
    cpu_pct: float
    """CPU use since the last reading, 100 = all cores busy."""
    load: float
    """Load average of the past minute: the mean number of processes that run or are ready to."""
    memory_bytes: float
    """Memory in use: the total less what is available to programs."""
    memory_total_bytes: float
    read_bytes_per_s: float
    """Bytes read from all disks, since the last reading."""
    written_bytes_per_s: float
    """Bytes written to all disks, since the last reading."""
    disk_bytes: float
    """Bytes in use on the file system where vitprof keeps its files."""
    disk_total_bytes: float


class MachineWatch:
    """Readings of the machine, at most one a second.

    Several threads may use it; `close` it in the end.
    """

    def __init__(self, where: Path, *, clock: Callable[[], float] = time.perf_counter) -> None:
        """`where` is on the file system whose use is read. NVML is opened with the first reading."""
        self._where = where
        self._clock = clock
        self._lock = threading.Lock()
        self._nvml: Nvml | None = None
        self._gpus: list[GpuInfo] = []
        self._read_s = -math.inf
        self._last: MachineNow | None = None
        self._start_anew()

    def _start_anew(self) -> None:
        """Forgets the last reading, so that the next rates do not cover the time since then."""
        self._cpu = MachineCpu()
        self._reads = Rate()
        self._writes = Rate()

    def read(self) -> MachineNow:
        """Returns the state of the machine now, or less than `READ_EVERY_S` ago."""
        with self._lock:
            now = self._clock()
            if self._last is None or not 0 <= now - self._read_s < READ_EVERY_S:
                if not 0 <= now - self._read_s < STALE_S:
                    self._start_anew()
                self._last = self._read(now)
                self._read_s = now
            return self._last

    def close(self) -> None:
        """Ends the session with NVML. May be called again."""
        with self._lock:
            if self._nvml is not None:
                self._nvml.close()
                self._nvml = None

    def _read(self, now: float) -> MachineNow:
        memory = psutil.virtual_memory()
        n_read, n_written = disk_io_bytes()
        used, total = _room(self._where)
        return MachineNow(
            gpus=tuple(self._read_gpus()),
            cores=psutil.cpu_count() or 1,
            cpu_pct=self._cpu(),
            load=psutil.getloadavg()[0],
            memory_bytes=float(memory.total - memory.available),
            memory_total_bytes=float(memory.total),
            read_bytes_per_s=self._reads(now, n_read),
            written_bytes_per_s=self._writes(now, n_written),
            disk_bytes=used,
            disk_total_bytes=total,
        )

    def _read_gpus(self) -> list[GpuNow]:
        if self._nvml is None:
            self._nvml = Nvml()
            self._gpus = self._nvml.gpus()
        gpus = []
        for gpu in self._gpus:
            now = self._nvml.read(gpu.uuid, ())
            listed = self._nvml.processes(gpu.uuid)
            processes = tuple(GpuProcess(pid, _name(pid), listed[pid]) for pid in sorted(listed))
            gpus.append(
                GpuNow(
                    info=gpu,
                    util_pct=now["gpu_util_pct"],
                    memory_bytes=now["gpu_mem_used_bytes"],
                    power_w=now["gpu_power_w"],
                    temp_c=now["gpu_temp_c"],
                    processes=processes,
                    lost=self._nvml.lost.get(gpu.uuid, ""),
                )
            )
        return gpus


def _name(pid: int) -> str:
    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return ""


def _room(where: Path) -> tuple[float, float]:
    """Returns the bytes in use and in all of the file system; NaN where it does not answer."""
    # The folder may not exist yet.
    there = next((path for path in (where, *where.parents) if path.exists()), None)
    try:
        usage = shutil.disk_usage(there or where)
    except OSError:
        return math.nan, math.nan
    return float(usage.total - usage.free), float(usage.total)
