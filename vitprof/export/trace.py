"""A run as a trace that ui.perfetto.dev and chrome://tracing open: the JSON form of the Trace Event Format (Google).

Each run is a process of the trace; its tracks are the phases, the training loop, the device, the copies and whoever
made the batches. Spans are complete events ("X") whose times are microseconds since the run began, to the
nanosecond; those of one track never overlap. Telemetry and the loader's queue are counters ("C").
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from vitprof.analysis.arrays import Floats, Ints, Series
from vitprof.analysis.timing.spans import nanoseconds
from vitprof.analysis.timing.timeline import KINDS, LANES, timeline
from vitprof.charts.style import DEVICE_TIME
from vitprof.config.accelerators import is_simulated
from vitprof.export.track_packing import pack_tracks
from vitprof.records import SCHEMA_VERSION, TIMED_STAGES
from vitprof.store import RunStore, StoredRun

Event = dict[str, Any]

CHUNK = 2_000
"""Steps whose spans are worked out at once: each is compared with the evaluations near the chunk."""
DETAILED = 20_000
"""Steps up to which a batch tells the stages of its making; without them 100,000 steps are
100 MB, 10 MB compressed."""
PHASES, HOST, DEVICE, BUBBLES, COPY, LOADER = 1, 100, 200, 250, 300, 1_000
"""Number of the first track of a kind; it is also what tracks are sorted by."""
TRACKS: dict[str, tuple[int, str]] = {
    "host": (HOST, "training loop"),
    "copy": (COPY, "H2D copy"),
    "device": (DEVICE, "device"),
    "launches": (BUBBLES, "launch bubbles"),
}
"""Lane of `analysis.timing.timeline` -> its track and the track's name."""
COUNTERS: dict[str, str] = {
    "gpu_util_pct": "GPU-util (%, trailing)",
    "gpu_mem_used_bytes": "GPU memory in use (bytes)",
    "gpu_mem_job_bytes": "GPU memory of the job (bytes)",
    "gpu_power_w": "GPU power (W)",
    "gpu_sm_clock_mhz": "GPU clock (MHz)",
    "gpu_temp_c": "GPU temperature (°C)",
    "pcie_rx_bytes_per_s": "PCIe to the GPU (bytes/s)",
    "cpu_pct": "CPU of the machine (%)",
    "job_cpu_pct": "CPU of the job (% of one core)",
    "job_rss_bytes": "memory of the job (bytes)",
    "disk_read_bytes_per_s": "disk reads (bytes/s)",
    "job_cpu_wait_pct": "job waiting for a core (% of one thread)",
    "gpu_sm_active_pct": "SM activity (%)",
    "gpu_sm_occupancy_pct": "SM occupancy (%)",
}
"""Column of telemetry -> the counter's name in the trace."""
QUEUE = "batches ready"


def trace_json(store: RunStore, runs: Sequence[StoredRun]) -> str:
    """Returns the trace of these runs, each from its own beginning. Strict JSON."""
    head = {
        "displayTimeUnit": "ms",
        "otherData": {
            "program": "vitprof",
            "schema_version": str(SCHEMA_VERSION),
            "simulated": ", ".join(str(run.id) for run in runs if is_simulated(run.config.device)) or "none",
        },
    }
    events = (json.dumps(e, allow_nan=False, ensure_ascii=False, separators=(",", ":")) for e in _events(store, runs))
    return json.dumps(head)[:-1] + ', "traceEvents": [\n' + ",\n".join(events) + "\n]}\n"


def trace_gz(store: RunStore, runs: Sequence[StoredRun]) -> bytes:
    """`trace_json`, compressed: both viewers open that too, and it is about a tenth of the size."""
    return gzip.compress(trace_json(store, runs).encode(), compresslevel=6, mtime=0)


def _events(store: RunStore, runs: Sequence[StoredRun]) -> Iterator[Event]:
    for run in runs:
        steps, telemetry = store.steps(run.id), store.telemetry(run.id)
        origin = _origin(run, steps, telemetry)
        simulated = " (simulated device)" if is_simulated(run.config.device) else ""
        yield _meta("process_name", run.id, 0, name=f"run {run.id}: {run.name}{simulated}")
        yield from _phases(run, origin)
        yield from _spans(run, steps, origin)
        yield from _making(run, steps, origin)
        yield from _counters(run, steps, telemetry, origin)


def _origin(run: StoredRun, steps: Series, telemetry: Series) -> int:
    """Returns where the trace of the run begins, ns on the monotonic clock: no event lies before it."""
    seen = [run.t_origin_s] if run.t_origin_s is not None else []
    columns = (steps["t_start_s"], steps["made_start_s"], telemetry["t_s"])
    seen += [float(np.nanmin(times)) for times in columns if np.isfinite(times).any()]
    seen += [p.t_start_s for p in run.phases]
    return int(nanoseconds(np.array([min(seen, default=0.0)]))[0])


def _meta(kind: str, pid: int, tid: int, **args: Any) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": args}


def _track(pid: int, tid: int, name: str) -> Iterator[Event]:
    yield _meta("thread_name", pid, tid, name=name)
    yield _meta("thread_sort_index", pid, tid, sort_index=tid)


def _span(name: str, pid: int, tid: int, start: int, end: int, origin: int, **args: Any) -> Event:
    """Returns a complete event; times in ns, written in microseconds. The args are left out where there are none."""
    event = {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": (start - origin) / 1e3, "dur": (end - start) / 1e3}
    return event | ({"args": args} if args else {})


def _phases(run: StoredRun, origin: int) -> Iterator[Event]:
    start = nanoseconds(np.array([p.t_start_s for p in run.phases], dtype=float))
    end = np.maximum(nanoseconds(np.array([p.t_end_s for p in run.phases], dtype=float)), start)
    lane = pack_tracks(start, end)
    for number in range(int(lane.max()) + 1 if len(lane) else 0):
        yield from _track(run.id, PHASES + number, f"phases ({number + 1})" if number else "phases")
    for i in np.lexsort((start, lane)).tolist():
        yield _span(run.phases[i].name, run.id, PHASES + int(lane[i]), int(start[i]), int(end[i]), origin)


def _spans(run: StoredRun, steps: Series, origin: int) -> Iterator[Event]:
    """Yields the loop, the copies and the device, each gap of the device with its cause, and its launch bubbles."""
    n = len(steps["step"])
    pieces = [timeline(steps, run.phases, first, min(first + CHUNK, n)) for first in range(0, n, CHUNK)]
    if not pieces:
        return
    lane, kind, step = (np.concatenate([getattr(p, name) for p in pieces]) for name in ("lane", "kind", "step"))
    start, end = (nanoseconds(np.concatenate([getattr(p, name) for p in pieces])) for name in ("start_s", "end_s"))
    device = LANES.index("device")
    words = [DEVICE_TIME[k][0] for k in KINDS]
    idle = ["compute" if k == "compute" else f"idle: {DEVICE_TIME[k][0]}" for k in KINDS]
    for number, name in enumerate(LANES):
        at = np.flatnonzero(lane == number)
        if not len(at):
            continue
        at = at[np.lexsort((end[at], start[at]))]
        own = pack_tracks(start[at], end[at])
        first, title = TRACKS[name]
        for extra in range(int(own.max()) + 1):
            yield from _track(run.id, first + extra, f"{title} ({extra + 1})" if extra else title)
        names = idle if number == device else words
        rows = zip(*(x.tolist() for x in (kind[at], step[at], start[at], end[at], own)), strict=True)
        for k, step_number, a, b, track in rows:
            yield _span(names[k], run.id, first + track, a, b, origin, step=step_number)


def _making(run: StoredRun, steps: Series, origin: int) -> Iterator[Event]:
    """Yields a track for each worker process; one for the loop or the threads that make batches where there is none."""
    start, end = nanoseconds(steps["made_start_s"]), nanoseconds(steps["made_end_s"])
    known = np.isfinite(steps["made_start_s"]) & np.isfinite(steps["made_end_s"])
    worker = np.where(np.isfinite(steps["worker"]), steps["worker"], -1).astype(int)
    detailed = len(known) <= DETAILED
    for number, who in enumerate(np.unique(worker[known]).tolist()):
        at = np.flatnonzero(known & (worker == who))
        at = at[np.lexsort((end[at], start[at]))]
        a, b = start[at], np.maximum(end[at], start[at])
        own = pack_tracks(a, b)
        title = "loader" if who < 0 else f"loader worker {who}"
        first = LOADER + 100 * number
        for extra in range(int(own.max()) + 1):
            yield from _track(run.id, first + extra, f"{title} ({extra + 1})" if extra else title)
        for i, begin, stop, track in zip(at.tolist(), a.tolist(), b.tolist(), own.tolist(), strict=True):
            took = {}
            if detailed:
                took = {
                    f"{stage}_ms": round(1e3 * float(steps[f"{stage}_s"][i]), 6)
                    for stage in TIMED_STAGES
                    if np.isfinite(steps[f"{stage}_s"][i])
                }
            yield _span("make batch", run.id, first + track, begin, stop, origin, step=int(steps["step"][i]), **took)


def _counters(run: StoredRun, steps: Series, telemetry: Series, origin: int) -> Iterator[Event]:
    for column, name in COUNTERS.items():
        yield from _counter(run, name, telemetry["t_s"], telemetry[column], origin)
    depth = steps["queue_depth"]
    changed = np.concatenate([np.ones(min(1, len(depth)), dtype=bool), depth[1:] != depth[:-1]])
    yield from _counter(run, QUEUE, steps["t_start_s"][changed], depth[changed], origin)


def _counter(run: StoredRun, name: str, t_s: Floats, values: Floats, origin: int) -> Iterator[Event]:
    at = np.flatnonzero(np.isfinite(t_s) & np.isfinite(values))
    at = at[np.argsort(t_s[at], kind="stable")]
    ts: Ints = nanoseconds(t_s[at]) - origin
    for t, value in zip(ts.tolist(), values[at].tolist(), strict=True):
        yield {"ph": "C", "name": name, "pid": run.id, "tid": 0, "ts": t / 1e3, "args": {"value": value}}
