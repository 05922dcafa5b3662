"""Data sets whose samples are image files: class folders, and tables of paths and labels."""

import csv
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitprof import formats
from vitprof.forms.contract import TEST_SPLITS
from vitprof.forms.image_files import SUFFIXES
from vitprof.sets.samples import (
    LABEL,
    PATH,
    Listing,
    bytes_of,
    columns,
    links,
    listing,
    with_labels,
)
from vitprof.sets.specs import Spec, is_remote, wrong


def _images(top: Path) -> Iterator[Path]:
    """Yields the image files below a folder, in order. Links are followed, each folder once."""
    seen: set[str] = set()
    for root, below, files in os.walk(top, followlinks=True):
        real = os.path.realpath(root)
        below.sort()
        if real in seen:
            # A link back to a folder above would otherwise be followed for ever.
            below.clear()
            continue
        seen.add(real)
        yield from (
            Path(root, name) for name in sorted(files) if Path(name).suffix.lower() in SUFFIXES
        )


AT_ONCE = 32
"""Files on a network that are read at the same time."""


def _remote_set(text: str, spec: Spec) -> Listing:
    """Lists class folders on a network, as `train/cat/1.jpg` or `cat/1.jpg` below the URL."""
    import fsspec  # type: ignore[import-untyped]

    system, top = fsspec.core.url_to_fs(spec.path)
    found = list[tuple[str, str, str]]()
    for path in sorted(system.find(top)):
        *folders, name = path.removeprefix(top).strip("/").split("/")
        split = ""
        if len(folders) > 1 and folders[0] in ("train", *TEST_SPLITS):
            split = folders.pop(0)
        if folders and Path(name).suffix.lower() in SUFFIXES:
            found.append((split, folders[0], path))
    if not found:
        raise wrong(
            text, f"{spec.path} has no folder for each class with images, as {spec.path}/cat/1.jpg"
        )
    made = listing(
        found,
        system.cat_file,
        in_place=False,
        notes=["its files are copied to vitprof's home once"],
    )
    return replace(made, threads=AT_ONCE)


def folder_set(text: str, spec: Spec) -> Listing:
    if is_remote(spec.path):
        return _remote_set(text, spec)
    top = Path(spec.path)
    if not top.is_dir():
        raise wrong(text, f"{top} is not a folder")
    splits = [name for name in ("train", *TEST_SPLITS) if (top / name).is_dir()]
    parts = [("", top)]
    if "train" in splits:
        parts = [(name, top / name) for name in splits]
    found = list[tuple[str, str, Path]]()
    notes = list[str]()
    for split, root in parts:
        folders = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
        if not folders:
            raise wrong(
                text, f"{root} has no folders, one for the images of each class, as {root}/cat"
            )
        for name in folders:
            images = list(_images(root / name))
            found += [(split, name, path) for path in images]
            if not images:
                notes.append(f"{root / name} has no image: no class")
    real = top.resolve()
    out = sum(not path.resolve().is_relative_to(real) for _, _, path in found)
    if out:
        notes.append(f"{links(out)} out of {top}: followed")
    return listing(found, bytes_of, in_place=True, notes=notes)


def of_paths(top: Path, rows: Iterable[tuple[str, Any]]) -> Listing:
    """Lists the image files of a table's rows (path, label); paths are relative to `top`."""
    labelled, notes = with_labels(rows)
    found = [("", label, top / path) for path, label in labelled]
    missing = {path for _, _, path in found if not path.is_file()}
    found = [sample for sample in found if sample[2] not in missing]
    if missing:
        notes.append(f"{formats.count(len(missing), 'file')} missing, the first: {min(missing)}")
    return listing(found, bytes_of, in_place=True, notes=notes)


def csv_set(text: str, spec: Spec) -> Listing:
    # utf-8-sig: spreadsheets write a byte order mark in front of the first column's name.
    with open(spec.path, newline="", encoding="utf-8-sig") as file:
        delimiter = max(",;\t", key=file.readline().count)
        file.seek(0)
        reader = csv.DictReader(file, delimiter=delimiter)
        path, label = columns(text, list(reader.fieldnames or ()), spec, path=PATH, label=LABEL)
        return of_paths(Path(spec.path).parent, ((row[path], row[label]) for row in reader))
