"""Devices behind one small protocol: launch work, mark a point in it, ask later when the device
passed that point.

A mark is cheap and never waits. On the CPU it is a reading of the clock. On CUDA it is an event
recorded in the current stream, resolved once the device has passed it. On a simulated device it is
the time at which the device will pass it. Nothing here synchronises inside a step: that would
destroy the overlap that prefetching is for.
"""

import math
import os
import platform
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from vitprof import __version__
from vitprof.config.accelerators import accelerator, is_simulated
from vitprof.config.gpu_findings import Finding
from vitprof.cores import job_cores, job_id, node_name, processor_name
from vitprof.errors import DeviceError, one_line

Clock = Callable[[], float]
Warn = Callable[[str], None]
"""Takes a line to show to the user."""
Mark = Any
"""What `Device.mark` returns: a time on the CPU and on a simulated device, a `cuda.CudaMark` on CUDA."""


def software() -> dict[str, Any]:
    """Returns the facts about this process's software and machine, as in `recording.Environment`."""
    return {
        "vitprof": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "platform": system(),
        "hostname": node_name(),
        "job_id": job_id(),
        "cpu_count": os.cpu_count(),
        "job_cpu_count": job_cores(),
    }


def system() -> str:
    """Returns the name of this system and its C library, as `platform.platform()` does.

    That starts `uname -p`, to know a processor that it then leaves out: a process of ours below a
    script, which may have a handler that waits for its own.
    """
    if sys.platform != "linux":
        return platform.platform()
    names = os.uname()
    library = "".join(platform.libc_ver())
    parts = [names.sysname, names.release, names.machine]
    if library:
        parts += ["with", library]
    return "-".join(parts)


def not_kept() -> float:
    """Returns NaN: the loss of a step that has none, or that was not copied."""
    return math.nan


class Pinning:
    """A source of host memory that is page-locked ("pinned") as long as the system allows it.

    For any thread.

    A GPU copies from it without the CPU. A system may refuse it because of a limit on locked
    memory, or for lack of RAM. A job then continues without it, and says so.
    """

    def __init__(self, *, wanted: bool, warn: Warn = lambda line: None) -> None:
        """`wanted` says whether there is a GPU to copy to; `warn` receives one line at the first
        refusal.
        """
        self.wanted = wanted
        self.refusal: Finding | None = None
        """Why the system refused it; None if it did not.

        After a refusal it is not requested again."""
        self._warn = warn

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Returns an uninitialised tensor, page-locked if that is wanted and not refused."""
        allocated = self._try(lambda: torch.empty(shape, dtype=dtype, pin_memory=True))
        if allocated is None:
            return torch.empty(shape, dtype=dtype)
        return allocated

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a page-locked copy of `tensor`, or `tensor` itself if that is not wanted or
        refused.
        """
        copy = self._try(tensor.pin_memory)
        return tensor if copy is None else copy

    def _try(self, allocate: Callable[[], torch.Tensor]) -> torch.Tensor | None:
        if not self.wanted or self.refusal:
            return None
        try:
            return allocate()
        except RuntimeError as error:
            slower = "batches are copied from pageable memory: slower, never during compute"
            todo = "allow more locked memory (ulimit -l unlimited; docker run --ulimit memlock=-1), or free RAM"
            wrong = f"the system refused it ({one_line(error)}); {slower}"
            self.refusal = Finding("note", "pinned memory", wrong, todo)
            self._warn(self.refusal.line)
            return None


class Stream(Protocol):
    """A queue of device work separate from the training stream."""

    def use(self) -> AbstractContextManager[Any]:
        """Returns a context: copies, marks and work inside it go to this stream."""

    def join(self, *tensors: torch.Tensor) -> None:
        """Makes the training stream wait for all work in this one so far; it will read `tensors`,
        made here.
        """


class Device(Protocol):
    """A device as training, transfers and recorders use it.

    Its kinds inherit what most of them have in common.
    """

    name: str
    """Its name in a config, but never "auto": "cpu", "cuda:0", "simulated:66,70"."""
    torch_device: torch.device
    """Where its tensors are. Those of a simulated device are in the host's memory."""
    immediate: bool
    """Whether work is done when the call that launched it returns: a mark is then a time, and
    reached at once."""
    simulated: bool = False
    """Whether it only takes the time that an accelerator would, and computes nothing."""
    pinning: Pinning
    """Gives the host memory that is copied to it."""
    gauges: Callable[[], dict[str, float]] | None = None
    """Reads columns of `TelemetrySample` from the device, in any thread.

    None where NVML or another source has them."""

    def mark(self) -> Mark:
        """Returns a point after all work launched so far."""

    def reached(self, mark: Mark) -> bool:
        """Returns True if the device has passed `mark`. Never waits."""

    def wait(self, mark: Mark) -> None:
        """Waits until the device has passed `mark`."""

    def seconds(self, mark: Mark) -> float:
        """Returns when the device passed `mark`, in seconds on the host's monotonic clock.

        Only after `reached`.
        """

    def release(self, *marks: Mark) -> None:
        """Takes back marks that are no longer needed, to be used again."""

    def gate(self, seconds: float) -> None:
        """Makes the device wait before what is launched next.

        Does nothing where it cannot, or work is done at once.
        """
        return

    def upload(self, tensor: torch.Tensor, *, non_blocking: bool = False) -> torch.Tensor:
        """Returns `tensor` on the device.

        A blocking copy begins after all work launched so far, and returns when it is done.
        """

    def stream(self) -> Stream | None:
        """Returns a new stream; None where nothing can overlap."""
        return None

    def keep(self, value: torch.Tensor, step: int) -> Callable[[], float]:
        """Starts to copy a step's loss to the host.

        Returns a function that gives it, once a later mark is reached; `not_kept` where the copy is
        not worth the time.
        """

    def synchronize(self) -> None:
        """Waits until all work launched so far is done."""

    def free_memory_bytes(self) -> float:
        """Returns the bytes on the device that new tensors could take; NaN where that is not known."""
        return math.nan

    def peak_memory(self) -> dict[str, float]:
        """Returns the peaks of PyTorch's allocator on the device since the job began.

        They are in bytes, named as in `RunSummary`; {} if it has no allocator there.
        """
        return {}

    def environment(self) -> dict[str, Any]:
        """Returns facts about the device for the run's record."""


class HostMemoryDevice(Device):
    """What devices have in common whose tensors are in the host's memory, and whose marks are
    times.
    """

    torch_device = torch.device("cpu")
    pinning = Pinning(wanted=False)

    def seconds(self, mark: float) -> float:
        return mark

    def release(self, *marks: float) -> None:
        return


class CpuDevice(HostMemoryDevice):
    """The CPU: work is done when the call returns, so a mark is the time."""

    name = "cpu"
    immediate = True

    def __init__(self, clock: Clock) -> None:
        self.mark: Callable[[], float] = clock

    def reached(self, mark: float) -> bool:
        return True

    def wait(self, mark: float) -> None:
        return

    def upload(self, tensor: torch.Tensor, *, non_blocking: bool = False) -> torch.Tensor:
        return tensor

    def keep(self, value: torch.Tensor, step: int) -> Callable[[], float]:
        kept = float(value.item())
        return lambda: kept

    def synchronize(self) -> None:
        return

    def environment(self) -> dict[str, Any]:
        """Returns the processor's name."""
        return {"device_name": processor_name()}


def open_device(
    name: str, clock: Clock, warn: Warn = lambda line: None, *, in_use: bool = False
) -> Device:
    """Returns the device called `name`: "auto", "cpu", "cuda:N" or "simulated:...".

    `warn` receives a line where "auto" falls back to the CPU, and where pinned memory is refused.
    `in_use`: a script trains on it already, and chooses the current device. Raises `DeviceError` if
    the device does not exist or does not work, and `ConfigError` for an unknown simulated device.
    """
    from vitprof.measure.devices import cuda, cuda_findings, simulated

    if is_simulated(name):
        return simulated.SimulatedDevice(name, accelerator(name), clock)
    if name == "cpu":
        return CpuDevice(clock)
    if name != "auto":
        return cuda.CudaDevice(name, clock, warn, in_use=in_use)
    if cuda_findings.cuda_here():
        try:
            return cuda.CudaDevice("cuda:0", clock, warn)
        except DeviceError as error:
            warn(f"the job runs on the CPU: {error}")
    else:
        finding = cuda_findings.why_no_cuda()
        if finding is not None:
            warn(f"the job runs on the CPU: {finding.line}")
    return CpuDevice(clock)
