"""Data sets that keep many samples in a file, or make them: Parquet, Arrow,
a function.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitprof import errors
from vitprof.forms.image_files import png_of
from vitprof.sets.files import of_paths
from vitprof.sets.samples import (
    LABEL,
    PATH,
    Listing,
    columns,
    encoded,
    listing,
    with_labels,
)
from vitprof.sets.specs import Spec, function_of, wrong

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
