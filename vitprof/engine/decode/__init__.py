"""From encoded images to pixels: which part to crop (`crops`), and the decoders (`decoders`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitprof.engine.decode.crops import N_UNIFORM, Crop, centre_crop, random_crop

if TYPE_CHECKING:
    from vitprof.engine.decode.decoders import Decoder


def open_decoder(name: str) -> Decoder:
    """Returns the decoder called `name`, one of `vitprof.config.parts.DECODERS`.

    Raises `ConfigError` for torchvision's decoder if the installed torchvision no longer has it, `DataError` without
    OpenCV.
    """
    from vitprof.engine.decode import decoders  # here, since it imports packages that only image files need

    return decoders.open_decoder(name)


__all__ = ["N_UNIFORM", "Crop", "centre_crop", "open_decoder", "random_crop"]
