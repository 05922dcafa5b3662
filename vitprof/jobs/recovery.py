"""Takes in the spool files that programs left because the store was away when they ended."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitprof.errors import ConfigError, StoreAwayError, StoreError, VitprofError, one_line
from vitprof.home import home
from vitprof.jobs.batches import read_batch
from vitprof.jobs.spool import HEADER, MAGIC, PREFIX, SpoolFile
from vitprof.recording.columns import LIVE_STATUSES, STEP_COLUMNS, TELEMETRY_COLUMNS
from vitprof.store import RunStore, StoredRun

TAKE_IN_S = 20.0
"""How long (s) a starting program may spend on it; the rest is taken in at the next start."""
OWNED_BY = ("id", "created_utc", "owner_host", "owner_pid", "owner_started")
"""The columns that tell a run from every other, even from one with the same number in a store that was made anew."""
SumUp = Callable[[int, float | None], None]
"""Sums up a run. Its arguments: the run's id, and when it ended on its clock; None where that was not recorded."""


@dataclass
class TakenIn:
    """What became of the files."""

    lines: list[str] = field(default_factory=list)
    """Lines for the user."""
    waiting: set[int] = field(default_factory=set)
    """Ids of runs that still have data in files."""


@dataclass(frozen=True)
class _Found:
    """A file that a program left, and its header."""

    file: SpoolFile
    header: dict[str, Any]


def places(store: RunStore) -> list[Path]:
    """Returns the directories of this store's spool files: beside it, and the temporary one where that disk is full."""
    beside = store.file.parent if store.file is not None else home()
    return list(dict.fromkeys([beside, Path(tempfile.gettempdir())]))


def header_of(store: RunStore, run: StoredRun, why: str) -> dict[str, Any]:
    """Returns the header of a spool file of `run`; `why` says why the store could not be written."""
    return {
        "magic": MAGIC,
        "store": store.identity,
        "run": {name: getattr(run, name) for name in OWNED_BY},
        "steps": STEP_COLUMNS,
        "telemetry": TELEMETRY_COLUMNS,
        "why": why,
    }


def take_in(
    store: RunStore,
    sum_up: SumUp,
    *,
    within_s: float = TAKE_IN_S,
    clock: Callable[[], float] = time.monotonic,
) -> TakenIn:
    """Takes in the files that programs which are gone left for this store, and removes them.

    Reads only files of this user that name this store. A damaged file is read up to the damage and set aside. What the
    store does not take, or not within `within_s` seconds, is left for the next time. `sum_up` is called for each run
    once its steps are stored.
    """
    taken, until = TakenIn(), clock() + within_s
    left = _left(store, taken)
    try:
        while left:
            run_id = min(left)
            _Leftover(store, left[run_id], taken).take_in(sum_up, lambda: clock() > until)
            left.pop(run_id)
    except StoreAwayError:
        pass
    finally:
        for run_id, of_run in left.items():
            taken.waiting.add(run_id)
            for each in of_run:
                each.file.close()
    return taken


def _left(store: RunStore, taken: TakenIn) -> dict[int, list[_Found]]:
    """Returns the files that were left for this store, open, by run and in their order."""
    found: dict[int, list[_Found]] = {}
    for path in _candidates(store):
        if (file := SpoolFile.left(path)) is None:
            continue
        if not file.size:  # its program was killed just after it made the file
            file.delete()
            continue
        try:
            header = _header(file)
        except ValueError as error:
            taken.lines.append(f"{path}, which waited for the run store, cannot be read ({error}): {_set_aside(file)}")
            continue
        if header["store"] == store.identity:
            found.setdefault(header["run"]["id"], []).append(_Found(file, header))
        else:
            file.close()
    for of_run in found.values():
        of_run.sort(key=lambda each: int(each.header["part"]))
    return found


def _set_aside(file: SpoolFile) -> str:
    return f"it is now {file.set_aside()}, and is not read again"


def _candidates(store: RunStore) -> Iterator[Path]:
    for place in places(store):
        with suppress(OSError):
            yield from sorted(place.glob(f"{PREFIX}*"))


def _header(file: SpoolFile) -> dict[str, Any]:
    frame = file.next_frame()
    if frame is None or frame[0] != HEADER:
        raise ValueError("it is damaged")
    header: dict[str, Any] = json.loads(frame[1])
    if header["magic"] != MAGIC:
        raise ValueError("another version of vitprof wrote it")
    return header


class _Leftover:
    """The files that were left of one run, on their way into the store."""

    def __init__(self, store: RunStore, found: list[_Found], taken: TakenIn) -> None:
        self._store, self._found, self._taken = store, found, taken
        self._run: dict[str, Any] = found[0].header["run"]
        self._values: dict[str, Any] = {}
        self._n_steps = 0

    def take_in(self, sum_up: SumUp, late: Callable[[], bool]) -> None:
        """Takes in all files, or as much of them as can be read. Raises `StoreAwayError`; the files are then open."""
        run_id, say = self._run["id"], self._taken.lines.append
        names = ", ".join(str(each.file.path) for each in self._found)
        if not self._store.has_run(self._run):
            for each in self._found:
                each.file.delete()
            say(f"run {run_id} is not in the store any more: what waited for it ({names}) was deleted")
            return
        damage: dict[SpoolFile, str] = {}
        for each in self._found:
            try:
                in_time = self._read(each, late)
            except StoreAwayError:
                raise
            except (ValueError, TypeError, ConfigError, OSError, StoreError) as error:
                damage[each.file] = one_line(error) if isinstance(error, VitprofError) else str(error)
                continue
            if not in_time:
                self._taken.waiting.add(run_id)
                say(f"run {run_id}: what waited for the run store ({names}) is large; the next start takes in the rest")
                for open_file in self._found:
                    open_file.file.close()
                return
        self._end("; ".join(damage.values()), sum_up)
        if self._n_steps or not damage:
            say(f"run {run_id}: {self._n_steps:,} steps that waited for the run store ({names}) were taken in")
        for each in self._found:
            if why := damage.get(each.file):
                say(f"run {run_id}: {each.file.path} could not be read to its end ({why}): {_set_aside(each.file)}")
            else:
                each.file.delete()

    def _read(self, found: _Found, late: Callable[[], bool]) -> bool:
        """Writes the rows of a file; returns whether it reached the end in time."""
        columns = {"steps": found.header["steps"], "samples": ["seq", *found.header["telemetry"]]}
        while batch := read_batch(found.file.frames(), **columns):
            if late():
                return False
            self._values |= batch.values
            batch.write_rows(self._store, self._run["id"], again=True)
            self._n_steps += batch.n_steps
        return True

    def _end(self, damage: str, sum_up: SumUp) -> None:
        """Writes the last columns of the run and sums it up."""
        run_id, values = self._run["id"], self._values
        ended_s = values.pop("t_end_s", None)
        notices = list(values.get("notices") or self._store.run(run_id).notices)
        if ended_s is None:
            notices.append(
                f"the run store could not be written ({self._found[0].header['why']}) when the program ended; what was "
                "measured until then was taken in later"
            )
        if damage:
            notices.append(f"a part of what waited for the run store is lost: {damage}")
        self._store.update_run(run_id, **(values | {"notices": notices}))
        ended = ended_s is not None and values.get("status") not in LIVE_STATUSES
        sum_up(run_id, float(ended_s) if ended else None)
