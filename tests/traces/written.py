"""Traces as torch.profiler writes them, of spans and work that a test names: milliseconds since they begin."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

from vitprof.traces.events import EventCollector, TraceEvents

PROCESS = 4711
TRAINING = 4711
"""The main thread of a process has its number."""
AUTOGRAD = 4750
BASE_NS = 1_743_521_598_000_000_000
BEGIN_US = 198_093_488_368.463
"""Where a trace begins, since its base: as far into the machine's time as in real ones."""
GPU = {
    "id": 0,
    "name": "NVIDIA H100 80GB HBM3",
    "totalGlobalMem": 84_929_347_584,
    "computeMajor": 9,
    "computeMinor": 0,
    "numSms": 132,
}
IN_WORKERS = "_MultiProcessingDataLoaderIter"
IN_THE_LOOP = "_SingleProcessDataLoaderIter"


class WrittenTrace:
    """A trace that is written event by event."""

    def __init__(self, **about: Any) -> None:
        self.about: dict[str, Any] = {
            "schemaVersion": 1,
            "deviceProperties": [],
            "cuda_runtime_version": 12060,
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": BASE_NS,
            **about,
        }
        self.events: list[dict[str, Any]] = []
        self._correlation = 100

    def span(
        self,
        name: str,
        since_ms: float,
        ms: float,
        *,
        thread: int = TRAINING,
        category: str = "user_annotation",
        **arguments: Any,
    ) -> None:
        event = {"ph": "X", "cat": category, "name": name, "pid": PROCESS, "tid": thread}
        event |= {"ts": BEGIN_US + since_ms * 1e3, "dur": ms * 1e3, "args": arguments}
        self.events.append(event)

    def fetch(
        self, since_ms: float, ms: float, iterator: str = IN_WORKERS, thread: int = TRAINING
    ) -> None:
        """A request for a batch."""
        self.span(f"enumerate(DataLoader)#{iterator}.__next__", since_ms, ms, thread=thread)

    def update(self, since_ms: float, ms: float, thread: int = TRAINING) -> None:
        """A step of an optimizer."""
        self.span("Optimizer.step#AdamW.step", since_ms, ms, thread=thread)

    def iteration(self, number: int, since_ms: float, ms: float) -> None:
        """A step of the profiler, which the device's side repeats."""
        self.span(f"ProfilerStep#{number}", since_ms, ms, **{"External id": number})
        self.events.append(
            self.events[-1] | {"cat": "gpu_user_annotation", "pid": 0, "tid": 7, "dur": 9e9}
        )

    def work(
        self,
        since_ms: float,
        ms: float,
        *,
        launched_ms: float | None = None,
        name: str = "void at::native::vectorized_elementwise_kernel<4>",
        category: str = "kernel",
        stream: int = 7,
        device: int = 0,
        thread: int = AUTOGRAD,
    ) -> None:
        """A piece of the device's work; `launched_ms`: when the host launched it, in 5 us."""
        self._correlation += 1
        if launched_ms is not None:
            call = "cudaLaunchKernel" if category == "kernel" else "cudaMemcpyAsync"
            self.span(
                call,
                launched_ms,
                0.005,
                thread=thread,
                category="cuda_runtime",
                cbid=211,
                correlation=self._correlation,
            )
        arguments = {
            "device": device,
            "context": 1,
            "stream": stream,
            "correlation": self._correlation,
        }
        event = {"ph": "X", "cat": category, "name": name, "pid": device, "tid": stream}
        event |= {"ts": BEGIN_US + since_ms * 1e3, "dur": ms * 1e3, "args": arguments}
        self.events.append(event)

    def copy(self, since_ms: float, ms: float, *, pinned: bool = True, **how: Any) -> None:
        """A copy of a batch to the device."""
        memory = "Pinned" if pinned else "Pageable"
        name = f"Memcpy HtoD ({memory} -> Device)"
        self.work(since_ms, ms, name=name, category="gpu_memcpy", **how)

    def noise(self, since_ms: float) -> None:
        """What a profiler with shapes and stacks records, too, and says nothing of steps."""
        shapes = {"Input Dims": [[64, 3, 224, 224], [], []], "Call stack": "train.py(12): main"}
        self.span("aten::conv2d", since_ms, 0.1, category="cpu_op", **shapes)
        stack = "torch/utils/data/dataloader.py(700): __next__"
        self.span(stack, since_ms, 0.1, category="python_function", **{"Python id": 7})
        at = {"pid": PROCESS, "tid": TRAINING, "ts": BEGIN_US + since_ms * 1e3}
        self.events += [
            {"ph": "s", "id": 5, "cat": "ac2g", "name": "ac2g", **at},
            {"ph": "f", "id": 5, "cat": "ac2g", "name": "ac2g", "bp": "e", **at},
            {"ph": "i", "s": "t", "name": "[memory]", "args": {"Bytes": 512}, **at},
            {"ph": "M", "name": "process_name", "args": {"name": "python"}, **at},
        ]

    def shuffled(self) -> WrittenTrace:
        """The same with its events in no order."""
        other = WrittenTrace(**self.about)
        other.events = random.Random(5).sample(self.events, len(self.events))
        return other

    def text(self) -> str:
        whole = {**self.about, "traceEvents": self.events, "traceName": "/tmp/a.pt.trace.json"}
        return json.dumps(whole, indent=1)

    def write(self, path: Path) -> Path:
        data = self.text().encode()
        path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
        return path

    def collected(self) -> TraceEvents:
        """What is taken of the events."""
        collector = EventCollector()
        for event in self.events:
            collector.add(event)
        return collector.finish()


def trained_on_cpu(
    n: int, *, wait_ms: float, work_ms: float, iterator: str = IN_THE_LOOP, first: int = 0
) -> WrittenTrace:
    """`n` steps of a loop that calls `prof.step()` last; its optimizer takes a tenth of the work."""
    trace = WrittenTrace()
    at_ms = 0.0
    for number in range(n):
        trace.iteration(first + number, at_ms, wait_ms + work_ms + 0.02)
        trace.fetch(at_ms + 0.01, wait_ms, iterator)
        trace.noise(at_ms + wait_ms + 0.02)
        trace.update(at_ms + 0.01 + wait_ms + 0.9 * work_ms, 0.1 * work_ms)
        at_ms += wait_ms + work_ms + 0.02
    return trace


def trained_on_gpu(
    n: int,
    *,
    wait_ms: float = 0.5,
    launch_ms: float = 0.5,
    copy_ms: float = 0.0,
    work_ms: float = 1.0,
    n_kernels: int = 4,
    with_updates: bool = True,
    waits_for_work: bool = False,
    first: int = 10,
) -> WrittenTrace:
    """`n` steps of a loop in which the host waits, copies and launches, and the device works in its own
    time, one piece after the other. `waits_for_work`: each step reads its loss."""
    trace = WrittenTrace(deviceProperties=[GPU])
    host_ms = 0.0
    device_ms = 0.0
    for number in range(n):
        begin_ms = host_ms
        trace.fetch(host_ms, wait_ms)
        host_ms += wait_ms
        if copy_ms:
            device_ms = max(device_ms, host_ms + 0.01)
            trace.copy(device_ms, copy_ms, launched_ms=host_ms)
            device_ms += copy_ms
        for kernel in range(n_kernels):
            launched_ms = host_ms + launch_ms * kernel / n_kernels
            # It begins as soon as it is launched, and what was before is done.
            device_ms = max(device_ms, launched_ms + 0.01)
            trace.work(device_ms, work_ms / n_kernels, launched_ms=launched_ms)
            device_ms += work_ms / n_kernels
        host_ms += launch_ms
        if with_updates:
            trace.update(host_ms - 0.1 * launch_ms, 0.1 * launch_ms)
        if waits_for_work:
            host_ms = max(host_ms, device_ms + 0.005)
        trace.iteration(first + number, begin_ms, host_ms - begin_ms)
    return trace
