"""Runs a tournament: one trial after another, in rounds, with pause, stop, resume and early stop.

What has been done is known from the runs in the store, so a tournament continues where it was left, also in another
program after this one was killed. A run that was left unfinished is repeated.
"""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections.abc import Callable

from vitprof import formats
from vitprof.analysis.tournament import EARLIEST_STOP_FRAC, can_be_fastest
from vitprof.config import RunConfig
from vitprof.config.availability import look_around
from vitprof.errors import ConfigError, StoreAwayError, VitprofError, one_line
from vitprof.experiments.tournament.early_stop import (
    NOTHING,
    evidence,
    evidence_so_far,
    patience_s,
    since_prepared,
    to_beat,
    why_it_cannot_win,
)
from vitprof.experiments.tournament.own_script import learn, nothing_to_compare, start_trial, to_be_agreed
from vitprof.experiments.tournament.planning import PlannedTrial, baseline_of, plan, schedule, why_not_here
from vitprof.experiments.tournament.schedule import turns
from vitprof.experiments.tournament.tournament_view import (
    TournamentState,
    TournamentView,
    blocks_of,
    others_of,
    rounds_of,
)
from vitprof.jobs.manager import WAIT_FOR_STORE_S, JobManager
from vitprof.jobs.users import carried, who
from vitprof.store import StoredRun
from vitprof.store.groups import role_of
from vitprof.store.tournaments import TournamentStatus, claim, set_status, tournament

POLL_S = 0.1
STORE_GRACE_S, RETRY_S = 30.0, 0.5
"""Seconds for which recording the tournament's end is retried while the store fails, and seconds between two tries."""
LOOK_S, LOOK_SHARE = 1.0, 0.01
"""Seconds between two checks whether a running trial can still win; more where its many steps make the check take more
than this share of the time, which the trial would lose."""


class TournamentRunner:
    """A thread that runs one tournament. Raises what `claim` raises, and `ConfigError` if its baseline can't be run.

    `why_not` says why a job cannot be run here (default: `why_not_here`). `watch` is called with the current run, again
    and again.
    """

    def __init__(
        self,
        manager: JobManager,
        tournament_id: int,
        *,
        why_not: Callable[[RunConfig], str] | None = None,
        watch: Callable[[StoredRun], None] = lambda run: None,
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
        self._view = TournamentView(self._store, tournament_id)
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
        """Runs what is left; where the store is away, continues when it is back. Raises `StoreAwayError` after three
        minutes in which no run could be started.
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
        able = [t for t in self._planned if not t.refused]
        if not able:
            return "done", "no setting can run here"
        for number, trial in turns(self._view, self._spec, self._planned, self._cut_short):
            now = self._view.look()
            if self._settled(now, trial, number):
                continue
            with self._lock:
                if ended := self._asked(now):
                    self._over = True
                    return ended
            self._run(now, trial, number)
        with self._lock:
            self._over = True
        now = self._view.look()
        if self._stopping.is_set() or self._leaving.is_set():
            return self._asked(now) or ("stopped", "")
        by_hand = sum(not self._settled(now, trial, k) for k, trial in schedule(self._planned, self._spec.repeats))
        if by_hand:
            return "stopped", f"{by_hand} of its runs did not finish; resume to run them"
        if can_be_fastest(self._view.board(now)):
            return "done", f"undecided after {rounds_of(now)} rounds; more rounds may decide it"
        return "done", ""

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
            run_id = self._run(self._view.look(), self._planned[0], 1, opened)
            if self._stopping.is_set() or self._leaving.is_set():
                return self._asked(self._view.look()) or ("stopped", "")
            run = self._store.run(run_id) if run_id is not None else None
            if run is None or run.status != "done":
                why = run.error if run is not None and run.error else "it was stopped"
                return "stopped", f"the first trial, the script as it is, did not end as it should: {why}"
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

    def _settled(self, now: TournamentState, trial: PlannedTrial, number: int) -> bool:
        """Returns whether this turn needs no run: it is done already, or the trial is out."""
        entry = next(e for e in now.entries if e.key == trial.key)
        if entry.status in ("failed", "cut"):
            return True
        return any(o.round == number and o.status == "done" for o in entry.outcomes)

    def _run(
        self, now: TournamentState, trial: PlannedTrial, number: int, opened: list[str] | None = None
    ) -> int | None:
        """Runs a trial once, to its end or until it is cut short. Returns the run's id; None where the trial was cut
        before it started.

        Files that a user's own script opens for writing are added to `opened`.
        """
        may_be_cut = self._spec.early_stop and trial.key != self._baseline
        best = to_beat(self._view.board(now), now, trial) if may_be_cut else None
        patience = patience_s(now)
        earlier = evidence_so_far(next(e for e in now.entries if e.key == trial.key))
        if best is not None and (
            why := why_it_cannot_win(f"not run again after round {number - 1}", earlier, NOTHING, best)
        ):
            self._cut_short(trial.key, why)
            return None
        start = None
        if self._spec.script is not None:
            start = start_trial(self._spec, trial, 1 + sum(e.n_made for e in now.entries), opened)
        group = now.tournament.group_key
        run_id = self._manager.submit(trial.config, group_key=group, role=role_of(trial.key, number), start=start)
        self._n_begun += 1
        look_at = time.monotonic() + LOOK_S
        begun = False
        try:
            while not self._manager.wait(run_id, POLL_S):
                if self._stopping.is_set() or self._leaving.is_set():
                    self._manager.stop(run_id)
                    self._manager.wait(run_id)
                    return run_id
                with contextlib.suppress(StoreAwayError):  # the trial continues; whether it can win is checked later
                    run = self._store.run(run_id)
                    self._watch(run)
                    if not may_be_cut or trial.key in self._cut or (now_s := time.monotonic()) < look_at:
                        continue
                    begun = begun or self._store.n_steps(run_id) > 0
                    why = ""
                    if not begun and since_prepared(run) > patience:
                        why = f"no step after {formats.seconds(patience)}; run it alone, without early stop"
                    elif (
                        begun
                        and best is not None
                        and run.stage == "training"
                        and (run.progress or 0.0) >= EARLIEST_STOP_FRAC
                    ):
                        so_far = evidence(blocks_of(self._store, run_id), others_of(self._store, run_id))
                        how = f"cut short after {self._store.n_steps(run_id):,} steps"
                        why = why_it_cannot_win(how, earlier, so_far, best)
                    if why:
                        self._manager.stop(run_id)
                        self._cut_short(trial.key, why)
                    look_at = now_s + max(LOOK_S, (time.monotonic() - now_s) / LOOK_SHARE)
        except BaseException:  # for example from the store: the run would be left on its own
            self._manager.stop(run_id)
            self._manager.wait(run_id)
            raise
        return run_id

    def _status(self) -> TournamentStatus:
        return "paused" if self._pausing.is_set() else "running"
