"""The bytes of image files."""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"}
"""Of the files that are read as images."""
MAGIC = {b"\xff\xd8\xff": ".jpg", b"\x89PNG": ".png", b"GIF8": ".gif", b"BM": ".bmp"}
MAGIC |= {b"II*\0": ".tif", b"MM\0*": ".tif"}
"""How files of a format begin -> their suffix."""


def suffix(data: bytes) -> str:
    """Returns the suffix for an image file's bytes; "" where they are not those of a format that is
    known.
    """
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return ".webp"
    return next((name for magic, name in MAGIC.items() if data.startswith(magic)), "")


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps Pillow from printing that an image is large, with a line of its own code. Twice as large
    is an error of that image.
    """
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


def png_of(pixels: Any) -> bytes:
    """Returns a PNG file of a PIL image, or of an array or tensor of uint8: (H, W), (H, W, C) or
    (C, H, W).
    """
    from PIL import Image

    if not isinstance(pixels, Image.Image):
        array = np.asarray(pixels)
        if array.dtype != np.uint8 or array.ndim not in (2, 3):
            raise ValueError(
                f"a sample is {array.dtype} {array.shape}, not an image: PIL's, or uint8 (H, W, 3)"
            )
        if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3):
            array = array.transpose(1, 2, 0)
        if array.ndim == 3 and array.shape[2] == 1:
            # Pillow takes grey pixels without an axis of colours.
            array = array[..., 0]
        return png_file(array)
    return _png(pixels)


def png_file(pixels: NDArray[np.uint8]) -> bytes:
    """Returns a PNG file of pixels: (H, W), (H, W, 3), or (H, W, 4) with transparency."""
    from PIL import Image

    return _png(Image.fromarray(pixels))


def _png(image: "Image.Image") -> bytes:
    file = io.BytesIO()
    # The fastest level: these files are made once, and read all the time.
    image.save(file, "PNG", compress_level=1)
    return file.getvalue()
