"""The tournaments that this program runs."""

from __future__ import annotations

import threading

from vitprof.experiments.tournament.tournament_runner import TournamentRunner
from vitprof.jobs.manager import JobManager
from vitprof.jobs.users import check_may_stop
from vitprof.store.tournaments import set_status, tournament


class TournamentRunners:
    """The runners of these tournaments. One object for each process, beside its job manager."""

    def __init__(self, manager: JobManager) -> None:
        self._manager = manager
        self._lock = threading.Lock()
        self._runners: dict[int, TournamentRunner] = {}

    def runner(self, tournament_id: int) -> TournamentRunner | None:
        """Returns the runner of a tournament; None where this program is not running it."""
        found = self._runners.get(tournament_id)
        return found if found is not None and found.alive else None

    def run(self, tournament_id: int) -> TournamentRunner:
        """Starts or resumes a tournament, or undoes its pause. Raises `JobError`, `StoreError`, `ConfigError`."""
        with self._lock:
            found = self.runner(tournament_id)
            if found is not None:
                if found.resume():
                    return found
                found.join()  # it is about to end
            self._runners[tournament_id] = TournamentRunner(self._manager, tournament_id)
            return self._runners[tournament_id]

    def pause(self, tournament_id: int) -> None:
        """Finishes the running trial and starts no more. Raises `JobError` where the user may not stop it."""
        self._check_may_stop(tournament_id)
        if (found := self.runner(tournament_id)) is not None:
            found.pause()

    def stop(self, tournament_id: int) -> None:
        """Stops the running trial and starts no more. A tournament that no program is running is marked as stopped.

        Raises `JobError` where the user may not stop it.
        """
        self._check_may_stop(tournament_id)
        if (found := self.runner(tournament_id)) is not None:
            found.stop()
        elif not tournament(self._manager.store, tournament_id).held:
            set_status(self._manager.store, tournament_id, "stopped", note="")

    def _check_may_stop(self, tournament_id: int) -> None:
        check_may_stop(f"tournament {tournament_id}", tournament(self._manager.store, tournament_id).started_by)

    def shutdown(self) -> None:
        """Ends every thread; unfinished tournaments can be resumed. Safe to call twice."""
        with self._lock:
            for found in self._runners.values():
                found.shutdown()
