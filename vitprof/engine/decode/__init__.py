"""Encoded images to pixels: where to crop (`crops`) and who decodes (`decoders`)."""

from vitprof.engine.decode.crops import N_UNIFORM, Crop, centre_crop, random_crop
from vitprof.engine.decode.decoders import Decoder, open_decoder

__all__ = ["N_UNIFORM", "Crop", "Decoder", "centre_crop", "open_decoder", "random_crop"]
