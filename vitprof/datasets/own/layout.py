"""Brings a user's own data set into the layout of `photos`.

That is a folder for each class, with links to files that are images already, and with files
unpacked from what keeps many samples.
"""

import io
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitprof import home, names
from vitprof.datasets import files
from vitprof.datasets.catalog import DatasetInfo
from vitprof.datasets.own import bounded, registry, specs
from vitprof.datasets.own.listing import AS_IT_IS, ListedSample, Listing
from vitprof.datasets.own.readers import open_spec
from vitprof.datasets.own.registry import OwnSet
from vitprof.errors import DataError, SampleError, VitprofError, one_line
from vitprof.forms.image_files import png_of, quiet

if TYPE_CHECKING:  # the command line imports this module, also where Pillow is not installed
    from PIL import Image

REPORT_EVERY = 200
"""Samples between two reports of progress."""
MAX_CLASS_NAME = 80
"""Characters of a class's name in the name of its folder."""
WITH_FOLDERS = 1.05
"""Room that files take on disk over their bytes, about."""


class OwnMaker:
    """Makes what `own` names, as the modules of `datasets.MAKERS` make theirs."""

    def __init__(self, own: OwnSet) -> None:
        self._own = own
        self.IDENTITY: dict[str, int | str] = {
            "maker": own.without_secrets().spec,
            "version": 1,
            "stamp": own.stamp,
        }

    def make(
        self,
        directory: Path,
        *,
        progress: files.OnProgress = files.silent,
        stop: files.Stop = files.never,
    ) -> None:
        """Raises `DataError`, also where the data have changed since they were looked at, and
        `JobStopped`.
        """
        own = self._own
        if own.spec.startswith(registry.ELSEWHERE):
            raise DataError(
                f"the data set {own.name} is another machine's; if you have it here too: {own.to_add}"
            )
        allowed = None
        if own.below:
            allowed = [Path(part) for part in own.below.split(os.pathsep)]
        try:
            _look_again(own, allowed)
            opened = open_spec(own.spec, allowed)
        except VitprofError as error:
            raise DataError(f"data set {own.name}: {one_line(error)}") from error
        with closing(opened) as listing:
            self._fill(directory, listing, progress, stop)

    def _fill(
        self, directory: Path, listing: Listing, progress: files.OnProgress, stop: files.Stop
    ) -> None:
        own = self._own
        activity = f"the data set {self._own.name} was brought into its place"
        n = len(listing.samples)
        if (n, len(listing.classes)) != (own.n_train + own.n_test, own.classes):
            raise DataError(
                f"data set {own.name} has changed since it was looked at; look again: {own.to_add}"
            )
        if not listing.in_place:
            files.ensure_space(directory, round(WITH_FOLDERS * own.n_bytes))
        folders = [class_folder(label, name) for label, name in enumerate(listing.classes)]
        with files.writing(directory):
            for split in ("train", "test"):
                for folder in folders:
                    (directory / split / folder).mkdir(parents=True, exist_ok=True)

        def put(at: int) -> None:
            sample = listing.samples[at]
            split = "train" if sample.train else "test"
            _put(listing, sample, directory / split / folders[sample.label] / f"{at:08d}")

        with quiet(), ThreadPoolExecutor(listing.threads, "vitprof-own") as pool:
            for first in range(0, n, REPORT_EVERY):
                files.report(progress, stop, first / n, f"{own.name}: {first:,} of {n:,}", activity)
                list(pool.map(put, range(first, min(first + REPORT_EVERY, n))))


def _look_again(own: OwnSet, allowed: Sequence[Path] | None) -> None:
    """Looks at files that a library opens by itself, in another process, where they are others than
    those that were looked at: what ends that process would end this one. Raises `ConfigError`.
    """
    spec = specs.parse(own.spec)
    seen = specs.stamp_of_library_files(spec)
    if not own.stamp.endswith(seen):
        bounded.look(own.name, own.spec, allowed=allowed)


def facts_of(info: DatasetInfo) -> dict[str, Any]:
    """Returns what a run keeps of a user's own data set; nothing of vitprof's."""
    if not info.own_bytes:
        return {}
    return {"own_set": asdict(registry.everything()[info.name].without_secrets())}


def maker(name: str) -> OwnMaker:
    return OwnMaker(registry.everything()[name])


def users_paths(text: str) -> str:
    """Returns a message with the user's files in place of vitprof's links to them."""
    for path in re.findall(rf"{re.escape(str(home.data_dir()))}\S+", text):
        if os.path.islink(path):
            # A file's name may hold what is no text. The user's own file may be a link to one that
            # is gone.
            text = text.replace(path, names.harmless(os.readlink(path)))
    return text


@contextmanager
def named_errors(info: DatasetInfo) -> Iterator[None]:
    """Names, in what is raised inside about a sample of a user's own data set, the user's file and
    what to do.
    """
    try:
        yield
    except SampleError as error:
        if not info.own_bytes:
            raise
        what = users_paths(str(error).partition(";")[0])
        again = "skip such samples (under Advanced; --skip-unreadable), or repair or remove it, and look again"
        raise SampleError(f"{what}; {again}: {registry.everything()[info.name].to_add}") from error


def class_folder(label: int, name: str) -> str:
    """Returns the name of a class's folder: they sort in the order of the labels."""
    safe = re.sub(r"[^0-9A-Za-z_-]+", "_", name)[:MAX_CLASS_NAME]
    return f"{label:05d}-{safe}"


def _put(listing: Listing, sample: ListedSample, path: Path) -> None:
    """Makes the file of a sample, or a link to it where all loaders read it as it is."""
    from PIL import Image

    data = None
    kind = ".jpg"
    converted = None
    try:
        source = sample.key
        if not listing.in_place:
            data = listing.read(sample.key)
            source = io.BytesIO(data)
        with Image.open(source) as image:
            kind = AS_IT_IS.get(str(image.format), "")
            if not kind or image.mode[0] in "IF":
                converted = png_of(eight_bits(image))
                kind = ".png"
    except Exception:  # decoders raise whatever they stumble over
        # Reading it as a sample says what is wrong with it.
        kind = ".jpg"
    target = path.with_name(path.name + kind)
    with files.writing(target):
        if data is None and converted is None:
            target.unlink(missing_ok=True)
            target.symlink_to(sample.key)
        else:
            target.write_bytes(converted or data or b"")


def eight_bits(image: "Image.Image") -> "Image.Image":
    """Returns an image of 8 bits a channel: of more bits the upper 8, of decimals 0 to the most."""
    from PIL import Image

    if image.mode[0] not in "IF":
        return image.convert("RGB")
    pixels = np.asarray(image, np.float64)
    if image.mode == "F":
        # Decimals have no agreed range; a black image must not be divided by 0.
        most = max(pixels.max(), 1e-9)
    elif image.mode.startswith("I;16") or pixels.max() > 255:
        most = 65535.0
    else:
        most = 255.0
    scaled = pixels / most
    return Image.fromarray((scaled.clip(0, 1) * 255).astype(np.uint8)).convert("RGB")
