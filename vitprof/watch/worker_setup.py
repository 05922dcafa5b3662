"""What a trial sets in the workers of the train loader: by which strategy tensors are shared, and the threads of
an operation.

It is put in as an iterator of the loader is made, not as the loader is. In between frameworks look at its
`worker_init_fn`, and leave out their own where there is one: Lightning's, which seeds, would change what is
drawn.
"""

from __future__ import annotations

import functools
import multiprocessing
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from vitprof.watch.packing import ITERATOR
from vitprof.watch.patching import when_imported
from vitprof.watch.script_objects import attribute

NAMES = ("sharing_strategy", "worker_threads")
"""What is set in workers, as a trial is told of it (`trial.override_arguments`)."""
LIMIT_S = 10.0
"""How long OpenCV may take to set its threads: it waits for ever for those that a fork has left behind."""


@dataclass(frozen=True)
class InWorkers:
    """What is set in each worker of a loader."""

    sharing_strategy: str | None = None
    """One of `torch.multiprocessing.get_all_sharing_strategies()`; None: as it is."""
    threads: int | None = None
    """Of PyTorch's operations, and OpenCV's; None: as it is."""

    def set(self) -> None:
        """Sets it in this process, a worker."""
        if self.sharing_strategy is not None:
            share_by(self.sharing_strategy)
        if self.threads is not None:
            set_threads(self.threads)


@dataclass(frozen=True)
class WorkerSetup:
    """A `worker_init_fn`: the script's own one, and then what a trial sets. It draws no random numbers."""

    own: Callable[[int], Any] | None
    in_workers: InWorkers

    def __call__(self, worker: int) -> None:
        if self.own is not None:
            self.own(worker)
        self.in_workers.set()


def in_workers(wanted: Mapping[str, Any]) -> InWorkers | None:
    """Returns what a trial sets in workers, by `NAMES`; None for nothing.

    Raises `ValueError` for what this system does not have.
    """
    strategy = wanted.get("sharing_strategy")
    threads = wanted.get("worker_threads")
    if strategy is None and threads is None:
        return None
    if strategy is not None:
        _check_strategy(strategy)
    return InWorkers(strategy, threads)


def _check_strategy(strategy: str) -> None:
    import torch.multiprocessing

    strategies = torch.multiprocessing.get_all_sharing_strategies()  # type: ignore[no-untyped-call]
    if strategy not in strategies:
        has = ", ".join(sorted(strategies))
        raise ValueError(f"this system has no sharing_strategy {strategy}: it has {has}")


def set_threads(threads: int) -> None:
    """Sets the threads of an operation in this process: PyTorch's, and OpenCV's once that is imported.

    Raises `RuntimeError` where OpenCV cannot.
    """
    import torch

    torch.set_num_threads(threads)
    when_imported("cv2", functools.partial(_set_threads_of_opencv, threads))


def _set_threads_of_opencv(threads: int, cv2: Any) -> None:
    if cv2.getNumThreads() == threads:
        return
    setting = threading.Thread(target=cv2.setNumThreads, args=(threads,), daemon=True)
    setting.start()
    setting.join(LIMIT_S)
    if setting.is_alive():
        raise RuntimeError(
            "OpenCV's threads cannot be set: the script has used them before its workers were forked; "
            "give --vary start_method=forkserver or spawn with worker_threads"
        )


def facts_of(loader: Any) -> dict[str, Any]:
    """Returns what a loader's workers are by themselves, as a tournament has to know it.

    "sharing_strategy": that of this process now; "worker_threads": 1, or None where that is not known;
    "forks": whether its workers are forked.
    """
    sets_its_own = attribute(loader, "worker_init_fn") is not None or "cv2" in sys.modules
    return {
        "sharing_strategy": sharing_strategy(),
        "worker_threads": None if sets_its_own else 1,
        "forks": _forks(attribute(loader, "multiprocessing_context")),
    }


def _forks(context: Any) -> bool:
    if context is not None:
        try:
            return str(context.get_start_method()) == "fork"
        except Exception:  # a context of the script's own
            return False
    # `allow_none`: else a script could not choose one any more
    chosen = multiprocessing.get_start_method(allow_none=True)
    return (chosen or multiprocessing.get_all_start_methods()[0]) == "fork"


def share_by(strategy: str) -> None:
    """Sets the strategy by which this process shares tensors with others."""
    import torch.multiprocessing

    torch.multiprocessing.set_sharing_strategy(strategy)  # type: ignore[no-untyped-call]


def sharing_strategy() -> str | None:
    """Returns the strategy by which this process shares tensors; None where that is not known."""
    module = sys.modules.get("torch.multiprocessing")
    return None if module is None else str(module.get_sharing_strategy())


def set_up_workers(dataloader: ModuleType, of: Callable[[Any], InWorkers | None]) -> None:
    """Patches the iterators with workers of a module to set up the workers of some loaders.

    `of`: returns what is set in a loader's workers; None for nothing.
    """
    for name, kind in vars(dataloader).items():
        if name.endswith(ITERATOR) and "__init__" in vars(kind):
            kind.__init__ = _begin_set_up(kind.__init__, of)


def _begin_set_up(
    begin: Callable[..., None], of: Callable[[Any], InWorkers | None]
) -> Callable[..., None]:
    @functools.wraps(begin)
    def begin_set_up(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        wanted = of(loader)
        if wanted is None:
            begin(self, loader, *args, **kwargs)
            return
        if wanted.sharing_strategy is not None:
            # As the line would that a user writes; forked workers have it from here.
            share_by(wanted.sharing_strategy)
        own = loader.worker_init_fn
        loader.worker_init_fn = WorkerSetup(own, wanted)
        try:
            begin(self, loader, *args, **kwargs)
        finally:
            loader.worker_init_fn = own

    return begin_set_up
