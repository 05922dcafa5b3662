"""Libraries that decode the JPEG files of a user's own script in place of Pillow, and how trials compare them."""

import math
from dataclasses import dataclass

AS_IS = "as-is"
"""What the script does by itself."""


@dataclass(frozen=True)
class Library:
    """A library that decodes JPEG files."""

    module: str
    package: str
    """What to install for it."""
    code: str
    """What a script writes in place of `Image.open(path).convert("RGB")`."""


LIBRARIES = {
    "simplejpeg": Library(
        "simplejpeg",
        "simplejpeg",
        'Image.fromarray(simplejpeg.decode_jpeg(open(path, "rb").read()))',
    ),
    "torchvision": Library(
        "torchvision",
        "torchvision",
        "Image.fromarray(decode_image(read_file(path), ImageReadMode.RGB).permute(1, 2, 0).numpy())",
    ),
    "opencv": Library(
        "cv2",
        "opencv-python-headless",
        "Image.fromarray(cv2.imread(path, cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION))",
    ),
}
DECODE_BY = (
    'decode JPEG files with {} in place of Image.open(path).convert("RGB"); other files stay with Pillow '
    "(docs/own-script-tournament.md)"
)
"""What to do in a script; the place is for the library's code."""
COMPARED_FIRST = 20
"""Files of each process that a trial decodes both ways before all others."""
COMPARED_FRAC = 0.2
"""Share of a trial's steps that this may be in, at most: they are warm-up."""


@dataclass(frozen=True)
class TriedDecoder:
    """A library that decodes in a trial."""

    name: str
    """One of `LIBRARIES`."""
    first: int
    """Files of each process that are compared before all others."""
    warmup_steps: int
    """The first steps of the trial, whose batches these are in."""
    allows_other_pixels: bool = False

    @property
    def package(self) -> str:
        return LIBRARIES[self.name].package


def tried_decoder(
    name: str, *, steps: int, batch_size: int, workers: int, allows_other_pixels: bool
) -> TriedDecoder:
    """Returns how a trial of so many steps compares a decoder.

    The first batch of each worker comes before the second one of any, and a worker compares the files of its
    first batches alone. At least one batch of each is compared.
    """
    processes = max(1, workers)
    most_batches = max(1, math.floor(steps * COMPARED_FRAC / processes))
    first = min(COMPARED_FIRST, most_batches * batch_size)
    warmup_steps = processes * math.ceil(first / batch_size)
    return TriedDecoder(name, first, warmup_steps, allows_other_pixels)
