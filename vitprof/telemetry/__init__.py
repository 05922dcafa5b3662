"""What the machine does while a job runs: the GPU through NVML, everything else through psutil. No torch."""

from vitprof.telemetry.machine import GpuNow, MachineNow, MachineWatch
from vitprof.telemetry.nvml import NO_GPU_MESSAGE, GpuInfo, Nvml, list_gpus
from vitprof.telemetry.processes import MachineCpu, ProcessTree, Rate
from vitprof.telemetry.sampler import Telemetry, choose_gpu

__all__ = [
    "NO_GPU_MESSAGE",
    "GpuInfo",
    "GpuNow",
    "MachineCpu",
    "MachineNow",
    "MachineWatch",
    "Nvml",
    "ProcessTree",
    "Rate",
    "Telemetry",
    "choose_gpu",
    "list_gpus",
]
