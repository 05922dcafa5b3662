"""Draws one image of the data set `photos`.

The cost of loading photographs depends on their size, detail and number, not on what they show. An
image here has two materials whose amplitude falls as 1/f with frequency (Field 1987, J. Opt. Soc.
Am. A 4:2379), laid out in a pattern with sharp borders, a few flat objects in front, and the noise
of a sensor.

The class decides the hues of both materials and the pattern: 5 x 5 x 4. All three survive a random
crop, mirroring and scaling to a thumbnail of 28 pixels.
"""

from functools import cache
from typing import Any

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray

Image = NDArray[np.uint8]

QUALITY = 90
HUES = 5
PATTERNS = ("horizontal bands", "vertical bands", "diagonal bands", "patches")
SIDES = (440, 500, 500, 500, 500, 560)
"""The longer side in pixels is drawn from these."""
ASPECTS = (1.25, 4 / 3, 4 / 3, 4 / 3, 1.5)
PORTRAIT = 0.3
"""Share of images in portrait format."""
PERIOD_PX = (70, 120)
"""Range of the pattern's period. 70 pixels become 6 in a thumbnail of 28."""
FIELD = 1024
"""Side, in pixels, of the random fields that images are cut from."""
N_FIELDS = 8
FIELDS_SEED = 42


def encode(image: Image) -> bytes:
    """Returns an image (height, width, 3) uint8 RGB as JPEG: quality 90, 4:2:0 as in cameras and
    ImageNet.
    """
    encoded: bytes = simplejpeg.encode_jpeg(
        image, quality=QUALITY, colorspace="RGB", colorsubsampling="420"
    )
    return encoded


@cache
def fields() -> tuple[Image, Image]:
    """Returns the random fields that images are cut from: grey (N_FIELDS, FIELD, FIELD), colour
    (FIELD, FIELD, 3).

    They are uint8 and periodic, with mean 128, and read-only. Grey: amplitude 1/f, standard
    deviation 48. Colour: amplitude f**-1.5, so that flat areas stay flat, standard deviation 14,
    plus white sensor noise of standard deviation 2.
    """
    rng = np.random.default_rng(FIELDS_SEED)
    rows = np.fft.fftfreq(FIELD)[:, None]
    columns = np.fft.rfftfreq(FIELD)[None, :]
    frequency = np.hypot(rows, columns)
    # Mean 0.
    frequency[0, 0] = np.inf
    # With periods longer than half a field, nearly all images would be darker on one side.
    amplitude = 1 / np.maximum(frequency, 2 / FIELD)
    amplitude[0, 0] = 0

    def field(std: float, exponent: float) -> NDArray[np.float64]:
        phase = rng.uniform(0, 2 * np.pi, frequency.shape)
        spectrum = amplitude**exponent * np.exp(1j * phase)
        drawn: NDArray[np.float64] = np.fft.irfft2(spectrum, s=(FIELD, FIELD))
        drawn *= std / drawn.std()
        return drawn

    grey = np.stack([_to_uint8(128 + field(48, 1)) for _ in range(N_FIELDS)])
    colour = np.stack(
        [_to_uint8(128 + field(14, 1.5) + rng.normal(0, 2, (FIELD, FIELD))) for _ in range(3)], -1
    )
    # One copy for all threads.
    for array in (grey, colour):
        array.setflags(write=False)
    return grey, colour


def _to_uint8(values: NDArray[np.float64]) -> Image:
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


def draw(label: int, rng: np.random.Generator) -> Image:
    """Returns one image of class `label`: (height, width, 3) uint8 RGB. `rng` decides everything
    else.
    """
    long = SIDES[rng.integers(len(SIDES))]
    short = round(long / ASPECTS[rng.integers(len(ASPECTS))])
    height, width = (long, short) if rng.random() < PORTRAIT else (short, long)
    back_hue, rest = divmod(label, HUES * len(PATTERNS))
    front_hue, pattern = divmod(rest, len(PATTERNS))
    grey, colour = fields()
    of_back, of_front, of_mask = rng.permutation(N_FIELDS)[:3]

    # Both materials have a 1/f texture, each in its own hue and contrast; chance decides which of
    # them is brighter. The order of what is drawn from `rng` is part of the data set: images on
    # disk have it.
    light_back, light_front = rng.uniform(0.8, 1.2) * np.array([1.0, rng.choice((0.6, 1.6))])
    texture = _cut(grey[of_back], height, width, rng)
    back = cv2.applyColorMap(texture, _shades(2 * back_hue, light_back, rng))
    texture = _cut(grey[of_front], height, width, rng)
    front = cv2.applyColorMap(texture, _shades(2 * front_hue + 1, light_front, rng))
    warp = _cut(grey[of_mask], height, width, rng)
    image = cv2.copyTo(front, _mask(pattern, warp, rng), back)
    for _ in range(rng.integers(2, 6)):
        _put_flat_object(image, rng)
    # Colours vary within a material, too, and a sensor adds noise everywhere.
    noise = _cut(colour, height, width, rng)
    return np.asarray(cv2.addWeighted(image, 1.0, noise, 1.0, -128.0), np.uint8)


def _cut(field: Image, height: int, width: int, rng: np.random.Generator) -> Image:
    """Returns a random part of a field."""
    top = rng.integers(FIELD - height)
    left = rng.integers(FIELD - width)
    return field[top : top + height, left : left + width]


def _shades(hue: int, light: float, rng: np.random.Generator) -> Image:
    """Returns the colour of each grey value 0..255 in a material: (256, 1, 3) uint8.

    `hue` is in tenths of a circle.
    """
    angle = 2 * np.pi * (hue + rng.uniform(-0.25, 0.25)) / (2 * HUES)
    tint = 1 + rng.uniform(0.45, 0.7) * np.cos(angle - 2 * np.pi / 3 * np.arange(3))
    contrast = rng.uniform(0.5, 1.1)
    level = np.clip(light * (110 + contrast * (np.arange(256.0) - 128)), 0, 255)
    return _to_uint8(level[:, None, None] * tint)


def _mask(pattern: int, warp: Image, rng: np.random.Generator) -> Image:
    """Returns where the second material is, as 0 and 255: a periodic pattern, bent a little by the
    field `warp`.
    """
    height, width = warp.shape
    phase: Image
    period = rng.uniform(*PERIOD_PX)
    # A phase of 256 steps that wraps around as bytes do. The field's coarse part bends it by up to
    # about a third.
    coarse: Image = np.asarray(
        cv2.resize(warp[::16, ::16], (width, height), interpolation=cv2.INTER_CUBIC), np.uint8
    )
    coarse = coarse // np.uint8(3)
    y = _phases(height, period, rng)[:, None]
    x = _phases(width, period, rng)[None, :]
    share = int(256 * rng.uniform(0.38, 0.5))
    if PATTERNS[pattern] == "patches":
        share = int(256 * (share / 256) ** 0.5)
        phase = np.maximum(coarse + y, coarse + x)
    elif PATTERNS[pattern] == "diagonal bands":
        rising = rng.random() < 0.5
        phase = coarse + (y if rising else np.uint8(255) - y) + x
    elif PATTERNS[pattern] == "horizontal bands":
        phase = coarse + y
    else:
        phase = coarse + x
    mask: Image = (phase < share).astype(np.uint8) * np.uint8(255)
    return mask


def _phases(length: int, period: float, rng: np.random.Generator) -> Image:
    """Returns the phase (length,) of each pixel in steps of 1/256 of the period, from a random one
    on.
    """
    steps = np.arange(length) * (256 / period) + rng.uniform(0, 256)
    # By way of int64: a float beyond 255 has no defined value as a byte.
    return steps.astype(np.int64).astype(np.uint8)


def _put_flat_object(image: Any, rng: np.random.Generator) -> None:
    """Draws an ellipse or a box of one colour somewhere in the image, in place."""
    height, width = image.shape[:2]
    colour = rng.uniform(30, 225, 3).tolist()
    centre = (int(rng.integers(width)), int(rng.integers(height)))
    axes = (int(width * rng.uniform(0.05, 0.2)), int(height * rng.uniform(0.05, 0.2)))
    if rng.random() < 0.5:
        cv2.ellipse(
            image, centre, axes, rng.uniform(0, 180), 0, 360, colour, cv2.FILLED, cv2.LINE_AA
        )
    else:
        corners = cv2.boxPoints((centre, (2 * axes[0], 2 * axes[1]), rng.uniform(0, 180)))
        cv2.fillConvexPoly(image, corners.astype(np.int32), colour, cv2.LINE_AA)
