"""Draws `docs/top.svg`, a picture of `vitprof top`: `python -m docs.top_picture`, in half a minute.

A script of `docs/examples/` trains meanwhile, watched; what has ended are the recorded runs of the
demonstration, as if they had ended just now. All figures are of these runs.
"""

import contextlib
import io
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from vitprof import demo
from vitprof.cli.top.drawing import joined, screen
from vitprof.cli.top.reading import StoreReader
from vitprof.cli.top.rows import Snapshot
from vitprof.cli.top.view import View
from vitprof.export.bundle import import_bundle
from vitprof.program import CALLED_AS
from vitprof.store import RunQuery, RunStore
from vitprof.store.database import now_utc

DOCS = Path(__file__).parent
ROOT = DOCS.parent
WIDTH = 100
HEIGHT = 15
STEPS = 60
"""Steps of the run that goes on, when the picture is taken."""
WITHIN_S = 120.0
NAMES = (
    "Whole batches, made one ahead",
    "Image by image, as most tutorials do",
    "python train.py photos",
    "A tiny model on a fast GPU",
    "A worker was killed",
)
"""The recorded runs in the picture, the last one to end first."""
MINUTES_APART = 7
SHOWN_AS = "gpu-01"
"""Name of the machine in the picture."""
FONT = '"DejaVu Sans Mono", Menlo, Consolas, monospace'
"""Of the reader's own: rich's picture would fetch one."""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"VITPROF_HOME": str(Path(folder) / "home"), CALLED_AS: "vitprof"}
        os.environ["VITPROF_USER"] = "ada"
        _add_ended()
        snapshot = _taken(Path(folder))
    path = DOCS / "top.svg"
    path.write_text(_svg(snapshot), encoding="utf-8")
    sys.stdout.write(f"{path.relative_to(ROOT)} written, {path.stat().st_size:,} bytes\n")


def _add_ended() -> None:
    with contextlib.closing(RunStore()) as store:
        with demo.RUNS.open("rb") as file:
            import_bundle(store, file)
        for row in store.list_runs(RunQuery(), limit=100):
            if row.name not in NAMES:
                store.erase(row.id)
                continue
            minutes_ago = MINUTES_APART * (1 + NAMES.index(row.name))
            store.update_run(row.id, created_utc=now_utc(minutes_ago / (24 * 60)))


def _taken(folder: Path) -> Snapshot:
    """Returns what there is while a script trains, once its first steps have come."""
    shutil.copyfile(DOCS / "examples" / "slow_drive.py", folder / "train.py")
    command = [sys.executable, "-m", "vitprof", "watch", "--quiet", "--", "python", "train.py"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    # the interrupted script prints its traceback
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=quiet) as watching:
        try:
            return _once_it_trains()
        finally:
            watching.send_signal(signal.SIGINT)


def _once_it_trains() -> Snapshot:
    until_s = time.monotonic() + WITHIN_S
    with contextlib.closing(StoreReader()) as reader:
        while time.monotonic() < until_s:
            snapshot = reader.read()
            for row in snapshot.rows:
                if row.live and row.answer is not None and row.answer.n_steps >= STEPS:
                    return snapshot
            time.sleep(0.2)
    raise SystemExit("the script did not train")


def _svg(snapshot: Snapshot) -> str:
    console = Console(
        record=True, width=WIDTH, height=HEIGHT, file=io.TextIOWrapper(io.BytesIO(), "utf-8")
    )
    here = socket.gethostname()
    rows = [
        replace(row, host=SHOWN_AS, name=row.name.replace(here, SHOWN_AS)) for row in snapshot.rows
    ]
    snapshot = replace(snapshot, rows=tuple(rows))
    chosen = next(row.run_id for row in rows if row.live)
    lines, _ = screen(snapshot, View(chosen=chosen), "", WIDTH, HEIGHT, console)
    console.print(joined(lines))
    plain = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    code_format = plain.replace("Fira Code, monospace", FONT)
    return console.export_svg(title="vitprof top", code_format=code_format, unique_id="top")


if __name__ == "__main__":
    main()
