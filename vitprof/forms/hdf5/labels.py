"""What class a label of an HDF5 file is: a number, a text, or the place of the 1 in one-hot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from vitprof.forms.contract import Refuse
from vitprof.forms.hdf5.refusal import PLAIN_FUNCTION, described

if TYPE_CHECKING:
    import h5py

MOST_CLASSES = 100_000
MOST_LABEL_BYTES = 1 << 29
"""Of labels that are read at once."""
MOST_SQUARE = 10_000
"""Samples of one-hot labels with as many classes: these are read whole."""
BLOCK_BYTES = 16 << 20
"""Bytes of one-hot labels that are read at once."""
FIRST_INEXACT = 2.0**53
"""From this number on, floats skip whole numbers."""


def classes_of(data: h5py.Dataset, n: int, refuse: Refuse) -> list[str]:
    """Returns the class of each of the `n` samples, in words. Its shape is known to fit them."""
    if data.size == n:
        return _one_each(data, refuse)
    if data.ndim != 2:
        refuse(
            f"{described(data)} has more than a class, or one-hot (N, C), for each of {n:,} "
            f"samples; store a class for each, {PLAIN_FUNCTION}"
        )
    by_rows = data.shape[0] == n
    n_classes = data.shape[1] if by_rows else data.shape[0]
    if n_classes > MOST_CLASSES:
        refuse(f"{described(data)}: at most {MOST_CLASSES:,} classes are read")
    if data.dtype.kind not in "uifb":
        refuse(f"{described(data)}: a text for each sample is read, not several")
    hot = _square(data, n, refuse) if n_classes == n else _one_hot(data, n, by_rows, refuse)
    return [str(at) for at in hot]


def _square(data: h5py.Dataset, n: int, refuse: Refuse) -> list[int]:
    """Returns the classes where there are as many as samples: either axis may be the samples'."""
    if n > MOST_SQUARE:
        refuse(f"{described(data)}: store a class number for each sample, {PLAIN_FUNCTION}")
    values = data[...]
    by_rows = _hot(values)
    by_columns = _hot(values.T)
    if by_rows is None and by_columns is None:
        _refuse_not_one_hot(data, 0, refuse)
    if by_rows is None or by_columns is None:
        found = by_columns if by_rows is None else by_rows
        assert found is not None
        return [int(at) for at in found]
    if not np.array_equal(by_rows, by_columns):
        refuse(
            f"{described(data)}: its rows and its columns are both one-hot for {n:,} samples; "
            f"store a class number for each, {PLAIN_FUNCTION}"
        )
    return [int(at) for at in by_rows]


def _one_hot(data: h5py.Dataset, n: int, by_rows: bool, refuse: Refuse) -> Iterator[int]:
    n_classes = data.shape[1] if by_rows else data.shape[0]
    at_once = max(1, BLOCK_BYTES // (n_classes * data.dtype.itemsize))
    for first in range(0, n, at_once):
        last = min(first + at_once, n)
        block = data[first:last] if by_rows else data[:, first:last].T
        hot = _hot(block)
        if hot is None:
            _refuse_not_one_hot(data, first, refuse)
        yield from (int(at) for at in hot)


def _refuse_not_one_hot(data: h5py.Dataset, first: int, refuse: Refuse) -> NoReturn:
    refuse(
        f"{described(data)} is not one-hot, a 1 among zeros (from sample {first:,} on): several "
        f"labels of a sample, or numbers for a regression, are not trained on; store a class for each "
        f"sample, {PLAIN_FUNCTION}"
    )


def _hot(block: NDArray[Any]) -> NDArray[np.int64] | None:
    """Returns the place of the only 1 in each row; None where a row is not one-hot."""
    ones = block == 1
    if not (ones.sum(axis=1) == 1).all() or not (ones | (block == 0)).all():
        return None
    hot: NDArray[np.int64] = ones.argmax(axis=1)
    return hot


def _one_each(data: h5py.Dataset, refuse: Refuse) -> list[str]:
    """Returns labels of which there is one for each sample, whatever axes of 1 there are."""
    import h5py

    if data.size * data.dtype.itemsize > MOST_LABEL_BYTES:
        refuse(f"{described(data)}: labels of at most {MOST_LABEL_BYTES:,} bytes are read")
    kind = data.dtype.kind
    values = data[...].reshape(-1)
    texts = kind in "SO" and all(isinstance(value, bytes | str) for value in values)
    if kind == "f":
        _ensure_whole(data, values, refuse)
        values = values.astype(np.int64)
    elif kind not in "uib" and not texts:
        refuse(f"{described(data)}: texts or numbers are read as labels")
    if kind == "b":
        values = values.astype(np.int64)
    names = {value: name for name, value in (h5py.check_enum_dtype(data.dtype) or {}).items()}
    if names and kind != "b":
        return [names.get(value, str(value)) for value in values.tolist()]
    return [_text(value) for value in values.tolist()]


def _ensure_whole(data: h5py.Dataset, values: NDArray[Any], refuse: Refuse) -> None:
    whole = np.isfinite(values) & (np.rint(values) == values) & (np.abs(values) < FIRST_INEXACT)
    if not whole.all():
        at = int(np.argmin(whole))
        refuse(
            f"{described(data)} has {values[at]:g} for sample {at:,}, which is no class: numbers "
            f"for a regression are not trained on; choose other labels with labels=NAME"
        )


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
