"""The agreement of ranks on the step after which all of them end, without torch.

One that trains on waits for the others forever. The agreement costs a step no message: it is in memory that the
processes share.
"""

import mmap
import time

POLL_S = 0.0005
NEVER = 1 << 62
LAST, SURE, WHY = range(3)
"""Places in the shared memory: the number of steps after which all end, whether that is final, and why they end. The
number of the step that each rank makes next follows."""
SPENT, STOPPED = 1, 2
N_HEADS = 3


class Agreement:
    """The agreement after how many steps all ranks end. `memory` is the descriptor of a file that they share."""

    def __init__(self, memory: int, rank: int, ranks: int) -> None:
        self._shared = memoryview(mmap.mmap(memory, agreement_bytes(ranks))).cast("q")
        self._rank = rank
        if rank == 0:
            self._shared[LAST] = NEVER

    def ends(self, steps: int, why: int = 0) -> int:
        """Returns 0 if this rank, after so many steps, makes another one; else `SPENT` or `STOPPED`. Rank 0 may say
        that it wants to end: the others can have begun a step that it has not, which it then makes too.
        """
        shared, mine = self._shared, N_HEADS + self._rank
        shared[mine] = steps + 1  # before the look at what was agreed: rank 0 looks the other way round
        if why and shared[LAST] == NEVER:
            shared[WHY] = why
            shared[LAST] = steps
            while (most := max(shared[N_HEADS:]) - 1) > shared[LAST]:
                shared[LAST] = most
            shared[SURE] = 1
        if steps < shared[LAST]:
            return 0
        while not shared[SURE]:
            time.sleep(POLL_S)
        return shared[WHY] if steps >= shared[LAST] else 0


def agreement_bytes(ranks: int) -> int:
    return 8 * (N_HEADS + ranks)
