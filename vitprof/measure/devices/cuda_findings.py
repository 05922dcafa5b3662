"""Whether PyTorch sees a CUDA GPU, why not, whether a kernel runs there, and whether memory suffices."""

import functools
import gc
import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Concatenate, ParamSpec

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
from vitprof.telemetry import visible
from vitprof.telemetry.visible import shown_here

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
        how = "tells the waits of its loop"
        if torch.version.hip is not None:
            how = "times it, untested on hardware"
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
