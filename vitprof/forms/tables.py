"""Tables of a user's own: which columns have what, and samples by the paths of their files."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vitprof.forms.contract import Found, Refuse
from vitprof.forms.gate import Gate

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
        refuse(f"it has {asked}; choose with {role}= one of {', '.join(names)}")
    return name


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
    rows_left = "1 row" if left == 1 else f"{left:,} rows"
    return kept, [f"{rows_left} without a path or a label: left out"]


def paths_in(top: Path, rows: Iterable[tuple[Any, Any]], gate: Gate) -> Found:
    """Returns the image files of a table's rows (path, label); paths are relative to `top`."""
    labelled, notes = with_labels(rows)
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
        files = "1 file" if len(missing) == 1 else f"{len(missing):,} files"
        notes.append(f"{files} missing, the first: {min(missing)}")
    return Found(samples, gate.read, notes, in_place=True)


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
