"""Raw facts of this machine's GPU, as a real driver gives them, for the next one who has none.

    python -m benchmarks.probe FILE [--seconds 40] [--only PART ...]

Parts: costs of events and NVML, launches until the host blocks, gated steps by precision, pairs of host and event
times for `--seconds` with GPU-util samples and GPM, and every strategy once with what it leaves. FILE is JSON and
written after each part; a part that fails says why and the others go on.
"""

import argparse
import itertools
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pynvml
import torch

from benchmarks.loader_gpu import Steps
from benchmarks.loader_sides import never, warm
from benchmarks.watch_matrix import clock
from vitprof.config import RunConfig
from vitprof.config.availability import why_unavailable
from vitprof.config.strategies import strategy
from vitprof.datasets.catalog import dataset_info
from vitprof.engine.train import train
from vitprof.errors import VitprofError, one_line
from vitprof.experiments.trials import Trial, job_manager, run_trials
from vitprof.measure.devices import open_device
from vitprof.measure.step_columns import derive, gather
from vitprof.selftest.gpu.job_cases import IN_ORDER, settings_for
from vitprof.store import RunStore
from vitprof.telemetry.nvml import Nvml

DEVICE = "cuda:0"
PAIR_EVERY_S = 0.02
MOST_LAUNCHES = 4096
STEPS = 12
"""Of each strategy."""
Write = Callable[[Any], None]


def event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def call_us(call: Callable[[], Any], n: int = 1000) -> dict[str, float]:
    """Returns the median and the 99th percentile of a call's time in microseconds."""
    stamps = [time.perf_counter()]
    for _ in range(n):
        call()
        stamps.append(time.perf_counter())
    median, p99 = np.percentile(np.diff(stamps) * 1e6, [50, 99])
    return {"median_us": float(median), "p99_us": float(p99)}


def costs(write: Write, _: float) -> None:
    """Measures what a mark, its query and its time cost the host, and each of NVML's calls."""
    first, last = event(), event()
    first.record()
    last.record()
    torch.cuda.synchronize()
    device = open_device(DEVICE, time.perf_counter)
    found: dict[str, Any] = {
        "record": call_us(event().record),
        "query": call_us(last.query),
        "elapsed_time": call_us(lambda: first.elapsed_time(last)),
        "mark": call_us(lambda: device.release(device.mark())),
    }
    write(found)
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    calls = {
        "nvmlDeviceGetUtilizationRates": (),
        "nvmlDeviceGetMemoryInfo": (),
        "nvmlDeviceGetPowerUsage": (),
        "nvmlDeviceGetClockInfo": (pynvml.NVML_CLOCK_SM,),
        "nvmlDeviceGetTemperature": (pynvml.NVML_TEMPERATURE_GPU,),
        "nvmlDeviceGetComputeRunningProcesses": (),
        "nvmlDeviceGetPcieThroughput": (pynvml.NVML_PCIE_UTIL_RX_BYTES,),
    }
    for name, more in calls.items():
        try:
            found[name] = call_us(partial(getattr(pynvml, name), handle, *more), 20)
        except pynvml.NVMLError as error:
            found[name] = {"failed": str(error)}
    card = pynvml.nvmlDeviceGetUUID(handle)
    with Nvml() as nvml:
        found["all that telemetry reads"] = call_us(lambda: nvml.read(card, [os.getpid()]), 20)
    write(found)


def launches(write: Write, _: float) -> None:
    """Counts the launches that fit behind a busy device before one blocks the host."""
    cycles_per_s, _name = json.loads(clock())
    tensor = torch.zeros(1, device=DEVICE)
    tensor.add_(1)
    torch.cuda.synchronize()
    torch.cuda._sleep(int(0.3 * cycles_per_s))
    took = []
    for _ in range(MOST_LAUNCHES):
        began = time.perf_counter()
        tensor.add_(1)
        took.append(time.perf_counter() - began)
    torch.cuda.synchronize()
    blocked = next((number for number, seconds in enumerate(took) if seconds > 0.02), None)
    write(
        {
            "until_the_host_blocks": blocked,
            "launch_us": statistics.median(took) * 1e6,
            "tried": MOST_LAUNCHES,
        }
    )


def gated(write: Write, _: float) -> None:
    """Trains `tiny` by precision and compiled: compute of usual steps, and kernel time of those behind a gate."""
    found: dict[str, Any] = {}
    ways: dict[str, dict[str, Any]] = {
        "fp32": {},
        "bf16": {"precision": "bf16"},
        "fp16": {"precision": "fp16"},
        "compiled": {"compile": True},
    }
    for name, how in ways.items():
        steps = Steps()
        fixed: dict[str, Any] = {
            "strategy": "memory",
            "device": DEVICE,
            "steps": 60,
            "warmup_steps": 12,
        }
        try:
            train(warm(RunConfig(**fixed, evaluate=False, batch_size=64, **how)), steps, never)
            columns = derive(gather(steps.marks))
            kernel = columns["kernel_s"][np.isfinite(columns["kernel_s"])]
            steady = columns["warmup"] == 0
            found[name] = {
                "compute_ms": float(np.median(columns["compute_s"][steady])) * 1e3,
                "step_ms": float(np.median(columns["step_s"][steady])) * 1e3,
                "kernel_ms": float(np.median(kernel)) * 1e3 if len(kernel) else None,
                "n_gated": len(kernel),
            }
        except (VitprofError, RuntimeError) as error:
            found[name] = {"failed": one_line(error)}
        write(found)


def pairs(write: Write, seconds: float) -> None:
    """Records events on an idle device, whose times on both clocks are then known to some microseconds; the device is
    busy half of the time in the second half. Reads NVML's GPU-util samples with their stamps, and GPM.
    """
    cycles_per_s, _name = json.loads(clock())
    device = open_device(DEVICE, time.perf_counter)
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    card = pynvml.nvmlDeviceGetUUID(handle)
    anchor = event()
    anchor.record()
    torch.cuda.synchronize()
    began = read = time.perf_counter()
    rows: list[list[float]] = []
    util: list[list[float]] = []
    readings: list[dict[str, float]] = []
    last_us = 0
    with Nvml() as nvml:
        while (now := time.perf_counter()) < began + seconds:
            if now > began + seconds / 2:
                torch.cuda._sleep(int(PAIR_EVERY_S / 2 * cycles_per_s))
                torch.cuda.synchronize()
            mark, own = event(), device.mark()
            before = time.perf_counter()
            mark.record()
            recorded = time.perf_counter()
            mark.synchronize()
            seen = time.perf_counter()
            rows.append(
                [before, recorded, seen, anchor.elapsed_time(mark) / 1e3, device.seconds(own)]
            )
            device.release(own)
            if now > read + 1.0:
                read = now
                readings.append({"host_s": now, **nvml.read(card, [os.getpid()])})
                try:
                    _, got = pynvml.nvmlDeviceGetSamples(
                        handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, last_us
                    )
                    util += [[sample.timeStamp, sample.sampleValue.uiVal] for sample in got]
                    last_us = int(util[-1][0]) if util else 0
                except pynvml.NVMLError as error:
                    util_failed = str(error)
                else:
                    util_failed = ""
            time.sleep(PAIR_EVERY_S / 2)
    table = np.array(rows)
    host_s, device_s = table[:, :2].mean(axis=1), table[:, 3]
    slope, offset = np.polyfit(device_s, host_s, 1)
    tight = table[:, 2] - table[:, 0] < np.median(table[:, 2] - table[:, 0]) * 1.5
    write(
        {
            "columns": ["before_s", "recorded_s", "seen_s", "since_anchor_s", "mapped_before_s"],
            "rows": np.round(table, 7).tolist(),
            "drift_us_per_s": (slope - 1) * 1e6,
            "residual_us": float(np.std((host_s - slope * device_s - offset)[tight])) * 1e6,
            "bracket_us": float(np.median(table[:, 2] - table[:, 0])) * 1e6,
            # a mark was set just before each pair: its mapped time lies before the pair's, by some microseconds
            "mapped_late_us": float(np.percentile(table[:, 4] - table[:, 0], 99)) * 1e6,
            "mapped_early_us": float(np.percentile(table[:, 0] - table[:, 4], 99)) * 1e6,
            "gpu_util": util,
            "gpu_util_failed": util_failed if readings else "no time",
            "gpu_util_half_load_pct": statistics.mean(
                [r["gpu_util_pct"] for r in readings[len(readings) * 3 // 4 :]]
            ),
            "telemetry": [{k: v for k, v in r.items() if not math.isnan(v)} for r in readings],
            "gpm": any(
                "sm_active" in name and not math.isnan(value)
                for r in readings
                for name, value in r.items()
            ),
            "why_not": nvml.why_not.get(card, {}),
            "epoch_minus_host_s": time.time() - time.perf_counter(),
        }
    )


def leftovers() -> dict[str, list[str]]:
    """Returns what processes may leave: shared memory, children, temporary folders."""
    children = [
        child for child in psutil.Process().children(recursive=True) if child.status() != "zombie"
    ]
    return {
        "shared memory": sorted(os.listdir("/dev/shm")),
        "children": [f"{child.pid} {child.name()}" for child in children],
        "temporary files": sorted(
            name for name in os.listdir(tempfile.gettempdir()) if "vitprof" in name
        ),
    }


def strategies(write: Write, _: float) -> None:
    """Trains each strategy for some steps in a process of its own, and looks for what is left over."""
    found: dict[str, Any] = {}
    before = leftovers()
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder)
        with (
            closing(RunStore(f"sqlite:///{logs / 'runs.sqlite'}")) as store,
            job_manager(store, logs=logs) as manager,
        ):
            for name in IN_ORDER:
                settings = settings_for(name)
                if reason := why_unavailable(
                    strategy(name), dataset_info(settings["dataset"], settings.get("n_images"))
                ):
                    found[name] = {"skipped": reason}
                    continue
                job = {"device": DEVICE, "steps": STEPS, "warmup_steps": 4, "evaluate": False}
                try:
                    [(_trial, run_id)] = run_trials(
                        manager, [Trial(RunConfig(**settings | job), name)], ""
                    )
                    run = store.run(run_id)
                    found[name] = {
                        "status": run.status,
                        "n_steps": len(store.steps(run_id)["step"]),
                    }
                    found[name] |= {"failed": str(run.error)} if run.error else {}
                except VitprofError as error:
                    found[name] = {"failed": one_line(error)}
                write(found)
    after = leftovers()
    left = {kind: sorted(set(names) - set(before[kind])) for kind, names in after.items()}
    write(found | {"left over": {kind: names for kind, names in left.items() if names}})


PARTS = {f.__name__: f for f in (costs, launches, pairs, gated, strategies)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=40.0, help="of pairs")
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=list(itertools.islice(PARTS, 4))
    )
    given = parser.parse_args()
    written: dict[str, Any] = {}
    if "strategies" not in given.only:  # whose jobs are forks of a process that has not used CUDA
        written["device_name"] = torch.cuda.get_device_name()
    for part in given.only:
        print(f"{part} ...", flush=True)

        def write(values: Any, part: str = part) -> None:
            written[part] = values
            given.file.write_text(json.dumps(written))

        try:
            PARTS[part](write, given.seconds)
        except Exception as error:  # whatever a driver does: the other parts go on
            written.setdefault(part, {})["failed"] = f"{type(error).__name__}: {one_line(error)}"
            given.file.write_text(json.dumps(written))


if __name__ == "__main__":
    main()
