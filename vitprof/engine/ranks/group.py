"""The group of ranks that one process belongs to: how they find each other, and this one's share of
an epoch.
"""

import os
import socket
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from vitprof.datasets.files import Stop
from vitprof.engine.ranks.agreement import SPENT, STOPPED, Agreement

LOOPBACK = "127.0.0.1"
FOREVER = timedelta(days=30)
"""A rank prepares the data set while the others wait.

One that has died is noticed by its process's end."""
OPENED = "opened"


def place() -> tuple[int, int]:
    """Returns this process's rank, and the number of ranks."""
    if not dist.is_available() or not dist.is_initialized():
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def share(n: int, *, train: bool) -> slice:
    """Returns which places in the order of `n` samples are this rank's: each `ranks`th.

    When training it is as `DistributedSampler` gives them with `drop_last`. What is left out then
    differs in each epoch.
    """
    rank, ranks = place()
    end = n
    if train:
        # Ranks that wait for each other must make the same number of steps.
        end -= n % ranks
    return slice(rank, end, ranks)


def is_lost(error: BaseException) -> bool:
    """Returns whether `error` says that another rank is gone."""
    return isinstance(error, dist.DistError) or "gloo" in str(error) or "NCCL" in str(error)


class Group:
    """The ranks of a job, joined.

    Rank 0 gives them the store by which they find each other: it listens already.
    """

    def __init__(
        self,
        rank: int,
        ranks: int,
        port: int,
        memory: int,
        stop: Stop,
        listening: socket.socket | None,
    ) -> None:
        # All ranks are on this machine: Gloo need not look for an interface by the host's name.
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
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
        """Waits until rank 0 has its pipeline open: what it measures of the drive must not be
        shared.
        """
        self._store.wait([OPENED], FOREVER)

    def let_others_open(self) -> None:
        """Ends what `wait_for_first` waits for."""
        self._store.set(OPENED, "1")

    def latest(self, value: float) -> float:
        """Returns the largest `value` of all ranks, for which it waits."""
        values = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(values, dist.ReduceOp.MAX)
        return float(values)

    def spent(self, steps: int, *, spent: bool) -> bool:
        """Returns whether all ranks end after so many steps as rank 0's time is `spent`.

        `stop` then says whether they end as rank 0 was asked to stop.
        """
        wants = 0
        # Only rank 0 decides.
        if self.rank == 0:
            if spent:
                wants = SPENT
            elif self._stop():
                wants = STOPPED
        ends = self._agreement.ends(steps, wants)
        self._stopped = ends == STOPPED
        return ends == SPENT

    def stop(self) -> bool:
        """Returns whether to stop: between steps when all ranks do."""
        if self.in_steps:
            return self._stopped
        return self._stop()
