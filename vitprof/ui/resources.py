"""What all sessions of a server share: store, job manager, machine, long work, series of runs."""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import socket
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import streamlit as st

from vitprof import errors, formats, home
from vitprof.analysis.arrays import Floats, Series
from vitprof.analysis.timing import steady, summary
from vitprof.charts.live import LiveChart, Points
from vitprof.config import accelerators, availability, estimates, gpu_findings, own_script
from vitprof.experiments.trials import OnProgress, Progress, Stop
from vitprof.jobs import runners, users
from vitprof.jobs.manager import JobManager
from vitprof.recording.columns import STEP_COLUMNS, TELEMETRY_COLUMNS, TIMED_STAGES
from vitprof.store import RunQuery, RunStore
from vitprof.telemetry import nvml, visible
from vitprof.telemetry.machine import MachineWatch
from vitprof.ui.texts import act_button, draw_problem, escaped

Result = TypeVar("Result")
Work = Callable[[OnProgress, Stop], Result]
"""A function that receives two others: one to call with its progress, and one that returns whether
to stop."""
SERIES_KEPT = 12
"""Runs whose series stay in memory: 100,000 steps take 10 MB."""
LOOK_AGAIN_S = 10.0
"""Seconds for which a look at memory, disk and RAM disk is reused: every change of a setting
redraws the form."""
READ_LATER = frozenset(
    {
        *(f"{stage}_s" for stage in TIMED_STAGES),
        "hand_over_s",
        "sampler_s",
        "iterator_s",
        "made_start_s",
        "made_end_s",
        "queue_depth",
        "worker",
        "kernel_s",
        "forward_compute_s",
        "backward_compute_s",
        "optimizer_compute_s",
        "rank",
    }
)
"""Columns that no chart of a live run draws: how the loader made a batch, what compute is made of.
`findings.all_columns` reads them."""
STEP_NAMES = tuple(name for name in STEP_COLUMNS if name not in READ_LATER)
"""Columns that are kept in memory. A new column is one of them."""
_closing = contextlib.ExitStack()


def at_end(close: Callable[[], object]) -> None:
    """Registers `close` to be called when the server ends, before those that were registered
    earlier.
    """
    _closing.callback(close)


def end() -> None:
    """Calls each registered function once, the last one first. Errors are printed.

    The server calls this when it shuts down, because a process that then ends by a signal does not
    run atexit's functions.
    """
    try:
        _closing.close()
    except Exception:
        traceback.print_exc()


atexit.register(end)


@st.cache_resource(show_spinner=False)
def machine_watch() -> MachineWatch:
    watch = MachineWatch(home.home().absolute())
    at_end(watch.close)
    return watch


@st.cache_resource(show_spinner=False)
def manager() -> JobManager:
    jobs = JobManager(RunStore(), launcher=runners.Launcher().warm())
    at_end(jobs.shutdown)  # a server that ends stops its jobs and keeps what they measured
    with contextlib.suppress(OSError):  # only to name the page of a run on the command line
        port = home.home().absolute() / home.DASHBOARD_FILE
        port.write_text(str(st.get_option("server.port")), encoding="utf-8")
        at_end(partial(port.unlink, missing_ok=True))
    return jobs


def store() -> RunStore:
    return manager().store


@st.cache_resource(show_spinner=False)
def gpus() -> list[visible.VisibleGpu]:
    return visible.visible_gpus()


@st.cache_resource(show_spinner=False)
def driver() -> str:
    with nvml.Nvml() as library:
        return nvml.driver_version(library.call)


def card(gpu: visible.VisibleGpu, *, among: list[visible.VisibleGpu]) -> str:
    """Returns the GPU's name, with the start of its UUID where another of `among` has the same
    name.
    """
    twins = sum(other.name == gpu.name for other in among) > 1
    if twins and gpu.uuid:
        return f"{gpu.name}, {short_uuid(gpu.uuid)}"
    return gpu.name


def short_uuid(uuid: str) -> str:
    return "-".join(uuid.split("-")[:2])


def findings_of_gpu(precision: str = "", device: str = "auto") -> tuple[gpu_findings.Finding, ...]:
    """Returns the findings about runs on the GPU that `device` names, in `precision` ("" for
    any).
    """
    number = device.removeprefix("cuda:")
    index = int(number) if number.isdecimal() else 0
    named = [gpu for gpu in gpus() if gpu.index == index]
    if not named:
        return ()
    return gpu_findings.findings(named, os.environ, driver=driver(), precision=precision)


def gpu_is_usable() -> bool:
    return bool(gpus()) and all(finding.verdict != "bad" for finding in findings_of_gpu())


def device_names() -> dict[str, str]:
    """Returns the devices besides auto and cpu that a page offers, and how each is shown."""
    names = {}
    for gpu in gpus():
        names[f"cuda:{gpu.index}"] = f"cuda:{gpu.index} ({card(gpu, among=gpus())})"
    for simulated in accelerators.CARDS.values():
        names[f"{accelerators.SIMULATED}{simulated.name}"] = f"{simulated.title}, simulated"
    return names


@st.cache_resource(show_spinner=False, max_entries=SERIES_KEPT)
def series(run_id: int) -> RunSeries:
    """Returns the steps and telemetry of a run, shared by every session that looks at it."""
    return RunSeries(store(), run_id)


@st.cache_resource(show_spinner=False, ttl=LOOK_AGAIN_S)
def machine() -> availability.Machine:
    return availability.look_around()


STARTS_READ = 5
"""Newest runs whose start-up is looked at: enough for a median that one slow start does not move."""


@st.cache_resource(show_spinner=False, ttl=LOOK_AGAIN_S)
def usual_startup_s() -> float:
    """Returns how many seconds jobs here take to their first step: the median of the newest, or what
    is usual where none has run.

    A machine that is busy, or has a slow disk, takes several times as long as a quiet one.
    """
    query = RunQuery(filters={"status": ("done",), "host": (socket.gethostname(),)}, helpers=True)
    starts = []
    for row in store().list_runs(query, limit=STARTS_READ):
        run = store().run(row.id)
        if run.summary is None or own_script.is_own_script(run.config):
            continue
        if math.isfinite(run.summary.startup_s):
            starts.append(run.summary.startup_s)
    return float(np.median(starts)) if starts else estimates.STARTUP_S


def draw_progress(
    fraction: float, text: str, key: str, stop: Callable[[], object], help: str, *, may_stop: bool
) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.progress(min(fraction, 1.0), text=escaped(text), width="stretch")
        act_button("Stop", f"{key}-stop", "stop", stop, help, disabled=not may_stop)


class BackgroundTask(Generic[Result]):
    """One piece of work at a time: its progress while it runs, then its result or error.

    Ends with the program.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.progress: Progress | None = None
        self.result: Result | None = None
        self.started_by = ""
        """Who started the last work, where users log in; "" otherwise."""
        self.error = ""
        """Why there is no result, in one line."""
        at_end(self.close)

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Work[Result]) -> None:
        with self._lock:
            if self.running:
                return
            self._stop.clear()
            self.progress = None
            self.result = None
            self.error = ""
            self.started_by = users.who()
            self._thread = threading.Thread(
                target=users.carried(self._run), args=(work,), name=self._name, daemon=True
            )
            self._thread.start()

    def _run(self, work: Work[Result]) -> None:
        try:
            self.result = work(self._report, self._stop.is_set)
        except Exception as error:  # nobody would see an exception of the thread
            self.error = errors.one_line(error)

    def _report(self, progress: Progress) -> None:
        self.progress = progress

    def draw_progress(self, key: str, *, help: str) -> None:
        now = self.progress or Progress("starting", 0, 0, 0.0)
        text = now.words
        if math.isfinite(now.seconds_left):
            text += f", about {formats.rough_time(now.seconds_left)} left"
        draw_progress(
            now.fraction, text, key, self.stop, help, may_stop=users.may_stop(self.started_by)
        )
        draw_problem()

    def stop(self) -> None:
        """Requests the work to end; what it then returns is the result.

        Raises `JobError` if the user may not stop it.
        """
        users.check_may_stop("it", self.started_by)
        self._stop.set()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        self._stop.set()
        self.wait()


class Growing:
    """Columns that grow at the end.

    The cost of appending depends on what is appended, not on what is there.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._room = np.empty((len(names), 1024))
        self.n = 0

    def append(self, new: Series) -> None:
        added = len(new[self._names[0]])
        if self.n + added > self._room.shape[1]:
            room = np.empty((len(self._names), 2 * (self.n + added)))
            room[:, : self.n] = self._room[:, : self.n]
            self._room = room
        for row, name in enumerate(self._names):
            self._room[row, self.n : self.n + added] = new[name]
        self.n += added

    def view(self) -> Series:
        """Returns the columns as they are now; later appends do not change what was returned."""
        return {name: self._room[row, : self.n] for row, name in enumerate(self._names)}


class RunSeries:
    """Steps, telemetry and running totals of one run.

    Any thread may refresh; each row is read once.
    """

    def __init__(self, store: RunStore, run_id: int) -> None:
        self._store = store
        self._run_id = run_id
        self._lock = threading.Lock()
        self._n_stops = 0
        self._begin()

    def _begin(self) -> None:
        self._steps = Growing(STEP_NAMES)
        self._telemetry = Growing(TELEMETRY_COLUMNS)
        self._last_step = -1
        self._last_sample = -1
        self._running = summary.RunningTotals()

    def refresh(self, facts: Mapping[str, Any] | None = None) -> None:
        """Reads the rows that are new in the store.

        If `facts`, those of the run, name more stops than before, steps that were read already have
        since been left out, and everything is read again.
        """
        n_stops = len(steady.stops_of(facts or {}))
        with self._lock:
            if n_stops > self._n_stops:
                self._n_stops = n_stops
                self._begin()
            parts = self._store.steps_in_parts(
                self._run_id, after=self._last_step, names=STEP_NAMES
            )
            for new in parts:
                if len(new["step"]):
                    self._last_step = int(new["step"][-1])
                    self._running.add(new)
                    self._steps.append(new)
        self.refresh_telemetry()

    def refresh_telemetry(self) -> None:
        """Reads the new telemetry only, which is at most a fiftieth of the steps."""
        with self._lock:
            samples = self._store.telemetry(self._run_id, after=self._last_sample)
            if len(samples["seq"]):
                self._last_sample = int(samples["seq"][-1])
                self._telemetry.append(samples)

    @property
    def totals(self) -> summary.StepSums:
        """Sums over the steady steps so far, as `steady_state` chooses them."""
        return self._running.totals

    def steps(self) -> Series:
        with self._lock:
            return self._steps.view()

    def telemetry(self) -> Series:
        with self._lock:
            return self._telemetry.view()


@dataclass(frozen=True, slots=True)
class DrawnPoints:
    """The points of a chart that need not be computed again."""

    run_id: int
    start: int
    """Its first row."""
    group_size: int
    """Rows of a group."""
    until: int
    """The first row that is not in a full group yet."""
    points: list[Points]
    """Those of the full groups, for each trace."""

    def begins(self, run_id: int, start: int, group_size: int) -> bool:
        """Returns whether it has the groups of this run, from this row, of this size."""
        return (self.run_id, self.start, self.group_size) == (run_id, start, group_size)


class PointCache:
    """The points of each chart of one session.

    A refresh computes only the new groups and the last one.
    """

    def __init__(self) -> None:
        self._drawn: dict[str, DrawnPoints] = {}
        """By the key of the chart."""

    def points(
        self,
        chart: LiveChart,
        run_id: int,
        series: Series,
        origin_s: float,
        view: tuple[float, float] | None,
    ) -> list[Points]:
        """Returns a `Points` for each trace of `chart`: of the whole run, or finer of the range of
        x in `view`.
        """
        start, stop, size = window(chart, series, origin_s, view)
        drawn = self._drawn.get(chart.key)
        if drawn is None or not drawn.begins(run_id, start, size) or drawn.until > stop:
            none = chart.build(series, origin_s, start, start, size)
            drawn = DrawnPoints(run_id, start, size, start, none)
        full = stop - (stop - start) % size
        points = drawn.points
        if full > drawn.until:
            points = _joined(points, chart.build(series, origin_s, drawn.until, full, size))
        self._drawn[chart.key] = DrawnPoints(run_id, start, size, full, points)
        return _joined(points, chart.build(series, origin_s, full, stop, size))

    def steps_each(self, chart: LiveChart) -> int:
        """Returns the size of a group of the `chart` that was drawn last."""
        return self._drawn[chart.key].group_size


def _joined(before: Sequence[Points], after: Sequence[Points]) -> list[Points]:
    joined = []
    for a, b in zip(before, after, strict=True):
        text = None if a.text is None or b.text is None else [*a.text, *b.text]
        joined.append(Points(np.concatenate([a.x, b.x]), np.concatenate([a.y, b.y]), text))
    return joined


def window(
    chart: LiveChart, series: Series, origin_s: float, view: tuple[float, float] | None
) -> tuple[int, int, int]:
    """Returns the points to draw, as (start, stop), and how many of them make a group.

    They are all points, or those in view and as much again on either side, so that panning shows
    something at once.
    """
    n = len(next(iter(series.values())))
    if view is None:
        return 0, n, chart.group_size(n)
    if chart.x == "index":
        x: Floats = np.arange(n, dtype=float)
        origin = 0.0
    else:
        x = series[chart.x]
        origin = origin_s
    low, high = view
    margin = high - low
    start = max(0, int(np.searchsorted(x, low - margin + origin)) - 1)
    stop = int(np.searchsorted(x, high + margin + origin, side="right"))
    if stop <= start:  # zoomed to where there are no points
        return 0, n, chart.group_size(n)
    return start, stop, chart.group_size(stop - start, zoomed=True)
