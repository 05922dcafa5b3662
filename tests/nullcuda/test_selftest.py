"""Cases of the self-test that need no arithmetic: right on the null device, and wrong where it is."""

import json
from typing import Any

import pytest

from tests.watch.watching import Host

MARKS = {"MARKS": 300}
FEW = {"KERNELS": 150}
IMAGES = {"IMAGES": (128, 128, 128, 3)}


def cases(forks: Host, home: str, *wanted: Any, **variables: str) -> Any:
    done = forks.run("cases", watched=False, env=variables, home=home, wanted=wanted)
    assert done.status == 0, done.complaint
    return json.loads(done.returned)


@pytest.mark.measured(before_others=True)
@pytest.mark.alone
def test_the_device_alone(forks: Host, home: str) -> None:
    found = cases(
        forks,
        home,
        ("clock mapping", MARKS),
        ("clock mapping", {"MARKS": 20, "MOST_OUTSIDE_S": -1.0}),
        ("copies", IMAGES),
        ("copies", IMAGES | {"LEAST_BANDWIDTH_FRAC": 1.5}),
        ("launch-bound", FEW),
        ("launch-bound", FEW | {"profiler": 1.0}),
        ("launch-bound", FEW | {"profiler": 0.8}),
        ("launch-bound", {"KERNELS": 15, "TINY_S": 1e-3}),
    )
    clock, outside, copies, slow, launched, compared, off, busy = found["outcomes"]
    assert clock["measured"].startswith("300 of 300 inside"), clock
    assert [case["status"] for case in (clock, copies, launched, compared)] == ["passed"] * 4, (
        found["outcomes"]
    )
    assert "20 marks are outside" in outside["wrong"]
    assert "of the bandwidth is reached" in slow["wrong"]
    assert launched["measured"].endswith(
        "not compared: torch.profiler sees no kernels here (CUPTI)"
    )
    assert "kernel time is off by +2" in off["wrong"]
    assert "were called not input-bound" in busy["wrong"]
    assert (found["facts"]["device_name"], found["facts"]["gpus"]) == ("NVIDIA Null GPU", 1)
    assert not {"hostname", "gpu_uuid"} & set(found["facts"])
    ask_s, took_s = found["spun"]
    assert ask_s != 0.003
    assert took_s == pytest.approx(0.003, rel=0.01)


@pytest.mark.measured(before_others=True)
@pytest.mark.alone
def test_a_wait_in_a_stage_is_found(forks: Host, home: str) -> None:
    waits = {"waits": ["no wait", "20 ms in read", "20 ms in transfer"]}
    (idle,) = cases(forks, home, ("known idle", waits))["outcomes"]
    assert idle["status"] == "passed", idle


def test_a_clock_that_drifts_is_seen(forks: Host, home: str) -> None:
    (clock,) = cases(forks, home, ("clock mapping", MARKS), NULLCUDA_DRIFT_PPM="1000")["outcomes"]
    assert "drift apart by +" in clock["wrong"]
