"""IDs and labels of a prepared storage: one small file beside the images, the same for every storage."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitprof.engine.storage.contract import unusable

LABELS = "labels.npz"
"""Arrays `train_ids`, `train_labels`, `test_ids` and `test_labels`."""


def write_labels(directory: Path, splits: Mapping[str, tuple[list[str], NDArray[np.int64]]]) -> None:
    """Writes IDs and labels (n,) of each split ("train", "test") into `directory`. Raises `OSError`."""
    arrays: dict[str, NDArray[np.str_] | NDArray[np.int64]] = {}
    for split, (ids, labels) in splits.items():
        arrays |= {f"{split}_ids": np.array(ids, dtype=np.str_), f"{split}_labels": labels.astype(np.int64)}
    np.savez(directory / LABELS, allow_pickle=False, **arrays)


def read_labels(root: Path, *, train: bool) -> Tensor:
    """Returns the labels (n,) int64 of a split of the storage in `root`. Raises a `DataError` that names the file."""
    return torch.from_numpy(_read(root, train=train)[1])


def read_ids(root: Path, *, train: bool) -> list[str]:
    """Returns the IDs of a split's samples, in the storage's order. Raises a `DataError` that names the file."""
    ids: list[str] = _read(root, train=train)[0].tolist()
    return ids


def _read(root: Path, *, train: bool) -> tuple[NDArray[np.str_], NDArray[np.int64]]:
    path, split = root / LABELS, "train" if train else "test"
    try:
        with np.load(path, allow_pickle=False) as file:
            ids, labels = file[f"{split}_ids"], file[f"{split}_labels"]
    except FileNotFoundError:
        raise unusable(path, "it is missing") from None
    except OSError as error:
        raise unusable(path, error.strerror or "it is damaged") from error
    except KeyError as error:
        raise unusable(path, f"it holds no {split} split") from error
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, AttributeError) as error:
        raise unusable(path, "it is damaged") from error
    if ids.dtype.kind != "U" or labels.dtype != np.int64 or labels.ndim != 1 or ids.shape != labels.shape:
        raise unusable(
            path,
            f"its {split} split has {labels.dtype} {labels.shape} labels and {ids.shape} IDs, not int64 and one each",
        )
    return ids, labels
