"""Runs one job from its start to its end: receives its messages, stops it on request, and records what
it measured.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitprof.analysis.timing import steady
from vitprof.attempts import Attempt
from vitprof.config.own_script import is_own_script, with_loader
from vitprof.engine.locations import remove_copies
from vitprof.errors import one_line
from vitprof.home import ensure_dir, log_dir
from vitprof.jobs import finalise, scheduling
from vitprof.jobs.late_batches import LateBatchRecorder
from vitprof.jobs.outbox import WRITE_WITHIN_S, Outbox
from vitprof.jobs.runners import Launcher, Runner, start_runner
from vitprof.measure.step_columns import Columns
from vitprof.measure.wire import Message, Note
from vitprof.recording import codec, shared_machine
from vitprof.recording.columns import TELEMETRY_COLUMNS, Phase, Status, Stop
from vitprof.store import RunStore, chunks
from vitprof.store.new_run import NewRun
from vitprof.telemetry.sampler import Telemetry

FLUSH_EVERY_S = 0.5
"""How often (s) what a job reported is written to the store."""
OWN_FLUSH_EVERY_S = 1.0
"""The same for a watched script, which trains for hours: writing takes 2 ms of CPU, however few steps
there are."""
STOP_GRACE_S = 1.2
"""How long (s) a job may take to stop by itself, and to be gone after its last message. Stop is
promised within 2 s, and ending a process takes a moment too."""
LEAVE_AFTER_S = 5.0
"""How long (s) to wait for an unavailable store when a script has ended: nobody should have to wait
for vitprof."""
PLACE_WITHIN_S = 2.0
"""How long (s) the files of the machine's places may take: they may be on a drive that does not answer."""
PLACE_UNKNOWN = scheduling.NOT_SEEN.format("the files that say so do not answer")
NOT_BEGUN = "stopped before it began"


def log_file(run_id: int, logs: Path | None = None) -> Path:
    """Returns the log file of a run's processes, in `logs` (default: `home.log_dir()`), and creates that folder."""
    return ensure_dir(logs or log_dir()) / f"run-{run_id}.log"


def record_end(
    outbox: Outbox, status: Status, error: str, within_s: float = WRITE_WITHIN_S
) -> None:
    """Records the end of a run that nothing is summed up of, and waits for that (`Outbox.wait_for_end`)."""
    outbox.add(status=status, stage="", message="", error=error)
    outbox.wait_for_end(within_s)


N_CONCURRENT = "n_beside"
"""The name of the fact that holds the number of other jobs at the same time."""
OTHER_JOBS_CHECK_S = 3.0
"""How often (s) to look for other jobs: a look takes 2.3 ms of CPU while a job computes. It also finds
the jobs that began and ended since the last one."""
LOOK_BACK = 20_000
"""The number of latest steps to search for those in a stop: no step ends during a stop, and even the
fastest job makes fewer between the end of a stop and the search."""
SURE_AFTER_S = 1.0
"""Once a step has arrived that ended this long (s) after a stop, all steps that the stop fell into have
arrived."""


class Disturbances:
    """What disturbs a run while it goes on: other jobs at the same time, and stops, which are times in
    which it could not run.
    """

    def __init__(self, store: RunStore, run_id: Callable[[], int]) -> None:
        """`run_id` returns the run's id; it is called once the store has the run."""
        self._store = store
        self._run_id = run_id
        self._others: dict[object, str] = {}
        """A notice of each other job."""
        self._n_concurrent = 0
        self._looked_s: float | None = None
        self._since_s = time.perf_counter()
        """Jobs that have ended before are not looked for again."""
        self._recent: list[Columns] = []
        """The latest steps."""
        self._recent_of_ranks: dict[int, list[Columns]] = {}
        """Those of the job's other ranks."""
        self._earlier: list[Stop] = []
        """Stops that an earlier telemetry found, of a job that began again after its "end"."""
        self._settled: list[Stop] = []
        """Stops whose steps were found."""
        self._stopped: list[str] = []
        """Notices of them."""
        self._left_out: set[int] = set()
        """Numbers of the steps that they fell into."""
        self._to_mark: deque[int] = deque()
        """Numbers of suspended steps that the store may not have marked yet."""
        self.lock: scheduling.MachineLock | None = None

    @property
    def notices(self) -> list[str]:
        """Returns what the user should know, one line for each disturbance."""
        unseen = [self.lock.not_seen] if self.lock is not None and self.lock.not_seen else []
        return [*self._others.values(), *self._stopped, *unseen]

    def look_at_store(self) -> None:
        """Looks for other jobs, and marks stored steps as suspended; in the writing thread. Raises `StoreError`."""
        if self._looked_s is None or time.monotonic() - self._looked_s >= OTHER_JOBS_CHECK_S:
            self._look_for_others()
        numbers = [self._to_mark.popleft() for _ in range(len(self._to_mark))]
        # those that are not stored yet are marked when the run ends
        self._store.mark_warmup(self._run_id(), numbers)

    def look_again(self) -> None:
        """Looks for other jobs once more when the job has ended, and stores what is new. Raises `StoreError`."""
        self._look_for_others()
        lines = list(self._others.values())
        if len(lines) > self._n_concurrent:
            run = self._store.run(self._run_id())
            notices = dict.fromkeys([*run.notices, *lines])
            self._store.update_run(
                run.id, notices=[*notices], facts=run.facts | {N_CONCURRENT: len(lines)}
            )

    def _look_for_others(self) -> None:
        """Notes the runs that are running or ran since the last look, and other stores' jobs.

        Raises `StoreError`.
        """
        lock = self.lock
        if lock is None:
            return
        now = time.perf_counter()
        run_id = self._run_id()
        lock.name_run(run_id)
        running = scheduling.concurrently_running(self._store, run_id)
        for run in (*running, *self._store.ended_since(run_id, self._since_s)):
            device = scheduling.device_of(run)
            line = shared_machine.notice(f"run {run.id}", device, run.name)
            self._others.setdefault(run.id, line)
        # only here: after a look that raised, the next one covers its time too
        self._since_s = now
        for other in lock.others():
            if other.store != lock.holder.store:
                line = shared_machine.notice(scheduling.name_of(other), other.device, other.who)
                self._others.setdefault((other.store, other.run, other.since_s), line)
        self._looked_s = time.monotonic()

    def new_telemetry(self, before: Telemetry | None) -> None:
        """Keeps the stops that the telemetry `before` found, as a new one takes its place."""
        self._earlier += before.stops if before is not None else []

    def update(
        self,
        new: Sequence[Columns],
        telemetry: Telemetry | None,
        *,
        last: bool,
        of_ranks: Sequence[Columns] = (),
    ) -> dict[str, Any]:
        """Returns the facts that have changed. `new` are the newest steps, `of_ranks` those of other
        ranks; `last`: no more will come.
        """
        facts: dict[str, Any] = {}
        if len(self._others) > self._n_concurrent:
            self._n_concurrent = len(self._others)
            facts[N_CONCURRENT] = self._n_concurrent
        for steps in new:
            _keep_recent(self._recent, steps)
        for steps in of_ranks:
            rank = int(steps["rank"][0])
            _keep_recent(self._recent_of_ranks.setdefault(rank, []), steps)
        stops = list(self._earlier)
        if telemetry is not None:
            stops += telemetry.stops
        if self._settle(stops[len(self._settled) :], last=last):
            facts[steady.STOPS] = steady.plain_stops(self._settled)
        return facts

    def _settle(self, stops: Sequence[Stop], *, last: bool) -> bool:
        """Finds the steps that new `stops` fell into, as far as these have arrived.

        `last`: no more steps will come. Returns whether any stop was settled.
        """
        if not stops:
            return False
        steps = chunks.joined("steps", self._recent, steady.STOP_COLUMNS)
        of_ranks = {}
        if any(stop.rank is not None for stop in stops):
            of_ranks = {
                rank: chunks.joined("ranks", recent, steady.STOP_COLUMNS)
                for rank, recent in self._recent_of_ranks.items()
            }
        n = len(self._settled)
        ends = steady.end_s(steps)
        seen_s = float(np.nanmax(ends)) if np.isfinite(ends).any() else -np.inf
        for stop in stops:
            if not last and seen_s < stop.t_end_s + SURE_AFTER_S:
                break
            hit = steady.in_stops(steps, [stop], of_ranks)
            numbers = {int(step) for step in np.unique(steps["step"][hit])}
            self._to_mark.extend(sorted(numbers))
            # of what was stopped together, as by Ctrl-Z, one line says so
            is_told = bool(numbers) and numbers <= self._left_out and stop.rank is not None
            if not is_told and (numbers or stop.kind in ("stopped", "asleep")):
                self._stopped.append(steady.stop_sentence(stop, len(numbers)))
            self._left_out |= numbers
            self._settled.append(stop)
        return len(self._settled) > n


def _keep_recent(recent: list[Columns], steps: Columns) -> None:
    """Adds to the latest steps of a rank what tells which of them a stop fell into."""
    recent.append({name: steps[name] for name in steady.STOP_COLUMNS if name in steps})
    while len(recent) > 1 and sum(map(chunks.n_rows, recent[1:])) >= LOOK_BACK:
        del recent[0]


class JobRecorder:
    """The recorder of one job, which it runs to its end."""

    def __init__(
        self,
        store: RunStore,
        run_id: int | NewRun,
        stop: threading.Event,
        clock: Callable[[], float] = time.perf_counter,
        *,
        logs: Path | None = None,
        launcher: Launcher | None = None,
        start: Callable[[], Runner] | None = None,
        lock: scheduling.MachineLock | None = None,
        outbox: Outbox | None = None,
        on_news: Callable[[], object] = lambda: None,
    ) -> None:
        """`run_id`: of a run that the store has; or a run that is added once the store can be used, which
        need not be open. `start` starts what is to be recorded, by default the job of the run's config.
        `on_news`: see `Outbox`.
        """
        self._store = store
        self._stop = stop
        self._clock = clock
        if outbox is None:
            run = run_id if isinstance(run_id, NewRun) else store.run(run_id)
            outbox = Outbox(store, run, clock=clock, on_news=on_news)
        self.outbox = outbox
        self._disturbances = Disturbances(store, lambda: self.run_id)
        """After `run` it may hold data that the store does not have yet; `leave` ends that."""
        self.outbox.before_write = self._disturbances.look_at_store
        run = self.outbox.run
        self._config = run.config
        shares = run.config.share_machine
        self._lock = lock or scheduling.MachineLock(
            run.id, run.config.device, shares=shares, store_url=store.url
        )
        own = launcher or Launcher()
        self._start = start or (
            lambda: start_runner(self._config, log_file(self.run_id, logs), own, stop)
        )
        self._columns: dict[str, Any] = {
            "facts": dict(run.facts),
            "environment": {},
            "phases": [],
            "notices": [],
        }
        self._steps: list[Columns] = []
        self._of_ranks: list[Columns] = []
        """Steps of ranks other than 0."""
        self._changes: dict[str, Any] = {}
        self._sampled: deque[tuple[float, ...]] = deque()
        """Telemetry samples not yet given to the outbox; the telemetry's thread appends to it."""
        self._telemetry: Telemetry | None = None
        self._late_batches = LateBatchRecorder()
        self._ranks: dict[int, int] = {}
        """The processes of other ranks, and which these are."""
        self._other_gpus: list[str] = []
        """The GPUs of other ranks, by their UUIDs."""
        self._workers: list[int] = []
        """The processes that are workers of a watched script's loader now."""
        self._end: tuple[Status, str] | None = None
        """The job's last message: how it ended, and the error."""
        self._origin: float | None = None
        """When it was started first, on its clock; a script may begin again after its "end"."""

    @property
    def run_id(self) -> int:
        """Returns the id of the run; 0 while the store does not have it."""
        return self.outbox.run.id

    def run(self) -> None:
        """Starts the job and records it to its end. Raises `VitprofError` if it could not be started."""
        if self._stop.is_set():
            record_end(self.outbox, "stopped", NOT_BEGUN)
            return
        if self._origin is None:
            self._origin = self._clock()
        self._end = None
        self.outbox.add(
            status="running", stage="starting", message="", error="", t_origin_s=self._origin
        )
        self._disturbances.lock = self._take_place()
        try:
            self._run_to_its_end(self._origin)
        finally:
            self._disturbances.lock = None
            self._lock.release()

    def _take_place(self) -> scheduling.MachineLock | None:
        """Takes a place of the machine; returns None where its files do not answer."""
        try:
            taken = Attempt(lambda: self._lock.acquire(anyway=True), "vitprof-place")
            taken.result(PLACE_WITHIN_S)
        except TimeoutError:
            self._columns["notices"].append(PLACE_UNKNOWN)
            return None
        return self._lock

    def _run_to_its_end(self, origin: float) -> None:
        runner = self._start()
        try:
            # imported while the job starts, not at the first write, in the middle of its training
            codec.arrow()
            self._follow(runner)
        finally:
            runner.kill()
            reason = runner.close()
            if not is_own_script(self._config):
                remove_copies()  # those of a job that was killed
            if self._telemetry is not None:
                self._telemetry.stop()
            self._late_batches.stop()
        self._flush(last=True)
        self._finish(origin, reason)
        self.outbox.wait_for_end()

    def fail(self, reason: str) -> None:
        self._end = "failed", reason
        record_end(self.outbox, "failed", reason)

    def leave(self) -> str:
        """Ends the recording. Returns a line on the data that the store does not have; "" where it has them all."""
        return "" if self.outbox.wait(LEAVE_AFTER_S) else self.outbox.leave()

    @property
    def end(self) -> str:
        """Returns how the job ended, to follow "run 3"."""
        status, error = self._end or ("stopped", "")
        return f"{status}: {error}" if error else f"is {status}"

    def _follow(self, runner: Runner) -> None:
        """Receives the job's messages until it ends; ends one that does not stop."""
        flushed = self._clock()
        every_s = OWN_FLUSH_EVERY_S if is_own_script(self._config) else FLUSH_EVERY_S
        kill_at: float | None = None
        for message in runner.messages():
            if message is not None:
                self._receive(message, runner)
            now = self._clock()
            if now - flushed >= every_s:
                self._flush()
                flushed = now
            if kill_at is None and (self._end is not None or self._stop.is_set()):
                if self._end is None:
                    runner.ask_stop()
                    self._changes["stage"] = "stopping"
                kill_at = now + STOP_GRACE_S
            elif kill_at is not None and now >= kill_at:
                runner.kill()
                kill_at = now + STOP_GRACE_S

    def _receive(self, message: Message, runner: Runner) -> None:
        if isinstance(message, Note):
            self._receive_note(message, runner)
        elif "rank" in message and message["rank"].any():
            self._of_ranks.append(message)
        else:
            self._steps.append(message)
            self._late_batches.add_steps(message)

    def _receive_note(self, note: Note, runner: Runner) -> None:
        values = note.values
        match note.kind:
            case "gauges":
                self._set_gauges(values)
            case "stage":
                self._set_stage(values)
            case "phase":
                self._add("phases", [Phase(**values)])
            case "notice":
                self._columns["notices"].append(values["line"])
            case "facts":
                self._add("facts", values)
            case "environment":
                self._set_environment(values)
                self._start_telemetry(runner.pid, values)
            case "rank":
                self._follow_rank(values["pid"], values["rank"])
            case "gpu":
                self._follow_gpu(values["uuid"])
            case "workers":
                self._follow_workers(values["pids"])
            case "looked_at" | "workers_begun" | "late":
                self._late_batches.receive(note)
            case "end":
                self._end = values["status"], values["error"]
                # the job no longer updates them
                self._set_gauges({})

    def _follow_rank(self, pid: int, rank: int) -> None:
        self._ranks[pid] = rank
        if self._telemetry is not None:
            self._telemetry.add_rank(pid, rank)

    def _follow_gpu(self, uuid: str) -> None:
        self._other_gpus.append(uuid)
        if self._telemetry is not None:
            self._telemetry.add_gpu(uuid)

    def _follow_workers(self, pids: list[int]) -> None:
        self._workers = pids
        if self._telemetry is not None:
            self._telemetry.follow_workers(pids)

    def _set_gauges(self, values: dict[str, Any]) -> None:
        """Gives figures of the job itself to the telemetry, whose next samples have them."""
        if self._telemetry is not None:
            known = {name: value for name, value in values.items() if name in TELEMETRY_COLUMNS}
            self._telemetry.gauges = known

    def _set_stage(self, values: dict[str, Any]) -> None:
        stage = values["name"]
        fraction = values["fraction"]
        self._changes |= {"stage": stage, "progress": fraction, "message": values["message"]}
        if stage == "training" and fraction == 0:
            self._changes["training_since_s"] = self._clock()

    def _set_environment(self, values: dict[str, Any]) -> None:
        # a script that begins again may have another one
        self._columns["environment"] = {}
        self._add("environment", values)
        if is_own_script(self._config):
            self._config = with_loader(self._config, values)
            self._changes["config"] = self._config

    def _add(self, name: str, values: Any) -> None:
        """Adds to a column of the run, a dict or a list; it is written with the next flush."""
        before = self._columns[name]
        # a dict that is in `_changes` already may be with the writing thread: it is not changed
        column = {**before, **values} if isinstance(values, dict) else [*before, *values]
        self._columns[name] = column
        self._changes[name] = column

    def _start_telemetry(self, pid: int, environment: dict[str, Any]) -> None:
        self._disturbances.new_telemetry(self._telemetry)
        self._telemetry = Telemetry(
            pid=pid,
            trains=environment.get("pid"),
            rank=environment.get("rank") or 0,
            device=environment.get("device", self._config.device),
            gpu_uuid=environment.get("gpu_uuid"),
            # ROCm: PyTorch calls AMD's GPUs cuda:N, too
            nvidia="untested_device" not in environment,
            hz=self._config.telemetry_hz,
            sink=self._sampled.extend,
            clock=self._clock,
        )
        for each, rank in self._ranks.items():
            self._telemetry.add_rank(each, rank)
        for uuid in self._other_gpus:
            self._telemetry.add_gpu(uuid)
        self._telemetry.follow_workers(self._workers)
        self._telemetry.start()

    def _flush(self, *, last: bool = False) -> None:
        steps = self._steps
        self._steps = []
        of_ranks = self._of_ranks
        self._of_ranks = []
        facts = self._disturbances.update(steps, self._telemetry, last=last, of_ranks=of_ranks)
        facts |= self._late_batches.facts()
        if facts:
            self._add("facts", facts)
        # by number: the telemetry's thread may append meanwhile
        sampled = [self._sampled.popleft() for _ in range(len(self._sampled))]
        notices = self._columns["notices"] + self._disturbances.notices
        if self._telemetry is not None:
            notices += self._telemetry.notices
            if not self._telemetry.facts.items() <= self._columns["environment"].items():
                self._add("environment", self._telemetry.facts)
            if self._telemetry.error is not None:
                notices.append(f"telemetry ended early: {one_line(self._telemetry.error)}")
        if notices:
            self._changes["notices"] = notices
        changes = self._changes
        self._changes = {}
        self.outbox.add(steps, sampled, of_ranks, **changes)

    def _finish(self, origin: float, reason: str) -> None:
        status: Status = "failed"
        error = reason
        if self._end is not None:
            status, error = self._end
        elif self._stop.is_set():
            status = "stopped"
            error = ""
        self._end = (status, error)
        ended = self._clock()

        def settled() -> dict[str, Any]:
            self._disturbances.look_again()
            return finalise.settle(self._store, self.run_id, origin, ended)

        columns = {"status": status, "stage": "", "progress": None, "message": "", "error": error}
        self.outbox.finish(settled, t_end_s=ended, **columns)
