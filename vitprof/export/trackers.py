"""A watched script's own run of an experiment tracker: which one it was, and the verdict that is
added to it.

As the script has ended by then, its Python, which has the tracker's package, is started once more.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from vitprof.analysis.verdict.no_verdict import not_measurable
from vitprof.analysis.verdict.rendering import in_a_word
from vitprof.errors import ConfigError
from vitprof.home import temporary_prefix
from vitprof.jobs.command import STARTUP
from vitprof.masking import masked
from vitprof.store import StoredRun

TRACKERS = {"mlflow": "MLflow", "wandb": "W&B"}
LIMIT_S = 60.0
"""How long (s) writing the verdict may take: importing MLflow takes 3 to 10 s."""
FIGURES = ("samples_per_s", "data_wait_frac", "exposed_wait_frac", "device_idle_frac")
CONCLUDE = "import sys; sys.path[:1] = []; from vitprof.watch.trackers import conclude; conclude()"
"""What the script's Python runs. The folder that it is started in is not on its path."""


class TrackerLink:
    """What the script is asked to write to a tracker, and the file in which it says which run that
    was.
    """

    def __init__(self, name: str) -> None:
        """Raises `ConfigError` for a tracker that is not known."""
        if name not in TRACKERS:
            raise ConfigError("log_to", name, f"choose one of {', '.join(TRACKERS)}")
        self._name = name
        self._folder = self._file = Path()

    def __enter__(self) -> TrackerLink:
        """Makes the file's folder. Raises `OSError`."""
        self._folder = Path(tempfile.mkdtemp(prefix=temporary_prefix("tracker")))
        # It may hold a server's token: the folder is the user's alone.
        self._file = self._folder / "run.json"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def variables(self) -> dict[str, str]:
        """Returns the environment variables by which the script is asked."""
        return {"VITPROF_WATCH_LOG_TO": f"{self._name}:{self._file}"}

    def conclude(self, run: StoredRun) -> str:
        """Adds the verdict of a run that has ended.

        Returns a line for the user; "" where all went well.
        """
        words = TRACKERS[self._name]
        try:
            about = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return f"nothing was written to {words}: the script had no active run of it while it trained"
        request = {
            "tracker": self._name,
            "run": about["run"],
            "figures": figures_of(run),
            "words": words_of(run),
        }
        why = _written(about, json.dumps(request))
        if why:
            return f"the verdict was not written to {words}: {why}"
        return ""


def figures_of(run: StoredRun) -> dict[str, float]:
    """Returns the known figures of the whole run."""
    s = run.summary
    if s is None or not_measurable(run.facts, s.n_steps):
        return {}
    return {name: getattr(s, name) for name in FIGURES if math.isfinite(getattr(s, name))}


def words_of(run: StoredRun) -> dict[str, str]:
    """Returns what is to be known of the run in words."""
    about = {"run": str(run.id), "status": run.status}
    if run.verdict is not None:
        about |= {"verdict": in_a_word(run.verdict), "sentence": run.verdict.sentence}
    return about


def _written(about: dict[str, Any], request: str) -> str:
    """Returns why the script's Python could not write what is asked; "" where it did."""
    # Without the variables by which a script is watched: this Python trains nothing.
    own = {
        name: value for name, value in os.environ.items() if not name.startswith("VITPROF_WATCH_")
    }
    path = os.pathsep.join(filter(None, [str(STARTUP), own.get("PYTHONPATH")]))
    own |= about["variables"] | {"PYTHONPATH": path, "VITPROF_WATCH_ROOT": str(STARTUP.parents[2])}
    command = [about["python"], "-c", CONCLUDE]
    more: dict[str, Any] = {
        "input": request,
        "capture_output": True,
        "text": True,
        "timeout": LIMIT_S,
    }
    try:
        ended = subprocess.run(command, cwd=about["cwd"], env=own, check=False, **more)
    except subprocess.TimeoutExpired:
        return f"it did not answer within {LIMIT_S:g} s"
    except OSError as error:
        return f"{about['python']} cannot be started again: {error.strerror or error}"
    if not ended.returncode:
        return ""
    # Of a traceback the last line is the error.
    lines = ended.stderr.strip().splitlines()
    return masked(lines[-1]) if lines else "it ended without a word"
