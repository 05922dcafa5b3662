"""The data set `digits`: rendered glyphs 0-9 under random distortion and noise, in MNIST's form and
file format.

It needs no network and no font file, so everything vitprof shows can be tried anywhere. It is easy
enough for a tiny ViT to learn in one or two epochs, and hard enough that loss and accuracy change
visibly meanwhile.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitprof.cores import job_cores
from vitprof.datasets import mnist
from vitprof.datasets.files import (
    OnProgress,
    Stop,
    ensure_space,
    never,
    report,
    silent,
    writing,
)

SEED = 42
IDENTITY: dict[str, int | str] = {"maker": "vitprof digits", "version": 1, "seed": SEED}
"""Identity of what `make` makes.

Raise the version with every change to the pixels: sets on disk are then remade."""

SIDE = 28
IMAGES_A_CHUNK = 1000
"""Images drawn at once.

Each chunk has its own random stream, so the number of threads cannot change the result."""
IMAGES_A_BLOCK = 32
"""Images whose pixels are computed at once: 100 kB an array, which stays in a core's cache."""

# Glyphs are drawn OVERSAMPLE times larger and averaged down, so that edges stay smooth when
# rotated.
OVERSAMPLE = 4
CANVAS = 36
HEIGHTS_PX = (24, 27)
"""Font sizes. The digits themselves are about 0.7 times as high; MNIST's are 20 px high."""
STROKES = (0, 1, 3, 5)
"""Thickening of the outline in oversampled pixels: strokes from about 2 to 4.5 px wide."""

# Ranges of the random distortion, each drawn uniformly.
ROTATION_RAD = np.deg2rad(15.0)
SCALE = (0.75, 1.2)
SHEAR = 0.25
SHIFT_PX = 3.0
CONTRAST = (0.45, 1.0)
NOISE_STD = (0.02, 0.16)
"""Standard deviation of the Gaussian pixel noise, white = 1."""


def make(
    directory: Path,
    *,
    n_train: int = 60_000,
    n_test: int = 10_000,
    seed: int = SEED,
    threads: int = 2,
    progress: OnProgress = silent,
    stop: Stop = never,
) -> None:
    """Draws both splits and writes them as four IDX files under `directory`/MNIST/raw.

    `directory` must exist.

    The same `seed` gives the same bytes, whatever `threads` is (with the same NumPy and Pillow).
    Labels are balanced exactly (as far as n divides by 10) and shuffled. Files that exist are
    overwritten.

    Raises `JobStopped` if `stop()` turned true (asked after each chunk), `DataError` if the disk is
    full or the files cannot be written. Files written until then stay: `prepare` works in a
    directory that it removes.
    """
    # A byte for each pixel and one for the label, and the files' headers.
    n = n_train + n_test
    ensure_space(directory, n * (SIDE * SIDE + 1) + 64 * 1024)
    with writing(directory):
        mnist.raw_dir(directory).mkdir(parents=True, exist_ok=True)
    done = 0
    activity = "the data set digits was being made"

    def chunk_done(n_drawn: int) -> None:
        nonlocal done
        done += n_drawn
        message = f"drawing digits: {done:,} of {n:,}"
        report(progress, stop, done / max(n, 1), message, activity)

    chunk_done(0)
    for train, n_images in ((True, n_train), (False, n_test)):
        images, labels = draw(
            n_images, seed=seed, stream=int(not train), threads=threads, chunk_done=chunk_done
        )
        for path, array in zip(mnist.split_files(directory, train), (images, labels), strict=True):
            mnist.write_idx(path, array)


def draw(
    n: int, *, seed: int, stream: int, threads: int = 2, chunk_done: Callable[[int], None]
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Draws `n` images. Returns them, (n, 28, 28), and their labels (n,), both uint8.

    `seed` and `stream` (0 train, 1 test) choose the random streams; different streams share
    nothing. `chunk_done` is called in this thread with the size of each finished chunk; an
    exception it raises ends the drawing.
    """
    images = np.empty((n, SIDE, SIDE), np.uint8)
    labels = np.random.default_rng((seed, stream)).permutation(np.arange(n) % 10).astype(np.uint8)
    bank = glyphs()

    def fill(start: int) -> int:
        part = slice(start, start + IMAGES_A_CHUNK)
        # (seed, stream) alone is that of the labels.
        rng = np.random.default_rng((seed, stream, 1 + start // IMAGES_A_CHUNK))
        images[part] = distort(bank, labels[part], rng)
        return len(labels[part])

    # NumPy releases the GIL in the expensive parts, so threads do help.
    # An error ends `map`, which cancels the rest.
    with ThreadPoolExecutor(max(1, min(threads, job_cores())), "vitprof-digits") as pool:
        for size in pool.map(fill, range(0, n, IMAGES_A_CHUNK)):
            chunk_done(size)
    return images, labels


@cache
def glyphs() -> NDArray[np.float32]:
    """Returns the upright digits: (10, variants, CANVAS, CANVAS) float32, from 0 (background) to 1
    (ink).

    Each has a margin of background. The array is read-only.
    """
    # Imported here: the command line imports this module and needs no Pillow.
    from PIL import Image, ImageDraw, ImageFont

    side = CANVAS * OVERSAMPLE
    drawn = []
    for digit in range(10):
        for height in HEIGHTS_PX:
            font = ImageFont.load_default(size=height * OVERSAMPLE)
            for stroke in STROKES:
                image = Image.new("L", (side, side), 0)
                middle = (side / 2, side / 2)
                ImageDraw.Draw(image).text(
                    middle, str(digit), fill=255, font=font, anchor="mm", stroke_width=stroke
                )
                drawn.append(np.asarray(image.reduce(OVERSAMPLE)))
    bank = np.stack(drawn).reshape(10, -1, CANVAS, CANVAS).astype(np.float32)
    bank /= 255
    # One copy for all threads.
    bank.setflags(write=False)
    return bank


def distort(
    bank: NDArray[np.float32], labels: NDArray[np.uint8], rng: np.random.Generator
) -> NDArray[np.uint8]:
    """Returns one image for each label: (n, 28, 28) uint8.

    `bank` is what `glyphs` returns; `rng` decides everything but the labels.
    """
    n = len(labels)
    variants = bank.shape[1]
    glyph = labels.astype(np.int64) * variants + rng.integers(variants, size=n)

    # Each output pixel comes from this point of the glyph: source = middle + M @ (pixel - middle -
    # shift).
    angle = rng.uniform(-ROTATION_RAD, ROTATION_RAD, n)
    shear = rng.uniform(-SHEAR, SHEAR, n)
    zoom_x, zoom_y = 1 / rng.uniform(*SCALE, (2, n))
    cos = np.cos(angle)
    sin = np.sin(angle)
    # scale @ shear @ rotation, rows x and y.
    matrix = np.empty((n, 2, 2), np.float32)
    matrix[:, 0] = np.stack((zoom_x * (cos + shear * sin), zoom_x * (shear * cos - sin)), 1)
    matrix[:, 1] = np.stack((zoom_y * sin, zoom_y * cos), 1)
    shift = rng.uniform(-SHIFT_PX, SHIFT_PX, (2, n, 1, 1)).astype(np.float32)
    contrast = rng.uniform(*CONTRAST, (n, 1, 1)).astype(np.float32)
    noise = rng.standard_normal((n, SIDE, SIDE), dtype=np.float32)
    noise_std = rng.uniform(*NOISE_STD, (n, 1, 1)).astype(np.float32)

    images = np.empty((n, SIDE, SIDE), np.uint8)
    flat = bank.reshape(-1)
    for start in range(0, n, IMAGES_A_BLOCK):
        block = slice(start, start + IMAGES_A_BLOCK)
        x, y = _source_points(matrix[block], shift[:, block])
        image = _bilinear(flat, x, y, glyph[block])
        image *= contrast[block]
        grain = noise[block]
        grain *= noise_std[block]
        image += grain
        image *= 255
        np.clip(image, 0, 255, out=image)
        images[block] = np.rint(image, out=image)
    return images


def _source_points(
    matrix: NDArray[np.float32], shift: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Returns where in its glyph each pixel of n images comes from, x and y: (n, 28, 28) each, in
    glyph pixels.

    `matrix` is (n, 2, 2), `shift` (2, n, 1, 1), in pixels.
    """
    axis = np.arange(SIDE, dtype=np.float32) - (SIDE - 1) / 2
    pixel_x = axis[None, None, :] - shift[0]
    pixel_y = axis[None, :, None] - shift[1]
    middle = np.float32((CANVAS - 1) / 2)
    m = matrix[:, :, :, None, None]
    x = middle + m[:, 0, 0] * pixel_x + m[:, 0, 1] * pixel_y
    y = middle + m[:, 1, 0] * pixel_x + m[:, 1, 1] * pixel_y
    return x, y


def _bilinear(
    flat: NDArray[np.float32],
    x: NDArray[np.float32],
    y: NDArray[np.float32],
    glyph: NDArray[np.int64],
) -> NDArray[np.float32]:
    """Returns the values of the glyphs at x, y (n, height, width), in glyph pixels.

    The canvas goes on as background outside. All is done in place where it can be: new arrays of
    this size take as long as the arithmetic.
    """
    # The outermost ring of each canvas is background: clamping to it is the same as padding.
    limit = np.float32(CANVAS - 1.001)
    np.clip(x, 0, limit, out=x)
    np.clip(y, 0, limit, out=y)
    column = np.floor(x)
    row = np.floor(y)
    x -= column
    y -= row
    # Places stay whole numbers in float32, which has all up to 2**24: converting once is quicker.
    row *= CANVAS
    row += column
    row += (glyph * (CANVAS * CANVAS)).astype(np.float32)[:, None, None]
    at = row.astype(np.int64)
    values = []
    # This row of the glyph, then the one below.
    for _ in range(2):
        left = flat.take(at)
        at += 1
        right = flat.take(at)
        right -= left
        right *= x
        left += right
        values.append(left)
        at += CANVAS - 1
    upper, lower = values
    lower -= upper
    lower *= y
    upper += lower
    return upper
