"""The cases of `selftest --gpu` on a real GPU, each a test."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.engine_fixtures import N_PHOTOS, digits_home, photos_home  # noqa: F401
from vitprof.export.code import script
from vitprof.selftest.gpu import GPU_CASES, GpuCase, Outcome
from vitprof.selftest.gpu.bench import Bench
from vitprof.selftest.gpu.child import open_bench, run_case
from vitprof.selftest.gpu.host import Host

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.alone,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: torch sees none here"),
]
ON_DEVICE, WITH_JOBS = ([case for case in GPU_CASES if case.on_device is way] for way in (True, False))


@pytest.fixture(autouse=True)
def _data_sets(digits_home: Path, photos_home: Path, vitprof_home: Path) -> None:  # noqa: F811
    (vitprof_home / "data").mkdir(parents=True)
    for made in (digits_home / "data" / "digits", photos_home / "data" / f"photos-{N_PHOTOS}"):
        (vitprof_home / "data" / made.name).symlink_to(made)


@pytest.fixture(scope="module")
def bench() -> Bench:
    return open_bench("cuda:0")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with contextlib.closing(Host("cuda:0", tmp_path, script, {"gpus": torch.cuda.device_count()})) as opened:
        yield opened


def check(outcome: Outcome) -> None:
    if outcome.status == "not run":
        pytest.skip(outcome.reason)
    assert outcome.status == "passed", f"{outcome.measured}: {outcome.reason}"


@pytest.mark.parametrize("case", ON_DEVICE, ids=lambda case: case.name)
def test_on_the_device(case: GpuCase, bench: Bench) -> None:
    check(run_case(case.name, bench))


@pytest.mark.parametrize("case", WITH_JOBS, ids=lambda case: case.name)
def test_with_jobs(case: GpuCase, host: Host) -> None:
    module, _, function = case.run.partition(".")
    found = importlib.import_module(f"vitprof.selftest.gpu.{module}")
    check(getattr(found, function)(host))
