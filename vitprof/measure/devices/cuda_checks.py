"""Checks of a GPU that need PyTorch: whether it sees one, a kernel runs and memory suffices; what is wrong if not."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from vitprof.config import RunConfig
from vitprof.config.gpu_findings import Finding, bf16_emulated, changing_variables, pytorch_fails, unusable
from vitprof.errors import DeviceError, one_line
from vitprof.formats import size
from vitprof.telemetry import visible
from vitprof.telemetry.cards import driver_version
from vitprof.telemetry.nvml import Nvml
from vitprof.telemetry.visible import shown_here

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
    """Returns why PyTorch has no NVIDIA GPU, if the machine seems to have one or has another accelerator.

    None if it has neither, or if the GPUs are hidden on purpose.
    """
    if other := other_accelerator():
        wrong = f"it has {other}, which vitprof does not support yet"
        return Finding("note", f"PyTorch {torch.__version__}", wrong, "choose device cpu, or a simulated GPU")
    if os.environ.get("CUDA_VISIBLE_DEVICES") in HIDDEN:
        return None
    error = _cuda_error()
    driver, listed = nvml_lists()
    shown = shown_here()
    # A failing CUDA driver shows none; the GPUs that it showed before, or that NVML lists, exist nonetheless
    names = [gpu.name for gpu in shown] or visible.kept() or listed
    if not names:
        return None if any(words in error for words in NOTHING_THERE) else pytorch_fails(torch.__version__, "", error)
    known = shown[0].cuda_driver if shown else None
    return unusable(names[0], driver, known) or pytorch_fails(torch.__version__, names[0], error)


def nvml_lists() -> tuple[str, list[str]]:
    """Returns the driver's version and the names of the GPUs that NVML lists, hidden ones included."""
    with Nvml() as nvml:
        return driver_version(nvml.call), [gpu.name for gpu in nvml.gpus()]


def _cuda_error() -> str:
    """Returns PyTorch's message on why CUDA does not start, in one line."""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:  # AssertionError: a build without CUDA
        return one_line(error)
    return "it finds no device"


def first_kernel(device: torch.device) -> Finding | None:
    """Runs one small kernel. Returns what is wrong if it fails, None if it works.

    An out-of-memory error is raised again: it says nothing about kernels.
    """
    try:
        torch.zeros(1, device=device).add_(1).item()
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        wrong = f"a first kernel failed ({one_line(error)})"
        return Finding("bad", torch.cuda.get_device_name(device), wrong, "restart the machine, or choose device cpu")
    return None


def limits(device: torch.device, config: RunConfig) -> Iterator[Finding]:
    """Yields what makes a run of `config` on the CUDA `device` differ from what was meant."""
    if config.precision == "bf16":
        card, capability = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
        if (emulated := bf16_emulated(card, capability)) is not None:
            yield emulated
    yield from changing_variables(os.environ)


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of a CUDA device at one moment, in bytes."""

    name: str
    """The device's name."""
    total: int
    """All memory of the device."""
    free: int
    """Memory that nothing holds: no other process, and not this one's allocator."""
    allocated: int
    """Peak of the memory that PyTorch's tensors took."""
    reserved: int
    """Memory that PyTorch's allocator holds, for tensors now or later."""

    @property
    def others(self) -> int:
        """Returns the memory held by other processes and by CUDA with its libraries, in bytes."""
        return max(0, self.total - self.free - self.reserved)


def device_memory() -> DeviceMemory | None:
    """Returns the memory of the current CUDA device; None without one."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    free, total = torch.cuda.mem_get_info()
    return DeviceMemory(
        torch.cuda.get_device_name(), total, free, torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved()
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether `error` says that the device is out of memory: PyTorch's own, CUDA's or a CUDA library's."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError)
        and bool(re.search(r"cuda.*out of memory|CUBLAS_STATUS_ALLOC_FAILED", str(error), re.IGNORECASE | re.DOTALL))
    )


def out_of_memory(error: str, config: RunConfig, memory: DeviceMemory | None) -> str:
    """Returns in one line what a job requested, who holds the memory, and which settings take less.

    `error` is the error's text.
    """
    requested = re.search(r"Tried to allocate ([\d.]+ \w+)", error)
    line = f"CUDA out of memory{f' on {memory.name}' if memory else ''}"
    line += f": it asked for {requested[1]} more" if requested else ""
    tries = list(_less(config))
    if memory is not None:
        line += (
            f"; of {size(memory.total)} PyTorch allocated {size(memory.allocated)} at most and holds "
            f"{size(memory.reserved)} reserved, {size(memory.free)} are free"
        )
        if memory.others > OTHERS_BYTES:
            line += f", and other processes (with CUDA itself) hold {size(memory.others)}"
            tries.append("stop other programs that use this GPU")
    return f"{line}; try {', or '.join(tries)}"


def _less(config: RunConfig) -> list[str]:
    """Returns settings that take less of the device's memory, beginning with those that cost nothing else."""
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
    return [*settings, "a smaller model"]


def report_out_of_memory(job: Callable[[], bool], config: RunConfig) -> bool:
    """Returns what `job`, a run of `config`, returns.

    Raises `DeviceError` if the device is out of memory, after the job's memory there has been released.
    """
    try:
        return job()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        message = out_of_memory(str(error), config, device_memory())
    # Outside the except block nothing holds the error any more, nor the job's frames and their tensors.
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
    raise DeviceError(message)
