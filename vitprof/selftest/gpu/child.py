"""The process of one case: `python -m vitprof.selftest.gpu.child CASE DIRECTORY`.

It writes one JSON object to standard output: {"facts": ..., "outcome": ...}, or {"error": ...} without a GPU. What
libraries print goes to standard error. It exits when its standard input ends, so that it never outlives its parent.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from vitprof.errors import DeviceError, VitprofError, one_line
from vitprof.program import program
from vitprof.selftest.gpu import cost, idle, launches, marks, strategies
from vitprof.selftest.gpu.bench import Bench
from vitprof.selftest.report import Outcome, plain

DEVICE = "cuda:0"
CASES = {
    "clock mapping": marks.clock_mapping,
    "copies": marks.copy_bandwidth,
    "known idle": idle.known_idle,
    "launch-bound": launches.launch_bound,
    "own cost": cost.own_cost,
    "every strategy": strategies.every_strategy,
}
NO_GPU = (
    "the self-test on the GPU needs an NVIDIA GPU that PyTorch can use, and {why}; `{program} doctor` says "
    "more, and the self-test without --gpu needs none"
)
PRIVATE = ("hostname", "gpu_uuid")
"""Facts that name a machine: not for a bug report."""


def open_bench(name: str, directory: Path) -> Bench:
    """Returns the bench with a CUDA device. Raises `DeviceError`."""
    import torch

    from vitprof.measure.devices import open_device
    from vitprof.measure.devices.cuda_checks import cuda_here

    if not cuda_here():
        raise DeviceError(NO_GPU.format(why=f"this PyTorch ({torch.__version__}) sees none", program=program()))
    return Bench(open_device(name, time.perf_counter), kernels_s=launches.kernels_s, directory=directory)


def facts(bench: Bench) -> dict[str, Any]:
    """Returns facts about device and software, without what names the machine; and how many GPUs PyTorch sees."""
    import torch

    from vitprof.engine.train import describe

    known = describe() | bench.device.environment() | {"device": bench.device.name, "gpus": torch.cuda.device_count()}
    if bench.device.torch_device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(bench.device.torch_device)
        known |= {"capability": f"{major}.{minor}", "arch_list": torch.cuda.get_arch_list()}
    return {name: value for name, value in known.items() if name not in PRIVATE}


def run_case(name: str, bench: Bench) -> Outcome:
    """Runs a case and returns its outcome: failed where it raises an `Exception`. Ctrl-C still propagates."""
    try:
        return CASES[name](bench)
    except Exception as error:
        if not isinstance(error, VitprofError):
            traceback.print_exc()
        return Outcome("failed", wrong=one_line(error))


def main() -> None:
    """Opens the device and runs the case that the command line names."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    threading.Thread(target=_end_with_input, name="vitprof-stdin", daemon=True).start()
    name, directory = sys.argv[1:]
    try:
        bench = open_bench(DEVICE, Path(directory))
        message: dict[str, Any] = {"facts": facts(bench), "outcome": run_case(name, bench).to_dict()}
    except Exception as error:
        if not isinstance(error, VitprofError):
            traceback.print_exc()
        message = {"error": one_line(error)}
    json.dump(plain(message), channel, allow_nan=False, default=str)
    channel.flush()
    os._exit(0)  # tearing down PyTorch takes a second


def _end_with_input() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
