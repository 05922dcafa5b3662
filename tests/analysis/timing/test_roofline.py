"""The most that each part of loading could make."""

from typing import Any

import numpy as np
import pytest

from tests.series import made_steps
from vitprof.analysis.timing.loading import loading_of
from vitprof.analysis.timing.roofline import DEVICE, DRIVE, LOADER, TRANSFER, Roofline, roofline_of
from vitprof.charts.roofline import roofline
from vitprof.config import RunConfig
from vitprof.config.resolve import resolve


def steps_of(n: int = 200, **more: Any) -> dict[str, np.ndarray]:
    """Batches of 50: 100 ms of a worker, 60 of them decoding; 14 ms of the device."""
    steps: dict[str, np.ndarray] = made_steps(
        np.full(n, 0.04), np.full(n, 0.014), h2d=0.001, samples=50
    )
    steps["made_start_s"] = steps["t_start_s"] - 0.1
    steps["made_end_s"] = steps["t_start_s"]
    for name, seconds in (
        {"read_s": 0.01, "decode_s": 0.06, "transform_s": 0.02, "collate_s": 0.005} | more
    ).items():
        steps[name] = np.full(n, seconds)
    return steps


def roofs(steps: dict[str, np.ndarray], cores: int = 2) -> Roofline | None:
    config = resolve(RunConfig(strategy="workers", dataset="photos", workers=2, batch_size=50))
    return roofline_of(loading_of(steps, config), steps, cores)


def test_each_stage_has_all_cores_and_the_loader_shares_them() -> None:
    rates = roofs(steps_of())
    assert rates is not None
    assert {roof.name: roof.samples_per_s for roof in rates.roofs} == pytest.approx(
        {
            "reading": 2 * 50 / 0.01,
            "decoding": 2 * 50 / 0.06,
            "transforms": 2 * 50 / 0.02,
            "collating": 2 * 50 / 0.005,
            "Python between the stages": 2 * 50 / 0.005,
            LOADER: 1000,
            TRANSFER: 50_000,
            DEVICE: 50 / 0.014,
        }
    )
    assert (rates.lowest.name, rates.cores_needed) == (LOADER, 8)
    assert rates.sentence == (
        "The device takes 14.0 ms for 50 samples; the loader takes 2.00 ms for a sample, most of it "
        "decoding. It makes 2 at a time; to feed the device it would have to make 8."
    )
    many = roofs(steps_of(), 16)
    assert many is not None
    assert many.lowest.name == DEVICE
    assert many.sentence.endswith("decoding. It makes 16 at a time: 8 at a time feed the device.")


def test_the_drive_has_a_bar_and_is_not_called_the_bottleneck() -> None:
    steps, config = (
        steps_of(),
        resolve(RunConfig(strategy="workers", dataset="photos", workers=2, batch_size=50)),
    )
    rates = roofline_of(loading_of(steps, config), steps, 2, 50e6, 100e3)
    assert rates is not None
    assert (rates.of(DRIVE).samples_per_s, rates.lowest.name) == (500, LOADER)
    assert "most of it decoding" in rates.sentence
    assert rates.of(DRIVE).words == "47.7 MiB/s, 97.7 KiB for a sample"
    assert rates.roofs[1:] == getattr(roofs(steps), "roofs", ())


def test_without_stages_or_a_device_there_is_none() -> None:
    unknown = dict.fromkeys(("read_s", "decode_s", "transform_s", "collate_s"), np.nan)
    nothing = steps_of(**unknown)
    for name in ("made_start_s", "made_end_s"):
        nothing[name] = np.full(200, np.nan)
    assert roofs(nothing) is None
    assert roofs(steps_of(compute_s=np.nan)) is None
    assert roofs(steps_of(15)) is None
    assert roofs(steps_of(), cores=1) is None, (
        "909 samples/s were reached, and one core would make 500"
    )


def test_the_chart_has_a_bar_for_each_and_what_was_reached() -> None:
    rates = roofs(steps_of())
    assert rates is not None
    figure = roofline(rates)
    assert list(figure.data[0].y) == [roof.name for roof in rates.roofs]
    assert figure.layout.xaxis.type == "log"
    assert figure.layout.shapes[0].x0 == rates.reached_per_s
    assert "1,000 samples/s: 2.00 ms for a sample" in figure.data[0].hovertext[5]
