"""The samples of a user's own data set, listed: each an image file, or the bytes of one."""

import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitprof import formats
from vitprof.sets.specs import Spec, wrong

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"}
TEST_SPLITS = ("val", "valid", "validation", "test")
HELD_OUT = 10
"""Where a set has no test split: each tenth sample of a class is one."""
MAGIC = {b"\xff\xd8\xff": ".jpg", b"\x89PNG": ".png", b"GIF8": ".gif", b"BM": ".bmp"}
MAGIC |= {b"II*\0": ".tif", b"MM\0*": ".tif"}


class Entry(NamedTuple):
    """A sample."""

    train: bool
    label: int
    key: Any
    """What `Listing.read` takes: the path of a file where it is one."""


@dataclass
class Listing:
    """All samples of a data set."""

    entries: list[Entry]
    classes: list[str]
    """Names, in the order of the labels."""
    read: Callable[[Any], bytes]
    """Returns the bytes of an image file. Raises `OSError`, `ValueError`."""
    in_place: bool
    """Whether each key is the path of a file that holds this sample alone: it is used where it
    is."""
    notes: list[str] = field(default_factory=list)
    """What was left out and why, a line each."""
    opened: Any = None
    """What `close` closes."""
    threads: int = 1
    """Samples to read at the same time where each is a wait."""

    def close(self) -> None:
        if self.opened is not None:
            self.opened.close()


Found = Iterable[tuple[str, str, Any]]
"""(split, label, key) of samples; the split is "train", one of `TEST_SPLITS`, or "" where it is not
known."""


def listing(
    found: Found,
    read: Callable[[Any], bytes],
    *,
    in_place: bool,
    notes: Iterable[str] = (),
    opened: Any = None,
) -> Listing:
    """Returns samples with their labels as numbers, in order: of numbers if all labels are, else of
    the alphabet.

    Samples of the splits "train" and the first of `TEST_SPLITS` are taken. Where there are not
    both, all are, and each tenth of a class is for testing.
    """
    samples = list(found)
    classes = _in_order({label for _, label, _ in samples})
    number = {name: at for at, name in enumerate(classes)}
    splits = {split for split, _, _ in samples}
    test = None
    if "train" in splits:
        test = next((name for name in TEST_SPLITS if name in splits), None)
    if test:
        entries = [
            Entry(split == "train", number[label], key)
            for split, label, key in samples
            if split in ("train", test)
        ]
        return Listing(entries, classes, read, in_place, [*notes], opened)
    entries = []
    seen = dict.fromkeys(classes, 0)
    for _, label, key in samples:
        seen[label] += 1
        held_out = seen[label] % HELD_OUT == 0
        entries.append(Entry(not held_out, number[label], key))
    if len(entries) > 1 and all(entry.train for entry in entries[1:]):
        # Fewer than ten samples of each class: one has to be for testing.
        entries[-1] = entries[-1]._replace(train=False)
    more = "each tenth sample of a class is kept for testing: it has no test split"
    return Listing(entries, classes, read, in_place, [*notes, more], opened)


def _in_order(labels: set[str]) -> list[str]:
    if all(re.fullmatch(r"-?\d+", label) for label in labels):
        # By the text, too: 1 and 01 are two classes.
        return sorted(labels, key=lambda text: (int(text), text))
    return sorted(labels)


def with_labels(rows: Iterable[tuple[Any, Any]]) -> tuple[list[tuple[Any, str]], list[str]]:
    """Returns the rows (key, label) that have both, labels as texts, and a note on the others."""
    every = list(rows)
    kept = [
        (key, str(label))
        for key, label in every
        if key not in (None, "") and label not in (None, "")
    ]
    left = len(every) - len(kept)
    if not left:
        return kept, []
    return kept, [f"{formats.count(left, 'row')} without a path or a label: left out"]


def links(n: int) -> str:
    """Returns how many links lead somewhere, in words."""
    return f"{n:,} link leads" if n == 1 else f"{n:,} links lead"


def suffix(data: bytes) -> str:
    """Returns the suffix for an image file's bytes; "" where they are not those of a format that is
    known.
    """
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return ".webp"
    return next((name for magic, name in MAGIC.items() if data.startswith(magic)), "")


def bytes_of(path: Any) -> bytes:
    return Path(path).read_bytes()


PATH = ("path", "file", "filename", "image", "image_path")
"""Usual names of a column of paths, the likeliest first."""
LABEL = ("label", "class", "target", "category")
"""Usual names of a column of labels."""


def columns(text: str, names: Sequence[str], spec: Spec, **usual: Sequence[str]) -> list[str]:
    """Returns the column for each role: the one given, else the first of the usual names that there
    is.
    """
    chosen = []
    for role, candidates in usual.items():
        name = spec.options.get(role) or next((name for name in candidates if name in names), "")
        if name not in names:
            asked = f"no column {name!r}" if name else f"no column for {role}"
            raise wrong(text, f"it has {asked}; choose with {role}= one of {', '.join(names)}")
        chosen.append(name)
    return chosen


def encoded(value: Any) -> bytes:
    """Returns the bytes of an image file from a cell: bytes, or the struct of Hugging Face's Image
    feature.
    """
    if isinstance(value, dict):
        value = value.get("bytes") or bytes_of(value["path"])
    if not isinstance(value, bytes):
        raise ValueError(f"it holds {type(value).__name__}, not the bytes of an image file")
    return value


def png_of(pixels: Any) -> bytes:
    """Returns a PNG file of a PIL image, or of an array or tensor of uint8: (H, W), (H, W, C) or
    (C, H, W).
    """
    from PIL import Image

    if not isinstance(pixels, Image.Image):
        array = np.asarray(pixels)
        if array.dtype != np.uint8 or array.ndim not in (2, 3):
            raise ValueError(
                f"a sample is {array.dtype} {array.shape}, not an image: PIL's, or uint8 (H, W, 3)"
            )
        if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3):
            array = array.transpose(1, 2, 0)
        if array.ndim == 3 and array.shape[2] == 1:
            # Pillow takes grey pixels without an axis of colours.
            array = array[..., 0]
        return png_file(array)
    return _png(pixels)


def png_file(pixels: NDArray[np.uint8]) -> bytes:
    """Returns a PNG file of pixels: (H, W), (H, W, 3), or (H, W, 4) with transparency."""
    from PIL import Image

    return _png(Image.fromarray(pixels))


def _png(image: "Image.Image") -> bytes:
    file = io.BytesIO()
    # The fastest level: these files are made once, and read all the time.
    image.save(file, "PNG", compress_level=1)
    return file.getvalue()
