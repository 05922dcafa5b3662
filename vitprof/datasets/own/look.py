"""A look at a user's own data set before a run: how many samples of what kind, and what in them is
in the way.
"""

import io
import os
import random
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from PIL import Image, UnidentifiedImageError

from vitprof.cores import job_cores
from vitprof.datasets.own import specs
from vitprof.datasets.own.listing import AS_IT_IS, ListedSample, Listing
from vitprof.datasets.own.readers import open_spec
from vitprof.datasets.own.registry import LookReport, OwnSet
from vitprof.errors import JobStopped, one_line
from vitprof.forms.image_files import quiet
from vitprof.masking import masked

OPENS_ALL_OF = 1_000
"""Samples up to which all of a set are opened: one that cannot be read is then known before a run."""
SAMPLED = 300
"""Samples that are opened of a larger set; all with `full`."""
SEED = 1
"""Of the choice of these: two looks at the same samples see the same."""
SIDES = (224, 192, 160, 128, 96, 64, 32)
"""Sides of a crop: the largest that most images have."""
ROTATED = 0x0112
"""EXIF's tag for the orientation; 1 is upright."""
MODES = {
    "L": "grey",
    "RGB": "RGB",
    "CMYK": "CMYK",
    "P": "palette",
    "RGBA": "transparent",
    "LA": "transparent",
}


def look(
    name: str,
    text: str,
    *,
    full: bool = False,
    allowed: Sequence[Path] | None = None,
    progress: Callable[[float, str], object] = lambda done, words: None,
    stop: Callable[[], bool] = lambda: False,
    alive: Callable[[], None] = lambda: None,
) -> LookReport:
    """Opens samples of what `text` names, which gets the name `name`. `alive` is called as they are
    listed. `bounded.look` does the same where files may be damaged or made to harm.

    Raises `ConfigError` and `JobStopped`.
    """
    progress(0.0, f"listing {masked(text)}")
    with closing(open_spec(text, allowed, alive)) as found:
        seen = _look(name, text, found, full, progress, stop)
    return replace(seen, own=replace(seen.own, below=os.pathsep.join(map(str, allowed or ()))))


Progress = Callable[[float, str], object]


def _look(
    name: str, text: str, found: Listing, full: bool, progress: Progress, stop: Callable[[], bool]
) -> LookReport:
    order: Sequence[int] = range(len(found.samples))
    if not full and len(order) > OPENS_ALL_OF:
        # In order: containers keep a group of samples in memory and read the next one when it is
        # due.
        order = sorted(random.Random(SEED).sample(order, SAMPLED))
    seen = []
    threads = job_cores() if found.in_place else found.threads
    with quiet(), ThreadPoolExecutor(threads, "vitprof-look") as pool:
        for at, one in enumerate(pool.map(lambda at: _opened(found, found.samples[at]), order)):
            seen.append(one)
            if stop():
                pool.shutdown(cancel_futures=True)
                raise JobStopped("stopped while looking at the data set")
            progress((at + 1) / len(order), f"opened {at + 1:,} of {len(order):,} samples")
    good = [one for one in seen if not one.wrong]
    if not good:
        raise specs.wrong(
            text, f"none of {len(seen):,} samples can be read; the first: {seen[0].wrong}"
        )
    sides = sorted(one.side for one in good)
    # Three of four images are at least as large as the crop: the others are scaled up.
    lower_quartile = sides[len(sides) // 4]
    image_size = next((side for side in SIDES if lower_quartile >= side), SIDES[-1])
    n_train = sum(sample.train for sample in found.samples)
    share = len(found.samples) / len(good)
    n_bytes = round(sum(one.n_bytes for one in good) * share)
    modes = Counter(MODES.get(one.mode, "of 16 bits or more") for one in good)
    own = OwnSet(
        name=name,
        spec=specs.absolute(text),
        n_train=n_train,
        n_test=len(found.samples) - n_train,
        classes=len(found.classes),
        image_size=image_size,
        n_bytes=n_bytes,
        stamp=_stamp(found, specs.parse(text)),
        unreadable=len(seen) - len(good),
        opened=len(seen),
        made_bytes=round(sum(one.n_bytes for one in good if not _is_linked(found, one)) * share),
    )
    return LookReport(
        own=own,
        opened=len(seen),
        formats=dict(Counter(one.format for one in good).most_common()),
        modes=dict(modes.most_common()),
        widths=(sides[0], round(median(sides)), sides[-1]),
        rotated=sum(one.rotated for one in good),
        unreadable=tuple(one.wrong for one in seen if one.wrong),
        notes=tuple(found.notes),
        read_ms=1e3 * median(one.read_s for one in good),
    )


def _stamp(found: Listing, spec: specs.Spec) -> str:
    """Returns a text that changes with the samples: from their number and classes, and size and
    time of each file. It ends with `specs.stamp_of_library_files`.
    """
    files: list[Any] = [spec.path]
    if found.in_place:
        files = [sample.key for sample in found.samples]
    start = zlib.crc32(repr((len(found.samples), found.classes)).encode())
    return specs.stamp_of(files, start) + specs.stamp_of_library_files(spec)


@dataclass(frozen=True)
class _Opened:
    """What was seen of one sample."""

    n_bytes: int = 0
    read_s: float = 0.0
    side: int = 0
    """Pixels of the shorter side."""
    format: str = ""
    mode: str = ""
    """Pillow's mode, a key of `MODES` or one of more bits."""
    rotated: bool = False
    wrong: str = ""
    """Why it cannot be read, in one line; "" where it can."""


def _is_linked(found: Listing, one: _Opened) -> bool:
    """Returns whether a sample is read where it is, through a link (`layout`)."""
    return found.in_place and one.format in AS_IT_IS and one.mode[0] not in "IF"


def _opened(found: Listing, sample: ListedSample) -> _Opened:
    begun = perf_counter()
    try:
        data = found.read(sample.key)
        read_s = perf_counter() - begun
        with Image.open(io.BytesIO(data)) as image:
            rotated = image.getexif().get(ROTATED, 1) != 1
            image.load()
            side = min(image.size)
            kind = str(image.format)
            mode = image.mode
    except Exception as error:  # decoders raise whatever they stumble over
        # the key of a file on a network may be a URL with a password
        return _Opened(wrong=masked(f"{named(sample)}: {_reason(error, found, sample)}"))
    return _Opened(len(data), read_s, side, kind, mode, rotated)


def named(sample: ListedSample) -> str:
    """Returns a sample's path, or its key in a container."""
    if isinstance(sample.key, bytes):
        return sample.key.decode("utf-8", "replace")
    return str(sample.key)


def _reason(error: Exception, found: Listing, sample: ListedSample) -> str:
    if isinstance(error, UnidentifiedImageError):
        if found.in_place and Path(sample.key).stat().st_size == 0:
            return "it is empty"
        return "it is not an image"
    return one_line(error)
