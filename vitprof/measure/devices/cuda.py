"""A CUDA GPU as the device that trains."""

from contextlib import AbstractContextManager
from typing import Any

import torch

from vitprof.errors import DeviceError
from vitprof.measure.devices import Clock, Tell
from vitprof.measure.devices.cuda_findings import cuda_here, first_kernel, why_no_cuda
from vitprof.measure.devices.events import EventDevice
from vitprof.telemetry.visible import number_here, shown_here

USUAL_CLOCK_KHZ = 2_000_000
"""Highest clock of the multiprocessors, assumed where PyTorch does not report it."""


class CudaStream:
    """A CUDA stream separate from the current one."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def use(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._stream)

    def join(self, *tensors: torch.Tensor) -> None:
        trains = torch.cuda.current_stream(self._device)
        trains.wait_stream(self._stream)
        for tensor in tensors:
            # The allocator must not reuse this memory in the copying stream while the training
            # stream reads it.
            tensor.record_stream(trains)


class CudaDevice(EventDevice):
    """A CUDA GPU: marks are timing events in the current stream, mapped to the host's clock through
    an anchor.
    """

    def __init__(
        self, name: str, clock: Clock, tell: Tell = lambda line: None, *, in_use: bool = False
    ) -> None:
        """`in_use`: a script trains on it already.

        It is neither tried nor made the current device, which is for the script to choose.
        """
        index = number_here(name)
        # A script may train by ROCm, which has the same events; vitprof's own jobs do not.
        usable = cuda_here() or (in_use and torch.cuda.is_available())
        if not usable:
            reason = f"this PyTorch ({torch.__version__}) sees no CUDA device; choose cpu"
            finding = why_no_cuda()
            if finding:
                reason = finding.line
            raise DeviceError(f"device {name}: {reason}")
        if index >= torch.cuda.device_count():
            last = torch.cuda.device_count() - 1
            raise DeviceError(
                f"device {name}: there is no such GPU; choose cuda:0 to cuda:{last}, or cpu"
            )
        where = torch.device("cuda", index)
        if not in_use:
            finding = first_kernel(where)
            if finding is not None:
                raise DeviceError(f"device {name}: {finding.line}")
        self._streams: dict[int, torch.cuda.Stream] = {}
        clock_khz = getattr(torch.cuda.get_device_properties(index), "clock_rate", 0)
        self._clock_hz = 1e3 * (clock_khz or USUAL_CLOCK_KHZ)
        super().__init__(where, clock, tell)
        self.name = name

    def new_event(self) -> Any:
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def current_stream(self) -> torch.cuda.Stream:
        """Returns this thread's current stream.

        PyTorch makes an object each time, which takes ten times as long as to record an event.
        """
        handle = torch._C._cuda_getCurrentRawStream(self.torch_device.index)
        stream = self._streams.get(handle)
        if stream is None:
            stream = self._streams[handle] = torch.cuda.current_stream(self.torch_device)
        return stream

    def gate(self, seconds: float) -> None:
        # A kernel that spins for a number of cycles: at a lower clock it takes longer.
        torch.cuda._sleep(int(seconds * self._clock_hz))  # type: ignore[no-untyped-call]

    def stream(self) -> CudaStream:
        return CudaStream(self.torch_device)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def free_memory_bytes(self) -> float:
        free, _ = torch.cuda.mem_get_info(self.torch_device)
        # New tensors can also take what PyTorch's allocator holds and no tensor uses.
        reserved = torch.cuda.memory_reserved(self.torch_device)
        unused = reserved - torch.cuda.memory_allocated(self.torch_device)
        return float(free + unused)

    def peak_memory(self) -> dict[str, float]:
        return {
            "gpu_mem_reserved_peak_bytes": float(torch.cuda.max_memory_reserved(self.torch_device)),
            "gpu_mem_allocated_peak_bytes": float(
                torch.cuda.max_memory_allocated(self.torch_device)
            ),
        }

    def environment(self) -> dict[str, Any]:
        facts = torch.cuda.get_device_properties(self.torch_device)
        found = {
            "device_name": facts.name,
            "gpu_uuid": _uuid(self.torch_device),
            "cuda_version": torch.version.cuda,
            "gpu_memory_bytes": facts.total_memory,
            "gpu_memory_free_bytes": self.free_memory_bytes(),
            "gpu_capability": f"{facts.major}.{facts.minor}",
        }
        if torch.version.hip is not None:
            found["untested_device"] = "ROCm"
        return found


def _uuid(device: torch.device) -> str | None:
    """Returns the UUID as in NVML (for a slice of a GPU, that of the slice); None where it is
    unknown.
    """
    facts: Any = torch.cuda.get_device_properties(device)
    # amdsmi has other UUIDs; the place on the bus means the same to both.
    if torch.version.hip is not None:
        return f"AMD-{facts.pci_domain_id:04x}:{facts.pci_bus_id:02x}:{facts.pci_device_id:02x}"
    for gpu in shown_here():
        if gpu.index == device.index and gpu.uuid:
            return gpu.uuid
    uuid = str(getattr(facts, "uuid", ""))
    return f"GPU-{uuid}" if uuid else None
