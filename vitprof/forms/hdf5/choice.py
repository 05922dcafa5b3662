"""Which datasets of an HDF5 file are the images and labels of a split, by names and shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from vitprof.forms.contract import TEST_SPLITS, Refuse
from vitprof.forms.hdf5.refusal import CHOOSE, described
from vitprof.forms.image_files import suffix

if TYPE_CHECKING:
    import h5py

IMAGE_WORDS = frozenset(("images", "image", "img", "imgs", "x", "data", "pixels"))
LABEL_WORDS = frozenset(("labels", "label", "y", "target", "targets", "class"))
SPLIT_WORDS = {"train": "train", "training": "train", "testing": "test"}
SPLIT_WORDS |= {name: name for name in TEST_SPLITS}
"""Word in a dataset's name -> the split that it means."""
WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
"""A word of a name such as train/images, X_train, trainX or test_set_y."""
JOINED = re.compile(r"([xy])(train|test|valid|val)")
"""Two words that people write as one."""
NAMED = 20
"""Datasets that a message names."""


@dataclass(frozen=True)
class Pair:
    """The images of a split, and their labels."""

    split: str
    """"train", one of `TEST_SPLITS`, or "" where the file says none."""
    images: h5py.Dataset
    labels: h5py.Dataset


@dataclass(frozen=True)
class Candidates:
    """The names of datasets that may be the images of a split, and its labels."""

    images: Sequence[str]
    labels: Sequence[str]

    @property
    def complete(self) -> bool:
        """Returns whether there are both."""
        return bool(self.images and self.labels)


class Choice:
    """The datasets of a file, and which of them are chosen."""

    def __init__(self, file: h5py.File, options: Mapping[str, str], refuse: Refuse) -> None:
        import h5py

        self.notes: list[str] = []
        """What was left out, a line each."""
        self._options = options
        self._refuse = refuse
        self._file = file
        self._datasets: dict[str, h5py.Dataset] = {}

        def keep(name: str, item: h5py.HLObject) -> None:
            if isinstance(item, h5py.Dataset):
                self._datasets[name] = item

        file.visititems(keep)

    def pairs(self) -> list[Pair]:
        """Returns the images and labels of each split; of one alone, they are those of the file."""
        if self._options.get("images") or self._options.get("labels"):
            return [self._pair("", self._given())]
        by_split = {split: self._candidates(split) for split in ("", "train", *TEST_SPLITS)}
        complete = {split: found for split, found in by_split.items() if found.complete}
        if not complete:
            self._refuse_for_lack(by_split)
        if "" in complete and len(complete) > 1:
            names = self._named([name for found in complete.values() for name in found.images])
            self._refuse(f"several of its datasets may be the images: {names}; {CHOOSE}")
        if len(complete) > 1 and "train" not in complete:
            self._refuse(f"it has the splits {', '.join(complete)}, and none to train on; {CHOOSE}")
        self._note_what_is_left(by_split, complete)
        if len(complete) == 1:
            (found,) = complete.values()
            return [self._pair("", found)]
        return [self._pair(split, found) for split, found in complete.items()]

    def _given(self) -> Candidates:
        """Returns the candidates where images=, labels= or both are given. What is not given is of
        the same split.
        """
        images = self._options.get("images", "")
        labels = self._options.get("labels", "")
        for role, name in (("images", images), ("labels", labels)):
            if name and name not in self._datasets:
                self._refuse(f"it has no dataset {name!r}; {self._one_of(role)}")
        of_split = self._candidates(_split_of(images or labels))
        found = Candidates(
            [images] if images else of_split.images, [labels] if labels else of_split.labels
        )
        if not found.complete:
            self._refuse_for_lack({"": found})
        return found

    def _candidates(self, split: str) -> Candidates:
        images = []
        labels = []
        for name, dataset in self._datasets.items():
            if _split_of(name) != split or not dataset.shape:
                continue
            role = _role_of(name)
            if role == "labels":
                labels.append(name)
            elif role == "images" and _may_be_images(dataset):
                images.append(name)
        return Candidates(images, labels)

    def _pair(self, split: str, found: Candidates) -> Pair:
        """Returns the only pair of candidates, or the only one of as many samples."""
        pairs = [(images, labels) for images in found.images for labels in found.labels]
        if len(pairs) > 1:
            pairs = [pair for pair in pairs if self._fit(*pair)]
        if len(pairs) != 1:
            role = "images" if len(found.images) > 1 else "labels"
            names = self._named(found.images if role == "images" else found.labels)
            self._refuse(f"several of its datasets may be the {role}: {names}; {CHOOSE}")
        images, labels = pairs[0]
        for name in (images, labels):
            self._ensure_inside(name)
        return Pair(split, self._datasets[images], self._datasets[labels])

    def _fit(self, images: str, labels: str) -> bool:
        n = self._datasets[images].shape[0]
        numbers = self._datasets[labels]
        return numbers.size == n or n in numbers.shape

    def _ensure_inside(self, name: str) -> None:
        import h5py

        link = self._file.get(name, getlink=True)
        item = self._datasets[name]
        if isinstance(link, h5py.ExternalLink) or item.external or item.is_virtual:
            self._refuse(
                f"{name} is in another file, which a link in this one names: it is not followed"
            )

    def _note_what_is_left(
        self, by_split: Mapping[str, Candidates], complete: Mapping[str, Candidates]
    ) -> None:
        tested = next((split for split in TEST_SPLITS if split in complete), "")
        for split, found in by_split.items():
            if split in complete and split in TEST_SPLITS and split != tested:
                self.notes.append(f"{found.images[0]} is left out: {tested} is what is tested on")
            elif found.images and not found.labels and split:
                self.notes.append(f"{found.images[0]} has no labels: left out")

    def _refuse_for_lack(self, by_split: Mapping[str, Candidates]) -> NoReturn:
        images = [name for found in by_split.values() for name in found.images]
        labels = [name for found in by_split.values() for name in found.labels]
        if not self._datasets:
            self._refuse("it has no dataset")
        if images and labels:
            both = f"{self._named(images)} and {self._named(labels)}"
            self._refuse(f"{both} are of different splits; {CHOOSE}")
        role = "labels" if images else "images"
        self._refuse(f"no dataset's name says that it has the {role}; {self._one_of(role)}")

    def _one_of(self, role: str) -> str:
        return f"choose with {role}= one of {self._named(list(self._datasets))}"

    def _named(self, names: Sequence[str]) -> str:
        listed = [described(self._datasets[name]) for name in names[:NAMED]]
        more = [f"and {len(names) - NAMED:,} more"] if len(names) > NAMED else []
        return ", ".join([*listed, *more])


def _words_of(name: str) -> list[str]:
    words: list[str] = []
    for word in WORD.findall(name):
        joined = JOINED.fullmatch(word.lower())
        words += joined.groups() if joined else [word.lower()]
    return words


def _split_of(name: str) -> str:
    """Returns "train", one of `TEST_SPLITS`, or "" where a name says neither."""
    return next((SPLIT_WORDS[word] for word in _words_of(name) if word in SPLIT_WORDS), "")


def _role_of(name: str) -> str:
    """Returns "images" or "labels", by the last word of a name that says one: image_labels are
    labels. Returns "" for others.
    """
    for word in reversed(_words_of(name)):
        if word in LABEL_WORDS:
            return "labels"
        if word in IMAGE_WORDS:
            return "images"
    return ""


def _may_be_images(data: h5py.Dataset) -> bool:
    """Returns whether a dataset may hold images: numbers by at least two axes, or image files."""
    if data.dtype.kind in "uifb":
        return len(data.shape) > 1
    if data.dtype.kind not in "OSV" or data.dtype.names is not None or not data.size:
        return False
    if data.external or data.is_virtual:
        return True  # it is refused later, without a look at the other file
    first = data[(0,) * data.ndim]
    if isinstance(first, str):
        return False
    return bool(suffix(bytes(memoryview(first))))
