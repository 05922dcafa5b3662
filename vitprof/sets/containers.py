"""Data sets that keep many samples in a file, or make them: Parquet, HDF5, LMDB, tar shards, Arrow, a function."""

import json
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitprof import errors
from vitprof.sets.files import of_paths
from vitprof.sets.samples import (
    LABEL,
    PATH,
    SUFFIXES,
    Listing,
    columns,
    encoded,
    listing,
    png_of,
    suffix,
    with_labels,
)
from vitprof.sets.specs import Spec, function_of, shards_of, wrong


def parquet_set(text: str, spec: Spec) -> Listing:
    from pyarrow import parquet

    file = parquet.ParquetFile(spec.path)
    names = file.schema_arrow.names
    (label,) = columns(text, names, spec, label=LABEL)
    if "path" in spec.options or not any(
        name in names for name in ("image", "bytes", spec.options.get("image"))
    ):
        (path,) = columns(text, names, spec, path=PATH)
        table = file.read(columns=[path, label])
        return of_paths(
            Path(spec.path).parent,
            zip(*(table[name].to_pylist() for name in (path, label)), strict=True),
        )
    (image,) = columns(text, names, spec, image=("image", "bytes"))
    labels = file.read(columns=[label])[label].to_pylist()
    groups = [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)]
    keys = [(group, row) for group, rows in enumerate(groups) for row in range(rows)]
    held: dict[int, list[Any]] = {}

    def read(key: tuple[int, int]) -> bytes:
        group, row = key
        if group not in held:
            held.clear()  # keys are asked for in order: one row group stays
            held[group] = file.read_row_group(group, columns=[image])[image].to_pylist()
        return encoded(held[group][row])

    labelled, notes = with_labels(zip(keys, labels, strict=True))
    return listing((("", label, key) for key, label in labelled), read, in_place=False, notes=notes)


def hdf5_set(text: str, spec: Spec) -> Listing:
    import h5py

    file = h5py.File(spec.path, "r", locking=False)
    inside: list[str] = []
    file.visititems(
        lambda name, item: inside.append(name) if isinstance(item, h5py.Dataset) else None
    )
    images = columns(text, inside, spec, images=("images", "image", "X", "x", "data"))[0]
    labels = columns(text, inside, spec, labels=("labels", "label", "Y", "y", "target"))[0]
    for name in (images, labels):
        link = file.get(name, getlink=True)
        item = file[name]
        if isinstance(link, h5py.ExternalLink) or item.external or item.is_virtual:
            raise wrong(
                text,
                f"{name} is in another file, which a link in this one names: it is not followed",
            )
    data = file[images]
    numbers = file[labels]
    if not data.ndim or not numbers.ndim or numbers.size != numbers.shape[0]:
        raise wrong(
            text,
            f"{images} is {data.shape} and {labels} {numbers.shape}: a label for each image is read",
        )
    numbers = numbers[:].reshape(-1)
    if len(data) != len(numbers):
        raise wrong(text, f"{images} has {len(data):,} samples and {labels} {len(numbers):,}")
    if data.dtype.kind not in "OSV" and (data.dtype != "uint8" or data.ndim not in (3, 4)):
        raise wrong(
            text,
            f"{images} is {data.dtype} {data.shape}: uint8 (N, H, W, 3) or image files are read",
        )

    def read(at: int) -> bytes:
        return png_of(data[at]) if data.ndim in (3, 4) else bytes(memoryview(data[at]))

    notes = ["its pixels are unpacked to PNG files"] if data.ndim in (3, 4) else []
    words = (each.decode() if isinstance(each, bytes) else str(each) for each in numbers.tolist())
    return listing(
        (("", label, at) for at, label in enumerate(words)),
        read,
        in_place=False,
        notes=notes,
        opened=file,
    )


def lmdb_set(text: str, spec: Spec) -> Listing:
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
            if suffix(bytes(value[:16])):
                name = bytes(key)
                found.append(("", name.rpartition(b"/")[0].decode("utf-8", "replace") or "0", name))
            else:
                others += 1

    def read(key: bytes) -> bytes:
        with store.begin() as transaction:
            return bytes(transaction.get(key) or b"")

    notes = [f"{others:,} values are no image files: left out"] if others else []
    if all(label == "0" for _, label, _ in found):
        notes.append("no key is CLASS/NAME, so all samples are of one class")
    return listing(found, read, in_place=False, notes=notes, opened=store)


def webdataset_set(text: str, spec: Spec) -> Listing:
    shards = shards_of(text, spec.path)
    if missing := [path for path in shards if not os.path.isfile(path)]:
        raise wrong(text, f"{missing[0]} does not exist ({len(shards)} shards are named)")
    found = list[tuple[str, str, tuple[str, int, int]]]()
    unlabelled = 0

    def close(sample: dict[str, Any]) -> None:
        nonlocal unlabelled
        if "image" in sample and "label" in sample:
            found.append(("", sample["label"], sample["image"]))
        elif sample:
            unlabelled += 1

    for shard in shards:
        with tarfile.open(shard, "r:") as file:
            sample = dict[str, Any]()
            before = ""
            for member in file:
                if not member.isfile():
                    continue
                kind = member.name.rpartition("/")[2].partition(".")[2]
                stem = member.name[: len(member.name) - len(kind)]
                if stem != before:
                    close(sample)
                    sample = {}
                    before = stem
                if f".{kind.lower()}" in SUFFIXES:
                    sample["image"] = (shard, member.offset_data, member.size)
                elif kind in ("cls", "json") and (content := file.extractfile(member)) is not None:
                    value = content.read().decode()
                    sample["label"] = (
                        value.strip() if kind == "cls" else str(json.loads(value).get("label", ""))
                    )
            close(sample)

    def read(key: tuple[str, int, int]) -> bytes:
        shard, offset, size = key
        with open(shard, "rb") as file:
            file.seek(offset)
            return file.read(size)

    notes = (
        [f"{unlabelled:,} samples have no image, or no .cls and no label in .json: left out"]
        if unlabelled
        else []
    )
    return listing(found, read, in_place=False, notes=notes)


def hf_set(text: str, spec: Spec) -> Listing:
    with _offline():
        import datasets  # here: it reads these variables when it is imported

        path = Path(spec.path)
        stored = (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()
        whole = datasets.load_from_disk(str(path)) if stored else datasets.load_dataset(str(path))
    parts: dict[str, Any] = (
        dict(whole) if isinstance(whole, dict) else {spec.options.get("split", ""): whole}
    )
    if (wanted := spec.options.get("split", "")) and len(parts) > 1:
        if wanted not in parts:
            raise wrong(text, f"it has no split {wanted!r}; it has {', '.join(parts)}")
        parts = {"": parts[wanted]}
    first = next(iter(parts.values()))
    kinds = {name: type(kind).__name__ for name, kind in first.features.items()}
    images = [name for name, kind in kinds.items() if kind == "Image"]
    (image,) = columns(text, list(kinds), spec, image=images)
    (label,) = columns(
        text, list(kinds), spec, label=[*(n for n, k in kinds.items() if k == "ClassLabel"), *LABEL]
    )
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
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def python_set(text: str, spec: Spec) -> Listing:
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
        setattr(made, part, None)  # vitprof crops and normalises itself
    labels = getattr(made, "targets", None)
    labels = [made[at][1] for at in range(len(made))] if labels is None else labels
    found_ = [
        ("", str(getattr(label, "item", lambda label=label: label)()), at)
        for at, label in enumerate(labels)
    ]
    notes = [f"its {transforms[0]} is left out: vitprof crops and normalises"] if transforms else []
    return listing(found_, lambda at: png_of(made[at][0]), in_place=False, notes=notes)
