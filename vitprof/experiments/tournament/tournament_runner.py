"""Runs tournaments: one trial after another, in rounds, with pause, stop, resume and early stop.

What has been done is known from the runs in the store, so a tournament continues where it was left, also in another
program after this one was killed. A run that was left unfinished is repeated.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator

from vitprof.analysis.tournament import can_be_fastest
from vitprof.config import RunConfig
from vitprof.config.availability import look_around
from vitprof.errors import ConfigError, StoreAwayError, VitprofError, one_line
from vitprof.experiments.tournament.early_stop import EarlyStop
from vitprof.experiments.tournament.own_script import learn, nothing_to_compare, start_trial, to_be_agreed
from vitprof.experiments.tournament.planning import PlannedTrial, baseline_of, plan, why_not_here
from vitprof.experiments.tournament.rounds import rounds
from vitprof.experiments.tournament.tournament_view import TournamentState, TournamentView, planned_rounds, rounds_of
from vitprof.experiments.trials import Trial, run_trials
from vitprof.jobs.manager import WAIT_FOR_STORE_S, JobManager
from vitprof.jobs.users import carried, check_may_stop, who
from vitprof.store.groups import role_of
from vitprof.store.tournaments import TournamentStatus, claim, set_status, tournament

STORE_GRACE_S, RETRY_S = 30.0, 0.5
"""Seconds for which recording the tournament's end is retried while the store fails, and seconds between two tries."""


class TournamentRunner:
    """A thread that runs one tournament. Raises what `claim` raises, and `ConfigError` if its baseline can't be run.

    `why_not` says why a job cannot be run here (default: `why_not_here`). `watch` is called with the id of the current
    run, again and again.
    """

    def __init__(
        self,
        manager: JobManager,
        tournament_id: int,
        *,
        why_not: Callable[[RunConfig], str] | None = None,
        watch: Callable[[int], None] = lambda run_id: None,
    ) -> None:
        self.id = tournament_id
        self.error = ""
        """What ended it, where it failed; otherwise ""."""
        self._manager, self._store, self._watch = manager, manager.store, watch
        self._lock = threading.Lock()  # held while it is decided whether the thread continues
        self._pausing, self._stopping, self._leaving = threading.Event(), threading.Event(), threading.Event()
        self._why_left = ""
        self._over = False
        self._n_begun = 0
        """Runs that this runner has begun."""
        spec = tournament(self._store, tournament_id).spec
        if why_not is None and spec.script is not None:  # only the script knows what it needs

            def why_not(config: RunConfig) -> str:
                return ""

        elif why_not is None:
            machine = look_around()

            def why_not(config: RunConfig) -> str:
                return why_not_here(config, machine)

        self._planned = plan(spec, why_not)
        self._baseline = baseline_of(spec, self._planned)
        refused = {t.key: t.refused for t in self._planned if t.refused}
        if spec.baseline and spec.baseline in refused:
            raise ConfigError("baseline", spec.baseline, f"it cannot be run here: {refused[spec.baseline]}")
        taken = claim(self._store, tournament_id)
        self._spec, self._cut = spec, dict(taken.cut)
        set_status(self._store, tournament_id, "running", refused=refused, started_by=who())
        self._view, self._group = TournamentView(self._store, tournament_id), taken.group_key
        self._end: tuple[TournamentStatus, str] | None = None
        """How the user or the time limit ended it."""
        self._early_stop: EarlyStop | None = None
        """The rule for the trial that is running; None where it must not be cut short."""
        self._thread = threading.Thread(
            target=carried(self._work), name=f"vitprof-tournament-{tournament_id}", daemon=True
        )
        self._thread.start()

    # control by the user

    @property
    def alive(self) -> bool:
        """Returns whether the thread is still running."""
        return self._thread.is_alive()

    def pause(self) -> None:
        """Starts no more trials; the one that is running is finished."""
        with self._lock:
            if not self._over:
                self._pausing.set()
                set_status(self._store, self.id, "paused", note="the current run is finished first")

    def resume(self) -> bool:
        """Undoes `pause`. Returns False where it is too late for that and another runner has to be made."""
        with self._lock:
            if self._over:
                return False
            self._pausing.clear()
            set_status(self._store, self.id, "running", note="")
            return True

    def stop(self) -> None:
        """Stops the running trial and starts no more. The tournament can be resumed."""
        self._stopping.set()

    def shutdown(self, why: str = "the program that ran it ended") -> None:
        """Ends the thread because the program ends, and leaves the tournament paused with the note `why`.

        Safe to call twice.
        """
        self._why_left = self._why_left or why
        self._leaving.set()
        self._thread.join()

    def join(self, timeout: float | None = None) -> bool:
        """Waits at most `timeout` seconds for the thread to end; returns whether it has."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # the thread

    def _work(self) -> None:
        status: TournamentStatus = "paused"
        note = ""
        try:
            status, note = self._run_while_there()
        except Exception as error:  # it would be lost with the thread
            if not isinstance(error, VitprofError):
                traceback.print_exc()
            self.error = note = one_line(error)
        with self._lock:
            self._over = True  # from here on `pause` and `resume` leave the status alone
        until = time.monotonic() + STORE_GRACE_S
        while True:
            try:
                set_status(self._store, self.id, status, owner=None, note=note)
                break
            except VitprofError as error:  # or the tournament would seem to run for as long as this program does
                if time.monotonic() >= until:
                    self.error = self.error or one_line(error)
                    break
            time.sleep(RETRY_S)

    def _run_while_there(self) -> tuple[TournamentStatus, str]:
        """Runs what is left; where the store is unavailable, continues when it is back. Raises `StoreAwayError` after
        three minutes in which no run has ended.
        """
        until = 0.0
        while True:
            n_begun = self._n_begun
            try:
                return self._run_all()
            except StoreAwayError:
                now = time.monotonic()
                if not until or self._n_begun != n_begun:
                    until = now + WAIT_FOR_STORE_S
                if now >= until or self._leaving.wait(RETRY_S) or self._stopping.is_set():
                    raise

    def _run_all(self) -> tuple[TournamentStatus, str]:
        """Runs what is left; returns the status to end with, and why."""
        if self._spec.script is not None and (ended := self._run_first()):
            return ended
        if all(t.refused for t in self._planned):
            return "done", "no setting can run here"
        self._end = self._early_stop = None
        for _ in self._run(self._trials()):
            self._n_begun += 1
        with self._lock:
            self._over = True
        now = self._view.look()
        if self._end is not None or self._interrupted():
            return self._end or self._asked(now) or ("stopped", "")
        unfinished = sum(not _settled(now, t, k) for k, t in planned_rounds(self._planned, self._spec.repeats))
        if unfinished:
            return "stopped", f"{unfinished} of its runs did not finish; resume to run them"
        if can_be_fastest(self._view.board(now)):
            return "done", f"undecided after {rounds_of(now)} rounds; more rounds may decide it"
        return "done", ""

    def _trials(self) -> Iterator[Trial]:
        """Yields the runs that are left, until the user or the time limit ends the tournament; then `_end` is set."""
        for number, planned in rounds(self._view, self._spec, self._planned, self._cut_short):
            now = self._view.look()
            if _settled(now, planned, number):
                continue
            with self._lock:
                if ended := self._asked(now):
                    self._over, self._end = True, ended
                    return
            self._early_stop = None
            if self._spec.early_stop and planned.key != self._baseline:
                self._early_stop = EarlyStop(self._store, now, self._view.board(now), planned)
                if reason := self._early_stop.before(number):
                    self._cut_short(planned.key, reason)
                    continue
            yield self._trial(now, planned, number)

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

    def _run(self, trials: Iterable[Trial]) -> Iterator[tuple[Trial, int]]:
        return run_trials(self._manager, trials, self._group, watch=self._watch_trial, stop=self._interrupted)

    def _watch_trial(self, trial: Trial, run_id: int) -> bool:
        """Returns whether the running trial is cut short."""
        self._watch(run_id)
        reason = "" if self._early_stop is None else self._early_stop.during(run_id)
        if reason:
            self._cut_short(trial.words, reason)
        return bool(reason)

    def _interrupted(self) -> bool:
        return self._stopping.is_set() or self._leaving.is_set()

    def _run_first(self) -> tuple[TournamentStatus, str] | None:
        """Runs a user's own script as it is, and learns from it what the other trials need.

        Returns the status to end with and why, where the tournament ends here: it does so until the user agrees that
        the script is repeated.
        """
        spec = self._spec
        assert spec.script is not None
        if spec.script.loader is None:
            opened: list[str] = []
            began_s = time.time()
            trial = self._trial(self._view.look(), self._planned[0], 1, opened)
            run_ids = [run_id for _, run_id in self._run([trial])]
            if self._interrupted():
                return self._asked(self._view.look()) or ("stopped", "")
            run = self._store.run(run_ids[0])
            if run.status != "done":
                error = run.error or "it was stopped"
                return "stopped", f"the first trial, the script as it is, did not end as it should: {error}"
            learn(self._store, self.id, run.id, opened, began_s)
            self._spec = spec = tournament(self._store, self.id).spec
            self._planned = plan(spec)
            set_status(
                self._store, self.id, self._status(), refused={t.key: t.refused for t in self._planned if t.refused}
            )
        assert spec.script is not None
        if not spec.script.agreed:
            return "paused", to_be_agreed(self.id, spec.script)
        if all(t.refused for t in self._planned[1:]):
            return "done", nothing_to_compare(self._planned)
        return None

    def _cut_short(self, key: str, why: str) -> None:
        self._cut[key] = why
        set_status(self._store, self.id, self._status(), cut=self._cut)

    def _asked(self, now: TournamentState) -> tuple[TournamentStatus, str] | None:
        """Returns the status to end with and why, where the user or the time limit ends the tournament."""
        if self._stopping.is_set():
            return "stopped", ""
        if self._leaving.is_set():
            return "paused", self._why_left
        if self._pausing.is_set():
            return "paused", ""
        limit = self._spec.seconds
        if limit is not None and now.spent_s >= limit:
            spent = f"the time limit of {limit:g} s was reached after {now.progress.done}"
            if now.progress.done < now.progress.total:
                return "done", f"{spent} of {now.progress.total} runs"
            return "done", f"{spent} runs, before it was decided; more rounds may decide it"
        return None

    def _status(self) -> TournamentStatus:
        return "paused" if self._pausing.is_set() else "running"


def _settled(now: TournamentState, trial: PlannedTrial, number: int) -> bool:
    """Returns whether a setting needs no run in a round: it is done already, or the setting is out."""
    entry = next(e for e in now.entries if e.key == trial.key)
    return entry.status in ("failed", "cut") or any(o.round == number and o.status == "done" for o in entry.outcomes)


class TournamentRunners:
    """The runners of the tournaments that this program runs. One object for each process, as of its job manager."""

    def __init__(self, manager: JobManager) -> None:
        self._manager = manager
        self._lock = threading.Lock()
        self._runners: dict[int, TournamentRunner] = {}

    def runner(self, tournament_id: int) -> TournamentRunner | None:
        """Returns the runner of a tournament; None where this program is not running it."""
        runner = self._runners.get(tournament_id)
        return runner if runner is not None and runner.alive else None

    def run(self, tournament_id: int) -> TournamentRunner:
        """Starts or resumes a tournament, or undoes its pause. Raises `JobError`, `StoreError`, `ConfigError`."""
        with self._lock:
            runner = self.runner(tournament_id)
            if runner is not None:
                if runner.resume():
                    return runner
                runner.join()  # it is about to end
            self._runners[tournament_id] = TournamentRunner(self._manager, tournament_id)
            return self._runners[tournament_id]

    def pause(self, tournament_id: int) -> None:
        """Finishes the running trial and starts no more. Raises `JobError` where the user may not stop it."""
        self._check_may_stop(tournament_id)
        if (runner := self.runner(tournament_id)) is not None:
            runner.pause()

    def stop(self, tournament_id: int) -> None:
        """Stops the running trial and starts no more. A tournament that no program is running is marked as stopped.

        Raises `JobError` where the user may not stop it.
        """
        self._check_may_stop(tournament_id)
        if (runner := self.runner(tournament_id)) is not None:
            runner.stop()
        elif not tournament(self._manager.store, tournament_id).held:
            set_status(self._manager.store, tournament_id, "stopped", note="")

    def _check_may_stop(self, tournament_id: int) -> None:
        check_may_stop(f"tournament {tournament_id}", tournament(self._manager.store, tournament_id).started_by)

    def shutdown(self) -> None:
        """Ends every thread; unfinished tournaments can be resumed. Safe to call twice."""
        with self._lock:
            for runner in self._runners.values():
                runner.shutdown()
