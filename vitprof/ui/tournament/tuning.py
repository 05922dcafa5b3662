"""Tuning one strategy: workers, prefetch and batch size found within a time given, and the gain checked."""

from __future__ import annotations

import atexit
import dataclasses
import math
import threading
from typing import Any

import pandas as pd
import streamlit as st

from vitprof import formats
from vitprof.availability import why_unavailable
from vitprof.catalog import DATASETS, dataset_info
from vitprof.config import BUDGETS, KNOBS, PARTS, RunConfig
from vitprof.errors import ConfigError, VitprofError, one_line
from vitprof.jobs.autotune import TuneProgress, Tuning, tune
from vitprof.jobs.manager import JobManager
from vitprof.jobs.tuning import in_words
from vitprof.records import LIVE_STATUSES
from vitprof.strategies import STRATEGIES
from vitprof.ui import resources
from vitprof.ui.launch import machine
from vitprof.ui.settings import use_config
from vitprof.ui.texts import escaped, guarded
from vitprof.ui.tournament.choices import reject_unusable
from vitprof.ui.tournament.fields import draw_job, shown
from vitprof.ui.tournament.table import rounded
from vitprof.ui.widgets import FIELDS, label, settings

POLL_S = 1.0
LEAST_S = 10.0
"""Less time does not hold two runs of each of two settings."""
KEPT = "tuning"
DEFAULTS: dict[str, Any] = {"strategy": "workers", "seconds": 60.0, "same_batch": False}


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


def draw_tuning() -> None:
    """The form, and below it progress or what was found."""
    running = work().running
    if not running:
        with st.container(border=True):
            _draw_form()
    st.fragment(_draw_work, run_every=POLL_S if running else None)(running)


def _draw_form() -> None:
    st.markdown("**Find workers, prefetch and batch size for one strategy**")
    rejected = reject_unusable()
    draw_job()
    kept: dict[str, Any] = st.session_state.setdefault(KEPT, dict(DEFAULTS))
    left, middle, right = st.columns(3, vertical_alignment="bottom")
    with left:
        kept["strategy"] = st.selectbox(
            "Strategy", list(STRATEGIES), key=shown("tune-strategy", kept["strategy"]), help="What is tuned."
        )
    with middle:
        kept["seconds"] = st.number_input(
            "Time (s)",
            min_value=LEAST_S,
            step=10.0,
            format="%g",
            key=shown("tune-seconds", kept["seconds"]),
            help="For all of it, starting the runs included. More time tries more settings, and longer.",
        )
    with right:
        kept["same_batch"] = st.toggle(
            "Keep the batch size",
            key=shown("tune-same-batch", kept["same_batch"]),
            help=f"Leave it at {settings()['batch_size']}, as in the settings of Profile: another one also changes how "
            "the model learns.",
        )
    base = _base(str(kept["strategy"]))
    wrong = f"{label(base.field)} {base.value}: {base.allowed}" if isinstance(base, ConfigError) else ""
    if not wrong and isinstance(base, RunConfig):
        info = dataset_info(base.dataset, base.n_images)
        if why := why_unavailable(STRATEGIES[base.strategy], info, machine()):
            wrong = f"Not possible here: {why}"
    for text in filter(None, (rejected, wrong)):
        st.error(escaped(text))
    busy = bool(resources.store().runs(LIVE_STATUSES))
    st.button(
        "Start tuning",
        type="primary",
        icon=":material/tune:",
        key="tune-start",
        disabled=bool(wrong) or busy,
        on_click=work().start,
        args=(base, float(kept["seconds"]), bool(kept["same_batch"])),
        help="Many settings for a short time, the best third of them for longer, and so on (successive halving). Then "
        "the winner and the strategy's own setting run in turns, to check the gain.",
    )
    if busy:
        st.caption("Runs are going on or waiting; they would disturb it. Start it when they have ended.")


def _base(name: str) -> RunConfig | ConfigError:
    """The job to tune: the strategy with its own settings, the rest as in the sidebar of Profile."""
    values = settings()
    left_out = {"strategy", "name", "replay", *BUDGETS, *PARTS, "workers", "prefetch_factor"}
    given = {field: values[field] for field in FIELDS if field not in left_out}
    try:
        any_size = DATASETS[values["dataset"]].any_size
        info = dataset_info(values["dataset"], values["n_images"] if any_size else None)
        taken = STRATEGIES[name].knobs(STRATEGIES[name].combination(info), info)
        given |= {"n_images": values["n_images"] if any_size else None}
        given |= {knob: None for knob in KNOBS if knob in given and knob not in taken}
        return RunConfig(strategy=name, **given, **{values["budget"]: values[values["budget"]]})
    except ConfigError as error:
        return error


@guarded
def _draw_work(was_running: bool) -> None:
    tuning = work()
    if tuning.running != was_running:
        if was_running:
            st.toast("Tuning is done.", icon=":material/tune:")
        st.rerun(scope="app")
    if tuning.running:
        now = tuning.progress
        text = "starting" if now is None else now.words
        if now is not None and math.isfinite(now.best_per_s):
            text += f"; best so far {formats.number(now.best_per_s, 'samples/s')}"
        with st.container(horizontal=True, vertical_alignment="center"):
            st.progress(now.fraction if now else 0.0, text=escaped(text), width="stretch")
            st.button(
                "Stop",
                key="tune-stop",
                icon=":material/stop:",
                on_click=tuning.stop,
                help="Ends it; the best so far is the result.",
            )
        return
    if tuning.error:
        st.error(f"Nothing was tuned: {escaped(tuning.error)}")
    if tuning.found is not None:
        _draw_found(tuning.found)


def _draw_found(found: Tuning) -> None:
    with st.container(border=True):
        st.markdown(f"**Found**  \n{escaped(found.sentence)}.")
        if st.button(
            "Use this setting",
            type="primary",
            icon=":material/play_arrow:",
            key="tune-use",
            help="Puts it into the sidebar of Profile. Nothing starts yet.",
        ):
            use_config(dataclasses.replace(found.config, name=""))
            st.switch_page("pages/profile.py")
        st.code(found.command, language="bash", wrap_lines=True)
    st.dataframe(
        pd.DataFrame(
            [
                {
                    "Setting": in_words(t.candidate),
                    "Stage": f"rung {t.rung}" if t.rung else "check",
                    "Samples/s": rounded(t.samples_per_s),
                    "Run": t.run_id,
                    "Remark": t.error,
                }
                for t in found.tried
            ]
        ),
        hide_index=True,
        width="stretch",
        key="tune-table",
        placeholder="–",
        column_config={
            "Stage": st.column_config.TextColumn(help="Each rung trains fewer settings for longer; check: the gain."),
            "Samples/s": st.column_config.NumberColumn(format="localized", help="Steady-state throughput."),
        },
    )
    st.caption("Kept until the dashboard ends; its runs stay in History.")
