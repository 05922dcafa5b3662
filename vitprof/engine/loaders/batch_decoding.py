"""The common part of loaders whose decoder takes a whole batch at once, on the training GPU if there is one."""

from __future__ import annotations

from collections.abc import Callable

import torch

from vitprof.config import RunConfig
from vitprof.config.accelerators import is_simulated
from vitprof.config.catalog import DatasetInfo
from vitprof.engine.loaders import Schedule
from vitprof.engine.loaders.batch_assembly import EncodedMaker
from vitprof.engine.storage import EncodedStorage
from vitprof.measure.devices import Mark
from vitprof.measure.devices.others import cuda_here
from vitprof.measure.stopwatch import asked_wait
from vitprof.telemetry import number_here


class BatchDecoding:
    """Base of such loaders: the order of the samples, their crops, and the device that decodes."""

    def __init__(
        self,
        storage: EncodedStorage,
        info: DatasetInfo,
        config: RunConfig,
        *,
        train: bool,
        mark: Callable[[], Mark] | None,
    ) -> None:
        self._schedule = Schedule(storage, config, train=train)
        self._storage = storage
        self._make = EncodedMaker(storage, info, config, train).punctual()
        self._times, self._wait = config.loader_times, asked_wait(config, train=train)
        self._depth = config.prefetch_factor or 1
        self._device = decoding_device(config.device)
        # The loop receives a batch that the GPU is still decoding, and the training stream waits for it unseen. What
        # the stream does up to this mark is decoding.
        self._mark = mark if self._device.type == "cuda" else None

    def __len__(self) -> int:
        return len(self._schedule)

    def _decoded(self) -> Mark | None:
        """Returns a mark after the work given to the GPU so far; None if it does not decode, or is not measured."""
        return self._mark() if self._mark is not None else None


def decoding_device(name: str) -> torch.device:
    """Returns the device to decode on for the device called `name`: the training GPU, or the CPU if there is none."""
    if name == "cpu" or is_simulated(name) or not cuda_here():
        return torch.device("cpu")
    return torch.device("cuda", number_here("cuda:0" if name == "auto" else name))
