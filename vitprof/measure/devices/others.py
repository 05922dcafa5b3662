"""Tells which accelerator PyTorch has: an NVIDIA GPU, or one that vitprof does not support."""

from __future__ import annotations

import torch


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
