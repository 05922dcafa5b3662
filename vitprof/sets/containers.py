"""Data sets that keep many samples in a file, or make them: Parquet, HDF5, LMDB, tar shards, Arrow,
a function.
"""

import json
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitprof import errors
from vitprof.forms.image_files import png_of, suffix
from vitprof.sets.files import of_paths
from vitprof.sets.samples import (
    LABEL,
    PATH,
    SUFFIXES,
    Listing,
    columns,
    encoded,
    listing,
    with_labels,
)
from vitprof.sets.specs import Spec, function_of, shards_of, wrong

IMAGE = ("image", "bytes")
"""Usual names of a Parquet column of images' bytes."""


def parquet_set(text: str, spec: Spec) -> Listing:
    """Reads a table of images' bytes, or of paths of image files where it has no column of bytes."""
    from pyarrow import parquet

    file = parquet.ParquetFile(spec.path)
    names = file.schema_arrow.names
    (label,) = columns(text, names, spec, label=LABEL)
    has_images = any(name in names for name in (*IMAGE, spec.options.get("image")))
    if "path" in spec.options or not has_images:
        (path,) = columns(text, names, spec, path=PATH)
        table = file.read(columns=[path, label])
        rows = zip(table[path].to_pylist(), table[label].to_pylist(), strict=True)
        return of_paths(Path(spec.path).parent, rows)
    (image,) = columns(text, names, spec, image=IMAGE)
    labels = file.read(columns=[label])[label].to_pylist()
    groups = [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)]
    keys = [(group, row) for group, rows in enumerate(groups) for row in range(rows)]
    held: dict[int, list[Any]] = {}

    def read(key: tuple[int, int]) -> bytes:
        group, row = key
        if group not in held:
            # Keys are requested in order, so one row group in memory is enough.
            held.clear()
            held[group] = file.read_row_group(group, columns=[image])[image].to_pylist()
        return encoded(held[group][row])

    labelled, notes = with_labels(zip(keys, labels, strict=True))
    return listing((("", label, key) for key, label in labelled), read, in_place=False, notes=notes)


MAGIC_BYTES = 16
"""The first bytes of a value that tell an image file; the longest that `suffix` looks at are 12."""
UNNAMED = "0"
"""Label of a key without a class."""


def lmdb_set(text: str, spec: Spec) -> Listing:
    """Reads an LMDB whose values are image files; a key CLASS/NAME gives the label."""
    import lmdb

    try:
        store = lmdb.open(
            spec.path,
            readonly=True,
            lock=False,
            readahead=False,
            create=False,
            subdir=os.path.isdir(spec.path),
        )
    except lmdb.Error as error:
        raise wrong(text, f"LMDB cannot open it ({errors.one_line(error)})") from error
    found = list[tuple[str, str, bytes]]()
    others = 0
    with store.begin(buffers=True) as transaction:
        for key, value in transaction.cursor():
            if suffix(bytes(value[:MAGIC_BYTES])):
                name = bytes(key)
                label = name.rpartition(b"/")[0].decode("utf-8", "replace") or UNNAMED
                found.append(("", label, name))
            else:
                others += 1

    def read(key: bytes) -> bytes:
        with store.begin() as transaction:
            return bytes(transaction.get(key) or b"")

    notes = []
    if others:
        notes.append(f"{others:,} values are no image files: left out")
    if all(label == UNNAMED for _, label, _ in found):
        notes.append("no key is CLASS/NAME, so all samples are of one class")
    return listing(found, read, in_place=False, notes=notes, opened=store)


def webdataset_set(text: str, spec: Spec) -> Listing:
    """Reads tar shards as WebDataset writes them: the members of a sample follow each other.

    They share the name up to the first dot, and the rest says what they are: `.jpg`, `.cls`,
    `.json`. Samples are read from the shards by their offset, so the shards must not be compressed.
    """
    shards = shards_of(text, spec.path)
    missing = [path for path in shards if not os.path.isfile(path)]
    if missing:
        raise wrong(text, f"{missing[0]} does not exist ({len(shards)} shards are named)")
    found = list[tuple[str, str, tuple[str, int, int]]]()
    unlabelled = 0
    for shard in shards:
        for sample in _samples_of(shard):
            if "image" in sample and "label" in sample:
                found.append(("", sample["label"], sample["image"]))
            elif sample:
                unlabelled += 1

    def read(key: tuple[str, int, int]) -> bytes:
        shard, offset, size = key
        with open(shard, "rb") as file:
            file.seek(offset)
            return file.read(size)

    notes = []
    if unlabelled:
        notes.append(
            f"{unlabelled:,} samples have no image, or no .cls and no label in .json: left out"
        )
    return listing(found, read, in_place=False, notes=notes)


def _samples_of(shard: str) -> Iterator[dict[str, Any]]:
    """Yields the samples of a tar file: "image" (shard, offset, bytes) and "label", as far as they
    have them.
    """
    with tarfile.open(shard, "r:") as file:
        sample = dict[str, Any]()
        before = ""
        for member in file:
            if not member.isfile():
                continue
            kind = member.name.rpartition("/")[2].partition(".")[2]
            stem = member.name[: len(member.name) - len(kind)]
            if stem != before:
                yield sample
                sample = {}
                before = stem
            if f".{kind.lower()}" in SUFFIXES:
                sample["image"] = (shard, member.offset_data, member.size)
            elif kind in ("cls", "json"):
                content = file.extractfile(member)
                if content is not None:
                    sample["label"] = _label_of(kind, content.read().decode())
        yield sample


def _label_of(kind: str, text: str) -> str:
    """Returns the label in a `.cls` member, which is the label, or in a `.json` member, which has
    it.
    """
    if kind == "cls":
        return text.strip()
    return str(json.loads(text).get("label", ""))


def hf_set(text: str, spec: Spec) -> Listing:
    """Reads what `save_to_disk` of Hugging Face's datasets wrote, or a folder that `load_dataset`
    reads.
    """
    with _offline():
        # Imported here: it reads the variables of `_offline` when it is imported.
        import datasets

        path = Path(spec.path)
        stored = (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()
        load = datasets.load_from_disk if stored else datasets.load_dataset
        whole = load(str(path))
    wanted = spec.options.get("split", "")
    parts: dict[str, Any] = dict(whole) if isinstance(whole, dict) else {wanted: whole}
    if wanted and len(parts) > 1:
        if wanted not in parts:
            raise wrong(text, f"it has no split {wanted!r}; it has {', '.join(parts)}")
        parts = {"": parts[wanted]}
    first = next(iter(parts.values()))
    kinds = {name: type(kind).__name__ for name, kind in first.features.items()}
    images = [name for name, kind in kinds.items() if kind == "Image"]
    (image,) = columns(text, list(kinds), spec, image=images)
    class_labels = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    (label,) = columns(text, list(kinds), spec, label=[*class_labels, *LABEL])
    # Images stay encoded: decoding is what a run measures.
    raw = {
        split: part.cast_column(image, datasets.Image(decode=False))
        for split, part in parts.items()
    }
    found = [
        (split, str(value), (split, at))
        for split, part in raw.items()
        for at, value in enumerate(part[label])
    ]
    return listing(found, lambda key: encoded(raw[key[0]][key[1]][image]), in_place=False)


@contextmanager
def _offline() -> Iterator[None]:
    """Keeps Hugging Face's packages from the network."""
    before = {name: os.environ.get(name) for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")}
    os.environ.update(dict.fromkeys(before, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def python_set(text: str, spec: Spec) -> Listing:
    """Calls a user's function, which returns a map-style data set of (image, label)."""
    name = spec.options["function"]
    try:
        made = function_of(f"{spec.path}:{name}")()
    except (errors.VitprofError, ImportError):
        raise
    except Exception as error:  # it is a user's code
        raise wrong(text, f"its code failed: {errors.one_line(error)}") from error
    if not hasattr(made, "__len__") or not hasattr(made, "__getitem__"):
        raise wrong(
            text,
            f"{name}() returns {type(made).__name__}, which has no length or no samples by number",
        )
    transforms = [
        part for part in ("transform", "transforms") if getattr(made, part, None) is not None
    ]
    for part in transforms:
        setattr(made, part, None)
    notes = []
    if transforms:
        notes.append(f"its {transforms[0]} is left out: vitprof crops and normalises")
    # torchvision's data sets have `targets`; others are asked for each sample.
    labels = getattr(made, "targets", None)
    if labels is None:
        labels = [made[at][1] for at in range(len(made))]
    found = [("", str(_plain(label)), at) for at, label in enumerate(labels)]
    return listing(found, lambda at: png_of(made[at][0]), in_place=False, notes=notes)


def _plain(label: Any) -> Any:
    """Returns a label as Python's number where it is a tensor's or an array's."""
    return label.item() if hasattr(label, "item") else label
