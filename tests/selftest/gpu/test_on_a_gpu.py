"""On a real GPU: the cases of `selftest --gpu`, and what else must be right there."""

import contextlib
import dataclasses
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from tests.engine_fixtures import N_PHOTOS, digits_home, photos_home, wait_until  # noqa: F401
from vitprof.analysis.timing.steady import steady_state
from vitprof.config import RunConfig
from vitprof.config.availability import why_unavailable
from vitprof.config.strategies import STRATEGIES, strategy
from vitprof.datasets.catalog import dataset_info
from vitprof.engine.trainer import open_trainer
from vitprof.engine.transfer import open_transfer
from vitprof.export.code import script
from vitprof.jobs.manager import JobManager
from vitprof.measure.devices import Mark
from vitprof.selftest.gpu.bench import Bench, Spinning
from vitprof.selftest.gpu.device_cases import filled, pinned_bytes_per_s, unchanged
from vitprof.selftest.gpu.driver import GPU_CASES, open_bench, run_case
from vitprof.selftest.gpu.job_cases import settings_for
from vitprof.store import RunStore, StoredRun
from vitprof.telemetry.nvml import Nvml
from vitprof.telemetry.sampler import choose_gpu
from vitprof.telemetry.visible import visible_gpus

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.measured,
    pytest.mark.alone,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="needs a CUDA device: torch sees none here"
    ),
]
CONTEXT_BYTES = 64 << 20
"""A CUDA context takes 100 MB or more of a GPU's memory, the driver alone less."""


@pytest.fixture(autouse=True)
def _data_sets(digits_home: Path, photos_home: Path, vitprof_home: Path) -> None:  # noqa: F811
    (vitprof_home / "data").mkdir(parents=True)
    for made in (digits_home / "data" / "digits", photos_home / "data" / f"photos-{N_PHOTOS}"):
        (vitprof_home / "data" / made.name).symlink_to(made)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return open_bench("cuda:0", tmp_path)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[JobManager]:
    with contextlib.closing(RunStore(f"sqlite:///{tmp_path / 'runs.sqlite'}")) as store:
        opened = JobManager(store, logs=tmp_path)
        yield opened
        opened.shutdown()


@pytest.mark.parametrize("name", GPU_CASES)
def test_cases_of_the_self_test(name: str, bench: Bench) -> None:
    outcome = run_case(name, bench)
    assert outcome.status == "passed", outcome.words


class Synchronising:
    """A device that the host waits for before and after each mark."""

    def __init__(self, device: Any) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def mark(self) -> Mark:
        self._device.synchronize()
        mark: Mark = self._device.mark()
        self._device.wait(mark)
        return mark


def test_deferred_marks_give_the_compute_time_of_forced_ones(bench: Bench) -> None:
    """In turns, with a model whose kernels take far longer than their launches. A step that begins on an idle device,
    as each forced one does, also waits for its first launches: 1.1 of 54 ms on an H200, at half of this batch."""
    job = {"dataset": "digits", "strategy": "device", "warmup_steps": 4, "steps": 14}
    job |= {"model": "s/16", "image_size": 224, "batch_size": 128}
    compute_s: dict[bool, list[float]] = {False: [], True: []}
    for forced in (False, True) * 3:
        device: Any = Synchronising(bench.device) if forced else bench.device
        tested = dataclasses.replace(bench, device=device)
        steps = tested.run(trains=lambda config, _: open_trainer(config, bench.device), **job).steps
        compute_s[forced].append(float(np.median(steps["compute_s"][steady_state(steps)])))
    assert np.median(compute_s[False]) == pytest.approx(np.median(compute_s[True]), rel=0.02)


def test_prefetched_batches_arrive_whole_and_are_copied_during_compute(bench: Bench) -> None:
    """Each batch has one value, checked after its step's work: memory reused too early is wrong by then."""
    device, shape = bench.device, (32, 224, 224, 3)
    copy_s = int(np.prod(shape)) / pinned_bytes_per_s(device, int(np.prod(shape)))
    transfer = open_transfer("stream", device, unchanged)
    fill_s = []
    for i in range(5):
        began = bench.clock()
        transfer(filled(transfer, shape, i))
        device.synchronize()
        fill_s.append(bench.clock() - began)
    compute_s = bench.spin(max(0.002, 2 * copy_s, 2 * min(fill_s)))
    torn = torch.zeros((), dtype=torch.int64, device=device.torch_device)
    pending: deque[tuple[Mark, ...]] = deque()
    spans: list[list[float]] = []

    def resolve() -> None:
        marks = pending.popleft()
        device.wait(marks[-1])
        spans.append([device.seconds(mark) for mark in marks])
        device.release(*{id(mark): mark for mark in marks}.values())

    for i in range(1000):
        moved = transfer(filled(transfer, shape, i % 251))
        start = device.mark()
        device.gate(compute_s)
        end = device.mark()
        torn += (moved.images != i % 251).any() | (moved.labels != i % 251).any()
        pending.append((moved.copy_start, moved.copy_end, start, end))
        if len(pending) > 4:
            resolve()
    while pending:
        resolve()
    assert int(torn) == 0
    copy_start, copy_end, start_s, end_s = np.array(spans).T
    shared = np.minimum(copy_end[:, None], end_s) - np.maximum(copy_start[:, None], start_s)
    assert np.maximum(shared, 0).sum() >= 0.9 * (copy_end - copy_start).sum()


def test_an_undersized_dali_is_input_bound_by_decoding(bench: Bench) -> None:
    if reason := why_unavailable(strategy("dali"), dataset_info("photos", N_PHOTOS)):
        pytest.skip(reason)
    spin_s = bench.spin(0.2e-3)
    job = {
        "dataset": "photos",
        "n_images": N_PHOTOS,
        "strategy": "dali",
        "workers": 1,
        "prefetch_factor": 1,
    }
    job |= {"batch_size": 4, "warmup_steps": 8, "steps": 80}
    verdict = bench.run(trains=lambda config, device: Spinning(device, spin_s), **job).verdict()
    assert verdict.kind in ("input-bound", "moderately input-bound")
    assert verdict.cause == "decode"


def test_gpu_util_is_near_the_busy_share_by_marks(bench: Bench) -> None:
    """On a device that works for half of the time. NVML's counter looks back for up to a second."""
    nvml = Nvml()
    gpu = choose_gpu(nvml.gpus(), bench.device.environment().get("gpu_uuid"))
    if gpu is None:
        pytest.skip(nvml.reason or "NVML does not list this GPU")
    spin_s, busy_s, util_pct = bench.spin(0.03), 0.0, []
    bench.device.synchronize()
    began = due = bench.clock()
    since = began + 1.2
    while bench.clock() < began + 4:
        took = bench.timed(lambda: bench.device.gate(spin_s))
        if bench.clock() >= since:
            busy_s += took
            util_pct.append(nvml.read(gpu.uuid, ())["gpu_util_pct"])
        due += 0.06
        bench.sleep(max(0.0, due - bench.clock()))
    assert fmean(util_pct) == pytest.approx(100 * busy_s / (bench.clock() - since), abs=10)


def used_bytes(device: str) -> float:
    """Device memory in use, by all programs together."""
    with Nvml() as nvml:
        shown = next((gpu for gpu in visible_gpus() if f"cuda:{gpu.index}" == device), None)
        gpu = None if shown is None else choose_gpu(nvml.gpus(), shown.uuid)
        return float("nan") if gpu is None else nvml.read(gpu.uuid, ())["gpu_mem_used_bytes"]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_job_on_the_second_gpu_leaves_the_first_alone(manager: JobManager) -> None:
    before = most = {name: used_bytes(name) for name in ("cuda:0", "cuda:1")}
    run_id = manager.submit(
        RunConfig(strategy="memory", device="cuda:1", seconds=3, evaluate=False)
    )
    while not manager.wait(run_id, 0.05):
        most = {name: max(most[name], used_bytes(name)) for name in most}
    assert manager.store.run(run_id).status == "done"
    assert most["cuda:0"] - before["cuda:0"] <= CONTEXT_BYTES < most["cuda:1"] - before["cuda:1"]


def ended_early(manager: JobManager, way: str) -> StoredRun:
    """A run that was stopped, was killed or ran out of device memory (0.8 TB of activations)."""
    job: dict[str, Any] = {"strategy": "workers", "workers": 2, "seconds": 60}
    if way == "out of memory":
        job = {
            "strategy": "memory",
            "model": "b/16",
            "image_size": 224,
            "batch_size": 8192,
            "steps": 10,
        }
    before = set(psutil.Process().children())
    run_id = manager.submit(RunConfig(device="cuda:0", evaluate=False, **job))
    if way != "out of memory":
        wait_until(
            lambda: manager.store.run(run_id).stage == "training" or manager.wait(run_id, 0),
            "training",
        )
    if way == "stop":
        manager.stop(run_id)
    elif way == "kill":
        for process in set(psutil.Process().children()) - before:
            process.kill()
    manager.wait(run_id)
    return manager.store.run(run_id)


@pytest.mark.parametrize(
    ("way", "status"), [("stop", "stopped"), ("kill", "failed"), ("out of memory", "failed")]
)
def test_a_job_that_ends_early_leaves_no_process_and_no_memory(
    way: str, status: str, manager: JobManager
) -> None:
    processes, used = set(psutil.Process().children(recursive=True)), used_bytes("cuda:0")
    run = ended_early(manager, way)
    assert run.status == status
    assert way != "out of memory" or "memory" in run.error.lower()
    wait_until(lambda: not set(psutil.Process().children(recursive=True)) - processes, "no process")
    if not np.isnan(used):
        wait_until(
            lambda: used_bytes("cuda:0") - used <= CONTEXT_BYTES, "device memory to be given back"
        )


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_script_of_each_strategy_trains(name: str, tmp_path: Path) -> None:
    """With --demo, in a process without vitprof's environment."""
    settings = settings_for(name)
    if reason := why_unavailable(
        strategy(name), dataset_info(settings["dataset"], settings.get("n_images"))
    ):
        pytest.skip(reason)
    (tmp_path / "script.py").write_text(
        script(RunConfig(device="cuda:0", **settings)), encoding="utf-8"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHONPATH", "VITPROF"))}
    command = [sys.executable, "script.py", "--demo"]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "epoch 1: loss" in done.stdout
