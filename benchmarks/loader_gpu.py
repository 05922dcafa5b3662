"""The rows that need a GPU: they run jobs and judge their step records. Without a GPU they are "not seen".

Figures are of steady steps: warm-up steps and the first of each epoch are left out, as in a run's summary.
"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.loader_sides import Silent, never, warm
from benchmarks.measuring import Row, Settings
from vitprof.config import RunConfig
from vitprof.datasets.catalog import dataset_info
from vitprof.engine.train import train
from vitprof.errors import VitprofError, one_line
from vitprof.measure.devices import open_device
from vitprof.measure.step_columns import StepMarks, derive, gather
from vitprof.selftest.gpu.device_cases import pinned_bytes_per_s

STEPS = 60
WARMUP_STEPS = 10
DIGITS: dict[str, Any] = {"dataset": "digits", "batch_size": 1000}
LARGE: dict[str, Any] = {
    "dataset": "photos",
    "n_images": 2560,
    "batch_size": 256,
    "model": "s/16",
    "precision": "bf16",
}


class Steps(Silent):
    """Events of which only the step records are kept."""

    def __init__(self) -> None:
        self.marks: list[StepMarks] = []

    def step(self, marks: StepMarks) -> None:
        self.marks.append(marks)


class Steady:
    """The steady steps of a job, column by column."""

    def __init__(self, device: str, **config: Any) -> None:
        steps = Steps()
        fixed: dict[str, Any] = {"steps": STEPS, "warmup_steps": WARMUP_STEPS, "evaluate": False}
        train(warm(RunConfig(**(fixed | {"device": device} | config))), steps, never)
        self._steps = derive(gather(steps.marks))
        self._steady = (self._steps["warmup"] == 0) & (
            np.diff(self._steps["epoch"], prepend=-1) == 0
        )

    def __getitem__(self, column: str) -> NDArray[np.float64]:
        return self._steps[column][self._steady]


def pinned(row: Row, device: str) -> float:
    """Returns the bytes/s of a job's copies of full batches, as a share of the bandwidth measured before and after."""
    info = dataset_info("photos")
    image_bytes = info.image_size**2 * info.channels
    batch_bytes = LARGE["batch_size"] * image_bytes
    opened = open_device(device, time.perf_counter)
    before = pinned_bytes_per_s(opened, batch_bytes)
    steps = Steady(device, strategy="memory", **LARGE)
    after = pinned_bytes_per_s(opened, batch_bytes)
    copied = statistics.median(steps["samples"] * image_bytes / steps["h2d_s"])
    row.note = f"{copied / 1e9:.3g} of {(before + after) / 2e9:.3g} GB/s"
    return float(copied * 2 / (before + after))


def resident(row: Row, device: str) -> float:
    """Returns the share of a step in which the loop waits for the loader and the transfer."""
    steps = Steady(device, strategy="device", **DIGITS)
    step_s = float(steps["step_s"].mean())
    row.note = f"of {step_s * 1e3:.3g} ms"
    return float((steps["data_wait_s"] + steps["h2d_s"]).mean()) / step_s


def stream(row: Row, device: str, config: dict[str, Any]) -> float:
    """Returns the share of a step that is exposed wait for data."""
    alone = Steady(device, transfer="stream", loader_only=True, **config)
    steps = Steady(device, transfer="stream", **config)
    step_s, alone_s = float(steps["step_s"].mean()), float(alone["step_s"].mean())
    compute_s = float(steps["compute_s"].mean())
    row.note = f"of {step_s * 1e3:.3g} ms; the loader alone takes {alone_s * 1e3:.3g} ms, compute {compute_s * 1e3:.3g}"
    if alone_s >= compute_s:
        row.at_most = None
        row.note += ": no gate for a loader that is slower than compute"
    return float(steps["exposed_wait_s"].mean()) / step_s


def stream_digits(row: Row, device: str) -> float:
    return stream(row, device, {"strategy": "memory-ahead", **DIGITS})


def stream_photos(row: Row, device: str) -> float:
    return stream(row, device, {"strategy": "preprocessed", **LARGE})


Figure = Callable[[Row, str], float]
ROWS: dict[str, tuple[str, float | None, float | None, Figure]] = {
    "gpu-pinned": ("pinned copy / measured pinned bandwidth", 0.8, None, pinned),
    "gpu-resident": ("resident: loader's share of a step", None, 0.01, resident),
    "gpu-stream-digits": (
        "prefetch stream, digits: exposed wait's share of a step",
        None,
        0.02,
        stream_digits,
    ),
    "gpu-stream-photos": (
        "prefetch stream, photos: exposed wait's share of a step",
        None,
        0.02,
        stream_photos,
    ),
}


def rows(names: Sequence[str], settings: Settings, device: str = "cuda:0") -> list[Row]:
    """Returns the rows with these names; without a GPU their notes say so."""
    measured = []
    for name in names:
        title, at_least, at_most, figure = ROWS[name]
        row = Row(name, title, at_least, at_most, clock="device")
        measured.append(row)
        if not torch.cuda.is_available():
            row.note = "no GPU"
            continue
        print(f"{row.title} ...", file=sys.stderr)
        try:
            row.ratios = [figure(row, device) for _ in range(settings.rounds)]
        except VitprofError as error:
            row.note = f"failed: {one_line(error)}"
    return measured
