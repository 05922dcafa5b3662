"""Accelerators by name and by their times, and where the figures of the named ones come from."""

import pytest

from vitprof.config import RunConfig, accelerators
from vitprof.config.accelerators import (
    accelerator,
    as_requested,
    card_of,
    device_for,
    device_of_times,
    is_given,
    step_figures,
)
from vitprof.config.models import MODELS
from vitprof.config.resolve import resolve, run_name
from vitprof.errors import ConfigError


def images_per_s(card: str, model: str) -> float:
    return 1 / step_figures(accelerators.CARDS[card], model, 224, "bf16")[1]


def test_named_and_given() -> None:
    card = accelerator("simulated:rtx2060-article")
    article = {
        500: 12,
        1000: 7.18,
        5000: 5.84,
        10000: 4.65,
    }  # seconds an epoch of 60,000, in the article's table
    for batch, seconds in article.items():
        assert card.compute_s(batch) * 60_000 / batch == pytest.approx(seconds, rel=0.15)
    assert "RTX 2060" in card.origin
    device = device_of_times(1.5, 20)
    assert device == "simulated:1.5,20"
    assert (is_given(device), card_of(device), device_for(device, "b/16", 224, "bf16")) == (
        True,
        None,
        device,
    )
    assert (accelerator(device).step_s, accelerator(device).sample_s) == (
        0.0015,
        pytest.approx(20e-6),
    )


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "rtx",
            "1",
            "1,2,3",
            "a,b",
            "-1,2",
            "0,0",
            "nan,1",
            "1,inf",
            "60001,1",
            "b200=1,2",
            ",launch=4",
        ),
        *(f"1,20,launch={milliseconds}" for milliseconds in ("", "x", "-1", "1e9", "nan")),
    ],
)
def test_no_accelerator(text: str) -> None:
    allowed = r"simulated:NAME \(rtx4060-laptop, .* milliseconds .* simulated:66,70.* add ,launch=C for C milliseconds"
    with pytest.raises(ConfigError, match=allowed):
        accelerator(f"simulated:{text}")


def test_figures_follow_the_papers_and_the_slower_of_arithmetic_and_memory() -> None:
    """1.3, 4.6 and 17.6 "GFLOPs" of Ti, S and B, as papers count multiplications, with embedding and head."""
    for name, giga in {"ti/16": 1.26, "s/16": 4.6, "b/16": 17.6}.items():
        assert accelerators.forward_macs(MODELS[name], 224) / 1e9 == pytest.approx(giga, rel=0.03)
    assert set(accelerators.MEASURED) == set(MODELS)
    step_s, sample_s = step_figures(accelerators.RTX_3090, "b/16", 224, "bf16")
    assert (1 / sample_s, step_s) == (pytest.approx(390.86), pytest.approx(6e-3))
    assert step_figures(accelerators.RTX_3090, "b/16", 224, "fp32")[1] == pytest.approx(
        2 * sample_s, rel=0.01
    )
    assert images_per_s("a100", "b/16") == pytest.approx(390.86 * 2039 / 936)
    speeds = [
        images_per_s(card, "s/16") for card in ("rtx2060-article", "rtx4060-laptop", "a100", "h100")
    ]
    assert speeds[0] < 2 * speeds[1] < speeds[2] < speeds[3], "within what anybody would expect"
    assert 1.5 < speeds[3] / speeds[2] < 2.1, "NVIDIA's own comparison with ViT g/14: 2.06"


def test_a_run_keeps_the_figures_that_it_was_made_with() -> None:
    asked = RunConfig(device="simulated:h100", dataset="photos", model="s/16", precision="bf16")
    whole = resolve(asked)
    assert (whole.device, resolve(whole)) == ("simulated:h100=6,265", whole)
    assert run_name(whole).endswith("on simulated:h100")
    card = accelerator(whole.device)
    assert (card.name, card.step_s, card.sample_s) == ("H100", 0.006, pytest.approx(265e-6))
    assert card.pinned_bytes_per_s > accelerator("simulated:6,265").pinned_bytes_per_s, "PCIe 5.0"
    small, large = (
        resolve(RunConfig(device="simulated:h100", image_size=size)) for size in (28, 56)
    )
    assert small.device != large.device


def test_launches_take_the_host_time() -> None:
    card = accelerator("simulated:1,20,launch=4")
    assert (card.step_s, card.sample_s, card.launch_s) == (1e-3, 20e-6, 4e-3)
    assert card.compute_s(10) == pytest.approx(1.2e-3)
    assert card.span_s(10) == 4e-3
    assert card.span_s(1000) == pytest.approx(21e-3)
    assert card.times.endswith("launched in 4 ms")
    assert is_given("simulated:1,20,launch=4")
    assert (device_of_times(1, 20, 4), device_of_times(1, 20)) == (
        "simulated:1,20,launch=4",
        "simulated:1,20",
    )
    named = accelerator("simulated:h100=3,7.02,launch=5")
    assert (named.name, named.step_s, named.launch_s) == ("H100", 3e-3, 5e-3)
    for device in (
        "simulated:1,20,launch=4",
        "simulated:h100=3,7.02,launch=5",
        "simulated:1,20",
        "cuda:0",
    ):
        assert as_requested(device) == device
    assert as_requested("simulated:h100=3,7.02") == "simulated:h100"
    assert run_name(resolve(RunConfig(device="simulated:1,20,launch=4"))).endswith(
        "on simulated:1,20,launch=4"
    )
