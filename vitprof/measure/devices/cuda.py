"""A CUDA GPU as the device that trains; and whether PyTorch sees one, a kernel runs and memory suffices."""

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
            # The allocator must not reuse this memory in the copying stream while the training stream reads it.
            tensor.record_stream(trains)


class CudaDevice(EventDevice):
    """A CUDA GPU: marks are timing events in the current stream, mapped to the host's clock through an anchor."""

    def __init__(
        self, name: str, clock: Clock, tell: Tell = lambda line: None, *, in_use: bool = False
    ) -> None:
        """`in_use`: a script trains on it: it is not tried, nor made the current device, which the script chooses."""
        index = number_here(name)
        if not (cuda_here() or (in_use and torch.cuda.is_available())):  # ROCm has the same events
            finding = why_no_cuda()
            reason = (
                finding.line
                if finding
                else f"this PyTorch ({torch.__version__}) sees no CUDA device; choose cpu"
            )
            raise DeviceError(f"device {name}: {reason}")
        if index >= torch.cuda.device_count():
            last = torch.cuda.device_count() - 1
            raise DeviceError(
                f"device {name}: there is no such GPU; choose cuda:0 to cuda:{last}, or cpu"
            )
        where = torch.device("cuda", index)
        if not in_use and (finding := first_kernel(where)) is not None:
            raise DeviceError(f"device {name}: {finding.line}")
        self._streams: dict[int, torch.cuda.Stream] = {}
        clock_khz = getattr(torch.cuda.get_device_properties(index), "clock_rate", 0)
        self._clock_hz = 1e3 * (clock_khz or USUAL_CLOCK_KHZ)
        super().__init__(where, clock, tell)
        self.name = name

    def new_event(self) -> Any:
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def current_stream(self) -> torch.cuda.Stream:
        # PyTorch makes an object each time, which takes ten times as long as to record an event
        handle = torch._C._cuda_getCurrentRawStream(self.torch_device.index)
        if (stream := self._streams.get(handle)) is None:
            stream = self._streams[handle] = torch.cuda.current_stream(self.torch_device)
        return stream

    def gate(self, seconds: float) -> None:
        # a kernel that spins for a number of cycles: at a lower clock it takes longer
        torch.cuda._sleep(int(seconds * self._clock_hz))  # type: ignore[no-untyped-call]

    def stream(self) -> CudaStream:
        return CudaStream(self.torch_device)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def free_memory_bytes(self) -> float:
        free, _ = torch.cuda.mem_get_info(self.torch_device)
        held = torch.cuda.memory_reserved(self.torch_device) - torch.cuda.memory_allocated(
            self.torch_device
        )
        return float(free + held)

    def peak_memory(self) -> dict[str, float]:
        return {
            "gpu_mem_reserved_peak_bytes": float(torch.cuda.max_memory_reserved(self.torch_device)),
            "gpu_mem_allocated_peak_bytes": float(
                torch.cuda.max_memory_allocated(self.torch_device)
            ),
        }

    def environment(self) -> dict[str, Any]:
        facts = torch.cuda.get_device_properties(self.torch_device)
        return {
            "device_name": facts.name,
            "gpu_uuid": _uuid(self.torch_device),
            "cuda_version": torch.version.cuda,
            "gpu_memory_bytes": facts.total_memory,
            "gpu_memory_free_bytes": self.free_memory_bytes(),
            "gpu_capability": f"{facts.major}.{facts.minor}",
            **({} if torch.version.hip is None else {"untested_device": "ROCm"}),
        }


def _uuid(device: torch.device) -> str | None:
    facts: Any = torch.cuda.get_device_properties(device)
    if (
        torch.version.hip is not None
    ):  # amdsmi has other UUIDs; the place on the bus means the same to both
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
OTHERS_BYTES = 1 << 30
"""Memory of other processes is mentioned above this. A CUDA context itself takes up to half of that."""


def cuda_here() -> bool:
    """Returns whether this PyTorch has an NVIDIA GPU. A PyTorch built for AMD GPUs calls those `cuda`, too."""
    return torch.version.hip is None and torch.cuda.is_available()


def other_accelerator() -> str:
    """Returns in words the other accelerator that this PyTorch could use, besides CPU and NVIDIA GPUs; "" if none."""
    if torch.version.hip is not None and torch.cuda.is_available():
        return f"an AMD GPU ({torch.cuda.get_device_name(0)}, ROCm {torch.version.hip})"
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        return "an Intel GPU (XPU)"
    if torch.backends.mps.is_available():
        return "an Apple GPU (MPS)"
    return ""


def why_no_cuda() -> Finding | None:
    """Returns why PyTorch has no NVIDIA GPU, if the machine seems to have one or has another accelerator."""
    if other := other_accelerator():
        wrong = f"it has {other}, which vitprof's own jobs do not use yet"
        how = "estimates its idle time" if "MPS" in other else "times it, untested on hardware"
        todo = f"choose device cpu, or a simulated GPU; watching your own script {how}"
        return Finding("note", f"PyTorch {torch.__version__}", wrong, todo)
    if os.environ.get("CUDA_VISIBLE_DEVICES") in HIDDEN:
        return None
    error = _cuda_error()
    driver, listed = nvml_lists()
    shown = shown_here()
    # A failing CUDA driver shows none; the GPUs that it showed before, or that NVML lists, exist nonetheless
    names = [gpu.name for gpu in shown] or visible.kept() or listed
    if not names:
        return (
            None
            if any(words in error for words in NOTHING_THERE)
            else pytorch_fails(torch.__version__, "", error)
        )
    known = shown[0].cuda_driver if shown else None
    return unusable(names[0], driver, known) or pytorch_fails(torch.__version__, names[0], error)


def nvml_lists() -> tuple[str, list[str]]:
    """Returns the driver's version and the names of the GPUs that NVML lists, hidden ones included."""
    from vitprof.telemetry.nvml import (
        Nvml,
        driver_version,
    )  # a script that is watched may lack pynvml

    with closing(Nvml()) as nvml:
        return driver_version(nvml.call), [gpu.name for gpu in nvml.gpus()]


def _cuda_error() -> str:
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:  # AssertionError: a build without CUDA
        return one_line(error)
    return "it finds no device"


def first_kernel(device: torch.device) -> Finding | None:
    """Makes `device` the current one and runs a small kernel. Returns what is wrong, other than memory, or None."""
    try:
        torch.cuda.set_device(
            device
        )  # makes the context: a card in exclusive mode or with a defect fails here
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
        with suppress(RuntimeError):  # in a fork of a process that used CUDA this fails, too
            card = torch.cuda.get_device_name(device)
        return Finding("bad", card, wrong, f"{todo}, or choose device cpu")
    return None


def limits(device: torch.device, config: RunConfig) -> Iterator[Finding]:
    """Yields what makes a run of `config` on the CUDA `device` differ from what was meant."""
    if config.precision == "bf16":
        card = torch.cuda.get_device_name(device)
        capability = torch.cuda.get_device_capability(device)
        if (emulated := bf16_emulated(card, capability)) is not None:
            yield emulated
    yield from changing_variables(os.environ)


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of a CUDA device at one moment, in bytes."""

    name: str
    total: int
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
    """Returns whether `error` says that the device is out of memory: PyTorch's own, CUDA's or a CUDA library's."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError | DeviceError)
        and bool(
            re.search(
                r"cuda.*out of memory|CUBLAS_STATUS_ALLOC_FAILED",
                str(error),
                re.IGNORECASE | re.DOTALL,
            )
        )
    )


def out_of_memory(error: str, config: RunConfig, memory: DeviceMemory | None) -> str:
    """Returns in one line what a job requested, who holds the memory, and which settings take less, from the error."""
    requested = re.search(r"Tried to allocate ([\d.]+ \w+)", error)
    line = f"CUDA out of memory{f' on {memory.name}' if memory else ''}"
    line += f": it asked for {requested[1]} more" if requested else ""
    tries = list(_less(config))
    if memory is not None:
        line += (
            f"; of {size(memory.total)} PyTorch allocated {size(memory.allocated)} at most and holds "
            f"{size(memory.reserved)} reserved, {size(memory.free)} are free"
        )
        if (others := memory.total - memory.free - memory.reserved) > OTHERS_BYTES:
            line += f", and other processes (with CUDA itself) hold {size(others)}"
            tries.append("stop other programs that use this GPU")
    return f"{line}; try {', or '.join(tries)}"


def _less(config: RunConfig) -> list[str]:
    settings = {
        "transfer pinned (resident keeps the whole set on the device)": config.transfer
        == "resident",
        "replay host": config.replay == "device",
        f"batch size {config.batch_size // 2}": config.batch_size > 1,
        "precision bf16": config.precision in ("fp32", "tf32"),
        "torch.compile without a mode (CUDA graphs keep their memory)": config.compile
        and config.compile_mode,
        "a smaller model": True,
    }
    return [setting for setting, helps in settings.items() if helps]


P = ParamSpec("P")


def report_out_of_memory(
    job: Callable[Concatenate[RunConfig, P], bool],
) -> Callable[Concatenate[RunConfig, P], bool]:
    """Makes a function that runs a config raise `DeviceError` if the device is out of memory."""

    @functools.wraps(job)
    def run(config: RunConfig, /, *args: P.args, **options: P.kwargs) -> bool:
        try:
            return job(config, *args, **options)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            from vitprof.config.resolve import (
                resolve,
            )  # here, since a script that is watched needs nothing of it

            message = out_of_memory(str(error), resolve(config), device_memory())
        # Outside the except block nothing holds the error any more, nor the job's frames and their tensors.
        gc.collect()
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()
        raise DeviceError(message)

    return run
