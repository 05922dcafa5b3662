"""Gives the rounds of a tournament to the nodes of a cluster until it is decided."""

import time
from collections import Counter
from collections.abc import Callable, Sequence

from vitprof.analysis.tournament.recommend import (
    can_be_fastest,
    undecided_words,
    was_faster_while_busy,
)
from vitprof.config.bounds import MORE_ROUNDS
from vitprof.errors import ConfigError, JobError, VitprofError, one_line
from vitprof.experiments.cluster.engines import Engine, EngineGoneError, LostError, Task
from vitprof.experiments.cluster.rounds import is_done_on
from vitprof.experiments.tournament.planning import plan
from vitprof.experiments.tournament.tournament_view import TournamentView
from vitprof.store import RunStore
from vitprof.store.tournaments import (
    TournamentStatus,
    claim,
    interrupt_round,
    newest_runs,
    set_status,
)

CLUSTER_EVERY_S = 0.5
MOST_LOST = 5
"""Times that a round may be lost with its node and be run again; the next loss ends the tournament."""
ENDING_S = 60.0
"""Seconds that tasks get to end their runs once the tournament is paused."""


class ClusterTournament:
    """A tournament whose rounds run on the nodes of `engine`, each round whole on one node.

    Speeds are compared within nodes only (`analysis.tournament.nodes`). Raises what `claim` raises, and
    `ConfigError` for a user's own script.
    """

    def __init__(self, store: RunStore, tournament_id: int, engine: Engine) -> None:
        self._store = store
        self._id = tournament_id
        self._engine = engine
        self._spec = claim(store, tournament_id).spec
        if self._spec.script is not None:
            set_status(store, tournament_id, "paused", owner=None)
            raise ConfigError(
                "on", "", "a script of your own runs on this machine only; leave --on out"
            )
        self._view = TournamentView(store, tournament_id)
        planned = plan(self._spec)
        self._keys = [t.key for t in planned if not t.refused]
        refused = {t.key: t.refused for t in planned if t.refused}
        set_status(store, tournament_id, "running", refused=refused)
        self._tasks: dict[int, tuple[Task, Sequence[str]]] = {}
        """Number of a round -> the task that runs it, and the keys of its settings."""
        self._lost: Counter[int] = Counter()
        """How often each round was lost."""
        self._is_gone = False
        """Whether the engine is gone, with the tasks."""
        self._reasons: dict[str, str] = {}
        """Key of a setting -> why a node could not run it."""

    def run(self, stop: Callable[[], bool], report: Callable[[], None] = lambda: None) -> str:
        """Runs what is left, or until `stop()`; calls `report` twice a second.

        Returns the error that ended it; "" if none did.
        """
        status: TournamentStatus = "paused"
        note = ""
        error = ""
        try:
            status, note = self._run(stop, report)
        except VitprofError as failure:
            self._is_gone = isinstance(failure, EngineGoneError)
            error = one_line(failure)
            note = error
        finally:
            # tasks that still run see it and end their runs
            set_status(self._store, self._id, status, note=note)
            self._wait_for_the_last()
            set_status(self._store, self._id, status, owner=None, refused=self._nowhere())
        return error

    def _run(
        self, stop: Callable[[], bool], report: Callable[[], None]
    ) -> tuple[TournamentStatus, str]:
        """Returns the status to end with, and a note. Raises `VitprofError`."""
        pending: list[tuple[int, Sequence[str]]] = []
        for number in range(1, self._spec.repeats + 1):
            if not self._is_whole(number):
                pending.append((number, self._keys))
        last = self._spec.repeats
        for rounds in newest_runs(self._store, self._id).values():
            last = max([last, *rounds])
        while not stop():
            self._engine.check()
            self._start(pending)
            pending[:0] = self._lost_ones()
            report()
            if not pending and not self._tasks:
                undecided: Sequence[str] = ()
                if self._spec.until_decided:
                    undecided = can_be_fastest(self._view.board())
                if not undecided:
                    return "done", ""
                if last >= self._spec.repeats + MORE_ROUNDS:
                    if was_faster_while_busy(self._view.board()):
                        return "done", ""
                    words = f"{undecided_words(undecided)} after {last} rounds"
                    return "done", f"{words}; more rounds may decide it"
                last += 1
                pending.append((last, undecided))
            time.sleep(CLUSTER_EVERY_S)
        return "paused", "paused by the user"

    def _start(self, pending: list[tuple[int, Sequence[str]]]) -> None:
        """Gives the first of the pending rounds to nodes, as long as there is a free one."""
        while pending:
            number, keys = pending[0]
            task = self._engine.start(self._id, number, keys)
            if task is None:
                return
            del pending[0]
            self._tasks[number] = task, keys

    def _is_whole(self, number: int) -> bool:
        return all(is_done_on(self._store, self._id, key, number, "") for key in self._keys)

    def _lost_ones(self) -> list[tuple[int, Sequence[str]]]:
        """Removes the tasks that have ended; returns the rounds that are to be run again.

        Raises `JobError` where a task failed, or was lost too often.
        """
        again = []
        for number in list(self._tasks):
            task, keys = self._tasks.pop(number)
            try:
                lines = task.result()
            except LostError as error:
                self._lost[number] += 1
                why = f"its node was lost: {one_line(error)}"
                interrupt_round(self._store, self._id, number, why)
                if self._lost[number] > MOST_LOST:
                    raise JobError(
                        f"round {number} was lost {MOST_LOST + 1} times; the last: {error}"
                    ) from error
                again.append((number, keys))
                continue
            if lines is None:
                self._tasks[number] = task, keys
                continue
            for line in lines.splitlines():
                key, _, reason = line.partition(": ")
                self._reasons[key] = reason
        return again

    def _wait_for_the_last(self) -> None:
        until = time.monotonic() + ENDING_S
        while self._tasks and not self._is_gone and time.monotonic() < until:
            try:
                self._lost_ones()
            except VitprofError:
                continue
            time.sleep(CLUSTER_EVERY_S)
        for number, (task, _) in self._tasks.items():
            if not self._is_gone:
                task.cancel()
            interrupt_round(self._store, self._id, number, "the tournament was paused")

    def _nowhere(self) -> dict[str, str]:
        """Returns the settings that no node could run, with the reason of the last one."""
        ran = {key for key, rounds in newest_runs(self._store, self._id).items() if rounds}
        planned = {t.key: t.refused for t in plan(self._spec) if t.refused}
        return planned | {key: why for key, why in self._reasons.items() if key not in ran}
