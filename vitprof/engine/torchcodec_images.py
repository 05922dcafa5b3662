"""TorchCodec as a decoder: an optional package, whose version must fit PyTorch's."""

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitprof.errors import ConfigError, one_line

MODULE = "torchcodec.decoders"
EXIF = b"Exif\0\0"
"""How the segment with the orientation begins, behind its marker and its length."""
HEADER_BYTES = 1 << 17
"""It can be in the first bytes of the file, up to here."""
JPEG = b"\xff\xd8\xff"
"""How a JPEG file begins."""
APP1 = b"\xff\xe1"
"""Marker of a segment that may hold EXIF."""
APP15 = b"\xff\xef"
"""Marker of a segment that decoders skip."""


def ensure_usable() -> None:
    """Raises `ConfigError` where TorchCodec cannot be imported."""
    try:
        importlib.import_module(MODULE)
    except (ImportError, OSError, RuntimeError) as error:
        why = one_line(error)
        if isinstance(error, ImportError):
            why = "it is not installed"
        # The others are raised where it was built for another PyTorch.
        todo = f"install torchcodec for this PyTorch ({why})"
        raise ConfigError("decoder", "torchcodec", todo) from error


def pixels(encoded: bytes, *, grey: bool) -> NDArray[np.uint8]:
    """Returns the image as (height, width, 1 or 3), of several the first.

    Raises `ValueError` if it is damaged.
    """
    try:
        read = importlib.import_module(MODULE).decode_image
        image: Any = read(without_exif(encoded), mode="GRAY" if grey else "RGB")
    except (RuntimeError, ValueError) as error:
        raise ValueError(one_line(error)) from error
    if image.ndim == 4:
        image = image[0]
    # From (channels, height, width).
    return np.ascontiguousarray(image.permute(1, 2, 0).numpy())


def without_exif(encoded: bytes) -> bytes:
    """Returns a JPEG whose EXIF is not seen: TorchCodec would turn the image, and all other
    decoders leave it.
    """
    if not encoded.startswith(JPEG):
        return encoded
    # In front of it are two bytes for the marker and two for the length.
    at = encoded.find(EXIF, 0, HEADER_BYTES)
    if at < 4 or encoded[at - 4 : at - 2] != APP1:
        return encoded
    # It stays where it is, as a segment of another kind.
    return encoded[: at - 4] + APP15 + encoded[at - 2 :]
