"""vitprof.engine.decoders: the same pixels from each within a stated tolerance, and no half image from any."""

import functools
import io
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from vitprof.config.parts import DECODERS
from vitprof.datasets import scenes
from vitprof.engine.decoders import Decoder, open_decoder
from vitprof.engine.transforms import Crop, centre_crop, opencv
from vitprof.errors import ConfigError

JPEG, PNG = ([name for name in DECODERS[kind] if name != "torchcodec"] for kind in ("jpeg", "idx"))

SAME = (0.3, 1)
"""Mean and largest difference, of 255, where two decoders resize the same way: libjpeg-turbo does the rest in all four.
Pillow and torchvision round differently in between; measured up to 0.23 and 1."""
RESIZED = (3.0, 60)
"""OpenCV's linear resize (simplejpeg, opencv) against the antialiased one of Pillow and torchvision: what is finer than
a pixel of the sample is averaged less. Measured on these images: mean 0.2 to 2.0, largest 36, at sharp borders."""
SCALED = (3.5, 60)
"""The same where libjpeg has decoded to a smaller size (crops of at least 448 pixels, simplejpeg only), which is
another filter again. Measured: mean 1.3 to 2.3, largest 32."""

CENTRE = functools.partial(centre_crop, size=224)


@functools.cache
def photo(zoom: int = 1) -> bytes:
    image = scenes.draw(37, np.random.default_rng(5))
    if zoom > 1:
        image = np.asarray(
            cv2.resize(image, None, fx=zoom, fy=zoom, interpolation=cv2.INTER_CUBIC), np.uint8
        )
    return scenes.encode(image)


@functools.cache
def png(size: int = 28, channels: int = 1) -> bytes:
    pixels = np.random.default_rng(6).integers(0, 256, (size, size, channels), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels).save(file, "PNG")
    return file.getvalue()


def decoded(
    name: str,
    encoded: bytes,
    crop: functools.partial[Crop] | Crop = CENTRE,
    size: int = 224,
    channels: int = 3,
) -> NDArray[np.uint8]:
    out = np.full((size, size, channels), 77, np.uint8)
    choose = (lambda height, width: crop) if isinstance(crop, Crop) else crop
    open_decoder(name)(encoded, choose, out)
    return out


def assert_near(a: NDArray[np.uint8], b: NDArray[np.uint8], tolerance: tuple[float, int]) -> None:
    difference = np.abs(a.astype(int) - b)
    assert difference.mean() <= tolerance[0]
    assert difference.max() <= tolerance[1]


def test_every_name_is_known_and_a_torchvision_without_decoders_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for names in (JPEG, PNG):
        assert all(callable(open_decoder(name)) for name in names)
    monkeypatch.setitem(sys.modules, "torchvision.io", None)
    with pytest.raises(
        ConfigError, match=r"^decoder: 'torchvision' is not possible; .+; choose opencv or pil$"
    ):
        open_decoder("torchvision")
    assert callable(open_decoder("pil"))


@pytest.mark.parametrize(
    "crop", [CENTRE, Crop(10, 20, 300, 260), Crop(10, 20, 100, 120, flip=True)]
)
@pytest.mark.parametrize("name", JPEG)
def test_decoders_agree(name: str, crop: functools.partial[Crop] | Crop) -> None:
    reference = decoded("pil", photo(), crop)
    assert reference.std() > 20
    tolerance = SAME if name in ("pil", "torchvision") else RESIZED
    found = decoded(name, photo(), crop)
    assert_near(found, reference, tolerance)
    if name == "simplejpeg":  # which OpenCV resizes too
        assert_near(found, decoded("opencv", photo(), crop), SAME)


@pytest.mark.parametrize("name", JPEG)
def test_a_crop_of_the_samples_size_is_not_resampled(name: str) -> None:
    crop = Crop(3, 5, 224, 224)
    with Image.open(io.BytesIO(photo())) as file:
        whole = np.asarray(file)
    assert_near(decoded(name, photo(), crop), whole[3:227, 5:229], SAME)
    flipped = decoded(name, photo(), crop._replace(flip=True))
    assert np.array_equal(flipped, decoded(name, photo(), crop)[:, ::-1])


@pytest.mark.parametrize("name", JPEG)
@pytest.mark.parametrize("zoom", [2, 7])
def test_large_photographs(name: str, zoom: int) -> None:
    """Where simplejpeg lets libjpeg decode to a smaller size; the crop must not move by that."""
    crop = Crop(37 * zoom + 1, 21 * zoom + 2, 275 * zoom, 233 * zoom + 1)
    reference = decoded("pil", photo(zoom), crop)
    tolerance = SAME if name in ("pil", "torchvision") else SCALED
    assert_near(decoded(name, photo(zoom), crop), reference, tolerance)
    flipped = decoded(name, photo(zoom), crop._replace(flip=True))
    # OpenCV 4's warpAffine works in steps of 1/32 pixel, which it rounds to one side
    assert_near(flipped[:, ::-1], decoded(name, photo(zoom), crop), (0.3, 4))


@pytest.mark.parametrize("name", PNG)
@pytest.mark.parametrize("channels", [1, 3])
def test_png_is_lossless(name: str, channels: int) -> None:
    whole = functools.partial(centre_crop, size=28)
    with Image.open(io.BytesIO(png(channels=channels))) as file:
        pixels = np.asarray(file).reshape(28, 28, channels)
    assert np.array_equal(decoded(name, png(channels=channels), whole, 28, channels), pixels)


@pytest.mark.parametrize("name", JPEG)
def test_grey_and_colour_are_what_is_asked_for(name: str) -> None:
    grey = decoded(name, photo(), channels=1)
    assert_near(grey, decoded("pil", photo(), channels=1), RESIZED)
    file = io.BytesIO()
    Image.fromarray(grey[:, :, 0]).save(file, "JPEG")
    colour = decoded(name, file.getvalue())
    assert np.array_equal(colour[:, :, 0], colour[:, :, 1])
    assert colour.std() > 10


@pytest.mark.parametrize("name", JPEG)
def test_exif_orientation_is_left_alone(name: str) -> None:
    """Like ImageFolder with Pillow: all decoders see the stored image."""
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees
    block = exif.tobytes()
    turned = photo()[:2] + b"\xff\xe1" + (len(block) + 2).to_bytes(2, "big") + block + photo()[2:]
    with Image.open(io.BytesIO(turned)) as image:
        assert image.getexif()[0x0112] == 6
    assert np.array_equal(decoded(name, turned), decoded(name, photo()))


@pytest.mark.parametrize(
    ("kind", "name"), [("jpeg", name) for name in JPEG] + [("png", name) for name in PNG]
)
def test_a_broken_file_is_refused_in_one_short_line(kind: str, name: str) -> None:
    how = () if kind == "jpeg" else (functools.partial(centre_crop, size=28), 28, 1)
    good = photo() if kind == "jpeg" else png()
    half = good[: len(good) // 2]
    broken = [
        b"",
        good[:3],
        good[:40],
        half,
        good[:-1],
        bytes(len(good)),
        half + bytes(len(good) - len(half)),
    ]
    for encoded in (
        *broken,
        np.random.default_rng(1).bytes(5000),
        b"<html>\n<body>not found</body>\n</html>\n",
    ):
        with pytest.raises(ValueError) as caught:
            decoded(name, encoded, *how)
        error = str(caught.value)
        assert 0 < len(error) < 120
        assert "\n" not in error
        assert "0x" not in error


@pytest.mark.parametrize("name", JPEG)
def test_a_thumbnails_end_is_not_the_images(name: str) -> None:
    """A camera's JPEG holds a small one in its header, which ends with the same marker."""
    good = photo()
    thumbnail = scenes.encode(scenes.draw(1, np.random.default_rng(1))[:40, :60])
    with_thumbnail = (
        good[:2] + b"\xff\xe1" + (len(thumbnail) + 2).to_bytes(2, "big") + thumbnail + good[2:]
    )
    assert np.array_equal(decoded(name, with_thumbnail), decoded(name, good))
    assert np.array_equal(
        decoded(name, good + bytes(100)), decoded(name, good)
    )  # nor does what follows it matter
    for cut in (len(with_thumbnail) // 2, len(thumbnail) + 6):
        with pytest.raises(ValueError):
            decoded(name, with_thumbnail[:cut])


@pytest.mark.parametrize("name", JPEG)
def test_in_threads_and_pickled(name: str) -> None:
    decode: Decoder = pickle.loads(pickle.dumps(open_decoder(name)))
    crops = [Crop(i, 2 * i, 200 + i, 224 + i, flip=bool(i % 2)) for i in range(16)]
    out = np.zeros((len(crops), 224, 224, 3), np.uint8)
    torch.set_num_threads(1)
    with ThreadPoolExecutor(4) as pool:
        list(
            pool.map(
                lambda i: decode(photo(), lambda height, width: crops[i], out[i]), range(len(crops))
            )
        )
    for i in (0, 7, 15):
        assert np.array_equal(out[i], decoded(name, photo(), crops[i]))


def test_opencv_makes_no_threads() -> None:
    cv2.setNumThreads(4)
    assert opencv.__wrapped__().getNumThreads() == 1
