"""A stand-in for `torch.cuda`: one stream of a card that is not there, on a clock that goes on only where work does.

What it stands in for is listed in `Card.put_in`. It takes note of each call that would reach the driver, in order, and
knows when the card would have done what it was given. Tensors stay in the host's memory.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engine_fixtures import Recorded, never
from vitprof.config import RunConfig
from vitprof.engine.devices import Mark, cuda
from vitprof.engine.devices.cuda import CudaDevice
from vitprof.engine.train import train
from vitprof.engine.transfer import Moved

COPY_S = 50e-6
CLOCK_KHZ = 1_980_000


class Card:
    """A GPU with one stream."""

    def __init__(self, *, clock_khz: int | None = CLOCK_KHZ) -> None:
        self.now = 0.0
        """The host's clock."""
        self.free = 0.0
        """When the card will have done everything so far."""
        self.calls: list[str | tuple[str, int]] = []
        self._properties = SimpleNamespace(name="stand-in", total_memory=8e9, uuid="GPU-0", major=9, minor=0)
        if clock_khz is not None:
            self._properties.clock_rate = clock_khz
        self.hz = 1e3 * (clock_khz or 2_000_000)

    def clock(self) -> float:
        return self.now

    def launch(self, host_s: float, device_s: float) -> None:
        """A kernel that takes the host `host_s` to launch, and the card `device_s`."""
        self.calls.append("launch")
        self.now += host_s
        self.free = max(self.now, self.free) + device_s

    def copy(self, tensor: Tensor, *, non_blocking: bool = False) -> Tensor:
        self.calls.append("copy")
        self.free = max(self.now, self.free) + COPY_S
        if not non_blocking:
            self.now = self.free
        return tensor

    def sleep(self, cycles: int) -> None:
        assert isinstance(cycles, int)
        self.calls.append(("sleep", cycles))
        self.free = max(self.now, self.free) + cycles / self.hz

    def synchronize(self, device: Any = None) -> None:
        self.calls.append("synchronize")
        self.now = max(self.now, self.free)

    def put_in(self, patch: pytest.MonkeyPatch) -> None:
        """Puts the card in `torch.cuda`'s place, as far as `CudaDevice` uses it."""
        card = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                card.calls.append("mark")
                self.at = max(card.now, card.free)

            def query(self) -> bool:
                return card.now >= self.at

            def synchronize(self) -> None:
                card.now = max(card.now, self.at)

            def elapsed_time(self, end: Event) -> float:
                return (end.at - self.at) * 1e3

        empty = torch.empty

        def pageable(*args: Any, pin_memory: bool = False, **more: Any) -> Tensor:
            return empty(*args, **more)

        patch.setattr(torch, "empty", pageable)
        stands_in = {
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "set_device": lambda index: None,
            "reset_peak_memory_stats": lambda index: None,
            "max_memory_reserved": lambda device: 0,
            "max_memory_allocated": lambda device: 0,
            "memory_reserved": lambda device: 0,
            "memory_allocated": lambda device: 0,
            "mem_get_info": lambda device: (1 << 34, 1 << 34),
            "get_device_properties": lambda device: self._properties,
            "Event": Event,
            "synchronize": self.synchronize,
            "_sleep": self.sleep,
        }
        for name, value in stands_in.items():
            patch.setattr(torch.cuda, name, value)
        patch.setattr(cuda, "first_kernel", lambda device: None)  # it runs whatever it is given
        patch.setattr(CudaDevice, "upload", lambda device, tensor, **how: self.copy(tensor, **how))

    def train(
        self, patch: pytest.MonkeyPatch, config: RunConfig, *, launches: int, host_s: float, sample_s: float
    ) -> Recorded:
        """Runs the training loop on the card: steps of so many kernels.

        Each takes the host `host_s` to launch, and the card `sample_s` for each sample.
        """
        self.put_in(patch)
        card = self

        class Trainer:
            def step(self, batch: Moved, to_input: Any) -> tuple[Mark, Tensor]:
                for _ in range(launches):
                    card.launch(host_s, sample_s * len(batch.labels))
                return batch.ready, torch.tensor(2.0)

            def evaluate(self, batch: Moved, to_input: Any) -> None:
                raise NotImplementedError

            def evaluated(self) -> dict[str, float]:
                return {}

        events = Recorded()
        device = CudaDevice("cuda:0", self.clock, events.notice)
        device.torch_device = torch.device("cpu")
        assert train(config, events, never, clock=self.clock, device=device, trains=lambda *_: Trainer())
        return events
