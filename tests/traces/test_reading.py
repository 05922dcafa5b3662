"""What a trace says of its device, its loader and its ranks, and what it is said not to say."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.traces.written import (
    AUTOGRAD,
    GPU,
    IN_THE_LOOP,
    IN_WORKERS,
    WrittenTrace,
    trained_on_cpu,
    trained_on_gpu,
)
from vitprof.traces.reading import NO_LAUNCHES, NO_SAMPLES, NO_WORKERS, ReadTrace, read_trace
from vitprof.traces.trace_file import TraceError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.pt.trace.json.gz"


def read(trace: WrittenTrace, path: Path, **known: int) -> ReadTrace:
    return read_trace(trace.write(path), **known)  # type: ignore[arg-type]


def test_the_gpu_and_its_loader(path: Path) -> None:
    trace = trained_on_gpu(30, copy_ms=0.2)
    trace.about |= {"record_shapes": 1, "with_stack": 1, "profile_memory": 0}
    found = read(trace, path)
    assert found.environment == {
        "device": "cuda:0",
        "device_name": "NVIDIA H100 80GB HBM3",
        "gpu_memory_bytes": 84_929_347_584,
        "gpu_capability": "9.0",
        "cuda_version": "12.6",
        "watched": {"dataset": None, "batch_size": None, "pin_memory": True},
    }
    source = found.facts["trace"]
    assert source["file"] == "a.pt.trace.json.gz"
    assert source["bytes"] == path.stat().st_size
    assert source["events"] == len(trace.events)
    assert source["device_events"] == 30 * 5
    assert source["profiler"] == "torch.profiler (Kineto), form 1"
    assert source["options"] == ["record_shapes", "with_stack"]
    assert source["recorded_utc"] == "2025-04-03T22:34:51Z"
    assert (source["steps_by"], source["first_iteration"]) == ("Optimizer.step", 10)
    assert source["warmup_steps"] == 1
    assert {NO_SAMPLES, NO_WORKERS} <= set(source["missing"])
    assert NO_LAUNCHES not in source["missing"]
    assert "more so with record_shapes, with_stack" in found.notices[0]
    assert "stages of making a batch in workers" in found.notices[1]


def test_what_a_person_knows_of_the_loader_is_not_missing(path: Path) -> None:
    found = read(trained_on_gpu(30), path, batch_size=64, workers=4)
    assert found.environment["watched"]["num_workers"] == 4
    assert not {NO_SAMPLES, NO_WORKERS} & set(found.facts["trace"]["missing"])
    assert set(found.steps["samples"]) == {64.0}


@pytest.mark.parametrize(("iterator", "workers"), [(IN_THE_LOOP, 0), (IN_WORKERS, None)])
def test_without_workers_it_is_known_that_there_are_none(
    path: Path, iterator: str, workers: int | None
) -> None:
    found = read(trained_on_cpu(30, wait_ms=1.0, work_ms=2.0, iterator=iterator), path)
    assert found.environment["device"] == "cpu"
    assert found.environment["watched"].get("num_workers") == workers
    assert any("it is read as training on the CPU" in notice for notice in found.notices)


def test_a_gpu_that_was_not_recorded_may_have_trained(path: Path) -> None:
    """Whoever records the CPU alone on a machine with a GPU must not be told that the CPU was starved."""
    trace = trained_on_cpu(30, wait_ms=8.0, work_ms=2.0)
    trace.about["deviceProperties"] = [GPU]
    found = read(trace, path)
    assert "which has no event of it" in found.environment["untimed_device"]
    assert "device" not in found.environment
    assert np.isnan(found.steps["compute_s"]).all()
    assert np.isfinite(found.steps["data_wait_s"]).all()
    assert not any("training on the CPU" in notice for notice in found.notices)


def test_the_rank_of_a_distributed_job(path: Path) -> None:
    trace = trained_on_gpu(30)
    trace.about["distributedInfo"] = {"backend": "nccl", "rank": 3, "world_size": 8}
    environment = read(trace, path).environment
    assert (environment["rank"], environment["world_size"]) == (3, 8)
    trace.about["distributedInfo"] = {"rank": 0}
    assert "world_size" not in read(trace, path).environment


@pytest.mark.parametrize(
    "about",
    [
        {"deviceProperties": None, "distributedInfo": [], "cuda_runtime_version": "12"},
        {"deviceProperties": [1, {"id": 0, "name": 5, "totalGlobalMem": "much"}]},
        {"distributedInfo": {"rank": "none", "world_size": {}}, "schemaVersion": "new"},
        {"baseTimeNanoseconds": 10**30, "cuda_runtime_version": -1},
    ],
)
def test_facts_of_another_form_are_left_out(path: Path, about: dict[str, object]) -> None:
    trace = trained_on_gpu(30)
    trace.about |= about
    found = read(trace, path)
    assert found.environment["device"] == "cuda:0"
    assert "device_name" not in found.environment or "deviceProperties" not in about


def test_other_devices_and_events_without_times_are_said(path: Path) -> None:
    trace = trained_on_gpu(30)
    trace.work(1.0, 0.1, device=1)
    trace.fetch(1.0, 0.5)
    trace.events[-1]["ts"] = None
    said = " ".join(read(trace, path).notices)
    assert "1 other device worked in the same process: the figures are of cuda:0" in said
    assert "events without a time are left out: 1" in said


def test_where_batches_come_from_elsewhere_the_waits_are_not_known(path: Path) -> None:
    trace = trained_on_gpu(30)
    others = [each for each in trace.events if not str(each["name"]).startswith("enumerate")]
    trace.events = others
    assert read(trace, path).facts["fetched_by"] == "no loader"
    for number in range(30):
        trace.fetch(float(number), 0.5, thread=AUTOGRAD)
    facts = read(trace, path).facts
    assert (facts["fetched_by"], facts["unknown_wait_steps"]) == ("a thread", 30)


def test_a_trace_in_which_nothing_trains_gets_a_line(path: Path) -> None:
    trace = WrittenTrace()
    trace.noise(1.0)
    with pytest.raises(TraceError) as raised:
        read(trace, path)
    assert str(raised.value).startswith(
        f"{path} cannot be read as a training: no step of a training"
    )


def test_kernels_of_which_an_older_profiler_has_arrows_alone(path: Path) -> None:
    """`torch.autograd.profiler` writes a list, and no times of kernels."""
    trace = trained_on_cpu(30, wait_ms=8.0, work_ms=2.0)
    arrow = {"name": "aten::mm", "ph": "s", "ts": 1.0, "tid": 1, "pid": "CPU functions", "id": 1}
    path.write_text(json.dumps([*trace.events, arrow | {"cat": "cpu_to_cuda", "args": {}}]))
    found = read_trace(path)
    assert "untimed_device" in found.environment
    assert found.facts["trace"]["profiler"] == "a profiler of PyTorch that names no version"
    assert found.facts["trace"]["recorded_utc"] is None
