"""The telemetry thread with a GPU: the stand-in for NVML of test_telemetry_nvml.py."""

from __future__ import annotations

import math

import pytest

from tests.telemetry.drivers import FIRST, SECOND
from tests.telemetry.test_nvml import Run, libraries, run  # noqa: F401

# ruff: noqa: F811 (a fixture's name as an argument)


@pytest.mark.parametrize(
    ("device", "uuid", "visible", "utilisation"),
    [
        ("cuda:0", None, None, 11),
        ("cuda:1", None, None, 55),
        ("auto", None, None, 11),
        ("auto", None, "1", 55),
        ("cuda:0", None, f"{SECOND},{FIRST}", 55),
        ("cuda:0", SECOND, "0,1", 55),  # the UUID knows better
        ("cuda:0", SECOND.removeprefix("GPU-"), None, 55),  # as torch reports it
        ("cuda:2", None, None, math.nan),
        ("auto", None, "", math.nan),
        ("cpu", None, None, math.nan),
    ],
)
def test_the_gpu_of_the_job_is_the_one_that_is_read(
    run: Run, device: str, uuid: str | None, visible: str | None, utilisation: float
) -> None:
    result = run(
        f"""
telemetry = Telemetry(pid=os.getpid(), device={device!r}, gpu_uuid={uuid!r}, sink=lambda rows: None)
result |= {{"row": reported(telemetry), "again": reported(telemetry), "notices": telemetry.notices}}
result |= {{"facts": telemetry.facts}}
telemetry.stop()
result |= {{"calls": calls("nvmlInitWithFlags", "nvmlShutdown")}}
""",
        visible=visible,
    )
    assert result["row"]["gpu_util_pct"] == pytest.approx(utilisation, nan_ok=True)
    known = {} if math.isnan(utilisation) else {"driver_version": "999.01", "gpu_power_limit_w": 300.0}
    assert result["facts"] == known
    assert len(result["notices"]) == (1 if math.isnan(utilisation) and device != "cpu" else 0)
    assert result["calls"] == ([0, 0] if device == "cpu" else [1, 1])


@pytest.mark.parametrize(("code", "cause"), [(15, "GPU is lost"), (16, "GPU requires restart"), (999, "Unknown Error")])
def test_a_gpu_lost_in_the_middle_of_a_run(run: Run, code: int, cause: str) -> None:
    result = run(f"""
telemetry = Telemetry(pid=os.getpid(), device="cuda:1", sink=lambda rows: None, clock=clock, nvml=Nvml(clock=clock))
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
    assert all(math.isnan(v) for k, v in result["during"].items() if k.startswith(("gpu_", "pcie_")))
    assert result["during"]["job_rss_bytes"] > 0
    assert result["calls"] == 2  # when it was lost at 101.2 s, and at 106.2 s: not at every sample
    assert result["notices"] == [
        f"GPU lost at 1.2 s: {SECOND} does not answer ({cause}); its figures are not available while that lasts"
    ]


def test_the_thread_reads_the_gpu_and_closes_nvml(run: Run) -> None:
    result = run("""
rows, enough = [], threading.Event()
def sink(new):
    rows.extend(new)
    if len(rows) >= 3:
        enough.set()
with Telemetry(pid=os.getpid(), device="cuda:1", hz=50, sink=sink):
    enough.wait(30)
util = [TelemetrySample(*row).gpu_util_pct for row in rows]
result |= {"util": util, "threads": threading.active_count(), "calls": calls("nvmlInitWithFlags", "nvmlShutdown")}
""")
    assert len(result["util"]) >= 3
    assert set(result["util"]) == {55}
    assert (result["threads"], result["calls"]) == (1, [1, 1])
