"""The agreement of ranks on the step after which all of them end, without torch.

One that trains on waits for the others forever. The agreement costs a step no message: it is in
memory that the processes share.
"""

import mmap
import time

AGREEMENT_EVERY_S = 0.0005
"""How often (s) a rank that has nothing left to do looks whether the agreement is final."""
NEVER = 1 << 62
# Places in the shared memory.
LAST = 0
"""The number of steps after which all end."""
SURE = 1
"""Whether that is final."""
WHY = 2
"""Why they end: `SPENT` or `STOPPED`."""
N_HEADS = 3
"""Behind these is, for each rank, how many steps it will have made after its next one; not used for
rank 0."""
SPENT = 1
STOPPED = 2


class Agreement:
    """The agreement after how many steps all ranks end.

    `memory` is the descriptor of a file that they share.
    """

    def __init__(self, memory: int, rank: int, ranks: int) -> None:
        self._shared = memoryview(mmap.mmap(memory, agreement_bytes(ranks))).cast("q")
        self._rank = rank
        if rank == 0:
            self._shared[LAST] = NEVER

    def ends(self, steps: int, why: int = 0) -> int:
        """Returns 0 if this rank, which has made so many steps, makes another one; else `SPENT` or
        `STOPPED`.

        Rank 0 says by `why` that it wants to end. The others can be in a step by then that it has
        not made: it makes that, too.
        """
        shared = self._shared
        if self._rank:
            # Written before it reads LAST, which rank 0 writes before it reads this: one of the two
            # sees the other's.
            shared[N_HEADS + self._rank] = steps + 1
        elif why and shared[LAST] == NEVER:
            shared[WHY] = why
            shared[LAST] = steps
            while (most := max(shared[N_HEADS:])) > shared[LAST]:
                shared[LAST] = most
            shared[SURE] = 1
        while steps >= shared[LAST] and not shared[SURE]:
            time.sleep(AGREEMENT_EVERY_S)
        if steps < shared[LAST]:
            return 0
        return shared[WHY]


def agreement_bytes(ranks: int) -> int:
    """Returns the size of the shared memory for so many ranks: numbers of eight bytes."""
    return 8 * (N_HEADS + ranks)
