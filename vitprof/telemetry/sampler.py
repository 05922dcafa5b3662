"""The telemetry thread: gives a sink one row of figures at a fixed rate, and finds when the job
could not run.

A loop that waits for a drive or a network uses no CPU either, but its process is not stopped, and a
sampler outside it goes on meanwhile. So a stop is found by one of three signs: the state that the
system reports for a process; a gap between samples in which the job used no CPU; and the clock that
goes on while the machine sleeps.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from vitprof.recording.columns import TELEMETRY_COLUMNS, Stop, StopKind
from vitprof.telemetry.energy import EnergyMeter
from vitprof.telemetry.memory import shared_memory
from vitprof.telemetry.nvml import GPU_FIELDS, GpuInfo, Nvml
from vitprof.telemetry.other_programs import OtherPrograms
from vitprof.telemetry.processes import (
    CpuPressure,
    MachineCpu,
    ProcessTree,
    Rate,
    RunQueue,
    disk_io_bytes,
)
from vitprof.telemetry.worker_figures import Workers

MIN_GAP_S = 1.0
"""How late (s) a sample must come to count as a gap.

On a busy machine a thread waits about 10 ms for a core; garbage collection, and pages drawn in the
same process, delay it by up to 0.3 s."""
MIN_ASLEEP_S = 0.5
"""How far (s) the two clocks must move apart: they are read one after the other, microseconds
apart."""
IDLE_PCT = 10.0
"""CPU use over a gap, 100 = one core, up to which the job counts as not running, beyond what it
used before."""


def asleep_s() -> float:
    """Returns how long (s) this machine has slept since it started; NaN where the system does not
    report it.

    On Linux, CLOCK_BOOTTIME counts that time and CLOCK_MONOTONIC does not (clock_gettime(2)).
    """
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return math.nan
    with_sleep = time.clock_gettime(time.CLOCK_BOOTTIME)
    without_sleep = time.clock_gettime(time.CLOCK_MONOTONIC)
    return max(0.0, with_sleep - without_sleep)


@dataclass(frozen=True)
class Standstill:
    """A process that is stopped, by the samples that saw it."""

    before_s: float
    """When the last sample was before it was stopped; NaN where there is none."""
    since_s: float
    until_s: float
    """When the first and the last sample was at which it was."""
    kin: tuple[int, ...]
    """Its id, and those of its parent, of the parent's, and so on: they may be gone as it goes on."""


class StopSeeker:
    """A detector that looks at a job's processes with every sample, and keeps the stops that are
    over.
    """

    def __init__(self, pid: int, period_s: float, rank: int = 0) -> None:
        """`pid` is the process that trains, as this `rank`; `period_s` is the time between samples."""
        self._pid = pid
        self._period_s = period_s
        self._ranks = {pid: rank}
        """The processes that train, and their ranks."""
        self._rank = rank
        self.stops: list[Stop] = []
        self._ran: set[int] = set()
        """Processes that were seen running: one that was stopped from the start is not a worker of
        the job."""
        self._stopped: dict[int, Standstill] = {}
        """The processes that are stopped, by their ids."""
        self._last_s = math.nan
        self.sampled_s = math.nan
        """When the last sample ended: the next one is due a period after this, at the latest."""
        self._asleep_s = math.nan
        self._cpu_pct = 0.0

    def add_rank(self, pid: int, rank: int) -> None:
        """Notes another process that trains. May be called in any thread."""
        # a new dict: the telemetry's thread may go through the old one
        self._ranks = {**self._ranks, pid: rank}

    def sample(
        self,
        now: float,
        pids: Set[int],
        stopped: Set[int],
        cpu_pct: float,
        asleep: float,
        parents: Mapping[int, int] | None = None,
    ) -> None:
        """Takes a sample at time `now`.

        `pids` and `stopped` are the ids of all processes and of the stopped ones, `cpu_pct` the CPU
        use of all since the last sample (100 = one core), and `asleep` the value of `asleep_s()`.
        `parents`: the parent of each process.
        """
        # NaN at the first sample, as what follows from it: no comparison with it holds.
        gap_s = now - self.sampled_s
        before_pct = self._cpu_pct
        self._cpu_pct = 0.0 if math.isnan(cpu_pct) else cpu_pct
        if gap_s > self._period_s + MIN_GAP_S:
            # Before it was paused, the job may have worked for a period of the gap.
            allowed_pct = IDLE_PCT + before_pct * self._period_s / gap_s
            if cpu_pct <= allowed_pct:
                since = self.sampled_s + self._period_s
                self.stops.append(Stop("paused", since, now, now - since))
        slept_s = asleep - self._asleep_s
        self._asleep_s = asleep
        if slept_s > MIN_ASLEEP_S:
            self.stops.append(Stop("asleep", self.sampled_s, now, slept_s))
        for pid in stopped & (self._ran | set(self._ranks)):
            seen = self._stopped.get(pid)
            if seen is None:
                seen = Standstill(self._last_s, now, now, _kin(pid, parents or {}))
            self._stopped[pid] = replace(seen, until_s=now)
        over = {pid: seen for pid, seen in self._stopped.items() if pid not in stopped}
        # the process whose steps these are first: what stopped with it needs no line of its own
        for pid, seen in sorted(over.items(), key=lambda each: (each[0] != self._pid, each[0])):
            del self._stopped[pid]
            self.stops.append(self._stop(seen, now))
        self._ran = (self._ran & pids) | (pids - stopped)
        self._last_s = now

    def _stop(self, seen: Standstill, now: float) -> Stop:
        """Returns the stop of a process that goes on at `now`, or has ended by then."""
        earliest_s = seen.since_s if math.isnan(seen.before_s) else seen.before_s
        # It was stopped for so long at least, and at most.
        shortest_s = seen.until_s - seen.since_s
        longest_s = now - earliest_s
        pid, *_ = seen.kin
        # A rank may have been stopped before it was known as one.
        kind: StopKind = "stopped" if pid in self._ranks else "worker"
        rank = next((self._ranks[each] for each in seen.kin if each in self._ranks), self._rank)
        other_rank = None if rank == self._rank else rank
        took_s = (shortest_s + longest_s) / 2
        return Stop(kind, seen.since_s, seen.until_s, took_s, other_rank)


def _kin(pid: int, parents: Mapping[int, int]) -> tuple[int, ...]:
    """Returns the ids of a process and of those that it comes from, as far as they are known."""
    kin = [pid]
    parent = parents.get(pid)
    while parent is not None and parent not in kin:
        kin.append(parent)
        parent = parents.get(parent)
    return tuple(kin)


JOIN_S = 10.0
"""How long (s) `stop` waits for the thread.

Only a driver that hangs in a call takes longer than one sample."""

NO_FIGURES = "{}: GPU-util, GPU memory, power and temperature are not available. The run can still use its GPU; {}"
TO_HAVE_THEM = "in a container, set NVIDIA_DRIVER_CAPABILITIES=compute,utility to have them"
ONLY_NVIDIAS = "NVML has figures of NVIDIA's GPUs only"
NOT_NVIDIAS = (
    f"{ONLY_NVIDIAS}: GPU-util, GPU memory, power and temperature of this one are not available"
)

TelemetryRow = tuple[float, ...]
Sink = Callable[[list[TelemetryRow]], None]


class Telemetry:
    """A thread that samples GPU, CPU, memory and disk for a job until `stop`, or the main thread's
    end.
    """

    def __init__(
        self,
        *,
        pid: int,
        trains: int | None = None,
        rank: int = 0,
        device: str,
        gpu_uuid: str | None = None,
        nvidia: bool = True,
        hz: float = 5.0,
        sink: Sink,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`pid` is the job's process; `trains` is the process in its tree that trains, if that is
        another, as this `rank`.

        `device` is `cpu`, `cuda:N` or `simulated:...`; `gpu_uuid` identifies the GPU, as N may mean
        another one to NVML. `nvidia` is False for a `cuda:N` that is another maker's (ROCm): NVML is
        not asked then, as it might have an NVIDIA card of that number. `hz` is the number of rows a
        second. `clock` stamps the rows.
        """
        self.notices: list[str] = []
        """What the user should know about these figures, one line each, without repeats."""
        self.gauges: dict[str, float] = {}
        """Columns that only the job itself knows; the owner of the telemetry sets them."""
        self.facts: dict[str, Any] = {}
        """What NVML reports about the job's GPU, once it was looked for, and the other programs that use the CPU, as
        in `recording.Environment`."""
        self.error: Exception | None = None
        """What ended the sampling early, if anything did: the sink's exception."""
        self._device = device
        self._gpu_uuid = gpu_uuid
        self._nvidia = nvidia
        self._period_s = 1.0 / hz
        self._sink = sink
        self._clock = clock
        self._nvml: Nvml | None = None
        self._gpu: str | None = None
        self._other_gpus: tuple[str, ...] = ()
        """The GPUs of the job's other ranks on this machine."""
        self._energy = EnergyMeter()
        self._had: set[str] = set()
        """Fields that had a figure at least once: what is missing now and then is not named."""
        self._sought = False
        self._began_s = math.nan
        self._tree = ProcessTree(pid)
        if trains is None:
            trains = pid
        self._trains = trains
        self._seeker = StopSeeker(self._trains, self._period_s, rank)
        self.add_rank = self._seeker.add_rank
        self.stops = self._seeker.stops
        """Times in which the job could not run, once they are over."""
        self._workers = Workers()
        self.follow_workers = self._workers.follow
        self._run_queue = RunQueue()
        self._other_programs = OtherPrograms()
        self._pressure = CpuPressure()
        self._machine_cpu = MachineCpu()
        self._disk_rate = Rate()
        self._stop = threading.Event()
        # It is no daemon: `stop` it. It also ends by itself, see `_run`.
        self._thread = threading.Thread(
            target=self._run, name=f"vitprof-telemetry-{pid}", daemon=False
        )

    def start(self) -> None:
        """Begins sampling; the first row comes at once. Can be called only once."""
        self._thread.start()

    def add_gpu(self, uuid: str) -> None:
        """Adds the GPU of another rank of the job, whose energy counts too. May be called in any thread."""
        if self._nvidia and uuid not in self._other_gpus:
            # a new tuple: the telemetry's thread may go through the old one
            self._other_gpus = (*self._other_gpus, uuid)

    def stop(self) -> None:
        """Ends the thread and waits for it. May be called again, and without `start`."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(JOIN_S)
            if self._thread.is_alive():
                self._notice(
                    f"telemetry did not end within {JOIN_S:g} s: the GPU's driver does not answer"
                )
                return
        if self._nvml is not None:
            self._nvml.close()

    def sample(self) -> TelemetryRow:
        """Returns one row, in the order of `TELEMETRY_COLUMNS`.

        Figures since the last row are NaN in the first.
        """
        now = self._clock()
        if math.isnan(self._began_s):
            self._began_s = now
        row = dict.fromkeys(TELEMETRY_COLUMNS, math.nan)
        row["t_s"] = now
        row["cpu_pct"] = self._machine_cpu()
        row["job_cpu_pct"], row["job_rss_bytes"] = self._tree.sample(now)
        self._seeker.sample(
            now,
            self._tree.pids,
            self._tree.stopped,
            row["job_cpu_pct"],
            asleep_s(),
            self._tree.parents,
        )
        waits = self._run_queue.sample(now, self._tree.pids, self._trains)
        row["job_cpu_wait_pct"], row["workers_cpu_wait_pct"] = waits
        row["cpu_pressure_pct"] = self._pressure.sample(now)
        row["disk_read_bytes_per_s"] = self._disk_rate(now, disk_io_bytes()[0])
        row["shm_used_bytes"], row["shm_free_bytes"] = shared_memory()
        row.update(self._workers.sample(now, self._tree.figures)._asdict())
        programs = self._other_programs.sample(now, self._tree.pids)
        if programs is not None:
            self.facts = self.facts | {"other_programs": programs}
        # Last: NVML may block for 20 ms.
        row.update(self._read_gpu(now))
        row.update(self.gauges)
        return tuple(row.values())

    def _read_gpu(self, now: float) -> dict[str, float]:
        # Here and not in __init__: starting NVML can take a second.
        if not self._sought:
            self._sought = True
            self._gpu = self._find_gpu()
        if self._gpu is None or self._nvml is None:
            return {}
        figures = self._nvml.read(self._gpu, self._tree.pids)
        cause = self._nvml.lost.get(self._gpu)
        if cause is not None and not any(notice.startswith("GPU lost") for notice in self.notices):
            self._notice(
                f"GPU lost at {now - self._began_s:.1f} s: {self._gpu} does not answer ({cause}); "
                "its figures are not available while that lasts"
            )
        readings = {self._gpu: figures["gpu_energy_j"]}
        for uuid in self._other_gpus:
            if uuid not in readings:
                readings[uuid] = self._nvml.energy_j(uuid)
        used = self._energy.total(readings)
        figures |= {"gpu_energy_j": used.joules, "energy_gpus": used.n_gpus}
        self._had |= {name for name, value in figures.items() if not math.isnan(value)}
        reasons = self._nvml.why_not.get(self._gpu, {})
        missing = {name: reason for name, reason in reasons.items() if name not in self._had}
        self.facts = self.facts | {
            "gpu_not_available": reasons_in_words(missing),
            "sm_activity_not_available": missing.get("gpu_sm_active_pct"),
        }
        return figures

    def _find_gpu(self) -> str | None:
        """Returns the UUID of the job's GPU; None for the CPU, and, with a notice, where it is not
        listed.
        """
        if not self._device.startswith("cuda"):
            return None
        if not self._nvidia:
            self._notice(NOT_NVIDIAS)
            self.facts = self.facts | {"sm_activity_not_available": ONLY_NVIDIAS}
            return None
        self._nvml = Nvml(clock=self._clock)
        reason = f"{self._nvml.reason} ({self._nvml.detail})"
        if self._nvml.available:
            gpu = choose_gpu(self._nvml.gpus(), self._gpu_uuid)
            if gpu is not None:
                limit = gpu.power_limit_w
                self.facts = self.facts | {
                    "driver_version": gpu.driver,
                    "gpu_power_limit_w": limit if limit > 0 else None,
                }
                return gpu.uuid
            known = self._gpu_uuid or "its UUID is not known"
            reason = f"NVML does not list the GPU of this run ({self._device}, {known})"
        self._notice(NO_FIGURES.format(reason, TO_HAVE_THEM))
        self.facts = self.facts | {"sm_activity_not_available": reason}
        return None

    def _notice(self, line: str) -> None:
        if line not in self.notices:
            self.notices.append(line)

    def _run(self) -> None:
        # When Python exits, it waits for this thread before any exit handler could call stop().
        main = threading.main_thread()
        due = time.perf_counter()
        try:
            while main.is_alive():
                self._sink([self.sample()])
                self._seeker.sampled_s = self._clock()
                now = time.perf_counter()
                due = next_due(due, now, self._period_s)
                if self._stop.wait(due - now):
                    return
        except Exception as error:
            # The thread has nobody to raise it to: the owner looks at `error`.
            self.error = error


def next_due(due: float, now: float, period: float) -> float:
    """Returns when to sample next: the first time after `now` among `due` + n * `period`, n > 0.

    Skips missed ones.
    """
    return due + period * max(1, math.floor((now - due) / period) + 1)


def choose_gpu(gpus: Sequence[GpuInfo], uuid: str | None) -> GpuInfo | None:
    """Returns the GPU, or slice of one, that `uuid` names, with or without its prefix `GPU-` or
    `MIG-`.

    Without a UUID it is the only GPU: of several, CUDA's and NVML's numbers can differ. None if
    there is none.
    """
    if not uuid:
        return gpus[0] if len(gpus) == 1 else None
    wanted = uuid.lower()
    for gpu in gpus:
        whole = gpu.uuid.lower()
        if wanted in (whole, whole.partition("-")[2]):
            return gpu
    return None


def reasons_in_words(missing: Mapping[str, str]) -> str | None:
    """Returns the fields without figures and their reasons, such as "PCIe, power (NVML: Not
    Supported)".

    `missing` is field -> reason. Returns None if all have figures.
    """
    labels: dict[str, list[str]] = {}
    for name, label in GPU_FIELDS.items():
        if name in missing:
            labels.setdefault(missing[name], []).append(label)
    return "; ".join(f"{', '.join(same)} ({reason})" for reason, same in labels.items()) or None
