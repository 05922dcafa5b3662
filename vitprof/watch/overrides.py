"""Changes the arguments of a trial's train DataLoader as it is constructed.

Which loader trains is known only once an optimizer has stepped, long after the loader was made. So the first trial of a
script changes nothing, and notes for each DataLoader the place where it is made: the lines of code that led to it, its
dataset and its sampler, and its number among those made there. Later trials get the place of the loader that trained,
and change the loaders made there and no others: validation stays as it is. If the first trial had made just one loader
at that place when training began, later trials change every loader made there, such as one for each epoch; if it had
made more, such as one for training and one for validation in a loop, they change only the one with the same number.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
import sys
import weakref
from collections import Counter
from types import FrameType, ModuleType
from typing import Any

from vitprof.watch.on_import import STATEFUL, TRIAL_OVERRIDES, when_imported
from vitprof.watch.trial_messages import tell

MOST_FRAMES = 60
_made: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
_counts: Counter[str] = Counter()


def install(dataloader: ModuleType) -> None:
    """Patches the DataLoader to note where each one is made, and to change the arguments of the train loader.

    The environment variable `TRIAL_OVERRIDES` holds a JSON object: {} in a first trial, else "place", "nth" (null:
    every one), "arguments" and "cache_bytes" (null: samples are not kept).
    """
    wanted: dict[str, Any] = json.loads(os.environ[TRIAL_OVERRIDES])
    _put_in(dataloader.DataLoader, wanted, dataloader)
    when_imported(STATEFUL, lambda module: _put_in(module.StatefulDataLoader, wanted, dataloader))


def _put_in(kind: Any, wanted: dict[str, Any], dataloader: ModuleType) -> None:
    begin = kind.__init__
    signature = inspect.signature(begin)

    @functools.wraps(begin)
    def begin_changed(self: Any, *args: Any, **kwargs: Any) -> None:
        made: dict[str, Any] = {}
        try:
            bound = signature.bind(self, *args, **kwargs)
            made = _noted(bound.arguments, dataloader, sys._getframe(1))
            if wanted and wanted["place"] == made["place"] and wanted["nth"] in (None, made["nth"]):
                _change(bound.arguments, wanted, made)
                args, kwargs = bound.args[1:], bound.kwargs
        except TypeError:  # the script's own mistake, which PyTorch will report
            pass
        except Exception as error:  # nothing was changed, so the trial fails; this line says why
            tell("problem", f"{type(error).__name__}: {error}")
        begin(self, *args, **kwargs)
        _made[self] = made

    kind.__init__ = begin_changed


def made_of(loader: Any) -> dict[str, Any]:
    """Returns what was noted when a DataLoader was made, with "made_" before each name; empty outside of trials.

    "place": a hash of the lines of code that led to it, its dataset and its sampler; "where": the script's own line;
    "nth": its number among those made there; "alone": whether it is the only one so far; "changed": whether its
    arguments were changed; "given": the names of the arguments that the script passed, separated by spaces;
    "own_batches": whether the script makes its batches itself; "iterable": whether it is an IterableDataset's.
    """
    made = _made.get(loader)
    if not made:
        return {}
    return {f"made_{name}": value for name, value in made.items()} | {"made_alone": _counts[made["place"]] == 1}


def _noted(given: dict[str, Any], dataloader: ModuleType, frame: FrameType | None) -> dict[str, Any]:
    chain, where = _led_here(frame)
    dataset = given["dataset"]
    try:
        n_samples = len(dataset)
    except Exception:  # an IterableDataset, or a dataset without a length
        n_samples = -1
    sampler = given.get("sampler") if given.get("batch_sampler") is None else given["batch_sampler"]
    sampled = "shuffled" if given.get("shuffle") else type(sampler).__qualname__
    text = "|".join([*chain, type(dataset).__qualname__, str(n_samples), sampled])
    place = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    _counts[place] += 1
    return {
        "place": place,
        "where": where,
        "nth": _counts[place],
        "changed": False,
        "given": " ".join(name for name in given if name not in ("self", "dataset")),
        "own_batches": given.get("batch_sampler") is not None or given.get("batch_size", 1) is None,
        "iterable": isinstance(dataset, dataloader.IterableDataset),
    }


def _led_here(frame: FrameType | None) -> tuple[list[str], str]:
    """Returns the lines of code from the DataLoader outward, and the nearest one outside of installed libraries."""
    chain: list[str] = []
    where = ""
    while frame is not None and len(chain) < MOST_FRAMES:
        name = frame.f_code.co_filename
        chain.append(f"{name}:{frame.f_lineno}:{frame.f_lasti}")  # one line may have two calls
        if not where and "site-packages" not in name:
            where = f"{os.path.basename(name)}:{frame.f_lineno}"
        frame = frame.f_back
    return chain, where or (chain[0] if chain else "")


def _change(given: dict[str, Any], wanted: dict[str, Any], made: dict[str, Any]) -> None:
    arguments, cache_bytes = wanted["arguments"], wanted["cache_bytes"]
    if "batch_size" in arguments and made["own_batches"]:
        raise ValueError("the script makes its batches itself: batch_size cannot be varied")
    if cache_bytes is not None:
        from vitprof.watch.kept_samples import KeptSamples

        workers = arguments.get("num_workers", given.get("num_workers", 0))
        given["dataset"] = KeptSamples(given["dataset"], cache_bytes // max(workers, 1))
    given.update(arguments)
    made["changed"] = True
