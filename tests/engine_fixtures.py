"""What the engine's tests share: data sets made once for the whole session, a recorder of events, ways to wait. Import
the fixtures a file needs and name them in `pytest.mark.usefixtures`."""

import contextlib
import dataclasses
import functools
import gc
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from tests import EARLIER
from tests.forking import exit_status_of, fork_doing
from vitprof.config import RunConfig, models
from vitprof.datasets import catalog, digits, on_disk
from vitprof.datasets.catalog import DatasetInfo
from vitprof.jobs.runners import Launcher

SMALL = dataclasses.replace(catalog.DATASETS["digits"], n_train=600, n_test=100)
N_PHOTOS = 120
CHEAP: dict[str, Any] = {"device": "cpu", "threads": 1, "batch_size": 32}
"""Settings of most jobs here. One thread: two OpenMP threads on two shared cores can take seconds for a step."""


@contextlib.contextmanager
def small_digits(home: Path, info: DatasetInfo = SMALL) -> Iterator[None]:
    """In this process `digits` has the size of `info`, under `home`, and the model one layer: 7 ms a step, not 26."""
    sizes = {"n_train": info.n_train, "n_test": info.n_test}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITPROF_HOME", str(home))
        patch.setitem(catalog.MADE_HERE, "digits", info)
        patch.setitem(models.VITS, "tiny", dataclasses.replace(models.MODELS["tiny"], depth=1))
        patch.setattr(digits, "make", functools.partial(digits.make, **sizes))
        yield


def shared_by_all(factory: pytest.TempPathFactory) -> Path:
    """A directory of all processes of this pytest: making a data set is safe where several do it."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def made_once(factory: pytest.TempPathFactory, name: str, n_images: int | None = None) -> Path:
    """A home of that name for the whole session with that data set in it; "small-digits" is of this process alone."""
    small = name == "small-digits"
    home = (factory.getbasetemp() if small else shared_by_all(factory)) / name
    home.mkdir(exist_ok=True)
    with (
        pytest.MonkeyPatch.context() as patch,
        small_digits(home) if small else contextlib.nullcontext(),
    ):
        patch.setenv("VITPROF_HOME", str(home))
        on_disk.prepare("digits" if small else name, n_images)
    return home


@pytest.fixture(scope="session")
def digits_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A VITPROF_HOME in which `digits` has been made."""
    return made_once(tmp_path_factory, "digits")


@pytest.fixture(scope="session")
def photos_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with N_PHOTOS training images and 12 test images. Whoever damages a file copies the data set first."""
    return made_once(tmp_path_factory, "photos", N_PHOTOS)


@pytest.fixture
def full_home(digits_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the test's own; its data sets are those of `digits_home`."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "data").symlink_to(digits_home / "data")
    monkeypatch.setenv("VITPROF_HOME", str(home))
    return home


@pytest.fixture
def small_home(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Iterator[Path]:
    """A home of the test's own with a small `digits`, as long as the job stays in this process."""
    home = tmp_path / "small-home"
    home.mkdir()
    (home / "data").symlink_to(made_once(tmp_path_factory, "small-digits") / "data")
    with small_digits(home):
        yield home


@pytest.fixture
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of the small `digits` that all tests share, storages in it too: for tests that damage nothing."""
    home = made_once(tmp_path_factory, "small-digits")
    with small_digits(home):
        yield home


class KeptLauncher(Launcher):
    """A launcher that managers share: it ends with the tests, not with the first manager."""

    def close(self) -> None:
        pass

    def end(self) -> None:
        super().close()


@pytest.fixture(scope="session")
def launcher(cuda_driver: Path | None) -> Iterator[KeptLauncher]:
    """A launcher with PyTorch loaded, for tests whose jobs need processes: each then begins 3 s sooner. Its jobs find
    the stand-in for CUDA's driver: the loader has read its path when the process began."""
    kept = KeptLauncher()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITPROF_WARM", "1")
        if cuda_driver is not None:
            patch.setenv("LD_LIBRARY_PATH", str(cuda_driver), prepend=os.pathsep)
            patch.setenv("CUDA_STUB_LOG", str(cuda_driver / "log"))
        kept.warm()
    kept.wait(threading.Event())
    for thread in threading.enumerate():
        if thread.name == "vitprof-launcher":
            thread.name = "kept launcher"
    yield kept
    kept.end()


class Recorded:
    """Events of a job, kept in lists."""

    def __init__(self) -> None:
        self.marks: list[Any] = []
        self.step = self.marks.append
        self.environments: list[dict[str, Any]] = []
        self.environment = self.environments.append
        self.stages: list[tuple[str, float, str]] = []
        self.phases: list[tuple[str, float, float]] = []
        self.values: dict[str, Any] = {}
        self.facts = self.values.update
        self.notices: list[str] = []
        self.notice = self.notices.append
        self.read_gauges: list[Callable[[], dict[str, float]]] = []
        self.gauges = self.read_gauges.append
        self.completed: bool | None = None

    def stage(self, name: str, fraction: float, message: str = "") -> None:
        self.stages.append((name, fraction, message))

    def phase(self, name: str, t_start_s: float, t_end_s: float) -> None:
        self.phases.append((name, t_start_s, t_end_s))

    def __getitem__(self, column: str) -> NDArray[np.float64]:
        return self.steps[column]

    @property
    def steps(self) -> dict[str, NDArray[np.float64]]:
        from vitprof.measure.step_columns import derive, gather

        return derive(gather(self.marks))


def never() -> bool:
    return False


def silent(fraction: float, message: str) -> None:
    """Progress that nobody looks at."""


def trained(
    stop: Callable[[], bool] = never,
    clock: Callable[[], float] = time.perf_counter,
    events: Recorded | None = None,
    **config: Any,
) -> Recorded:
    """Run `train` here with `CHEAP` settings, changed by `config`."""
    from vitprof.engine.train import train

    events = events or Recorded()
    events.completed = train(RunConfig(**(CHEAP | config)), events, stop, clock=clock)
    return events


def ticking(step_s: float = 1e-3) -> Callable[[], float]:
    """A clock that goes on by `step_s` each time it is read."""
    count = itertools.count()
    return lambda: next(count) * step_s


def wait_until(condition: Callable[[], Any], what: str, within_s: float = 60.0) -> Any:
    """Wait for `condition()` to be true and return what it gave; fail if that takes too long."""
    pause, deadline = threading.Event(), time.monotonic() + within_s
    while not (result := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"not within {within_s:g} s: {what}")
        pause.wait(0.02)
    return result


def descendants(pid: int | None = None) -> list[psutil.Process]:
    """The processes that descend from `pid` (this process), without Python's own helpers that stay to its
    end, and without those that were there before the test."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            helper = any(
                "resource_tracker" in part or "forkserver" in part for part in process.cmdline()
            )
            kept = helper or process.pid in EARLIER
            if process.status() != psutil.STATUS_ZOMBIE and not kept:
                found.append(process)
    return found


def gone(processes: list[psutil.Process], within_s: float = 60.0) -> bool:
    """Whether all of `processes` have ended, or end soon. One that nobody waits for stays as a zombie: ended."""

    def ended(process: psutil.Process) -> bool:
        try:
            return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        except psutil.Error:
            return True

    wait_until(lambda: all(ended(p) for p in processes), f"end of {processes}", within_s)
    return True


def vitprof_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("vitprof")]


@contextlib.contextmanager
def error_in_one_line(
    kind: type[Exception], match: str = ""
) -> Iterator[pytest.ExceptionInfo[Any]]:
    """The block ends with an error of this kind, whose message matches and is one line."""
    with pytest.raises(kind, match=match) as caught:
        yield caught
    assert "\n" not in str(caught.value)


def survives(work: Callable[[], object]) -> None:
    """Do `work` in a child process, which must come to its end: a broken one could end this process too."""

    def all_of_it() -> None:
        work()
        gc.collect()

    assert exit_status_of(fork_doing(all_of_it)) == 0
