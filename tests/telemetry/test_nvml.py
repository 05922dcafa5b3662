"""NVML through pynvml's real ctypes binding, against a stand-in for the driver's library (nvml_stub.c).

The library is loaded once in a process and for good, so each test is a process of its own.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.telemetry.drivers import FIRST, SECOND, build
from vitprof.telemetry import NO_GPU_MESSAGE, Nvml, list_gpus

FIGURES = """\
util.0 11
util.1 55
total.1 16000000000
reserved.1 500
used.1 4000
power.1 71500
clock.1 1410
temp.1 63
pcie.1 2500
"""
GIVEN = {"gpu_util_pct": 55, "gpu_mem_used_bytes": 4000, "gpu_power_w": 71.5, "gpu_sm_clock_mhz": 1410} | {
    "gpu_temp_c": 63,
    "pcie_rx_bytes_per_s": 2.5e6,
}

PRELUDE = f"""
import ctypes, dataclasses, json, math, os, threading
from vitprof.records import TelemetrySample
from vitprof.telemetry import Nvml, Telemetry, list_gpus

FIRST, SECOND = "{FIRST}", "{SECOND}"
now = 100.0  # what the clock says; a script sets it

def clock():
    return now

def control(text):
    with open(os.environ["NVML_STUB"], "w") as file:
        file.write(text)

def calls(*functions):
    library = ctypes.CDLL("libnvidia-ml.so.1")
    return [library.nvml_stub_calls(function.encode()) for function in functions]

def reported(telemetry):
    return dataclasses.asdict(TelemetrySample(*telemetry.sample()))

FIGURES = open(os.environ["NVML_STUB"]).read()
result = {{}}
"""

Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    built = {}
    for name, flags in {"driver": [], "old driver": ["-DOLD_DRIVER"]}.items():
        built[name] = build("nvml_stub.c", "libnvidia-ml.so.1", tmp_path_factory.mktemp("nvml"), *flags)
    built["damaged"] = tmp_path_factory.mktemp("nvml")
    (built["damaged"] / "libnvidia-ml.so.1").write_bytes(b"not a library")
    return built


@pytest.fixture
def run(libraries: dict[str, Path], tmp_path: Path) -> Run:
    """Runs a script against the library; it puts what the test wants to know into `result`."""

    def run_script(
        script: str, *, figures: str = FIGURES, library: str = "driver", visible: str | None = None
    ) -> dict[str, Any]:
        control = tmp_path / "control"
        control.write_text(figures)
        env = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
        if visible is not None:
            env["CUDA_VISIBLE_DEVICES"] = visible
        env |= {"LD_LIBRARY_PATH": str(libraries[library]), "NVML_STUB": str(control)}
        env["PYTHONPATH"] = str(ROOT)
        code = PRELUDE + script + "\nprint(json.dumps(result))"
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run_script


def test_every_figure_in_its_unit_and_of_the_gpu_asked_for(run: Run) -> None:
    result = run("""
with Nvml(clock=clock) as nvml:
    result |= {"by uuid": nvml.read(SECOND, ()), "by index": nvml.read(1, ()), "other": nvml.read(FIRST, ())}
    result |= {"gpus": [dataclasses.asdict(gpu) for gpu in nvml.gpus()], "reason": nvml.reason, "lost": nvml.lost}
result |= {"closed": nvml.read(SECOND, ()), "calls": calls("nvmlInitWithFlags", "nvmlShutdown")}
""")
    for asked in ("by uuid", "by index"):
        assert {k: v for k, v in result[asked].items() if not math.isnan(v)} == GIVEN
    assert result["other"]["gpu_util_pct"] == 11
    assert result["other"]["gpu_power_w"] == 0  # a 0 that was read stays a 0
    assert result["gpus"][1] == {
        "index": 1,
        "name": "Stub GPU 1",
        "uuid": SECOND,
        "memory_bytes": 16e9,
        "driver": "999.01",
        "power_limit_w": 300.0,
    }
    assert (result["reason"], result["lost"]) == ("", {})
    assert all(math.isnan(v) for v in result["closed"].values())
    assert result["calls"] == [1, 1]


@pytest.mark.parametrize(
    ("listed", "pids", "expected"),
    [
        ("pid.1 4242\nmem.1 4096\n", "{4242, 7}", 4096),
        ("pid.1 4242\nmem.1 4096\n", "{1, 4242}", 5096),
        ("pid.1 4242\nmem.1 -1\n", "{4242}", math.nan),  # WDDM: NVML does not know the size
        ("pid.1 4242\nmem.1 4096\n", "{7}", math.nan),  # listed under other pids, as in a container
        ("", "{4242}", math.nan),  # nothing listed: no context yet, or not to be seen
    ],
)
def test_memory_of_the_job(run: Run, listed: str, pids: str, expected: float) -> None:
    result = run(f"result = Nvml().read(SECOND, {pids})", figures=FIGURES + listed)
    assert result["gpu_mem_job_bytes"] == pytest.approx(expected, nan_ok=True)
    assert result["gpu_mem_used_bytes"] == 4000


def test_processes_of_a_gpu_that_was_read(run: Run) -> None:
    result = run(
        """
nvml = Nvml()
before = nvml.processes(SECOND)
nvml.read(SECOND, ())
result = {"before": before, "after": nvml.processes(SECOND)}
""",
        figures=FIGURES + "pid.1 4242\nmem.1 -1\n",
    )
    assert result["before"] == {}
    assert math.isnan(result["after"]["4242"])


def test_an_old_driver_lacks_only_what_it_lacks(run: Run) -> None:
    result = run("nvml = Nvml(); result = nvml.read(SECOND, ()) | {'causes': nvml.causes}", library="old driver")
    assert math.isnan(result["gpu_power_w"])
    assert math.isnan(result["pcie_rx_bytes_per_s"])
    assert result["gpu_mem_used_bytes"] == 4500  # version 1 of the call, which counts the driver's own share
    assert result["gpu_util_pct"] == 55
    assert result["causes"]["nvmlDeviceGetPcieThroughput"] == "Function Not Found"


@pytest.mark.parametrize("code", [3, 4, 999])  # not supported, no permission, unknown error
def test_a_function_that_fails_costs_its_own_field_only(run: Run, code: int) -> None:
    result = run(
        "nvml = Nvml(); result = nvml.read(SECOND, ()) | {'lost': nvml.lost}",
        figures=f"{FIGURES}e.nvmlDeviceGetTemperature {code}\n",
    )
    assert math.isnan(result["gpu_temp_c"])
    assert {k for k in GIVEN if math.isnan(result[k])} == {"gpu_temp_c"}
    assert result["lost"] == {}


def test_pcie_is_asked_once_a_second_and_kept_for_that_long(run: Run) -> None:
    result = run("""
nvml = Nvml(clock=clock)
seen = []
for now, kilobytes in ((100.0, 1), (100.2, 2), (100.9, 3), (101.1, 4), (50.0, 5)):
    control(f"pcie.1 {kilobytes}")
    seen.append(nvml.read(SECOND, ())["pcie_rx_bytes_per_s"])
result = {"seen": seen, "calls": calls("nvmlDeviceGetPcieThroughput")}
""")
    assert result == {"seen": [1e3, 1e3, 1e3, 4e3, 5e3], "calls": [3]}


def test_a_gpu_lost_between_two_calls_of_a_sample_has_no_figures_at_all(run: Run) -> None:
    result = run("""
for asked in range(9):  # a sample is 8 calls, the one for the handle included
    before = calls("device")[0]
    control(FIGURES + f"lost_after {before + asked}")
    with Nvml() as nvml:
        result[asked] = nvml.read(SECOND, ()) | {"lost": nvml.lost.get(SECOND)}
    result[asked]["calls"] = calls("device")[0] - before
""")
    for asked in range(8):
        assert result[str(asked)].pop("calls") == asked + 1  # none after the one that told: it could block
        assert result[str(asked)].pop("lost") == "GPU is lost"
        assert all(math.isnan(v) for v in result[str(asked)].values())
    assert result["8"]["lost"] is None
    assert result["8"]["pcie_rx_bytes_per_s"] == GIVEN["pcie_rx_bytes_per_s"]


@pytest.mark.parametrize(
    ("figures", "library", "reason", "detail"),
    [
        ("init 9", "driver", NO_GPU_MESSAGE, "Driver Not Loaded"),
        ("init 18", "driver", "NVML does not start: device figures are not available", "version mismatch"),
        ("count 0", "driver", NO_GPU_MESSAGE, "the driver lists no GPU"),
        ("e.nvmlDeviceGetCount_v2 999", "driver", NO_GPU_MESSAGE, "Unknown Error"),
        ("", "damaged", NO_GPU_MESSAGE, "NVML Shared Library Not Found"),
    ],
)
def test_why_there_are_no_figures(run: Run, figures: str, library: str, reason: str, detail: str) -> None:
    result = run(
        """
nvml = Nvml()
result |= {"available": nvml.available, "reason": nvml.reason, "detail": nvml.detail, "gpus": list_gpus()}
result |= {"read": nvml.read(0, ())}
with Telemetry(pid=os.getpid(), device="cuda:0", sink=lambda rows: None) as telemetry:
    result |= {"row": reported(telemetry)}
result |= {"notices": telemetry.notices}
""",
        figures=figures,
        library=library,
    )
    assert (result["available"], result["reason"], result["gpus"]) == (False, reason, [])
    assert detail in result["detail"]
    assert all(math.isnan(v) for v in result["read"].values())
    assert math.isnan(result["row"]["gpu_util_pct"])
    assert result["row"]["job_rss_bytes"] > 0
    assert result["notices"] == [f"{reason} ({result['detail']})"]


def test_list_gpus_leaves_out_what_does_not_answer(run: Run) -> None:
    script = "result['gpus'] = [(gpu.name, gpu.uuid) for gpu in list_gpus()]; result['calls'] = calls('nvmlShutdown')"
    assert run(script) == {"gpus": [["Stub GPU 0", FIRST], ["Stub GPU 1", SECOND]], "calls": [1]}
    assert run(script, figures="device 15") == {"gpus": [], "calls": [1]}
    assert run(script, figures="bad_name 1")["gpus"] == [["NVIDIA GPU", FIRST], ["NVIDIA GPU", SECOND]]


def test_list_gpus_here() -> None:
    gpus = list_gpus()
    nvml = Nvml()
    assert bool(gpus) == nvml.available == (nvml.reason == "")
    assert [gpu.index for gpu in gpus] == list(range(len(gpus)))
    nvml.close()
    nvml.close()
