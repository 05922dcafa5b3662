"""JPEG files that a script opens with Pillow, decoded by another library, as a trial of a tournament has it.

`Image.open` reads a file's header as ever, so the image has the class, size, mode, EXIF and errors that the
script knows. Only `load` is replaced, which every use of the pixels calls: another library decodes the same
bytes, and its pixels become those of the image. What is no plain colour JPEG stays with Pillow, and so does
what the library cannot decode.

Decoders may differ by some levels of 255. So the first files of each process are decoded both ways, and one in
`SPARSELY` after them.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import stat
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any

from vitprof.watch.patching import when_imported

PLUGIN = "PIL.JpegImagePlugin"
SPARSELY = 500
"""One file in so many is compared after the first ones: under 1% of the time of a decoder."""
MOST_BYTES_PER_PIXEL = 4
"""A JPEG of noise at the highest quality has 3."""
MOST_OTHER_BYTES = 2**20
"""Of what a file has besides the compressed picture: EXIF, a thumbnail, a colour profile."""
FILL = 0xFF
"""Any number of it may stand before a marker, which begins with it."""
START_OF_SCAN = 0xDA
END_OF_IMAGE = 0xD9
FIRST_RESTART = 0xD0
WITH_LENGTH = (*range(0xC0, 0xD0), *range(0xDA, 0xF0), 0xFE)
"""Markers that the length of a segment follows (ITU-T T.81, table B.1)."""
Decode = Callable[[bytes], Any]
"""The bytes of a JPEG file -> its pixels, (height, width, 3) uint8; None where it cannot."""


def _simplejpeg() -> Decode:
    from simplejpeg import decode_jpeg

    return functools.partial(decode_jpeg, colorspace="RGB")


def _torchvision() -> Decode:
    import torch
    from torchvision.io import ImageReadMode, decode_image

    def decode(encoded: bytes) -> Any:
        # A copy: PyTorch warns of memory that cannot be written to.
        numbers = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
        return decode_image(numbers, ImageReadMode.RGB).permute(1, 2, 0).contiguous().numpy()

    return decode


def _opencv() -> Decode:
    import cv2
    import numpy as np

    # Pillow does not turn an image by its EXIF orientation.
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION

    def decode(encoded: bytes) -> Any:
        return cv2.imdecode(np.frombuffer(encoded, np.uint8), flags)

    return decode


OPEN: dict[str, Callable[[], Decode]] = {
    "simplejpeg": _simplejpeg,
    "torchvision": _torchvision,
    "opencv": _opencv,
}
"""Decoder -> imports it."""
ORDER = {"opencv": "BGR"}
"""Decoder -> the order of its colours, where that is not RGB. Pillow turns them around as it takes them: OpenCV's
own conversion uses threads, for which a forked process may wait for ever."""


@functools.cache
def open_decoder(name: str, package: str) -> Decode:
    """Returns a decoder of `OPEN`. `package`: what to install for it.

    Raises `ValueError` where it cannot be imported.
    """
    try:
        return OPEN[name]()
    except ImportError as error:
        todo = f"{os.path.basename(sys.executable)} -m pip install {package}"
        raise ValueError(f"decoder={name} cannot be imported ({error}): {todo}") from error


def check_decoder(given: Mapping[str, Any] | None) -> None:
    """Imports the decoder that a trial is given, if any. Raises `ValueError` where it cannot be imported."""
    if given:
        open_decoder(given["name"], given["package"])


class _StaysError(Exception):
    """Why a file stays with Pillow."""


@dataclass
class Files:
    """What became of the JPEG files of a process so far: `recording.DecodedFiles`, which the script's side
    does not import.
    """

    decoded: int = 0
    stayed: int = 0
    why: str = ""
    compared: int = 0
    differ: int = 0
    largest: int = 0


class Decoding:
    """Decodes the JPEG files of this process by another library, and compares some."""

    def __init__(
        self,
        name: str,
        package: str,
        first: int,
        send: Callable[[str], None],
        sent: Callable[[], Iterable[str]],
    ) -> None:
        """`name`: one of `OPEN`; `package`: what to install for it. `first`: files of each process that are
        compared before all others. `send` takes a report, `sent` returns those of all processes.
        """
        self._name = name
        self._package = package
        self._first = first
        self._send = send
        self._sent = sent
        self._remaining = 0
        """Files that are yet to be compared before all others."""
        self._pid = 0
        self._who = ""
        """Which of the job's processes it is: its rank, and its number as a worker. A worker that is
        started for the next epoch has the same."""
        self._files = Files()
        """Those of this process so far."""

    def load(self, image: Any, by_pillow: Callable[[Any], Any]) -> None:
        """Gives a JPEG image that is not loaded yet its pixels by the library, where that can be.

        `by_pillow`: loads it as ever, and raises what the script is used to.
        """
        try:
            if self._pid != os.getpid():
                self._begin()
            made, position = self._decoded(image)
        except Exception as error:  # Pillow decodes it, or says what is wrong with it
            self._note_stayed(error)
            return
        self._files.decoded += 1
        if self._remaining or self._files.decoded % SPARSELY == 0:
            self._remaining = max(0, self._remaining - 1)
            by_pillow(image)
            # What was not compared is not counted, and the script goes on.
            with contextlib.suppress(Exception):
                self._compare(image, made)
            # So all losses are those of the library's pixels.
            image.im = made.im
            return
        _finish(image, made.im, position)
        self._report_sometimes(self._files.decoded)

    def _begin(self) -> None:
        """Begins to count, in a process that was forked, too."""
        self._pid = os.getpid()
        self._who = _who()
        self._files = Files()
        # Not in workers of a later epoch: that would be in the time of its first steps.
        is_first = all(json.loads(text)["who"] != self._who for text in self._sent())
        self._remaining = self._first if is_first else 0

    def _decoded(self, image: Any) -> tuple[Any, int]:
        """Returns a Pillow image with the pixels, and where Pillow would leave the file object.

        Raises `_StaysError`, or what the library raises.
        """
        from PIL import Image

        _check_plain(image)
        encoded = _read(image)
        end = _end_of(encoded)
        pixels = open_decoder(self._name, self._package)(encoded)
        width, height = image.size
        if pixels is None or (pixels.shape, pixels.dtype.name) != ((height, width, 3), "uint8"):
            raise _StaysError(f"{self._name} does not decode it")
        order = ORDER.get(self._name, "RGB")
        made = Image.frombuffer("RGB", image.size, pixels, "raw", order, 0, 1)
        # Pillow reads whole blocks.
        block = image.decodermaxblock
        return made, min(len(encoded), -(-end // block) * block)

    def _compare(self, image: Any, made: Any) -> None:
        import numpy as np

        files = self._files
        one = np.asarray(image)
        other = np.asarray(made)
        files.compared += 1
        if not np.array_equal(one, other):
            difference = np.maximum(one, other) - np.minimum(one, other)
            files.differ += 1
            files.largest = max(files.largest, int(difference.max()))
        self._report()

    def _note_stayed(self, error: Exception) -> None:
        files = self._files
        files.stayed += 1
        if not files.why:
            files.why = str(error).partition("\n")[0] or type(error).__name__
        self._report_sometimes(files.stayed)

    def _report_sometimes(self, count: int) -> None:
        """Reports at 1, 2, 4, 8 and so on: what was reported last is more than the half."""
        if count.bit_count() == 1:
            self._report()

    def _report(self) -> None:
        self._send(json.dumps({"pid": self._pid, "who": self._who, **asdict(self._files)}))


def _who() -> str:
    worker = None
    data = sys.modules.get("torch.utils.data")
    if data is not None:
        worker = data.get_worker_info()
    number = "" if worker is None else worker.id
    return f"{os.environ.get('RANK', '')}/{number}"


def _check_plain(image: Any) -> None:
    """Raises `_StaysError` for an image that is not loaded from a plain colour JPEG as it is in its file."""
    if image.mode != "RGB" or image.layers != 3 or image.bits != 8:
        raise _StaysError(f"its mode is {image.mode}")
    if image.decoderconfig:
        raise _StaysError("draft() was called, as thumbnail() does")
    # Another value: the three colours of the file are red, green and blue.
    if image.info.get("adobe_transform", 1) != 1:
        raise _StaysError("its colours are not YCbCr")
    (tile,) = image.tile
    codec, extents, offset, arguments = tile
    is_at_once = (codec, extents, offset) == ("jpeg", (0, 0, *image.size), 0)
    is_whole = is_at_once and arguments == ("RGB", "")
    # In a Pillow before 11 the pixels are the attribute "im".
    is_made = vars(image).get("_im", vars(image).get("im")) is not None
    if not is_whole or is_made:
        raise _StaysError("the script has changed how it is loaded")


def _read(image: Any) -> bytes:
    """Returns the bytes of an image's file. Raises `_StaysError` where that is not just a JPEG file."""
    file = image.fp
    if type(file) is io.BytesIO:
        n_bytes = file.getbuffer().nbytes
    elif type(file) is io.BufferedReader:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise _StaysError("it is not in a regular file")
        n_bytes = status.st_size
    else:
        raise _StaysError(f"it is read from an object of class {type(file).__name__}")
    width, height = image.size
    if n_bytes > MOST_BYTES_PER_PIXEL * width * height + MOST_OTHER_BYTES:
        raise _StaysError("its file has much more in it than a picture")
    file.seek(0)
    return bytes(file.read())


def _end_of(encoded: bytes) -> int:
    """Returns where the first image in the bytes of a file ends, which Pillow has found to be a JPEG.

    Raises `_StaysError` for one that is truncated, or has a marker where none can be: of some of them Pillow
    says that they are broken, and OpenCV gives a part.
    """
    markers = _markers(encoded)
    at = 2
    is_in_scan = False
    while True:
        if is_in_scan:
            at = next((place for place in markers if place >= at), len(encoded))
        if encoded[at : at + 1] != b"\xff" or at + 1 >= len(encoded):
            raise _StaysError("it is truncated or damaged")
        marker = encoded[at + 1]
        if marker == END_OF_IMAGE:
            return at + 2
        if marker == FILL:
            at += 1
        elif marker in WITH_LENGTH:
            at += 2 + int.from_bytes(encoded[at + 2 : at + 4], "big")
            is_in_scan = marker == START_OF_SCAN
        else:
            raise _StaysError("it is truncated or damaged")


def _markers(encoded: bytes) -> Any:
    """Returns where markers may be in the compressed data of a JPEG, in order."""
    import numpy as np

    numbers = np.frombuffer(encoded, np.uint8)
    places = np.flatnonzero(numbers[:-1] == FILL)
    follows = numbers[places + 1]
    # In compressed data 0xff is followed by 0 (ITU-T T.81, F.1.2.3), and RST0 to RST7 belong to it.
    return places[(follows != 0) & (follows & 0xF8 != FIRST_RESTART)].tolist()


def _finish(image: Any, core: Any, position: int) -> None:
    """Does what `ImageFile.load` does at its end (Pillow 8 to 13)."""
    image.im = core
    image.tile = []
    image.map = None
    image.readonly = 0
    image.load_end()
    if image._exclusive_fp and image._close_exclusive_fp_after_loading:
        image.fp.close()
    else:
        image.fp.seek(position)
    image.fp = None


def decode_by(
    given: Mapping[str, Any], send: Callable[[str], None], sent: Callable[[], Iterable[str]]
) -> None:
    """Patches Pillow, once it is used, to have JPEG files decoded by another library.

    `given`: "name", "package" and "first"; these and `send`, `sent` as of `Decoding`.
    """
    decoding = Decoding(given["name"], given["package"], given["first"], send, sent)

    def patch(plugin: ModuleType) -> None:
        put_in(plugin.JpegImageFile, decoding)

    when_imported(PLUGIN, patch)


def put_in(kind: Any, decoding: Decoding) -> None:
    """Replaces the `load` of Pillow's class of JPEG images; that of classes derived from it stays."""
    by_pillow = kind.load

    @functools.wraps(by_pillow)
    def load(self: Any) -> Any:
        if self.tile and type(self) is kind:
            decoding.load(self, by_pillow)
        return by_pillow(self)

    kind.load = load
