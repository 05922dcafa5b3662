"""Accelerators that a job does not use: those that vitprof does not support, and a GPU that PyTorch cannot use."""

from __future__ import annotations

import torch

from vitprof.telemetry import own_gpu, shown_here


def cuda_here() -> bool:
    """Returns whether this PyTorch has an NVIDIA GPU. One built for AMD's calls its own GPUs `cuda`, too."""
    return torch.version.hip is None and torch.cuda.is_available()


def other_accelerator() -> str:
    """Returns what this PyTorch could compute on besides CPU and NVIDIA GPUs, in words; "" if nothing."""
    if torch.version.hip is not None and torch.cuda.is_available():
        return f"an AMD GPU ({torch.cuda.get_device_name(0)}, ROCm {torch.version.hip})"
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        return "an Intel GPU (XPU)"
    if torch.backends.mps.is_available():
        return "an Apple GPU (MPS)"
    return ""


def why_cpu() -> str:
    """Returns what else a job could have run on that was to find a device by itself, and why not; "" if nothing."""
    if other := other_accelerator():
        return f"PyTorch has {other}, which vitprof does not support yet"
    shown = [gpu.name for gpu in shown_here()] or own_gpu.kept()
    return f"CUDA's driver shows {shown[0]}, which this PyTorch ({torch.__version__}) cannot use" if shown else ""
