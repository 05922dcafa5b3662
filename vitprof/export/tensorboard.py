"""Scalars for TensorBoard, a directory for each run; by tensorboardX, which imports torch, in a process of its own."""

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
"""Groups of neighbours for each scalar of a long run, the lowest and the highest point of each: 10,000 points."""
LIMIT_S = 300
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
OTHER_NAMES = {"gap_s": "idle_gap", "kernel_s": "kernels"}
STEP_TAGS: dict[str, tuple[str, float]] = {
    name: (
        f"{'loader' if name in OF_LOADER else 'step'}/{OTHER_NAMES.get(name, name[:-2])}_ms",
        1e3,
    )
    for name in STEP_COLUMNS
    if name.endswith("_s") and name not in NO_SCALARS
} | {"loss": ("train/loss", 1.0), "queue_depth": ("loader/queue_depth", 1.0)}
TELEMETRY_TAGS = {name: f"machine/{name}" for name in TELEMETRY_COLUMNS if name != "t_s"}


def write_tensorboard(store: RunStore, runs: Sequence[StoredRun], directory: Path) -> None:
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
            temporary.chmod(0o755)  # mkdtemp's 0700 would hide it from others
            temporary.replace(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise VitprofError(f"{directory} cannot be written: {error.strerror or error}") from error


def tensorboard_zip(store: RunStore, runs: Sequence[StoredRun]) -> bytes:
    try:
        with tempfile.TemporaryDirectory(prefix=home.temporary_prefix("tensorboard")) as top:
            write_tensorboard(store, runs, Path(top) / "tensorboard")
            return Path(
                shutil.make_archive(f"{top}/packed", "zip", top, "tensorboard")
            ).read_bytes()
    except OSError as error:
        where = tempfile.gettempdir()
        raise VitprofError(
            f"{where} cannot be written: {error.strerror or error}; TMPDIR names another"
        ) from error


def run_directory(run: StoredRun) -> str:
    safe = "".join(c if c.isalnum() or c in "-_" else "-" for c in run.name)[:60].strip("-")
    simulated = "-simulated" if run.simulated and "simulated" not in safe else ""
    return f"run-{run.id}{'-' + safe if safe else ''}{simulated}"


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
    last = float(steps["step"][-1]) if len(steps["step"]) else 0.0
    for name, value in figures(run).items():
        if value is not None:
            found[f"summary/{name}"] = np.array([[last], [began], [float(value)]])
    return {tag: points for tag, points in found.items() if points.shape[1]}


def _thinned(number: Floats, wall: Floats, values: Floats) -> Floats:
    known = np.flatnonzero(np.isfinite(values) & np.isfinite(wall))
    at = known[np.unique(min_max(values[known], 0, len(known), group_size(len(known), MAX_GROUPS)))]
    return np.stack([number[at], wall[at], values[at]])


def _in_a_process(directory: Path, runs: dict[str, dict[str, Floats]]) -> None:
    """Hands the scalars to `tensorboard_child`, whose input stays open: with this process it ends. Raises `OSError`."""
    command = runners.command("vitprof.export.tensorboard_child", str(directory))
    env = runners.environment()
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe, env=env
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # it died at once: its last line says why
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
