"""What is known of an IterableDataset: its shards, and whether its workers share its samples.

Each worker of a DataLoader has an IterableDataset of its own, and gives all that this yields. Where the
dataset does not ask which worker it is in, an epoch has each sample as many times as there are workers.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from vitprof.watch.script_objects import attribute, length, parts, whole_number

ASKS = "get_worker_info"
"""The function of PyTorch's by which code learns which worker it is in."""
DIVIDE_BY_THEMSELVES = ("datasets", "litdata", "streaming")
"""Libraries whose IterableDatasets give each worker a part of the samples."""
NOT_OF_A_SCRIPT = ("torch", "numpy", "builtins", "typing", "abc")
"""Modules whose code is not searched: PyTorch's own has `ASKS` everywhere."""
MOST_SEARCHED = 400
"""Functions and objects that are searched at most."""


def iterable_facts(loader: Any) -> dict[str, Any]:
    """Returns "iterable", "shards" and "divides" of a DataLoader with an IterableDataset; {} of any other.

    "shards": how many the samples are in, of which each worker reads whole ones; None where that is not
    known. "divides": whether its workers are known to share its samples; its code that asks for the
    worker counts.
    """
    data = sys.modules.get("torch.utils.data")
    dataset = attribute(loader, "dataset")
    if data is None or not isinstance(dataset, data.IterableDataset):
        return {}
    packages = {base.__module__.partition(".")[0] for base in type(dataset).__mro__}
    if "webdataset" in packages:
        return {"iterable": True, **_of_webdataset(dataset)}
    if packages.intersection(DIVIDE_BY_THEMSELVES):
        shards = whole_number(attribute(dataset, "num_shards"))
        if shards is None:
            shards = whole_number(attribute(dataset, "n_shards"))
        return {"iterable": True, "shards": shards, "divides": True}
    divides = asks_for_worker([dataset, attribute(loader, "worker_init_fn")])
    return {"iterable": True, "shards": None, "divides": divides}


def _of_webdataset(dataset: Any) -> dict[str, Any]:
    """Returns the facts of a pipeline: a stage divides its shards, unless they are drawn without an end,
    or the pipeline says itself how many samples each worker gives (`with_epoch`)."""
    stages = parts(attribute(dataset, "pipeline"))
    names = [attribute(stage, "__name__") or type(stage).__name__ for stage in stages]
    has_end = "ResampledShards" not in names
    for_each_worker = (whole_number(attribute(dataset, "nsamples")) or 0) > 0
    divides = "split_by_worker" in names and has_end and not for_each_worker
    shards = length(attribute(stages[0], "urls")) if stages and divides else None
    return {"shards": shards, "divides": divides}


def asks_for_worker(searched: list[Any]) -> bool:
    """Returns whether the code of any of these objects asks which worker it is in, as far as it can be
    read: that of their classes, of the functions that they call by name, and of what they hold."""
    pending = list(searched)
    seen = list[Any]()
    numbers = set[int]()
    while pending and len(seen) < MOST_SEARCHED:
        each = pending.pop(0)
        if each is None or id(each) in numbers:
            continue
        numbers.add(id(each))
        seen.append(each)  # a method is made anew each time: kept, so that its number stays its own
        if isinstance(each, FunctionType):
            if _is_foreign(each):
                continue
            names = set(_names_in(each.__code__))
            if ASKS in names:
                return True
            pending += _called(each, names)
        else:
            pending += _held(each)
    return False


def _names_in(code: CodeType) -> Iterator[str]:
    """Yields the names of globals and attributes in a function, and in those within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _called(function: FunctionType, names: set[str]) -> Iterator[Any]:
    """Yields the script's functions and classes that a function names, also those of modules."""
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, ModuleType):
            found = [vars(value).get(other) for other in names]
        else:
            found = [value]
        for each in found:
            if isinstance(each, FunctionType):
                yield each
            elif isinstance(each, type):
                yield from _methods(each)
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue


def _held(each: Any) -> Iterator[Any]:
    """Yields what an object that is no function is made of."""
    if isinstance(each, MethodType):
        yield each.__func__
        yield each.__self__
    elif isinstance(each, functools.partial):
        yield each.func
    elif isinstance(each, (list, tuple)):
        yield from each[:MOST_SEARCHED]
    elif not isinstance(each, type) and _may_hold(type(each)):
        yield from _methods(type(each))
        yield from list((attribute(each, "__dict__") or {}).values())


def _may_hold(kind: type) -> bool:
    """Returns whether objects of a class may hold what is of the script: PyTorch's own datasets do."""
    return not _is_foreign(kind) or kind.__module__.startswith("torch.utils.data")


def _methods(kind: type) -> Iterator[FunctionType]:
    for base in kind.__mro__:
        if _is_foreign(base):
            continue
        for value in list(vars(base).values()):
            function = getattr(value, "__func__", value)  # of a static or class method
            if isinstance(function, FunctionType):
                yield function


def _is_foreign(each: Any) -> bool:
    return str(attribute(each, "__module__")).partition(".")[0] in NOT_OF_A_SCRIPT
