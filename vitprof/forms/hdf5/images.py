"""How a sample of an HDF5 file becomes an image of 8 bits: the order of its axes, and which of its
values are black and white.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitprof.forms.contract import Refuse
from vitprof.forms.hdf5.refusal import PLAIN_FUNCTION, described, name_of
from vitprof.forms.image_files import png_file

if TYPE_CHECKING:
    import h5py

LAYOUTS = {"NHWC": 4, "NCHW": 4, "NHW": 3}
"""Order of the axes (samples, height, width, channels) -> their number."""
CHANNELS = (1, 3, 4)
"""Of grey, RGB, and RGB with transparency."""
WHITE_OF_8_BITS = 255.0
LOOKED_AT = 64
"""Samples, spread over the file, by which it is judged what value is white. Each sample is checked
again as it is read.
"""
MOST_SAMPLE_BYTES = 1 << 30
UNPACKED = "its pixels are unpacked to PNG files"


@dataclass(frozen=True)
class Images:
    """The images of a split."""

    read: Callable[[int], bytes]
    """Returns the image file of a sample. Raises `ValueError` for values that are no pixels."""
    notes: tuple[str, ...] = ()
    """What was made of them, a line each."""


@dataclass(frozen=True)
class Scale:
    """The values that become 0 and 255."""

    black: float
    white: float


@dataclass(frozen=True)
class Range:
    """The values that some samples have."""

    lowest: float
    highest: float
    whole: bool
    """Whether all are whole numbers."""


def images_of(data: h5py.Dataset, options: Mapping[str, str], refuse: Refuse) -> Images:
    """Returns what reads samples of a dataset; `options` are those of the spec."""
    if data.dtype.kind in "OSV" and data.dtype.names is None:
        return _files(data, refuse)
    if data.dtype.kind not in "uifb":
        refuse(f"{described(data)}: numbers, or the bytes of image files, are read as images")
    layout = _layout(data, options, refuse)
    if min(data.shape) == 0:
        refuse(f"{described(data)} has no pixels")
    if data.dtype.itemsize * data.size // data.shape[0] > MOST_SAMPLE_BYTES:
        refuse(f"{described(data)}: a sample of at most 1 GiB is read")
    scale, notes = _scale(data, options, refuse)

    def read(at: int) -> bytes:
        pixels = _eight_bits(data[at], scale, name_of(data), at)
        if layout == "NCHW":
            pixels = pixels.transpose(1, 2, 0)
        if layout != "NHW" and pixels.shape[2] == 1:
            pixels = pixels[..., 0]
        return png_file(np.ascontiguousarray(pixels))

    return Images(read, (*notes, UNPACKED))


def _files(data: h5py.Dataset, refuse: Refuse) -> Images:
    if data.size != data.shape[0]:
        refuse(f"{described(data)}: an image file for each sample is read, not several")
    rest = (0,) * (data.ndim - 1)

    def read(at: int) -> bytes:
        value = data[(at, *rest)]
        return value.encode() if isinstance(value, str) else bytes(memoryview(value))

    return Images(read)


def _layout(data: h5py.Dataset, options: Mapping[str, str], refuse: Refuse) -> str:
    shape = data.shape
    if given := options.get("layout", "").upper():
        if LAYOUTS.get(given) != data.ndim or _channels(shape, given) not in CHANNELS:
            refuse(f"{described(data)} is not {given}; of NHWC, NCHW and NHW, C is 1, 3 or 4")
        return given
    if data.ndim == 3:
        if shape[2] in CHANNELS:
            refuse(
                f"{described(data)} is one image, or grey ones {shape[2]} px wide; if they are "
                "these, add layout=NHW"
            )
        return "NHW"
    if data.ndim != 4:
        held = {1: "a number", 2: "a row of numbers"}.get(data.ndim, "more than an image")
        refuse(
            f"{described(data)} has {held} for each sample; store them as (N, H, W, 3) with "
            f"numpy.reshape, {PLAIN_FUNCTION}"
        )
    fitting = [name for name in ("NHWC", "NCHW") if _channels(shape, name) in CHANNELS]
    if len(fitting) > 1:
        refuse(
            f"{described(data)} may have its channels first or last; add layout=NCHW or layout=NHWC"
        )
    if not fitting:
        refuse(
            f"{described(data)} has neither 1 nor 3 nor 4 channels, last or first; store 3 of "
            f"them, {PLAIN_FUNCTION}"
        )
    return fitting[0]


def _channels(shape: Sequence[int], layout: str) -> int:
    return shape[layout.index("C")] if "C" in layout else 1


def _scale(
    data: h5py.Dataset, options: Mapping[str, str], refuse: Refuse
) -> tuple[Scale | None, list[str]]:
    """Returns the values of black and white, None where they are 0 and 255 as is; and notes."""
    black = _number("black", options, refuse)
    white = _number("white", options, refuse)
    if black is not None or white is not None:
        if white is None or white <= (black or 0.0):
            refuse("give the value that is white, above that of black, as black=-1&white=1")
        return Scale(black or 0.0, white), []
    if data.dtype == np.uint8:
        return None, []
    if data.dtype.kind == "b":
        return Scale(0.0, 1.0), []
    seen = _range(data, refuse)
    if data.dtype.kind == "f" and seen.lowest >= 0 and seen.highest <= 1:
        return Scale(0.0, 1.0), [f"{name_of(data)}: 0 is black and 1 is white, in 8 bits"]
    if seen.whole and seen.lowest >= 0 and 1 < seen.highest <= WHITE_OF_8_BITS:
        note = f"{name_of(data)}: 0 is black and 255 is white; if another value is, add white=VALUE"
        return Scale(0.0, WHITE_OF_8_BITS), [note]
    refuse(
        f"{described(data)} has values from {seen.lowest:g} to {seen.highest:g}; say which are "
        "black and white, as black=0&white=4095, or black=-1&white=1"
    )


def _number(name: str, options: Mapping[str, str], refuse: Refuse) -> float | None:
    if (text := options.get(name)) is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = np.nan
    if not np.isfinite(number):
        refuse(f"{name}={text} is no number; give the value that is {name}, as {name}=255")
    return number


def _range(data: h5py.Dataset, refuse: Refuse) -> Range:
    n = data.shape[0]
    lowest = np.inf
    highest = -np.inf
    whole = True
    for at in np.linspace(0, n - 1, min(n, LOOKED_AT)).astype(int).tolist():
        values = np.asarray(data[at], np.float64)
        if not np.isfinite(values).all():
            refuse(f"{described(data)} has a value that is no number in sample {at:,}")
        lowest = min(lowest, float(values.min()))
        highest = max(highest, float(values.max()))
        whole = whole and bool((np.rint(values) == values).all())
    return Range(lowest, highest, whole)


def _eight_bits(values: NDArray[Any], scale: Scale | None, name: str, at: int) -> NDArray[np.uint8]:
    if scale is None:
        return values
    wide = values.astype(np.float64)
    inside = (wide >= scale.black) & (wide <= scale.white)  # false for what is no number
    if not inside.all():
        outside = float(wide[~inside].flat[0])
        raise ValueError(
            f"{name} has {outside:g} in sample {at:,}, outside {scale.black:g} to {scale.white:g}; "
            "say with black= and white= which values are black and white"
        )
    share = (wide - scale.black) / (scale.white - scale.black)
    pixels: NDArray[np.uint8] = np.rint(share * WHITE_OF_8_BITS).astype(np.uint8)
    return pixels
