"""Tables of a user's own: which columns have what, and samples by the paths of their files."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitprof.forms.contract import Found, Refuse, counted
from vitprof.forms.gate import Gate
from vitprof.forms.image_files import SUFFIXES

PATH = ("path", "file", "filename", "image", "image_path")
"""Usual names of a column of paths, the likeliest first."""
LABEL = ("label", "class", "target", "category")
"""Usual names of a column of labels."""


def column(
    role: str,
    usual: Sequence[str],
    names: Sequence[str],
    options: Mapping[str, str],
    refuse: Refuse,
) -> str:
    """Returns the column for a role: the one given, else the first of the usual names that there
    is.
    """
    name = options.get(role) or next((name for name in usual if name in names), "")
    if name not in names:
        asked = f"no column {name!r}" if name else f"no column for {role}"
        if not names:
            refuse("it is empty: its first line names the columns, as path,label")
        refuse(f"it has {asked}; choose with {role}= one of {', '.join(names)}")
    return name


PATTERN = re.compile(r"(?P<before>[^{}]*)\{(?P<name>[^{}]+)\}(?P<after>[^{}]*)")
"""A path around the value of a column: `train/{id}.jpg`."""


@dataclass(frozen=True)
class PathColumn:
    """The column that has the paths of files, or a part of each."""

    name: str
    before: str = ""
    after: str = ""

    def path(self, value: Any) -> Any:
        """Returns the path by a cell of the column, which may be a number; an empty one as it is."""
        if value in (None, ""):
            return value
        return f"{self.before}{value}{self.after}"


def path_column(names: Sequence[str], options: Mapping[str, str], refuse: Refuse) -> PathColumn:
    """Returns the column of paths: `path=COLUMN`, or `path=train/{COLUMN}.jpg`."""
    pattern = PATTERN.fullmatch(options.get("path", ""))
    if pattern is None:
        return PathColumn(column("path", PATH, names, options, refuse))
    name = column("path", PATH, names, {"path": pattern["name"]}, refuse)
    return PathColumn(name, pattern["before"], pattern["after"])


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
    return kept, [f"{counted(left, 'row')} without a path or a label: left out"]


def paths_in(top: Path, of: PathColumn, rows: Iterable[tuple[Any, Any]], gate: Gate) -> Found:
    """Returns the image files of a table's rows (cell of the column `of`, label); paths are relative
    to `top`.
    """
    labelled, notes = with_labels((of.path(cell), label) for cell, label in rows)
    samples = []
    missing = set()
    for text, label in labelled:
        gate.alive()
        path = top / str(text)
        samples.append(("", label, path))
        # Of one that may not be read it is not even told whether it is there.
        if gate.is_inside(path) and not os.path.isfile(path):
            missing.add(path)
    samples = [sample for sample in samples if sample[2] not in missing]
    if missing:
        files = counted(len(missing), "file")
        first = min(missing)
        to_do = "".join(f"; write {words}" for words in _elsewhere(top, of, first, gate))
        notes.append(f"{files} missing, the first: {first}{to_do}")
    return Found(samples, gate.read, notes, in_place=True)


MOST_FOLDERS = 100
"""Folders beside a table that are searched for its files."""


def _elsewhere(top: Path, of: PathColumn, missing: Path, gate: Gate) -> Iterator[str]:
    """Yields what to write where the file that a row means has an extension that the table leaves
    out, or is in a folder beside the table.
    """
    try:
        below = missing.relative_to(top)
        folders = sorted(entry.name for entry in top.iterdir() if entry.is_dir())
    except (OSError, ValueError):
        return
    for folder in ("", *folders[:MOST_FOLDERS]):
        for suffix in ("", *sorted(SUFFIXES)):
            file = top / folder / f"{below}{suffix}"
            if gate.is_inside(file) and os.path.isfile(file):
                before = f"{folder}/" if folder else ""
                yield f"path={before}{of.before}{{{of.name}}}{of.after}{suffix}"
                return


def encoded(value: Any, top: Path, gate: Gate) -> bytes:
    """Returns the bytes of an image file from a cell: bytes, or the struct of Hugging Face's Image
    feature, which may name a file instead, from the folder `top` on.
    """
    if isinstance(value, dict):
        value = value.get("bytes") or gate.read(top / str(value.get("path")))
    if not isinstance(value, bytes):
        raise ValueError(f"it holds {type(value).__name__}, not the bytes of an image file")
    return value


def cells_found(
    rows: Iterable[tuple[Any, Any]], read: Callable[[Any], bytes], opened: Any = None
) -> Found:
    """Returns the samples of rows (key, label) whose cells are images."""
    labelled, notes = with_labels(rows)
    return Found([("", label, key) for key, label in labelled], read, notes, opened)
