"""The values of samples from the bytes that they are stored as."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np

TEXTS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "bool": lambda text: text == "True",
    "str": str,
    "NoneType": lambda text: None,
}
"""Name of a type -> what makes a value of its text."""


def from_bytes(kind: str, data: Any) -> Any:
    """Returns the value of a kind as `kind_of` names it; `data`: bytes or a view of them."""
    name, _, rest = kind.partition(" ")
    if name in TEXTS:
        return TEXTS[name](bytes(data).decode("utf-8", "surrogatepass"))
    if name == "bytes":
        return bytes(data)
    if name in ("file", "image"):
        from PIL import Image

        if name == "file":
            return Image.open(io.BytesIO(data)).convert(rest)
        width, height = np.frombuffer(data, "<i4", 2).tolist()
        return Image.frombytes(rest, (width, height), bytes(memoryview(data)[8:]))
    dtype, dimensions = rest.split()
    begin = 4 * int(dimensions)
    shape = np.frombuffer(data, "<i4", int(dimensions)).tolist()
    # A copy, which may be written to.
    own = bytearray(memoryview(data)[begin:])
    if name == "tensor":
        return tensor_of(own, dtype).reshape(shape)
    array = np.frombuffer(own, dtype).reshape(shape)
    return array if name == "array" else array[()]


def tensor_of(data: bytearray, dtype: str) -> Any:
    """Returns a flat tensor over bytes."""
    # Imported here: what has no tensors is read without PyTorch.
    import torch

    if not data:
        # torch.frombuffer takes no empty one.
        return torch.empty(0, dtype=getattr(torch, dtype))
    return torch.frombuffer(data, dtype=getattr(torch, dtype))
