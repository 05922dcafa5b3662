"""Reads what `top` lists from the store, which it never writes to.

A refresh reads the runs that go on, and of each the steps that are new. Runs that have ended do not
change as a rule: they are listed anew when one ends, and now and then.
"""

from __future__ import annotations

import datetime as dt
import math
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from vitprof import errors
from vitprof.analysis.timing import steady, summary
from vitprof.analysis.verdict.answer import Answer, answer_of, interval_in_words
from vitprof.analysis.verdict.answer import lines as lines_of
from vitprof.cli.common import results
from vitprof.cli.top import rows
from vitprof.cli.top.rows import Snapshot, TopRow
from vitprof.experiments import answers
from vitprof.formats import percent
from vitprof.recording.columns import ENDED_STATUSES, LIVE_STATUSES
from vitprof.recording.shared_machine import as_shown
from vitprof.store import RunGroup, RunQuery, RunRow, RunStore, StoredRun
from vitprof.store.stored_run import is_alive

RECENT_S = 3600.0
"""For how long (s) a run that has ended is listed."""
MOST_ENDED = 100
"""The newest runs that have ended which are looked through for those."""
LOOK_AGAIN_S = 20.0
"""How often (s) runs that have ended are listed anew, where none was seen to end: one may have been
renamed or deleted, or begun and ended meanwhile."""
NAMES = ("step", "epoch", "warmup", "samples", *summary.SUMMED)
"""Columns of steps that are read: what `summary.RunningTotals` adds up."""
GONE = "its program is gone"
"""What a run is said to do whose program ended without a word. Commands that write to the store mark
it as interrupted; this one does not write."""


class LiveTotals:
    """Sums over the steps of a run that goes on; each step is read once."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._n_stops = 0
        self._begin()

    def _begin(self) -> None:
        self._last_step = -1
        self._running = summary.RunningTotals()
        self._last_came_s = self._clock()

    def refresh(self, store: RunStore, run: StoredRun) -> None:
        """Adds the steps that are new in the store.

        Where a run has more stops than before, steps that were added already have since been left
        out, and all are read again: as the pages do (`ui.resources.RunSeries`).
        """
        n_stops = len(steady.stops_of(run.facts))
        if n_stops > self._n_stops:
            self._n_stops = n_stops
            self._begin()
        for new in store.steps_in_parts(run.id, after=self._last_step, names=NAMES):
            if len(new["step"]):
                self._last_step = int(new["step"][-1])
                self._running.add(new)
                self._last_came_s = self._clock()

    @property
    def sums(self) -> summary.StepSums:
        return self._running.totals

    @property
    def quiet_s(self) -> float:
        """Returns how long ago (s) a step came that is newer than those before."""
        return self._clock() - self._last_came_s


@dataclass(frozen=True)
class EndedRun:
    """A run that ended within the last hour."""

    listed: RunRow
    """As the store lists it: it is read again where that changes."""
    row: TopRow


class StoreReader:
    """The rows of a store, time after time. One thread uses it at a time. It raises `StoreError`."""

    def __init__(
        self,
        store: RunStore | None = None,
        *,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`store`: that of the command line, by default. `wall_clock`: seconds since 1970; `clock`:
        the monotonic one by which runs are recorded."""
        self._store = store if store is not None else RunStore(opens=False)
        self._wall_clock = wall_clock
        self._clock = clock
        self._is_open = False
        self._live: dict[int, LiveTotals] = {}
        self._ended: dict[int, EndedRun] = {}
        """Runs that ended within the last hour, by number."""
        self._old: set[int] = set()
        """Runs that had ended earlier when they were first seen."""
        self._listed_s = -math.inf
        """When the runs that have ended were listed last, by `clock`."""
        self._has_older = False
        self._answered: tuple[int, tuple[str, ...]] | None = None
        """A run that has ended, and the answer on it; None while none is open."""

    def read(self, opened: int | None = None) -> Snapshot:
        """Returns what there is now; with the answer on the run `opened`, if it is not None."""
        now_s = self._wall_clock()
        if not self._is_open:
            if not self._is_there():
                return Snapshot(at_s=now_s)
            self._store.open()
            self._is_open = True
        live = self._store.runs(LIVE_STATUSES)
        listed = [self._live_row(run, now_s) for run in live]
        self._refresh_ended({run.id for run in live}, now_s)
        self._live = {run.id: self._live[run.id] for run in live}
        listed += [ended.row for ended in self._ended.values()]
        if opened is None:
            self._answered = None
        return Snapshot(
            rows=tuple(listed),
            has_older=self._has_older,
            at_s=now_s,
            opened=opened,
            answer_lines=() if opened is None else self._answer_lines(opened),
        )

    def close(self) -> None:
        self._store.close()

    def _is_there(self) -> bool:
        """Returns whether there is a store to read: opening one that is not there would make it."""
        file = self._store.file
        return file is None or file.exists()

    def _live_row(self, run: StoredRun, now_s: float) -> TopRow:
        totals = self._live.setdefault(run.id, LiveTotals(self._clock))
        is_queued = run.status == "queued"
        if not is_queued:
            totals.refresh(self._store, run)
        sums = totals.sums
        step_s = summary.mean_step_s(run.config, None, sums)
        state = run.status if is_queued else rows.training_state(run.stage, step_s, totals.quiet_s)
        alive = is_alive(run.owner_host, run.owner_pid, run.owner_started)
        return _row(
            run,
            state=state if alive else GONE,
            live=alive,
            queued=is_queued and alive,
            step_s=step_s,
            answer=_so_far(run, sums),
            moment_s=self._began_s(run, now_s) if alive else math.nan,
        )

    def _began_s(self, run: StoredRun, now_s: float) -> float:
        """Returns when a run left the queue, in seconds since 1970; of one on another machine, whose
        clock is not known here, when it was submitted."""
        if run.t_origin_s is None or run.owner_host != socket.gethostname():
            return _created_s(run)
        return now_s - (self._clock() - run.t_origin_s)

    def _refresh_ended(self, live: set[int], now_s: float) -> None:
        """Lists the runs that have ended, where that is due: `live` are those that go on."""
        were_live = set(self._live)
        has_ended = bool(were_live - live)
        is_due = self._clock() - self._listed_s >= LOOK_AGAIN_S
        if not has_ended and not is_due:
            return
        query = RunQuery(filters={"status": ENDED_STATUSES})
        listed = self._store.list_runs(query, limit=MOST_ENDED)
        recent = {}
        for row in listed:
            # one that ended just now, after those that go on were read, comes the next time
            if row.id in live:
                continue
            known = self._ended.get(row.id)
            ended = self._looked_up(row, known, now_s, was_live=row.id in were_live)
            if ended is not None and ended.row.moment_s >= now_s - RECENT_S:
                recent[row.id] = ended
            elif ended is not None:
                self._old.add(row.id)
        self._ended = recent
        self._listed_s = self._clock()
        # runs that are no longer among the newest need not be remembered
        self._old &= {row.id for row in listed}
        self._has_older = len(listed) > len(self._ended)

    def _looked_up(
        self, row: RunRow, known: EndedRun | None, now_s: float, *, was_live: bool
    ) -> EndedRun | None:
        """Returns a run that has ended; None for one that had long ago, and for one that cannot be
        read."""
        if row.id in self._old:
            return None
        if known is not None and known.listed == row:
            return known
        try:
            run = self._store.run(row.id)
        except errors.StoreAwayError:
            raise
        except errors.StoreError:
            # another version wrote it, or it was deleted meanwhile
            return None
        ended_s = run.ended_s
        if known is not None:
            ended_s = known.row.moment_s
        elif was_live:
            ended_s = now_s
        return EndedRun(row, _ended_row(run, ended_s))

    def _answer_lines(self, run_id: int) -> tuple[str, ...]:
        """Returns the answer on a run, line by line: of one that has ended what `vitprof runs` says,
        worked out once while it is open."""
        if self._answered is not None and self._answered[0] == run_id:
            return self._answered[1]
        try:
            run = self._store.run(run_id)
        except errors.StoreAwayError:
            raise
        except errors.StoreError as error:
            return (errors.one_line(error),)
        if run.live:
            return tuple(self._lines_so_far(run))
        verdict = answers.verdict_now(self._store, run)
        found = () if verdict is None else answers.proofs_of(self._store, run, verdict)
        lines = [results.title_of(run), *results.lines_on_run(run, verdict, found)]
        if len(lines) == 1:
            lines.append(run.status)
        lines += [*as_shown(run.notices), *filter(None, [run.error])]
        self._answered = (run_id, tuple(lines))
        return self._answered[1]

    def _lines_so_far(self, run: StoredRun) -> list[str]:
        totals = self._live.get(run.id)
        answer = None if totals is None else _so_far(run, totals.sums)
        title = results.title_of(run)
        if answer is None:
            return [title, f"{run.stage or run.status}: no figures yet", *as_shown(run.notices)]
        idle = f"{percent(answer.frac)} idle for {answer.waits_for}"
        lines = [title, f"{answer.headline}: {idle}, {interval_in_words(answer)}"]
        lines += [f"  {question:<9}{words}" for question, words in lines_of(answer)]
        lines += ["  Fix?     named when the run has ended", *as_shown(run.notices)]
        return lines


def _so_far(run: StoredRun, sums: summary.StepSums) -> Answer | None:
    """Returns what is known of a run that goes on; None of one that only loads, without training."""
    if run.config.loader_only:
        return None
    return answers.answer_of_live(run, sums)


def _ended_row(run: StoredRun, ended_s: float) -> TopRow:
    step_s = math.nan
    if run.summary is not None:
        n_steps = run.verdict.n_judged if run.verdict is not None else 0
        step_s = summary.mean_step_s(run.config, run.summary, summary.StepSums(), n_steps)
    return _row(
        run,
        state=run.status,
        live=False,
        step_s=step_s,
        answer=answer_of(run.verdict) if run.verdict is not None else None,
        moment_s=ended_s,
    )


def _row(
    run: StoredRun,
    *,
    state: str,
    live: bool,
    step_s: float,
    answer: Answer | None,
    moment_s: float,
    queued: bool = False,
) -> TopRow:
    name = str(run.facts.get("command") or run.name)
    if run.group is not None:
        name = f"{_made_for(run.group)}: {name}"
    return TopRow(
        run_id=run.id,
        name=name,
        state=state,
        live=live,
        queued=queued,
        simulated=run.simulated,
        steps_per_s=1 / step_s if step_s > 0 else math.nan,
        answer=answer,
        user=run.owner_user,
        pid=int(run.environment.get("pid") or run.owner_pid),
        host=str(run.environment.get("hostname") or run.owner_host),
        moment_s=moment_s,
    )


def _made_for(group: RunGroup) -> str:
    if group.run_id is not None:
        return f"{group.kind} of run {group.run_id}"
    return f"{group.kind} {group.of}"


def _created_s(run: StoredRun) -> float:
    return dt.datetime.fromisoformat(run.created_utc).timestamp()
