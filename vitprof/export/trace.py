"""A run as a trace that ui.perfetto.dev and chrome://tracing open: the JSON form of the Trace Event
Format (Google).

Each run is a process of the trace; its tracks are the phases, the training loop, the device, the
copies and the loader or its workers. Spans are complete events ("X") whose times are microseconds
since the run began, to the nanosecond; those of one track never overlap. Telemetry and the loader's
queue are counters ("C"). The file is written piece by piece: of a whole run only telemetry and the
columns `GLANCE` are in memory.
"""

import gzip
import heapq
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, cast

import numpy as np

from vitprof.analysis.arrays import Floats, Ints, Series
from vitprof.analysis.timing.chain import nanoseconds
from vitprof.analysis.timing.timeline import KINDS, LANES, group_size, min_max, timeline
from vitprof.charts.style import DEVICE_TIME
from vitprof.recording.columns import SCHEMA_VERSION, TIMED_STAGES
from vitprof.store import RunStore, StoredRun

MOST_STEPS = 50_000
"""The most steps of a run that a trace holds unless asked for all: 60 MB of JSON, 6 MB compressed.

In a browser, a viewer takes more memory than that."""
CHUNK = 2_000
"""Steps whose spans are computed at once: each is compared with the evaluations near the chunk."""
DETAILED = 20_000
"""The most steps of a trace in which each batch has the times of the stages of making it.

Without them, 100,000 steps are 100 MB, 10 MB compressed."""
# Number of the first track of each kind; tracks are also sorted by it.
PHASES = 1
HOST = 100
DEVICE = 200
BUBBLES = 250
COPY = 300
LOADER = 1_000
OF_A_WORKER = 100
"""Tracks that are kept free for each worker."""
TRACKS: dict[str, tuple[int, str]] = {
    "host": (HOST, "training loop"),
    "copy": (COPY, "H2D copy"),
    "device": (DEVICE, "device"),
    "launches": (BUBBLES, "launch bubbles"),
}
"""Lane of `analysis.timing.timeline` -> its track and the track's name."""
GLANCE = ("step", "t_start_s", "made_start_s")
"""Columns that a trace needs of the whole run, to know its beginning."""
MAX_GROUPS = 5_000
"""Groups of neighbouring telemetry samples where a trace is cut; the lowest and the highest of each
are kept."""
EVENTS_AT_ONCE = 10_000
"""Events that are written at once."""
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
"""Name of the counter of the loader's queue."""
ARGS = ',"args":{"step":%d}'
"""The end of a span's event: the step that it belongs to."""


def write_trace(
    store: RunStore, runs: Sequence[StoredRun], file: BinaryIO, *, whole: bool = False
) -> str:
    """Writes the trace of these runs as strict JSON; the times of each run start at its own
    beginning.

    Of a run it has the first `MOST_STEPS` steps, unless `whole`. Returns in words which runs are
    cut; "" where none is.
    """
    traces = [RunTrace(store, run, whole=whole) for run in runs]
    cut = "; ".join(
        f"run {t.run.id}: the first {t.n_kept:,} of {t.n:,} steps" for t in traces if t.cut
    )
    simulated = ", ".join(str(run.id) for run in runs if run.simulated) or "none"
    about = {
        "program": "vitprof",
        "schema_version": str(SCHEMA_VERSION),
        "simulated": simulated,
        "cut": cut or "no",
    }
    head = {"displayTimeUnit": "ms", "otherData": about}
    file.write((json.dumps(head)[:-1] + ', "traceEvents": [\n').encode())
    events = itertools.chain.from_iterable(trace.events() for trace in traces)
    between = ""
    while some := ",\n".join(itertools.islice(events, EVENTS_AT_ONCE)):
        file.write((between + some).encode())
        between = ",\n"
    file.write(b"\n]}\n")
    return cut


def write_trace_gz(
    store: RunStore, runs: Sequence[StoredRun], file: BinaryIO, *, whole: bool = False
) -> str:
    """Does what `write_trace` does, compressed: both viewers open that too, and it is about a tenth
    of the size.
    """
    with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=6, mtime=0, filename="") as packed:
        return write_trace(store, runs, cast(BinaryIO, packed), whole=whole)


class RunTrace:
    """A run that is being written to a trace: its events as JSON, and what they need to know of
    those before.
    """

    def __init__(self, store: RunStore, run: StoredRun, *, whole: bool) -> None:
        self.run = run
        self._store = store
        glance = store.steps(run.id, names=GLANCE)
        self.n = len(glance["step"])
        """Number of steps that the run has."""
        self.n_kept = self.n if whole else min(self.n, MOST_STEPS)
        """Number of these that the trace has."""
        self._telemetry = store.telemetry(run.id)
        self._origin = _origin(run, glance, self._telemetry)
        self._depth = np.nan
        """Depth of the loader's queue at the previous step."""
        self._packers: dict[int, TrackPacker] = {}
        """First track of a kind -> its lanes."""

    def events(self) -> Iterator[str]:
        """Yields all events of the run."""
        run = self.run
        name = f"run {run.id}: {run.name}"
        if run.simulated:
            name += " (simulated device)"
        if self.cut:
            name += f" (the first {self.n_kept:,} of {self.n:,} steps)"
        yield self._meta("process_name", 0, name=name)
        yield from self._phases()
        for steps, first in self._parts():
            yield from self._spans(steps, first)
            new = {name: values[first:] for name, values in steps.items()}
            yield from self._making(new)
            yield from self._queue(new)
        yield from self._counters()

    @property
    def cut(self) -> bool:
        """Returns whether the trace has only the run's first steps."""
        return self.n_kept < self.n

    def _parts(self) -> Iterator[tuple[Series, int]]:
        """Yields the steps in parts, each after the last step of the one before, and the index of
        the first new one.
        """
        remaining = self.n_kept
        before = dict[str, Floats]()
        for part in self._store.steps_in_parts(self.run.id):
            new = {name: values[:remaining] for name, values in part.items()}
            n_new = len(new["step"])
            if not n_new:
                return
            # A gap begins at the end of the step before.
            joined = {
                name: np.concatenate([before.get(name, values[:0]), values])
                for name, values in new.items()
            }
            yield joined, len(joined["step"]) - n_new
            remaining -= n_new
            before = {name: values[-1:] for name, values in new.items()}

    def _meta(self, kind: str, tid: int, **args: Any) -> str:
        return _json(
            {"ph": "M", "name": kind, "pid": self.run.id, "tid": tid, "ts": 0, "args": args}
        )

    def _complete(
        self,
        first: int,
        title: str,
        start: Ints,
        end: Ints,
        names: Iterable[str],
        args: Iterable[str],
    ) -> Iterator[str]:
        """Yields complete events, in tracks from `first` on, after the names of new tracks.

        Times are in ns and written in microseconds; `names` are JSON, and so are `args`.
        """
        packer = self._packers.setdefault(first, TrackPacker())
        known = packer.n_lanes
        tracks = first + packer.pack(start, end)
        for extra in range(known, packer.n_lanes):
            track = first + extra
            name = f"{title} ({extra + 1})" if extra else title
            yield self._meta("thread_name", track, name=name)
            yield self._meta("thread_sort_index", track, sort_index=track)
        # One format for all events, in place of json.dumps for each of them.
        shape = f'{{"ph":"X","name":%s,"pid":{self.run.id},"tid":%d,"ts":%r,"dur":%r%s}}'
        ts = ((start - self._origin) / 1e3).tolist()
        dur = ((end - start) / 1e3).tolist()
        yield from map(shape.__mod__, zip(names, tracks.tolist(), ts, dur, args, strict=True))

    def _phases(self) -> Iterator[str]:
        phases = self.run.phases
        start = nanoseconds(np.array([p.t_start_s for p in phases], dtype=float))
        end = np.maximum(nanoseconds(np.array([p.t_end_s for p in phases], dtype=float)), start)
        names = [_json(phase.name) for phase in phases]
        yield from self._complete(PHASES, "phases", start, end, names, [""] * len(phases))

    def _spans(self, steps: Series, first: int) -> Iterator[str]:
        """Yields the loop, the copies and the device, each gap of the device with its cause, and
        its launch bubbles.
        """
        words = [_json(DEVICE_TIME[k][0]) for k in KINDS]
        idle = [_json(f"idle: {DEVICE_TIME[k][0]}") for k in KINDS]
        idle[KINDS.index("compute")] = _json("compute")
        for at in range(first, len(steps["step"]), CHUNK):
            spans = timeline(steps, self.run.phases, at, min(at + CHUNK, len(steps["step"])))
            for name in LANES:
                line = spans.only(name)
                start = nanoseconds(line.start_s)
                end = nanoseconds(line.end_s)
                order = np.lexsort((end, start))
                kinds = idle if name == "device" else words
                names = [kinds[kind] for kind in line.kind[order].tolist()]
                args = map(ARGS.__mod__, line.step[order].tolist())
                yield from self._complete(*TRACKS[name], start[order], end[order], names, args)

    def _making(self, steps: Series) -> Iterator[str]:
        """Yields the spans in which batches were made, on a track for each worker process.

        Without workers they are on one for the loop or its threads.
        """
        start = nanoseconds(steps["made_start_s"])
        end = nanoseconds(steps["made_end_s"])
        known = np.isfinite(steps["made_start_s"]) & np.isfinite(steps["made_end_s"])
        # -1: no worker made it
        worker = np.where(np.isfinite(steps["worker"]), steps["worker"], -1).astype(int)
        for who in np.unique(worker[known]).tolist():
            at = np.flatnonzero(known & (worker == who))
            at = at[np.lexsort((end[at], start[at]))]
            begun = start[at]
            ended = np.maximum(end[at], begun)
            first = LOADER + OF_A_WORKER * (who + 1)
            title = "loader" if who < 0 else f"loader worker {who}"
            names = ['"make batch"'] * len(at)
            stages = self._stages(steps, at)
            yield from self._complete(first, title, begun, ended, names, stages)

    def _stages(self, steps: Series, at: Ints) -> Iterable[str]:
        """Yields the number of each step, and how long the stages of making its batch took."""
        numbers = steps["step"][at].astype(int).tolist()
        if self.n_kept > DETAILED:
            yield from map(ARGS.__mod__, numbers)
            return
        for i, number in zip(at.tolist(), numbers, strict=True):
            seconds = {stage: float(steps[f"{stage}_s"][i]) for stage in TIMED_STAGES}
            took = {
                f"{stage}_ms": round(1e3 * s, 6) for stage, s in seconds.items() if np.isfinite(s)
            }
            yield f',"args":{_json({"step": number} | took)}'

    def _queue(self, steps: Series) -> Iterator[str]:
        """Yields the depth of the loader's queue where it changes."""
        depth = steps["queue_depth"]
        if len(depth):
            changed = np.diff(depth, prepend=self._depth) != 0
            self._depth = float(depth[-1])
            yield from self._counter(QUEUE, steps["t_start_s"][changed], depth[changed])

    def _counters(self) -> Iterator[str]:
        for column, name in COUNTERS.items():
            t_s = self._telemetry["t_s"]
            values = self._telemetry[column]
            if self.cut:
                n = len(values)
                at = np.unique(min_max(values, 0, n, group_size(n, MAX_GROUPS)))
                t_s = t_s[at]
                values = values[at]
            yield from self._counter(name, t_s, values)

    def _counter(self, name: str, t_s: Floats, values: Floats) -> Iterator[str]:
        at = np.flatnonzero(np.isfinite(t_s) & np.isfinite(values))
        at = at[np.argsort(t_s[at], kind="stable")]
        ts = (nanoseconds(t_s[at]) - self._origin) / 1e3
        shape = f'{{"ph":"C","name":%s,"pid":{self.run.id},"tid":0,"ts":%r,"args":{{"value":%r}}}}'
        same_name = _json(name)
        rows = zip(itertools.repeat(same_name), ts.tolist(), values[at].tolist())
        return map(shape.__mod__, rows)


def _origin(run: StoredRun, steps: Series, telemetry: Series) -> int:
    """Returns the beginning of the run's trace, in ns on the monotonic clock: no event is before
    it.
    """
    begins_s = []
    if run.t_origin_s is not None:
        begins_s.append(run.t_origin_s)
    columns = (steps["t_start_s"], steps["made_start_s"], telemetry["t_s"])
    begins_s += [float(np.nanmin(times)) for times in columns if np.isfinite(times).any()]
    begins_s += [p.t_start_s for p in run.phases]
    return int(nanoseconds(np.array([min(begins_s, default=0.0)]))[0])


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


class TrackPacker:
    """Lanes for spans that arrive in parts, roughly in the order of time."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        """When the last span on each lane ends."""

    def pack(self, start: Ints, end: Ints) -> Ints:
        """Returns a lane, from 0, for each span of a part, so that spans on one lane never overlap.

        Those of earlier parts count. One part takes as few lanes as possible. All arrays are (n,)
        int64. Spans may come in any order; end >= start.
        """
        lanes = np.zeros(len(start), dtype=np.int64)
        order = np.lexsort((end, start))
        reached = np.maximum.accumulate(end[order])
        alone = len(self._ends) < 2 and not (start[order][1:] < reached[:-1]).any()
        if alone and len(order) and (not self._ends or start[order[0]] >= self._ends[0]):
            # The usual case: a worker makes one batch at a time.
            self._ends = [int(reached[-1])]
            return lanes
        # A heap of the lanes in use, by their end, and one of those that are free, by their number.
        busy = sorted((until, lane) for lane, until in enumerate(self._ends))
        free: list[int] = []
        for i in order.tolist():
            while busy and busy[0][0] <= start[i]:
                heapq.heappush(free, heapq.heappop(busy)[1])
            lane = heapq.heappop(free) if free else len(self._ends)
            if lane == len(self._ends):
                self._ends.append(0)
            lanes[i] = lane
            self._ends[lane] = int(end[i])
            heapq.heappush(busy, (self._ends[lane], lane))
        return lanes

    @property
    def n_lanes(self) -> int:
        """Returns how many lanes there are so far."""
        return len(self._ends)
