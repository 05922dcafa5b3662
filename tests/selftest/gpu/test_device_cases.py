"""What becomes of a case that raises, and of its outcome. `tests/nullcuda/test_selftest.py` runs the cases."""

import dataclasses
import json
import math
import time
from pathlib import Path

import pytest
import torch

from vitprof.errors import DataError, DeviceError
from vitprof.measure.devices import CpuDevice
from vitprof.selftest.gpu import device_cases, driver
from vitprof.selftest.gpu.bench import Bench
from vitprof.selftest.gpu.driver import GPU_CASES, run_case
from vitprof.selftest.report import Outcome, plain


def test_the_union_of_kernels() -> None:
    assert (device_cases.union([(5, 7), (0, 2), (1, 3), (1.5, 1.7)]), device_cases.union([])) == (5, 0)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (DataError("no room"), "failed"),
        (ZeroDivisionError("a bug"), "failed"),
        (DeviceError("CUDA out of memory on stand-in: it asked for 2 GiB more; try batch size 64"), "not run"),
    ],
)
def test_a_case_that_raises(error: Exception, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(bench: Bench) -> Outcome:
        raise error

    monkeypatch.setitem(GPU_CASES, "copies", dataclasses.replace(GPU_CASES["copies"], run=fails))
    outcome = run_case("copies", Bench(CpuDevice(time.perf_counter)))
    assert outcome.status == status
    assert str(error) in outcome.wrong


def test_without_a_gpu_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match=r"needs an NVIDIA GPU .* sees none; `python -m vitprof doctor` says more"):
        driver.open_bench("cuda:0", Path())


def test_outcomes_are_json() -> None:
    outcome = Outcome("failed", "x", "y", {"a": math.nan, "b": (1, math.inf), "c": {"d": 2}})
    message = json.loads(json.dumps(plain(outcome.to_dict()), allow_nan=False))
    assert message["figures"] == {"a": None, "b": [1, None], "c": {"d": 2}}
    assert Outcome(**message).status == "failed"
