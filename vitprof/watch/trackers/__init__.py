"""Writes live figures of a watched training into the script's own active run of an experiment tracker, and the verdict
once the script has ended. A module for each tracker: none is imported unless it was asked for, and the tracker's own
package only where the script has imported it. An error of the tracker is one line; training goes on.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import sys
import threading
from collections.abc import Mapping
from time import perf_counter
from typing import Any, Protocol, cast

from vitprof.watch.core.tracked import SUMMED
from vitprof.watch.own_thread import OwnThread
from vitprof.watch.patching import say

EVERY_S = 5.0
"""How often (s) figures are written: a call takes 30 ms of a core (MLflow with SQLite)."""
TRACKER_CHECK_S = 0.5
"""How often (s) to look which run is active, which takes a microsecond."""
END_LIMIT_S = 2.0
"""How long (s) a script may have to wait at its end for the last figures to be written."""
SHARES = {
    "data_wait_frac": "data_wait_s",
    "exposed_wait_frac": "exposed_wait_s",
    "device_idle_frac": "gap_s",
}
"""Figure -> column; its share of the time of the steps."""
Target = Mapping[str, Any]
"""A run of a tracker, as plain values: all that it takes to write to it from another process. "local": whether writing
to it waits for no server."""


class Tracker(Protocol):
    """A module for one tracker. What it calls may raise anything."""

    def active(self, thread: int) -> Target | None:
        """Returns the run that is active in the script, in that thread if need be; None where there is none."""

    def log(self, run: Target, figures: Mapping[str, float], step: int) -> None:
        """Adds live figures, in the script's process."""

    def conclude(self, run: Target, figures: Mapping[str, float], words: Mapping[str, str]) -> None:
        """Adds figures of the whole run and words to it, in another process, once the script has ended."""


def tracker(name: str) -> Tracker:
    return cast(Tracker, importlib.import_module(f"{__name__}.{name}"))


class LiveLog:
    """The figures of the steps since the last time they were written, and the thread that writes them."""

    def __init__(
        self, wanted: str, forking: threading.RLock, trains: int, every_s: float = EVERY_S
    ) -> None:
        """`wanted`: the value of `LOG_TO`; `forking` is held while writing to a local run, so that no worker is forked
        in the middle of that: a database's lock would never be released in it. `trains`: the thread that trains.
        """
        self._name, _, self._path = wanted.partition(":")
        self._forking = forking
        self._every_s = every_s
        self._trains = trains
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._sums: dict[str, float] = dict.fromkeys(SUMMED, 0.0)
        self._n = 0
        self._step = 0
        self._run: Target | None = None
        self._thread = OwnThread(self._write_all, "vitprof-tracker")
        self._thread.start()

    def add(self, sums: Mapping[str, float | None], n: int, step: int) -> None:
        """Adds the sums over `n` finished steps, None: not known; `step`: the number of the last one."""
        with self._lock:
            for name in SUMMED:
                value = sums[name]
                self._sums[name] += math.nan if value is None else value
            self._n += n
            self._step = step

    def close(self) -> None:
        """Writes what is left. Waits for it, but not for a tracker that does not answer."""
        self._closing.set()
        self._thread.join(END_LIMIT_S)

    def _drain(self) -> tuple[dict[str, float], int]:
        """Returns the figures since the last call, and the number of the last step."""
        with self._lock:
            sums = self._sums
            n = self._n
            step = self._step
            self._sums = dict.fromkeys(SUMMED, 0.0)
            self._n = 0
        step_s = sums["step_s"]
        if not n or not step_s > 0:
            return {}, step
        figures = {name: sums[column] / step_s for name, column in SHARES.items()}
        if sums["samples"]:  # nobody counts them without a loader
            figures["samples_per_s"] = sums["samples"] / step_s
        known = {f"vitprof/{name}": f for name, f in figures.items() if math.isfinite(f)}
        return known, step

    def _write_all(self) -> None:
        try:
            module, closing, written_s = tracker(self._name), False, perf_counter()
            while not closing:
                closing = self._closing.wait(min(TRACKER_CHECK_S, self._every_s))
                run = module.active(self._trains) or (
                    self._run if closing else None
                )  # it may have ended just now
                if run is not None and run != self._run:
                    self._run = run
                    self._name_run(run)
                if run is not None and (closing or perf_counter() - written_s >= self._every_s):
                    written_s = perf_counter()
                    self._write(module, run)
        except Exception as error:
            why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            say(f"no more figures are written to {self._name} ({why}); training goes on")

    def _write(self, module: Tracker, run: Target) -> None:
        figures, step = self._drain()
        with self._forking if run["local"] else contextlib.nullcontext():
            if figures:
                module.log(run, figures, step)

    def _name_run(self, run: Target) -> None:
        """Writes into the file which run it is, and with what the tracker's server is reached."""
        settings = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(("MLFLOW_", "WANDB_"))
        }
        about = {"run": run, "python": sys.executable, "cwd": os.getcwd(), "variables": settings}
        with contextlib.suppress(OSError), open(f"{self._path}.new", "w", encoding="utf-8") as file:
            json.dump(about, file)
        with contextlib.suppress(OSError):
            os.replace(f"{self._path}.new", self._path)


def conclude() -> None:
    """Does what `Tracker.conclude` says, with what is on standard input. Ends with one line where that fails."""
    asked = json.load(sys.stdin)
    try:
        tracker(asked["tracker"]).conclude(asked["run"], asked["figures"], asked["words"])
    except Exception as error:
        sys.exit(" ".join(f"{type(error).__name__}: {error}".split())[:300])
