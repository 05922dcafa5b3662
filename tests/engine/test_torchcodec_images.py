"""vitprof.engine.torchcodec_images: the pixels of the other decoders, and one line where it cannot be used."""

import io
import sys

import numpy as np
import pytest
from PIL import Image

from tests.engine import test_decoders as others
from tests.engine.test_decoders import ConfigError, Crop, open_decoder

NAME = "torchcodec"


@pytest.fixture
def _here() -> None:
    try:
        open_decoder(NAME)
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("_here")
def test_it_decodes_as_the_others_do() -> None:
    for crop in (others.CENTRE, Crop(10, 20, 100, 120, flip=True)):
        found = others.decoded(NAME, others.photo(), crop)
        others.assert_near(found, others.decoded("opencv", others.photo(), crop), others.SAME)
    others.test_a_crop_of_the_samples_size_is_not_resampled(NAME)
    for channels in (1, 3):
        others.test_png_is_lossless(NAME, channels)
    others.test_grey_and_colour_are_what_is_asked_for(NAME)
    others.test_exif_orientation_is_left_alone(NAME)
    others.test_a_thumbnails_end_is_not_the_images(NAME)
    others.test_in_threads_and_pickled(NAME)
    for kind in ("jpeg", "png"):
        others.test_a_broken_file_is_refused_in_one_short_line(kind, NAME)


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize(
    ("suffix", "mode"), [("WEBP", "RGB"), ("JPEG", "CMYK"), ("PNG", "RGBA"), ("PNG", "P")]
)
def test_what_people_have(suffix: str, mode: str) -> None:
    colours = np.full((40, 40, 3), (200, 90, 20), np.uint8)
    image, file = Image.fromarray(colours).convert(mode), io.BytesIO()
    image.save(file, suffix)
    out = others.decoded(NAME, file.getvalue(), Crop(0, 0, 40, 40), 40)
    assert np.abs(out.astype(int) - np.asarray(image.convert("RGB"))).mean() < 3


def test_where_it_is_missing_that_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", None)
    with pytest.raises(
        ConfigError,
        match="decoder: 'torchcodec' is not possible; install torchcodec for this PyTorch",
    ):
        open_decoder(NAME)
