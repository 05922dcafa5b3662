"""The telemetry thread on a machine as it is: cadence, errors, its end. GPUs are in test_telemetry_gpu.py."""

import math
import os
import signal
import subprocess
import sys
import threading
from unittest.mock import Mock

import numpy as np
import pytest

from tests import ROOT
from tests.engine_fixtures import wait_until
from vitprof.recording.columns import Stop, TelemetrySample
from vitprof.telemetry.nvml import GPU_FIELDS, GpuInfo
from vitprof.telemetry.sampler import (
    StopSeeker,
    Telemetry,
    TelemetryRow,
    asleep_s,
    choose_gpu,
    next_due,
)


def test_the_thread_hands_rows_to_the_sink_until_it_is_stopped() -> None:
    rows: list[TelemetryRow] = []
    threads: set[str] = set()

    def sink(got: list[TelemetryRow]) -> None:
        threads.add(threading.current_thread().name)
        rows.extend(got)

    telemetry = Telemetry(pid=os.getpid(), device="cpu", hz=50, sink=sink)
    telemetry.start()
    wait_until(lambda: len(rows) >= 5, "rows")
    telemetry.stop()
    n = len(rows)
    telemetry.stop()
    assert len(rows) == n
    assert threads == {f"vitprof-telemetry-{os.getpid()}"}
    samples = [TelemetrySample(*row) for row in rows]
    stamps = [sample.t_s for sample in samples]
    assert stamps == sorted(set(stamps))
    assert all(sample.job_rss_bytes > 0 for sample in samples)
    assert math.isnan(samples[0].job_cpu_pct)
    assert all(sample.job_cpu_pct >= 0 for sample in samples[1:])
    assert all(math.isnan(getattr(sample, field)) for sample in samples for field in GPU_FIELDS)
    assert (telemetry.notices, telemetry.error) == ([], None)


def test_an_exception_of_the_sink_ends_the_sampling_and_is_kept() -> None:
    sink = Mock(side_effect=OSError("disk full"))
    telemetry = Telemetry(pid=os.getpid(), device="cpu", hz=50, sink=sink)
    telemetry.start()
    wait_until(lambda: sink.called, "rows")
    telemetry.stop()
    assert isinstance(telemetry.error, OSError)


FORGETS = """import os
from vitprof.telemetry.sampler import Telemetry
Telemetry(pid=os.getpid(), device="cpu", hz=20, sink=lambda rows: None).start()
print("end of program")
"""


def test_the_thread_does_not_keep_a_program_alive_that_forgot_to_stop_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    command = [sys.executable, "-c", FORGETS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
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
    GpuInfo(
        2, "c 1g", "MIG-4a5b0000-d72c-4106-c12f-20bd9faed9f6", 1e9, "1", slice_of="GPU-12345678"
    ),
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
    assert (choose_gpu(GPUS[:1], None), choose_gpu([], None)) == (GPUS[0], None), (
        "the only one needs no name"
    )


MAIN, WORKER, STRANGER = 10, 11, 12
PERIOD_S = 0.2
Span = tuple[float, float]


def watched(
    *,
    main: Span = (0, 0),
    worker: Span = (0, 0),
    us: Span = (0, 0),
    waits: Span = (0, 0),
    asleep: tuple[float, float] = (math.inf, 0),
    until: float = 60.0,
) -> list[Stop]:
    """What is found where processes are stopped in these spans, the loader waits for a drive in another, and the
    machine sleeps (at, seconds). One core is in use while nobody is stopped and nobody waits."""
    seeker, now, looked = StopSeeker(MAIN, PERIOD_S), 0.0, 0.0
    while now < until:
        stopped = {
            pid
            for pid, span in ((MAIN, main), (WORKER, worker), (STRANGER, (0, math.inf)))
            if _in(now, span)
        }
        busy = now - looked - sum(_common((looked, now), span) for span in (main, worker, waits))
        cpu = 100.0 * max(busy, 0.0) / (now - looked) if now > looked else math.nan
        slept = asleep[1] if now > asleep[0] else 0.0
        seeker.sample(now, {MAIN, WORKER, STRANGER}, stopped, cpu, 1000.0 + slept)
        seeker.sampled_s = now + 0.001
        looked, now = now, now + PERIOD_S
        if _in(now, us):
            now = us[1] + 0.002
    return seeker.stops


def _in(t: float, span: Span) -> bool:
    return span[0] <= t < span[1]


def _common(a: Span, b: Span) -> float:
    return max(0.0, min(a[1], b[1]) - max(a[0], b[0]))


@pytest.mark.parametrize("seed", range(2))
def test_a_stop_is_found_where_it_was_and_a_waiting_loader_is_none(seed: int) -> None:
    start, length = np.random.default_rng(seed).uniform((2, 2), (20, 30)).tolist()
    span = (start, start + length)
    for kind, world in (
        ("stopped", {"main": span}),
        ("stopped", {"main": span, "worker": span}),
        ("worker", {"worker": span}),
        ("paused", {"main": span, "worker": span, "us": span}),
        ("paused", {"main": span, "us": span}),
    ):
        found = [stop for stop in watched(**world) if stop.kind == kind]
        (stop,) = found if kind != "paused" else [s for s in found if s.seconds > 1]
        assert stop.seconds == pytest.approx(length, abs=2 * PERIOD_S), world
        assert span[0] - 1e-9 <= stop.t_start_s <= span[0] + PERIOD_S + 0.01
        assert span[1] - PERIOD_S - 1e-9 <= stop.t_end_s <= span[1] + 0.01
    assert watched(waits=span) == [], "a drive that does not answer"
    assert watched(us=span) == [], "whoever looks was stopped, and the job went on"
    assert watched() == []


def test_processes_stopped_all_along_and_machines_that_slept() -> None:
    seeker = StopSeeker(MAIN, PERIOD_S)
    for now, stopped in ((0.0, {WORKER}), (0.2, {WORKER}), (0.4, set[int]())):
        seeker.sample(now, {MAIN, WORKER}, stopped, 100.0, math.nan)
    assert seeker.stops == []
    (stop,) = watched(asleep=(5.0, 3600.0))
    assert (stop.kind, stop.seconds) == ("asleep", 3600.0)
    assert stop.t_end_s - stop.t_start_s <= PERIOD_S
    assert math.isnan(asleep_s()) or 0 <= asleep_s() == pytest.approx(asleep_s(), abs=1)


RANK_1, WORKER_OF_1 = 20, 21
PARENTS = {MAIN: 1, WORKER: MAIN, RANK_1: 1, WORKER_OF_1: RANK_1}


def stops_of_ranks(*stopped: set[int], known_at: int = 0) -> list[tuple[str, int | None]]:
    """What is found of a job of two ranks, the second of which is known from a sample on. `stopped`: by sample."""
    seeker = StopSeeker(MAIN, PERIOD_S)
    for number, pids in enumerate([set[int](), *stopped, set[int]()]):
        if number == known_at:
            seeker.add_rank(RANK_1, 1)
        seeker.sample(number * PERIOD_S, set(PARENTS), pids, 100.0, math.nan, PARENTS)
    return [(stop.kind, stop.rank) for stop in seeker.stops]


def test_of_every_rank_of_a_node_it_is_seen_that_it_or_a_worker_of_it_was_stopped() -> None:
    """Of a job of two ranks only the first one was looked at: the stop of the second seemed to be a worker's."""
    assert stops_of_ranks({RANK_1}) == [("stopped", 1)]
    assert stops_of_ranks({WORKER_OF_1}, {WORKER_OF_1}) == [("worker", 1)]
    assert stops_of_ranks({WORKER}) == [("worker", None)]
    assert stops_of_ranks({RANK_1}, {RANK_1}, known_at=2) == [("stopped", 1)], "known meanwhile"
    everybody = stops_of_ranks({WORKER_OF_1, RANK_1, WORKER, MAIN})
    assert everybody == [("stopped", None), ("worker", None), ("stopped", 1), ("worker", 1)]


def test_the_ranks_of_a_real_tree_are_told_by_their_processes() -> None:
    """Each in a group of processes of its own, with a child."""
    child = "import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', 'input()'])"
    ranks = [
        subprocess.Popen([sys.executable, "-S", "-c", child], stdin=subprocess.PIPE)
        for _ in range(2)
    ]
    telemetry = Telemetry(pid=os.getpid(), trains=ranks[0].pid, device="cpu", sink=Mock())
    telemetry.add_rank(ranks[1].pid, 1)
    try:
        wait_until(lambda: telemetry.sample() and len(telemetry._tree.pids) >= 5, "children")
        ranks[1].send_signal(signal.SIGSTOP)
        wait_until(lambda: telemetry.sample() and telemetry._tree.stopped, "the stop")
        ranks[1].send_signal(signal.SIGCONT)
        wait_until(lambda: telemetry.sample() and telemetry.stops, "its end")
        assert [(stop.kind, stop.rank) for stop in telemetry.stops] == [("stopped", 1)]
    finally:
        for rank in ranks:
            rank.communicate(b"")
        telemetry.stop()
