"""For every test: a home of its own, and nothing left behind. And runs with figures that can be added up by hand."""

import atexit
import contextlib
import functools
import gc
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import typer
from hypothesis import settings

from tests import EARLIER, ROOT
from tests.command_line import Call
from tests.environments import environment, wheel  # noqa: F401
from tests.marks import may_have, refuse_hidden, required
from tests.priority import first
from tests.shares import check_summary
from tests.telemetry.drivers import CAN_BUILD, build
from vitprof.program import CALLED_AS, MODULE
from vitprof.recording.columns import RunSummary
from vitprof.store import RunStore

LEFT_GRACE_S = 60.0
"""How long a thread or process that is about to end may take; nobody waits where there is none."""
NOBODY = 65534
_get_command = typer.main.get_command

# A shell that forbids it has some 200 programs that tests start, and each test process, compile all of vitprof anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

for _number, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        # A shell starts what runs in its background so, and nohup; programs that tests start would ignore them too.
        signal.signal(_number, _handler)

# No test asserts on a duration; and the same examples each time, unless asked to look for others.
settings.register_profile("vitprof", deadline=None, derandomize="VITPROF_FUZZ" not in os.environ)
settings.load_profile("vitprof")


def _leave(pid: int) -> None:
    if os.getpid() == pid:
        os._exit(0)


if "PYTEST_XDIST_WORKER" in os.environ:
    # Registered first, so run last. Tearing down an interpreter that has loaded all that is tested takes 2 s of a core.
    atexit.register(_leave, os.getpid())


@pytest.fixture(scope="session", autouse=True)
def locks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The queue of this process's jobs: those of other test processes, or of a dashboard that runs here, hold none up.
    For the whole session, since a fixture of a module may start a server or a job too."""
    made = tmp_path_factory.mktemp("locks")
    os.environ["VITPROF_LOCKS"] = str(made)
    return made


@pytest.fixture(scope="session", autouse=True)
def called_as_a_module() -> None:
    """Lines to type are the same whether or not vitprof is installed here. For the whole session, since a fixture of a
    module may start processes that print such lines."""
    os.environ[CALLED_AS] = MODULE


@pytest.fixture(autouse=True)
def shares_of_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No run that this process sums up has shares below 0 or above 1, or that do not sum to all of its time."""
    finalise = sys.modules.get("vitprof.jobs.finalise")
    if finalise is None:
        yield
        return
    summaries = list[RunSummary]()
    summarise = finalise.summary.summarise

    def summarise_noted(*args: Any, **kwargs: Any) -> RunSummary:
        summaries.append(summarise(*args, **kwargs))
        return summaries[-1]

    monkeypatch.setattr(finalise.summary, "summarise", summarise_noted)
    yield
    for summary in summaries:
        check_summary(summary)


@pytest.fixture(autouse=True)
def vitprof_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where vitprof keeps its files in this test; not created yet. Nothing is kept warm for one job or two."""
    home = tmp_path / "home"
    monkeypatch.setenv("VITPROF_WARM", "0")
    monkeypatch.setenv("VITPROF_HOME", str(home))
    monkeypatch.setenv("VITPROF_LOCKS", str(tmp_path / "locks"))  # tests run side by side
    monkeypatch.delenv("VITPROF_DB", raising=False)
    monkeypatch.setenv(CALLED_AS, MODULE)
    return home


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m measured` and the like import only the files that may have such tests: importing all files takes
    a process longer than some of what it is to run."""
    if collection_path.suffix != ".py":
        return None
    marks = required(config.option.markexpr)
    return not all(may_have(collection_path, mark) for mark in marks) or None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Switches the garbage collector off while all is imported: it would find little, in a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Keeps the garbage collector off what was imported: millions of objects, and a forked process copies their pages
    where it looks at them."""
    gc.freeze()
    # Extension modules complain of what is not freed at the end; earlier than this pytest itself collects five times.
    atexit.register(gc.unfreeze)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts first what takes one process longest: none of it is then begun when the other processes have
    nothing left. Groups take longest, in the order of `TOGETHER`; of the other files, the more tests one
    has, the longer it takes."""
    refuse_hidden(items)
    n_tests = Counter(_scope(item.nodeid) for item in items)
    groups = list(TOGETHER)

    def order(item: pytest.Item) -> tuple[int, int, str]:
        scope = _scope(item.nodeid)
        place = groups.index(scope) if scope in groups else len(groups)
        return place, -n_tests[scope], scope

    items.sort(key=order)


TOGETHER = {
    "extras": ("test_extras.py",),
    "browser, 1": tuple(
        f"browser/test_{name}.py" for name in ("main_path", "live_chart", "tournament", "null_gpu")
    ),
    "browser, 2": tuple(
        f"browser/test_{name}.py" for name in ("stored_runs", "pages", "installed", "navigation")
    ),
    "watch": tuple(
        f"watch/test_{name}.py" for name in ("watching", "in_python", "trial", "headroom")
    ),
    "PostgreSQL": tuple(
        f"store/test_{name}.py"
        for name in (
            "chunks",
            "listing",
            "machines",
            "migrations",
            "nodes",
            "postgresql",
            "retention",
            "run_store",
            "stored_run",
            "tournaments",
        )
    ),
    "frameworks": ("watch/test_frameworks.py", "watch/test_recipes.py"),
    "null device": tuple(f"nullcuda/test_{name}.py" for name in ("run", "real", "selftest")),
    "jobs": ("jobs/test_manager.py", "jobs/test_runners.py", "jobs/test_ranks.py"),
    "convert": ("cli/test_convert.py",),
}
"""Files that share what takes seconds, such as a browser or a database server: one process of pytest
runs them. The longest first, and files of few tests that take long."""


def _scope(nodeid: str) -> str:
    """Returns the name of the files that one process runs: a group of `TOGETHER`, or the test's own file."""
    file = nodeid.partition("::")[0]
    in_tests = file.removeprefix("tests/")
    return next((name for name, files in TOGETHER.items() if in_tests in files), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Returns what `--dist loadfile` is, and keeps files `TOGETHER`."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _scope(nodeid)

    return Scheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Lets a test marked `measured(before_others=True)`, with its fixtures, have the core before all other
    programs, where it may: root may. For what runs in one or two threads: more of that priority than cores
    take turns of 100 ms."""
    marker = item.get_closest_marker("measured")
    if marker is None or not marker.kwargs.get("before_others"):
        return (yield)
    with first():
        return (yield)


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    threads = set(threading.enumerate())
    processes = set(_children())
    files = set(os.listdir(ROOT))
    EARLIER.clear()
    EARLIER.update(process.pid for process in processes)
    handlers = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    yield
    for number, handler in handlers.items():  # commands that run in this process set their own
        signal.signal(number, handler)
    left = [
        t
        for t in threading.enumerate()
        if t not in threads and (not t.daemon or t.name.startswith("vitprof"))
    ]
    for thread in left:
        thread.join(LEFT_GRACE_S)
    _, alive = psutil.wait_procs(
        [p for p in _children() if p not in processes], timeout=LEFT_GRACE_S
    )
    commands = [_command(process) for process in alive]
    for process in alive:
        process.kill()
    assert not [thread.name for thread in left if thread.is_alive()], "threads left behind"
    assert not commands, "processes left behind"
    new = [name for name in set(os.listdir(ROOT)) - files if not name.startswith((".", "__"))]
    assert not new, "files left behind in the checkout, by this test or one at the same time"


def _children() -> list[psutil.Process]:
    """Without Python's resource tracker, which stays to the end: stopping it races with semaphores yet to be freed."""
    found: list[psutil.Process] = []
    for pid in _pids_below(os.getpid()):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return [process for process in found if "resource_tracker" not in _command(process)]


def _pids_below(pid: int) -> list[int]:
    """Asked twice for each test, for which psutil would read every process of the machine."""
    pids: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that ended just now
            pids += map(int, children.read_text().split())
    return pids + [below for child in pids for below in _pids_below(child)]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return str(process)


@pytest.fixture(scope="session")
def cuda_driver(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """A directory with the stand-in for CUDA's driver, None where it can't be built; its `log` has who asked it."""
    made = tmp_path_factory.mktemp("cuda")
    return build("cuda_stub.c", "libcuda.so.1", made) if CAN_BUILD else None


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    """A run store on a file of its own."""
    opened = RunStore(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    yield opened
    opened.close()


@pytest.fixture
def mine() -> Iterator[RunStore]:
    """The command line's own store."""
    with contextlib.closing(RunStore()) as opened:
        yield opened


@pytest.fixture
def read_only_dir() -> Iterator[Path]:
    """A directory that this test must not write to, also where root runs the tests: it acts as nobody meanwhile."""
    top = Path(tempfile.mkdtemp())
    top.chmod(0o755)
    directory = top / "read-only"
    directory.mkdir()
    directory.chmod(0o555)
    root = os.geteuid() == 0
    try:
        if root:
            os.seteuid(NOBODY)
        if os.access(directory, os.W_OK, effective_ids=True):
            pytest.skip("every directory can be written to here")
        yield directory
    except PermissionError:
        pytest.skip("root cannot act as another user here")
    finally:
        if root:
            os.seteuid(0)
        directory.chmod(0o755)
        shutil.rmtree(top)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the command line here: (exit status, standard output, standard error)."""
    from vitprof import cli  # not for tests without it

    monkeypatch.setattr(typer.main, "get_command", _built_once)

    def run(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", [cli.__file__.replace("cli/__init__", "__main__"), *args])
        try:
            cli.main()
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0
        out, err = capsys.readouterr()
        return status, out, err

    return run


@functools.cache
def _built_once(app: typer.Typer) -> object:
    """Typer takes 25 ms to build the commands from their functions, and would do so at each call."""
    return _get_command(app)
