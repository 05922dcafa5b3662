"""The trials that a tournament has left, each chosen by the results of those before; how they are cut, and end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from vitprof.analysis.tournament import can_be_fastest
from vitprof.experiments.tournament.early_stop import EarlyStop
from vitprof.experiments.tournament.own_script import learn, nothing_to_compare, start_trial, to_be_agreed
from vitprof.experiments.tournament.planning import PlannedTrial, baseline_of, plan
from vitprof.experiments.tournament.rounds import rounds
from vitprof.experiments.tournament.tournament_view import TournamentState, TournamentView, planned_rounds, rounds_of
from vitprof.experiments.trials import Trial
from vitprof.store import RunStore, role_of
from vitprof.store.tournaments import StoredTournament, TournamentStatus, newest_runs, set_status, tournament

End = tuple[TournamentStatus, str]
"""The status that a tournament ends with, and why in a line."""


class TournamentTrials:
    """An iterable of what is left to run: begun again after a failure, it goes on with what is not in the store.

    `requested` returns how the user wants it to end, or None; `status` what the tournament's status is meanwhile.
    """

    def __init__(
        self,
        store: RunStore,
        stored: StoredTournament,
        planned: Sequence[PlannedTrial],
        requested: Callable[[], End | None],
        status: Callable[[], TournamentStatus],
    ) -> None:
        self._store, self._id, self.group_key = store, stored.id, stored.group_key
        self._requested, self._status = requested, status
        self._spec, self._planned = stored.spec, tuple(planned)
        self._cut = dict(stored.cut)
        self._view = TournamentView(store, stored.id)
        self._early_stop: EarlyStop | None = None
        """The rule for the trial that is running; None where it must not be cut short."""
        self._end: End | None = None

    def __iter__(self) -> Iterator[Trial]:
        """Yields the trials one after another; the one before must be in the store when the next is asked for."""
        self._end = self._early_stop = None
        if self._spec.script is not None:
            yield from self._first()
        elif all(t.refused for t in self._planned):
            self._end = "done", "no setting can run here"
        if self._end is not None:
            return
        baseline = baseline_of(self._spec, self._planned)
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
        reason = "" if self._early_stop is None else self._early_stop.during(run_id)
        if reason:
            self._cut_short(trial.words, reason)
        return bool(reason)

    def end(self) -> End:
        """Returns the status to end with and why, once there are no more trials."""
        if self._end is not None:
            return self._end
        now = self._view.look()
        unfinished = sum(not _settled(now, t, k) for k, t in planned_rounds(self._planned, self._spec.repeats))
        if unfinished:
            return "stopped", f"{unfinished} of its runs did not finish; resume to run them"
        if can_be_fastest(self._view.board(now)):
            return "done", f"undecided after {rounds_of(now)} rounds; more rounds may decide it"
        return "done", ""

    def _first(self) -> Iterator[Trial]:
        """Yields a user's own script as it is, and learns from that run what the other trials need.

        The tournament ends after it until the user agrees that the script is repeated.
        """
        assert self._spec.script is not None
        if self._spec.script.loader is None:
            opened: list[str] = []
            began_s, first = time.time(), self._planned[0]
            yield self._trial(self._view.look(), first, 1, opened)
            run = self._store.run(newest_runs(self._store, self._id)[first.key][1].id)
            if run.status != "done":
                error = run.error or "it was stopped"
                self._end = "stopped", f"the first trial, the script as it is, did not end as it should: {error}"
                return
            learn(self._store, self._id, run.id, opened, began_s)
            self._spec = tournament(self._store, self._id).spec
            self._planned = plan(self._spec)
            refused = {t.key: t.refused for t in self._planned if t.refused}
            set_status(self._store, self._id, self._status(), refused=refused)
        assert self._spec.script is not None
        if not self._spec.script.agreed:
            self._end = "paused", to_be_agreed(self._id, self._spec.script)
        elif all(t.refused for t in self._planned[1:]):
            self._end = "done", nothing_to_compare(self._planned)

    def _trial(
        self, now: TournamentState, planned: PlannedTrial, number: int, opened: list[str] | None = None
    ) -> Trial:
        """Returns the run of a setting in a round. Files that a user's own script opens for writing are added to
        `opened`.
        """
        start = None
        if self._spec.script is not None:
            start = start_trial(self._spec, planned, 1 + sum(e.n_made for e in now.entries), opened)
        return Trial(planned.config, role_of(planned.key, number), planned.key, start)

    def _cut_short(self, key: str, why: str) -> None:
        self._cut[key] = why
        set_status(self._store, self._id, self._status(), cut=self._cut)

    def _time_limit(self, now: TournamentState) -> End | None:
        """Returns how the time limit ends the tournament, where it is reached."""
        limit = self._spec.seconds
        if limit is None or now.spent_s < limit:
            return None
        spent = f"the time limit of {limit:g} s was reached after {now.progress.done}"
        if now.progress.done < now.progress.total:
            return "done", f"{spent} of {now.progress.total} runs"
        return "done", f"{spent} runs, before it was decided; more rounds may decide it"


def _settled(now: TournamentState, trial: PlannedTrial, number: int) -> bool:
    """Returns whether a setting needs no run in a round: it is done already, or the setting is out."""
    entry = next(e for e in now.entries if e.key == trial.key)
    return entry.status in ("failed", "cut") or any(o.round == number and o.status == "done" for o in entry.outcomes)
