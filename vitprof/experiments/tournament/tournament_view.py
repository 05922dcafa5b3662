"""The state of a tournament: its trials and the results of their runs, its progress, its leaderboard.

Nothing here changes a tournament.
"""

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np

from vitprof.analysis.signatures.resources import others_cpu
from vitprof.analysis.tournament.blocks import (
    DISTURBANCE_COLUMNS,
    NONE,
    Disturbance,
    RunBlocks,
    core_waits,
    cores_for_all,
    disturbance,
    over_epochs,
    run_blocks,
)
from vitprof.analysis.tournament.entries import (
    Entry,
    Losses,
    RunOutcome,
    Status,
    loss_effect,
    over_whole_epochs,
)
from vitprof.analysis.tournament.epoch_samples import (
    EpochSamples,
    are_counted,
    epoch_samples,
    why_other_samples,
)
from vitprof.analysis.tournament.leaderboard import Leaderboard, leaderboard
from vitprof.analysis.tournament.pixels import of_facts, pixels_words, together
from vitprof.config import PARTS, accelerators, estimates
from vitprof.config.own_script import UNCHANGED, divides_anew
from vitprof.config.parts import THROTTLED, prepared_as
from vitprof.config.strategies import strategy
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.config.varied import STORAGE
from vitprof.datasets import catalog
from vitprof.errors import ConfigError, StoreError
from vitprof.experiments.tournament.planning import PlannedTrial, baseline_of, plan
from vitprof.experiments.trials import Progress
from vitprof.recording.columns import LIVE_STATUSES, RunSummary
from vitprof.store import RunStore
from vitprof.store.tournaments import StoredTournament, TrialRun, newest_runs, tournament

BLOCK_COLUMNS = (
    "step",
    "epoch",
    "warmup",
    "samples",
    "t_start_s",
    "step_s",
    "data_wait_s",
    "queue_depth",
)
"""Step columns that `run_blocks` and `over_epochs` need."""
BY_A_PERSON = "stopped by the user"
"""Why a trial has no more runs, where the tournament has no other reason."""
NOT_COUNTED = (
    "no epoch ended in its runs, so it was not counted whether its workers give each sample once"
)
"""What is not known of a setting that divides the samples of an IterableDataset."""
NOT_KNOWN = Disturbance(np.empty(0), np.empty(0, dtype=bool))
"""Where nobody looked who else ran: all blocks count."""


@dataclass(frozen=True)
class TournamentState:
    """A tournament at one moment."""

    tournament: StoredTournament
    planned: tuple[PlannedTrial, ...]
    entries: tuple[Entry, ...]
    """In the order of the plan."""
    progress: Progress
    baseline: str
    """The key of the trial that the others are compared with."""
    n_train: int
    """Training samples of an epoch, for each rank; 0 where that is not known."""
    spent_s: float
    """Seconds that its runs took."""

    @property
    def goes_on(self) -> bool:
        """Returns whether more runs come by themselves, as far as is known: a round may be added to the
        planned ones until it is decided.
        """
        t = self.tournament
        has_more = t.spec.until_decided or self.progress.done < self.progress.total
        return t.held and t.status == "running" and has_more

    def entry(self, key: str) -> Entry:
        return next(e for e in self.entries if e.key == key)


class TournamentView:
    """Reads one tournament. The results of runs that have ended are read once and kept. Threads may share it."""

    def __init__(self, store: RunStore, tournament_id: int) -> None:
        self._store = store
        self._id = tournament_id
        self._lock = threading.RLock()
        self._ended: dict[tuple[int, bool], RunOutcome] = {}
        self._losses: dict[int, Losses] = {}
        self._planned: tuple[TournamentSpec, tuple[PlannedTrial, ...]] | None = None
        self._board: tuple[object, Leaderboard] | None = None

    def state(self) -> TournamentState:
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
                entries = with_samples(entries, planned, script.loader or {})
                n_train = samples_of_an_epoch(entries)
            else:
                n_train = catalog.dataset_info(base.dataset, base.n_images).n_train // base.ranks
            spent: dict[int, float] = {}
            for entry in entries:
                for outcome in entry.outcomes:
                    summary = outcome.summary
                    if summary is not None and math.isfinite(summary.wall_s):
                        spent[outcome.run_id] = summary.wall_s
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
        """Returns the leaderboard of `now` (default: the current state), the last one if no trial has
        changed.
        """
        with self._lock:
            now = now or self.state()
            trials = []
            for entry in now.entries:
                runs = [(outcome.run_id, outcome.status) for outcome in entry.outcomes]
                trials.append((entry.key, entry.status, entry.n_made, runs))
            state = (now.baseline, trials)
            if self._board is None or self._board[0] != state:
                board = leaderboard(now.entries, baseline=now.baseline, n_train=now.n_train)
                self._board = state, board
            return self._board[1]

    def _entry(
        self, trial: PlannedTrial, runs: Mapping[int, TrialRun], stored: StoredTournament
    ) -> Entry:
        was_cut = trial.key in stored.cut
        # without round 0, which is compared with no other
        rounds = [number for number in sorted(runs) if number]
        outcomes = tuple(self._outcome(runs[number], was_cut) for number in rounds)
        status, reason = _status(trial, outcomes, runs, stored)
        summaries = [outcome.summary for outcome in outcomes if outcome.summary is not None]
        newest = summaries[-1] if summaries else None
        return Entry(
            key=trial.key,
            strategy=trial.config.strategy,
            batch_size=trial.config.batch_size,
            workers=trial.workers,
            page_cache=trial.config.page_cache,
            outcomes=outcomes,
            status=status,
            reason=reason,
            n_made=sum(run.n_made for run in runs.values()),
            pixels=pixels_words(together(outcome.decoded for outcome in outcomes)),
            **_costs(trial, newest, stored.spec),
        )

    def _with_losses(self, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        """Returns the entries, each with how its setting changes the losses against the script as it is."""
        losses: dict[str, list[Losses]] = {}
        for entry in entries:
            counted = [o.run_id for o in entry.outcomes if o.status in ("done", "cut")]
            losses[entry.key] = [self._losses_of(run_id) for run_id in counted]
        as_it_is = losses.get(UNCHANGED, [])
        compared = []
        for entry in entries:
            result = loss_effect(as_it_is, losses[entry.key])
            compared.append(replace(entry, losses=result.sentence, effect=result.effect))
        return tuple(compared)

    def _losses_of(self, run_id: int) -> Losses:
        if run_id not in self._losses:
            steps = self._store.steps(run_id, names=("step", "loss"))
            self._losses[run_id] = Losses(steps["step"], steps["loss"])
        return self._losses[run_id]

    def _outcome(self, run: TrialRun, was_cut: bool) -> RunOutcome:
        if run.status in LIVE_STATUSES:
            live: Status = "waiting" if run.status == "queued" else "running"
            return RunOutcome(run.round, run.id, live, NONE.per_s, None)
        key = run.id, was_cut
        if key not in self._ended:
            status = cast(Status, run.status)
            # a trial was cut for what it had reached by then, so that counts
            if was_cut and run.status == "stopped":
                status = "cut"
            self._ended[key] = ended_outcome(self._store, run.id, run.round, status)
        return self._ended[key]


def samples_of_an_epoch(entries: Sequence[Entry]) -> int:
    """Returns the samples of an epoch of a script, as the first of its runs counted them that could; 0 where
    none did. The length of its dataset is another number where a sampler draws a part of it."""
    for entry in sorted(entries, key=lambda entry: entry.key != UNCHANGED):
        for outcome in entry.outcomes:
            if outcome.summary is not None and math.isfinite(outcome.summary.epoch_samples):
                return round(outcome.summary.epoch_samples)
    return 0


def rounds_of(now: TournamentState) -> int:
    """Returns how many rounds there have been."""
    return max((o.round for e in now.entries for o in e.outcomes), default=0)


def ended_outcome(store: RunStore, run_id: int, number: int, status: Status) -> RunOutcome:
    """Returns the outcome of a run that has ended, in round `number`; without blocks if it failed or
    is unreadable.
    """
    try:
        steps = store.steps(run_id, names=BLOCK_COLUMNS)
        run = store.run(run_id)
    except StoreError:
        return RunOutcome(number, run_id, status, NONE.per_s, None, over_epochs=math.nan)
    counts = status in ("done", "cut")
    blocks = run_blocks(steps) if counts else NONE
    disturbance = disturbance_of(store, run_id, blocks) if counts else NOT_KNOWN
    return RunOutcome(
        round=number,
        run_id=run_id,
        status=status,
        blocks_per_s=blocks.per_s,
        summary=run.summary,
        others_cores=others_of(store, run_id) if status == "done" else math.nan,
        over_epochs=over_epochs(steps),
        node=run.environment.get("hostname", ""),
        block_samples=blocks.samples,
        block_others_cores=disturbance.others_cores,
        disturbed=disturbance.disturbed,
        epoch_samples=epoch_samples(steps),
        decoded=of_facts(run.facts.get("decoded") or {}),
        cores=cores_for_all(run.environment),
        waited=waited_of(store, run_id) if status == "done" else math.nan,
    )


def with_samples(
    entries: Sequence[Entry], planned: Sequence[PlannedTrial], loader: Mapping[str, Any]
) -> tuple[Entry, ...]:
    """Returns the entries of a script's settings: one that gives another number of samples an epoch has
    failed. Another batch size may change that number by itself.

    `loader`: the script's own.
    """
    counted: dict[str, list[EpochSamples]] = {}
    for entry in entries:
        ended = [o for o in entry.outcomes if o.status in ("done", "cut")]
        counted[entry.key] = [outcome.epoch_samples for outcome in ended]
    as_it_is = counted.get(UNCHANGED, [])
    compared = []
    for entry, trial in zip(entries, planned, strict=True):
        changes = {} if trial.setting is None else trial.setting.changes
        of_setting = counted[entry.key]
        if changes and of_setting and "batch_size" not in changes:
            compared.append(_with_samples(entry, of_setting, as_it_is, loader))
        else:
            compared.append(entry)
    return tuple(compared)


def _with_samples(
    entry: Entry,
    of_setting: Sequence[EpochSamples],
    as_it_is: Sequence[EpochSamples],
    loader: Mapping[str, Any],
) -> Entry:
    workers = entry.workers or 0
    # the last batch of each worker may not be full, or dropped
    most_workers = max(1, workers, int(loader.get("num_workers") or 0))
    why = why_other_samples(as_it_is, of_setting, entry.batch_size * most_workers)
    if why:
        return replace(entry, status="failed", reason=why)
    if divides_anew(loader, workers) and not are_counted(as_it_is, of_setting):
        return replace(entry, samples=NOT_COUNTED)
    return entry


def disturbance_of(store: RunStore, run_id: int, blocks: RunBlocks) -> Disturbance:
    """Returns what other programs did during the blocks of a run; not known where it is unreadable."""
    try:
        telemetry = store.telemetry(run_id, names=DISTURBANCE_COLUMNS)
        return disturbance(blocks, telemetry, store.run(run_id).environment)
    except StoreError:
        return NOT_KNOWN


def others_of(store: RunStore, run_id: int) -> float:
    """Returns the cores that other programs took in a run's steady state; NaN where it is not known."""
    try:
        steps = store.steps(run_id, names=("t_start_s", "epoch", "warmup"))
        seen = store.telemetry(run_id, names=("t_s", "cpu_pct", "job_cpu_pct"))
        return others_cpu(steps, seen, store.run(run_id).environment).cores
    except StoreError:
        return math.nan


def waited_of(store: RunStore, run_id: int) -> float:
    """Returns how many threads of a run waited for a core in its steady state, on average; NaN where it
    is not known."""
    try:
        steps = store.steps(run_id, names=("t_start_s", "epoch", "warmup"))
        seen = store.telemetry(run_id, names=("t_s", "job_cpu_wait_pct"))
        return core_waits(steps, seen)
    except StoreError:
        return math.nan


def _status(
    trial: PlannedTrial,
    outcomes: Sequence[RunOutcome],
    runs: Mapping[int, TrialRun],
    stored: StoredTournament,
) -> tuple[Status, str]:
    """Returns the status of a trial, and the reason where it needs one."""
    if trial.refused:
        return "refused", trial.refused
    for outcome in outcomes:
        if outcome.status == "failed":
            error = runs[outcome.round].error or "it failed"
            return "failed", f"{error} (run {outcome.run_id})"
    if trial.key in stored.cut:
        return "cut", stored.cut[trial.key]
    if any(o.status == "running" for o in outcomes):
        return "running", ""
    n_done = sum(o.status == "done" for o in outcomes)
    is_over = stored.status in ("stopped", "done")
    why_over = stored.note or BY_A_PERSON
    has_all = n_done >= stored.spec.repeats
    if has_all or (n_done and is_over):
        reasons = []
        if not has_all:
            reasons = [f"{n_done} of {stored.spec.repeats} rounds", why_over]
        if not any(len(o.blocks_per_s) for o in outcomes):
            warmup = f"the first {trial.config.warmup_steps} are warm-up"
            reasons.append(f"no steady step: {warmup}; give it more steps")
        return "done", "; ".join(reasons)
    if is_over:
        return "stopped", why_over
    return "waiting", ""


def _costs(trial: PlannedTrial, summary: RunSummary | None, spec: TournamentSpec) -> dict[str, Any]:
    """Returns how a setting reads, and what it costs besides time; NaN for what was not measured.

    These are fields of `Entry`.
    """
    config = trial.config
    conversion = None if spec.script is None else spec.script.conversion
    if conversion is not None and trial.setting is not None:
        form = conversion["forms"].get(trial.setting.changes.get(STORAGE), {})
        return {
            "ram_bytes": 0.0,
            "prepare_s": form.get("prepare_s", 0.0),
            "disk_bytes": form.get("disk_bytes", 0.0),
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
    prepare_s = 0.0 if own else summary.storage_prepare_s
    disk_bytes = 0.0 if own else summary.storage_bytes
    # follows from the data set's size alone
    ram_bytes: float = needs.ram_bytes - needs.ram_disk_bytes
    if parts.location == "staged":
        disk_bytes += summary.stage_bytes
    elif parts.location == "ram-disk":
        ram_bytes += summary.stage_bytes
    return {**reading, "prepare_s": prepare_s, "disk_bytes": disk_bytes, "ram_bytes": ram_bytes}


T = TypeVar("T")


def rotated(items: Sequence[T], n: int) -> list[T]:
    """Returns the `items` with another one first in each round `n`, so that none is always early or
    always late.
    """
    first = n % len(items) if items else 0
    return [*items[first:], *items[:first]]


def planned_rounds(
    planned: Sequence[PlannedTrial], repeats: int
) -> Iterator[tuple[int, PlannedTrial]]:
    """Yields the (round, trial) to run, one after another: whole rounds of all trials that are not
    refused.
    """
    able = [t for t in planned if not t.refused]
    for number in range(repeats):
        yield from ((number + 1, trial) for trial in rotated(able, number * len(able) // repeats))


@dataclass(frozen=True)
class _Turn:
    """A trial's turn in a round, with its newest run."""

    key: str
    round: int
    run: TrialRun | None
    """None until it was started."""
    is_out: bool
    """Whether the trial takes no part in further rounds: it failed or was cut short."""

    @property
    def is_live(self) -> bool:
        return self.run is not None and self.run.status in LIVE_STATUSES

    @property
    def is_over(self) -> bool:
        """Returns whether no other run of it comes: it is done, or ended and its trial is out."""
        if self.run is None or self.is_live:
            return False
        return self.is_out or self.run.status == "done"

    @property
    def fraction(self) -> float:
        """Returns the share of its training that the live run has done, 0..1."""
        if self.run is None or not self.is_live or self.run.stage != "training":
            return 0.0
        return self.run.progress or 0.0


def _turns(
    stored: StoredTournament,
    planned: Sequence[PlannedTrial],
    entries: Sequence[Entry],
    newest: Mapping[str, Mapping[int, TrialRun]],
) -> list[_Turn]:
    """Returns the turns that were taken or are certain to come: without those that a trial which is out no
    longer takes, and without rounds that may be added.
    """
    out = {entry.key for entry in entries if entry.status in ("failed", "cut")}
    repeats = stored.spec.repeats
    places = [(trial.key, number) for number, trial in planned_rounds(planned, repeats)]
    for key, runs in newest.items():
        places += [(key, number) for number in runs if number > repeats]
    turns = []
    for key, number in places:
        turn = _Turn(key, number, newest.get(key, {}).get(number), key in out)
        if turn.run is not None or not turn.is_out:
            turns.append(turn)
    return turns


def _current(turns: Sequence[_Turn]) -> _Turn | None:
    """Returns the turn that is shown as the one going on: a running one before one that waits."""
    live = [turn for turn in turns if turn.is_live]
    running = [turn for turn in live if turn.run is not None and turn.run.status == "running"]
    if running:
        return running[-1]
    return live[0] if live else None


def _progress(
    stored: StoredTournament,
    planned: Sequence[PlannedTrial],
    entries: Sequence[Entry],
    newest: Mapping[str, Mapping[int, TrialRun]],
    spent: Mapping[int, float],
    *,
    own: bool,
) -> Progress:
    """Returns the progress of a tournament from its plan, its entries and the newest run of each trial
    and round.

    Counted are runs that have ended by themselves or were cut short, the running one, and those that are
    certain to come (`_turns`). `spent`: run id -> seconds. `own`: a script of the user's, which takes as
    long to start each time.
    """
    turns = _turns(stored, planned, entries, newest)
    pending = [turn for turn in turns if not turn.is_over]
    current = _current(pending)
    took = _took(entries, spent, own=own)
    expected_s = _expected(planned, took)
    remaining_s = math.fsum(expected_s[turn.key] * (1 - turn.fraction) for turn in pending)
    if stored.spec.seconds is not None and remaining_s > 0:
        until_limit_s = max(stored.spec.seconds - math.fsum(spent.values()), 0.0)
        if current is not None:
            # it is finished, also beyond the limit
            until_limit_s += _mean([run_s for of_trial in took.values() for run_s in of_trial])
        remaining_s = min(remaining_s, until_limit_s)
    n_done = len(turns) - len(pending)
    done = float(n_done)
    if current is not None:
        done += current.fraction
    fraction = min(done / len(turns), 1.0) if turns else 1.0
    if current is not None and current.run is not None:
        return Progress(
            words=current.key,
            done=n_done,
            total=len(turns),
            fraction=fraction,
            seconds_left=remaining_s,
            run_id=current.run.id,
            round=current.round,
        )
    if stored.status in ("done", "stopped"):
        remaining_s = 0.0
    return Progress("", n_done, len(turns), fraction, remaining_s)


def _took(
    entries: Sequence[Entry], spent: Mapping[int, float], *, own: bool
) -> dict[str, list[float]]:
    """Returns how long (s) the runs of each trial took, by its key, with a typical start.

    The first job also prepares what others find, and loads PyTorch: so the shortest start stands for that
    of each. `spent`: run id -> seconds. `own`: a script of the user's, whose start is its own.
    """
    done: dict[str, list[RunOutcome]] = {}
    start_s: dict[int, float] = {}
    for entry in entries:
        done[entry.key] = [o for o in entry.outcomes if o.status == "done" and o.run_id in spent]
        for outcome in done[entry.key]:
            start_s[outcome.run_id] = 0.0 if own else _start_s(outcome.summary)
    typical_s = min(start_s.values(), default=0.0)
    if len(start_s) == 1:
        typical_s = min(typical_s, START_S)
    return {
        key: [spent[o.run_id] - start_s[o.run_id] + typical_s for o in outcomes]
        for key, outcomes in done.items()
    }


START_S = 0.5
"""What starting a job takes again (s), while only one has been started: the first one also loads PyTorch."""


def _start_s(summary: RunSummary | None) -> float:
    parts = (0.0, 0.0) if summary is None else (summary.startup_s, summary.prepare_s)
    return math.fsum(seconds for seconds in parts if math.isfinite(seconds))


def _expected(
    planned: Sequence[PlannedTrial], took: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    """Returns how long (s) a run of each trial takes: as its runs before.

    Without any, as long for its samples as other trials took for theirs. Where it is known how long the
    device takes, the geometric mean of both: a baseline, which runs first, is mostly slow.
    """
    # a budget in seconds or epochs takes as long with any batch size
    size = {t.key: t.config.batch_size if t.config.steps is not None else 1 for t in planned}
    n_samples = math.fsum(size[key] * len(of_trial) for key, of_trial in took.items())
    sample_s = math.nan
    if n_samples:
        sample_s = math.fsum(seconds for of_trial in took.values() for seconds in of_trial)
        sample_s /= n_samples
    expected = {}
    for trial in planned:
        before = took[trial.key]
        if before:
            expected[trial.key] = _mean(before)
            continue
        guess_s = sample_s * size[trial.key]
        steps = trial.config.steps
        if trial.config.simulated and steps is not None:
            device = accelerators.accelerator(trial.config.device)
            device_s = steps * device.span_s(trial.config.batch_size)
            guess_s = math.sqrt(guess_s * device_s)
        expected[trial.key] = guess_s
    return expected


def _mean(values: Sequence[float]) -> float:
    """Returns the mean; NaN of no values."""
    return math.fsum(values) / len(values) if values else math.nan
