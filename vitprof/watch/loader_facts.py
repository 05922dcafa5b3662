"""What is known of a loader by its own attributes."""

from __future__ import annotations

import sys
from typing import Any

from vitprof.watch import frameworks
from vitprof.watch.iterable_facts import iterable_facts
from vitprof.watch.patching import modules_in_stack
from vitprof.watch.script_objects import attribute, is_true, length, name_of, whole_number
from vitprof.watch.trial import made_of


def loader_facts(loader: Any) -> dict[str, Any]:
    """Returns the arguments of a DataLoader, and the names of its dataset, sampler and collate function; None for what
    one of a framework does not have, or fails to say.
    """

    def of(name: str) -> Any:
        return attribute(loader, name)

    dataset = of("dataset")
    batch_size = whole_number(of("batch_size"))
    if not batch_size:
        batch_size = whole_number(attribute(of("batch_sampler"), "batch_size"))
    if dataset is loader:  # fastai's, which stands in for the one that has them
        dataset = attribute(of("d"), "dataset")
        batch_size = whole_number(attribute(of("d"), "bs"))
    framework = frameworks.with_loader(modules_in_stack())
    return {
        "dataset": name_of(dataset),
        "n_samples": length(dataset),
        "epoch_batches": epoch_batches(loader),
        "batch_size": batch_size,
        "num_workers": whole_number(of("num_workers")) or 0,
        "prefetch_factor": whole_number(of("prefetch_factor")),
        **{name: is_true(of(name)) for name in ("pin_memory", "persistent_workers", "drop_last")},
        "start_method": _start_method(of("multiprocessing_context")),
        "collate": name_of(of("collate_fn")),
        "sampler": name_of(of("sampler")),
        **({"framework": framework} if framework else {}),
        **({"in_order": False} if of("in_order") is False else {}),
        **({"timeout_s": of("timeout")} if is_timeout(of("timeout")) else {}),
        **(_iterable_facts(loader) or _by_batch(loader, dataset)),
        **made_of(loader),
    }


def is_timeout(timeout: Any) -> bool:
    """Returns whether a loader waits for a batch for so long (s) at most."""
    return isinstance(timeout, (int, float)) and timeout > 0


COUNTED_BY = ("torch", "torchdata", "accelerate", "transformers", "lightning", "pytorch_lightning")
"""Packages whose loaders and samplers know their length without doing anything for it."""


def epoch_batches(loader: Any) -> int | None:
    """Returns the batches of an epoch, of a loader whose sampler knows their number; None for others.

    A sampler of the script's own is not asked: it may draw its batches to count them, with random numbers that the
    script then lacks. An IterableDataset may give more samples than it says, or fewer.
    """
    of_batches = attribute(loader, "batch_sampler")
    if of_batches is None:
        of_batches = attribute(loader, "sampler")
    of_samples = attribute(of_batches, "sampler")
    asked = [loader, of_batches]
    if of_samples is not None:
        asked.append(of_samples)
    return length(loader) if all(map(_is_counted, asked)) else None


def _is_counted(of: Any) -> bool:
    owner = next((kind for kind in type(of).__mro__ if "__len__" in vars(kind)), None)
    return owner is not None and owner.__module__.partition(".")[0] in COUNTED_BY


def _iterable_facts(loader: Any) -> dict[str, Any]:
    try:
        return iterable_facts(loader)
    except Exception:  # the code of the script's own dataset
        return {}


def _by_batch(loader: Any, dataset: Any) -> dict[str, bool]:
    """Returns whether a dataset makes a whole batch at once, asked for all its samples or for none."""
    is_by_batch = attribute(loader, "_auto_collation") is False or _gives_batches(dataset)
    return {"by_batch": True} if is_by_batch else {}


MOST_WRAPPERS = 10
"""Subsets of subsets that are looked into."""


def _gives_batches(dataset: Any) -> bool:
    """Returns whether a dataset has `__getitems__`, which the fetcher of PyTorch then calls.

    A Subset always has it; it passes the indices on where its dataset has it, too.
    """
    subset = getattr(sys.modules.get("torch.utils.data.dataset"), "Subset", None)
    passes_on = attribute(subset, "__getitems__")
    for _ in range(MOST_WRAPPERS):
        if passes_on is None or attribute(type(dataset), "__getitems__") is not passes_on:
            break
        dataset = attribute(dataset, "dataset")
    return callable(attribute(dataset, "__getitems__"))


def _start_method(context: Any) -> str | None:
    if context is None:
        return None
    try:
        return str(context.get_start_method())
    except Exception:  # a context of the script's own
        return None


def generic_facts(loader: Any) -> dict[str, Any]:
    """Returns some of the facts of `loader_facts` for a loader of any kind: its attributes with PyTorch's names."""

    dataset = attribute(loader, "dataset")
    described = loader if dataset is None else dataset
    return {
        "dataset": None if loader is None else type(described).__name__,
        "batch_size": whole_number(attribute(loader, "batch_size")),
        "num_workers": whole_number(attribute(loader, "num_workers")) or 0,
        "pin_memory": attribute(loader, "pin_memory") is True,
    }
