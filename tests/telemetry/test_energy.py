"""The energy of a job's GPUs: sums of counters that begin anywhere, lack answers, or begin anew."""

import math

import pytest

from tests.telemetry.drivers import FIRST, SECOND
from tests.telemetry.test_nvml import FIGURES, Run, programs, run  # noqa: F401
from vitprof.telemetry.energy import EnergyMeter

# ruff: noqa: F811 (a fixture's name as an argument)


def test_each_gpu_counts_from_its_first_reading() -> None:
    meter = EnergyMeter()
    assert meter.total({FIRST: 9000.0}).joules == 0
    assert meter.total({FIRST: 9030.0}).joules == 30
    joined = meter.total({FIRST: 9040.0, SECOND: 500.0})
    assert (joined.joules, joined.n_gpus) == (40, 2)
    assert meter.total({FIRST: 9040.0, SECOND: 507.0}).joules == 47


def test_a_sum_that_lacks_a_gpu_is_not_known() -> None:
    meter = EnergyMeter()
    meter.total({FIRST: 1.0, SECOND: 1.0})
    lacking = meter.total({FIRST: 2.0, SECOND: math.nan})
    assert math.isnan(lacking.joules)
    assert math.isnan(lacking.n_gpus)
    assert meter.total({FIRST: 3.0, SECOND: 5.0}).joules == 6
    assert math.isnan(meter.total({}).joules)


def test_a_counter_that_began_anew_says_nothing_any_more() -> None:
    meter = EnergyMeter()
    meter.total({FIRST: 900.0})
    assert math.isnan(meter.total({FIRST: 3.0}).joules)
    assert math.isnan(meter.total({FIRST: 950.0}).joules)


TWO_GPUS = """
telemetry = Telemetry(pid=os.getpid(), device="cuda:0", gpu_uuid=SECOND, sink=lambda rows: None, clock=clock)
seen = []
for now, own, other in ((100.0, 9000000, 70000), (100.2, 9060000, 71000), (100.4, 9120000, 75000)):
    control(f"{FIGURES}energy.1 {own}\\nenergy.0 {other}\\n")
    row = reported(telemetry)
    seen.append((row["gpu_energy_j"], row["energy_gpus"]))
    telemetry.add_gpu(FIRST)
telemetry.stop()
result["seen"] = seen
"""


def test_the_gpus_of_all_ranks_are_in_the_sum(run: Run) -> None:
    figures = FIGURES.replace("energy.1 9000000\n", "")
    assert run(TWO_GPUS, figures=figures)["seen"] == [[0, 1], [60, 2], [124, 2]]


@pytest.mark.parametrize(
    ("gpu", "more", "why"),
    [
        ("SECOND", "e.nvmlDeviceGetTotalEnergyConsumption 3\n", "NVML: Not Supported"),
        ("SLICE", "mig 1\n", "NVML: Not Supported"),
    ],
)
def test_without_a_counter_energy_is_not_available_and_never_0(
    run: Run, gpu: str, more: str, why: str
) -> None:
    result = run(
        f"""
telemetry = Telemetry(pid=os.getpid(), device="cuda:0", gpu_uuid={gpu}, sink=lambda rows: None)
result |= {{"row": reported(telemetry), "facts": telemetry.facts}}
telemetry.stop()
""",
        figures=FIGURES + more,
    )
    assert math.isnan(result["row"]["gpu_energy_j"])
    assert math.isnan(result["row"]["energy_gpus"])
    assert result["row"]["gpu_power_w"] == 71.5
    assert f"energy ({why})" in result["facts"]["gpu_not_available"]


def test_the_old_driver_has_no_counter(run: Run) -> None:
    result = run("result = Nvml().read(SECOND, ())", library="old driver")
    assert math.isnan(result["gpu_energy_j"])
