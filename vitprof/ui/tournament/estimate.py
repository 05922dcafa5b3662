"""An estimate of what a tournament takes, before it is started: time, disk and memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vitprof import home
from vitprof.config import PARTS, RunConfig
from vitprof.config.accelerators import accelerator, is_simulated
from vitprof.config.bounds import MORE_ROUNDS
from vitprof.config.catalog import DatasetInfo, dataset_info
from vitprof.config.estimates import Footprint, footprint
from vitprof.config.parts import Combination
from vitprof.config.strategies import strategy
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.experiments.tournament.planning import PlannedTrial
from vitprof.formats import size
from vitprof.store import RunQuery, RunStore
from vitprof.store.groups import RunGroup
from vitprof.ui.profile.what_if import STARTUP_S
from vitprof.ui.texts import rough_time

EARLIER = 20
"""Earlier runs of a strategy that are looked through for one with a throughput."""


@dataclass(frozen=True)
class Estimate:
    """What the trials that can run here take together."""

    seconds: float
    """Of all runs together. Those of `unknown` trials count with what is known of them, at least their start."""
    unknown: int
    """Number of trials whose speed is not known yet: their runs may take longer."""
    disk_bytes: int
    """What is written and kept: storages, and the data set itself if it is not there yet."""
    staged_bytes: int
    """The largest copy that a run makes and removes again."""
    ram_bytes: int
    """The most that a trial keeps in memory."""
    prepares: tuple[str, ...]
    """Names of the storages that are made first."""
    makes: str
    """Name of the data set that is made first; "" if it is there."""

    @property
    def needs_disk(self) -> int:
        """Bytes that must be free on disk."""
        return self.disk_bytes + self.staged_bytes


def estimate(able: Sequence[PlannedTrial], repeats: int, store: RunStore) -> Estimate:
    """Returns the estimate for the trials that can run, each `repeats` times. Reads the store only where the budget is
    not in seconds.
    """
    seconds, unknown, prepared, staged, ram = 0.0, 0, dict[str, int](), 0, 0
    speeds: dict[tuple[str, int], float] = {}
    info = _info(able[0].config) if able else None
    for trial in able:
        config = trial.config
        name = (config.strategy, config.batch_size)
        if config.seconds is None and name not in speeds:
            speeds[name] = _samples_per_s(config, store)
        took = config.seconds if config.seconds is not None else _training_s(config, speeds[name])
        unknown += config.seconds is None and math.isnan(speeds[name])
        seconds += repeats * (STARTUP_S + took)
        needs = _needs(config)
        if needs.prepared_as is not None and needs.made is None:
            prepared[needs.prepared_as] = needs.prepared_bytes
        staged, ram = max(staged, needs.staged_bytes), max(ram, needs.ram_bytes)
    there = info is None or (home.data_dir() / info.directory).is_dir()
    source = 0 if there or info is None or not able else _needs(able[0].config).source_bytes
    return Estimate(
        seconds=seconds,
        unknown=unknown,
        disk_bytes=sum(prepared.values()) + source,
        staged_bytes=staged,
        ram_bytes=ram,
        prepares=tuple(prepared),
        makes="" if there or info is None else info.name,
    )


def estimate_sentence(needs: Estimate, trials: int, spec: TournamentSpec) -> tuple[str, str]:
    """Returns two texts: how many runs, how long they take and how many rounds there may be; and what they write and
    keep, "" for nothing.
    """
    runs = trials * spec.repeats
    time = f"about {rough_time(needs.seconds)}"
    if needs.unknown:
        time = f"at least {rough_time(needs.seconds)} ({needs.unknown} of the settings never ran here)"
    how_many = f"{trials} {'setting' if trials == 1 else 'settings'} x {spec.repeats} {_rounds(spec.repeats)} = "
    how_many += f"{runs} {'run' if runs == 1 else 'runs'}, {time}"
    if spec.until_decided and trials > 1:
        most = spec.repeats + MORE_ROUNDS
        longest = rough_time(needs.seconds * most / spec.repeats)
        how_many += f"; up to {most} rounds (about {longest}) until it is decided"
    written = []
    if needs.makes:
        written.append(f"makes {needs.makes} first, which also takes time")
    if needs.prepares:
        written.append(f"prepares {', '.join(needs.prepares)} once, which also takes time")
    if needs.disk_bytes:
        written.append(f"keeps about {size(needs.disk_bytes)} on disk")
    if needs.staged_bytes:
        written.append(f"needs {size(needs.staged_bytes)} on disk for a copy during a run")
    if needs.ram_bytes:
        written.append(f"keeps up to {size(needs.ram_bytes)} of samples in RAM")
    return how_many, "; ".join(written)


def _rounds(n: int) -> str:
    return "round" if n == 1 else "rounds"


def _info(config: RunConfig) -> DatasetInfo:
    return dataset_info(config.dataset, config.n_images)


def _needs(config: RunConfig) -> Footprint:
    info = _info(config)
    parts: Combination = strategy(config.strategy).combination(info, {kind: getattr(config, kind) for kind in PARTS})
    return footprint(parts, info, config.cache_mb)


def _samples_per_s(config: RunConfig, store: RunStore) -> float:
    """Returns the throughput of an earlier run of this strategy on this data set and device: of the newest, that with
    the nearest batch size. NaN if there is none.
    """
    query = RunQuery(
        strategies=(config.strategy,),
        datasets=(config.dataset,),
        devices=(config.device,),
        statuses=("done",),
        helpers=True,
    )
    earlier = store.list_runs(query, limit=EARLIER)
    rows = [r for r in earlier if r.samples_per_s and (not r.group_key or _is_trial(r.group_key))]
    rows.sort(key=lambda r: abs(math.log(r.batch_size / config.batch_size)))
    return float(rows[0].samples_per_s or math.nan) if rows else math.nan


def _is_trial(group_key: str) -> bool:
    group = RunGroup.parse(group_key)
    return group is not None and group.kind == "tournament"


def _training_s(config: RunConfig, samples_per_s: float) -> float:
    """Returns seconds of training for a budget in steps or epochs; with an unknown speed those of the device alone if
    it is simulated, else 0.
    """
    per_epoch = _info(config).n_train // config.batch_size
    steps = config.steps if config.steps is not None else (config.epochs or 1) * per_epoch
    if math.isfinite(samples_per_s):
        return steps * config.batch_size / samples_per_s
    if is_simulated(config.device):
        return steps * accelerator(config.device).span_s(config.batch_size)
    return 0.0
