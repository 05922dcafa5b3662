"""The group of ranks that one process belongs to: how they find each other, and this one's share of an epoch."""

import os
import socket
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from vitprof.engine.data.contract import Stop
from vitprof.engine.ranks.agreement import SPENT, STOPPED, Agreement

LOOPBACK = "127.0.0.1"
FOREVER = timedelta(days=30)
"""A rank prepares the data set while the others wait. One that has died is noticed by its process's end."""
OPENED = "opened"


def place() -> tuple[int, int]:
    """Returns this process's rank, and the number of ranks."""
    return (
        (dist.get_rank(), dist.get_world_size())
        if dist.is_available() and dist.is_initialized()
        else (0, 1)
    )


def share(n: int, *, train: bool) -> slice:
    """Returns which places in the order of `n` samples are this rank's: each `ranks`th, as `DistributedSampler` gives
    them with `drop_last` when training. What is left then differs in each epoch.
    """
    rank, ranks = place()
    return slice(rank, n - n % ranks if train else n, ranks)


def is_lost(error: BaseException) -> bool:
    """Returns whether `error` says that another rank is gone."""
    return isinstance(error, dist.DistError) or "gloo" in str(error) or "NCCL" in str(error)


class Group:
    """The ranks of a job, joined. Rank 0 gives them the store by which they find each other: it listens already."""

    def __init__(
        self,
        rank: int,
        ranks: int,
        port: int,
        memory: int,
        stop: Stop,
        listening: socket.socket | None,
    ) -> None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
        self.rank = rank
        self._agreement = Agreement(memory, rank, ranks)
        self._stop = stop
        self._stopped = False
        self.in_steps = False
        self._store = dist.TCPStore(  # type: ignore[attr-defined]
            LOOPBACK,
            port,
            ranks,
            is_master=rank == 0,
            wait_for_workers=False,
            timeout=FOREVER,
            master_listen_fd=None if listening is None else listening.detach(),
        )
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(
            backend, store=self._store, rank=rank, world_size=ranks, timeout=FOREVER
        )

    def wait_for_first(self) -> None:
        """Waits until rank 0 has its pipeline open: what it measures of the drive must not be shared."""
        self._store.wait([OPENED], FOREVER)

    def let_others_open(self) -> None:
        self._store.set(OPENED, "1")

    def latest(self, value: float) -> float:
        """Returns the largest `value` of all ranks, for which it waits."""
        values = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(values, dist.ReduceOp.MAX)
        return float(values)

    def spent(self, steps: int, *, spent: bool) -> bool:
        """Returns whether all ranks end after so many steps as rank 0's time is `spent`; `stop` says if it was asked
        to stop.
        """
        wants = 0 if self.rank else SPENT if spent else STOPPED if self._stop() else 0
        ends = self._agreement.ends(steps, wants)
        self._stopped = ends == STOPPED
        return ends == SPENT

    def stop(self) -> bool:
        """Returns whether to stop: between steps when all ranks do."""
        return self._stopped if self.in_steps else self._stop()
