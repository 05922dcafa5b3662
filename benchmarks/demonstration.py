"""Records the runs that `vitprof demo` shows, and writes them to `vitprof/demo/`.

    python -m benchmarks.demonstration [--output vitprof/demo]

Run it again when runs have new figures that are worth a look. It makes every run on this machine, by the command line,
in a home of its own; nothing is made up. It waits until the machine is quiet: a run in which other programs took the
CPU, or whose verdict is not the one to show, is deleted and repeated. Takes five minutes on an idle machine. Names of
this machine (its host, its temporary folder, its kernel) are replaced.
"""

import argparse
import json
import os
import platform
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import psutil
from PIL import Image

from vitprof.analysis.timing import steady
from vitprof.demo import EXPERIMENTS, FIRST_SHOWN, LANES_MS, RUNS
from vitprof.export.bundle import write_bundle
from vitprof.store import RunStore, StoredRun
from vitprof.store.tournaments import delete_tournament, list_tournaments

REPOSITORY = Path(__file__).resolve().parents[1]
OUTPUT = REPOSITORY / "vitprof" / "demo"
GPU = ("--device", "simulated:h100", "--batch-size", "128", "--no-evaluate", "--threads", "1")
VITPROF = (sys.executable, "-m", "vitprof")
TRIES = 40
QUIET_PCT, QUIET_S = 15.0, 2.0
"""The machine is quiet when other programs have used less of all cores than this, for this long (s)."""
FAST = "Whole batches, made one ahead"
HOST = "the-demonstrations-machine"
SEEN_BESIDE = {"other-programs", "cpu_contention"}
"""Signature and cause of a run during which other programs took the CPU."""

TRAIN = '''"""Trains a small network on a folder of images, as many do."""

import sys

import torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

torch.set_num_threads(1)
transform = transforms.Compose(
    [
        transforms.RandomResizedCrop(96),
        transforms.RandomHorizontalFlip(),
        transforms.ColorJitter(0.4, 0.4),
        transforms.ToTensor(),
        transforms.Normalize((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
    ]
)
images = datasets.ImageFolder(sys.argv[1], transform)
loader = DataLoader(images, batch_size=16, shuffle=True, num_workers=1, prefetch_factor=2)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 16, 8, stride=8), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16 * 12 * 12, 4)
)
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(3):
    for batch, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(batch), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
'''
"""The script to watch."""


class Recording:
    """A home in which runs are made by the command line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "home" / "recordings.sqlite"
        self.database.parent.mkdir()
        self._env = {
            name: value for name, value in os.environ.items() if not name.startswith("VITPROF_")
        }
        path = os.pathsep.join(
            [str(Path(sys.executable).parent), os.environ["PATH"]]
        )  # "python" is this one
        self._env |= {
            "VITPROF_HOME": str(folder / "home"),
            "PYTHONPATH": str(REPOSITORY),
            "PATH": path,
        }

    def store(self) -> RunStore:
        return RunStore(f"sqlite:///{self.database}")

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts a command of vitprof."""
        print("vitprof", *arguments, flush=True)
        return subprocess.Popen(
            [*VITPROF, *arguments], cwd=self.folder, env=self._env, stdout=subprocess.DEVNULL
        )

    def call(self, *arguments: str, status: int = 0) -> None:
        """Runs a command of vitprof. Raises `SystemExit` where its exit status is not `status`."""
        if (ended := self.start(*arguments).wait()) != status:
            raise SystemExit(f"it ended with status {ended}, not {status}")

    def runs(self) -> list[StoredRun]:
        """Returns all runs, the newest first."""
        with closing(self.store()) as store:
            return store.runs()

    def run(self, kind: str, *arguments: str) -> int:
        """Makes a run with the verdict `kind`, undisturbed by other programs; returns its number."""
        for _ in range(TRIES):
            wait_for_quiet()
            self.call(*arguments)
            made = self.runs()[0]
            if made.verdict is None:
                raise SystemExit(f"run {made.id} has no verdict: {made.error}")
            found = {made.verdict.cause, *(seen.name for seen in made.verdict.signatures)}
            if made.verdict.kind == kind and not SEEN_BESIDE & found:
                return made.id
            print(f"again: {made.verdict.kind}, {found}")
            with closing(self.store()) as store:
                store.delete(made.id)
            self.count_on()
        raise SystemExit(
            f"no run in {TRIES} was called {kind} without other programs on the machine"
        )

    def tournament(self, *arguments: str) -> None:
        """Makes a tournament whose recommendation does not warn of other programs."""
        for _ in range(TRIES):
            wait_for_quiet()
            self.call("tournament", *arguments)
            told = subprocess.check_output(
                [*VITPROF, "tournament", "--resume", "1", "--json"], env=self._env
            )
            if b"other programs" not in told:
                return
            print("again: other programs took the CPU")
            with closing(self.store()) as store:
                delete_tournament(store, 1)
            self.count_on()
        raise SystemExit(f"no tournament in {TRIES} had the machine to itself")

    def count_on(self) -> None:
        """Lets the next run or tournament have the number of the deleted one: a reader would miss that number."""
        with closing(sqlite3.connect(self.database)) as db, db:
            for table in ("runs", "tournaments"):
                newest = f"coalesce((SELECT max(id) FROM {table}), 0)"
                db.execute(f"UPDATE sqlite_sequence SET seq = {newest} WHERE name = ?", (table,))

    def broken_run(self, *arguments: str) -> None:
        """Makes a run that fails: kills a worker of its DataLoader, as a system does that is out of memory."""
        command = self.start(*arguments)
        while not any(run.status == "running" and run.stage == "training" for run in self.runs()):
            time.sleep(0.2)
        time.sleep(2.0)
        made = psutil.Process(command.pid).children(recursive=True)
        os.kill(max(made, key=lambda process: process.create_time()).pid, signal.SIGKILL)
        command.wait()


def wait_for_quiet() -> None:
    """Waits until this machine does nothing else."""
    while psutil.cpu_percent(QUIET_S) > QUIET_PCT:
        pass


def make_images(folder: Path) -> None:
    """Writes smooth JPEG files of 640 x 480 pixels, in a folder for each of four classes."""
    noise = np.random.default_rng(0)
    for number in range(240):
        small = noise.integers(0, 255, (6, 8, 3), np.uint8)
        path = folder / "abcd"[number % 4] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(small).resize((640, 480), Image.Resampling.BICUBIC).save(path, quality=90)


def record(recording: Recording) -> None:
    """Makes every run of the demonstration. The page Compare shows the newest two unless others are chosen: those
    belong together, and the slower one is `vitprof.demo.FIRST_SHOWN`.
    """
    broken = (
        "--strategy",
        "workers",
        "--workers",
        "1",
        "--seconds",
        "60",
        "--name",
        "A worker was killed",
    )
    recording.broken_run("run", *GPU, *broken)
    run = ("run", *GPU, "--steps", "150")
    photos = ("--dataset", "photos", "--n-images", "400", "--strategy", "workers", "--workers", "1")
    recording.run(
        "input-bound",
        *run,
        *photos,
        "--batch-size",
        "16",
        "--name",
        "Photos, decoded by one worker",
    )
    launches = (
        "--device",
        "simulated:1,0,launch=4",
        "--strategy",
        "memory",
        "--name",
        "A tiny model on a fast GPU",
    )
    recording.run("launch-bound", *run, *launches)
    make_images(recording.folder / "photos")
    (recording.folder / "train.py").write_text(TRAIN)
    recording.run("input-bound", "watch", "--", "python", "train.py", "photos")
    name = ("--name", "Image by image, as most tutorials do")
    first = recording.run("input-bound", *run, "--strategy", "per-sample", *name)
    if first != FIRST_SHOWN:
        raise SystemExit(f"it is run {first}: change vitprof.demo.FIRST_SHOWN")
    wait_for_quiet()
    recording.call("headroom", str(first))
    recording.run("not input-bound", *run, "--strategy", "memory-ahead", "--name", FAST)
    strategies = (
        "--strategies",
        "per-sample,tensordataset,workers,memory,memory-ahead",
        "--batch-sizes",
        "64,256",
    )
    device = ("--device", "simulated:a100", "--threads", "1", "--steps", "60")
    recording.tournament(*strategies, *device, "--name", "Which loader feeds an A100?")


def nameless(database: Path, folder: Path) -> None:
    """Replaces the names of this machine in all texts of a store."""
    names = {str(folder.resolve()): "/home/me", str(folder): "/home/me", socket.gethostname(): HOST}
    names |= {platform.platform(): platform.system()}

    def without(text: str) -> str:
        for name, instead in names.items():
            text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", instead, text)
        return text

    with closing(sqlite3.connect(database)) as db, db:
        db.create_function("without", 1, without)
        for (table,) in db.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE '%s'"
        ).fetchall():
            for _, column, kind, *_ in db.execute(f"PRAGMA table_info({table})").fetchall():
                if kind in ("VARCHAR", "JSON"):
                    db.execute(
                        f"UPDATE {table} SET {column} = without({column}) WHERE {column} IS NOT NULL"
                    )


def lane(store: RunStore, run: StoredRun) -> dict[str, object]:
    """Returns the fields of a `vitprof.demo.Lane`, from the middle of a run."""
    steps = store.steps(run.id)
    start, end = 1e3 * (steady.begin_s(steps) + steps["gap_s"]), 1e3 * steady.end_s(steps)
    n = len(start) // 2
    start, end = (np.round(np.clip(t - start[n], 0, LANES_MS), 1) for t in (start, end))
    shown = [(a, b) for a, b in zip(start.tolist(), end.tolist(), strict=True) if a < b]
    busy = shown[:1]
    for a, b in shown[1:]:
        busy[-1:] = [(busy[-1][0], b)] if a - busy[-1][1] < 0.1 else [busy[-1], (a, b)]
    assert run.verdict is not None
    return {"name": run.name, "idle_frac": round(run.verdict.idle_frac, 4), "busy_ms": busy}


def pack(store: RunStore, folder: Path) -> None:
    """Writes the runs of a store as a bundle, and beside it what they belong to."""
    runs = store.runs()
    write_bundle(store, [run.id for run in runs], folder / RUNS.name)
    experiments = {
        "tournaments": [
            {"name": one.name, "spec": one.spec.to_dict()}
            for one in reversed(list_tournaments(store))
        ],
        "lanes": [
            lane(store, run)
            for run in (store.run(FIRST_SHOWN), next(r for r in runs if r.name == FAST))
        ],
        "groups": {
            run.id: (run.group_key, run.role)
            for run in runs
            if run.group is not None and run.group.kind == "tournament"
        },
    }
    (folder / EXPERIMENTS.name).write_text(json.dumps(experiments, indent=1) + "\n")
    print(f"{folder}: {(folder / RUNS.name).stat().st_size / 1e3:.0f} kB")


def main() -> None:
    parser = argparse.ArgumentParser(description="Records the runs that `vitprof demo` shows.")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder to write to")
    output = parser.parse_args().output
    with tempfile.TemporaryDirectory(prefix="vitprof-") as folder:
        recording = Recording(Path(folder))
        record(recording)
        nameless(recording.database, recording.folder)
        with closing(recording.store()) as store:
            pack(store, output)


if __name__ == "__main__":
    main()
