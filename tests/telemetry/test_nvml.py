"""NVML through pynvml's real ctypes binding, against a stand-in for the driver's library (nvml_stub.c). The library is
loaded once in a process and for good, so each kind of it has a process, in which tests run scripts."""

import contextlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests import ROOT
from tests.telemetry.drivers import FIRST, SECOND, SLICE, build
from vitprof.telemetry.nvml import NEEDS_HOPPER, NO_GPU_MESSAGE, GpuInfo
from vitprof.telemetry.sampler import NO_FIGURES, TO_HAVE_THEM

FIGURES = """\
util.0 11
util.1 55
total.1 16000000000
reserved.1 500
used.1 4000
power.1 71500
energy.1 9000000
clock.1 1410
temp.1 63
pcie.1 2500
"""
GIVEN = {
    "gpu_util_pct": 55,
    "gpu_mem_used_bytes": 4000,
    "gpu_power_w": 71.5,
    "gpu_energy_j": 9000,
    "gpu_sm_clock_mhz": 1410,
}
GIVEN |= {"gpu_temp_c": 63, "pcie_rx_bytes_per_s": 2.5e6}

PROGRAM = f"""
import ctypes, dataclasses, json, math, os, sys, threading, traceback
import pynvml
from vitprof.recording.columns import TelemetrySample
from vitprof.telemetry.nvml import Nvml
from vitprof.telemetry.sampler import Telemetry

FIRST, SECOND, SLICE = "{FIRST}", "{SECOND}", "{SLICE}"

def clock():
    return now

def control(text):
    with open(os.environ["NVML_STUB"], "w") as file:
        file.write(text)

def calls(*functions):
    library = ctypes.CDLL("libnvidia-ml.so.1")
    return [library.nvml_stub_calls(function.encode()) - earlier.get(function, 0) for function in functions]

def reported(telemetry):
    return dataclasses.asdict(TelemetrySample(*telemetry.sample()))

for line in sys.stdin:
    script, FIGURES = json.loads(line)
    control(FIGURES)
    now, result, earlier = 100.0, {{}}, {{}}  # a script sets what the clock says
    try:
        names = ["nvmlInitWithFlags", "nvmlShutdown", "nvmlGpmSampleAlloc", "nvmlGpmSampleFree"]
        earlier = dict(zip(names, calls(*names)))
    except (OSError, AttributeError):  # the damaged library
        pass
    try:
        exec(script)
    except Exception:
        result = traceback.format_exc()
    print(json.dumps(result), flush=True)
"""

Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """For each kind of library a process that runs scripts."""
    built = {}
    for name, flags in {"driver": [], "old driver": ["-DOLD_DRIVER"]}.items():
        built[name] = build(
            "nvml_stub.c", "libnvidia-ml.so.1", tmp_path_factory.mktemp("nvml"), *flags
        )
    built["damaged"] = tmp_path_factory.mktemp("nvml")
    (built["damaged"] / "libnvidia-ml.so.1").write_bytes(b"not a library")
    with contextlib.ExitStack() as stack:
        started = {}
        for name, directory in built.items():
            env = {
                **os.environ,
                "LD_LIBRARY_PATH": str(directory),
                "NVML_STUB": str(directory / "control"),
            }
            env |= {
                "PYTHONPATH": str(ROOT),
                "CUDA_VISIBLE_DEVICES": "1,0",
            }  # it says how CUDA counts; nobody uses it
            command = [sys.executable, "-c", PROGRAM]
            started[name] = stack.enter_context(
                subprocess.Popen(command, env=env, stdin=-1, stdout=-1, text=True)
            )
        yield started
        for process in started.values():
            process.stdin.close()


@pytest.fixture
def run(programs: dict[str, Any]) -> Run:
    """Runs a script against the library; it puts what the test wants to know into `result`."""

    def run_script(
        script: str, *, figures: str = FIGURES, library: str = "driver"
    ) -> dict[str, Any]:
        process = programs[library]
        process.stdin.write(json.dumps([script, figures]) + "\n")
        process.stdin.flush()
        result = json.loads(process.stdout.readline())
        assert isinstance(result, dict), result
        return result

    return run_script


def test_every_figure_in_its_unit_and_of_the_gpu_asked_for(run: Run) -> None:
    result = run("""
with Nvml(clock=clock) as nvml:
    result |= {"read": nvml.read(SECOND, ()), "other": nvml.read(FIRST, ())}
    result |= {"gpus": [dataclasses.asdict(gpu) for gpu in nvml.gpus()], "reason": nvml.reason, "lost": nvml.lost}
result |= {"closed": nvml.read(SECOND, ()), "calls": calls("nvmlInitWithFlags", "nvmlShutdown")}
""")
    assert {k: v for k, v in result["read"].items() if not math.isnan(v)} == GIVEN
    assert result["other"]["gpu_util_pct"] == 11
    assert result["other"]["gpu_power_w"] == 0  # a 0 that was read stays a 0
    assert GpuInfo(**result["gpus"][1]) == GpuInfo(
        1, "Stub GPU 1", SECOND, 16e9, "999.01", power_limit_w=300.0
    )
    assert (result["reason"], result["lost"]) == ("", {})
    assert all(math.isnan(v) for v in result["closed"].values())
    assert result["calls"] == [1, 1]


def test_free_memory_is_what_nobody_uses_also_through_the_old_package(run: Run) -> None:
    result = run("""
from vitprof.telemetry.nvml import driver_version, free_bytes
kept = dict(vars(pynvml))
with Nvml() as nvml:
    free = [free_bytes(nvml.call, SECOND), free_bytes(nvml.call, "GPU-none")]
    del pynvml.nvmlMemory_v2  # as in the package pynvml 11.4, which also speaks bytes
    pynvml.__path__ = []
    by_uuid, name = pynvml.nvmlDeviceGetHandleByUUID, pynvml.nvmlDeviceGetName
    pynvml.nvmlDeviceGetHandleByUUID = lambda uuid: by_uuid(uuid.decode())
    pynvml.nvmlDeviceGetName = lambda handle: name(handle).encode()
    driver = pynvml.nvmlSystemGetDriverVersion
    pynvml.nvmlSystemGetDriverVersion = lambda: driver().encode()
    result = {"free": [*free, free_bytes(nvml.call, SECOND)], "driver": driver_version(nvml.call)}
    result["names"] = [gpu.name for gpu in nvml.gpus()]
vars(pynvml).clear()
vars(pynvml).update(kept)
""")
    assert result["names"] == ["Stub GPU 0", "Stub GPU 1"]
    assert result["free"] == pytest.approx([16e9 - 4500, math.nan, 16e9 - 4500], nan_ok=True)
    assert result["driver"] == "999.01"


def test_memory_and_processes_of_the_job(run: Run) -> None:
    result = run("""
for listed, pids in (
    ("pid.1 4242\\nmem.1 4096\\n", {4242, 7}),
    ("pid.1 4242\\nmem.1 4096\\n", {1, 4242}),
    ("pid.1 4242\\nmem.1 -1\\n", {4242}),  # WDDM: NVML does not know the size
    ("pid.1 4242\\nmem.1 4096\\n", {7}),  # listed under other pids, as in a container
    ("", {4242}),  # nothing listed: no context yet, or not to be seen
):
    control(FIGURES + listed)
    figures = Nvml().read(SECOND, pids)
    assert figures["gpu_mem_used_bytes"] == 4000
    result[len(result)] = figures["gpu_mem_job_bytes"]
control(FIGURES + "pid.1 4242\\nmem.1 -1\\n")
nvml = Nvml()
listed = nvml.processes(SECOND)
nvml.read(SECOND, ())
result |= {"before": listed, "after": nvml.processes(SECOND)}
""")
    before, after = result.pop("before"), result.pop("after")
    assert before == {}, "of a GPU that was read"
    assert math.isnan(after["4242"])
    assert list(result.values()) == pytest.approx(
        [4096, 5096, math.nan, math.nan, math.nan], nan_ok=True
    )


def test_an_old_driver_lacks_only_what_it_lacks(run: Run) -> None:
    result = run(
        "nvml = Nvml(); result = nvml.read(SECOND, ()) | {'causes': nvml.causes}",
        library="old driver",
    )
    assert math.isnan(result["gpu_power_w"])
    assert math.isnan(result["pcie_rx_bytes_per_s"])
    assert (
        result["gpu_mem_used_bytes"] == 4500
    )  # version 1 of the call, which counts the driver's own share
    assert result["gpu_util_pct"] == 55
    assert result["causes"]["nvmlDeviceGetPcieThroughput"] == "Function Not Found"


def test_a_function_that_fails_costs_its_own_field_only(run: Run) -> None:
    result = run("""
for code in (3, 4, 999):  # not supported, no permission, unknown error
    control(f"{FIGURES}e.nvmlDeviceGetTemperature {code}\\n")
    nvml = Nvml()
    result[code] = nvml.read(SECOND, ())
    assert not nvml.lost
""")
    for figures in result.values():
        assert {k for k in GIVEN if math.isnan(figures[k])} == {"gpu_temp_c"}


def test_pcie_is_asked_once_a_second_and_kept_for_that_long(run: Run) -> None:
    result = run("""
nvml = Nvml(clock=clock)
seen, asked = [], calls("nvmlDeviceGetPcieThroughput")[0]
for now, kilobytes in ((100.0, 1), (100.2, 2), (100.9, 3), (101.1, 4), (50.0, 5)):
    control(f"pcie.1 {kilobytes}")
    seen.append(nvml.read(SECOND, ())["pcie_rx_bytes_per_s"])
result = {"seen": seen, "calls": calls("nvmlDeviceGetPcieThroughput")[0] - asked}
""")
    assert result == {"seen": [1e3, 1e3, 1e3, 4e3, 5e3], "calls": 3}


def test_a_gpu_lost_between_two_calls_of_a_sample_has_no_figures_at_all(run: Run) -> None:
    result = run("""
for asked in range(11):  # a sample is 10 calls, those for the handle and for the GPM counters included
    before = calls("device")[0]
    control(FIGURES + f"lost_after {before + asked}")
    with Nvml() as nvml:
        result[asked] = nvml.read(SECOND, ()) | {"lost": nvml.lost.get(SECOND)}
    result[asked]["calls"] = calls("device")[0] - before
""")
    for asked in range(10):
        assert (
            result[str(asked)].pop("calls") == asked + 1
        )  # none after the one that told: it could block
        assert result[str(asked)].pop("lost") == "GPU is lost"
        assert all(math.isnan(v) for v in result[str(asked)].values())
    assert result["10"]["lost"] is None
    assert result["10"]["pcie_rx_bytes_per_s"] == GIVEN["pcie_rx_bytes_per_s"]


@pytest.mark.parametrize(
    ("figures", "library", "reason", "detail"),
    [
        ("init 9", "driver", NO_GPU_MESSAGE, "Driver Not Loaded"),
        ("init 18", "driver", "NVML does not start", "version mismatch"),
        ("count 0", "driver", NO_GPU_MESSAGE, "the driver lists no GPU"),
        ("e.nvmlDeviceGetCount_v2 999", "driver", NO_GPU_MESSAGE, "Unknown Error"),
        ("", "damaged", NO_GPU_MESSAGE, "NVML Shared Library Not Found"),
    ],
)
def test_why_there_are_no_figures(
    run: Run, figures: str, library: str, reason: str, detail: str
) -> None:
    result = run(
        """
nvml = Nvml()
result |= {"available": nvml.available, "reason": nvml.reason, "detail": nvml.detail, "gpus": nvml.gpus()}
result |= {"read": nvml.read(FIRST, ())}
telemetry = Telemetry(pid=os.getpid(), device="cuda:0", sink=lambda rows: None)
result |= {"row": reported(telemetry), "notices": telemetry.notices}
""",
        figures=figures,
        library=library,
    )
    assert (result["available"], result["reason"], result["gpus"]) == (False, reason, [])
    assert detail in result["detail"]
    assert all(math.isnan(v) for v in result["read"].values())
    assert math.isnan(result["row"]["gpu_util_pct"])
    assert result["row"]["job_rss_bytes"] > 0
    assert result["notices"] == [NO_FIGURES.format(f"{reason} ({result['detail']})", TO_HAVE_THEM)]


def test_gpus_that_do_not_answer_are_left_out(run: Run) -> None:
    script = "result['gpus'] = [(gpu.name, gpu.uuid) for gpu in Nvml().gpus()]"
    assert run(script) == {"gpus": [["Stub GPU 0", FIRST], ["Stub GPU 1", SECOND]]}
    assert run(script, figures="device 15") == {"gpus": []}
    assert run(script, figures="bad_name 1")["gpus"] == [
        ["NVIDIA GPU", FIRST],
        ["NVIDIA GPU", SECOND],
    ]


def test_a_slice_has_its_own_memory_and_its_cards_power(run: Run) -> None:
    """MIG: what NVML refuses of a slice is the card's, or it is said that there is none; it is never another's."""
    result = run(
        """
with Nvml(clock=clock) as nvml:
    result |= {"figures": nvml.read(SLICE, {4242}), "why": nvml.why_not[SLICE], "processes": nvml.processes(SLICE)}
    result |= {"gpus": [(gpu.index, gpu.name, gpu.uuid, gpu.slice_of, gpu.power_limit_w) for gpu in nvml.gpus()]}
""",
        figures=f"{FIGURES}mig 1\nused.2 300\ntotal.2 5000\nutil.2 99\npid.2 4242\nmem.2 200\n",
    )
    assert result["gpus"][2] == [1, "Stub GPU 1 MIG 1g.5gb", SLICE, SECOND, 300.0]
    known = {name: value for name, value in result["figures"].items() if not math.isnan(value)}
    of_card = {
        name: value
        for name, value in GIVEN.items()
        if name not in ("gpu_util_pct", "gpu_mem_used_bytes", "gpu_energy_j")
    }
    assert known == of_card | {"gpu_mem_used_bytes": 300, "gpu_mem_job_bytes": 200}
    no_sm = dict.fromkeys(("gpu_sm_active_pct", "gpu_sm_occupancy_pct"), NEEDS_HOPPER)
    not_of_a_slice = dict.fromkeys(("gpu_util_pct", "gpu_energy_j"), "NVML: Not Supported")
    assert result["why"] == no_sm | not_of_a_slice


SM = """
seen = []
with Nvml(clock=clock) as nvml:
    for now, counter in ((100.0, 1000), (100.2, 1030), (100.25, 1999), (100.5, 1042), (50.0, 1042), (50.2, 1043)):
        control(FIGURES + f"gpm.1 1\\n{KEY} {counter}")
        values = nvml.read(GPU, ())
        seen.append((values["gpu_sm_active_pct"], values["gpu_sm_occupancy_pct"]))
    result |= {"seen": seen, "why": nvml.why_not[GPU]}
result |= {"calls": calls("nvmlGpmSampleAlloc", "nvmlGpmSampleFree")}
"""


@pytest.mark.parametrize(
    ("gpu", "key", "more"), [(SECOND, "counter.1", ""), (SLICE, "counter.2", "mig 1\n")]
)
def test_sm_activity_and_occupancy_are_of_the_time_between_readings(
    run: Run, gpu: str, key: str, more: str
) -> None:
    result = run(f"GPU, KEY = {gpu!r}, {key!r}\n{SM}", figures=FIGURES + more)
    first, *others = result["seen"]
    assert all(math.isnan(value) for value in first)  # nothing before it
    # 50 ms after the last one the counters are not asked; and a clock that went back is nothing to measure against
    assert others == [[30, 3], [30, 3], [12, 1.2], [0, 0], [1, 0.1]]
    assert not {"gpu_sm_active_pct", "gpu_sm_occupancy_pct"} & set(result["why"])
    assert result["calls"] == [2, 2]


@pytest.mark.parametrize(
    ("more", "library", "why"),
    [
        ("gpm.1 0", "driver", NEEDS_HOPPER),
        ("", "old driver", "NVML: Function Not Found"),
        ("gpm.1 1\ne.nvmlGpmSampleGet 4", "driver", "NVML: Insufficient Permissions"),
        ("gpm.1 1\nmetric 3", "driver", "NVML: Not Supported"),
    ],
)
def test_why_there_is_no_sm_activity(run: Run, more: str, library: str, why: str) -> None:
    result = run(
        """
with Nvml(clock=clock) as nvml:
    for now in (100.0, 100.2):
        values = nvml.read(SECOND, ())
    result |= {"values": values, "why": nvml.why_not[SECOND]}
""",
        figures=FIGURES + more,
        library=library,
    )
    assert {result["why"][name] for name in ("gpu_sm_active_pct", "gpu_sm_occupancy_pct")} == {why}
    assert math.isnan(result["values"]["gpu_sm_active_pct"])
    assert result["values"]["gpu_util_pct"] == 55
