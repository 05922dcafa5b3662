"""Counters of runs for Prometheus: seconds, steps and samples, by run and rank.

They are summed over all steps that the store has. A scrape reads only the steps that are new since
the one before. What is not known of a run is absent, not 0.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from vitprof.analysis.arrays import Series
from vitprof.analysis.thresholds import UNCLEAR_LOADERS_FRAC
from vitprof.analysis.timing.compute_parts import PARTS, part_seconds
from vitprof.analysis.timing.gaps import find_gaps
from vitprof.analysis.verdict.no_verdict import not_measurable
from vitprof.analysis.verdict.rendering import in_a_word
from vitprof.errors import StoreError, VitprofError, one_line
from vitprof.program import install_command
from vitprof.recording.columns import LIVE_STATUSES, Phase
from vitprof.store import RunQuery, RunRow, RunStore, StoredRun
from vitprof.store.machines import last_steps

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import CollectorRegistry

RECENT_S = 3600.0
"""For how long (s) a run that has ended is still listed: Prometheus has then seen its last values
many times over."""
MOST_RUNS = 100
"""The most ended runs that are listed."""
LABELS = ("run", "rank", "node", "job_id")
WHAT_WAS_SEEN = {"partly_watched": "", "forked_process_trains": False}
"""Facts that make a run one of a part of the training: the counters are of that part, and true."""
WAITS = {
    "data_wait": ("data_wait_s", "Time that the training loop was blocked in next(loader)."),
    "exposed_wait": (
        "exposed_wait_s",
        "The part of the data wait in which the device had nothing to do.",
    ),
}
"""Counter of seconds -> column, and what it is."""
STAGES = {
    "sampler": "sampler_s",
    "read": "read_s",
    "decode": "decode_s",
    "transform": "transform_s",
    "collate": "collate_s",
    "hand_over": "hand_over_s",
    "transfer": "h2d_s",
}
"""Stage of making a batch and bringing it to the device -> column."""
SUMMED = (*(column for column, _ in WAITS.values()), *STAGES.values())
"""Columns of seconds that are summed."""
OF_GAPS = (
    "step",
    "epoch",
    "t_start_s",
    "decode_wait_s",
    "device_prepare_s",
    "compute_start_s",
    "compute_s",
    "gap_s",
    "host_s",
    "outside_s",
    "h2d_start_s",
    "launch_idle_s",
)
"""Columns that `find_gaps` needs."""
OF_PARTS = tuple(f"{part}_compute_s" for part in PARTS[:-1])
"""Columns that `part_seconds` needs, besides `compute_s`."""
NAMES = tuple(dict.fromkeys((*OF_GAPS, *OF_PARTS, *SUMMED, "samples")))
"""Columns that are read, each once."""


def now_s() -> float:
    return dt.datetime.now(dt.UTC).timestamp()


@dataclass
class RankSums:
    """Sums over the steps of one rank so far."""

    last: int = -1
    """Number of the last step."""
    steps: int = 0
    samples: float = 0.0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SUMMED, 0.0))
    known: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SUMMED, 0))
    """Number of steps in which each column has a value."""
    parts: dict[str, float] = field(default_factory=dict)
    """Seconds of each part of compute, in the steps where it is known; none before it is."""
    idle_ns: int = 0
    timed: int = 0
    """Number of steps whose device time is known."""
    _before: Series | None = None
    """The last step: the gap of the next one begins at its end."""

    def add(self, new: Series, phases: Sequence[Phase]) -> None:
        """Adds the steps that follow."""
        n = len(new["step"])
        self.last = int(new["step"][-1])
        self.steps = self.steps + n
        self.samples += float(np.nansum(new["samples"]))
        for name in SUMMED:
            # A rounding error below 0 must not make a counter fall: Prometheus would take it for a
            # restart.
            self.seconds[name] += max(0.0, float(np.nansum(new[name])))
            self.known[name] += int(np.isfinite(new[name]).sum())
        for name, seconds in part_seconds(new).items():
            known = seconds[np.isfinite(seconds)]
            if len(known):
                self.parts[name] = self.parts.get(name, 0.0) + max(0.0, float(known.sum()))
        before = self._before or {name: values[:0] for name, values in new.items()}
        joint = {name: np.concatenate([before[name], values]) for name, values in new.items()}
        gaps = find_gaps(joint, phases)
        is_new = gaps.index >= len(before["step"])
        self.idle_ns += int(gaps.causes_ns[is_new, :-1].sum())
        self.timed += int(is_new.sum())
        self._before = {name: values[-1:] for name, values in new.items()}

    def is_known(self, n: int) -> bool:
        """Returns whether a figure that `n` steps have is one of the whole run."""
        return n > 0 and self.steps - n <= UNCLEAR_LOADERS_FRAC * self.steps


@dataclass
class RunCounters:
    """A run as it is listed, with the sums of each of its ranks."""

    row: RunRow
    run: StoredRun
    ended_s: float
    """When it had ended at the latest, in seconds since the epoch; infinity while it goes on."""
    ranks: dict[int, RankSums] = field(default_factory=lambda: {0: RankSums()})

    @property
    def facts(self) -> dict[str, Any]:
        """Returns what is known of the run; not what comes of comparing its ranks, which have
        counters of their own.
        """
        known: dict[str, Any] = {**self.run.environment, **self.run.facts}
        known.pop("ranks", None)
        return known

    def status(self) -> str:
        """Returns the status; "unwatched" for a script that goes on so."""
        run = self.run
        if run.live and (self.facts.get("partly_watched") or run.stage == "unwatched"):
            return "unwatched"
        return run.status

    def labels(self, rank: int) -> list[str]:
        """Returns the values of `LABELS`."""
        facts = self.facts
        hosts = {each: node["host"] for node in facts.get("nodes") or () for each in node["ranks"]}
        node = hosts.get(rank) or facts.get("hostname") or self.run.owner_host
        return [str(self.run.id), str(rank), node, facts.get("job_id") or ""]

    def info(self) -> dict[str, str]:
        """Returns the labels of the metric that says what the run is."""
        run = self.run
        verdict = ""
        if run.verdict is not None:
            verdict = in_a_word(run.verdict)
        return {
            "name": run.name,
            "status": self.status(),
            "device": run.environment.get("device") or run.config.device,
            "verdict": verdict,
            "simulated": str(run.simulated).lower(),
        }

    def seconds(self, of: RankSums) -> Iterator[tuple[str, float]]:
        """Yields each counter of seconds that is known, but for those of stages."""
        if not_measurable(self.facts | WHAT_WAS_SEEN, of.steps):
            return
        for name, (column, _) in WAITS.items():
            if of.is_known(of.known[column]):
                yield name, of.seconds[column]
        if of.is_known(of.timed) and not self.run.config.loader_only:
            yield "device_idle", of.idle_ns / 1e9


class RunCollector:
    """A collector, as prometheus_client's registry takes it, of the runs of a store that go on or
    ended lately.
    """

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._runs: dict[int, RunCounters] = {}
        self._old: set[int] = set()
        """Runs that had ended long ago when they were first seen."""
        self._scraping = threading.Lock()
        self.failure = ""
        """Why the store could not be read; "" where it was."""

    def update(self) -> list[RunCounters]:
        """Returns the runs to list, with their new steps. Raises `StoreError`."""
        rows = self._store.list_runs(RunQuery(), limit=MOST_RUNS)
        rows += self._store.list_runs(RunQuery(filters={"status": LIVE_STATUSES}), limit=MOST_RUNS)
        listed = {}
        for row in rows:
            counters = self._looked_up(row)
            if counters is not None:
                listed[row.id] = counters
        self._runs = listed
        # Runs that are no longer among the last ones need not be remembered.
        self._old = self._old & {row.id for row in rows}
        for run_id, lasts in last_steps(self._store, list(listed)).items():
            for rank, last in lasts.items():
                sums = listed[run_id].ranks.setdefault(rank, RankSums())
                if last <= sums.last:
                    continue
                parts = self._store.steps_of_rank(run_id, rank, after=sums.last, names=NAMES)
                for new in parts:
                    sums.add(new, listed[run_id].run.phases)
        return list(listed.values())

    def _looked_up(self, row: RunRow) -> RunCounters | None:
        """Returns the counters of a run that goes on or ended lately; None for any other."""
        known = self._runs.get(row.id)
        if row.id in self._old or row.status == "queued":
            return None
        if known is None or row.live or known.row != row:
            try:
                run = self._store.run(row.id)
            except VitprofError:
                # Another version wrote it, or it was deleted meanwhile.
                return None
            ended_s = _ended_s(run, was_live=known is not None)
            ranks = known.ranks if known else {0: RankSums()}
            known = RunCounters(row, run, ended_s, ranks)
        if known.ended_s < now_s() - RECENT_S:
            self._old.add(row.id)
            return None
        return known

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics, one scrape at a time.

        Those of runs are absent where the store cannot be read.
        """
        from prometheus_client.core import GaugeMetricFamily

        with self._scraping:
            try:
                listed = self.update()
                self.failure = ""
            except StoreError as error:
                listed = []
                self.failure = one_line(error)
            yield GaugeMetricFamily(
                "vitprof_store_up", "Whether the run store could be read.", float(not self.failure)
            )
            yield from _families(listed)


def _ended_s(run: StoredRun, *, was_live: bool) -> float:
    """Returns when a run ended, in seconds since the epoch; `was_live`: it was going on at the last
    scrape.
    """
    if was_live and not run.live:
        return now_s()
    return run.ended_s


def _families(listed: Sequence[RunCounters]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, InfoMetricFamily

    def counter(name: str, doc: str, *labels: str) -> Any:
        return CounterMetricFamily(f"vitprof_{name}", doc, labels=[*LABELS, *labels])

    info = InfoMetricFamily(
        "vitprof_run", "A run that goes on, or ended within the last hour.", labels=LABELS
    )
    steps = counter("steps", "Training steps.")
    samples = counter("samples", "Samples trained on.")
    stages = counter(
        "stage_seconds", "Time of a stage of making batches, over all workers.", "stage"
    )
    parts = counter(
        "compute_part_seconds",
        "Compute of steps whose parts are known: on a GPU those that are marked, some of all.",
        "part",
    )
    docs = {name: doc for name, (_, doc) in WAITS.items()}
    docs |= {
        "device_idle": "Time between steps in which the device computed nothing, without evaluations."
    }
    seconds = {name: counter(f"{name}_seconds", doc) for name, doc in docs.items()}
    for of_run in listed:
        for rank, sums in of_run.ranks.items():
            labels = of_run.labels(rank)
            info.add_metric(labels, of_run.info())
            steps.add_metric(labels, sums.steps)
            # Where there are none, nobody counted them.
            if sums.samples:
                samples.add_metric(labels, sums.samples)
            for name, value in of_run.seconds(sums):
                seconds[name].add_metric(labels, value)
            for stage, column in STAGES.items():
                if sums.known[column]:
                    stages.add_metric([*labels, stage], sums.seconds[column])
            for part, value in sums.parts.items():
                parts.add_metric([*labels, part], value)
    yield from (info, steps, samples, *seconds.values(), stages, parts)


def registry_of(collector: RunCollector) -> CollectorRegistry:
    """Returns a registry of this collector alone.

    Raises `VitprofError` where prometheus_client is not installed.
    """
    try:
        from prometheus_client.registry import CollectorRegistry
    except ModuleNotFoundError as error:
        raise VitprofError(
            f"metrics need prometheus-client, which is not installed: {install_command('metrics')}"
        ) from error
    registry = CollectorRegistry()
    registry.register(collector)
    return registry
