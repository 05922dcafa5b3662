"""Who does something in a soak: jobs, watched scripts, pages, and somebody who locks the store."""

from __future__ import annotations

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
JOB = ["--strategy", "memory", "--batch-size", "64", "--threads", "1", "--device", "simulated:5,0", "--no-evaluate"]
LIMIT_S = 600
"""A job or a script that takes longer, its turn in the queue included, hangs."""


@dataclass
class Promise:
    """What the store must have at the end, because somebody was told so."""

    name: str
    """Of the run."""
    statuses: tuple[str, ...]
    """One of which it has."""
    steps: int = 0
    """At least so many."""


@dataclass
class Soak:
    """What the actors share."""

    env: dict[str, str]
    url: str
    """Of the dashboard."""
    database: Path
    promises: list[Promise] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """What went wrong on the way: one line each."""
    counts: dict[str, int] = field(default_factory=dict)
    """What was done -> how often."""
    ended: threading.Event = field(default_factory=threading.Event)

    def did(self, what: str) -> None:
        """Counts one of `what`."""
        self.counts[what] = self.counts.get(what, 0) + 1

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Starts a command of vitprof's."""
        command = [sys.executable, "-m", "vitprof", *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=REPOSITORY, env=self.env, stdout=pipe, stderr=pipe, text=True)

    def recorded(self, name: str) -> None:
        """Waits until a run of that name is in the store."""
        deadline = time.monotonic() + LIMIT_S
        with contextlib.closing(RunStore(f"sqlite:///{self.database}")) as store:
            while not [run for run in store.runs(limit=20) if run.name == name] and time.monotonic() < deadline:
                time.sleep(0.5)

    def result(self, running: subprocess.Popen[str]) -> tuple[int, str, str]:
        """Waits for a command: exit status and what it said. One that hangs is a fault."""
        try:
            out, err = running.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            self.faults.append(f"hangs: {' '.join(map(str, running.args))}")  # type: ignore[arg-type]
            running.kill()
            out, err = running.communicate()
        return running.returncode, out, err


def done(soak: Soak, name: str) -> None:
    """Runs a job to its end: what it says was recorded has to be there."""
    status, out, err = soak.result(soak.start("run", *JOB, "--steps", "300", "--name", name, "--json"))
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
    """Kills the command itself, which can say nothing any more."""
    running = soak.start("run", *JOB, "--seconds", "60", "--name", name)
    time.sleep(random.uniform(3, 9))
    running.kill()
    soak.result(running)
    soak.promises.append(Promise(name, ("interrupted", "failed", "stopped", "done", "")))


def watched(soak: Soak, name: str) -> None:
    """Watches a script that ends well, with a status of its own, or by SIGTERM."""
    ends = random.choice(("0", "3", "term"))
    script = [sys.executable, "-m", "benchmarks.soak_script", "400", ends if ends != "term" else "0"]
    running = soak.start("watch", "--quiet", "--name", name, "--", *script)
    if ends == "term":
        soak.recorded(name)
        running.terminate()
    status, _, err = soak.result(running)
    if status not in {"0": (0,), "3": (3,), "term": (143, 0)}[ends]:
        soak.faults.append(f"{name}: exit status {status} instead of {ends}: {err.strip()[-200:]}")
    if ends != "term":
        soak.promises.append(Promise(name, ("done",) if ends == "0" else ("failed",), 400))


ENDS: tuple[Callable[[Soak, str], None], ...] = (done, stopped, failed, killed, watched)


def commands(soak: Soak) -> None:
    """Jobs and scripts one after another, in every way that they can end."""
    n = 0
    while not soak.ended.is_set():
        act = ENDS[n % len(ENDS)]
        n += 1
        act(soak, f"soak-{act.__name__}-{n}")
        soak.did(act.__name__)


def pressed(soak: Soak) -> None:
    """Somebody who presses Run on the page, and then Stop."""
    query = "strategy=memory&batch_size=64&seconds=30&threads=1&evaluate=false&device=simulated:5,0"
    while not soak.ended.wait(20):
        try:
            with Session(soak.url, query) as page:
                page.press("Run")
                soak.ended.wait(random.uniform(10, 20))
                page.press("Stop", 100)
                page.finished.wait(10)
        except TimeoutError:
            soak.did("Stop that was not shown")  # another run had the machine all the while: it waits in the queue
            continue
        soak.did("Run and Stop on the page")


def visitors(soak: Soak, n: int, until: float) -> None:
    """Keeps `n` pages open until that moment; each is closed and opened again, on another run, now and then."""
    with contextlib.ExitStack() as stack:
        pages = [stack.enter_context(Session(soak.url)) for _ in range(n)]
        runs = 0
        while time.monotonic() < until and not soak.ended.wait(3):
            runs += 1
            seat = random.randrange(n)
            pages[seat].close()
            try:
                pages[seat] = stack.enter_context(Session(soak.url, f"run={random.randint(1, runs)}"))
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
    """Returns the environment of everything that a soak starts: places of its own, so that what is left is seen."""
    return {**os.environ, "VITPROF_HOME": str(home), "TMPDIR": str(temporary)}
