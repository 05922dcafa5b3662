"""Samples in files of their own: image files, or files of bare pixels."""

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from vitprof.forms.class_folders import (
    LeftOutFolders,
    ensure_classes,
    hidden_note,
    one_class_note,
)
from vitprof.forms.contract import TEST_SPLITS, Found, Refuse, Unreadable
from vitprof.forms.gate import Gate, is_special

READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""Without O_NONBLOCK, opening a pipe waits for somebody who writes."""


def write_file(path: str, content: bytes | memoryview) -> None:
    """Writes a small file. Raises `OSError`."""
    with io.FileIO(path, "w") as file:
        remaining = memoryview(content)
        while remaining:
            # A write may be cut short by a signal.
            remaining = remaining[file.write(remaining) :]


def read_file(path: str) -> bytes:
    """Returns what is in a small file: it is opened, read whole and closed.

    Raises `OSError`, and `ValueError` where it is empty or becomes shorter meanwhile.
    """
    descriptor = os.open(path, READ_FLAGS)
    try:
        size = os.fstat(descriptor).st_size
        content = os.read(descriptor, size)
    finally:
        os.close(descriptor)
    if not size:
        raise ValueError("is empty")
    if len(content) != size:
        raise ValueError(f"became shorter while it was read ({len(content):,} of {size:,} bytes)")
    return content


def read_rows(paths: Sequence[str], numbers: Sequence[int], rows: NDArray[np.uint8]) -> None:
    """Reads files of bare pixels, each straight into its row of `rows` (b, bytes).

    Raises `Unreadable` for a file that cannot be read, or is of another length.
    """
    n_bytes = rows.shape[1]
    batch = rows.reshape(-1).data
    # Receives a byte only if a file is too long.
    end = memoryview(bytearray(1))
    first = 0
    for number in numbers:
        try:
            descriptor = os.open(paths[number], READ_FLAGS)
            try:
                n_read = os.readv(descriptor, [batch[first : first + n_bytes], end])
            finally:
                os.close(descriptor)
        except OSError as error:
            raise Unreadable(number, f"cannot be read ({error.strerror or error})") from error
        if n_read != n_bytes:
            length = f"{n_read:,}"
            if n_read > n_bytes:
                length = f"more than {n_bytes:,}"
            raise Unreadable(number, f"is damaged ({length} bytes instead of {n_bytes:,})")
        first += n_bytes


# Image files of the user's own.


def images_below(top: Path, gate: Gate, left_out: LeftOutFolders) -> Iterator[Path]:
    """Yields what has the name of an image file below a folder, in order. Links are followed, each
    folder once. A link that leads nowhere is an image that cannot be read.
    """
    from vitprof.forms.image_files import SUFFIXES

    for path in gate.files_below(top, left_out.kept):
        if path.suffix.lower() in SUFFIXES:
            yield path


def find(path: str, options: Mapping[str, str], refuse: Refuse, gate: Gate) -> Found:
    """Returns the image files below a folder for each class."""
    top = Path(path)
    if not top.is_dir():
        refuse(f"{top} is not a folder")
    splits = [name for name in ("train", *TEST_SPLITS) if (top / name).is_dir()]
    parts = [("", top)]
    if "train" in splits:
        parts = [(name, top / name) for name in splits]
    samples: list[tuple[str, str, Path]] = []
    notes: list[str] = []
    special = 0
    left_out = LeftOutFolders(top)
    for split, root in parts:
        every = sorted(
            entry.name
            for entry in os.scandir(root)
            # Not entry.is_dir, which raises an error for a link in a circle.
            if os.path.isdir(entry.path) and gate.is_inside(entry.path)
        )
        folders = left_out.kept(root, every)
        if not folders:
            why = "".join(f"; {note}" for note in left_out.notes())
            refuse(f"{root} has no folders, one for the images of each class, as {root}/cat{why}")
        images = {name: list(images_below(root / name, gate, left_out)) for name in folders}
        notes += ensure_classes(root, images, refuse)
        notes += one_class_note(images)
        for name in folders:
            named = images[name]
            files = [path for path in named if not gate.is_inside(path) or not is_special(path)]
            special += len(named) - len(files)
            samples += [(split, name, path) for path in files]
            if not files:
                notes.append(f"{root / name} has no image: no class")
    notes += left_out.notes()
    if special:
        words = "1 named as an image is no file, but a pipe or a device"
        if special > 1:
            words = f"{special:,} named as images are no files, but pipes or devices"
        notes.append(f"{words}: left out")
    here = Gate((Path(os.path.realpath(top)),))
    out = sum(not here.is_inside(image) for _, _, image in samples)
    if out:
        notes.append(f"{links(out)} out of {top}: followed")
    return Found(samples, gate.read, notes, in_place=True)


def links(n: int) -> str:
    """Returns how many links lead somewhere, in words."""
    return f"{n:,} link leads" if n == 1 else f"{n:,} links lead"


AT_ONCE = 32
"""Files on a network that are read at the same time."""


def find_remote(url: str, refuse: Refuse) -> Found:
    """Returns the image files of class folders on a network, as `train/cat/1.jpg` or `cat/1.jpg`
    below the URL.
    """
    import fsspec  # type: ignore[import-untyped]

    from vitprof.forms.image_files import SUFFIXES

    system, top = fsspec.core.url_to_fs(url)
    samples: list[tuple[str, str, str]] = []
    hidden = list[str]()
    images: dict[str, list[PurePosixPath]] = {}
    for path in sorted(system.find(top)):
        *folders, name = path.removeprefix(top).strip("/").split("/")
        dotted = next((at for at, part in enumerate(folders) if part.startswith(".")), None)
        if dotted is not None:
            hidden.append("/".join(folders[: dotted + 1]))
            continue
        split = ""
        if len(folders) > 1 and folders[0] in ("train", *TEST_SPLITS):
            split = folders.pop(0)
        if folders and Path(name).suffix.lower() in SUFFIXES:
            samples.append((split, folders[0], path))
            images.setdefault(folders[0], []).append(PurePosixPath(path))
    if not samples:
        refuse(f"{url} has no folder for each class with images, as {url}/cat/1.jpg")
    notes = [*ensure_classes(url, images, refuse), "its files are copied to vitprof's home once"]
    if hidden:
        notes.append(hidden_note(list(dict.fromkeys(hidden))))
    return Found(samples, system.cat_file, notes, threads=AT_ONCE)
