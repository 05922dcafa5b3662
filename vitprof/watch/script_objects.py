"""Questions to objects of the script: batches, loaders, datasets. What they answer is their own code, which may raise
anything: a dataset that is opened late raises `OSError` at `len`, a property fails before `setup`. An answer that does
not come is not known; it never ends watching.
"""

from typing import Any


def parts(of: Any) -> list[Any]:
    """Returns what is in a list, a tuple, a mapping, or an object with a method `values`; [] for all else, and where
    its code fails. An attribute `values` is no method in pandas, nor in what `torch.max` returns.
    """
    try:
        if isinstance(of, (list, tuple)):
            return list(of)
        return list(of.values()) if callable(getattr(of, "values", None)) else []
    except Exception:
        return []
