"""Runs the cases as real jobs, each after its reference, and compares the two."""

import math
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from vitprof.config import Isolation, RunConfig
from vitprof.datasets import catalog, on_disk
from vitprof.errors import DataError, JobError, JobStopped, one_line
from vitprof.experiments.trials import (
    OnProgress,
    Progress,
    Stop,
    Trial,
    ignore,
    job_manager,
    never,
    run_trials,
)
from vitprof.home import data_dir, temporary_prefix
from vitprof.jobs.manager import JobManager
from vitprof.selftest import cases as known
from vitprof.selftest.cases import CASES, Case, Observed, Round, n_jobs
from vitprof.selftest.interference import BusyCores, Sleeper
from vitprof.selftest.report import Result, SelftestReport
from vitprof.store import RunStore

PREPARING_FRAC = 0.1
"""Share of the bar for the data sets that have to be made: some seconds, before a minute of jobs."""
RETRIES = 3
"""The most rounds that are added for a case that is not right."""


def run_selftest(
    cases: Sequence[Case] = CASES,
    rounds: int = 2,
    *,
    progress: OnProgress = ignore,
    stop: Stop = never,
    isolation: Isolation = "process",
    retries: int = RETRIES,
) -> SelftestReport[Result]:
    """Runs each of `cases` `rounds` times and returns the report on what vitprof said about them.

    Each round runs the reference first, then the jobs that are compared with it. Cases that are not
    right get up to `retries` additional rounds; all rounds count, and medians decide. Runs and logs are
    in a temporary directory; missing data sets are made in `VITPROF_HOME`. Once `stop()` returns true,
    the report has what was run until then. Raises `VitprofError` where a data set cannot be made or
    nothing can be run at all.
    """
    began = time.monotonic()
    stopped = False
    with (
        tempfile.TemporaryDirectory(prefix=temporary_prefix("selftest")) as directory,
        closing(RunStore(f"sqlite:///{Path(directory) / 'runs.sqlite'}")) as store,
        job_manager(store, logs=Path(directory)) as manager,
    ):
        work = Selftest(manager, cases, progress, stop, isolation)
        try:
            work.prepare()
            work.run(rounds, retries)
        except JobStopped:
            stopped = True
    results = tuple(work.result(case) for case in cases if case.name in work.measured)
    return SelftestReport(results, time.monotonic() - began, len(cases), stopped)


@dataclass
class CaseRounds:
    """The rounds of a case so far."""

    rounds: list[Round] = field(default_factory=list)
    retries: int = 0
    failure: str = ""


class Selftest:
    """The jobs of a self-test, and their results so far."""

    def __init__(
        self,
        manager: JobManager,
        cases: Sequence[Case],
        progress: OnProgress,
        stop: Stop,
        isolation: Isolation,
    ) -> None:
        self._manager = manager
        self._cases = cases
        self._progress = progress
        self._stop = stop
        self._isolation = isolation
        self.measured: dict[str, CaseRounds] = {}
        self._hogs: BusyCores | None = None
        """Other programs of the case that runs; None where it has none."""
        self._retrying = False
        self._preparing_frac = 0.0
        """Share of the bar that making the data sets took; 0 where they were there."""
        self._runs_began_s = 0.0
        self._run_id = 0
        """The run that ended last."""

    def prepare(self) -> None:
        """Makes the data sets, so that no job has to."""
        needed = dict.fromkeys((case.base.dataset, case.base.n_images) for case in self._cases)
        for name, n_images in needed:
            on_disk.prepare(name, n_images, progress=self._report, stop=self._stop)

    def _report(self, fraction: float, words: str) -> None:
        self._preparing_frac = PREPARING_FRAC
        self._progress(Progress(words, 0, 0, PREPARING_FRAC * fraction))

    def _report_job(self, now: Progress) -> None:
        took_s = time.monotonic() - self._runs_began_s
        self._progress(overall(now, self._preparing_frac, took_s))

    def run(self, rounds: int, retries: int) -> None:
        """Runs the cases `rounds` times, then up to `retries` times those that are not right.

        Raises `JobStopped`.
        """
        self._runs_began_s = time.monotonic()
        with closing(self._trials(rounds, retries)) as trials:
            jobs = run_trials(
                self._manager,
                trials,
                "",
                total=n_jobs(self._cases, rounds),
                progress=self._report_job,
                watch=self._watch,
                stop=self._stop,
            )
            for _, run_id in jobs:
                self._run_id = run_id
                # Ctrl-C, for example, may have ended the job too, which is no failure of the case
                if self._stop():
                    break
        if self._stop():
            raise JobStopped("the selftest was stopped")

    def result(self, case: Case) -> Result:
        measured = self.measured[case.name]
        return known.case_result(
            case, measured.rounds, retries=measured.retries, failure=measured.failure
        )

    def _trials(self, rounds: int, retries: int) -> Generator[Trial, None, None]:
        for number in range(rounds + retries):
            cases = self._cases
            if number >= rounds:
                cases = [case for case in cases if not self.result(case).ok]
                self._retrying = True
            for base in dict.fromkeys(case.base for case in cases):
                group = [case for case in cases if case.base == base]
                yield self._trial(base, group[0], "reference")
                try:
                    reference = self._observe(group[0])
                except JobError as error:
                    for case in group:
                        self._note(case, f"reference: {one_line(error)}")
                    continue
                for case in group:
                    yield from self._slowed(case, reference)

    def _slowed(self, case: Case, reference: Observed) -> Generator[Trial, None, None]:
        trial = self._trial(case.slowed, case, "slowed")
        # NaN: no wait of known length, the run itself shows what it took
        sleeper = None
        n_waits = 1
        wait_ms = math.nan
        if case.hogs:
            with BusyCores() as self._hogs:
                yield trial
            self._hogs = None
        elif case.launch_ms:
            yield trial
        else:
            n_waits, wait_ms = _waits(case)
            with Sleeper(wait_ms / 1e3) as sleeper:
                yield trial
        try:
            slowed = self._observe(case)
        except JobError as error:
            self._note(case, one_line(error))
            return
        # a wait lasts a little longer than was requested, which belongs to it
        if sleeper is not None:
            wait_ms += sleeper.late_s(slowed.start_s, slowed.end_s) * 1e3
        self._note(case, "", known.compare(case, n_waits * wait_ms, reference, slowed))

    def _note(self, case: Case, failure: str, *rounds: Round) -> None:
        measured = self.measured.setdefault(case.name, CaseRounds())
        measured.failure = failure
        measured.retries += self._retrying
        measured.rounds += rounds

    def _trial(self, config: RunConfig, case: Case, role: str) -> Trial:
        isolation: Isolation = "process" if case.own_process else self._isolation
        return Trial(replace(config, isolation=isolation), role, f"{case.name}, {role} run")

    def _observe(self, case: Case) -> Observed:
        return known.observe(self._manager.store, self._run_id, case)

    def _watch(self, trial: Trial, run_id: int) -> None:
        """Starts hogs when the job trains: while it loads PyTorch they would show nothing."""
        hogs = self._hogs
        if hogs is None or hogs.begun:
            return
        if self._manager.store.run(run_id).stage == "training":
            hogs.begin()


def overall(jobs: Progress, before_frac: float, took_s: float) -> Progress:
    """Returns the progress of the whole self-test from that of its `jobs`, of which the ended ones took
    `took_s` seconds; `before_frac`: share of the bar that was full when they began.

    Each job takes about as long as those before, so the time left is not known before one has ended.
    Jobs of cases that are run again come on top of the total.
    """
    total = max(jobs.total, jobs.done + 1)
    fraction = before_frac + (1 - before_frac) * jobs.done / total
    seconds_left = math.nan
    if jobs.done:
        seconds_left = took_s / jobs.done * (total - jobs.done)
    return replace(jobs, total=total, fraction=fraction, seconds_left=seconds_left)


def _waits(case: Case) -> tuple[int, float]:
    """Returns the number of waits for each batch of a slowed run, and the milliseconds of each.

    Raises `DataError` where the photos of a slow drive are missing.
    """
    if case.injected_ms is not None:
        return 1, case.injected_ms
    # a slow drive delays each photo by its latency and the time for its bytes
    slowed = case.slowed
    root = data_dir() / catalog.dataset_info(slowed.dataset, slowed.n_images).directory / "train"
    sizes = [path.stat().st_size for path in root.rglob("*.jpg")]
    if not sizes:
        raise DataError(
            f"there are no JPEG files under {root}; delete it, so that it is made again"
        )
    mean_bytes = sum(sizes) / len(sizes)
    bytes_ms = mean_bytes / (known.SLOW_MB_S * 1e6) * 1e3
    return slowed.batch_size, known.SLOW_LATENCY_MS + bytes_ms
