"""The watching of a script's process: its hooks, what sends their events, and how both end."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
from threading import get_ident
from typing import TYPE_CHECKING, Any

from vitprof.program import program
from vitprof.watch.causal_ledger import CAUSAL, PROCESS, SharedWords
from vitprof.watch.connection import Connection, connect, connect_to_command
from vitprof.watch.data_report import describe_dataset
from vitprof.watch.events import FORKED, Buffer, Emit
from vitprof.watch.patches import CURRENT, Recorder, Replacements, drop
from vitprof.watch.patches.causal import CausalHooks, CausalPlan
from vitprof.watch.patches.forked import ForkedTraining
from vitprof.watch.patches.hydra import NOT_RECORDED, Jobs
from vitprof.watch.patches.limits import StepLimit, ThreadState
from vitprof.watch.patches.replay import HEADROOM, ReplayPlan
from vitprof.watch.patching import (
    DETACH,
    LOG_TO,
    SOCKET,
    STEPS,
    TRIAL_OVERRIDES,
    makes_workers,
    say,
    whole_number,
)
from vitprof.watch.pending_wait import PendingWait
from vitprof.watch.rank_identity import rank
from vitprof.watch.runs import Planned, how_it_ended
from vitprof.watch.stack_answers import answers_of
from vitprof.watch.transport import Transport

if TYPE_CHECKING:
    from vitprof.watch.trackers import LiveLog


class EnoughSteps(SystemExit):
    """Raised to end the script after the number of steps to run, as `sys.exit(0)` in its own loop would."""


class Watching:
    """The watching of this process, from the import of PyTorch's DataLoader until it ends."""

    def __init__(self) -> None:
        self.declares = False
        """Whether the script says which loaders train."""
        self.over = False
        self._command = os.environ.get(SOCKET, "")
        """Where the command around the script listens; empty without one. A script may clear its environment later:
        then a program beside it recorded the run, elsewhere."""
        self.recorder = Recorder(Buffer(), self._hook_failed, self._look_for_jobs)
        limit = step_limit(self)
        if limit is not None:
            self.recorder.limit_steps(limit)
        if os.environ.get(HEADROOM):
            self.recorder.measure_headroom(ReplayPlan())
        if os.environ.get(CAUSAL):
            self._measure_causal(os.environ[CAUSAL])
        self._jobs = Jobs()
        self.installed: list[Replacements] = []
        """All hooks of this process."""
        self._run: Planned | None = None
        """The run of a script that watches itself."""
        self.is_paused = False
        """Whether that is over, unless more of its batches are requested."""
        self._live_log: LiveLog | None = None
        """Writes to the script's experiment tracker, where that was asked for."""
        self._forked = ForkedTraining()
        """That of processes which are forked from this one, in the run that is recorded."""
        self._pending: PendingWait | None = None
        """Since when the script waits for a batch, where the program that records it is to know."""
        self._transport = self._new_transport()
        self._has_begun = False

    def _measure_causal(self, path: str) -> None:
        """Has a causal profile measured, by words in the file `path`."""
        try:
            words = SharedWords.in_file(path)
        except OSError as error:
            say(f"no causal profile: {error.strerror or error}: {path}")
            return
        plan = CausalPlan(words, functools.partial(self.recorder.describe, "causal"))
        PROCESS.maker = plan.maker
        self.recorder.measure_causal(CausalHooks(plan))

    def begin(self) -> None:
        """Records events from here on."""
        if not self._has_begun:
            self._has_begun = True
            CURRENT.recorder = self.recorder
            self.recorder.on_first_work.append(self._transport.note_process)
            self._transport.begin()

    def ask(self, question: str, values: dict[str, Any]) -> dict[str, Any] | None:
        """Returns the answer of the program that reads the events; None without one."""
        return self._transport.ask(question, values)

    def give_up(self, why: str) -> None:
        """Ends the watching, and says why in one line on standard error. In a trial it ends the script."""
        if self.over:
            return
        self._stop()
        is_trial = bool(os.environ.get(TRIAL_OVERRIDES))
        goes_on = "the trial ends" if is_trial else "training goes on"
        say(f"gave up watching ({why.partition(chr(10))[0] or 'unknown'}); {goes_on}")
        if is_trial:  # nothing else would end it after its steps
            os.kill(os.getpid(), signal.SIGTERM)

    def detach(self) -> None:
        """Ends the watching: all hooks are taken back, and what they recorded is sent. In the thread that
        trains."""
        if self.recorder.marks is not None:
            self.recorder.marks.finish()
        self._stop()
        self._take_back()
        self._transport.finish()

    def _take_back(self) -> None:
        """Takes all hooks back."""
        for replacements in reversed(self.installed):
            replacements.remove()

    def finish(self) -> None:
        """Ends the watching as the process ends.

        All hooks are taken back: as Python ends it clears the modules, ours among them, and then frees
        what is left of the script, such as an iterator that ends its workers.
        """
        if self._run is not None and not self.over:
            error = None
            if not hasattr(sys, "ps1"):  # there it is an old one
                error = getattr(sys, "last_value", None)
            self.pause(*how_it_ended(error))
        if self._live_log is not None:
            self._transport.ask("close", {})
            self._live_log.close()
        self._transport.finish()
        answers = answers_of(os.getpid()) if self._pending is not None else None
        if answers is not None:
            answers.close()
        CURRENT.recorder = None
        self._take_back()

    def begin_anew_or_stop(self) -> None:
        """In a forked process: that of a process which trains, and a worker of a loader, record nothing;
        any other child may train itself.

        The child of a process that trains notes whether it trains, too, and so do the processes that it
        forks in turn, in which the watching is over already.
        """
        is_worker = makes_workers()
        parent_trains = not (is_worker or self.over) and self._transport.has_trained()
        self._pending = None  # that is of its parent
        self.recorder.pending = [0.0]
        # A worker takes part as what it is, once it makes batches; any other process has no part in it.
        self.recorder.causal = None
        PROCESS.maker = None
        self._transport.forget()
        self.recorder.renew_locks()
        if is_worker:
            self._stop()
        elif parent_trains:
            self._stop(self._forked.note)
        elif not self.over:
            self._forked = ForkedTraining()
            self.recorder.describe_again()
            self._transport.begin()

    # the runs of a script that watches itself: see `runs.Recording`

    def plan(self, run: Planned) -> None:
        self.recorder.declared.add(run.owner(), run.name)
        if self._run is None:
            self.begin_run(run)

    def begin_run(self, run: Planned) -> None:
        if not os.environ.get(SOCKET):
            self._run = run
            self.is_paused = False

    def pause(self, status: str, error: str) -> None:
        run = self._run
        if run is None or self.is_paused:
            return
        self.is_paused = True
        self.recorder.pause(self.recorder.describe("end", {"status": status, "error": error}))
        known = self._transport.run_number()
        if run.quiet or self.over or not self._transport.connected:
            return
        at = f" {known}" if known else ""
        what = f"recorded as run{at}" if at else "the run is being recorded"
        say(f"{what}: see {program()} runs{at}, or the dashboard")

    def end_run(self, status: str, error: str) -> None:
        self.pause(status, error)
        self._run = None
        if self.over:
            return
        self._transport.finish()
        self.recorder.describe_again()
        self._forked = ForkedTraining()
        self._transport = self._new_transport()
        self._transport.begin()

    def _new_transport(self) -> Transport:
        return Transport(
            self.recorder.buffer,
            self._connect,
            self.recorder.stages,
            self.give_up,
            self._header,
            self._received,
            self._describe_forked_training,
        )

    def _connect(self) -> Connection:
        return connect_to_command(self._command) if self._command else connect()

    def _header(self) -> dict[str, Any]:
        tracks = bool(os.environ.get(LOG_TO)) and rank() == 0
        measures_headroom = self.recorder.headroom is not None
        header = {
            "declares": self.declares,
            "tracks": tracks,
            "headroom": measures_headroom,
            "causal": self.recorder.causal is not None,
        }
        return header | self._looked_at()

    def _looked_at(self) -> dict[str, Any]:
        """Lets the program that records the script look at it while it waits for a batch. Returns what
        that must know; nothing where this system cannot say it."""
        if self._pending is None:
            try:
                self._pending = PendingWait()
            except Exception:  # also of an audit hook of the script's
                return {}
            self.recorder.pending = self._pending.words
            answers_of(os.getpid())
        return {"pending": self._pending.descriptor}

    def _received(self, answer: dict[str, Any]) -> bool:
        """Takes what the program says that is no answer to a question: which loader trains, where headroom
        is measured, and what a tracker is to be told."""
        if "headroom" in answer and self.recorder.headroom is not None:
            self._begin_headroom(self.recorder.headroom, answer)
            return True
        if "causal" in answer:
            self._begin_causal(answer)
            return True
        if "tracked" not in answer:
            return False
        if self._live_log is None:
            from vitprof.watch.trackers import LiveLog

            self._live_log = LiveLog(os.environ[LOG_TO], self.recorder.forking, answer["thread"])
        self._live_log.add(**answer["tracked"])
        return True

    def _describe_forked_training(self) -> None:
        if self._forked.is_news():
            self.recorder.describe(FORKED, {})

    def _begin_headroom(self, headroom: ReplayPlan, answer: dict[str, Any]) -> None:
        if answer.get("refused"):
            headroom.refuse(answer["refused"])
        else:
            headroom.begin(answer["headroom"], answer["facts"])

    def _begin_causal(self, answer: dict[str, Any]) -> None:
        causal = self.recorder.causal
        if causal is None:
            return
        if answer.get("refused"):
            causal.plan.refuse(answer["refused"])
        else:
            causal.plan.begin(answer["causal"], answer["facts"])

    def _look_for_jobs(self) -> None:
        """Ends the watching where hydra begins its next job in this process, if the first one trained."""
        if self._jobs.begins_another() and self._transport.connected:
            say(NOT_RECORDED)
            self.detach()

    def _hook_failed(self, error: Exception) -> None:
        self.give_up(f"{type(error).__name__}: {error}")

    def _stop(self, emit: Emit = drop) -> None:
        """Ends the watching. `emit` takes what hooks record from here on."""
        self.over = True
        self.recorder.finish()
        self.recorder.stop(emit)
        CURRENT.recorder = None


@functools.cache
def the_watching() -> Watching:
    """Returns the watching of this process."""
    return Watching()


def step_limit(watching: Watching) -> StepLimit | None:
    """Returns the limit that this process was given; None without one."""
    ends_after = whole_number(STEPS)
    detaches_after = whole_number(DETACH)

    def ask() -> ThreadState | None:
        answer = watching.ask("steps", {"thread": get_ident()})
        return None if answer is None else ThreadState(answer["ended"], answer["loader"])

    def end(ended: ThreadState) -> None:
        watching.detach()
        with contextlib.suppress(Exception):  # the report says why
            describe_dataset(watching.recorder.loader(ended.loader))
        raise EnoughSteps(0)

    if ends_after:
        return StepLimit(ends_after, ask, end)
    return StepLimit(detaches_after, ask, lambda _: watching.detach()) if detaches_after else None
