"""The process that opens the device: `python -m vitprof.selftest.gpu.child DEVICE CASE...`.

It writes one JSON object a line to standard output: first the device, then each case as it begins and as it ends. What
libraries print goes to standard error. It exits when its standard input ends, so that it never outlives its parent.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import traceback
from typing import Any, TextIO

from vitprof.errors import VitprofError, one_line
from vitprof.program import program
from vitprof.selftest.gpu.bench import Bench
from vitprof.selftest.gpu.case import GPU_CASES
from vitprof.selftest.gpu.outcome import Outcome, finite
from vitprof.selftest.gpu.profiler import kernels_s
from vitprof.telemetry import Nvml, choose_gpu

NO_GPU = (
    "the self-test on the GPU needs an NVIDIA GPU that PyTorch can use, and {why}; `{program} doctor` says "
    "more, and the self-test without --gpu needs none"
)
PRIVATE = ("hostname", "gpu_uuid")
"""Facts that name a machine: not for a bug report."""


def open_bench(name: str) -> Bench:
    """Returns the bench with a CUDA device. Raises `DeviceError`."""
    import time

    import torch

    from vitprof.errors import DeviceError
    from vitprof.measure.devices import open_device
    from vitprof.measure.devices.others import cuda_here

    if not cuda_here():
        raise DeviceError(NO_GPU.format(why=f"this PyTorch ({torch.__version__}) sees none", program=program()))
    device = open_device(name, time.perf_counter)
    bench = Bench(device, kernels_s=kernels_s)
    nvml = Nvml()
    gpu = choose_gpu(nvml.gpus(), device.environment().get("gpu_uuid"))
    if gpu is None:
        bench.no_utilisation = nvml.reason or "NVML does not list this GPU"
    else:
        bench.utilisation = lambda: nvml.read(gpu.uuid, ())["gpu_util_pct"]
    return bench


def facts(bench: Bench) -> dict[str, Any]:
    """Returns facts about device and software, without what names the machine; and how many GPUs PyTorch sees."""
    import torch

    from vitprof.engine.environment import describe

    found = describe() | bench.device.environment() | {"device": bench.device.name, "gpus": torch.cuda.device_count()}
    if bench.device.torch_device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(bench.device.torch_device)
        found |= {"capability": f"{major}.{minor}", "arch_list": torch.cuda.get_arch_list()}
    return {name: value for name, value in found.items() if name not in PRIVATE}


def run_case(name: str, bench: Bench) -> Outcome:
    """Runs a case and returns its outcome: failed where it raises an `Exception`. Ctrl-C still propagates."""
    module, _, function = next(case.run for case in GPU_CASES if case.name == name).partition(".")
    try:
        found = importlib.import_module(f"vitprof.selftest.gpu.{module}")
        outcome: Outcome = getattr(found, function)(bench)
    except Exception as error:
        if not isinstance(error, VitprofError):
            traceback.print_exc()
        return Outcome("failed", reason=one_line(error))
    return outcome


def main() -> None:
    """Opens the device and runs the cases that the command line names."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    threading.Thread(target=_end_with_input, name="vitprof-stdin", daemon=True).start()
    device, *names = sys.argv[1:]
    try:
        bench = open_bench(device)
        _tell(channel, {"device": facts(bench)})
    except Exception as error:
        if not isinstance(error, VitprofError):
            traceback.print_exc()
        _tell(channel, {"error": one_line(error)})
        os._exit(1)
    for name in names:
        _tell(channel, {"began": name})
        _tell(channel, {"ended": name, "outcome": run_case(name, bench).to_dict()})
    os._exit(0)  # tearing down PyTorch takes a second


def _tell(channel: TextIO, message: dict[str, Any]) -> None:
    channel.write(json.dumps(finite(message), allow_nan=False, default=str) + "\n")
    channel.flush()


def _end_with_input() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
