"""TorchCodec as a decoder: an optional package, whose version must fit PyTorch's."""

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitprof.errors import ConfigError, one_line

MODULE = "torchcodec.decoders"
EXIF, HEADER_BYTES = b"Exif\0\0", 1 << 17
"""How the segment with the orientation begins, and where it can be."""


def ensure_usable() -> None:
    """Raises `ConfigError` where TorchCodec cannot be imported."""
    try:
        importlib.import_module(MODULE)
    except (
        ImportError,
        OSError,
        RuntimeError,
    ) as error:  # also where it was built for another PyTorch
        why = "it is not installed" if isinstance(error, ImportError) else one_line(error)
        raise ConfigError(
            "decoder", "torchcodec", f"install torchcodec for this PyTorch ({why})"
        ) from error


def pixels(encoded: bytes, *, grey: bool) -> NDArray[np.uint8]:
    """Returns the image as (height, width, 1 or 3), of several the first. Raises `ValueError` if it is damaged."""
    try:
        read = importlib.import_module(MODULE).decode_image
        image: Any = read(without_exif(encoded), mode="GRAY" if grey else "RGB")
    except (RuntimeError, ValueError) as error:
        raise ValueError(one_line(error)) from error
    frame = image[0] if image.ndim == 4 else image  # (C, H, W)
    return np.ascontiguousarray(frame.permute(1, 2, 0).numpy())


def without_exif(encoded: bytes) -> bytes:
    """Returns a JPEG whose EXIF is not seen: TorchCodec would turn the image, and all other decoders leave it."""
    at = encoded.find(EXIF, 0, HEADER_BYTES) if encoded.startswith(b"\xff\xd8\xff") else -1
    # as a segment of another kind
    is_segment = at >= 4 and encoded[at - 4 : at - 2] == b"\xff\xe1"
    return encoded if not is_segment else encoded[: at - 4] + b"\xff\xef" + encoded[at - 2 :]
