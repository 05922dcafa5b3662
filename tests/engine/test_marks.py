"""What a device does before a step, through the real loop on a clock that only played work moves: its verdict."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine_fixtures import Recorded, trained
from vitprof.analysis.arrays import Series
from vitprof.analysis.timing.gaps import find_gaps
from vitprof.analysis.verdict.verdict import judge
from vitprof.config import RunConfig
from vitprof.config.accelerators import Accelerator
from vitprof.config.resolve import resolve
from vitprof.engine import train as train_module
from vitprof.engine import transfer as transfers
from vitprof.engine.loaders import dali
from vitprof.engine.loaders.batch_assembly import PixelMaker
from vitprof.engine.storage.arrays import MemoryStorage
from vitprof.engine.transforms import ToInput
from vitprof.measure.devices.simulated import SimulatedDevice
from vitprof.recording.columns import TELEMETRY_COLUMNS
from vitprof.recording.verdict import Verdict

MS = 1e-3
FACTS = {"device": "simulated:4,0", "cpu_count": 2, "memory_bytes": 2**33}


class Host:
    """A clock that moves when the host works or waits; to read it takes a moment."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 1e-7
        return self.now

    def works(self, seconds: float) -> None:
        self.now += seconds


class Working(SimulatedDevice):
    """A simulated device that does other work than steps, too."""

    def work(self, seconds: float) -> float:
        """Queues it in the current stream. Returns the mark of its end."""
        self.current.free_s = self.mark() + seconds
        return self.current.free_s


class Played:
    """Jobs on a device of these times."""

    simulated = True
    """Otherwise the job treats the device as one that computes: it normalises, and gathers a resident set, there."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.host, self.patch = Host(), patch
        self.device: Any = None

    def run(
        self, accelerator: Mapping[str, float], **config: Any
    ) -> tuple[RunConfig, dict[str, Any]]:
        figures = {"step_s": 4 * MS, "sample_s": 0.0, "copy_latency_s": 0.0} | accelerator
        figures |= {"pinned_bytes_per_s": 1e15, "pageable_bytes_per_s": 1e15}

        def opened(name: str, clock: Any, tell: Any) -> Working:
            self.device = Working(
                name, Accelerator("played", origin="", **figures), clock, self.host.works
            )  # type: ignore[arg-type]
            self.device.simulated = self.simulated
            return self.device  # type: ignore[no-any-return]

        self.patch.setattr(train_module, "open_device", opened)
        values = {
            "device": "simulated:4,0",
            "evaluate": False,
            "loader_times": False,
            "warmup_steps": 5,
            **config,
        }
        events: Recorded = trained(clock=self.host, **values)
        return resolve(RunConfig(**values)), events.steps


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(monkeypatch)


def verdict(config: RunConfig, steps: Series) -> Verdict:
    return judge(config, steps, (), {name: np.empty(0) for name in TELEMETRY_COLUMNS}, FACTS)


def steady(steps: Series, name: str) -> float:
    return float(np.median(steps[name][steps["warmup"] == 0]))


class StandIn:
    """A DALI pipeline that decodes in a stream of its own; the host gets a batch as soon as it is under way."""

    def __init__(self, played: Played, decode_s: float, size: int) -> None:
        self._played, self._decode_s, self._size = played, decode_s, size
        self._stream: Any = None
        self._fed: deque[int] = deque()
        self._done: deque[float] = deque()

    def feed(self, samples: list[Any]) -> None:
        self._fed.append(len(samples))

    def schedule_run(self) -> None:
        device: Any = self._played.device
        self._stream = self._stream or device.stream()
        with self._stream.use():
            self._done.append(device.work(self._decode_s))

    def share_outputs(self, stream: Any) -> tuple[StandIn]:
        """As DALI does: the stream that trains waits, the host does not."""
        trains = self._played.device.current
        trains.free_s = max(trains.free_s, self._done.popleft())
        return (self,)

    def as_tensor(self) -> torch.Tensor:
        return torch.zeros((self._fed.popleft(), self._size, self._size, 3), dtype=torch.uint8)

    def release_outputs(self) -> None:
        """Its memory lives as long as the tensor."""


@pytest.fixture
def decoding(played: Played, monkeypatch: pytest.MonkeyPatch, photos_home: Path) -> Iterator[Any]:
    """Runs DALI's loader with a stand-in that takes so long for a batch."""
    monkeypatch.setenv("VITPROF_HOME", str(photos_home))
    monkeypatch.setattr(dali, "decoding_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(dali, "feed", lambda pipeline, samples: pipeline.feed(samples))
    monkeypatch.setattr(dali, "end_pipeline", lambda pipeline: None)

    def run(decode_ms: float, **config: Any) -> tuple[RunConfig, dict[str, Any]]:
        monkeypatch.setattr(
            dali, "open_pipeline", lambda size, *_: StandIn(played, decode_ms * MS, size)
        )
        values = {
            "dataset": "photos",
            "n_images": 120,
            "strategy": "dali",
            "batch_size": 4,
            "steps": 60,
        }
        return played.run({}, **values, **config)

    return run


@pytest.mark.parametrize("transfer", ["blocking", "stream"])
def test_a_pipeline_starved_by_decoding_on_the_device_is_called_that(
    decoding: Any, transfer: str
) -> None:
    """The device decodes 20 ms and trains 4 ms; the loop never waits in next(loader)."""
    config, steps = decoding(20.0, transfer=transfer)
    after = verdict(config, steps)
    assert (after.kind, after.cause) == ("input-bound", "decode")
    assert re.search(r"Decoding by NVIDIA DALI was (99|100)% of that", after.sentence)
    assert after.idle_frac == pytest.approx(0.8, abs=0.01)
    assert after.cause_ms_per_batch == pytest.approx(16.0, abs=0.2)
    assert steady(steps, "decode_wait_s") == pytest.approx(16 * MS, abs=0.1 * MS)
    assert steady(steps, "compute_s") == pytest.approx(4 * MS, abs=0.01 * MS)
    np.testing.assert_allclose(steps["gap_s"] + steps["compute_s"], steps["step_s"], atol=1e-9)
    assert (steps["exposed_wait_s"] <= steps["gap_s"] + 1e-9).all()


def test_decoding_that_keeps_up_costs_nothing(decoding: Any) -> None:
    config, steps = decoding(1.0)
    assert steady(steps, "decode_wait_s") == pytest.approx(0, abs=0.01 * MS)
    assert verdict(config, steps).kind == "not input-bound"


@pytest.fixture
def slow_reads(played: Played, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Each batch takes the host so long, and the device to normalise it in a stream of its own, or to gather it."""
    made, read = PixelMaker.__call__, MemoryStorage.read
    played.simulated = False

    def run(
        read_ms: float,
        step_ms: float,
        *,
        normalise_ms: float = 0.0,
        gather_ms: float = 0.0,
        transfer: str,
    ) -> tuple[RunConfig, dict[str, Any]]:
        def makes(maker: PixelMaker, *args: Any) -> Any:
            played.host.works(read_ms * MS)
            return made(maker, *args)

        def reads(storage: MemoryStorage, *args: Any) -> torch.Tensor:
            played.device.work(gather_ms * MS)
            return read(storage, *args)

        def normalises(to_input: ToInput, images: torch.Tensor) -> torch.Tensor:
            played.device.work(normalise_ms * MS)
            return images

        monkeypatch.setattr(PixelMaker, "__call__", makes)
        monkeypatch.setattr(MemoryStorage, "read", reads)
        monkeypatch.setattr(ToInput, "__call__", normalises)
        job = {"strategy": "memory", "batch_size": 20, "steps": 80}
        return played.run({"step_s": step_ms * MS}, transfer=transfer, **job)

    return run


@pytest.mark.usefixtures("small_home")
@pytest.mark.parametrize(
    ("work", "compute_ms"),
    [
        ({"transfer": "stream", "normalise_ms": 3.0}, 3.0),
        ({"transfer": "resident", "gather_ms": 3.0}, 4.0),
    ],
)
def test_preparing_a_batch_on_the_device_is_not_idle(
    slow_reads: Any, work: dict[str, Any], compute_ms: float
) -> None:
    """A batch is read in 3 ms, prepared by the device in 3 ms, beside the step or before it; the step takes 1 ms: the
    device never rests, and nothing waits for Python."""
    config, steps = slow_reads(3.0, 1.0, **work)
    after = verdict(config, steps)
    assert after.kind == "not input-bound"
    assert after.host_frac < 0.01
    assert steady(steps, "compute_s") == pytest.approx(compute_ms * MS, abs=0.01 * MS)


@pytest.mark.usefixtures("small_home")
def test_idle_time_is_alike_in_all_strategies(slow_reads: Any) -> None:
    """The host reads for 10 ms; the device prepares and trains, wherever it does so, for 6 ms: it idles 4 of 10."""
    for work, step_ms in (
        ({"transfer": "pinned"}, 6.0),
        ({"transfer": "stream", "normalise_ms": 2.0}, 4.0),
        ({"transfer": "resident", "gather_ms": 1.0}, 5.0),
    ):
        _, steps = slow_reads(10.0, step_ms, **work)
        kept = steps["warmup"] == 0
        idle = steps["gap_s"][kept].sum() / steps["step_s"][kept].sum()
        assert idle == pytest.approx(0.4, abs=2e-3), work
        gaps = find_gaps(steps, ()).only(kept)
        assert 1 - gaps.shares()["busy"] == pytest.approx(idle, abs=1e-4)
        assert gaps.busy_ns + gaps.idle_ns == gaps.span_ns


@pytest.mark.usefixtures("small_home")
@pytest.mark.parametrize("transfer", ["pinned", "stream"])
def test_filling_pinned_memory_is_no_copy(
    played: Played, monkeypatch: pytest.MonkeyPatch, transfer: str
) -> None:
    """Copying a batch to page-locked memory takes the host 6 ms, the copy from there next to none."""
    to_pinned = transfers.to_pinned

    def slowly(*args: Any) -> torch.Tensor:
        played.host.works(6 * MS)
        return to_pinned(*args)

    monkeypatch.setattr(transfers, "to_pinned", slowly)
    values = {
        "strategy": "workers",
        "storage": "memory",
        "workers": 0,
        "batch_size": 20,
        "steps": 60,
    }
    config, steps = played.run({}, transfer=transfer, **values)
    assert steady(steps, "h2d_s") < 0.01 * MS
    assert steady(steps, "host_s") < 0.01 * MS
    after = verdict(config, steps)
    assert after.kind == "input-bound"
    assert after.cause != "transfer"
    assert after.idle_frac == pytest.approx(1 / 3, abs=0.01)
    if transfer == "pinned":  # the other cannot be told to use itself
        assert "Making batches was 100% of that" in after.sentence
