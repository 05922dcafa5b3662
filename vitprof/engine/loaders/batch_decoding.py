"""What loaders have in common whose decoder takes a batch at once, on the GPU that trains if one does."""

from __future__ import annotations

from collections.abc import Callable

import torch

from vitprof.config import RunConfig
from vitprof.config.accelerators import is_simulated
from vitprof.config.catalog import DatasetInfo
from vitprof.engine.devices import Mark
from vitprof.engine.devices.others import cuda_here
from vitprof.engine.loaders import Schedule
from vitprof.engine.loaders.making import EncodedMaker
from vitprof.engine.stopwatch import asked_wait
from vitprof.engine.storage import EncodedStorage
from vitprof.telemetry import number_here


class BatchDecoding:
    """What such a loader knows from its start: which samples make up its batches, how they are cropped, where."""

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
        # The loop gets a batch that the GPU still decodes: the stream that trains waits for it, where nobody looks.
        # What it does up to this mark is decoding.
        self._mark = mark if self._device.type == "cuda" else None

    def __len__(self) -> int:
        return len(self._schedule)

    def _decoded(self) -> Mark | None:
        """Returns the mark behind what was given to the GPU last; None where it does not decode, or nobody asks."""
        return self._mark() if self._mark is not None else None


def decoding_device(name: str) -> torch.device:
    """Returns where to decode: on the GPU that trains, if one does."""
    if name == "cpu" or is_simulated(name) or not cuda_here():
        return torch.device("cpu")
    return torch.device("cuda", number_here("cuda:0" if name == "auto" else name))
