"""The state of a tournament: its trials and the results of their runs, its progress, its leaderboard. Reads only."""

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np

from vitprof.analysis.arrays import Floats
from vitprof.analysis.signatures.resources import others_cpu
from vitprof.analysis.tournament.entries import (
    Entry,
    Losses,
    Outcome,
    Status,
    loss_effect,
    over_whole_epochs,
)
from vitprof.analysis.tournament.leaderboard import Leaderboard, leaderboard
from vitprof.analysis.tournament.scores import block_rates, over_epochs
from vitprof.config import PARTS, accelerators, catalog, estimates
from vitprof.config.own_script import STORAGE, UNCHANGED
from vitprof.config.parts import THROTTLED, prepared_as
from vitprof.config.strategies import strategy
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.errors import ConfigError, StoreError
from vitprof.experiments.tournament.planning import PlannedTrial, baseline_of, plan
from vitprof.experiments.trials import Progress
from vitprof.recording.columns import LIVE_STATUSES, RunSummary
from vitprof.store import RunStore
from vitprof.store.tournaments import StoredTournament, TrialRun, newest_runs, tournament

BLOCK_COLUMNS = ("step", "epoch", "warmup", "samples", "step_s", "data_wait_s", "queue_depth")
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
    progress: Progress
    baseline: str
    n_train: int
    spent_s: float

    def entry(self, key: str) -> Entry:
        return next(e for e in self.entries if e.key == key)


class TournamentView:
    """Reads one tournament. The results of runs that have ended are read once and kept. Threads may share it."""

    def __init__(self, store: RunStore, tournament_id: int) -> None:
        self._store = store
        self._id = tournament_id
        self._lock = threading.RLock()
        self._ended: dict[tuple[int, bool], Outcome] = {}
        self._losses: dict[int, Losses] = {}
        self._planned: tuple[TournamentSpec, tuple[PlannedTrial, ...]] | None = None
        self._board: tuple[object, Leaderboard] | None = None

    def look(self) -> TournamentState:
        """Returns the tournament's current state. Raises `StoreError` if it was deleted."""
        with self._lock:
            stored = tournament(self._store, self._id)
            base = stored.spec.base
            script = stored.spec.script
            # a script's first trial decides on the others
            if self._planned is None or self._planned[0] != stored.spec:
                self._planned = stored.spec, plan(stored.spec)
            planned = tuple(
                replace(t, refused=stored.refused.get(t.key, t.refused)) for t in self._planned[1]
            )
            newest = newest_runs(self._store, self._id)
            entries = tuple(
                self._entry(trial, newest.get(trial.key, {}), stored) for trial in planned
            )
            entries = over_whole_epochs(entries)
            if script is not None:
                entries = self._with_losses(entries)
                n_train = int((script.loader or {}).get("n_samples") or 0)
            else:
                n_train = catalog.dataset_info(base.dataset, base.n_images).n_train // base.ranks
            ended = [
                (o.run_id, o.summary.wall_s)
                for e in entries
                for o in e.outcomes
                if o.summary is not None
            ]
            spent = {run_id: wall_s for run_id, wall_s in ended if math.isfinite(wall_s)}
            return TournamentState(
                tournament=stored,
                planned=planned,
                entries=entries,
                progress=_progress(stored, planned, entries, newest, spent, own=script is not None),
                baseline=baseline_of(stored.spec, planned),
                n_train=n_train,
                spent_s=math.fsum(spent.values()),
            )

    def board(self, now: TournamentState | None = None) -> Leaderboard:
        """Returns the leaderboard of `now` (default: the current state), the last one if no trial has changed."""
        with self._lock:
            now = now or self.look()
            trials = [
                (e.key, e.status, e.n_made, *((o.run_id, o.status) for o in e.outcomes))
                for e in now.entries
            ]
            changes = now.baseline, trials
            if self._board is None or self._board[0] != changes:
                self._board = (
                    changes,
                    leaderboard(now.entries, baseline=now.baseline, n_train=now.n_train),
                )
            return self._board[1]

    def _entry(
        self, trial: PlannedTrial, mine: Mapping[int, TrialRun], stored: StoredTournament
    ) -> Entry:
        outcomes = tuple(
            self._outcome(mine[number], trial.key in stored.cut)
            for number in sorted(mine)
            if number
        )
        status, reason = _status(trial, outcomes, mine, stored)
        return Entry(
            key=trial.key,
            strategy=trial.config.strategy,
            batch_size=trial.config.batch_size,
            workers=trial.workers,
            page_cache=trial.config.page_cache,
            outcomes=outcomes,
            status=status,
            reason=reason,
            n_made=sum(run.n_made for run in mine.values()),
            **_costs(
                trial,
                next((o.summary for o in reversed(outcomes) if o.summary is not None), None),
                stored.spec,
            ),
        )

    def _with_losses(self, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        of = {
            e.key: [self._losses_of(o.run_id) for o in e.outcomes if o.status in ("done", "cut")]
            for e in entries
        }
        effects = [loss_effect(of.get(UNCHANGED, []), of[e.key]) for e in entries]
        return tuple(
            replace(e, losses=s.sentence, effect=s.effect)
            for e, s in zip(entries, effects, strict=True)
        )

    def _losses_of(self, run_id: int) -> Losses:
        if run_id not in self._losses:
            steps = self._store.steps(run_id, names=("step", "loss"))
            self._losses[run_id] = Losses(steps["step"], steps["loss"])
        return self._losses[run_id]

    def _outcome(self, run: TrialRun, was_cut: bool) -> Outcome:
        if run.status in LIVE_STATUSES:
            return Outcome(
                run.round, run.id, "waiting" if run.status == "queued" else "running", EMPTY, None
            )
        key = run.id, was_cut
        if key not in self._ended:
            summary, blocks, whole, node = ended_run(self._store, run.id)
            # one that was cut was cut for what it had reached by then, so that counts
            status: Status = (
                "cut" if was_cut and run.status == "stopped" else cast(Status, run.status)
            )
            others = others_of(self._store, run.id) if status == "done" else math.nan
            counted = blocks if status in ("done", "cut") else EMPTY
            self._ended[key] = Outcome(
                run.round, run.id, status, counted, summary, others, whole, node
            )
        return self._ended[key]


def rounds_of(now: TournamentState) -> int:
    return max((o.round for e in now.entries for o in e.outcomes), default=0)


def ended_run(store: RunStore, run_id: int) -> tuple[RunSummary | None, Floats, float, str]:
    """Returns the summary of a run that has ended, `block_rates`, `over_epochs` and its node; None, none, NaN and "" if
    unreadable.
    """
    try:
        steps = store.steps(run_id, names=BLOCK_COLUMNS)
        run = store.run(run_id)
        return (
            run.summary,
            block_rates(steps),
            over_epochs(steps),
            run.environment.get("hostname", ""),
        )
    except StoreError:
        return None, EMPTY, math.nan, ""


def others_of(store: RunStore, run_id: int) -> float:
    """Returns the cores that other programs took in a run's steady state; NaN where it is not known."""
    try:
        steps = store.steps(run_id, names=("t_start_s", "epoch", "warmup"))
        seen = store.telemetry(run_id, names=("t_s", "cpu_pct", "job_cpu_pct"))
        return others_cpu(steps, seen, store.run(run_id).environment).cores
    except StoreError:
        return math.nan


def _status(
    trial: PlannedTrial,
    outcomes: Sequence[Outcome],
    mine: Mapping[int, TrialRun],
    stored: StoredTournament,
) -> tuple[Status, str]:
    if trial.refused:
        return "refused", trial.refused
    if failed := next((o for o in outcomes if o.status == "failed"), None):
        return "failed", f"{mine[failed.round].error or 'it failed'} (run {failed.run_id})"
    if trial.key in stored.cut:
        return "cut", stored.cut[trial.key]
    if any(o.status == "running" for o in outcomes):
        return "running", ""
    done = sum(o.status == "done" for o in outcomes)
    over = stored.status in ("stopped", "done")
    ended = stored.note or BY_A_PERSON
    if done >= stored.spec.repeats or (done and over):
        reasons = (
            []
            if done >= stored.spec.repeats
            else [f"{done} of {stored.spec.repeats} rounds", ended]
        )
        if not any(len(o.blocks_per_s) for o in outcomes):
            reasons.append(
                f"no steady step: the first {trial.config.warmup_steps} are warm-up; give it more steps"
            )
        return "done", "; ".join(reasons)
    return ("stopped", ended) if over else ("waiting", "")


def _costs(trial: PlannedTrial, summary: RunSummary | None, spec: TournamentSpec) -> dict[str, Any]:
    """Returns how a setting reads, and what it costs besides time; NaN for what was not measured."""
    config = trial.config
    if spec.script is not None and spec.script.conversion is not None and trial.setting is not None:
        form = spec.script.conversion["forms"].get(trial.setting.changes.get(STORAGE), {})
        return {"ram_bytes": 0.0} | {
            name: form.get(name, 0.0) for name in ("prepare_s", "disk_bytes")
        }
    unknown: dict[str, Any] = dict.fromkeys(("prepare_s", "disk_bytes", "ram_bytes"), math.nan)
    try:
        info = catalog.dataset_info(config.dataset, config.n_images)
        chosen = strategy(config.strategy)
        parts = chosen.combination(info, {kind: getattr(config, kind) for kind in PARTS})
        needs = estimates.footprint(parts, info, config.cache_mb)
    except ConfigError:
        return unknown
    default = {**parts.knobs(), **chosen.defaults, **chosen.fixed}.get("shuffle") or "full"
    reading = {"shuffle": config.shuffle or default, "throttled": parts.location in THROTTLED}
    if summary is None:
        return reading | unknown
    # the data set's own files, which every strategy needs
    own = prepared_as(parts.storage, info.kind) is None
    # follows from the data set's size alone
    kept = needs.ram_bytes - needs.ram_disk_bytes
    return reading | {
        "prepare_s": 0.0 if own else summary.storage_prepare_s,
        "disk_bytes": (0.0 if own else summary.storage_bytes)
        + (summary.stage_bytes if parts.location == "staged" else 0.0),
        "ram_bytes": kept + (summary.stage_bytes if parts.location == "ram-disk" else 0.0),
    }


T = TypeVar("T")


def rotated(items: Sequence[T], n: int) -> list[T]:
    """Returns the `items` with another one first in each round `n`, so that none is always early or always late."""
    first = n % len(items) if items else 0
    return [*items[first:], *items[:first]]


def planned_rounds(
    planned: Sequence[PlannedTrial], repeats: int
) -> Iterator[tuple[int, PlannedTrial]]:
    """Yields the (round, trial) to run, one after another: whole rounds of all trials that are not refused."""
    able = [t for t in planned if not t.refused]
    for number in range(repeats):
        yield from ((number + 1, trial) for trial in rotated(able, number * len(able) // repeats))


def _progress(
    stored: StoredTournament,
    planned: Sequence[PlannedTrial],
    entries: Sequence[Entry],
    newest: Mapping[str, Mapping[int, TrialRun]],
    spent: Mapping[int, float],
    *,
    own: bool,
) -> Progress:
    """Returns the progress: runs that ended or were cut short, the running one, and those that are certain to come.
    `own`: a script of the user's, which takes as long to start each time.
    """
    out = {e.key for e in entries if e.status in ("failed", "cut")}
    done_of = {
        e.key: [o for o in e.outcomes if o.status == "done" and o.run_id in spent] for e in entries
    }
    once = {
        o.run_id: 0.0 if own else _start_s(o.summary)
        for outcomes in done_of.values()
        for o in outcomes
    }
    start_s = min([*once.values(), *([START_S] if len(once) == 1 else [])], default=0.0)
    took = {
        key: [spent[o.run_id] - once[o.run_id] + start_s for o in outcomes]
        for key, outcomes in done_of.items()
    }
    expected_s = _expected(planned, took)
    typical = _mean([seconds for mine in took.values() for seconds in mine])
    turns = [(number, trial.key) for number, trial in planned_rounds(planned, stored.spec.repeats)]
    turns += [
        (number, key)
        for key, mine in newest.items()
        for number in mine
        if number > stored.spec.repeats
    ]
    done = total = 0
    left = 0.0
    within = 0.0
    current = None
    for number, key in turns:
        run = newest.get(key, {}).get(number)
        live = run is not None and run.status in LIVE_STATUSES
        if key in out and run is None:
            continue
        total += 1
        if run is not None and not live and (key in out or run.status == "done"):
            done += 1
            continue
        expected = expected_s[key]
        if run is not None and live and (current is None or run.status == "running"):
            within = (run.progress or 0.0) if run.stage == "training" else 0.0
            current = key, number, run.id
            expected *= 1 - within
        left += expected
    if stored.spec.seconds is not None and left > 0:
        left = min(
            left,
            max(stored.spec.seconds - math.fsum(spent.values()), 0.0)
            + (typical if current else 0.0),
        )
    key, number, run_id = current or ("", 0, None)
    fraction = min((done + within) / total, 1.0) if total else 1.0
    over = stored.status in ("done", "stopped") and not current
    return Progress(key, done, total, fraction, 0.0 if over else left, run_id, number)


START_S = 0.5
"""What starting a job takes again (s), while only one has been started: the first one also loads PyTorch."""


def _start_s(summary: RunSummary | None) -> float:
    parts = (0.0, 0.0) if summary is None else (summary.startup_s, summary.prepare_s)
    return math.fsum(seconds for seconds in parts if math.isfinite(seconds))


def _expected(
    planned: Sequence[PlannedTrial], took: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    """Returns how long (s) a run of each trial takes: as before; else for its samples as others took for theirs, or,
    where it is known how long the device takes, between that and this, since a baseline is mostly slow.
    """
    size = {t.key: t.config.batch_size if t.config.steps is not None else 1 for t in planned}
    samples = math.fsum(size[key] * len(mine) for key, mine in took.items())
    each_s = (
        math.fsum(seconds for mine in took.values() for seconds in mine) / samples
        if samples
        else math.nan
    )
    expected = {}
    for trial in planned:
        guess = each_s * size[trial.key]
        if trial.config.simulated and trial.config.steps is not None:
            device = accelerators.accelerator(trial.config.device)
            guess = math.sqrt(guess * trial.config.steps * device.span_s(trial.config.batch_size))
        expected[trial.key] = _mean(took[trial.key]) if took[trial.key] else guess
    return expected


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
