"""The samples of a user's own data set, listed: each an image file, or the bytes of one."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vitprof.forms.contract import TEST_SPLITS, Found
from vitprof.forms.folder import links
from vitprof.forms.gate import Gate

AS_IT_IS = {"JPEG": ".jpg", "PNG": ".png", "WEBP": ".webp"}
"""Formats that every decoder here decodes -> suffix; others are stored as PNG."""
HELD_OUT = 10
"""Where a set has no test split: each tenth sample of a class is one."""


class ListedSample(NamedTuple):
    """A sample."""

    train: bool
    label: int
    key: Any
    """What `Listing.read` takes: the path of a file where it is one."""


@dataclass
class Listing:
    """All samples of a data set."""

    samples: list[ListedSample]
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


def listing_of(found: Found, gate: Gate) -> Listing:
    """Returns samples with their labels as numbers, in order: of numbers if all labels are, else of
    the alphabet. Files that may not be read are left out.

    Samples of the splits "train" and the first of `TEST_SPLITS` are taken. Where there are not
    both, all are, and each tenth of a class is for testing.
    """
    notes = list(found.notes)
    listed = found.samples
    if found.in_place:
        listed = [sample for sample in listed if gate.is_inside(sample[2])]
    classes = _in_order({label for _, label, _ in listed})
    number = {name: at for at, name in enumerate(classes)}
    splits = {split for split, _, _ in listed}
    test = None
    if "train" in splits:
        test = next((name for name in TEST_SPLITS if name in splits), None)
    if test:
        samples = [
            ListedSample(split == "train", number[label], key)
            for split, label, key in listed
            if split in ("train", test)
        ]
    else:
        samples = _divided((number[label], key) for _, label, key in listed)
    if samples and not test:
        notes.append("each tenth sample of a class is kept for testing: it has no test split")
    left = len(found.samples) - len(listed)
    if left:
        notes.append(f"{links(left)} out of the folders that may be read: left out")
    return Listing(samples, classes, found.read, found.in_place, notes, found.opened, found.threads)


def _divided(labelled: Iterable[tuple[int, Any]]) -> list[ListedSample]:
    """Returns samples, given as (label, key), of which each tenth of a class is for testing."""
    samples = []
    seen = Counter[int]()
    for label, key in labelled:
        seen[label] += 1
        held_out = seen[label] % HELD_OUT == 0
        samples.append(ListedSample(not held_out, label, key))
    if len(samples) > 1 and all(sample.train for sample in samples[1:]):
        # Fewer than ten samples of each class: one has to be for testing.
        samples[-1] = samples[-1]._replace(train=False)
    return samples


def _in_order(labels: set[str]) -> list[str]:
    if all(re.fullmatch(r"-?\d+", label) for label in labels):
        # By the text, too: 1 and 01 are two classes.
        return sorted(labels, key=lambda text: (int(text), text))
    return sorted(labels)
