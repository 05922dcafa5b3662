"""Cases of the device alone: marks mapped to the host's clock, copies, and kernels that run faster than
they are launched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from vitprof.analysis import arrays
from vitprof.selftest.gpu.bench import Bench, Recorded, Spinning
from vitprof.selftest.report import CaseOutcome, judged

if TYPE_CHECKING:
    from torch import Tensor

    from vitprof.engine.loaders.contract import Batch
    from vitprof.engine.transfer import Transfer
    from vitprof.measure.devices import Device

MARKS = 1000
APART_S = 0.003
"""Seconds between marks: they take over 3 s, so that the device's clock is anchored again and its drift
shows."""
MOST_OUTSIDE_S = 50e-6
"""How far outside its bracket a mark may be mapped: the anchor's own bracket is about 20 us wide, and
clocks drift."""
MOST_DRIFT_S = 100e-6
"""The most drift of the device's clock for each second: what `HostClock` follows without an error that
shows."""


def clock_mapping(bench: Bench) -> CaseOutcome:
    """Sets marks on an idle device, each between two readings of the host's clock, and maps all of them
    at the end.
    """
    device = bench.device
    brackets = []
    marks = []
    for _ in range(MARKS):
        bench.sleep(APART_S)
        before = bench.clock()
        mark = device.mark()
        device.wait(mark)
        brackets.append((before, bench.clock()))
        marks.append(mark)
    mapped_s = np.array([device.seconds(mark) for mark in marks])
    # by the device's own clock
    device_s = np.array([marks[0].elapsed_time(mark) for mark in marks]) / 1e3
    device.release(*marks)
    before_s, after_s = np.array(brackets).T
    outside_s = np.maximum(np.maximum(before_s - mapped_s, mapped_s - after_s), 0.0)
    host_s = (before_s + after_s) / 2 - before_s[0]
    # other programs may hold this one up inside a bracket
    widths_s = after_s - before_s
    tight = widths_s <= np.median(widths_s)
    drift, _offset = np.polyfit(host_s[tight], (device_s - host_s)[tight], 1)
    drift_us_per_s = float(drift) * 1e6
    outside_most_us = float(outside_s.max()) * 1e6
    wrong = []
    n_outside = int((outside_s > MOST_OUTSIDE_S).sum())
    if n_outside:
        wrong.append(f"{n_outside} marks are outside, the farthest by {outside_most_us:.0f} µs")
    # NaN is no drift that is known to be small
    if not abs(float(drift)) <= MOST_DRIFT_S:
        wrong.append(f"the clocks drift apart by {drift_us_per_s:+.1f} µs a second")
    if not (np.diff(mapped_s) > 0).all():
        wrong.append("a later mark was mapped to an earlier time")
    return judged(
        f"{MARKS - n_outside} of {MARKS} inside, at most {outside_most_us:.0f} µs outside; "
        f"drift {drift_us_per_s:+.1f} µs a second",
        wrong,
        marks=MARKS,
        outside_most_us=outside_most_us,
        bracket_median_us=float(np.median(widths_s)) * 1e6,
        drift_us_per_s=drift_us_per_s,
    )


IMAGES = (256, 224, 224, 3)
"""A batch of photos: 38.5 MB of uint8."""
COPIES = 30
WARMUP_COPIES = 5
LEAST_BANDWIDTH_FRAC = 0.8
"""The least share of the bandwidth of copies alone that a job's copies must reach."""


def filled(transfer: Transfer, shape: tuple[int, ...], value: int) -> Batch:
    """Returns a batch in the transfer's own memory, where it has some, with one value in all pixels and
    labels.
    """
    import torch

    from vitprof.engine.loaders.contract import Batch

    images = transfer.buffer(shape) if transfer.buffer else torch.empty(shape, dtype=torch.uint8)
    images.fill_(value)
    return Batch(images.permute(0, 3, 1, 2), torch.full((shape[0],), value))


def pinned_bytes_per_s(device: Device, n_bytes: int) -> float:
    """Returns the bandwidth in bytes/s of copies of `n_bytes` from pinned memory, by marks: the median of
    `COPIES`.
    """
    import torch

    host = torch.ones(n_bytes, dtype=torch.uint8, pin_memory=device.torch_device.type == "cuda")
    bench = Bench(device)
    took = [
        bench.timed(lambda: device.upload(host, non_blocking=True))
        for _ in range(WARMUP_COPIES + COPIES)
    ]
    return n_bytes / median(took[WARMUP_COPIES:])


def unchanged(images: Tensor) -> Tensor:
    return images


def copy_bandwidth(bench: Bench) -> CaseOutcome:
    """Copies batches as a job with pinned memory does, between two measurements of the bandwidth alone."""
    from vitprof.engine.transfer import open_transfer

    device = bench.device
    transfer = open_transfer("pinned", device, unchanged)
    n_bytes = int(np.prod(IMAGES))
    before = pinned_bytes_per_s(device, n_bytes)
    took = []
    for i in range(WARMUP_COPIES + COPIES):
        moved = transfer(filled(transfer, IMAGES, i))
        device.wait(moved.copy_end)
        took.append(device.seconds(moved.copy_end) - device.seconds(moved.copy_start))
        device.release(moved.copy_start, moved.copy_end)
    after = pinned_bytes_per_s(device, n_bytes)
    alone = (before + after) / 2
    copied = n_bytes / median(took[WARMUP_COPIES:])
    share = copied / alone
    wrong = []
    if not share >= LEAST_BANDWIDTH_FRAC:
        wrong.append(f"only {share:.0%} of the bandwidth is reached")
    return judged(
        f"{copied / 1e9:.3g} of {alone / 1e9:.3g} GB/s: {share:.0%}",
        wrong,
        batch_bytes=n_bytes,
        copied_bytes_per_s=copied,
        pinned_bytes_per_s=[before, after],
    )


KERNELS = 300
TINY_S = 2e-6
"""Seconds of a tiny kernel."""
TINY_EVERY_S = 10e-6
"""Seconds from one tiny kernel to the next: about as long as Python takes to launch one with PyTorch."""
LONGER_S = 40e-6
"""Seconds of a longer kernel. Between two queued kernels a GPU needs up to 1 us, which no tool counts as
kernel time: little enough beside 40 us to compare within 5%."""
LONGER_EVERY_S = 80e-6
"""Seconds from one longer kernel to the next."""
MOST_OFF_FRAC = 0.05
"""By how much the kernel time may differ from the other tool's."""
PROFILED_STEPS = 5
LAUNCHED_JOB: dict[str, Any] = {
    "strategy": "memory",
    "batch_size": 64,
    "warmup_steps": 8,
    "steps": 80,
}


def launch_bound(bench: Bench) -> CaseOutcome:
    """Trains on tiny kernels, which must be called launch-bound, and on longer ones, whose time must be
    right.
    """
    wrong = []
    tiny, _ = _launched(bench, TINY_S, TINY_EVERY_S)
    verdict = tiny.verdict()
    if verdict.kind != "launch-bound":
        wrong.append(f"{KERNELS} kernels of {TINY_S * 1e6:g} µs were called {verdict.kind}")
    longer, launch = _launched(bench, LONGER_S, LONGER_EVERY_S)
    kernel_s = arrays.median(longer.steps["kernel_s"])
    union_s = math.nan
    measured = f"{KERNELS} kernels: {verdict.kind}"
    if not math.isnan(kernel_s):
        measured += f"; kernel time {kernel_s * 1e3:.2f} ms"
        union_s = _union_s(bench, launch)
    if math.isnan(kernel_s):
        wrong.append("no step was measured behind a gate")
    elif math.isnan(union_s):
        measured += ", not compared: torch.profiler sees no kernels here (CUPTI)"
    else:
        off = kernel_s / union_s - 1
        measured += f", torch.profiler {union_s * 1e3:.2f} ms ({off:+.1%})"
        if abs(off) > MOST_OFF_FRAC:
            wrong.append(f"kernel time is off by {off:+.1%}, and {MOST_OFF_FRAC:.0%} is allowed")
    return judged(
        measured,
        wrong,
        kernels=KERNELS,
        kind=verdict.kind,
        launch_frac=verdict.launch_frac,
        tiny_kernel_ms=arrays.median(tiny.steps["kernel_s"]) * 1e3,
        tiny_compute_ms=tiny.steady("compute_s") * 1e3,
        kernel_ms=kernel_s * 1e3,
        profiler_kernel_ms=union_s * 1e3,
    )


def _launched(bench: Bench, kernel_s: float, every_s: float) -> tuple[Recorded, Callable[[], None]]:
    kernels = Spinning(bench.device, bench.spin(kernel_s), KERNELS, every_s, bench.clock)
    return bench.run(trains=lambda config, device: kernels, **LAUNCHED_JOB), kernels.launch


def _union_s(bench: Bench, launch: Callable[[], None]) -> float:
    """Returns the kernel time (s) of a step by the other tool; NaN where it sees no kernels."""
    if bench.kernels_s is None:
        return math.nan

    def work() -> None:
        for _ in range(PROFILED_STEPS):
            launch()
        bench.device.synchronize()

    return bench.kernels_s(work) / PROFILED_STEPS or math.nan


def kernels_s(work: Callable[[], None]) -> float:
    """Returns the seconds of the union of all kernels and copies of `work` on CUDA devices; 0 where none
    is seen.
    """
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        work()
    events = profiled.events() or ()
    spans = (
        (e.time_range.start, e.time_range.end) for e in events if e.device_type == DeviceType.CUDA
    )
    return union(spans) / 1e6  # microseconds


def union(spans: Iterable[tuple[float, float]]) -> float:
    """Returns the total length that the spans (start, end) cover."""
    covered = 0.0
    until = float("-inf")
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered
