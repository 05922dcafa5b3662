"""Decoders: from the bytes of a JPEG or PNG file to uint8 pixels of one size, by the names of
`parts.DECODERS`.

All do the same: decode, take the crop, resize it, mirror it, and write it into the caller's array.
All spend their time outside the GIL. None rotates an image by its EXIF orientation. Each library
resizes in its own way, so pixels differ slightly between them; tests/engine/test_decoders.py states
by how much.
"""

import io
import math
import threading
from collections.abc import Callable
from typing import Protocol

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from vitprof.config.parts import DEPRECATED_DECODERS
from vitprof.engine import torchcodec_images
from vitprof.engine.transforms import Crop, opencv
from vitprof.errors import ConfigError

Pixels = NDArray[np.uint8]
ChooseCrop = Callable[[int, int], Crop]
"""(height, width) of the encoded image -> the part to take of it."""

cv2 = opencv()

AREA_FROM = 2.0
"""OpenCV resizes with INTER_AREA from this shrinking factor on, with INTER_LINEAR below.

Linear reads 2 x 2 pixels for each one it makes, so it skips none up to a factor of 2; there area
takes 0.43 ms instead of 0.06 ms (328 to 224 pixels)."""


PNG = b"\x89PNG"
WEBP = b"RIFF"
OTHERS = (PNG, WEBP)
"""How files begin that are no JPEG. A user's own data set may have them."""


class Decoder(Protocol):
    """A function that decodes one image. Safe to call from several threads; can be pickled."""

    def __call__(self, encoded: bytes, crop: ChooseCrop, out: Pixels) -> None:
        """Writes the crop of the image into `out`: (size, size, 1 or 3) uint8, contiguous, grey or
        RGB.

        Raises `ValueError` with a short reason for bytes that are not a complete image.
        """


class _Buffer(threading.local):
    """The array that simplejpeg decodes into, one for each thread: a new one would cause page
    faults for each image.
    """

    def __init__(self) -> None:
        self.array = np.empty(0, np.uint8)

    def of(self, n_bytes: int) -> Pixels:
        if len(self.array) < n_bytes:
            self.array = np.empty(n_bytes, np.uint8)
        return self.array


_buffer = _Buffer()


def decode_simplejpeg(encoded: bytes, crop: ChooseCrop, out: Pixels) -> None:
    """Decodes with libjpeg-turbo through simplejpeg, and resizes with OpenCV. See `Decoder`.

    Pillow decodes what that cannot: PNG, WebP, and JPEG files of other colours, such as CMYK.
    """
    size = out.shape[0]
    channels = out.shape[2]
    if encoded.startswith(OTHERS):
        return decode_pil(encoded, crop, out)
    height, width, colours = jpeg_header(encoded)
    if colours not in ("Gray", "YCbCr", "RGB"):
        return decode_pil(encoded, crop, out)
    box = crop(height, width)
    # libjpeg can decode to 1/2, 1/4 or 1/8 of the size faster than to full size. This goes only so
    # far that the crop still has a pixel for each of the sample's; sizes in between are slower than
    # full size (simplejpeg's documentation).
    factor = max(n for n in (1, 2, 4, 8) if n == 1 or min(box.height, box.width) >= n * size)
    least_height = 0
    least_width = 0
    if factor > 1:
        least_height = math.ceil(height / factor)
        least_width = math.ceil(width / factor)
    image = simplejpeg.decode_jpeg(
        encoded,
        colorspace="GRAY" if channels == 1 else "RGB",
        min_height=least_height,
        min_width=least_width,
        min_factor=factor,
        buffer=_buffer.of(height * width * channels),
    )
    if factor == 1:
        _fit(image, box, out)
    else:
        _fit_scaled(image, box, factor, out)


def jpeg_header(encoded: bytes) -> tuple[int, int, str]:
    """Returns (height, width, colours) of a JPEG. Raises `ValueError` with a short reason if it
    cannot be read.
    """
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(encoded)
    except ValueError:
        raise ValueError("it ends inside its header, or is not a JPEG file") from None
    return height, width, colours


def _fit_scaled(image: Pixels, box: Crop, factor: int, out: Pixels) -> None:
    """Does what `_fit` does for an image that is `factor` times smaller than the one `box` was
    chosen in.

    There the box's edges are between pixels: rounding them would shift the sample by half a pixel
    (largest difference from Pillow, on edges: 150 of 255 instead of 20).
    """
    size = out.shape[0]
    step_x = box.width / (factor * size)
    step_y = box.height / (factor * size)
    first_x = box.left / factor + (step_x - 1) / 2
    first_y = box.top / factor + (step_y - 1) / 2
    if box.flip:
        first_x = first_x + step_x * (size - 1)
        step_x = -step_x
    cv2.warpAffine(
        image,
        np.array([[step_x, 0, first_x], [0, step_y, first_y]]),
        (size, size),
        dst=out,
        flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
        borderMode=cv2.BORDER_REPLICATE,
    )


def decode_opencv(encoded: bytes, crop: ChooseCrop, out: Pixels) -> None:
    """Decodes with OpenCV's imdecode. See `Decoder`."""
    # Of a truncated file OpenCV 4 returns the decodable part, the rest grey.
    check_end(encoded)
    colour = cv2.IMREAD_GRAYSCALE if out.shape[2] == 1 else cv2.IMREAD_COLOR
    flags = colour | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        image = cv2.imdecode(np.frombuffer(encoded, np.uint8), flags)
    except cv2.error as error:
        raise ValueError("OpenCV cannot decode it") from error
    if image is None:
        raise ValueError("OpenCV cannot decode it")
    _fit(image, crop(*image.shape[:2]), out)
    # Here, on the small image; decoding to RGB directly needs OpenCV 4.11.
    if out.shape[2] == 3:
        cv2.cvtColor(out, cv2.COLOR_BGR2RGB, dst=out)


def check_end(encoded: bytes) -> None:
    """Raises `ValueError` if a JPEG or PNG file is empty or has no end marker."""
    if not encoded:
        raise ValueError("it is empty")
    if encoded.startswith(WEBP):
        return
    if encoded.startswith(PNG):
        # The last chunk, which is empty, with its checksum.
        complete = encoded.rfind(b"IEND\xaeB`\x82") > 0
    else:
        # The end-of-image marker must come after the last start of scan: a thumbnail in the header
        # has both, too. Neither can occur inside compressed data, where 0xff is followed by 0
        # (ITU-T T.81, F.1.2.3).
        end = b"\xff\xd9"
        start_of_scan = b"\xff\xda"
        complete = encoded.endswith(end) or encoded.rfind(end) > encoded.rfind(start_of_scan) >= 0
    if not complete:
        raise ValueError("it ends too early, or is not an image")


def _fit(image: NDArray[np.uint8], box: Crop, out: Pixels) -> None:
    """Resizes `box` of `image` into `out` with OpenCV, and mirrors it if `box.flip`."""
    part = image[box.top : box.top + box.height, box.left : box.left + box.width]
    size = (out.shape[1], out.shape[0])
    if (box.width, box.height) == size:
        out[...] = part.reshape(out.shape)
    else:
        shrinking = max(box.width / size[0], box.height / size[1])
        how = cv2.INTER_LINEAR if shrinking < AREA_FROM else cv2.INTER_AREA
        cv2.resize(part, size, dst=out, interpolation=how)
    if box.flip:
        cv2.flip(out, 1, dst=out)


def decode_torchvision(encoded: bytes, crop: ChooseCrop, out: Pixels) -> None:
    """Decodes with torchvision.io's decode_image, and resizes uint8 tensors with antialiasing.

    See `Decoder`.

    Deprecated since torchvision 0.29; kept so that runs that chose it can be run again.
    """
    import torch
    from torchvision.io import ImageReadMode, decode_image
    from torchvision.transforms.v2 import functional

    check_end(encoded)
    try:
        # A copy: torch warns about memory that cannot be written to.
        data = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
        image = decode_image(data, ImageReadMode.GRAY if out.shape[2] == 1 else ImageReadMode.RGB)
    except RuntimeError as error:
        raise ValueError(_first_line(error)) from error
    box = crop(image.shape[1], image.shape[2])
    sample = image[:, box.top : box.top + box.height, box.left : box.left + box.width]
    if (box.height, box.width) != out.shape[:2]:
        sample = functional.resize(sample, list(out.shape[:2]), antialias=True)
    if box.flip:
        sample = sample.flip(-1)
    torch.from_numpy(out).copy_(sample.permute(1, 2, 0))


def decode_torchcodec(encoded: bytes, crop: ChooseCrop, out: Pixels) -> None:
    """Decodes with TorchCodec, and resizes with OpenCV. See `Decoder`."""
    check_end(encoded)
    image = torchcodec_images.pixels(encoded, grey=out.shape[2] == 1)
    _fit(image, crop(*image.shape[:2]), out)


def decode_pil(encoded: bytes, crop: ChooseCrop, out: Pixels) -> None:
    """Decodes with Pillow and its antialiased bilinear resize, as torchvision's transforms do.

    See `Decoder`.
    """
    check_end(encoded)
    try:
        with Image.open(io.BytesIO(encoded)) as file:
            image = file.convert("L" if out.shape[2] == 1 else "RGB")
    except UnidentifiedImageError as error:
        # Pillow's own text names the BytesIO object, not the file.
        raise ValueError("Pillow does not know its format") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(_first_line(error)) from error
    box = crop(image.height, image.width)
    corners = (box.left, box.top, box.left + box.width, box.top + box.height)
    image = image.crop(corners)
    if (box.width, box.height) != (out.shape[1], out.shape[0]):
        image = image.resize((out.shape[1], out.shape[0]), Image.Resampling.BILINEAR)
    if box.flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    out[...] = np.asarray(image).reshape(out.shape)


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


DECODERS: dict[str, Decoder] = {
    "simplejpeg": decode_simplejpeg,
    "opencv": decode_opencv,
    "torchvision": decode_torchvision,
    "pil": decode_pil,
    "torchcodec": decode_torchcodec,
}


def open_decoder(name: str) -> Decoder:
    """Returns the decoder called `name`, one of `vitprof.config.parts.DECODERS`.

    Raises `ConfigError` for torchvision's decoder if the installed torchvision no longer has it,
    and for TorchCodec's if that cannot be used.
    """
    if name == "torchcodec":
        torchcodec_images.ensure_usable()
    if name == "torchvision":
        try:
            from torchvision.io import decode_image  # noqa: F401
        except ImportError as error:
            what = f"it is {DEPRECATED_DECODERS[name]}, and the torchvision installed here has none"
            raise ConfigError("decoder", name, f"{what}; choose opencv or pil") from error
    return DECODERS[name]
