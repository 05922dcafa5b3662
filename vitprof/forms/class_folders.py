"""What in a tree of class folders is no class, and no image of one."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath

from vitprof.forms.contract import Refuse

IMAGES = {"image", "images", "img", "imgs", "jpegimages", "input", "inputs"}
"""Usual names of the folder of a segmentation's images, in lower case."""
MASKS = {
    "mask",
    "masks",
    "gt",
    "groundtruth",
    "ground_truth",
    "annotation",
    "annotations",
    "label",
    "labels",
    "segmentation",
    "segmentations",
    "segmentationclass",
    "segmentationobject",
}
"""Usual names of the folder of its masks."""
OF_A_MASK = re.compile(
    r"[-_. ]?(mask|masks|seg|segmentation|label|labels|gt|matte)$", re.IGNORECASE
)
"""How the name of a mask ends after that of its image."""
PAIRED = 0.5
"""Share of the masks for which an image has the same name, from which on they are taken as masks."""


class LeftOutFolders:
    """The folders below a data set's that are left out, and why."""

    def __init__(self, top: str | os.PathLike[str]) -> None:
        self._top = os.path.realpath(top)
        # by where they really are: links may lead to one on several ways
        self._hidden: dict[str, str] = {}
        self._loops: dict[str, str] = {}

    def kept(self, folder: str | os.PathLike[str], names: Iterable[str]) -> list[str]:
        """Returns those of the folders `names` in `folder` whose images count."""
        kept = list[str]()
        for name in names:
            path = os.path.join(folder, name)
            real = os.path.join(os.path.realpath(folder), name)
            if name.startswith("."):
                self._hidden.setdefault(real, path)
            elif self._leads_back(path):
                self._loops.setdefault(real, path)
            else:
                kept.append(name)
        return kept

    def _leads_back(self, path: str) -> bool:
        """Returns whether a path is a link to the data set, or to a folder above one of both."""
        if not os.path.islink(path):
            return False
        target = os.path.realpath(path)
        here = os.path.realpath(os.path.dirname(path))
        return any(os.path.commonpath([target, below]) == target for below in (self._top, here))

    def notes(self) -> list[str]:
        """Returns what was left out and what to do, a line each."""
        notes = list[str]()
        if self._hidden:
            notes.append(hidden_note(list(self._hidden.values())))
        for path in list(self._loops.values())[:1]:
            links = "a link leads" if len(self._loops) == 1 else f"{len(self._loops):,} links lead"
            again = "back to a folder above, whose images would count again"
            notes.append(f"{links} {again}: left out; to remove it: rm {path}")
        return notes


def hidden_note(folders: Sequence[str]) -> str:
    """Returns a line on hidden folders that were left out."""
    n = len(folders)
    words = "1 hidden folder" if n == 1 else f"{n:,} hidden folders"
    return f"{words} ({folders[0]}): left out; give it a name without the dot if its images count"


def ensure_classes(
    root: str | os.PathLike[str], images: Mapping[str, Sequence[PurePath]], refuse: Refuse
) -> list[str]:
    """Refuses folders of images and of their masks, which are no classes. `images`: those of each
    folder in `root`.

    Returns a note where only the names of the folders say so.
    """
    named = next((name for name in images if name.lower() in IMAGES), "")
    masks = next((name for name in images if name.lower() in MASKS), "")
    if not (named and masks and images[named] and images[masks]):
        return []
    stems = {path.stem for path in images[named]}
    of_masks = [path.stem for path in images[masks]]
    paired = sum(stem in stems or OF_A_MASK.sub("", stem) in stems for stem in of_masks)
    alone = os.path.join("one", named)
    to_do = f"mkdir one && ln -s {os.path.join(root, named)} {alone}, then name folder:one"
    if paired >= PAIRED * len(of_masks):
        refuse(
            f"{named} in {root} has images and {masks} their masks, which are no classes; "
            f"for the images alone: {to_do}"
        )
    return [f"{named} and {masks} are taken as two classes; if these are masks: {to_do}"]


def one_class_note(images: Mapping[str, Sequence[PurePath]]) -> list[str]:
    """Returns a note where all images are of one class, and in folders below it: the folder above those
    of the classes was named. `images`: those of each folder.
    """
    classes = [name for name, paths in images.items() if paths]
    if len(classes) != 1:
        return []
    name = classes[0]
    folders = {path.parent for path in images[name]}
    above = {folder.parent for folder in folders}
    if len(folders) < 2 or len(above) != 1:
        return []
    classes_in = above.pop()
    return [
        f"all images are of one class, {name}; if the {len(folders):,} folders in {classes_in} are "
        f"the classes, name folder:{classes_in}"
    ]
