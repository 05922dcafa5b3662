"""Whether a script does more with a batch where it fetches it than `next()`: a generator, a `map` or a function around
the loader that transforms batches or puts them together anew. That time is the training's wait too.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from types import FrameType
from typing import Any

LOOKS = 3
"""So many fetches of the warm-up are looked at: from the optimizer's step to the return of the batch."""
MOST_EVENTS = 100_000
UNDERSTOOD = ("accelerate", "timm")
"""Packages whose loaders copy a batch to the device where they fetch the next one; that is told apart as a copy."""


@dataclass
class Look:
    """One step that is looked at, from the optimizer's step before it (s); 0 where it has not come to it."""

    began_s: float = 0.0
    since_s: float = 0.0
    """When the fetch began: the first call at the instruction that fetches."""
    until_s: float = 0.0
    """When it ended: the last return to that instruction."""
    asked_s: float = 0.0
    """When the request that is under way was made."""
    inner_s: float = 0.0
    """Time of the requests in the fetch."""
    n_requests: int = 0


class Wrapping:
    """Looks at the first fetches. The frame that trains is the innermost one that both fetches and steps the optimizer;
    all that it calls at the instruction that fetches is part of the fetch.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._fetching: dict[int, tuple[Any, int]] = {}
        """The frames of the first request, by `id`, with their code and instruction then: to keep them would keep the
        iterator alive."""
        self._trains: tuple[FrameType, int] | None = None
        self._look = Look()
        self._outside: list[float] = []
        """Share of each step's time that the fetch took outside `next()`."""
        self._n_events = self._thread = 0

    def request(self, now_s: float) -> None:
        """Notes a request for a batch: no call inside it is looked at."""
        if self.is_over:
            return
        if self._trains is not None and threading.get_ident() == self._thread:
            sys.setprofile(None)
            if self._trains[0].f_lasti == self._trains[1]:
                self._look.asked_s = now_s
        self._look.n_requests += 1
        frame: FrameType | None = None if self._fetching else sys._getframe(1)
        while frame is not None:
            if not _is_own(frame):
                self._fetching[id(frame)] = frame.f_code, frame.f_lasti
            frame = frame.f_back

    def receive(self, now_s: float) -> None:
        """Notes that it came, or that there is none."""
        if self._trains is not None and threading.get_ident() == self._thread:
            if self._look.asked_s:
                self._look.inner_s += now_s - self._look.asked_s
            self._look.asked_s = 0.0
            sys.setprofile(self._event)

    def stepped(self, send: Callable[[dict[str, Any]], None]) -> None:
        """Ends a look and begins the next one, as an optimizer has stepped; sends what was seen after the last."""
        if self.is_over or not self._fetching:  # another optimizer, or accumulated gradients
            return
        now_s = perf_counter()
        self._stop()
        look, self._look = self._look, Look(now_s)
        if look.until_s > look.since_s > 0:
            outside_s = max(0.0, look.until_s - look.since_s - look.inner_s)
            self._outside.append(outside_s * look.n_requests / (now_s - look.began_s))
        self._thread = threading.get_ident()
        frame: FrameType | None = sys._getframe(1)
        fetching, self._fetching = self._fetching, {}
        while frame is not None and (_is_own(frame) or fetching.get(id(frame), (None, 0))[0] is not frame.f_code):
            frame = frame.f_back
        self.is_over = len(self._outside) >= LOOKS or self._n_events > MOST_EVENTS
        if self.is_over and self._outside:
            send({"outside_next_frac": median(self._outside)})
        elif not self.is_over and frame is not None and sys.getprofile() is None and sys.gettrace() is None:
            self._trains = frame, fetching[id(frame)][1]
            sys.setprofile(self._event)

    def _stop(self) -> None:
        self._trains = None
        if sys.getprofile() == self._event:
            sys.setprofile(None)

    def _event(self, frame: FrameType, event: str, _: Any) -> None:
        trains, self._n_events = self._trains, self._n_events + 1
        if trains is None or self._n_events > MOST_EVENTS or (frame is trains[0] and event == "return"):
            self._stop()
        elif frame.f_back is trains[0] and event in ("call", "return"):
            if trains[0].f_lasti != trains[1]:
                if self._look.inner_s:
                    self._stop()  # it works on the batch
            elif event == "return":
                self._look.until_s = perf_counter()
            elif str(frame.f_globals.get("__name__")).partition(".")[0] in UNDERSTOOD:
                self._stop()
            else:
                self._look.since_s = self._look.since_s or perf_counter()


def _is_own(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("vitprof.watch")
