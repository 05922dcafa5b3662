"""Writes what the dataset of the loader that trains is, where a command asks for it."""

from __future__ import annotations

import contextlib
import itertools
import json
import numbers
import os
import time
from typing import Any

from vitprof.watch.fetch_times import name_of, transform_times
from vitprof.watch.rank_identity import is_watched_rank
from vitprof.watch.script_objects import ScriptLoader

DATA = "VITPROF_WATCH_DATA"
"""Environment variable: a file for what the train loader's dataset is, in a script that ends after
some steps."""
CONVERT = "VITPROF_WATCH_CONVERT"
"""Environment variable: samples are stored in other forms instead, as this JSON object says."""

EXIT_INTERRUPTED = 130
"""A shell's exit status for a program that Ctrl-C has ended."""


MOST_INDICES = 1024
"""Indices that are asked of the script's sampler."""
MOST_S = 2.0
"""How long that may take (s)."""


def describe_dataset(loader: ScriptLoader | None) -> None:
    """Writes what the dataset of a loader is, or what came of storing it, if that is asked for.

    In rank 0 alone. Where it fails, the error is written instead.
    """
    path = os.environ.get(DATA)
    if not path or loader is None or not is_watched_rank():
        return
    request = os.environ.get(CONVERT)
    try:
        found = _stored(loader, json.loads(request)) if request else _described(loader)
    except KeyboardInterrupt:
        # Ctrl-C is for the conversion: a traceback of ours would be the script's last words
        raise SystemExit(EXIT_INTERRUPTED) from None
    except Exception as error:
        found = {"error": " ".join(f"{type(error).__name__}: {error}".split())}
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        json.dump(found, file)
    os.replace(f"{path}.part", path)


def _described(loader: ScriptLoader) -> dict[str, Any]:
    # Imported here, as below: a watched process starts without the modules of forms.
    from vitprof.forms.script.dataset import described

    dataset, collate = parts(loader)
    keys = keys_of(loader)
    return described(dataset, collate, loader.facts, name_of, transform_times, keys)


def _stored(loader: ScriptLoader, request: dict[str, Any]) -> dict[str, Any]:
    from vitprof.forms.script.conversion import stored_in_forms

    start_s = time.monotonic() - request["began_s"]
    dataset, _ = parts(loader)
    found = stored_in_forms(dataset, request, name_of, keys_of(loader))
    return {**found, "loader": dict(loader.facts), "start_s": start_s}


def parts(loader: ScriptLoader) -> tuple[Any, Any]:
    """Returns the dataset and the collate function of a loader.

    Those of its iterator, where that is all that is left of it.
    """
    for each in (reference() for reference in loader.alive):
        for names in (("dataset", "collate_fn"), ("_dataset", "_collate_fn")):
            if getattr(each, names[0], None) is not None:
                return getattr(each, names[0]), getattr(each, names[1], None)
    raise ValueError("the loader that trains has no Dataset of PyTorch's")


def keys_of(loader: ScriptLoader) -> list[Any]:
    """Returns indices of samples as the script's sampler gives them, where they are no numbers: names,
    slices, tuples. Empty where they are numbers, or it cannot be asked."""
    keys = list[Any]()
    until_s = time.monotonic() + MOST_S
    for each in (reference() for reference in loader.alive):
        sampler = getattr(each, "_index_sampler", None)
        if sampler is None:
            continue
        with contextlib.suppress(Exception):  # code of the script's own
            for index in itertools.islice(iter(sampler), MOST_INDICES):
                keys += index if getattr(each, "_auto_collation", False) else [index]
                if is_number(keys[0]) or len(keys) >= MOST_INDICES or time.monotonic() > until_s:
                    break
        break
    return [] if not keys or is_number(keys[0]) else keys


def is_number(index: Any) -> bool:
    """Returns whether an index is a number, also one of NumPy or a tensor."""
    return isinstance(index, numbers.Integral) or getattr(index, "ndim", None) == 0
