"""The state of a tournament: its trials and the results of their runs, its progress, its leaderboard. Reads only."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitprof.analysis.arrays import Floats
from vitprof.analysis.signatures.resources import others_cpu
from vitprof.analysis.tournament import THROTTLED, Entry, Leaderboard, Outcome, Status, block_rates, leaderboard
from vitprof.analysis.tournament.losses import Losses, loss_effect
from vitprof.config import PARTS, RunConfig
from vitprof.config.catalog import dataset_info
from vitprof.config.footprint import footprint
from vitprof.config.own_script_trials import UNCHANGED
from vitprof.config.parts import prepared_as
from vitprof.config.strategies import strategy
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.errors import ConfigError, StoreError
from vitprof.experiments.tournament.planning import PlannedTrial, baseline_of, plan
from vitprof.experiments.tournament.tournament_progress import TournamentProgress, progress_of
from vitprof.recording.columns import LIVE_STATUSES, RunSummary
from vitprof.store import RunStore
from vitprof.store.tournaments import StoredTournament, TrialRun, newest_runs, tournament

BLOCK_COLUMNS = ("step", "epoch", "warmup", "samples", "step_s", "data_wait_s", "queue_depth")
"""Columns that blocks of steps are made from."""
BY_A_PERSON = "stopped by the user"
"""Why a trial has no more runs, where the tournament has no other reason."""
EMPTY: Floats = np.empty(0)


@dataclass(frozen=True)
class TournamentState:
    """A tournament at one moment."""

    tournament: StoredTournament
    planned: tuple[PlannedTrial, ...]
    entries: tuple[Entry, ...]
    """In the order of the plan."""
    progress: TournamentProgress
    baseline: str
    """Key of the trial that the others are compared with."""
    n_train: int
    """Training samples of an epoch."""
    spent_s: float
    """Seconds that its runs took in total."""


class TournamentView:
    """Follows one tournament. The results of runs that have ended are read once and kept. Threads may share it."""

    def __init__(self, store: RunStore, tournament_id: int) -> None:
        self._store, self._id = store, tournament_id
        self._lock = threading.RLock()
        self._given: dict[int, tuple[RunSummary | None, Floats]] = {}
        self._others: dict[int, float] = {}
        self._losses: dict[int, Losses] = {}
        self._planned: tuple[TournamentSpec, tuple[PlannedTrial, ...]] | None = None
        self._board: tuple[object, Leaderboard] | None = None

    def look(self) -> TournamentState:
        """Returns the tournament's current state. Raises `StoreError` if it was deleted."""
        with self._lock:
            found = tournament(self._store, self._id)
            if self._planned is None or self._planned[0] != found.spec:  # a script's first trial decides on the others
                self._planned = found.spec, plan(found.spec)
            planned = tuple(
                dataclasses.replace(t, refused=found.refused.get(t.key, t.refused)) for t in self._planned[1]
            )
            newest = newest_runs(self._store, self._id)
            entries = tuple(self._entry(trial, newest.get(trial.key, {}), found) for trial in planned)
            if found.spec.script is not None:
                entries = self._with_losses(entries)
            spent = {
                o.run_id: o.summary.wall_s
                for e in entries
                for o in e.outcomes
                if o.summary is not None and math.isfinite(o.summary.wall_s)
            }
            return TournamentState(
                tournament=found,
                planned=planned,
                entries=entries,
                progress=progress_of(found, planned, entries, newest, spent),
                baseline=baseline_of(found.spec, planned),
                n_train=_n_train(found.spec),
                spent_s=math.fsum(spent.values()),
            )

    def board(self, standing: TournamentState | None = None) -> Leaderboard:
        """Returns the leaderboard of `standing` (default: the current state), the last one if no trial has changed."""
        with self._lock:
            standing = standing or self.look()
            now = (
                standing.baseline,
                *((e.key, e.status, e.n_made, *((o.run_id, o.status) for o in e.outcomes)) for e in standing.entries),
            )
            if self._board is None or self._board[0] != now:
                made = leaderboard(standing.entries, baseline=standing.baseline, n_train=standing.n_train)
                self._board = now, made
            return self._board[1]

    def _entry(self, trial: PlannedTrial, mine: Mapping[int, TrialRun], found: StoredTournament) -> Entry:
        was_cut = trial.key in found.cut
        outcomes = tuple(self._outcome(mine[number], was_cut) for number in sorted(mine) if number)
        status, reason = _status(trial, outcomes, mine, found)
        costs = _costs(trial.config, next((o.summary for o in reversed(outcomes) if o.summary is not None), None))
        return Entry(
            key=trial.key,
            strategy=trial.config.strategy,
            batch_size=trial.config.batch_size,
            workers=trial.workers,
            page_cache=trial.key.rpartition("/")[2] if trial.setting is None else trial.config.page_cache,
            outcomes=outcomes,
            status=status,
            reason=reason,
            n_made=sum(run.n_made for run in mine.values()),
            **_reading(trial.config),
            **costs,
        )

    def _with_losses(self, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        """Returns the entries, each with how its setting changes the losses against the script as it is."""
        of = {e.key: [self._losses_of(o.run_id) for o in e.outcomes if o.status in ("done", "cut")] for e in entries}
        as_it_is = of.get(UNCHANGED, [])
        return tuple(dataclasses.replace(e, losses=loss_effect(as_it_is, of[e.key]).sentence) for e in entries)

    def _losses_of(self, run_id: int) -> Losses:
        if run_id not in self._losses:
            steps = self._store.steps(run_id, names=("step", "loss"))
            self._losses[run_id] = Losses(steps["step"], steps["loss"])
        return self._losses[run_id]

    def _outcome(self, run: TrialRun, was_cut: bool) -> Outcome:
        if run.status in LIVE_STATUSES:
            return Outcome(run.round, run.id, "waiting" if run.status == "queued" else "running", EMPTY, None)
        if run.id not in self._given:
            self._given[run.id] = given(self._store, run.id)
        summary, blocks = self._given[run.id]
        if run.status == "done":
            if run.id not in self._others:
                self._others[run.id] = others_of(self._store, run.id)
            return Outcome(run.round, run.id, "done", blocks, summary, self._others[run.id])
        if run.status == "failed":
            return Outcome(run.round, run.id, "failed", EMPTY, summary)
        if was_cut:  # it was cut for what it had reached by then, so that counts
            return Outcome(run.round, run.id, "cut", blocks, summary)
        return Outcome(run.round, run.id, "stopped", EMPTY, summary)


def _n_train(spec: TournamentSpec) -> int:
    if spec.script is None:
        return dataset_info(spec.base.dataset, spec.base.n_images).n_train
    return int((spec.script.loader or {}).get("n_samples") or 0)


def rounds_of(now: TournamentState) -> int:
    """Returns how many rounds there have been."""
    return max((o.round for e in now.entries for o in e.outcomes), default=0)


def given(store: RunStore, run_id: int) -> tuple[RunSummary | None, Floats]:
    """Returns the summary of a run that has ended and samples/s of blocks of its steps, (n,) float64; None and an empty
    array where they cannot be read.
    """
    try:
        return store.run(run_id).summary, blocks_of(store, run_id)
    except StoreError:
        return None, EMPTY


def others_of(store: RunStore, run_id: int) -> float:
    """Returns the cores that other programs took in a run's steady state; NaN where it is not known."""
    try:
        steps = store.steps(run_id, names=("t_start_s", "epoch", "warmup"))
        seen = store.telemetry(run_id, names=("t_s", "cpu_pct", "job_cpu_pct"))
        return others_cpu(steps, seen, store.run(run_id).environment).cores
    except StoreError:
        return math.nan


def blocks_of(store: RunStore, run_id: int) -> Floats:
    """Returns samples/s of blocks of neighbouring steady steps of a run so far, (n,) float64."""
    return block_rates(store.steps(run_id, names=BLOCK_COLUMNS))


def _status(
    trial: PlannedTrial, outcomes: Sequence[Outcome], mine: Mapping[int, TrialRun], found: StoredTournament
) -> tuple[Status, str]:
    """Returns the status of a trial, and the reason where it needs one."""
    if trial.refused:
        return "refused", trial.refused
    if failed := next((o for o in outcomes if o.status == "failed"), None):
        return "failed", f"{mine[failed.round].error or 'it failed'} (run {failed.run_id})"
    if trial.key in found.cut:
        return "cut", found.cut[trial.key]
    if any(o.status == "running" for o in outcomes):
        return "running", ""
    done = sum(o.status == "done" for o in outcomes)
    over = found.status in ("stopped", "done")
    ended = found.note or BY_A_PERSON
    if done >= found.spec.repeats or (done and over):
        said = [] if done >= found.spec.repeats else [f"{done} of {found.spec.repeats} rounds", ended]
        if not any(len(o.blocks_per_s) for o in outcomes):
            said.append(f"no steady step: the first {trial.config.warmup_steps} are warm-up; give it more steps")
        return "done", "; ".join(said)
    return ("stopped", ended) if over else ("waiting", "")


def _reading(config: RunConfig) -> dict[str, Any]:
    """Returns in which order a setting reads, and whether from the throttled drive; {} where that is not known."""
    try:
        info = dataset_info(config.dataset, config.n_images)
        made = strategy(config.strategy)
        parts = made.combination(info, {kind: getattr(config, kind) for kind in PARTS})
    except ConfigError:
        return {}
    own = {**parts.knobs(), **made.defaults, **made.fixed}.get("shuffle") or "full"
    return {"shuffle": config.shuffle or own, "throttled": parts.location in THROTTLED}


def _costs(config: RunConfig, summary: RunSummary | None) -> dict[str, Any]:
    """Returns what a setting costs besides the time of each epoch. What was not measured is NaN."""
    unknown = {"prepare_s": math.nan, "disk_bytes": math.nan, "ram_bytes": math.nan}
    if summary is None:
        return unknown
    try:
        info = dataset_info(config.dataset, config.n_images)
        parts = strategy(config.strategy).combination(info, {kind: getattr(config, kind) for kind in PARTS})
        needs = footprint(parts, info, config.cache_mb)
    except ConfigError:
        return unknown
    own = prepared_as(parts.storage, info.kind) is None  # the data set's own files, which every strategy needs
    kept = needs.ram_bytes - needs.ram_disk_bytes  # follows from the data set's size alone
    return {
        "prepare_s": 0.0 if own else summary.storage_prepare_s,
        "disk_bytes": (0.0 if own else summary.storage_bytes)
        + (summary.stage_bytes if parts.location == "staged" else 0.0),
        "ram_bytes": kept + (summary.stage_bytes if parts.location == "ram-disk" else 0.0),
    }
