"""The actors of a soak test: jobs, watched scripts, pages, and a program that locks the store."""

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.session import Session
from vitprof.store import RunStore

REPOSITORY = Path(__file__).resolve().parents[1]
JOB = [
    "--strategy",
    "memory",
    "--batch-size",
    "64",
    "--threads",
    "1",
    "--device",
    "simulated:5,0",
    "--no-evaluate",
]
LIMIT_S = 600
"""A job or a script that takes longer (s) than this, including its wait in the queue, counts as hanging."""


@dataclass
class Promise:
    """A run that the store must have at the end, because a command has reported it."""

    name: str
    """The run's name."""
    statuses: tuple[str, ...]
    """Statuses that the run may have; with "" it may also be missing."""
    steps: int = 0
    """The least number of its steps."""


@dataclass
class Soak:
    """The state that the actors share."""

    env: dict[str, str]
    url: str
    """The dashboard's URL."""
    database: Path
    promises: list[Promise] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """What went wrong, one line each."""
    counts: dict[str, int] = field(default_factory=dict)
    """Action -> how often it was done."""
    ended: threading.Event = field(default_factory=threading.Event)
    stop: threading.Lock = field(default_factory=threading.Lock)
    """Held while a script is watched, and to press Stop, which ends the run that the page shows: maybe that script."""

    def did(self, what: str) -> None:
        """Counts one action `what`."""
        self.counts[what] = self.counts.get(what, 0) + 1

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Starts a command of vitprof."""
        command = [sys.executable, "-m", "vitprof", *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, cwd=REPOSITORY, env=self.env, stdout=pipe, stderr=pipe, text=True
        )

    def recorded(self, name: str) -> None:
        """Waits until a run with this name is in the store, for at most `LIMIT_S`."""
        deadline = time.monotonic() + LIMIT_S
        with contextlib.closing(RunStore(f"sqlite:///{self.database}")) as store:
            while (
                not [run for run in store.runs(limit=20) if run.name == name]
                and time.monotonic() < deadline
            ):
                time.sleep(0.5)

    def result(self, running: subprocess.Popen[str]) -> tuple[int, str, str]:
        """Waits for a command; returns its exit status, output and error output. A command that hangs is a fault."""
        try:
            out, err = running.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            self.faults.append(f"hangs: {' '.join(map(str, running.args))}")  # type: ignore[arg-type]
            running.kill()
            out, err = running.communicate()
        return running.returncode, out, err


def done(soak: Soak, name: str) -> None:
    """Runs a job to its end: the steps that it reports have to be in the store."""
    status, out, err = soak.result(
        soak.start("run", *JOB, "--steps", "300", "--name", name, "--json")
    )
    if status != 0:
        soak.faults.append(f"{name}: exit status {status}: {err.strip()[-200:]}")
        return
    soak.promises.append(Promise(name, ("done",), json.loads(out)["summary"]["n_steps"]))


def stopped(soak: Soak, name: str) -> None:
    """Stops a job by Ctrl-C: in the middle, or while it waits for its turn."""
    running = soak.start("run", *JOB, "--seconds", "60", "--name", name)
    soak.recorded(name)
    time.sleep(random.uniform(0, 6))
    running.send_signal(signal.SIGINT)
    status, _, err = soak.result(running)
    if status != 130:
        soak.faults.append(f"{name}: exit status {status} after Ctrl-C: {err.strip()[-200:]}")
    soak.promises.append(Promise(name, ("stopped",)))


def failed(soak: Soak, name: str) -> None:
    """Kills the job's own process, as the kernel does where memory runs out."""
    running = soak.start("run", *JOB, "--seconds", "60", "--name", name)
    with contextlib.suppress(psutil.Error):
        command, deadline = psutil.Process(running.pid), time.monotonic() + LIMIT_S
        while not (children := command.children()) and time.monotonic() < deadline:
            time.sleep(0.5)  # it waits for its turn
        time.sleep(random.uniform(0, 6))
        for process in children:
            process.kill()
    status, _, _ = soak.result(running)
    if status == 0:
        soak.faults.append(f"{name}: exit status 0 although its process was killed")
    soak.promises.append(Promise(name, ("failed", "stopped")))


def killed(soak: Soak, name: str) -> None:
    """Kills the command itself, which then can record nothing more."""
    running = soak.start("run", *JOB, "--seconds", "60", "--name", name)
    time.sleep(random.uniform(3, 9))
    running.kill()
    soak.result(running)
    soak.promises.append(Promise(name, ("interrupted", "failed", "stopped", "done", "")))


def watched(soak: Soak, name: str) -> None:
    """Watches a script that ends with status 0, with another status, or by SIGTERM."""
    ends = random.choice(("0", "3", "term"))
    script = [
        sys.executable,
        "-m",
        "benchmarks.soak_script",
        "400",
        ends if ends != "term" else "0",
    ]
    with soak.stop:
        running = soak.start("watch", "--quiet", "--name", name, "--", *script)
        if ends == "term":
            soak.recorded(name)
            running.terminate()
        status, _, err = soak.result(running)
    # one that comes when the script has ended ends the command, which has no one to pass it on to any more
    if status not in {"0": (0,), "3": (3,), "term": (143, 0, -signal.SIGTERM)}[ends]:
        soak.faults.append(f"{name}: exit status {status} instead of {ends}: {err.strip()[-200:]}")
    if ends != "term":
        soak.promises.append(Promise(name, ("done",) if ends == "0" else ("failed",), 400))


ENDS: tuple[Callable[[Soak, str], None], ...] = (done, stopped, failed, killed, watched)


def commands(soak: Soak) -> None:
    """Runs jobs and scripts one after another, with every way to end in turn."""
    n = 0
    while not soak.ended.is_set():
        act = ENDS[n % len(ENDS)]
        n += 1
        act(soak, f"soak-{act.__name__}-{n}")
        soak.did(act.__name__)


def pressed(soak: Soak) -> None:
    """Presses Run on the page, and then Stop, again and again."""
    query = "strategy=memory&batch_size=64&seconds=30&threads=1&evaluate=false&device=simulated:5,0"
    while not soak.ended.wait(20):
        try:
            with Session(soak.url, query) as page:
                page.press("Run")
                soak.ended.wait(random.uniform(10, 20))
                with soak.stop:
                    page.press("Stop", 100)
                page.finished.wait(10)
        except TimeoutError:
            soak.did(
                "Stop that was not shown"
            )  # another run had the machine meanwhile: this one waits in the queue
            continue
        soak.did("Run and Stop on the page")


def visitors(soak: Soak, n: int, until: float) -> None:
    """Keeps `n` pages open until the time `until`; now and then closes one and opens it again, on another run."""
    with contextlib.ExitStack() as stack:
        pages = [stack.enter_context(Session(soak.url)) for _ in range(n)]
        runs = 0
        while time.monotonic() < until and not soak.ended.wait(3):
            runs += 1
            seat = random.randrange(n)
            pages[seat].close()
            try:
                pages[seat] = stack.enter_context(
                    Session(soak.url, f"run={random.randint(1, runs)}")
                )
            except OSError as error:
                soak.faults.append(f"a page could not be opened: {error or type(error).__name__}")
            soak.did("page opened")


def locks(soak: Soak) -> None:
    """Holds the store's lock for up to 3 s, as a backup or a slow network file system would."""
    while not soak.ended.wait(random.uniform(15, 40)):
        store = sqlite3.connect(soak.database, timeout=30, isolation_level=None)
        with contextlib.closing(store), contextlib.suppress(sqlite3.OperationalError):
            store.execute("BEGIN EXCLUSIVE")
            soak.ended.wait(random.uniform(0.5, 3))
            store.execute("ROLLBACK")
            soak.did("store locked")


def environment(home: Path, temporary: Path) -> dict[str, str]:
    """Returns the environment for everything that a soak test starts; its own folders make leftovers visible."""
    return {**os.environ, "VITPROF_HOME": str(home), "TMPDIR": str(temporary)}
