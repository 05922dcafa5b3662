"""Trials in turns: every experiment is a list of jobs, run one after another for as long as its rule
says.

The next trial is requested when the one before has ended and is in the store. So a generator can decide
by all results so far what to run next, and when to stop: that is the rule of the experiment.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from vitprof.config import RunConfig
from vitprof.errors import StoreAwayError
from vitprof.jobs.manager import JobManager
from vitprof.jobs.runners import Launcher, Runner
from vitprof.store import RunStore

TRIALS_EVERY_S = 0.1
"""How often (s) `progress`, `watch` and `stop` of `run_trials` are called."""


@dataclass(frozen=True)
class Trial:
    """A job of an experiment."""

    config: RunConfig
    role: str
    """What the run is in its group, such as an anchor's letter or a setting and its round."""
    words: str = ""
    """What it is, for the line with the progress."""
    start: Callable[[Path], Runner] | None = None
    """Starts something other than a job of `config`, such as a user's own script (`JobManager.submit`)."""


@dataclass(frozen=True)
class Progress:
    """The progress of an experiment."""

    words: str
    """What is running; for a tournament, the key of the setting. "" if nothing is."""
    done: int
    """Runs that have ended (self-test on a GPU: cases)."""
    total: int
    fraction: float
    """Share that is done, 0..1."""
    seconds_left: float = math.nan
    """Estimated; NaN while it is not known."""
    run_id: int | None = None
    """The run that is going on."""
    round: int = 0
    """The round of a tournament that this run is of, from 1."""


OnProgress = Callable[[Progress], None]
Stop = Callable[[], bool]


def ignore(progress: Progress) -> None:
    """Ignores progress."""


def never() -> bool:
    """Returns False: an experiment that is not stopped from outside."""
    return False


@contextlib.contextmanager
def job_manager(
    store: RunStore, *, anyway: bool = False, warm: bool = True, logs: Path | None = None
) -> Iterator[JobManager]:
    """Yields a job manager that ends with the block, and every job with it.

    `warm`: keep a process with PyTorch loaded, of which jobs are forks.
    """
    launcher = Launcher()
    if warm:
        launcher.warm()
    manager = JobManager(store, logs=logs, launcher=launcher, anyway=anyway)
    try:
        yield manager
    finally:
        manager.shutdown()


def submit_trials(manager: JobManager, trials: Iterable[Trial], group_key: str) -> list[int]:
    """Queues all `trials` at once, without waiting for them, and returns their run ids."""
    return [
        manager.submit(trial.config, group_key=group_key, role=trial.role, start=trial.start)
        for trial in trials
    ]


def run_trials(
    manager: JobManager,
    trials: Iterable[Trial],
    group_key: str,
    *,
    total: int = 0,
    progress: OnProgress = ignore,
    watch: Callable[[Trial, int], bool | None] = lambda trial, run_id: None,
    stop: Stop = never,
) -> Iterator[tuple[Trial, int]]:
    """Runs `trials` one after another, and yields each with the id of its run once that has ended.

    While a trial runs, `progress` is called ten times a second with its place among `total` trials, and
    `watch`, which stops that trial by returning True; neither while the store is unavailable. Once
    `stop()` returns true, the running trial is stopped and no other one begins. Any exception ends the
    running trial before it propagates.
    """
    for number, trial in enumerate(trials):
        if stop():
            return
        [run_id] = submit_trials(manager, [trial], group_key)
        place = Progress(trial.words, number, total, number / max(total, 1), run_id=run_id)
        stopped = False
        try:
            while not manager.wait(run_id, TRIALS_EVERY_S):
                ends: bool | None = stop()
                # the run continues; whether it can win is asked later
                with contextlib.suppress(StoreAwayError):
                    progress(place)
                    ends = (not stopped and watch(trial, run_id)) or ends
                if ends and not stopped:
                    stopped = True
                    manager.stop(run_id)
        except BaseException:
            manager.stop(run_id)
            manager.wait(run_id)
            raise
        yield trial, run_id
