"""The telemetry thread on a machine as it is: cadence, errors, its end. GPUs are in test_telemetry_gpu.py."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pynvml
import pytest

from tests import ROOT
from vitprof.recording.columns import TELEMETRY_COLUMNS, TelemetrySample
from vitprof.telemetry import NO_GPU_MESSAGE, GpuInfo, Telemetry, choose_gpu
from vitprof.telemetry.nvml import GPU_FIELDS
from vitprof.telemetry.sampler import NO_FIGURES, TelemetryRow, next_due

DEADLINE_S = 30.0


class Collector:
    """A sink that can be waited for."""

    def __init__(self, enough: int) -> None:
        self.rows: list[TelemetryRow] = []
        self.threads: set[str] = set()
        self.enough = threading.Event()
        self._n = enough

    def __call__(self, rows: list[TelemetryRow]) -> None:
        self.rows += rows
        self.threads.add(threading.current_thread().name)
        if len(self.rows) >= self._n:
            self.enough.set()


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("vitprof-telemetry")]


def test_the_thread_hands_rows_to_the_sink_until_it_is_stopped() -> None:
    sink = Collector(enough=5)
    with Telemetry(pid=os.getpid(), device="cpu", hz=50, sink=sink) as telemetry:
        assert sink.enough.wait(DEADLINE_S)
    n = len(sink.rows)
    telemetry.stop()
    assert len(sink.rows) == n
    assert sink.threads == {f"vitprof-telemetry-{os.getpid()}"}
    samples = [TelemetrySample(*row) for row in sink.rows]
    stamps = [sample.t_s for sample in samples]
    assert stamps == sorted(set(stamps))
    assert all(sample.job_rss_bytes > 0 for sample in samples)
    assert math.isnan(samples[0].job_cpu_pct)
    assert all(sample.job_cpu_pct >= 0 for sample in samples[1:])
    assert all(math.isnan(getattr(sample, field)) for sample in samples for field in GPU_FIELDS)
    assert (telemetry.notices, telemetry.error) == ([], None)


def test_a_row_has_the_columns_of_a_telemetry_sample() -> None:
    assert set(GPU_FIELDS) <= set(TELEMETRY_COLUMNS)
    telemetry = Telemetry(pid=os.getpid(), device="cpu", sink=Collector(1), clock=lambda: 7.5)
    row = telemetry.sample()
    telemetry.stop()
    assert len(row) == len(TELEMETRY_COLUMNS)
    assert row[TELEMETRY_COLUMNS.index("t_s")] == 7.5


def test_without_a_gpu_one_notice_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", no_library)
    notices = {}
    for device in ("cuda:0", "cpu"):
        telemetry = Telemetry(pid=os.getpid(), device=device, sink=Collector(1))
        rows = [TelemetrySample(*telemetry.sample()) for _ in range(3)]
        telemetry.stop()
        assert all(math.isnan(row.gpu_util_pct) and row.job_rss_bytes > 0 for row in rows)
        notices[device] = telemetry.notices
    detailed = f"{NO_GPU_MESSAGE} (NVML Shared Library Not Found)"
    assert notices == {"cuda:0": [NO_FIGURES.format(why=detailed)], "cpu": []}


def test_a_clock_that_goes_backwards_makes_rates_unknown() -> None:
    stamps = iter([10.0, 11.0, 5.0, 5.0, 6.0])
    telemetry = Telemetry(pid=os.getpid(), device="cpu", sink=Collector(1), clock=lambda: next(stamps))
    samples = [TelemetrySample(*telemetry.sample()) for _ in range(5)]
    telemetry.stop()
    assert [sample.t_s for sample in samples] == [10.0, 11.0, 5.0, 5.0, 6.0]
    assert [math.isnan(sample.job_cpu_pct) for sample in samples] == [True, False, True, True, False]
    assert all(math.isnan(samples[i].disk_read_bytes_per_s) for i in (0, 2, 3))
    assert all(sample.job_rss_bytes > 0 for sample in samples)


def test_an_exception_of_the_sink_ends_the_sampling_and_is_kept() -> None:
    tried = threading.Event()

    def sink(rows: list[TelemetryRow]) -> None:
        tried.set()
        raise OSError("disk full")

    telemetry = Telemetry(pid=os.getpid(), device="cpu", hz=50, sink=sink)
    telemetry.start()
    assert tried.wait(DEADLINE_S)
    telemetry.stop()
    assert isinstance(telemetry.error, OSError)


def test_stop_without_a_start_and_twice() -> None:
    telemetry = Telemetry(pid=os.getpid(), device="cuda:0", sink=Collector(1))
    telemetry.stop()
    telemetry.stop()


def test_a_process_that_never_was() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    sink = Collector(enough=3)
    with Telemetry(pid=ended.pid, device="cpu", hz=50, sink=sink) as telemetry:
        assert sink.enough.wait(DEADLINE_S)
    assert telemetry.error is None
    last = TelemetrySample(*sink.rows[-1])
    assert math.isnan(last.job_cpu_pct)
    assert math.isnan(last.job_rss_bytes)


def test_the_thread_does_not_keep_a_program_alive_that_forgot_to_stop_it() -> None:
    code = (
        "import os; from vitprof.telemetry import Telemetry\n"
        "Telemetry(pid=os.getpid(), device='cpu', hz=20, sink=lambda rows: None).start()\n"
        "print('end of program')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("end of program\n", "")


@pytest.mark.parametrize(
    ("due", "now", "expected"),
    [
        (10.0, 10.0, 10.25),
        (10.0, 10.1, 10.25),  # the sample took a while: the next comes no later for it
        (10.0, 10.25, 10.5),
        (10.0, 11.3, 11.5),  # five missed: skipped, not made up for
        (10.0, 9.9, 10.25),
    ],
)
def test_cadence(due: float, now: float, expected: float) -> None:
    assert next_due(due, now, 0.25) == expected


GPUS = [
    GpuInfo(0, "a", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", 1e9, "1"),
    GpuInfo(1, "b", "GPU-8932aaaa-d72c-4106-c12f-20bd9faed9f6", 1e9, "1"),
    GpuInfo(2, "c", "GPU-12345678-d72c-4106-c12f-20bd9faed9f6", 1e9, "1"),
    GpuInfo(2, "c 1g", "MIG-4a5b0000-d72c-4106-c12f-20bd9faed9f6", 1e9, "1", slice_of="GPU-12345678"),
]


@pytest.mark.parametrize(
    ("uuid", "expected"),
    [
        ("GPU-8932aaaa-d72c-4106-c12f-20bd9faed9f6", 1),
        ("8932AAAA-d72c-4106-c12f-20bd9faed9f6", 1),  # as PyTorch spells it
        ("MIG-4a5b0000-d72c-4106-c12f-20bd9faed9f6", 3),
        ("GPU-8932", None),
        ("ffffffff-d72c-4106-c12f-20bd9faed9f6", None),  # better none than another one's figures
        (None, None),
    ],
)
def test_choose_gpu(uuid: str | None, expected: int | None) -> None:
    assert choose_gpu(GPUS, uuid) == (None if expected is None else GPUS[expected])


def test_a_gpu_that_is_the_only_one_needs_no_name() -> None:
    assert choose_gpu(GPUS[:1], None) == GPUS[0]
    assert choose_gpu([], None) is None
