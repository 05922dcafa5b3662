"""Recognises that a device is out of memory, and says what to do about it."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from dataclasses import dataclass

import torch

from vitprof.config import RunConfig
from vitprof.errors import DeviceError
from vitprof.formats import size

OTHERS_BYTES = 1 << 30
"""Memory of other processes is mentioned above this. A CUDA context itself takes up to half of that."""


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
    said = str(error)
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError)
        and bool(re.search(r"cuda.*out of memory|CUBLAS_STATUS_ALLOC_FAILED", said, re.IGNORECASE | re.DOTALL))
    )


def out_of_memory(said: str, config: RunConfig, memory: DeviceMemory | None) -> str:
    """Returns in one line what a job asked for, who holds the memory, and which settings take less.

    `said` is the error's text.
    """
    asked = re.search(r"Tried to allocate ([\d.]+ \w+)", said)
    line = f"CUDA out of memory{f' on {memory.name}' if memory else ''}"
    line += f": it asked for {asked[1]} more" if asked else ""
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
    found = []
    if config.transfer == "resident":
        found.append("transfer pinned (resident keeps the whole set on the device)")
    if config.replay == "device":
        found.append("replay host")
    if config.batch_size > 1:
        found.append(f"batch size {config.batch_size // 2}")
    if config.precision in ("fp32", "tf32"):
        found.append("precision bf16")
    if config.compile and config.compile_mode:
        found.append("torch.compile without a mode (CUDA graphs keep their memory)")
    return [*found, "a smaller model"]


def telling_out_of_memory(job: Callable[[], bool], config: RunConfig) -> bool:
    """Returns what `job`, a run of `config`, returns.

    Raises `DeviceError` if the device is out of memory, after the job's memory there has been released.
    """
    try:
        return job()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        why = out_of_memory(str(error), config, device_memory())
    # Outside the except block nothing holds the error any more, nor the job's frames and their tensors.
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
    raise DeviceError(why)
