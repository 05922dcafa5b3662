"""A CUDA GPU as the device that trains; and whether PyTorch sees one, a kernel runs and memory
suffices.
"""

import functools
import gc
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec

import torch

from vitprof.config import RunConfig
from vitprof.config.gpu_findings import (
    Finding,
    bf16_emulated,
    changing_variables,
    pytorch_fails,
    unusable,
)
from vitprof.errors import DeviceError, one_line
from vitprof.formats import size
from vitprof.measure.devices import Clock, Tell
from vitprof.measure.devices.events import EventDevice
from vitprof.telemetry import visible
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


HIDDEN = ("", "-1")
"""Values of CUDA_VISIBLE_DEVICES that hide all GPUs on purpose."""
NOTHING_THERE = ("no NVIDIA driver", "No CUDA GPUs are available", "not compiled with CUDA")
"""Parts of PyTorch's error messages where there is no GPU, or where it was built without CUDA."""
OUT_OF_MEMORY = re.compile(
    r"cuda.*out of memory|CUBLAS_STATUS_ALLOC_FAILED", re.IGNORECASE | re.DOTALL
)
"""What CUDA and cuBLAS say where memory runs out; PyTorch has an error of its own for its
allocator."""
OTHERS_BYTES = 1 << 30
"""Memory of other processes is mentioned above this.

A CUDA context itself takes up to half of that."""


def cuda_here() -> bool:
    """Returns whether this PyTorch has an NVIDIA GPU. A PyTorch built for AMD GPUs calls those
    `cuda`, too.
    """
    return torch.version.hip is None and torch.cuda.is_available()


def other_accelerator() -> str:
    """Returns in words the other accelerator that this PyTorch could use, besides CPU and NVIDIA
    GPUs; "" if none.
    """
    if torch.version.hip is not None and torch.cuda.is_available():
        return f"an AMD GPU ({torch.cuda.get_device_name(0)}, ROCm {torch.version.hip})"
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        return "an Intel GPU (XPU)"
    if torch.backends.mps.is_available():
        return "an Apple GPU (MPS)"
    return ""


def why_no_cuda() -> Finding | None:
    """Returns why PyTorch has no NVIDIA GPU, if the machine seems to have one or has another
    accelerator.

    None if it has neither, or if the GPUs are hidden on purpose.
    """
    other = other_accelerator()
    if other:
        wrong = f"it has {other}, which vitprof's own jobs do not use yet"
        how = "times it, untested on hardware"
        if "MPS" in other:
            how = "estimates its idle time"
        todo = f"choose device cpu, or a simulated GPU; watching your own script {how}"
        return Finding("note", f"PyTorch {torch.__version__}", wrong, todo)
    if os.environ.get("CUDA_VISIBLE_DEVICES") in HIDDEN:
        return None
    error = _cuda_error()
    driver, listed = nvml_lists()
    shown = shown_here()
    # A failing CUDA driver shows none; the GPUs that it showed before, or that NVML lists, exist
    # nonetheless.
    names = [gpu.name for gpu in shown] or visible.kept() or listed
    if not names:
        if any(words in error for words in NOTHING_THERE):
            return None
        return pytorch_fails(torch.__version__, "", error)
    known = shown[0].cuda_driver if shown else None
    return unusable(names[0], driver, known) or pytorch_fails(torch.__version__, names[0], error)


def nvml_lists() -> tuple[str, list[str]]:
    """Returns the driver's version and the names of the GPUs that NVML lists, hidden ones included."""
    # Imported here: a script that is watched may lack pynvml.
    from vitprof.telemetry.nvml import Nvml, driver_version

    with closing(Nvml()) as nvml:
        return driver_version(nvml.call), [gpu.name for gpu in nvml.gpus()]


def _cuda_error() -> str:
    """Returns PyTorch's message on why CUDA does not start, in one line."""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        # AssertionError: a build without CUDA.
        return one_line(error)
    return "it finds no device"


def first_kernel(device: torch.device) -> Finding | None:
    """Makes `device` the current one, and runs one small kernel.

    Returns what is wrong if that fails for another reason than memory, None if it works.
    """
    try:
        # Makes the context: a card in exclusive mode or with a defect fails here.
        torch.cuda.set_device(device)
        torch.zeros(1, device=device).add_(1).item()
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        card = "CUDA"
        wrong = f"a first kernel failed ({one_line(error)})"
        todo = "restart the machine"
        if "no kernel image" in wrong:
            todo = "install a PyTorch that has kernels for it"
        elif "forked" in wrong:
            todo = "start this process by spawn or forkserver, or fork it before CUDA is used"
        # In a fork of a process that used CUDA this fails, too.
        with suppress(RuntimeError):
            card = torch.cuda.get_device_name(device)
        return Finding("bad", card, wrong, f"{todo}, or choose device cpu")
    return None


def limits(device: torch.device, config: RunConfig) -> Iterator[Finding]:
    """Yields what makes a run of `config` on the CUDA `device` differ from what was meant."""
    if config.precision == "bf16":
        card = torch.cuda.get_device_name(device)
        capability = torch.cuda.get_device_capability(device)
        emulated = bf16_emulated(card, capability)
        if emulated is not None:
            yield emulated
    yield from changing_variables(os.environ)


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of a CUDA device at one moment, in bytes."""

    name: str
    total: int
    """All memory of the device."""
    free: int
    """Memory that nothing holds: no other process, and not this one's allocator."""
    allocated: int
    """Peak of the memory that PyTorch's tensors took."""
    reserved: int
    """Memory that PyTorch's allocator holds, for tensors now or later."""


def device_memory() -> DeviceMemory | None:
    """Returns the memory of the current CUDA device; None without one."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    free, total = torch.cuda.mem_get_info()
    return DeviceMemory(
        torch.cuda.get_device_name(),
        total,
        free,
        torch.cuda.max_memory_allocated(),
        torch.cuda.memory_reserved(),
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether `error` says that the device is out of memory: PyTorch's own, CUDA's or a
    CUDA library's.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return True
    if not isinstance(error, RuntimeError | DeviceError):
        return False
    return OUT_OF_MEMORY.search(str(error)) is not None


def out_of_memory(error: str, config: RunConfig, memory: DeviceMemory | None) -> str:
    """Returns in one line what a job requested, who holds the memory, and which settings take less,
    from the error.
    """
    requested = re.search(r"Tried to allocate ([\d.]+ \w+)", error)
    tries = list(_less(config))
    line = "CUDA out of memory"
    if memory is not None:
        line += f" on {memory.name}"
    if requested:
        line += f": it asked for {requested[1]} more"
    if memory is not None:
        line += (
            f"; of {size(memory.total)} PyTorch allocated {size(memory.allocated)} at most and holds "
            f"{size(memory.reserved)} reserved, {size(memory.free)} are free"
        )
        others = memory.total - memory.free - memory.reserved
        if others > OTHERS_BYTES:
            line += f", and other processes (with CUDA itself) hold {size(others)}"
            tries.append("stop other programs that use this GPU")
    return f"{line}; try {', or '.join(tries)}"


def _less(config: RunConfig) -> list[str]:
    """Returns settings that take less of the device's memory, beginning with those that cost
    nothing else.
    """
    settings = []
    if config.transfer == "resident":
        settings.append("transfer pinned (resident keeps the whole set on the device)")
    if config.replay == "device":
        settings.append("replay host")
    if config.batch_size > 1:
        settings.append(f"batch size {config.batch_size // 2}")
    if config.precision in ("fp32", "tf32"):
        settings.append("precision bf16")
    if config.compile and config.compile_mode:
        settings.append("torch.compile without a mode (CUDA graphs keep their memory)")
    settings.append("a smaller model")
    return settings


P = ParamSpec("P")


def report_out_of_memory(
    job: Callable[Concatenate[RunConfig, P], bool],
) -> Callable[Concatenate[RunConfig, P], bool]:
    """Makes a function that runs a config raise `DeviceError` if the device is out of memory.

    The job's memory there has been released by then.
    """

    @functools.wraps(job)
    def run(config: RunConfig, /, *args: P.args, **options: P.kwargs) -> bool:
        try:
            return job(config, *args, **options)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            # Imported here: a script that is watched needs nothing of it.
            from vitprof.config.resolve import resolve

            message = out_of_memory(str(error), resolve(config), device_memory())
        # Outside the except block nothing holds the error any more, nor the job's frames and their
        # tensors.
        gc.collect()
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()
        raise DeviceError(message)

    return run
