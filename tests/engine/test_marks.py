"""What a device does before a step, through the real loop on a clock that only played work moves: the verdict as it was
without the marks, and with them.
"""

from __future__ import annotations

import itertools
import math
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
from vitprof.engine.storage.arrays import MemoryStorage
from vitprof.measure.devices.simulated import SimulatedDevice
from vitprof.recording.columns import TELEMETRY_COLUMNS
from vitprof.recording.verdict import Verdict

"""With a table of what was said of runs on a GPU before a defect was mended, and what is said now."""
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


class Played:
    """Jobs on a device of these times."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.host, self.patch = Host(), patch
        self.device: SimulatedDevice | None = None

    def run(self, accelerator: Mapping[str, float], **config: Any) -> tuple[RunConfig, dict[str, Any]]:
        figures = {"step_s": 4 * MS, "sample_s": 0.0, "copy_latency_s": 0.0} | accelerator
        figures |= {"pinned_bytes_per_s": 1e15, "pageable_bytes_per_s": 1e15}

        def opened(name: str, clock: Any, tell: Any) -> SimulatedDevice:
            self.device = SimulatedDevice(name, Accelerator("played", origin="", **figures), clock, self.host.works)  # type: ignore[arg-type]
            return self.device

        self.patch.setattr(train_module, "open_device", opened)
        values = {"device": "simulated:4,0", "evaluate": False, "loader_times": False, "warmup_steps": 5, **config}
        events: Recorded = trained(clock=self.host, **values)
        return resolve(RunConfig(**values)), events.steps


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(monkeypatch)


def verdict(config: RunConfig, steps: Series) -> Verdict:
    return judge(config, steps, (), {name: np.empty(0) for name in TELEMETRY_COLUMNS}, FACTS)


def without_marks(steps: Series) -> dict[str, Any]:
    """The steps as the loop recorded them before it set these marks."""
    decoding, preparing = (np.nan_to_num(steps[name]) for name in ("decode_wait_s", "device_prepare_s"))
    return dict(steps) | {
        "data_wait_s": steps["data_wait_s"] - decoding,
        "exposed_wait_s": steps["exposed_wait_s"] - decoding,
        "compute_s": steps["compute_s"] - preparing,
        "gap_s": steps["gap_s"] + preparing,
        "decode_wait_s": np.full(len(decoding), math.nan),
        "device_prepare_s": np.full(len(decoding), math.nan),
    }


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
            self._done.append(device.work(self._decode_s)[1])

    def share_outputs(self, stream: Any) -> tuple[StandIn]:
        """As DALI does: the stream that trains waits, the host does not."""
        trains = self._played.device.current  # type: ignore[union-attr]
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
        monkeypatch.setattr(dali, "open_pipeline", lambda size, *_: StandIn(played, decode_ms * MS, size))
        values = {"dataset": "photos", "n_images": 120, "strategy": "dali", "batch_size": 4, "steps": 60}
        return played.run({}, **values, **config)

    return run


@pytest.mark.parametrize("transfer", ["blocking", "pinned", "stream"])
def test_a_pipeline_starved_by_decoding_on_the_device_is_called_that(decoding: Any, transfer: str) -> None:
    """The device decodes 20 ms and trains 4 ms; the loop never waits in next(loader)."""
    config, steps = decoding(20.0, transfer=transfer)
    before, after = verdict(config, without_marks(steps)), verdict(config, steps)
    assert "waiting for Python to launch its work; a faster loader gains at most 0." in before.sentence
    assert before.idle_frac < 0.01
    assert (after.kind, after.cause) == ("input-bound", "decode")
    assert re.search(r"preparation \(decoding by NVIDIA DALI\) is (99|100)% of that", after.sentence)
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
    """Each read of a batch takes the host so long."""
    read = MemoryStorage.read

    def run(read_ms: float, accelerator: Mapping[str, float], **config: Any) -> tuple[RunConfig, dict[str, Any]]:
        def reads(storage: MemoryStorage, *args: Any) -> torch.Tensor:
            played.host.works(read_ms * MS)
            return read(storage, *args)

        monkeypatch.setattr(MemoryStorage, "read", reads)
        return played.run(accelerator, strategy="memory", batch_size=20, steps=80, **config)

    return run


@pytest.mark.usefixtures("small_home")
def test_normalising_beside_the_copies_is_no_idle_time(slow_reads: Any) -> None:
    """A batch is read in 3 ms and normalised in 3 ms, the step takes 1 ms: the device never rests."""
    times = {"step_s": 1 * MS, "normalise_s": 3 * MS}
    config, steps = slow_reads(3.0, times, transfer="stream")
    before, after = verdict(config, without_marks(steps)), verdict(config, steps)
    assert before.kind == "launch-bound"
    assert "67% of the time" in before.sentence
    assert "waiting for Python to launch its work" in before.sentence
    assert after.kind == "not input-bound"
    assert after.host_frac < 0.01
    assert steady(steps, "compute_s") == pytest.approx(3 * MS, abs=0.01 * MS)


@pytest.mark.usefixtures("small_home")
def test_gathering_from_a_resident_set_is_no_idle_time(slow_reads: Any) -> None:
    """The device gathers a batch in 3 ms, the step takes 1 ms: it never rests, and nothing waits for Python."""
    config, steps = slow_reads(3.0, {"step_s": 1 * MS, "gather_s": 3 * MS}, transfer="resident")
    before, after = verdict(config, without_marks(steps)), verdict(config, steps)
    assert (before.kind, after.kind) == ("launch-bound", "not input-bound")
    assert steady(steps, "compute_s") == pytest.approx(4 * MS, abs=0.01 * MS)


@pytest.mark.usefixtures("small_home")
def test_idle_time_is_alike_in_all_strategies(slow_reads: Any) -> None:
    """The host reads for 10 ms; the device normalises 2 ms and trains 4 ms, wherever it does so: it idles 4 of 10."""
    times, idle = {"normalise_s": 2 * MS, "gather_s": 1 * MS}, {}
    for transfer in ("pinned", "stream", "resident"):
        _, steps = slow_reads(10.0, times, transfer=transfer)
        kept = steps["warmup"] == 0
        idle[transfer] = steps["gap_s"][kept].sum() / steps["step_s"][kept].sum()
        gaps = find_gaps(steps, ()).only(kept)
        assert 1 - gaps.shares()["busy"] == pytest.approx(idle[transfer], abs=1e-4)
        assert gaps.busy_ns + gaps.idle_ns == gaps.span_ns
    # a resident set is gathered on the device: 7 of 10 ms are work
    assert idle == {k: pytest.approx(v, abs=2e-3) for k, v in {"pinned": 0.4, "stream": 0.4, "resident": 0.3}.items()}


@pytest.mark.usefixtures("small_home")
@pytest.mark.parametrize("transfer", ["pinned", "stream"])
def test_filling_pinned_memory_is_no_copy(played: Played, monkeypatch: pytest.MonkeyPatch, transfer: str) -> None:
    """Copying a batch to page-locked memory takes the host 6 ms, the copy from there next to none."""
    to_pinned = transfers.to_pinned

    def slowly(*args: Any) -> torch.Tensor:
        played.host.works(6 * MS)
        return to_pinned(*args)

    monkeypatch.setattr(transfers, "to_pinned", slowly)
    values = {"strategy": "workers", "storage": "memory", "workers": 0, "batch_size": 20, "steps": 60}
    config, steps = played.run({}, transfer=transfer, **values)
    assert steady(steps, "h2d_s") < 0.01 * MS
    assert steady(steps, "host_s") < 0.01 * MS
    after = verdict(config, steps)
    assert after.kind == "input-bound"
    assert after.cause != "transfer"
    assert after.idle_frac == pytest.approx(1 / 3, abs=0.01)
    # as it was: the mark stood before it, or the loop's own time had it
    waited = np.minimum(steps["data_wait_s"], 6 * MS)
    copied = dict(steps) | {
        "data_wait_s": steps["data_wait_s"] - waited,
        "host_s": steps["host_s"] + waited,
        "h2d_start_s": steps["h2d_start_s"] - waited,
        "h2d_s": steps["h2d_s"] + waited,
    }
    before = verdict(config, copied)
    assert "the copy to the device is 100% of that" in before.sentence
    if transfer == "pinned":  # the other cannot be told to use itself
        assert "making batches is 100% of that" in after.sentence


def test_the_clock_of_these_tests_moves() -> None:
    host = Host()
    assert all(b > a for a, b in itertools.pairwise(host() for _ in range(3)))
