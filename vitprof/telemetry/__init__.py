"""Measures the machine while a job runs: the GPU through NVML, everything else through psutil. No torch."""

from vitprof.telemetry.cards import GpuInfo, driver_version, free_bytes
from vitprof.telemetry.machine import GpuNow, MachineNow, MachineWatch
from vitprof.telemetry.nvml import NO_GPU_MESSAGE, Nvml
from vitprof.telemetry.processes import MachineCpu, ProcessTree, Rate
from vitprof.telemetry.sampler import Telemetry, choose_gpu
from vitprof.telemetry.visible import VisibleGpu, number_here, show_only, shown_here, visible_gpus

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
    "VisibleGpu",
    "choose_gpu",
    "driver_version",
    "free_bytes",
    "number_here",
    "show_only",
    "shown_here",
    "visible_gpus",
]
