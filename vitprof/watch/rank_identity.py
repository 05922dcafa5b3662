"""The ranks of a distributed job: which one this process is."""

from __future__ import annotations

import contextlib
import os
import sys
import zlib

from vitprof.watch.patching import SOCKET, whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    # this is imported in each process below `vitprof watch`
    from typing import Any


ALL_RANKS = "VITPROF_WATCH_RANKS"
"""Environment variable: set where that program records the steps of all ranks of a distributed job."""
RANKS = (
    ("RANK",),
    ("LOCAL_RANK", "NODE_RANK"),
    ("OMPI_COMM_WORLD_RANK",),
    ("PMI_RANK",),
    ("SLURM_PROCID",),
)
"""Variables that tell a process its rank; all of the first group that there is are 0 in the first process."""


def distributed() -> Any:
    """Returns `torch.distributed` if this process has joined a group of several; else None."""
    module = sys.modules.get("torch.distributed")
    return module if getattr(module, "is_initialized", bool)() else None


def is_watched_rank() -> bool:
    """Returns whether this process is watched in any case: rank 0 of a distributed job, or a job of one process."""
    return rank() == 0


def rank() -> int:
    """Returns this process's rank in a distributed job; 0 in a job of one process. Before the job's processes have
    joined, and where nothing names their number on a node, that of another node's process is only known not to be 0.
    """
    if (group_of_ranks := distributed()) is not None:
        return int(group_of_ranks.get_rank())
    names = next((names for names in RANKS if names[0] in os.environ), ())
    first, *others = [whole_number(name) for name in names] or [0]
    return first + sum(others) * max(1, whole_number("LOCAL_WORLD_SIZE"))


def local_rank() -> int:
    """Returns the number of this process among those of its node; its rank where nothing names that."""
    name = next((name for name in ("LOCAL_RANK", "SLURM_LOCALID") if name in os.environ), "")
    return whole_number(name) if name else rank()


def job_key() -> str:
    """Returns what all processes of a distributed job have in common, on all its nodes, and no other one: an id in the
    store by which they met. Without that it is their meeting point, which the next job may have, too; "" where nothing
    names it.
    """
    if not os.environ.get("MASTER_ADDR"):
        return ""
    names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
    key = "/".join(os.environ.get(name, "") for name in names)
    with contextlib.suppress(Exception):
        store = sys.modules["torch.distributed.distributed_c10d"]._get_default_store()
        key += "/" + store.compare_set("vitprof-job", "", os.urandom(16).hex()).decode()
    return key


def launcher() -> str:
    """Returns what all processes that one torchrun has started on this node have in common, also those that it started
    in place of others; "" without it.
    """
    run_id = os.environ.get("TORCHELASTIC_RUN_ID", "")
    if not run_id:
        return ""
    # The folder of its logs has a random name; without logs it is the parent, unless a shell is between them.
    folder, has_folder, _ = os.environ.get("TORCHELASTIC_ERROR_FILE", "").rpartition("/attempt_")
    its_own = folder if has_folder else f"{run_id}/{os.getppid()}"
    return f"{zlib.crc32(its_own.encode(errors='replace')):08x}"


def restarts() -> int:
    """Returns how often that has started the processes again; 0 where nothing says so."""
    return whole_number("TORCHELASTIC_RESTART_COUNT")


def is_recorded() -> bool:
    """Returns whether the steps of this process are recorded: of rank 0, and where a command records all ranks."""
    return is_watched_rank() or bool(os.environ.get(SOCKET) and os.environ.get(ALL_RANKS))


def n_ranks() -> int:
    """Returns the number of the job's processes."""
    group = distributed()
    return whole_number("WORLD_SIZE") if group is None else int(group.get_world_size())
