"""`scripts` under torch.profiler on the null device.

There is no CUPTI there: PyTorch's profiler records the host, and the null device knows its own work
(`busy.spans`). Both go into one trace, as Kineto would write it.
"""

import json
import time
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from tests.nullcuda import scripts
from tests.nullcuda.busy import spans

LAUNCH_US = 3.0
"""What a launch takes, about: the device knows when it ended."""


def traced(*, script: str, path: str, **how: Any) -> str:
    """Runs a script, and writes its trace. Returns what the script returns."""
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        returned: str = getattr(scripts, script)(**how)
    torch.cuda.synchronize()
    offset_ns = _offset_ns()
    prof.export_chrome_trace(path)
    trace = json.loads(Path(path).read_text())
    trace["deviceProperties"] = [{"id": 0, "name": torch.cuda.get_device_name(0)}]
    base_us = (trace["baseTimeNanoseconds"] - offset_ns) / 1e3
    for number, (queued_s, begin_s, end_s, is_kernel) in enumerate(spans().tolist(), 1):
        shared = {"correlation": number}
        launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1}
        launch |= {"ts": queued_s * 1e6 - base_us - LAUNCH_US, "dur": LAUNCH_US, "args": shared}
        work = {"ph": "X", "cat": "kernel", "name": "null_kernel", "pid": 0, "tid": 7}
        if not is_kernel:
            work |= {"cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)"}
        work |= {"ts": begin_s * 1e6 - base_us, "dur": (end_s - begin_s) * 1e6}
        work["args"] = shared | {"device": 0, "stream": 7}
        trace["traceEvents"] += [launch, work]
    Path(path).write_text(json.dumps(trace))
    return returned


def _offset_ns() -> int:
    """Returns the time since 1970 less that of the monotonic clock, read at one time."""
    tries = []
    for _ in range(20):
        before_ns = time.monotonic_ns()
        now_ns = time.time_ns()
        after_ns = time.monotonic_ns()
        tries.append((after_ns - before_ns, now_ns - (before_ns + after_ns) // 2))
    return min(tries)[1]
