"""The trials that a tournament has left: which setting runs next, when it is cut short, and when no other one runs."""

import math
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from vitprof import formats
from vitprof.analysis.arrays import Floats
from vitprof.analysis.thresholds import OTHERS_CORES
from vitprof.analysis.tournament import scores
from vitprof.analysis.tournament.entries import Entry, setting_in_words
from vitprof.analysis.tournament.leaderboard import Leaderboard, LeaderboardRow
from vitprof.analysis.tournament.recommend import can_be_fastest
from vitprof.analysis.tournament.scores import rounds_of, spoiled
from vitprof.analysis.tournament.tuning import first_rung, rung_sizes
from vitprof.config.bounds import MORE_ROUNDS
from vitprof.config.own_script import is_own_script
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.experiments.tournament import planning, tournament_view
from vitprof.experiments.tournament.tournament_view import (
    TournamentState,
    TournamentView,
    planned_rounds,
    rotated,
)
from vitprof.experiments.trials import Trial
from vitprof.store import RunStore, StoredRun, role_of
from vitprof.store.tournaments import (
    StoredTournament,
    TournamentStatus,
    newest_runs,
    set_status,
    tournament,
)

Next = tuple[int, planning.PlannedTrial]
"""A round, from 1, and the setting to run in it."""
CutShort = Callable[[str, str], None]
"""Called with the key of a setting that takes no part in the rounds to come, and why."""
End = tuple[TournamentStatus, str]
"""The status that a tournament ends with, and why in a line."""


def rounds(
    view: TournamentView,
    spec: TournamentSpec,
    planned: Sequence[planning.PlannedTrial],
    cut_short: CutShort,
) -> Iterator[Next]:
    """Yields what to run: whole rounds, then rounds of those that can still be the fastest until it is decided.
    Settings of a user's own script that are too many for the time limit are halved (successive halving).
    """
    if is_large(view.look(), spec, planned):
        yield from _halved(view, spec, planned, cut_short)
    else:
        yield from planned_rounds(planned, spec.repeats)
        for trial in planned:
            yield from _again(view, spec, trial)
    if not spec.until_decided:
        return
    by_key = {t.key: t for t in planned}
    for number in range(spec.repeats + 1, spec.repeats + MORE_ROUNDS + 1):
        open_ = can_be_fastest(view.board(view.look()))
        if not open_:
            return
        yield from ((number, by_key[key]) for key in rotated(open_, number))


def is_large(
    now: TournamentState, spec: TournamentSpec, planned: Sequence[planning.PlannedTrial]
) -> bool:
    """Returns whether the time limit is too short for all rounds of the settings of a user's own script."""
    if spec.script is None or spec.seconds is None:
        return False
    return _run_s(now) * spec.repeats * sum(not t.refused for t in planned) > spec.seconds


def _run_s(now: TournamentState) -> float:
    took = [
        o.summary.wall_s
        for e in now.entries
        for o in e.outcomes
        if o.status == "done" and o.summary
    ]
    return float(np.median(took)) if took else 0.0


def _halved(
    view: TournamentView,
    spec: TournamentSpec,
    planned: Sequence[planning.PlannedTrial],
    cut_short: CutShort,
) -> Iterator[Next]:
    """Yields rounds, after each of which the best third continues, until two are left; the baseline runs in each."""
    now = view.look()
    base = planning.baseline_of(spec, planned)
    others = [t for t in planned if not t.refused and t.key != base]
    began = {e.key for e in now.entries if e.outcomes}
    if not any(t.key in began for t in others):
        fits = first_rung(
            len(others), int((spec.seconds or 0.0) / max(_run_s(now), 1e-3)), spec.repeats
        )
        taken = {round(i * (len(others) - 1) / max(fits - 1, 1)) for i in range(fits)}
        for trial in (t for i, t in enumerate(others) if i not in taken):
            cut_short(
                trial.key,
                f"not begun: there is time for {fits} of {len(others)} settings; give a longer --time",
            )
        now = view.look()
    others = [t for t in others if t.key in began or not _is_out(now, t.key)]
    sizes = rung_sizes(len(others))
    for number in range(1, max(spec.repeats, len(sizes)) + 1):
        now = view.look()
        alive = [t for t in planned if t.key == base or (t in others and not _is_out(now, t.key))]
        yield from ((number, trial) for trial in rotated(alive, number))
        if number < len(sizes):
            rivals = [t for t in alive if t.key != base]
            yield from _disturbed(view.look(), rivals, sizes[number], number)
            _keep_the_best(view.look(), [t.key for t in rivals], sizes[number], number, cut_short)


def _disturbed(
    now: TournamentState, rivals: Sequence[planning.PlannedTrial], n: int, number: int
) -> Iterator[Next]:
    """Yields another run of each trial that would drop out after a round in which other programs slowed it most."""
    keys = [t.key for t in rivals]
    of_round = {
        e.key: o.others_cores
        for e in now.entries
        if e.key in keys
        for o in e.outcomes
        if o.round == number
    }
    least = min((cores for cores in of_round.values() if np.isfinite(cores)), default=np.nan)
    best = sorted(keys, key=lambda key: -np.nan_to_num(_speed(now, key)))[:n]
    for trial in rivals:
        if trial.key not in best and of_round.get(trial.key, np.nan) >= least + OTHERS_CORES:
            yield number + 1, trial


def _keep_the_best(
    now: TournamentState, keys: Sequence[str], n: int, number: int, cut_short: CutShort
) -> None:
    speeds = {key: _speed(now, key) for key in keys if not _is_out(now, key)}
    known = sorted(
        (key for key in speeds if np.isfinite(speeds[key])), key=lambda key: -speeds[key]
    )
    for key in known[n:]:
        reached = f"{formats.number(speeds[key], 'samples/s')}, and the best has {formats.number(speeds[known[0]])}"
        cut_short(key, f"not among the best {n} after round {number}: {reached}")


def _is_out(now: TournamentState, key: str) -> bool:
    return now.entry(key).status in ("failed", "cut")


def _speed(now: TournamentState, key: str) -> float:
    return _mean(np.concatenate([np.empty(0), *rounds_of(now.entry(key)).values()]))


def _mean(blocks_per_s: Floats) -> float:
    return len(blocks_per_s) / float(np.sum(1 / blocks_per_s)) if len(blocks_per_s) else math.nan


def _again(
    view: TournamentView, spec: TournamentSpec, trial: planning.PlannedTrial
) -> Iterator[Next]:
    """Yields another round for each that other programs spoiled, at most as many as were planned."""
    for number in range(spec.repeats + 1, 2 * spec.repeats + 1):
        entry = view.look().entry(trial.key)
        counted = sum(o.status == "done" and len(o.blocks_per_s) > 0 for o in entry.outcomes) - len(
            spoiled(entry)
        )
        if entry.status != "done" or not spoiled(entry) or counted >= spec.repeats:
            return
        yield number, trial


LOOK_S, LOOK_SHARE = 1.0, 0.01
"""Seconds between two checks whether a running trial can still win; more where its many steps make the check take more
than this share of the time, which the trial would lose."""
LEAST_PATIENCE_S, PATIENCE_RUNS = 60.0, 5.0
"""How long a trial may take to its first step once its data are prepared: seconds, or a multiple of what runs of this
tournament typically take, whichever is longer. A slow drive can take hours to copy what another trial reads in a
second, and would hold up all others."""
OTHERS_NAMED = 1.05
"""The least gain that a trial may have without other programs for the reason to mention it."""
Evidence = tuple[Floats, Floats]
"""samples/s of blocks as measured, and the most that they would have been without other programs; both (n,)."""
NOTHING: Evidence = (np.empty(0), np.empty(0))


class EarlyStop:
    """Decides whether a trial is worth running on, before it is started and while it runs."""

    def __init__(
        self,
        store: RunStore,
        now: TournamentState,
        board: Leaderboard,
        trial: planning.PlannedTrial,
    ) -> None:
        self._store, entry = store, now.entry(trial.key)
        self._best, self._patience_s = (
            _rival(board, entry),
            max(LEAST_PATIENCE_S, PATIENCE_RUNS * _run_s(now)),
        )
        self._earlier = [
            _evidence(o.blocks_per_s, o.others_cores) for o in entry.outcomes if o.status == "done"
        ]
        self._look_at = time.monotonic() + LOOK_S

    def before(self, number: int) -> str:
        """Returns why the trial need not run in round `number`; "" where it may still win."""
        return self._cannot_win(f"not run again after round {number - 1}", NOTHING)

    def during(self, run_id: int) -> str:
        """Returns why the run is to be stopped; "" where it goes on."""
        began = time.monotonic()
        if began < self._look_at:
            return ""
        reason = ""
        run = self._store.run(run_id)
        n_steps = self._store.n_steps(run_id)
        if not n_steps and _since_prepared_s(run) > self._patience_s:
            reason = f"no step after {formats.seconds(self._patience_s)}; run it alone, without early stop"
        elif (
            n_steps
            and run.stage == "training"
            and (run.progress or 0.0) >= scores.EARLIEST_STOP_FRAC
        ):
            blocks = scores.block_rates(
                self._store.steps(run_id, names=tournament_view.BLOCK_COLUMNS)
            )
            evidence = _evidence(blocks, tournament_view.others_of(self._store, run_id))
            reason = self._cannot_win(f"cut short after {n_steps:,} steps", evidence)
        self._look_at = began + max(LOOK_S, (time.monotonic() - began) / LOOK_SHARE)
        return reason

    def _cannot_win(self, how: str, evidence: Evidence) -> str:
        best = self._best
        measured, at_most = (
            np.concatenate(of) for of in zip(*self._earlier, evidence, strict=True)
        )
        if best is None or not scores.cannot_win(at_most, best.within_low):
            return ""
        so_far = _mean(scores.usable(measured))
        reached = _mean(scores.usable(at_most))
        slowed = reached > OTHERS_NAMED * so_far
        without = f", at most {formats.number(reached)} without other programs" if slowed else ""
        return (
            f"{how}: {formats.number(so_far)} samples/s so far{without}, and "
            f"{setting_in_words(best.entry)} makes at least {formats.number(best.within_low)}"
        )


def _rival(board: Leaderboard, entry: Entry) -> LeaderboardRow | None:
    """Returns the best trial so far with this one's batch size and page cache, if there is one besides `entry`."""
    rows = (row for row in board.rows if row.rank is not None)
    alike = (entry.batch_size, entry.page_cache)
    best = next(
        (row for row in rows if (row.entry.batch_size, row.entry.page_cache) == alike), None
    )
    return (
        best
        if best is not None and best.key != entry.key and math.isfinite(best.within_low)
        else None
    )


def _since_prepared_s(run: StoredRun) -> float:
    """Returns the seconds since its data were ready (own script: its start); minus infinity while they are not."""
    if is_own_script(run.config):
        return -math.inf if run.t_origin_s is None else time.perf_counter() - run.t_origin_s
    ready = [p.t_end_s for p in run.phases if p.name == "prepare"]
    return time.perf_counter() - ready[-1] if ready else -math.inf


def _evidence(blocks_per_s: Floats, others_cores: float) -> Evidence:
    """Returns the evidence of one run, during which other programs took `others_cores` cores."""
    return blocks_per_s, scores.without_others(blocks_per_s, others_cores)


class TournamentTrials:
    """An iterable of what is left to run: begun again after a failure, it goes on with what is not in the store."""

    def __init__(
        self,
        store: RunStore,
        stored: StoredTournament,
        planned: Sequence[planning.PlannedTrial],
        requested: Callable[[], End | None],
        status: Callable[[], TournamentStatus],
    ) -> None:
        self._store = store
        self._id = stored.id
        self.group_key = stored.group_key
        self._requested = requested
        self._status = status
        self._spec, self._planned = stored.spec, tuple(planned)
        self._cut = dict(stored.cut)
        self._view = TournamentView(store, stored.id)
        self._early_stop: EarlyStop | None = None
        """The rule for the trial that is running; None where it must not be cut short."""
        self._end: End | None = None
        self._spent_s = self._look_at = 0.0
        self._hung = ""
        """Why the running trial was stopped; "" unless it made no step in time."""

    def __iter__(self) -> Iterator[Trial]:
        """Yields the trials one after another; the one before must be in the store when the next is asked for."""
        self._end = self._early_stop = None
        if self._spec.script is not None:
            yield from self._first()
        elif all(t.refused for t in self._planned):
            self._end = "done", "no setting can run here"
        if self._end is not None:
            return
        baseline = planning.baseline_of(self._spec, self._planned)
        for number, planned in rounds(self._view, self._spec, self._planned, self._cut_short):
            now = self._view.look()
            if _settled(now, planned, number):
                continue
            self._end = self._requested() or self._time_limit(now)
            if self._end is not None:
                return
            self._early_stop = None
            if self._spec.early_stop and planned.key != baseline:
                self._early_stop = EarlyStop(self._store, now, self._view.board(now), planned)
                if reason := self._early_stop.before(number):
                    self._cut_short(planned.key, reason)
                    continue
            yield self._trial(now, planned, number)

    def is_cut(self, trial: Trial, run_id: int) -> bool:
        """Returns whether the running trial is to be stopped, because it can no longer win."""
        if self._hangs(run_id):
            return True
        reason = "" if self._early_stop is None else self._early_stop.during(run_id)
        if reason:
            self._cut_short(trial.words, reason)
        return bool(reason)

    def _hangs(self, run_id: int) -> bool:
        """Returns whether a script has made no step when the time limit is reached."""
        limit = self._spec.seconds
        now = time.monotonic()
        if self._spec.script is None or limit is None or now < self._look_at:
            return False
        self._look_at = now + LOOK_S
        if self._spent_s + _since_prepared_s(
            self._store.run(run_id)
        ) < limit or self._store.n_steps(run_id):
            return False
        self._hung = f"no training step within the time limit of {limit:g} s"
        return True

    def end(self) -> End:
        """Returns the status to end with and why, once there are no more trials."""
        if self._end is not None:
            return self._end
        now = self._view.look()
        unfinished = sum(
            not _settled(now, t, k) for k, t in planned_rounds(self._planned, self._spec.repeats)
        )
        if unfinished:
            return "stopped", f"{unfinished} of its runs did not finish; resume to run them"
        if can_be_fastest(self._view.board(now)):
            return (
                "done",
                f"undecided after {tournament_view.rounds_of(now)} rounds; more rounds may decide it",
            )
        return "done", ""

    def _first(self) -> Iterator[Trial]:
        assert self._spec.script is not None
        if self._spec.script.loader is None:
            changes: list[str] = []
            # 0: not on a plan's samples
            first = self._planned[0]
            number = int(self._spec.script.conversion is None)
            yield self._trial(self._view.look(), first, number, changes)
            run = self._store.run(newest_runs(self._store, self._id)[first.key][number].id)
            if run.status != "done":
                error = self._hung or run.error or "it was stopped"
                self._end = (
                    "stopped",
                    f"the first trial, the script as it is, did not end as it should: {error}",
                )
                return
            planning.learn(self._store, self._id, run.id, changes)
            self._spec = tournament(self._store, self._id).spec
            self._planned = planning.plan(self._spec)
            refused = {t.key: t.refused for t in self._planned if t.refused}
            set_status(self._store, self._id, self._status(), refused=refused)
        assert self._spec.script is not None
        if not self._spec.script.agreed:
            agree = f"agree that the script is repeated: {planning.resume_command(self._id)} --yes"
            self._end = "paused", f"{planning.written_words(self._spec.script)}; {agree}"
        elif all(t.refused for t in self._planned[1:]):
            self._end = "done", planning.nothing_to_compare(self._planned)

    def _trial(
        self,
        now: TournamentState,
        planned: planning.PlannedTrial,
        number: int,
        changes: list[str] | None = None,
    ) -> Trial:
        """Returns the run of a setting in a round. Files that an own script writes are added to `changes`."""
        start = None
        self._spent_s = now.spent_s
        if self._spec.script is not None:
            start = planning.start_trial(
                self._spec, planned, 1 + sum(e.n_made for e in now.entries), changes
            )
        return Trial(planned.config, role_of(planned.key, number), planned.key, start)

    def _cut_short(self, key: str, why: str) -> None:
        self._cut[key] = why
        set_status(self._store, self._id, self._status(), cut=self._cut)

    def _time_limit(self, now: TournamentState) -> End | None:
        limit = self._spec.seconds
        if limit is None or now.spent_s < limit:
            return None
        spent = f"the time limit of {limit:g} s was reached after {now.progress.done}"
        if now.progress.done < now.progress.total:
            return "done", f"{spent} of {now.progress.total} runs"
        return "done", f"{spent} runs, before it was decided; more rounds may decide it"


def _settled(now: TournamentState, trial: planning.PlannedTrial, number: int) -> bool:
    done = any(o.round == number and o.status == "done" for o in now.entry(trial.key).outcomes)
    return done or _is_out(now, trial.key)
