"""The data set `photos`: JPEG files with the statistics of photographs, in the layout of an image
folder.

`<root>/train/<class>/<id>.jpg` and `<root>/test/<class>/<id>.jpg`, about 500 x 375 as in ImageNet, quality
90. What they show: `vitprof.datasets.scenes`.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from vitprof.cores import job_cores
from vitprof.datasets import files
from vitprof.errors import SampleError

SEED = 42
IDENTITY: dict[str, int | str] = {"maker": "vitprof photos", "version": 1, "seed": SEED}
"""Identity of what `make` makes.

Raise the version with every change to the pixels: sets on disk are then remade."""

CLASSES = 100
BYTES_AN_IMAGE = 105_000
"""Approximate room that an image takes on disk (measured); free space is checked with it before
anything is made."""
IMAGES_A_CHUNK = 32
"""Images made between two calls of `stop`, about 0.1 s of one core."""
END_OF_IMAGE = b"\xff\xd9"
"""JPEG's marker."""


SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")


def class_name(label: int) -> str:
    """Returns the name of a class's folder. Names sort in the order of the labels."""
    return f"class-{label:03d}"


def folders(root: Path) -> Iterator[Path]:
    """Yields all class folders of both splits, including those without an image."""
    for split in ("train", "test"):
        for label in range(CLASSES):
            yield root / split / class_name(label)


def image_files(root: Path) -> dict[str, Path]:
    """Returns every image file that exists: path relative to `root` -> path. Raises `OSError`."""
    images: dict[str, Path] = {}
    for split in ("train", "test"):
        for folder in os.scandir(root / split):
            if folder.is_dir():
                for name in os.listdir(folder.path):
                    images[f"{split}/{folder.name}/{name}"] = root / split / folder.name / name
    return images


def make(
    directory: Path,
    *,
    n_train: int = 10_000,
    n_test: int = 1_000,
    seed: int = SEED,
    threads: int | None = None,
    progress: files.OnProgress = files.silent,
    stop: files.Stop = files.never,
) -> None:
    """Makes both splits under `directory`, which must exist.

    Complete files that are there already are kept.

    The same `seed` gives the same bytes, whatever `threads` is (one for each core if None), with
    the same NumPy, OpenCV and simplejpeg. Labels are balanced (as far as n divides by 100) and
    shuffled.

    Raises `JobStopped` if `stop()` turned true (asked after every `IMAGES_A_CHUNK`), `DataError` if
    the disk is full or the files cannot be written. What was made until then stays, and the next
    call continues from there.
    """
    n = n_train + n_test
    # Before the list of files to make: for millions of images that takes minutes and 2 GB.
    there = sum(len(os.listdir(folder)) for folder in folders(directory) if folder.is_dir())
    files.ensure_space(directory, max(n - there, 0) * BYTES_AN_IMAGE + 1_000_000)
    todo = [job for job in _jobs(directory, n_train, n_test, seed) if not _complete(job[0])]
    done = n - len(todo)
    with files.writing(directory):
        for folder in folders(directory):
            folder.mkdir(parents=True, exist_ok=True)
    # Imported here: it imports OpenCV, which the dashboard does not need.
    from vitprof.datasets import scenes

    # Computed once, not by each thread.
    scenes.fields()

    def chunk(start: int) -> int:
        jobs = todo[start : start + IMAGES_A_CHUNK]
        for path, label, entropy in jobs:
            encoded = scenes.encode(scenes.draw(label, np.random.default_rng(entropy)))
            with files.writing(path):
                path.write_bytes(encoded)
        return len(jobs)

    def report() -> None:
        message = f"making photos: {done:,} of {n:,}"
        activity = "the data set photos was being made; the images made so far are kept"
        files.report(progress, stop, done / max(n, 1), message, activity)

    report()
    # Threads help: OpenCV, NumPy and simplejpeg release the GIL in the expensive parts.
    # An error ends `map`, which cancels the rest.
    with ThreadPoolExecutor(threads or job_cores(), "vitprof-photos") as pool:
        for size in pool.map(chunk, range(0, len(todo), IMAGES_A_CHUNK)):
            done += size
            report()


def _jobs(
    directory: Path, n_train: int, n_test: int, seed: int
) -> Iterator[tuple[Path, int, tuple[int, int, int]]]:
    """Yields the file, the label and the random stream of each image."""
    for stream, (split, n) in enumerate((("train", n_train), ("test", n_test))):
        balanced = np.arange(n) % CLASSES
        labels = np.random.default_rng((seed, stream)).permutation(balanced).tolist()
        for i, label in enumerate(labels):
            path = directory / split / class_name(label) / f"{split}-{i:06d}.jpg"
            yield path, label, (seed, stream, 1 + i)


def _complete(path: Path) -> bool:
    """Returns whether a file of an earlier try is complete: it ends with JPEG's end-of-image
    marker.

    The marker occurs nowhere else in a file.
    """
    try:
        with path.open("rb") as file:
            file.seek(-len(END_OF_IMAGE), os.SEEK_END)
            return file.read() == END_OF_IMAGE
    except OSError:
        return False


def unreadable(path: Path | str, reason: object) -> SampleError:
    """Returns the error to raise for an image file that cannot be used."""
    return SampleError(
        f"{path} cannot be read ({reason}); skip unreadable samples, or delete the data set's directory: it is made "
        "again"
    )
