"""Facts about the machine and the software, stored with each run, and the CPU time of a job's processes."""

from __future__ import annotations

import os
import platform
import socket
from importlib import metadata
from typing import Any

import psutil
import torch

import vitprof
from vitprof.config.gpu_findings import recorded_variables


def describe() -> dict[str, Any]:
    """Returns the facts about machine and software, as JSON values; the device adds its own."""
    return {
        "vitprof": vitprof.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": metadata.version("torchvision"),  # importing it takes as long as torch
        "torch_threads": torch.get_num_threads(),
        "platform": platform.platform(),
        "hostname": socket.gethostname(),
        "cpu_count": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "variables": recorded_variables(os.environ),
    }


def process_tree_cpu_s() -> float:
    """Returns the CPU seconds that this process and its descendants have used, user and system.

    Those that have ended are counted through their parents' `children_` times: the time of workers that end with their
    epoch must not be lost.
    """
    me = psutil.Process()
    total = 0.0
    for process in [me, *me.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.Error:  # a worker that ended since the list was made
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


class CpuMeter:
    """A meter of the CPU seconds of this process and its workers while it runs: over the steady part of training.

    The training loop adds the samples of that part to `samples`.
    """

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self.samples = 0
        self.running = False
        self._since = 0.0

    def start(self) -> None:
        """Starts or continues to count."""
        self._since = process_tree_cpu_s()
        self.running = True

    def pause(self) -> None:
        """Adds the CPU seconds since `start` to `cpu_s`, if it runs."""
        if self.running:
            self.cpu_s += process_tree_cpu_s() - self._since
            self.running = False
