"""The remaining trials of a tournament: which setting runs next, when it is cut short, and when no other
one runs.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from vitprof import formats
from vitprof.analysis import faster
from vitprof.analysis.arrays import Floats
from vitprof.analysis.thresholds import OTHERS_CORES
from vitprof.analysis.tournament.blocks import (
    all_rounds_of,
    counts,
    rounds_of,
    spoiled,
    usable,
)
from vitprof.analysis.tournament.early_stop import EARLIEST_STOP_FRAC, alone_at_most, cannot_win
from vitprof.analysis.tournament.entries import Entry, RunOutcome, setting_in_words
from vitprof.analysis.tournament.halving import first_rung, rung_sizes
from vitprof.analysis.tournament.leaderboard import Leaderboard, LeaderboardRow
from vitprof.analysis.tournament.recommend import (
    can_be_fastest,
    undecided_words,
    was_faster_while_busy,
)
from vitprof.config.bounds import MORE_ROUNDS
from vitprof.config.own_script import is_own_script
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.experiments.tournament import planning, tournament_view
from vitprof.experiments.tournament.alike import why_all_fail
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
    """Yields what to run: whole rounds, then rounds of those that can still be the fastest until it is
    decided.

    Settings of a user's own script that are too many for the time limit are halved (successive halving).
    """
    if is_large(view.state(), spec, planned):
        yield from _halved(view, spec, planned, cut_short)
    else:
        yield from planned_rounds(planned, spec.repeats)
        yield from _again(view, spec, planned)
    if not spec.until_decided:
        return
    by_key = {t.key: t for t in planned}
    for number in range(spec.repeats + 1, spec.repeats + MORE_ROUNDS + 1):
        open_ = can_be_fastest(view.board(view.state()))
        if not open_:
            return
        yield from ((number, by_key[key]) for key in rotated(open_, number))


def is_large(
    now: TournamentState, spec: TournamentSpec, planned: Sequence[planning.PlannedTrial]
) -> bool:
    """Returns whether the time limit is too short for all rounds of the settings of a user's own script."""
    if spec.script is None or spec.seconds is None:
        return False
    n_runs = spec.repeats * sum(not t.refused for t in planned)
    return _run_s(now) * n_runs > spec.seconds


def _run_s(now: TournamentState) -> float:
    """Returns the seconds that a run typically took; 0 without any."""
    outcomes = [outcome for entry in now.entries for outcome in entry.outcomes]
    took = [o.summary.wall_s for o in outcomes if o.status == "done" and o.summary]
    return float(np.median(took)) if took else 0.0


def _halved(
    view: TournamentView,
    spec: TournamentSpec,
    planned: Sequence[planning.PlannedTrial],
    cut_short: CutShort,
) -> Iterator[Next]:
    """Yields rounds, after each of which the best third continues, until two are left.

    The baseline runs in each round. Where the time is too short for all, only some settings begin, spread
    over the list. Settings that were not begun or cut short before, also by another program, stay out.
    """
    now = view.state()
    base = planning.baseline_of(spec, planned)
    others = [t for t in planned if not t.refused and t.key != base]
    began = {e.key for e in now.entries if e.outcomes}
    if not any(t.key in began for t in others):
        n_runs = int((spec.seconds or 0.0) / max(_run_s(now), 1e-3))
        n_fit = first_rung(len(others), n_runs, spec.repeats)
        spacing = (len(others) - 1) / max(n_fit - 1, 1)
        chosen = {round(i * spacing) for i in range(n_fit)}
        time_for = f"there is time for {n_fit} of {len(others)} settings"
        for i, trial in enumerate(others):
            if i not in chosen:
                cut_short(trial.key, f"not begun: {time_for}; give a longer --time")
        now = view.state()
    others = [t for t in others if t.key in began or not _is_out(now, t.key)]
    sizes = rung_sizes(len(others))
    for number in range(1, max(spec.repeats, len(sizes)) + 1):
        now = view.state()
        alive = [t for t in planned if t.key == base or (t in others and not _is_out(now, t.key))]
        yield from ((number, trial) for trial in rotated(alive, number))
        if number < len(sizes):
            rivals = [t for t in alive if t.key != base]
            yield from _disturbed(view.state(), rivals, sizes[number], number)
            _keep_the_best(view.state(), [t.key for t in rivals], sizes[number], number, cut_short)


def _disturbed(
    now: TournamentState, rivals: Sequence[planning.PlannedTrial], n: int, number: int
) -> Iterator[Next]:
    """Yields another run of each trial that would drop out after a round in which other programs took
    clearly more CPU from it than from the others.

    That run counts as its next round, should the trial continue. `n`: how many trials continue.
    """
    keys = [t.key for t in rivals]
    others_cores: dict[str, float] = {}
    for key in keys:
        for outcome in now.entry(key).outcomes:
            if outcome.round == number:
                others_cores[key] = outcome.others_cores
    least = min((cores for cores in others_cores.values() if np.isfinite(cores)), default=np.nan)
    best = sorted(keys, key=lambda key: -np.nan_to_num(_speed(now, key)))[:n]
    for trial in rivals:
        cores = others_cores.get(trial.key, np.nan)
        # false where either is not known
        if trial.key not in best and cores >= least + OTHERS_CORES:
            yield number + 1, trial


def _keep_the_best(
    now: TournamentState, keys: Sequence[str], n: int, number: int, cut_short: CutShort
) -> None:
    speeds = {key: _speed(now, key) for key in keys if not _is_out(now, key)}
    known = [key for key in speeds if np.isfinite(speeds[key])]
    fastest_first = sorted(known, key=lambda key: -speeds[key])
    for key in fastest_first[n:]:
        speed = formats.number(speeds[key], "samples/s")
        best = formats.number(speeds[fastest_first[0]])
        reached = f"{speed}, and the best has {best}"
        cut_short(key, f"not among the best {n} after round {number}: {reached}")


def _is_out(now: TournamentState, key: str) -> bool:
    return now.entry(key).status in ("failed", "cut")


def _speed(now: TournamentState, key: str) -> float:
    """Returns samples/s of all blocks of a trial's rounds that count; NaN without any."""
    entry = now.entry(key)
    return faster.per_s(rounds_of(entry) or all_rounds_of(entry))


def _mean(blocks_per_s: Floats) -> float:
    """Returns the harmonic mean, as all blocks have the same number of samples; NaN without any."""
    if not len(blocks_per_s):
        return math.nan
    return len(blocks_per_s) / float(np.sum(1 / blocks_per_s))


def _again(
    view: TournamentView, spec: TournamentSpec, planned: Sequence[planning.PlannedTrial]
) -> Iterator[Next]:
    """Yields another round for each that other programs spoiled, at most as many as were planned.

    The baseline runs in each of them, and the fastest setting beside it: what other programs spoil
    again can still be compared in pairs (`analysis.faster_while_busy`).
    """
    base = planning.baseline_of(spec, planned)
    for number in range(spec.repeats + 1, 2 * spec.repeats + 1):
        now = view.state()
        short = {t.key for t in planned if _lacks_a_round(now.entry(t.key), spec.repeats)}
        if not short:
            return
        rivals = [t.key for t in planned if t.key != base and now.entry(t.key).status == "done"]
        if base in short and rivals:
            short.add(max(rivals, key=lambda key: np.nan_to_num(_speed(now, key))))
        elif now.entry(base).status == "done":
            short.add(base)
        in_turn = [t for t in planned if t.key in short]
        yield from ((number, trial) for trial in rotated(in_turn, number))


def _lacks_a_round(entry: Entry, repeats: int) -> bool:
    """Returns whether other programs spoiled so many rounds of a setting that fewer than planned
    count."""
    n_spoiled = len(spoiled(entry))
    measured = [o for o in entry.outcomes if o.status == "done" and counts(o)]
    return entry.status == "done" and n_spoiled > 0 and len(measured) - n_spoiled < repeats


RACE_CHECK_S = 1.0
"""The least seconds between two checks whether a running trial can still win."""
LOOK_SHARE = 0.01
"""The most of the time that these checks may take, which the trial loses: with many steps, a check takes
longer and comes less often."""
LEAST_PATIENCE_S = 60.0
"""How long (s) a trial may always take to its first step once its data are prepared."""
PATIENCE_RUNS = 5.0
"""The same as a multiple of what runs of this tournament typically take; the longer one counts. A slow
drive can take hours to copy what another trial reads in a second, and would hold up all others."""
OTHERS_NAMED = 1.05
"""The least gain that a trial may have without other programs for the reason to mention it."""
NO_BLOCKS: Floats = np.empty(0)


@dataclass(frozen=True, slots=True)
class SpeedSoFar:
    """What a trial has shown of its speed, samples/s of its undisturbed blocks."""

    measured: Floats = field(default_factory=lambda: NO_BLOCKS)
    """(n,) as they were."""
    at_most: Floats = field(default_factory=lambda: NO_BLOCKS)
    """(m,) the most that they would have been without other programs, where it is known what those
    did."""


class EarlyStop:
    """Decides whether a trial is worth running on, before it is started and while it runs.

    A trial that other programs slowed down is judged by the most that it would have reached without them.
    """

    def __init__(
        self,
        store: RunStore,
        now: TournamentState,
        board: Leaderboard,
        trial: planning.PlannedTrial,
    ) -> None:
        entry = now.entry(trial.key)
        self._store = store
        self._best = _rival(board, entry)
        self._patience_s = max(LEAST_PATIENCE_S, PATIENCE_RUNS * _run_s(now))
        self._earlier = [_evidence(o) for o in entry.outcomes if o.status == "done"]
        self._look_at = time.monotonic() + RACE_CHECK_S

    def before(self, number: int) -> str:
        """Returns why the trial need not run in round `number`; "" where it may still win."""
        return self._cannot_win(f"not run again after round {number - 1}", SpeedSoFar())

    def during(self, run_id: int) -> str:
        """Returns why the run is to be stopped; "" where it goes on."""
        began = time.monotonic()
        if began < self._look_at:
            return ""
        reason = self._why_stop(run_id)
        took_s = time.monotonic() - began
        self._look_at = began + max(RACE_CHECK_S, took_s / LOOK_SHARE)
        return reason

    def _why_stop(self, run_id: int) -> str:
        run = self._store.run(run_id)
        n_steps = self._store.n_steps(run_id)
        if not n_steps:
            if _since_prepared_s(run) <= self._patience_s:
                return ""
            patience = formats.seconds(self._patience_s)
            return f"no step after {patience}; run it alone, without early stop"
        if run.stage != "training" or (run.progress or 0.0) < EARLIEST_STOP_FRAC:
            return ""
        so_far = tournament_view.ended_outcome(self._store, run_id, 0, "cut")
        return self._cannot_win(f"cut short after {n_steps:,} steps", _evidence(so_far))

    def _cannot_win(self, how: str, evidence: SpeedSoFar) -> str:
        """Returns why the trial cannot win, in words that begin with `how`; "" where it may still win."""
        best = self._best
        runs = [*self._earlier, evidence]
        at_most = np.concatenate([each.at_most for each in runs])
        if best is None or not cannot_win(at_most, best.within_low):
            return ""
        # The speed so far is not said: the leaderboard has that of the whole run, another figure.
        so_far = _mean(np.concatenate([each.measured for each in runs]))
        without_others = _mean(at_most)
        rival = setting_in_words(best.entry)
        least = formats.number(best.within_low, "samples/s")
        if without_others > OTHERS_NAMED * so_far:
            speed = formats.number(without_others, "samples/s")
            most = f"without other programs it makes at most {speed}"
            return f"{how}: {most}, and {rival} makes at least {least}"
        return f"{how}: it can no longer reach the {least} that {rival} makes at least"


def _rival(board: Leaderboard, entry: Entry) -> LeaderboardRow | None:
    """Returns the best trial so far with this one's batch size and page cache; None if that is `entry`.

    Another batch size is another question: the setting that loads best at this one is worth its full
    time.
    """
    for row in board.rows:
        alike = (row.entry.batch_size, row.entry.page_cache) == (entry.batch_size, entry.page_cache)
        if row.rank is not None and alike:
            is_rival = row.key != entry.key and math.isfinite(row.within_low)
            return row if is_rival else None
    return None


def _since_prepared_s(run: StoredRun) -> float:
    """Returns the seconds since the run's data were ready, or since a user's own script was started;
    minus infinity while they are not.
    """
    since_s = run.t_origin_s
    if not is_own_script(run.config):
        prepared_s = [phase.t_end_s for phase in run.phases if phase.name == "prepare"]
        since_s = prepared_s[-1] if prepared_s else None
    if since_s is None:
        return -math.inf
    return time.perf_counter() - since_s


def _evidence(run: RunOutcome) -> SpeedSoFar:
    """Returns the evidence of one run. Where nobody looked who else ran, none of it cuts a trial."""
    if not len(run.disturbed):
        return SpeedSoFar(usable(run.blocks_per_s))
    at_most = alone_at_most(run.blocks_per_s, run.block_others_cores, run.disturbed)
    return SpeedSoFar(usable(run.blocks_per_s[~run.disturbed]), at_most)


class TournamentTrials:
    """An iterable of what remains to be run: begun again after a failure, it goes on with what is not in
    the store.
    """

    def __init__(
        self,
        store: RunStore,
        stored: StoredTournament,
        planned: Sequence[planning.PlannedTrial],
        requested: Callable[[], End | None],
        status: Callable[[], TournamentStatus],
    ) -> None:
        """`requested` returns how the user wants it to end, or None; `status` what the tournament's status
        is meanwhile.
        """
        self._store = store
        self._id = stored.id
        self.group_key = stored.group_key
        self._requested = requested
        self._status = status
        self._spec = stored.spec
        self._planned = tuple(planned)
        self._cut = dict(stored.cut)
        self._view = TournamentView(store, stored.id)
        self._early_stop: EarlyStop | None = None
        """The rule for the trial that is running; None where it must not be cut short."""
        self._end: End | None = None
        self._spent_s = 0.0
        """Seconds that the runs before the running one took."""
        self._look_at = 0.0
        self._hung = ""
        """Why the running trial was stopped; "" unless it made no step in time."""

    def __iter__(self) -> Iterator[Trial]:
        """Yields the trials one after another; the one before must be in the store when the next is
        requested.
        """
        self._end = None
        self._early_stop = None
        if self._spec.script is not None:
            yield from self._first()
        elif all(t.refused for t in self._planned):
            self._end = "done", "no setting can run here"
        if self._end is not None:
            return
        baseline = planning.baseline_of(self._spec, self._planned)
        has_run = False
        for number, planned in rounds(self._view, self._spec, self._planned, self._cut_short):
            now = self._view.state()
            if _settled(now, planned, number):
                continue
            self._end = self._requested() or self._time_limit(now)
            if has_run and self._end is None:
                self._end = self._all_fail(now)
            if self._end is not None:
                return
            self._early_stop = None
            if self._spec.early_stop and planned.key != baseline:
                self._early_stop = EarlyStop(self._store, now, self._view.board(now), planned)
                reason = self._early_stop.before(number)
                if reason:
                    self._cut_short(planned.key, reason)
                    continue
            has_run = True
            yield self._trial(now, planned, number)

    def _all_fail(self, now: TournamentState) -> End | None:
        """Returns how it ends where each setting would fail as the first ones did. A script's first trial
        has shown that it runs.
        """
        if self._spec.script is not None:
            return None
        why = why_all_fail(self._store, now, self._planned)
        return ("stopped", why) if why else None

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
        self._look_at = now + RACE_CHECK_S
        spent_s = self._spent_s + _since_prepared_s(self._store.run(run_id))
        if spent_s < limit or self._store.n_steps(run_id):
            return False
        self._hung = f"no training step within the time limit of {limit:g} s"
        return True

    def end(self) -> End:
        """Returns the status to end with and why, once there are no more trials."""
        if self._end is not None:
            return self._end
        now = self._view.state()
        runs = planned_rounds(self._planned, self._spec.repeats)
        n_unfinished = sum(not _settled(now, trial, number) for number, trial in runs)
        if n_unfinished:
            return "stopped", f"{n_unfinished} of its runs did not finish; resume to run them"
        board = self._view.board(now)
        open_ = can_be_fastest(board)
        if open_ and not was_faster_while_busy(board):
            n_rounds = tournament_view.rounds_of(now)
            after = f"{undecided_words(open_)} after {n_rounds} rounds"
            return "done", f"{after}; more rounds may decide it"
        return "done", ""

    def _first(self) -> Iterator[Trial]:
        """Yields a user's own script as it is, learns from it, and ends until the user agrees that it is
        repeated.
        """
        assert self._spec.script is not None
        if self._spec.script.loader is None:
            changes: list[str] = []
            first = self._planned[0]
            # round 0 is compared with no other: it was not on a plan's samples
            number = int(self._spec.script.conversion is None)
            yield self._trial(self._view.state(), first, number, changes)
            run = self._store.run(newest_runs(self._store, self._id)[first.key][number].id)
            if run.status != "done":
                error = self._hung or run.error or "it was stopped"
                first_trial = "the first trial, the unchanged script,"
                self._end = "stopped", f"{first_trial} did not end as it should: {error}"
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
        """Returns the run of a setting in a round; files that an own script writes go into `changes`."""
        start = None
        self._spent_s = now.spent_s
        if self._spec.script is not None:
            n_started = sum(entry.n_made for entry in now.entries)
            start = planning.start_trial(self._spec, planned, n_started + 1, changes)
        return Trial(planned.config, role_of(planned.key, number), planned.key, start)

    def _cut_short(self, key: str, why: str) -> None:
        self._cut[key] = why
        set_status(self._store, self._id, self._status(), cut=self._cut)

    def _time_limit(self, now: TournamentState) -> End | None:
        limit = self._spec.seconds
        if limit is None or now.spent_s < limit:
            return None
        done = now.progress.done
        total = now.progress.total
        runs = formats.count(done, "run") if done >= total else f"{done} of {total} runs"
        reached = f"the time limit of {limit:g} s was reached after {runs}"
        board = self._view.board(now)
        open_ = can_be_fastest(board)
        if open_ and not was_faster_while_busy(board):
            reached += f": {undecided_words(open_)}; more rounds may decide it"
        return "done", reached


def _settled(now: TournamentState, trial: planning.PlannedTrial, number: int) -> bool:
    """Returns whether a setting needs no run in a round: it is done already, or the setting is out."""
    done = any(o.round == number and o.status == "done" for o in now.entry(trial.key).outcomes)
    return done or _is_out(now, trial.key)
