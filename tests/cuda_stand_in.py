"""A stand-in for `torch.cuda`: a card that is not there, as far as `CudaDevice` and the scripts ask it.

It has streams, events, waits, copies and page-locked memory on clocks of its own: the host's goes on only where work or
a wait takes its time, and by `tick_s` each time it is read. It takes note of each call that would reach the driver, in
order, and knows when the card would have done what it was given. Tensors stay in the host's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from vitprof.measure.devices import cuda
from vitprof.measure.devices.cuda import CudaDevice

COPY_S = 50e-6
"""Of a copy, however small."""
CLOCK_KHZ = 1_980_000


class Stream:
    """Work that is done in order."""

    def __init__(self, card: Card) -> None:
        self.card = card
        self.free_s = 0.0
        """When all of it will be done."""

    def query(self) -> bool:
        return self.card.now >= self.free_s

    def wait_stream(self, other: Stream) -> None:
        self.card.calls.append("join")
        self.free_s = max(self.free_s, other.free_s)

    def record_event(self) -> Event:
        event = Event(self.card)
        event.record(self)
        return event


class Event:
    """A place in a stream."""

    recorded_s: float

    def __init__(self, card: Card) -> None:
        self.card, self.at = card, 0.0

    def record(self, stream: Stream | None = None) -> None:
        self.card.calls.append("mark")
        self.at = max(self.card.now, (stream or self.card.current).free_s)

    def query(self) -> bool:
        return self.card.now >= self.at

    def synchronize(self) -> None:
        self.card.calls.append("wait")
        self.card.now = max(self.card.now, self.at)

    def elapsed_time(self, later: Event) -> float:
        return (later.at - self.at) * (1 + self.card.drift) * 1e3


class Card:
    """A GPU, and the clocks of the host and of the card."""

    def __init__(
        self,
        *,
        clock_khz: int | None = CLOCK_KHZ,
        hz: float | None = None,
        tick_s: float = 0.0,
        copy_s: float = COPY_S,
        bytes_per_s: float = float("inf"),
    ) -> None:
        """`clock_khz` is what PyTorch tells of the multiprocessors' clock, `hz` how fast it is; a copy takes `copy_s`
        and what its bytes take.
        """
        self.now = 1000.0
        """The host's clock."""
        self.drift = 0.0
        """By how much the card's clock is faster."""
        self.calls: list[str | tuple[str, int]] = []
        self.copied: list[int] = []
        """Bytes of each copy."""
        self.current = self.trains = Stream(self)
        self.streams = [self.trains]
        self.hz = hz or 1e3 * (clock_khz or 2_000_000)
        self._tick_s, self._copy_s, self._bytes_per_s = tick_s, copy_s, bytes_per_s
        self._pinned: dict[int, Tensor] = {}
        """By address. They are kept, or memory of others could come to lie there."""
        told = {} if clock_khz is None else {"clock_rate": clock_khz}
        self._properties = SimpleNamespace(name="stand-in", total_memory=1 << 34, uuid="0", major=9, minor=0, **told)

    def clock(self) -> float:
        self.now += self._tick_s
        return self.now

    def wait(self, seconds: float) -> None:
        """The host does something else for so long."""
        self.now += seconds

    def work(self, seconds: float) -> None:
        """Gives the card work in the current stream."""
        self.current.free_s = max(self.now, self.current.free_s) + seconds

    def launch(self, host_s: float, device_s: float) -> None:
        """A kernel that takes the host `host_s` to launch, and the card `device_s`."""
        self.calls.append("launch")
        self.now += host_s
        self.work(device_s)

    def copy(self, tensor: Tensor, *, non_blocking: bool = False) -> Tensor:
        self.calls.append("copy")
        self.copied.append(tensor.nbytes)
        self.work(self._copy_s + tensor.nbytes / self._bytes_per_s)
        if not non_blocking:
            self.now = max(self.now, self.current.free_s)
        return tensor.clone()

    def synchronize(self, device: Any = None) -> None:
        self.calls.append("synchronize")
        self.now = max(self.now, *(stream.free_s for stream in self.streams))

    def new_stream(self, device: Any = None) -> Stream:
        self.streams.append(Stream(self))
        return self.streams[-1]

    @contextmanager
    def within(self, stream: Stream | None) -> Iterator[None]:
        before, self.current = self.current, stream or self.current
        yield
        self.current = before

    def put_in(self, patch: pytest.MonkeyPatch) -> None:
        """Puts the card in `torch.cuda`'s place."""
        card = self

        def event(enable_timing: bool) -> Event:
            assert enable_timing
            return Event(card)

        fakes: dict[str, Any] = {
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "set_device": lambda index: None,
            "current_device": lambda: 0,
            "reset_peak_memory_stats": lambda index: None,
            "max_memory_reserved": lambda device: 0,
            "max_memory_allocated": lambda device: 0,
            "memory_reserved": lambda device: 0,
            "memory_allocated": lambda device: 0,
            "mem_get_info": lambda device: (1 << 34, 1 << 34),
            "get_device_properties": lambda device: card._properties,
            "Event": event,
            "Stream": card.new_stream,
            "stream": card.within,
            "current_stream": lambda device=None: card.current,
            "is_current_stream_capturing": lambda: False,
            "synchronize": card.synchronize,
            "_sleep": card._sleep,
        }
        for name, fake in fakes.items():
            patch.setattr(torch.cuda, name, fake)
        # a PyTorch without CUDA has no such function
        patch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: id(card.current), raising=False)
        for name in ("empty", "ones"):
            patch.setattr(torch, name, self._pinning(getattr(torch, name)))
        patch.setattr(Tensor, "pin_memory", lambda tensor: card._pin(tensor.clone()))
        patch.setattr(Tensor, "is_pinned", lambda tensor: tensor.untyped_storage().data_ptr() in card._pinned)
        patch.setattr(Tensor, "record_stream", lambda tensor, stream: None)
        patch.setattr(cuda, "first_kernel", lambda device: None)  # it runs whatever it is given
        patch.setattr(CudaDevice, "upload", lambda device, tensor, **how: card.copy(tensor, **how))

    def device(self, patch: pytest.MonkeyPatch, tell: Callable[[str], None] = lambda line: None) -> CudaDevice:
        """Returns the real device on the card, which is put in."""
        self.put_in(patch)
        device = CudaDevice("cuda:0", self.clock, tell)
        device.torch_device = torch.device("cpu")
        return device

    def _sleep(self, cycles: int) -> None:
        assert isinstance(cycles, int)
        self.calls.append(("sleep", cycles))
        self.work(cycles / self.hz)

    def _pin(self, tensor: Tensor) -> Tensor:
        self._pinned[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def _pinning(self, make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def made(*args: Any, pin_memory: bool = False, **more: Any) -> Tensor:
            tensor = make(*args, **more)
            return self._pin(tensor) if pin_memory else tensor

        return made
