"""The telemetry thread with a GPU: the stand-in for NVML of test_telemetry_nvml.py."""

import math

import pytest

from tests.telemetry.drivers import SECOND, SLICE
from tests.telemetry.test_nvml import FIGURES, Run, programs, run  # noqa: F401
from vitprof.telemetry.nvml import GPU_FIELDS, NEEDS_HOPPER, NO_PROCESS
from vitprof.telemetry.sampler import NO_FIGURES, NOT_NVIDIAS, ONLY_NVIDIAS, TO_HAVE_THEM

# ruff: noqa: F811 (a fixture's name as an argument)


@pytest.mark.parametrize(
    ("device", "uuid", "utilisation"),
    [
        ("cuda:0", SECOND, 55),  # CUDA's first is NVML's second
        ("cuda:1", SECOND.removeprefix("GPU-").upper(), 55),
        ("cuda:1", None, math.nan),  # of several the number alone says nothing
        ("cuda:0", SLICE, math.nan),  # not in MIG mode here
        ("cpu", None, math.nan),
    ],
)
def test_the_gpu_of_the_job_is_the_one_read(
    run: Run, device: str, uuid: str | None, utilisation: float
) -> None:
    result = run(
        f"""
telemetry = Telemetry(pid=os.getpid(), device={device!r}, gpu_uuid={uuid!r}, sink=lambda rows: None)
result |= {{"row": reported(telemetry), "again": reported(telemetry), "notices": telemetry.notices}}
result |= {{"facts": telemetry.facts}}
telemetry.stop()
result |= {{"calls": calls("nvmlInitWithFlags", "nvmlShutdown")}}
"""
    )
    assert result["row"]["gpu_util_pct"] == pytest.approx(utilisation, nan_ok=True)
    known = {
        "driver_version": "999.01",
        "gpu_power_limit_w": 300.0,
        "gpu_not_available": f"GPU memory of the job ({NO_PROCESS}); SM activity, SM occupancy ({NEEDS_HOPPER})",
        "sm_activity_not_available": NEEDS_HOPPER,
    }
    expected = []
    if math.isnan(utilisation):
        known = {}
    if math.isnan(utilisation) and device != "cpu":
        why = (
            f"NVML does not list the GPU of this run ({device}, {uuid or 'its UUID is not known'})"
        )
        known, expected = {"sm_activity_not_available": why}, [NO_FIGURES.format(why, TO_HAVE_THEM)]
    assert (result["facts"], result["notices"]) == (known, expected)
    assert result["calls"] == ([0, 0] if device == "cpu" else [1, 1])


def test_a_gpu_of_rocm_gets_no_figures_of_an_nvidia_card(run: Run) -> None:
    """PyTorch for AMD's GPUs calls them cuda:N; a machine may have both makers' cards."""
    result = run(
        """
telemetry = Telemetry(pid=os.getpid(), device="cuda:0", nvidia=False, sink=lambda rows: None)
result |= {"row": reported(telemetry), "notices": telemetry.notices, "facts": telemetry.facts}
telemetry.stop()
result |= {"calls": calls("nvmlInitWithFlags", "nvmlShutdown")}
"""
    )
    assert not [name for name in GPU_FIELDS if not math.isnan(result["row"][name])]
    assert result["notices"] == [NOT_NVIDIAS]
    assert result["facts"] == {"sm_activity_not_available": ONLY_NVIDIAS}
    assert result["calls"] == [0, 0]


def test_what_was_had_once_is_not_called_not_available(run: Run) -> None:
    result = run(
        """
telemetry = Telemetry(pid=os.getpid(), device="cuda:0", gpu_uuid=SECOND, sink=lambda rows: None, clock=clock)
reported(telemetry)
result["at first"] = telemetry.facts["gpu_not_available"]
for now, counter in ((100.2, 7), (100.4, 9)):
    control(FIGURES + f"gpm.1 1\\npid.1 {os.getpid()}\\nmem.1 7\\ncounter.1 {counter}")
    last = reported(telemetry)
control(FIGURES + "gpm.1 1")  # the job's process is about to end, and not listed any more
now = 100.6
reported(telemetry)
result |= {"in the end": telemetry.facts["gpu_not_available"], "active": last["gpu_sm_active_pct"]}
result |= {"why not active": telemetry.facts["sm_activity_not_available"]}
telemetry.stop()
""",
        figures=FIGURES + "gpm.1 1\n",
    )
    at_first = f"GPU memory of the job ({NO_PROCESS})"
    assert result == {"at first": at_first, "in the end": None, "active": 2, "why not active": None}


@pytest.mark.parametrize(
    ("code", "cause"), [(15, "GPU is lost"), (16, "GPU requires restart"), (999, "Unknown Error")]
)
def test_a_gpu_lost_in_the_middle_of_a_run(run: Run, code: int, cause: str) -> None:
    result = run(f"""
telemetry = Telemetry(pid=os.getpid(), device="cuda:1", gpu_uuid=SECOND, sink=lambda rows: None, clock=clock)
result["before"] = reported(telemetry)
asked = []
for step in range(45):  # 9 s
    now = 100.2 + step / 5
    if step == 5:
        control("device {code}")
    asked.append((reported(telemetry), calls("nvmlDeviceGetUtilizationRates")[0]))
result |= {{"during": asked[-1][0], "calls": asked[-1][1] - asked[4][1]}}
control(FIGURES)
now = 120.0
result |= {{"after": reported(telemetry), "notices": telemetry.notices}}
telemetry.stop()
""")
    assert result["before"]["gpu_util_pct"] == result["after"]["gpu_util_pct"] == 55
    assert all(
        math.isnan(v) for k, v in result["during"].items() if k.startswith(("gpu_", "pcie_"))
    )
    assert result["during"]["job_rss_bytes"] > 0
    assert result["calls"] == 2  # when it was lost at 101.2 s, and at 106.2 s: not at every sample
    assert result["notices"] == [
        f"GPU lost at 1.2 s: {SECOND} does not answer ({cause}); its figures are not available while that lasts"
    ]
