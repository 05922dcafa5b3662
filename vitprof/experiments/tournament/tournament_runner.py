"""Runs tournaments, with pause, stop and resume.

What has been done is known from the runs in the store. So a tournament continues where it was left, also
in another program after this one was killed. A run that was left unfinished is repeated.
"""

import functools
import threading
import time
import traceback

from vitprof.analysis.tournament.entries import key_in_words
from vitprof.config.availability import look_around
from vitprof.errors import ConfigError, StoreAwayError, VitprofError, one_line
from vitprof.experiments.tournament.planning import plan, why_not_here
from vitprof.experiments.tournament.tournament_trials import End, TournamentTrials
from vitprof.experiments.trials import run_trials
from vitprof.jobs.manager import WAIT_FOR_STORE_S, JobManager
from vitprof.jobs.users import carried, check_may_stop, who
from vitprof.store.tournaments import TournamentStatus, claim, set_status, tournament

STORE_GRACE_S = 30.0
"""Seconds for which recording the tournament's end is retried while the store fails."""
RETRY_S = 0.5
"""Seconds between two tries."""


class TournamentRunner:
    """A thread that runs one tournament.

    Raises what `claim` raises, and `ConfigError` if its baseline can't be run.
    """

    def __init__(self, manager: JobManager, tournament_id: int) -> None:
        self.id = tournament_id
        self.error = ""
        """What ended it, where it failed; otherwise ""."""
        self._manager = manager
        self._store = manager.store
        # held while it is decided whether the thread continues
        self._lock = threading.Lock()
        self._requested: End | None = None
        self._at_once = threading.Event()
        """Set where the running trial is not to be finished."""
        self._over = False
        """Whether it is too late to change how it ends."""
        self._n_ended = 0
        """Runs that have ended since this thread began."""
        spec = tournament(self._store, tournament_id).spec
        planned = plan(spec, functools.partial(why_not_here, machine=look_around()))
        refused = {t.key: t.refused for t in planned if t.refused}
        if spec.baseline and spec.baseline in refused:
            why = f"it cannot be run here: {refused[spec.baseline]}"
            raise ConfigError("baseline", key_in_words(spec.baseline), why)
        claimed = claim(self._store, tournament_id)
        set_status(self._store, tournament_id, "running", refused=refused, started_by=who())
        self._trials = TournamentTrials(
            self._store, claimed, planned, self._end_requested, self._status
        )
        name = f"vitprof-tournament-{tournament_id}"
        self._thread = threading.Thread(target=carried(self._work), name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def pause(self) -> None:
        """Starts no more trials; the one that is running is finished."""
        with self._lock:
            if not self._over:
                self._requested = self._requested or ("paused", "")
                set_status(self._store, self.id, "paused", note="the current run is finished first")

    def resume(self) -> bool:
        """Undoes `pause`. Returns False where it is too late for that and another runner has to be made."""
        with self._lock:
            if self._over or self._at_once.is_set():
                return False
            self._requested = None
            set_status(self._store, self.id, "running", note="")
            return True

    def stop(self) -> None:
        """Stops the running trial and starts no more. The tournament can be resumed."""
        with self._lock:
            self._requested = ("stopped", "")
        self._at_once.set()

    def shutdown(self, why: str = "the program that ran it ended") -> None:
        """Ends the thread and leaves the tournament paused with the note `why`. Safe to call twice."""
        with self._lock:
            if not self._at_once.is_set():
                self._requested = ("paused", why)
        self._at_once.set()
        self._thread.join()

    def join(self, timeout: float | None = None) -> bool:
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _status(self) -> TournamentStatus:
        return "running" if self._requested is None else "paused"

    def _end_requested(self) -> End | None:
        """Returns how the user wants it to end, None if it goes on; then it is too late to resume it."""
        with self._lock:
            self._over = self._requested is not None
            return self._requested

    def _work(self) -> None:
        status: TournamentStatus = "paused"
        note = ""
        try:
            status, note = self._run_while_there()
        except Exception as error:  # it would be lost with the thread
            if not isinstance(error, VitprofError):
                traceback.print_exc()
            note = one_line(error)
            self.error = note
        with self._lock:
            # from here on `pause` and `resume` leave the status alone
            self._over = True
        until = time.monotonic() + STORE_GRACE_S
        while True:
            try:
                set_status(self._store, self.id, status, owner=None, note=note)
                break
            except VitprofError as error:
                # or the tournament would seem to run for as long as this program does
                if time.monotonic() >= until:
                    self.error = self.error or one_line(error)
                    break
            time.sleep(RETRY_S)

    def _run_while_there(self) -> tuple[TournamentStatus, str]:
        """Runs what is left, and returns the status to end with and why.

        Where the store is unavailable, continues when it is back. Raises `StoreAwayError` after
        `WAIT_FOR_STORE_S` (3 minutes) in which no run has ended.
        """
        until = 0.0
        trials = self._trials
        stop = self._at_once.is_set
        while True:
            n_ended = self._n_ended
            try:
                for _ in run_trials(
                    self._manager, trials, trials.group_key, watch=trials.is_cut, stop=stop
                ):
                    self._n_ended += 1
                with self._lock:
                    self._over = True
                if self._at_once.is_set() and self._requested:
                    return self._requested
                return trials.end()
            except StoreAwayError:
                now = time.monotonic()
                if not until or self._n_ended != n_ended:
                    until = now + WAIT_FOR_STORE_S
                if now >= until or self._at_once.wait(RETRY_S):
                    raise


class TournamentRunners:
    """The runners of the tournaments that this program runs. One object for each process, as of its job manager."""

    def __init__(self, manager: JobManager) -> None:
        self._manager = manager
        self._lock = threading.Lock()
        self._runners: dict[int, TournamentRunner] = {}

    def runner(self, tournament_id: int) -> TournamentRunner | None:
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
        """Finishes the running trial and starts no more.

        Raises `JobError` where the user may not stop it.
        """
        self._check_may_stop(tournament_id)
        runner = self.runner(tournament_id)
        if runner is not None:
            runner.pause()

    def stop(self, tournament_id: int) -> None:
        """Stops the running trial and starts no more; one that no program runs is marked as stopped.

        Raises `JobError` where the user may not stop it.
        """
        self._check_may_stop(tournament_id)
        runner = self.runner(tournament_id)
        if runner is not None:
            runner.stop()
        elif not tournament(self._manager.store, tournament_id).held:
            set_status(self._manager.store, tournament_id, "stopped", note="")

    def _check_may_stop(self, tournament_id: int) -> None:
        started_by = tournament(self._manager.store, tournament_id).started_by
        check_may_stop(f"tournament {tournament_id}", started_by)

    def shutdown(self) -> None:
        """Ends every thread; unfinished tournaments can be resumed. Safe to call twice."""
        with self._lock:
            for runner in self._runners.values():
                runner.shutdown()
