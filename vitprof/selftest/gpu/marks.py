"""Marks on the device: mapped to the host's clock as they should be, and how fast copies are by them."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from vitprof.selftest.gpu.bench import Bench
from vitprof.selftest.report import Outcome, judged

if TYPE_CHECKING:
    from torch import Tensor

    from vitprof.engine.loaders.contract import Batch
    from vitprof.engine.transfer.contract import Transfer
    from vitprof.measure.devices import Device

MARKS = 1000
APART_S = 0.003
"""Seconds between marks: they take over 3 s, so that the device's clock is anchored again and its drift shows."""
MOST_OUTSIDE_S = 50e-6
"""How far outside its bracket a mark may be mapped: the anchor's own bracket is about 20 us wide, and clocks drift."""
MOST_DRIFT_S = 20e-6
"""The most drift for each second. Each clock's crystal is right within about 10 us a second."""
IMAGES = (256, 224, 224, 3)
"""A batch of photos: 38.5 MB of uint8."""
COPIES, WARMUP_COPIES = 30, 5
LEAST_BANDWIDTH_FRAC = 0.8


def clock_mapping(bench: Bench) -> Outcome:
    """Sets marks on an idle device, each between two readings of the host's clock, and maps all of them at the end.

    They are mapped at the end so that the mapping cannot rely on the time at which a mark is read.
    """
    device = bench.device
    brackets, marks = [], []
    for _ in range(MARKS):
        bench.sleep(APART_S)
        before = bench.clock()
        mark = device.mark()
        device.wait(mark)
        brackets.append((before, bench.clock()))
        marks.append(mark)
    at = np.array([device.seconds(mark) for mark in marks])
    device.release(*marks)
    before_s, after_s = np.array(brackets).T
    outside_s = np.maximum(np.maximum(before_s - at, at - after_s), 0.0)
    drift = float(np.polyfit(at - at[0], at - (before_s + after_s) / 2, 1)[0])
    wrong = []
    n_outside = int((outside_s > MOST_OUTSIDE_S).sum())
    if n_outside:
        wrong.append(f"{n_outside} marks are outside, the farthest by {outside_s.max() * 1e6:.0f} µs")
    if not abs(drift) <= MOST_DRIFT_S:
        wrong.append(f"the clocks drift apart by {drift * 1e6:+.1f} µs a second")
    if not (np.diff(at) > 0).all():
        wrong.append("a later mark was mapped to an earlier time")
    return judged(
        f"{MARKS - n_outside} of {MARKS} inside, at most {outside_s.max() * 1e6:.0f} µs outside; "
        f"drift {drift * 1e6:+.1f} µs a second",
        wrong,
        marks=MARKS,
        outside_most_us=float(outside_s.max()) * 1e6,
        bracket_median_us=float(np.median(after_s - before_s)) * 1e6,
        drift_us_per_s=drift * 1e6,
    )


def unchanged(images: Tensor) -> Tensor:
    return images


def filled(transfer: Transfer, shape: tuple[int, ...], value: int) -> Batch:
    """Returns a batch in the transfer's own memory, where it has some, with one value in all pixels and labels."""
    import torch

    from vitprof.engine.loaders.contract import Batch

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
