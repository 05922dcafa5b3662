"""The tuning of one strategy that this server runs: a thread, for all its sessions."""

from __future__ import annotations

import atexit
import threading

import streamlit as st

from vitprof.config import RunConfig
from vitprof.errors import ConfigError, VitprofError, one_line
from vitprof.experiments.tuning.search import TuneProgress, Tuning, tune
from vitprof.jobs.manager import JobManager
from vitprof.ui import resources


class TuningWork:
    """The tuning of this server: what is running, and what came of the last one."""

    def __init__(self, manager: JobManager) -> None:
        self._manager = manager
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.progress: TuneProgress | None = None
        self.found: Tuning | None = None
        self.error = ""

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, base: RunConfig | ConfigError, seconds: float, same_batch: bool) -> None:
        """Begin, unless one is running already, or the settings cannot work."""
        with self._lock:
            if self.running or isinstance(base, ConfigError):
                return
            self._stop.clear()
            self.progress, self.found, self.error = None, None, ""
            sizes = (base.batch_size,) if same_batch else None
            self._thread = threading.Thread(
                target=self._work, args=(base, seconds, sizes), name="vitprof-tuning", daemon=True
            )
            self._thread.start()

    def _work(self, base: RunConfig, seconds: float, sizes: tuple[int, ...] | None) -> None:
        try:
            self.found = tune(
                self._manager, base, seconds, batch_sizes=sizes, progress=self._tell, stop=self._stop.is_set
            )
        except Exception as error:  # a thread's exception would be seen by nobody
            self.error = str(error) if isinstance(error, VitprofError) else one_line(error)

    def _tell(self, progress: TuneProgress) -> None:
        self.progress = progress

    def stop(self) -> None:
        """Ask it to end; the best so far is the result."""
        self._stop.set()

    def close(self) -> None:
        """End it and wait for its job to be gone."""
        self.stop()
        if self._thread is not None:
            self._thread.join()


@st.cache_resource(show_spinner=False)
def work() -> TuningWork:
    """The one of this server."""
    made = TuningWork(resources.manager())
    atexit.register(made.close)
    return made
