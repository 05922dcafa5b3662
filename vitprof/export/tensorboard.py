"""Scalars for TensorBoard: one directory of events for each run.

The files are written by tensorboardX in a short-lived process of its own: it imports torch where it
finds it, which the dashboard's process must not do.
"""

import contextlib
import datetime as dt
import pickle
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitprof import home
from vitprof.analysis.arrays import Floats
from vitprof.analysis.timing.timeline import group_size, min_max
from vitprof.errors import VitprofError
from vitprof.export.tables import figures
from vitprof.jobs import runners
from vitprof.recording.columns import STEP_COLUMNS, TELEMETRY_COLUMNS, TIMED_STAGES
from vitprof.store import RunStore, StoredRun

MAX_GROUPS = 5_000
"""Groups of neighbours for each scalar of a long run, the lowest and the highest point of each:
10,000 points."""
LIMIT_S = 300
"""How long (s) writing the files may take."""
MAX_NAME = 60
"""Characters of a run's name in the name of its directory."""
NO_SCALARS = (
    "t_start_s",
    "compute_start_s",
    "h2d_start_s",
    "made_start_s",
    "made_end_s",
    "host_s",
    "exposed_wait_s",
)
"""Columns of seconds that are moments, or what other scalars say."""
OF_LOADER = (*(f"{stage}_s" for stage in TIMED_STAGES), "hand_over_s")
"""Columns of what happens in the loader."""
OTHER_NAMES = {"gap_s": "idle_gap", "kernel_s": "kernels"}
"""Column -> its name in a tag, where that is not the column's without its unit."""


def _tag(column: str) -> str:
    group = "loader" if column in OF_LOADER else "step"
    name = OTHER_NAMES.get(column, column.removesuffix("_s"))
    return f"{group}/{name}_ms"


STEP_TAGS: dict[str, tuple[str, float]] = {
    name: (_tag(name), 1e3)
    for name in STEP_COLUMNS
    if name.endswith("_s") and name not in NO_SCALARS
}
STEP_TAGS |= {"loss": ("train/loss", 1.0), "queue_depth": ("loader/queue_depth", 1.0)}
"""Column of steps -> tag and factor; their x axis is the number of the step."""
TELEMETRY_TAGS = {name: f"machine/{name}" for name in TELEMETRY_COLUMNS if name != "t_s"}
"""Column of telemetry -> tag; their x axis is the number of the sample."""


def write_tensorboard(store: RunStore, runs: Sequence[StoredRun], directory: Path) -> None:
    """Writes the event files into `directory`, which must be new or empty; all of them or none.

    Raises `VitprofError`.
    """
    try:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise VitprofError(
                f"{directory} is there already; give a new or empty directory for TensorBoard's files"
            )
        target = directory.resolve()
        scalars = {run_directory(run): _scalars(store, run) for run in runs}
        temporary = Path(tempfile.mkdtemp(prefix=".vitprof-", suffix=".tmp", dir=target.parent))
        try:
            _in_a_process(temporary, scalars)
            # mkdtemp's 0700 would hide it from others.
            temporary.chmod(0o755)
            temporary.replace(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise VitprofError(f"{directory} cannot be written: {error.strerror or error}") from error


def tensorboard_zip(store: RunStore, runs: Sequence[StoredRun]) -> bytes:
    """Returns the directory that `write_tensorboard` writes as a zip file. Raises `VitprofError`."""
    try:
        with tempfile.TemporaryDirectory(prefix=home.temporary_prefix("tensorboard")) as top:
            write_tensorboard(store, runs, Path(top) / "tensorboard")
            packed = shutil.make_archive(f"{top}/packed", "zip", top, "tensorboard")
            return Path(packed).read_bytes()
    except OSError as error:
        where = tempfile.gettempdir()
        raise VitprofError(
            f"{where} cannot be written: {error.strerror or error}; TMPDIR names another"
        ) from error


def run_directory(run: StoredRun) -> str:
    """Returns the name of the run's directory, which TensorBoard shows: id and name, as far as safe
    in a path.
    """
    safe = "".join(c if c.isalnum() or c in "-_" else "-" for c in run.name)
    safe = safe[:MAX_NAME].strip("-")
    parts = [f"run-{run.id}"]
    if safe:
        parts.append(safe)
    if run.simulated and "simulated" not in safe:
        parts.append("simulated")
    return "-".join(parts)


def _scalars(store: RunStore, run: StoredRun) -> dict[str, Floats]:
    """Returns the run's scalars by tag, (3, n) each: step, wall time in seconds since 1970, value."""
    steps = store.steps(run.id)
    telemetry = store.telemetry(run.id)
    origin = run.t_origin_s or 0.0
    began = dt.datetime.fromisoformat(run.created_utc.replace("Z", "+00:00")).timestamp()
    step_t = np.where(np.isfinite(steps["t_start_s"]), steps["t_start_s"] - origin, 0.0) + began
    machine_t = telemetry["t_s"] - origin + began
    found = {
        tag: _thinned(steps["step"], step_t, steps[name] * by)
        for name, (tag, by) in STEP_TAGS.items()
    }
    found |= {
        tag: _thinned(telemetry["seq"], machine_t, telemetry[name])
        for name, tag in TELEMETRY_TAGS.items()
    }
    # The figures of the whole run are one point each, at its last step.
    last = float(steps["step"][-1]) if len(steps["step"]) else 0.0
    for name, value in figures(run).items():
        if value is not None:
            found[f"summary/{name}"] = np.array([[last], [began], [float(value)]])
    return {tag: points for tag, points in found.items() if points.shape[1]}


def _thinned(number: Floats, wall: Floats, values: Floats) -> Floats:
    """Returns the known values, (3, n); of a long run the lowest and the highest of each group."""
    known = np.flatnonzero(np.isfinite(values) & np.isfinite(wall))
    n = len(known)
    ends = min_max(values[known], 0, n, group_size(n, MAX_GROUPS))
    at = known[np.unique(ends)]
    return np.stack([number[at], wall[at], values[at]])


def _in_a_process(directory: Path, runs: dict[str, dict[str, Floats]]) -> None:
    """Hands the scalars of each run to `tensorboard_child`.

    Raises `OSError` with the child's last line.

    The child's input stays open until the child has ended: if this process is killed, the input
    ends and so does the child.
    """
    command = runners.command("vitprof.export.tensorboard_child", str(directory))
    env = runners.environment()
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe, env=env
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        try:
            # If it died at once, its last line says why.
            with contextlib.suppress(BrokenPipeError):
                pickle.dump(runs, process.stdin)
                process.stdin.flush()
            status = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired as error:
            raise OSError(f"it takes more than {LIMIT_S} s; try a quicker disk") from error
        finally:
            process.kill()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        said = process.stderr.read().decode(errors="replace").strip().splitlines()
    if status:
        raise OSError(said[-1] if said else f"its process ended with status {status}")
