"""Files for what an unavailable store cannot take: written by `outbox`, and imported by the next program if need be.

A file is an Arrow IPC stream: its schema, whose metadata says which run the file belongs to, then entries, record
batches of one row. An entry is a chunk of steps or telemetry as the store keeps it, or columns of the run as JSON, with
its CRC-32.
The program that writes a file holds a lock on it; a file without a lock was left by a program that ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import mmap
import os
import stat
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from vitprof.config import RunConfig
from vitprof.errors import StoreAwayError, StoreError, VitprofError, one_line
from vitprof.home import home
from vitprof.recording.columns import LIVE_STATUSES, Phase
from vitprof.store import RunStore, StoredRun
from vitprof.store.chunks import NUMBER, Chunk, Kind, loaded

PREFIX = "vitprof-spool-"
DAMAGED = "vitprof-damaged-"
"""Prefix of a file that could not be read to its end; it is not read again."""
MAGIC = "vitprof spool 2"
VALUES = "values"
MOST_BYTES = 256 << 20
"""Most bytes in all files of a run: over a million steps."""
ROWS_AT_ONCE = 10_000
"""Steps and telemetry samples that are written to the store in one transaction, where many are waiting."""
IMPORT_S = 20.0
"""How long (s) a starting program may spend on importing files; the rest is imported at the next start."""
OWNED_BY = ("id", "created_utc", "owner_host", "owner_pid", "owner_started")
"""The columns that tell a run from every other, even from one with the same number in a store that was made anew."""
SumUp = Callable[[int, float | None], None]
"""Sums up a run. Its arguments: the run's id, and when it ended on its clock; None where that was not recorded."""


class NoRoom(Exception):
    """Raised where no file can take an entry; the message says why."""


@dataclass
class Entries:
    """Entries that are written to the store together."""

    chunks: list[Chunk] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    """New values of the run's columns, by name."""

    def __bool__(self) -> bool:
        return bool(self.chunks or self.values)


class SpoolFile:
    """A file that is open, and locked by this process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self._descriptor = path, descriptor
        self.size = os.fstat(descriptor).st_size
        self._read = 0

    @classmethod
    def create(cls, directory: Path, header: Mapping[str, Any]) -> SpoolFile:
        """Returns a new file that only this user can read. Raises `OSError`."""
        while True:  # again only where another program took it for one that was left, before it was locked
            descriptor, name = tempfile.mkstemp(prefix=PREFIX, dir=directory)
            file = cls(Path(name), descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if os.fstat(descriptor).st_nlink:
                    file._write(_schema(header).serialize().to_pybytes())
                    return file
            except OSError:
                file.delete()
                raise
            file.close()

    @classmethod
    def left(cls, path: Path) -> SpoolFile | None:
        """Opens and locks a file that a program left; returns None where it is in use or not this user's."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            is_file = os.fstat(descriptor)
            if stat.S_ISREG(is_file.st_mode) and is_file.st_uid == os.geteuid() and is_file.st_nlink == 1:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_nlink:
                    return cls(path, descriptor)
        except OSError:  # its program still holds the lock
            pass
        os.close(descriptor)
        return None

    def append(self, kind: str, payload: bytes) -> None:
        """Adds a whole entry, or nothing. Raises `OSError`."""
        import pyarrow as pa

        entry = {"kind": kind, "crc": zlib.crc32(payload), "payload": payload}
        self._write(pa.RecordBatch.from_pylist([entry], _schema({})).serialize().to_pybytes())

    def _write(self, data: bytes) -> None:
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(self._descriptor, data[written:], self.size + written)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self.size)
            raise
        self.size += len(data)

    def header(self) -> dict[str, Any]:
        """Returns the header and goes on to the first entry. Raises `ValueError`."""
        import pyarrow as pa

        with self._mapped() as source:
            try:
                found = pa.ipc.read_schema(source).metadata or {}
                header: dict[str, Any] = json.loads(found.get(b"vitprof", b"{}"))
            except (pa.ArrowException, OSError, EOFError, ValueError) as error:
                raise ValueError("it is damaged") from error
            self._read = source.tell()
        if header.get("magic") != MAGIC:
            raise ValueError("another version of vitprof wrote it")
        return header

    def read(self) -> Entries:
        """Returns the next entries, with at least `ROWS_AT_ONCE` rows; fewer, or none, at the end of the file. They end
        before a damaged one; where that is the first one, raises `ValueError`.
        """
        if not self._read:
            self.header()
        found = Entries()
        with self._mapped() as source:
            while self._read < self.size and sum(chunk.rows for chunk in found.chunks) < ROWS_AT_ONCE:
                try:
                    kind, payload = self._entry(source)
                    if kind == VALUES:
                        found.values |= values_of(payload)
                    elif kind in NUMBER:
                        found.chunks.append(loaded(cast("Kind", kind), payload))
                except (ValueError, TypeError, VitprofError) as error:
                    if found:
                        break
                    raise ValueError(one_line(error) if isinstance(error, VitprofError) else str(error)) from error
                self._read = source.tell()
        return found

    def _entry(self, source: Any) -> tuple[str, bytes]:
        import pyarrow as pa

        source.seek(self._read)
        try:
            message = pa.ipc.read_message(source)
        except (pa.ArrowException, OSError, EOFError) as error:
            raise ValueError("its end is missing") from error
        try:
            (entry,) = pa.ipc.read_record_batch(message, _schema({})).to_pylist()
        except (pa.ArrowException, OSError) as error:
            raise ValueError("it is damaged") from error
        if not isinstance(entry["payload"], bytes) or zlib.crc32(entry["payload"]) != entry["crc"]:
            raise ValueError("it is damaged")
        return entry["kind"], entry["payload"]

    @contextlib.contextmanager
    def _mapped(self) -> Iterator[Any]:
        """Yields the file as it is now, at what was not read before."""
        import pyarrow as pa

        try:
            mapped = mmap.mmap(self._descriptor, self.size, access=mmap.ACCESS_READ)
        except (ValueError, OSError) as error:
            raise ValueError(f"it cannot be read: {error}") from error
        yield pa.BufferReader(pa.py_buffer(mapped))

    def close(self) -> None:
        """Closes and unlocks the file; a program that starts later finds it."""
        os.close(self._descriptor)

    def delete(self) -> None:
        """Removes and closes the file."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
        self.close()

    def set_aside(self) -> str:
        """Renames the file so that it is not imported again, and closes it. Returns what became of it, in words."""
        aside = self.path.with_name(DAMAGED + self.path.name.removeprefix(PREFIX))
        with contextlib.suppress(OSError):
            self.path.rename(aside)
        self.close()
        return f"it is now {aside}, and is not read again"


class Spool:
    """The files of one run: in the first of the directories `places` that has room, then in the next."""

    def __init__(self, header: Mapping[str, Any], places: Sequence[Path], most_bytes: int = MOST_BYTES) -> None:
        self._header, self._places, self._most_bytes = header, list(places), most_bytes
        self.files: list[SpoolFile] = []

    def append(self, kind: str, payload: bytes) -> None:
        """Adds an entry, to a new file where the last one has no room. Raises `NoRoom`."""
        if sum(file.size for file in self.files) + len(payload) > self._most_bytes:
            raise NoRoom(f"the {self._most_bytes >> 20} MB for waiting data were full")
        why = "no directory is left"
        while True:
            try:
                if self.files:
                    self.files[-1].append(kind, payload)
                    return
            except OSError as error:
                why = error.strerror or str(error)
            if not self._places:
                raise NoRoom(f"no file could be written ({why})")
            try:
                place, part = self._places.pop(0), len(self.files)
                self.files.append(SpoolFile.create(place, {**self._header, "part": part}))
            except OSError as error:
                why = error.strerror or str(error)

    def read(self) -> Entries:
        """Returns the next entries, none at the end. Raises `ValueError`."""
        return next(filter(None, (file.read() for file in self.files)), Entries())

    def delete(self) -> None:
        """Removes the files, once the store has everything."""
        while self.files:
            self.files.pop().delete()

    def leave(self) -> None:
        """Closes the files and leaves them for the next program."""
        while self.files:
            self.files.pop().close()


def places_of(store: RunStore) -> list[Path]:
    """Returns the directories of this store's files: its own, and the temporary one where that disk is full."""
    own = store.file.parent if store.file is not None else home()
    return list(dict.fromkeys([own, Path(tempfile.gettempdir())]))


def header_of(store: RunStore, run: StoredRun, why: str) -> dict[str, Any]:
    """Returns the header of a file of `run`; `why` says why the store could not be written."""
    owner = {name: getattr(run, name) for name in OWNED_BY}
    return {"magic": MAGIC, "store": store.identity, "run": owner, "why": why}


def values_entry(values: Mapping[str, Any]) -> bytes:
    """Returns columns of a run as the payload of an entry."""
    plain = dict(values)
    if "config" in plain:
        plain["config"] = plain["config"].to_dict()
    if "phases" in plain:
        plain["phases"] = [dataclasses.astuple(phase) for phase in plain["phases"]]
    return json.dumps(plain).encode()


def values_of(payload: bytes) -> dict[str, Any]:
    """Returns the columns of a run from an entry's payload: the inverse of `values_entry`. Raises `ValueError`,
    `TypeError`, `ConfigError`.
    """
    values: dict[str, Any] = json.loads(payload)
    if "config" in values:
        values["config"] = RunConfig.from_dict(values["config"])
    if "phases" in values:
        values["phases"] = [Phase(*phase) for phase in values["phases"]]
    return values


def _schema(header: Mapping[str, Any]) -> Any:
    import pyarrow as pa

    fields = [("kind", pa.string()), ("crc", pa.uint32()), ("payload", pa.binary())]
    return pa.schema(fields, metadata={"vitprof": json.dumps(dict(header))} if header else None)


# what programs left


@dataclass
class Imported:
    """What became of the files that were left."""

    lines: list[str] = field(default_factory=list)
    """Lines for the user."""
    waiting: set[int] = field(default_factory=set)
    """Ids of runs that still have data in files."""


def import_left(
    store: RunStore,
    sum_up: SumUp,
    *,
    within_s: float = IMPORT_S,
    clock: Callable[[], float] = time.monotonic,
) -> Imported:
    """Imports the files that programs which have ended left for this store, and removes them.

    Reads only files of this user that name this store. A damaged file is read up to the damage and set aside. What the
    store does not take, or not within `within_s` seconds, is left for the next time. `sum_up` is called for each run
    once its steps are stored.
    """
    outcome, until = Imported(), clock() + within_s
    left = _left(store, outcome)
    try:
        for run_id in sorted(left):
            _Import(store, left[run_id], outcome).run(sum_up, lambda: clock() > until)
            del left[run_id]
    except StoreAwayError:
        pass
    finally:
        for run_id, files in left.items():
            outcome.waiting.add(run_id)
            for file, _ in files:
                file.close()
    return outcome


_Files = list[tuple[SpoolFile, dict[str, Any]]]
"""Files of one run with their headers, in their order."""


def _left(store: RunStore, outcome: Imported) -> dict[int, _Files]:
    """Returns the files that were left for this store, open, by run."""
    found: dict[int, _Files] = {}
    for path in (path for place in places_of(store) for path in sorted(place.glob(f"{PREFIX}*"))):
        if (file := SpoolFile.left(path)) is None:
            continue
        if not file.size:  # its program was killed just after it made the file
            file.delete()
            continue
        try:
            header = file.header()
        except ValueError as error:
            line = f"{path}, which waited for the run store, cannot be read ({error}): {file.set_aside()}"
            outcome.lines.append(line)
            continue
        if header["store"] == store.identity:
            found.setdefault(header["run"]["id"], []).append((file, header))
        else:
            file.close()
    for files in found.values():
        files.sort(key=lambda each: int(each[1]["part"]))
    return found


class _Import:
    """The files that were left of one run, on their way into the store."""

    def __init__(self, store: RunStore, files: _Files, outcome: Imported) -> None:
        self._store, self._outcome = store, outcome
        self._files, header = [file for file, _ in files], files[0][1]
        self._run, self._why = header["run"], header["why"]
        self._values: dict[str, Any] = {}
        self._n_steps = 0

    def run(self, sum_up: SumUp, late: Callable[[], bool]) -> None:
        """Imports all files, or as much of them as can be read. Raises `StoreAwayError`; the files are then open."""
        run_id, say = self._run["id"], self._outcome.lines.append
        names = ", ".join(str(file.path) for file in self._files)
        if not self._store.has_run(self._run):
            for file in self._files:
                file.delete()
            say(f"run {run_id} is not in the store any more: what waited for it ({names}) was deleted")
            return
        damage: dict[SpoolFile, str] = {}
        for file in self._files:
            try:
                in_time = self._read(file, late)
            except StoreAwayError:
                raise
            except (ValueError, StoreError) as error:
                damage[file] = one_line(error) if isinstance(error, VitprofError) else str(error)
                continue
            if not in_time:
                self._outcome.waiting.add(run_id)
                say(f"run {run_id}: what waited for the run store ({names}) is large; the next start imports the rest")
                for each in self._files:
                    each.close()
                return
        self._end("; ".join(damage.values()), sum_up)
        if self._n_steps or not damage:
            say(f"run {run_id}: {self._n_steps:,} steps that waited for the run store ({names}) were imported")
        for file in self._files:
            if why := damage.get(file):
                say(f"run {run_id}: {file.path} could not be read to its end ({why}): {file.set_aside()}")
            else:
                file.delete()

    def _read(self, file: SpoolFile, late: Callable[[], bool]) -> bool:
        """Writes the rows of a file; returns whether it reached the end in time."""
        while entries := file.read():
            if late():
                return False
            self._values |= entries.values
            self._store.record(self._run["id"], entries.chunks, again=True)
            self._n_steps += sum(chunk.rows for chunk in entries.chunks if chunk.kind == "steps")
        return True

    def _end(self, damage: str, sum_up: SumUp) -> None:
        """Writes the last columns of the run and sums it up."""
        run_id, values = self._run["id"], self._values
        ended_s = values.pop("t_end_s", None)
        notices = list(values.get("notices") or self._store.run(run_id).notices)
        if ended_s is None:
            notices.append(
                f"the run store could not be written ({self._why}) when the program ended; what was measured until "
                "then was imported later"
            )
        if damage:
            notices.append(f"a part of what waited for the run store is lost: {damage}")
        self._store.update_run(run_id, **(values | {"notices": notices}))
        ended = ended_s is not None and values.get("status") not in LIVE_STATUSES
        sum_up(run_id, float(ended_s) if ended else None)
