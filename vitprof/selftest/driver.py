"""Runs the cases as real jobs, each after its reference, and compares the two."""

from __future__ import annotations

import dataclasses
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vitprof.config import Isolation, RunConfig
from vitprof.config.catalog import dataset_info
from vitprof.engine import data
from vitprof.errors import DataError, JobError, JobStopped, one_line
from vitprof.home import data_dir, temporary_prefix
from vitprof.jobs.launcher import Launcher
from vitprof.jobs.manager import JobManager
from vitprof.selftest.arithmetic import drive_ms
from vitprof.selftest.cases import CASES, Case
from vitprof.selftest.hogs import BusyCores
from vitprof.selftest.observing import Observed, observe
from vitprof.selftest.report import Result, Round, SelftestReport, case_result, compare
from vitprof.selftest.sleeper import Sleeper
from vitprof.store import RunStore

POLL_S = 0.1
RETRIES = 3
"""Additional rounds that a case gets before it counts as failed, since other programs can spoil one."""


@dataclass(frozen=True)
class SelftestProgress:
    """The progress of a self-test."""

    words: str
    """What is running."""
    done: int
    """Jobs that have ended; on a GPU, cases."""
    total: int
    """Jobs in total so far, since cases that are not right at once are run again; on a GPU, cases."""
    left_s: float
    """Estimated seconds left: by the mean of the jobs so far (NaN before one has ended), on a GPU by the cases'
    budgets."""


Report = Callable[[SelftestProgress], None]
Stop = Callable[[], bool]


def run_selftest(
    cases: Sequence[Case] = CASES,
    rounds: int = 2,
    *,
    progress: Report = lambda progress: None,
    stop: Stop = lambda: False,
    isolation: Isolation = "process",
    retries: int = RETRIES,
) -> SelftestReport:
    """Runs each of `cases` `rounds` times and returns the report on what vitprof said about them.

    Each round runs the reference first, then the jobs that are compared with it. Cases that are not right get up to
    `retries` additional rounds; all rounds of a case count, and medians decide. Runs and logs are written to a
    temporary directory that is removed at the end; missing data sets are made in `VITPROF_HOME`. Once `stop()` returns
    true, the report has the cases that were run until then. An exception, such as Ctrl-C, ends all jobs and other
    processes before it propagates.

    Raises `VitprofError` where a data set cannot be made or nothing can be run at all.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("selftest")) as directory:
        store = RunStore(f"sqlite:///{Path(directory) / 'runs.sqlite'}")
        manager = JobManager(store, logs=Path(directory), launcher=Launcher().warm())
        work = _Work(manager, progress, stop, isolation)
        stopped = False
        try:
            work.prepare(cases)
            work.total = _jobs(cases) * rounds
            for _ in range(rounds):
                work.round(cases)
            for _ in range(retries):
                again = [case for case in cases if not work.result(case).ok]
                if not again:
                    break
                work.total += _jobs(again)
                work.round(again, retry=True)
        except JobStopped:
            stopped = True
        finally:
            manager.shutdown()
            store.close()
    results = tuple(work.result(case) for case in cases if case.name in work.found)
    return SelftestReport(results, time.monotonic() - began, len(cases), stopped)


def _by_base(cases: Sequence[Case]) -> dict[RunConfig, list[Case]]:
    """Returns the cases by the reference that they share."""
    groups: dict[RunConfig, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.base, []).append(case)
    return groups


def _jobs(cases: Sequence[Case]) -> int:
    return len(cases) + len(_by_base(cases))


@dataclass
class _Found:
    """The rounds of a case so far."""

    rounds: list[Round] = field(default_factory=list)
    retries: int = 0
    failure: str = ""
    """Why the last round failed; "" where it did not."""


class _Work:
    """The jobs of a self-test, and their results so far."""

    def __init__(self, manager: JobManager, progress: Report, stop: Stop, isolation: Isolation) -> None:
        self._manager, self._progress, self._stop, self._isolation = manager, progress, stop, isolation
        self.found: dict[str, _Found] = {}
        self.total = 0
        self._done = 0
        self._began = self._ended = time.monotonic()

    def prepare(self, cases: Sequence[Case]) -> None:
        """Makes the data sets, so that no job has to."""
        for name, n_images in dict.fromkeys((case.base.dataset, case.base.n_images) for case in cases):
            data.prepare(name, n_images, progress=lambda frac, words: self._tell(words), stop=self._stop)
        self._began = time.monotonic()

    def round(self, cases: Sequence[Case], *, retry: bool = False) -> None:
        """Runs each of `cases` once, after its reference. Raises `JobStopped`."""
        for base, group in _by_base(cases).items():
            try:
                reference: Observed | None = self._run(base, group[0], "reference")
                why = ""
            except JobError as error:
                reference, why = None, f"reference: {one_line(error)}"
            for case in group:
                round_, failure = None, why
                if reference is not None:
                    try:
                        slowed, wait_ms = self._slowed(case)
                        round_ = compare(case, wait_ms, reference, slowed)
                    except JobError as error:
                        failure = one_line(error)
                else:
                    self.total -= 1
                found = self.found.setdefault(case.name, _Found())
                found.failure = failure
                found.retries += retry
                if round_ is not None:
                    found.rounds.append(round_)

    def result(self, case: Case) -> Result:
        found = self.found[case.name]
        return case_result(case, found.rounds, retries=found.retries, failure=found.failure)

    def _slowed(self, case: Case) -> tuple[Observed, float]:
        """Runs the slowed job; returns it and the wait in ms that each of its batches was given, NaN without a wait."""
        if case.hogs:
            with BusyCores() as hogs:
                return self._run(case.slowed, case, "slowed", hogs), math.nan
        if case.launch_ms:  # the run itself shows how long launching really takes
            return self._run(case.slowed, case, "slowed"), math.nan
        n_waits, wait_ms = _waits(case)
        with Sleeper(wait_ms / 1e3) as sleeper:
            slowed = self._run(case.slowed, case, "slowed")
        return slowed, n_waits * (wait_ms + sleeper.late_s(slowed.start_s, slowed.end_s) * 1e3)

    def _run(self, config: RunConfig, case: Case, role: str, hogs: BusyCores | None = None) -> Observed:
        """Runs a job to its end and returns its figures. Raises `JobError` where it does not finish, `JobStopped`.

        `hogs` start when its training does: loading PyTorch beside them would take many times as long and show nothing.
        """
        isolation: Isolation = "process" if case.own_process else self._isolation
        manager = self._manager
        run_id = manager.submit(dataclasses.replace(config, isolation=isolation), role=role)
        while not manager.wait(run_id, POLL_S):
            self._tell(f"{case.name}, {role} run")
            if hogs is not None and not hogs.begun and manager.store.run(run_id).stage == "training":
                hogs.begin()
            if self._stop():
                raise JobStopped("the selftest was stopped")
        if self._stop():  # Ctrl-C, for example, may have ended the job too, which is no failure of the case
            raise JobStopped("the selftest was stopped")
        self._ended_one()
        return observe(manager.store, run_id, case)

    def _ended_one(self) -> None:
        self._done += 1
        self._ended = time.monotonic()

    def _tell(self, words: str) -> None:
        left_s = math.nan
        if self._done:
            each = (self._ended - self._began) / self._done
            # A job that takes longer than the mean must not shorten the estimate for the jobs after it.
            left_s = each * (self.total - self._done) - min(each, time.monotonic() - self._ended)
        self._progress(SelftestProgress(words, self._done, self.total, left_s))


def _waits(case: Case) -> tuple[int, float]:
    """Returns how many waits each batch of `case` is given, one after another, and the length of each in ms."""
    if case.injected_ms is not None:
        return 1, case.injected_ms
    slowed = case.slowed
    assert slowed.slow_mb_s is not None
    assert slowed.slow_latency_ms is not None
    root = data_dir() / dataset_info(slowed.dataset, slowed.n_images).directory / "train"
    sizes = [path.stat().st_size for path in root.rglob("*.jpg")]
    if not sizes:
        raise DataError(f"there are no JPEG files under {root}; delete it, so that it is made again")
    return slowed.batch_size, drive_ms(sum(sizes) / len(sizes), slowed.slow_mb_s, slowed.slow_latency_ms)
