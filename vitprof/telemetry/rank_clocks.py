"""Clocks of the GPUs that the ranks of a job use: one that is slowed down, by heat or power, holds
up all others.
"""

import threading
from collections import Counter
from collections.abc import Callable

import pynvml

from vitprof.telemetry.nvml import Nvml

PERIOD_S = 1.0
"""Time (s) between two samples."""
SEND_EVERY = 2
"""Samples between two sendings."""


class RankClocks:
    """A thread that samples the clocks of the GPUs of two or more ranks."""

    def __init__(
        self, send: Callable[[dict[str, float]], object], *, period_s: float = PERIOD_S
    ) -> None:
        """`send` gets the median clock (MHz) of each rank's GPU so far, by the rank's number as
        text.
        """
        self._send = send
        self._period_s = period_s
        self._sent: dict[str, float] = {}
        self._gpus: dict[int, str] = {}
        self._clocks: dict[int, Counter[float]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vitprof-clocks", daemon=True)

    def add(self, rank: int, gpu_uuid: str) -> None:
        """Adds a rank's GPU. Sampling begins with the second: a single rank holds up nobody."""
        self._gpus[rank] = gpu_uuid
        if len(self._gpus) == 2:
            self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        with Nvml() as nvml:
            n = 0
            while nvml.available and not self._over.wait(self._period_s):
                for rank, uuid in list(self._gpus.items()):
                    mhz = None
                    handle = nvml.call("nvmlDeviceGetHandleByUUID", uuid)
                    if handle:
                        clock = pynvml.NVML_CLOCK_SM
                        mhz = nvml.call("nvmlDeviceGetClockInfo", handle, clock)
                    if mhz:
                        self._clocks.setdefault(rank, Counter())[float(mhz)] += 1
                n += 1
                medians = {str(rank): _median(counts) for rank, counts in self._clocks.items()}
                if n % SEND_EVERY == 0 and medians != self._sent:
                    self._sent = medians
                    self._send(medians)


def _median(counts: Counter[float]) -> float:
    """Returns the median of values and how often each was seen.

    Values are counted, not listed: a clock has a few dozen of them, however long a run is.
    """
    remaining = counts.total() / 2
    for value in sorted(counts):
        remaining -= counts[value]
        if remaining <= 0:
            break
    return value
