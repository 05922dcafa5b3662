"""The demonstration: recorded runs in a home of their own, so that every page has something to
show.

`benchmarks/demonstration.py` recorded them with real runs. `runs.vitprof` is a bundle;
`experiments.json` has the tournament that the runs belong to, and what the first page draws of
them. All is imported into a new store in the demonstration's home, a folder in
the user's home. The user's own store is not touched; jobs started in the demonstration stay in it.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from vitprof.errors import StoreError, VitprofError
from vitprof.home import STORE_FILE, ensure_dir, home

RUNS = Path(__file__).with_name("runs.vitprof")
EXPERIMENTS = Path(__file__).with_name("experiments.json")
SCRIPT = Path(__file__).with_name("slow_dataset.py")
"""A training script to watch."""
FOLDER = "demo"
MARK = "demonstration.sha256"
"""The file that marks a demonstration's home. It holds the SHA-256 hash of the recording in it."""
FIRST_SHOWN = 5
"""Id of the run that the Profile page shows until one is chosen."""
TOURNAMENT = 1
"""Id of the tournament in the recording."""
LANES_MS = 240
"""What a lane shows of its run (ms): about twenty steps."""


@dataclass(frozen=True)
class Lane:
    """The device of a recorded run, for `LANES_MS` of its steady state."""

    name: str
    idle_frac: float
    """Share of the whole steady state in which the device waited."""
    busy_ms: list[tuple[float, float]]
    """When it computed: begin and end (ms) since the lane's begin."""


def lanes() -> list[Lane]:
    """Returns the slow run and the fast one, as they were recorded."""
    return [Lane(**lane) for lane in json.loads(EXPERIMENTS.read_text())["lanes"]]


def is_demonstration() -> bool:
    """Returns whether this program's home is a demonstration's."""
    return (home() / MARK).is_file()


def make_home() -> tuple[Path, bool]:
    """Creates the demonstration's home in the user's home, unless it exists with the same
    recording.

    Returns its path, and whether it replaced the demonstration of another version and all runs made
    in it. Raises `VitprofError` if it cannot be written, or if a folder of its name holds something
    else.
    """
    folder = ensure_dir(home())
    opened = os.open(folder, os.O_RDONLY)
    try:
        # Of two programs that start together, the second finds what the first made.
        fcntl.flock(opened, fcntl.LOCK_EX)
        return _made_home(folder / FOLDER)
    finally:
        os.close(opened)


def _made_home(place: Path) -> tuple[Path, bool]:
    mark = hashlib.sha256(RUNS.read_bytes() + EXPERIMENTS.read_bytes()).hexdigest()
    before = place.exists()
    recorded_mark = ""
    if (place / MARK).is_file():
        recorded_mark = (place / MARK).read_text()
    if recorded_mark == mark:
        return place, False
    if before and not recorded_mark:
        raise VitprofError(f"{place} is not a demonstration of vitprof's; move it away")
    # Written under a temporary name first: if the disk is full, nothing is left that looks like a
    # store.
    made = Path(tempfile.mkdtemp(prefix=f".{FOLDER}-", dir=place.parent))
    try:
        _import_runs(made / STORE_FILE)
        (made / MARK).write_text(mark)
        if before:
            shutil.rmtree(place)
        made.rename(place)
    except (OSError, StoreError) as error:
        shutil.rmtree(made, ignore_errors=True)
        reason = error.strerror if isinstance(error, OSError) else None
        raise VitprofError(f"cannot write {place}: {reason or error}") from error
    return place, before


def _import_runs(database: Path) -> None:
    """Imports the recorded runs, and what they belong to, into a new store. Raises `StoreError`."""
    # Imported here: every command imports this module, and few make the home.
    from vitprof.config.tournament_spec import TournamentSpec
    from vitprof.export.bundle import import_bundle
    from vitprof.store import RunStore, tournaments

    experiments = json.loads(EXPERIMENTS.read_text())
    with contextlib.closing(RunStore(f"sqlite:///{database}")) as store:
        import_bundle(store, RUNS)
        for run_id, (group_key, role) in experiments["groups"].items():
            store.update_run(int(run_id), group_key=group_key, role=role)
        for one in experiments["tournaments"]:
            spec = TournamentSpec.from_dict(one["spec"])
            # All was recorded on one day, so the first run's date is the tournament's, too.
            made_utc = store.run(1).created_utc
            made = tournaments.insert_tournament(store, spec, one["name"], made_utc)
            tournaments.set_status(store, made, "done")
