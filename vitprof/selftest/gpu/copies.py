"""Copies to the device: how fast they are, whether they run beside compute, and whether any batch arrives torn."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from vitprof.selftest.gpu.bench import Bench
from vitprof.selftest.gpu.outcome import Outcome, judged

if TYPE_CHECKING:
    from torch import Tensor

    from vitprof.engine.batch import Batch
    from vitprof.engine.transfer import Transfer
    from vitprof.measure.devices import Device, Mark

IMAGES = (256, 224, 224, 3)
"""A batch of photos: 38.5 MB of uint8."""
COPIES, WARMUP_COPIES = 30, 5
LEAST_BANDWIDTH_FRAC = 0.8
STREAMED = (32, 224, 224, 3)
"""A batch of 4.8 MB."""
BATCHES = 1000
BEHIND = 4
"""Steps launched before the marks of a step are read: by then the device has usually passed it."""
LEAST_COMPUTE_S, LONGER = 0.002, 2.0
"""Least seconds of a step's compute, and its least multiple of the time to copy a batch or to fill it on the host."""
LEAST_HIDDEN_FRAC = 0.9


def _as_it_is(images: Tensor) -> Tensor:
    return images


def _batch(transfer: Transfer, shape: tuple[int, ...], value: int) -> Batch:
    """Returns a batch in the transfer's own memory, where it has some, with one value in all pixels and labels."""
    import torch

    from vitprof.engine.batch import Batch

    images = transfer.buffer(shape) if transfer.buffer else torch.empty(shape, dtype=torch.uint8)
    images.fill_(value)
    return Batch(images.permute(0, 3, 1, 2), torch.full((shape[0],), value))


def pinned_bytes_per_s(device: Device, n_bytes: int) -> float:
    """Returns the bandwidth in bytes/s of copies of `n_bytes` from pinned memory: the median of `COPIES`, by marks."""
    import torch

    host = torch.ones(n_bytes, dtype=torch.uint8, pin_memory=device.torch_device.type == "cuda")
    took = []
    for _ in range(WARMUP_COPIES + COPIES):
        start = device.mark()
        device.upload(host, non_blocking=True)
        end = device.mark()
        device.wait(end)
        took.append(device.seconds(end) - device.seconds(start))
        device.release(start, end)
    return n_bytes / median(took[WARMUP_COPIES:])


def copy_bandwidth(bench: Bench) -> Outcome:
    """Copies batches as a job with pinned memory does, between two measurements of the bandwidth alone."""
    from vitprof.engine.transfer import open_transfer

    device = bench.device
    transfer = open_transfer("pinned", device, _as_it_is)
    n_bytes = int(np.prod(IMAGES))
    before = pinned_bytes_per_s(device, n_bytes)
    took = []
    for i in range(WARMUP_COPIES + COPIES):
        moved = transfer(_batch(transfer, IMAGES, i))
        device.wait(moved.copy_end)
        took.append(device.seconds(moved.copy_end) - device.seconds(moved.copy_start))
        device.release(moved.copy_start, moved.copy_end)
    after = pinned_bytes_per_s(device, n_bytes)
    alone, copied = (before + after) / 2, n_bytes / median(took[WARMUP_COPIES:])
    share = copied / alone
    wrong = [] if share >= LEAST_BANDWIDTH_FRAC else [f"only {share:.0%} of the bandwidth is reached"]
    return judged(
        f"{copied / 1e9:.3g} of {alone / 1e9:.3g} GB/s: {share:.0%}",
        wrong,
        batch_bytes=n_bytes,
        copied_bytes_per_s=copied,
        pinned_bytes_per_s=[before, after],
    )


def prefetch_overlap(bench: Bench) -> Outcome:
    """Streams batches of one value each beside compute; the device itself checks each after its step's work."""
    import torch

    from vitprof.engine.transfer import open_transfer

    device = bench.device
    copy_s = int(np.prod(STREAMED)) / pinned_bytes_per_s(device, int(np.prod(STREAMED)))
    transfer = open_transfer("stream", device, _as_it_is)
    filled_s = []
    for i in range(WARMUP_COPIES):
        began = bench.clock()
        transfer(_batch(transfer, STREAMED, i))
        device.synchronize()
        filled_s.append(bench.clock() - began)
    ask_s = bench.spin(max(LEAST_COMPUTE_S, LONGER * copy_s, LONGER * min(filled_s)))
    torn = torch.zeros((), dtype=torch.int64, device=device.torch_device)
    waiting: deque[tuple[Mark, Mark, Mark, Mark]] = deque()
    spans: list[tuple[float, ...]] = []

    def resolve() -> None:
        marks = waiting.popleft()
        device.wait(marks[-1])
        spans.append(tuple(device.seconds(mark) for mark in marks))
        device.release(*{id(mark): mark for mark in marks}.values())

    for i in range(BATCHES):
        moved = transfer(_batch(transfer, STREAMED, i % 251))
        start = device.mark()
        device.gate(ask_s)
        end = device.mark()
        # after the step's work: memory that is reused too early has been overwritten by then
        torn += (moved.images != i % 251).any() | (moved.labels != i % 251).any()
        waiting.append((moved.copy_start, moved.copy_end, start, end))
        if len(waiting) > BEHIND:
            resolve()
    while waiting:
        resolve()
    copy_start, copy_end, start_s, end_s = np.array(spans).T
    hidden_frac = _within(copy_start, copy_end, start_s, end_s) / float((copy_end - copy_start).sum())
    n_torn = int(torn)
    wrong = [f"{n_torn} batches did not arrive as they were sent"] if n_torn else []
    if not hidden_frac >= LEAST_HIDDEN_FRAC:
        wrong.append(f"only {hidden_frac:.0%} of the copying ran beside compute")
    return judged(
        f"{n_torn} torn of {BATCHES:,}; {hidden_frac:.0%} of the copying beside compute",
        wrong,
        batches=BATCHES,
        torn=n_torn,
        hidden_frac=hidden_frac,
        copy_ms=float(np.median(copy_end - copy_start)) * 1e3,
        compute_ms=float(np.median(end_s - start_s)) * 1e3,
        step_ms=float(np.median(np.diff(end_s))) * 1e3,
    )


Times = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def _within(a_start: Times, a_end: Times, b_start: Times, b_end: Times) -> float:
    """Returns how many seconds of the spans `a` (n,) are within the spans `b` (m,), which do not overlap each other."""
    met = np.minimum(a_end[:, None], b_end) - np.maximum(a_start[:, None], b_start)
    return float(np.maximum(met, 0.0).sum())
