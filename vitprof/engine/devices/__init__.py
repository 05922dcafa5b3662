"""Devices behind one small protocol: launch work, mark a point in it, ask later when that was passed.

A mark is cheap and never waits. On the CPU it is a reading of the clock; on CUDA it is an event recorded in the
current stream, resolved when the device has passed it; on a simulated device it is the time when that will be.
Nothing here synchronises inside a step: that would serialise the overlap that prefetching exists to create (DESIGN.md
section 3).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

from vitprof.config.accelerators import accelerator, is_simulated
from vitprof.engine.devices.others import cuda_here
from vitprof.engine.devices.pinning import Pinning, Tell
from vitprof.errors import DeviceError

Clock = Callable[[], float]
Mark = Any
"""What `Device.mark` returns: a time on the CPU and on a simulated device, a `torch.cuda.Event` on CUDA."""


class Stream(Protocol):
    """A queue of device work beside the one that trains."""

    def use(self) -> AbstractContextManager[Any]:
        """Returns a context: copies, marks and work inside it go to this stream."""

    def join(self, *tensors: Tensor) -> None:
        """Has the stream that trains wait for all in this one so far; it will read `tensors`, which were made here."""


class Device(Protocol):
    """Tells training, transfers and recorders what they need to know about a device."""

    name: str
    """As a config names it, never "auto": "cpu", "cuda:0", "simulated:66,70"."""
    torch_device: torch.device
    """Where its tensors lie. Those of a simulated device lie in the host's memory."""
    immediate: bool
    """Whether work is done when the call that launched it returns: a mark is then a time, and reached at once."""
    simulated: bool
    """Whether it only takes the time that an accelerator would, and computes nothing."""
    pinning: Pinning
    """Where host memory comes from that is copied to it."""

    def mark(self) -> Mark:
        """Returns a point after all work launched so far."""

    def reached(self, mark: Mark) -> bool:
        """Returns True if the device has passed `mark`. Never waits."""

    def wait(self, mark: Mark) -> None:
        """Waits until the device has passed `mark`."""

    def seconds(self, mark: Mark) -> float:
        """Returns when the device passed `mark`, on the host's monotonic clock. Only after `reached`."""

    def release(self, *marks: Mark) -> None:
        """Takes marks back that are not asked for again."""

    def gate(self, seconds: float) -> None:
        """Has the device wait before whatever is launched next. Does nothing where work is done at once."""

    def upload(self, tensor: Tensor, *, non_blocking: bool = False) -> Tensor:
        """Returns `tensor` on the device.

        A blocking copy begins after all work launched so far, and returns when it is done.
        """

    def stream(self) -> Stream | None:
        """Returns a new stream; None where there is nothing to run beside."""

    def keep(self, value: Tensor) -> Callable[[], float]:
        """Starts to bring a scalar to the host without waiting; call the result once a later mark is reached."""

    def synchronize(self) -> None:
        """Waits until all work launched so far is done."""

    def free_memory_bytes(self) -> float:
        """Returns the memory on the device that a new tensor could have; NaN where it is not the device's own."""

    def peak_memory(self) -> dict[str, float]:
        """Returns the most that PyTorch's allocator had on the device since the job began, as figures of `RunSummary`.

        Empty where it has none.
        """

    def gauges(self) -> Callable[[], dict[str, float]] | None:
        """Returns what asks the device for columns of `TelemetrySample`, in any thread.

        None where NVML and others know them.
        """

    def environment(self) -> dict[str, Any]:
        """Returns facts about the device for the run's record."""


def open_device(name: str, clock: Clock, tell: Tell = lambda line: None) -> Device:
    """Returns the device called `name`: "auto", "cpu", "cuda:N" or "simulated:...".

    `tell` takes lines on what is not as it was meant, such as "auto" that is the CPU because the GPU cannot be used.
    Raises `DeviceError` where it is not here, and `ConfigError` for a simulated device that is not known.
    """
    from vitprof.engine.devices.cpu import CpuDevice
    from vitprof.engine.devices.cuda import CudaDevice
    from vitprof.engine.devices.cuda_checks import why_no_cuda
    from vitprof.engine.devices.simulated import SimulatedDevice

    if is_simulated(name):
        return SimulatedDevice(name, accelerator(name), clock)
    if name == "auto":
        if cuda_here():
            try:
                return CudaDevice("cuda:0", clock, tell)
            except DeviceError as error:
                tell(f"the job runs on the CPU: {error}")
        elif (wrong := why_no_cuda()) is not None:
            tell(f"the job runs on the CPU: {wrong.line}")
        return CpuDevice(clock)
    return CpuDevice(clock) if name == "cpu" else CudaDevice(name, clock, tell)
