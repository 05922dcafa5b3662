"""Colours that mean the same everywhere and can be told apart by everybody."""

import colorsys
import itertools
from typing import get_args

import numpy as np
import pytest

from vitprof.analysis.timing.activity import ACTIVITIES
from vitprof.analysis.timing.gaps import CAUSES
from vitprof.analysis.timing.loading import STAGE_WORDS
from vitprof.charts import live, style
from vitprof.charts.live import LiveChart
from vitprof.recording.verdict import Kind

LIVE = [value for value in vars(live).values() if isinstance(value, LiveChart)]
# Machado, Oliveira and Fernandes (2009): how linear RGB looks with a missing kind of cone (severity 1).
VISION = {
    "normal": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.3039],
    ],
}
LEAST_DISTANCE = 15
"""CIE76 difference in CIELAB. Two or three is just noticeable side by side (Mokrzycki and Tatol 2011)."""


def lab(colour: str, vision: str) -> np.ndarray:
    """A colour "#rrggbb" in CIELAB (D65) as somebody with this vision sees it, (3,)."""
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.asarray(VISION[vision]) @ linear, 0, 1)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = (np.array(to_xyz) @ seen) / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISION)
def test_colours_of_one_chart_are_told_apart_with_every_kind_of_vision(vision: str) -> None:
    device, loading = (
        [colour for _, colour in style.DEVICE_TIME.values()],
        style.LOADING_COLOURS.values(),
    )
    for together in (
        device,
        loading,
        [colour for _, colour in style.ACTIVITY.values()],
        style.VERDICTS.values(),
        [style.REFERENCE, style.GPU_UTIL],
    ):
        for a, b in itertools.combinations(together, 2):
            assert np.linalg.norm(lab(a, vision) - lab(b, vision)) > LEAST_DISTANCE, (a, b)


def test_words_on_a_bar_can_be_read() -> None:
    for colour in (*(c for _, c in style.DEVICE_TIME.values()), *style.LOADING_COLOURS.values()):
        low, high = sorted((style.luminance(colour), style.luminance(style.ink_on(colour))))
        assert (high + 0.05) / (low + 0.05) >= 4.5, colour
    assert style.luminance("#ffffff") == pytest.approx(1)


def test_white_words_on_a_chip_can_be_read() -> None:
    for colour in style.CHIPS.values():
        assert 1.05 / (style.luminance(colour) + 0.05) >= 4.5, colour


def test_a_verdict_has_the_colour_of_what_it_is_about() -> None:
    assert style.VERDICTS.keys() == style.CHIPS.keys() == set(get_args(Kind))
    assert style.VERDICTS["input-bound"] == style.ACTIVITY["data"][1] == style.DATA_WAIT
    assert style.VERDICTS["not input-bound"] == style.ACTIVITY["compute"][1] == style.COMPUTE
    assert style.VERDICTS["launch-bound"] == style.HOST


def hue(colour: str) -> float:
    """The hue of a colour, in degrees."""
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return 360 * colorsys.rgb_to_hsv(red, green, blue)[0]


def test_waits_for_data_are_shades_of_orange_and_python_is_violet() -> None:
    stages = style.LOADING_COLOURS.items()
    orange = [colour for name, colour in stages if name not in ("rest", "hand_over")]
    orange += [style.DATA_WAIT, style.EPOCH_BOUNDARY, style.VERDICTS["moderately input-bound"]]
    assert all(15 <= hue(colour) <= 52 for colour in orange)
    violet = (style.HOST, style.LAUNCH_IDLE, style.OUTSIDE)
    assert all(245 <= hue(colour) <= 285 for colour in violet)
    blue = (style.H2D, style.LOADING_COLOURS["hand_over"])
    assert all(195 <= hue(colour) <= 215 for colour in blue)
    for grey in (style.NEUTRAL, style.EVALUATION, style.LOGGING, style.REFERENCE):
        parts = [int(grey[at : at + 2], 16) for at in (1, 3, 5)]
        assert max(parts) - min(parts) <= 12, grey


def test_everything_that_takes_time_has_a_colour() -> None:
    assert set(style.ACTIVITY) == set(ACTIVITIES)
    assert set(style.DEVICE_TIME) == {"compute", "launch_idle", *CAUSES}
    assert set(style.LOADING_COLOURS) == set(STAGE_WORDS)
    assert len({words for words, _ in style.DEVICE_TIME.values()}) == len(style.DEVICE_TIME)


def test_a_colour_means_the_same_in_every_chart() -> None:
    parts = {"data wait": style.DATA_WAIT, "H2D": style.H2D, "compute": style.COMPUTE}
    seen = set()
    for trace in itertools.chain.from_iterable(c.traces for c in LIVE):
        colours = {trace["line"]["color"], trace.get("fillcolor", trace["line"]["color"])}
        if trace["name"] in parts:
            assert colours == {parts[trace["name"]]}
            seen.add(trace["name"])
        else:
            assert not colours & set(parts.values())
    assert seen == set(parts)
    named = (
        style.DATA_WAIT,
        style.H2D,
        style.COMPUTE,
        style.NEUTRAL,
        style.GPU_UTIL,
        style.MEMORY,
        style.LOSS,
    )
    assert (len(set(named)), len(set(style.RUN_COLOURS))) == (len(named), len(style.RUN_COLOURS))
