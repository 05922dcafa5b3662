"""Scripts: each generated script must train with --demo, in a process without vitprof's environment."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from vitprof.config import RunConfig
from vitprof.config.availability import why_unavailable
from vitprof.config.catalog import dataset_info
from vitprof.config.strategies import strategy
from vitprof.errors import VitprofError, one_line
from vitprof.selftest.gpu.host import NAMES, Host, OutOfTime, settings_for
from vitprof.selftest.gpu.outcome import Outcome, judged

TRAINED = "epoch 1: loss"
"""What a script prints when it has trained."""
MOST_AT_ONCE = 4
"""Scripts that run at a time: each takes a core, and about 0.5 GB of device memory for its CUDA context."""


@dataclass
class Running:
    """A script that is running."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def end(self) -> None:
        """Kills it and its worker processes."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def wrong(self) -> str:
        """Returns what went wrong once it has ended; "" where it trained."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        if self.process.returncode == 0 and any(TRAINED in line for line in lines):
            return ""
        return f"{self.name}: exit status {self.process.returncode}{f', {lines[-1]}' if lines else ''}"


def every_script(host: Host) -> Outcome:
    """Makes and runs the scripts of all strategies that can run here, a few at a time."""
    wrong: list[str] = []
    missing: list[str] = []
    passed: list[str] = []
    waiting: deque[str] = deque(NAMES)
    running: list[Running] = []
    at_once = min(MOST_AT_ONCE, os.cpu_count() or 1)
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                name = waiting.popleft()
                settings = settings_for(name)
                info = dataset_info(settings["dataset"], settings.get("n_images"))
                if reason := why_unavailable(strategy(name), info):
                    missing.append(f"{name} ({reason})")
                    continue
                try:
                    running.append(_start(host, name, host.script(RunConfig(device=host.device, **settings))))
                except VitprofError as error:
                    wrong.append(f"{name}: {one_line(error)}")
            host.until(lambda: not running or any(one.process.poll() is not None for one in running))
            for one in [one for one in running if one.process.poll() is not None]:
                running.remove(one)
                why = one.wrong()
                if why:
                    wrong.append(why)
                else:
                    passed.append(one.name)
    except OutOfTime:
        late = [one.name for one in running] + list(waiting)
        wrong.append(f"time ran out before {', '.join(late)} had ended")
    finally:
        for one in running:
            one.end()
    told = f"{len(passed)} of {len(NAMES)} trained"
    if missing:
        told += f"; cannot run here: {', '.join(missing)}"
    return judged(told, wrong, passed=passed, cannot_run=missing)


def _start(host: Host, name: str, text: str) -> Running:
    folder = host.directory / f"script-{name}"
    folder.mkdir()
    (folder / "script.py").write_text(text, encoding="utf-8")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHONPATH", "VITPROF"))}
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "script.py", "--demo"],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Running(name, process, log)
