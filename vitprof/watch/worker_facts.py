"""What is known of a loader's workers: the process that trains knows how they were started, and each of them
what it is set to.
"""

from __future__ import annotations

import resource
from typing import Any

from vitprof.watch.script_objects import attribute

WorkerSays = tuple[str, int]
"""What a worker says of itself: the sharing strategy of its torch.multiprocessing, and the threads that PyTorch uses
within an operation. A script may set both in `worker_init_fn`, where nobody else sees it."""


def said_at_first(fetcher: Any) -> WorkerSays | None:
    """Returns what this process, a worker, says of itself with the first batch of a fetcher; None with later ones."""
    if getattr(fetcher, "_vitprof_said", False):
        return None
    fetcher._vitprof_said = True
    try:
        import torch

        strategy: str = torch.multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
        return strategy, torch.get_num_threads()
    except Exception:  # an answer that does not come is not known; the batch is sent anyway
        return None


def processes_of(iterator: Any) -> dict[str, Any]:
    """Returns the ids of the processes that were started for an iterator ("pids"), and how ("start_method"), as far
    as that is known; {} without workers."""
    workers = attribute(iterator, "_workers")
    if not isinstance(workers, list) or not workers:
        return {}
    facts: dict[str, Any] = {"pids": [attribute(worker, "pid") for worker in workers]}
    # The class of a process does not name it where the script leaves the method to PyTorch.
    method = attribute(attribute(workers[0], "_popen"), "method")
    if isinstance(method, str):
        facts["start_method"] = method
    return facts


def descriptor_limit() -> int | None:
    """Returns how many descriptors this process may have open; None for any number."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft
