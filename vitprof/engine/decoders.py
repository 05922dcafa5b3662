"""Decoders: from the bytes of a JPEG or PNG file to uint8 pixels of one size, by the names of `parts.DECODERS`."""

import io
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
"""From this shrinking factor on OpenCV resizes with INTER_AREA. Below, INTER_LINEAR reads 2 x 2 pixels for each one, so
it skips none, in 0.06 ms instead of 0.43 ms (328 to 224 pixels)."""


OTHERS = (b"\x89PNG", b"RIFF")
"""How files begin that are no JPEG: PNG, WebP. A user's own data set may have them."""


class Decoder(Protocol):
    """A function that decodes one image. Safe to call from several threads; can be pickled."""

    def __call__(self, encoded: bytes, crop: ChooseCrop, out: Pixels) -> None:
        """Writes the crop of the image into `out`: (size, size, 1 or 3) uint8. Raises `ValueError` if damaged."""


class _Buffer(threading.local):
    """The array that simplejpeg decodes into, one for each thread: a new one would cause page faults for each image."""

    def __init__(self) -> None:
        self.array = np.empty(0, np.uint8)

    def of(self, n_bytes: int) -> Pixels:
        if len(self.array) < n_bytes:
            self.array = np.empty(n_bytes, np.uint8)
        return self.array


_buffer = _Buffer()


def decode_simplejpeg(encoded: bytes, crop: ChooseCrop, out: Pixels) -> None:
    """Decodes with libjpeg-turbo through simplejpeg, and resizes with OpenCV; what that cannot decode with Pillow. See
    `Decoder`.
    """
    size = out.shape[0]
    channels = out.shape[2]
    if encoded.startswith(OTHERS):
        return decode_pil(encoded, crop, out)
    height, width, colours = jpeg_header(encoded)
    if colours not in ("Gray", "YCbCr", "RGB"):
        return decode_pil(encoded, crop, out)
    box = crop(height, width)
    # libjpeg can decode to 1/2, 1/4 or 1/8 of the size faster than to full size. This goes only so far that the crop
    # still has a pixel for each of the sample's; sizes in between are slower than full size (simplejpeg's
    # documentation).
    factor = max(n for n in (1, 2, 4, 8) if n == 1 or min(box.height, box.width) >= n * size)
    image = simplejpeg.decode_jpeg(
        encoded,
        colorspace="GRAY" if channels == 1 else "RGB",
        min_height=-(-height // factor) if factor > 1 else 0,
        min_width=-(-width // factor) if factor > 1 else 0,
        min_factor=factor,
        buffer=_buffer.of(height * width * channels),
    )
    if factor == 1:
        _fit(image, box, out)
    else:
        _fit_scaled(image, box, factor, out)


def jpeg_header(encoded: bytes) -> tuple[int, int, str]:
    """Returns (height, width, colours) of a JPEG. Raises `ValueError` with a short reason if it cannot be read."""
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(encoded)
    except ValueError:
        raise ValueError("it ends inside its header, or is not a JPEG file") from None
    return height, width, colours


def _fit_scaled(image: Pixels, box: Crop, factor: int, out: Pixels) -> None:
    """Does what `_fit` does for an image that is `factor` times smaller than the one `box` was chosen in.

    The box's edges are between pixels then: rounding would shift the sample by half a pixel (150 of 255 on edges).
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
    check_end(encoded)  # of a truncated file OpenCV 4 returns the decodable part, the rest grey
    colour = cv2.IMREAD_GRAYSCALE if out.shape[2] == 1 else cv2.IMREAD_COLOR
    try:
        image = cv2.imdecode(
            np.frombuffer(encoded, np.uint8), colour | cv2.IMREAD_IGNORE_ORIENTATION
        )
    except cv2.error as error:
        raise ValueError("OpenCV cannot decode it") from error
    if image is None:
        raise ValueError("OpenCV cannot decode it")
    _fit(image, crop(*image.shape[:2]), out)
    if out.shape[2] == 3:  # here, on the small image; decoding to RGB directly needs OpenCV 4.11
        cv2.cvtColor(out, cv2.COLOR_BGR2RGB, dst=out)


def check_end(encoded: bytes) -> None:
    """Raises `ValueError` if a JPEG or PNG file is empty or has no end marker."""
    if not encoded:
        raise ValueError("it is empty")
    if encoded.startswith(OTHERS[1:]):
        return
    if encoded.startswith(OTHERS[0]):
        complete = (
            encoded.rfind(b"IEND\xaeB`\x82") > 0
        )  # the last chunk, which is empty, with its checksum
    else:
        # The end-of-image marker must come after the last start of scan: a thumbnail in the header has both, too.
        # Neither can occur inside compressed data, where 0xff is followed by 0 (ITU-T T.81, F.1.2.3).
        complete = (
            encoded.endswith(b"\xff\xd9")
            or encoded.rfind(b"\xff\xd9") > encoded.rfind(b"\xff\xda") >= 0
        )
    if not complete:
        raise ValueError("it ends too early, or is not an image")


def _fit(image: NDArray[np.uint8], box: Crop, out: Pixels) -> None:
    part = image[box.top : box.top + box.height, box.left : box.left + box.width]
    size = (out.shape[1], out.shape[0])
    if (box.width, box.height) == size:
        out[...] = part.reshape(out.shape)
    else:
        shrinking = max(box.width / size[0], box.height / size[1])
        cv2.resize(
            part,
            size,
            dst=out,
            interpolation=cv2.INTER_LINEAR if shrinking < AREA_FROM else cv2.INTER_AREA,
        )
    if box.flip:
        cv2.flip(out, 1, dst=out)


def decode_torchvision(encoded: bytes, crop: ChooseCrop, out: Pixels) -> None:
    """Decodes with torchvision.io (deprecated since 0.29, kept for runs that chose it). See `Decoder`."""
    import torch
    from torchvision.io import ImageReadMode, decode_image
    from torchvision.transforms.v2 import functional

    check_end(encoded)
    try:
        # a copy: torch warns about memory that cannot be written to
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
    """Decodes with Pillow and its antialiased bilinear resize, as torchvision's transforms do. See `Decoder`."""
    check_end(encoded)
    try:
        with Image.open(io.BytesIO(encoded)) as file:
            image = file.convert("L" if out.shape[2] == 1 else "RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        # Pillow's own text names the BytesIO object, not the file
        reason = (
            "Pillow does not know its format"
            if isinstance(error, UnidentifiedImageError)
            else _first_line(error)
        )
        raise ValueError(reason) from error
    box = crop(image.height, image.width)
    image = image.crop((box.left, box.top, box.left + box.width, box.top + box.height))
    if (box.width, box.height) != (out.shape[1], out.shape[0]):
        image = image.resize((out.shape[1], out.shape[0]), Image.Resampling.BILINEAR)
    if box.flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    out[...] = np.asarray(image).reshape(out.shape)


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


DECODERS: dict[str, Decoder] = {"simplejpeg": decode_simplejpeg, "opencv": decode_opencv}
DECODERS |= {"torchvision": decode_torchvision, "pil": decode_pil, "torchcodec": decode_torchcodec}


def open_decoder(name: str) -> Decoder:
    """Returns the decoder called `name`. Raises `ConfigError` if the installed torchvision no longer has its own."""
    if name == "torchcodec":
        torchcodec_images.ensure_usable()
    if name == "torchvision":
        try:
            from torchvision.io import decode_image  # noqa: F401
        except ImportError as error:
            what = f"it is {DEPRECATED_DECODERS[name]}, and the torchvision installed here has none"
            raise ConfigError("decoder", name, f"{what}; choose opencv or pil") from error
    return DECODERS[name]
