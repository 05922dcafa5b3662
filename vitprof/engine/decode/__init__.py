"""Encoded images to pixels: where to crop (`crops`) and who decodes (`decoders`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitprof.engine.decode.crops import N_UNIFORM, Crop, centre_crop, random_crop

if TYPE_CHECKING:
    from vitprof.engine.decode.decoders import Decoder


def open_decoder(name: str) -> Decoder:
    """Returns the decoder called `name`, one of `vitprof.config.parts.DECODERS`.

    Raises `ConfigError` for torchvision's where the installed torchvision has none any more, `DataError` without
    OpenCV.
    """
    from vitprof.engine.decode import decoders  # brings what only image files need

    return decoders.open_decoder(name)


__all__ = ["N_UNIFORM", "Crop", "centre_crop", "open_decoder", "random_crop"]
