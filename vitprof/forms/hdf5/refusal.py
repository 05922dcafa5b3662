"""Lines that say why a file cannot be used, and what to write."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import h5py

PLAIN_FUNCTION = "or write a function that returns them: file.py:FUNCTION"
CHOOSE = "choose with images=NAME&labels=NAME"


def name_of(data: h5py.Dataset) -> str:
    """Returns the name of a dataset as it is written in a spec."""
    return str(data.name).lstrip("/")


def described(data: h5py.Dataset) -> str:
    """Returns name, shape and type of a dataset."""
    kind = {"O": "texts or bytes"}.get(data.dtype.kind, str(data.dtype))
    return f"{name_of(data)} {data.shape} of {kind}"
