"""The tuning of one strategy that this server runs, for all its sessions."""

from __future__ import annotations

import streamlit as st

from vitprof.config import RunConfig
from vitprof.errors import ConfigError
from vitprof.experiments.tuning.search import TuneProgress, Tuning, tune
from vitprof.ui import resources
from vitprof.ui.background import BackgroundTask


@st.cache_resource(show_spinner=False)
def work() -> BackgroundTask[TuneProgress, Tuning]:
    """Returns the tuning of this server."""
    resources.manager()  # made first, so that at the end the tuning is stopped while there is still a manager
    return BackgroundTask("vitprof-tuning")


def start_work(base: RunConfig | ConfigError, seconds: float, same_batch: bool) -> None:
    """Starts a tuning unless one is running already or the settings cannot work."""
    if isinstance(base, ConfigError):
        return
    manager, sizes = resources.manager(), (base.batch_size,) if same_batch else None
    work().start(lambda tell, stopped: tune(manager, base, seconds, batch_sizes=sizes, progress=tell, stop=stopped))
