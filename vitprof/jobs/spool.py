"""Files of what waits for an unavailable store: written by `outbox`, and imported at the start of the
next program.

A file is an Arrow IPC stream: its schema, whose metadata says which run the file belongs to, then
entries, record batches of one row. An entry is a chunk of steps or telemetry as the store keeps it,
or columns of the run as JSON, with its CRC-32. The program that writes a file holds a lock on it; a
file without a lock was left by a program that ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import stat
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import Field, TypeAdapter, ValidationError

from vitprof.errors import StoreAwayError, StoreError, VitprofError, one_line
from vitprof.home import home
from vitprof.recording.codec import arrow
from vitprof.recording.columns import LIVE_STATUSES
from vitprof.store import RunStore, StoredRun
from vitprof.store.chunks import NUMBER, Kind, loaded
from vitprof.store.database import MAX_ID
from vitprof.store.run_store import plain_columns

PREFIX = "vitprof-spool-"
DAMAGED = "vitprof-damaged-"
"""Prefix of a file that could not be read to its end; it is not read again."""
MAGIC = "vitprof spool 2"
"""What every file says of itself; the number changes with the format."""
VALUES = "values"
"""The kind of an entry with columns of the run."""
IMPORT_S = 20.0
"""How long (s) a starting program may spend on importing files; the rest is imported at the next start."""


Number = Annotated[int, Field(ge=0, le=MAX_ID)]


@dataclass(frozen=True)
class Owner:
    """The columns that tell a run from every other, even from one with its number in a store that was
    made anew.
    """

    id: Number
    created_utc: str
    owner_host: str
    owner_pid: Number
    owner_started: float


@dataclass(frozen=True)
class Header:
    """What the metadata of a file's schema say."""

    store: str
    run: Owner
    why: str
    part: Number


HEADER = TypeAdapter(Header)


class SpoolFile:
    """A file that is open, and locked by this process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size
        self.header: dict[str, Any] = {}
        """What its schema says, once it was read."""

    @classmethod
    def create(cls, directory: Path, header: Mapping[str, Any]) -> SpoolFile:
        """Returns a new file that only this user can read. Raises `OSError`."""
        # again only where another program took it for one that was left, before it was locked
        while True:
            descriptor, name = tempfile.mkstemp(prefix=PREFIX, dir=directory)
            file = cls(Path(name), descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if os.fstat(descriptor).st_nlink:
                    file._write(_schema(header).serialize())
                    return file
            except OSError:
                file.delete()
                raise
            file.close()

    @classmethod
    def open_orphan(cls, path: Path) -> SpoolFile | None:
        """Opens and locks a file that a program left; returns None where it is in use or not this
        user's: the temporary folder is everybody's.
        """
        with contextlib.suppress(OSError), contextlib.ExitStack() as unless_ours:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            unless_ours.callback(os.close, descriptor)
            about = os.fstat(descriptor)
            is_own = about.st_uid == os.geteuid() and about.st_nlink == 1
            if is_own and stat.S_ISREG(about.st_mode):
                # fails where its program still holds the lock
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_nlink:
                    unless_ours.pop_all()
                    return cls(path, descriptor)
        return None

    def append(self, kind: str, payload: bytes) -> None:
        """Adds a whole entry, or nothing. Raises `OSError`."""
        entry = {"kind": kind, "crc": zlib.crc32(payload), "payload": payload}
        self._write(arrow().RecordBatch.from_pylist([entry], _schema()).serialize())

    def _write(self, buffer: Any) -> None:
        data = memoryview(buffer)
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(self._descriptor, data[written:], self.size + written)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self.size)
            raise
        self.size += len(data)

    def read_header(self) -> None:
        """Fills `header`. Raises `ValueError` for a file that is damaged, or of another version."""
        header = json.loads((self._stream().schema.metadata or {}).get(b"vitprof", b"{}"))
        if not isinstance(header, dict) or header.get("magic") != MAGIC:
            raise ValueError("another version of vitprof wrote it")
        try:
            HEADER.validate_python(header)
        except ValidationError:
            raise ValueError("it is damaged") from None
        self.header = header

    def entries(self) -> Iterator[tuple[str, bytes]]:
        """Yields kind and payload of each entry, up to a damaged one. Raises `ValueError` for that."""
        stream = self._stream()
        while True:
            try:
                (entry,) = stream.read_next_batch().to_pylist()
            except StopIteration:
                return
            except OSError as error:
                raise ValueError("its end is missing") from error
            except arrow().ArrowException as error:
                raise ValueError("it is damaged") from error
            payload = entry["payload"]
            if not isinstance(payload, bytes) or zlib.crc32(payload) != entry["crc"]:
                raise ValueError("it is damaged")
            yield entry["kind"], payload

    def _stream(self) -> Any:
        pa = arrow()
        try:
            return pa.ipc.open_stream(
                mmap.mmap(self._descriptor, self.size, access=mmap.ACCESS_READ)
            )
        except (pa.ArrowException, OSError, ValueError) as error:
            raise ValueError("it is damaged") from error

    def close(self) -> None:
        os.close(self._descriptor)

    def delete(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
        self.close()

    def set_aside(self) -> str:
        """Renames the file so that it is not imported again, and closes it. Returns that in words."""
        aside = self.path.with_name(DAMAGED + self.path.name.removeprefix(PREFIX))
        with contextlib.suppress(OSError):
            self.path.rename(aside)
        self.close()
        return f"it is now {aside}, and is not read again"


class Spool:
    """The files of one run: in the first of the directories `places` that has room, then in the next."""

    def __init__(self, store: RunStore, run: StoredRun, why: str) -> None:
        """`why` says why the store could not be written."""
        owner = {field.name: getattr(run, field.name) for field in fields(Owner)}
        self._header = {"magic": MAGIC, "store": store.identity, "run": owner, "why": why}
        self._places = places_of(store)
        self.files: list[SpoolFile] = []
        self.error = ""
        """Why an entry is in no file; "" where all are."""

    def append(self, kind: str, payload: bytes) -> bool:
        """Adds an entry, to a new file where the last one has no room. Returns whether a file took it."""
        error = "no directory is left"
        while True:
            try:
                if self.files:
                    self.files[-1].append(kind, payload)
                    return True
            except OSError as refused:
                error = refused.strerror or str(refused)
            if not self._places:
                self.error = f"no file could be written ({error})"
                return False
            try:
                place = self._places.pop(0)
                part = len(self.files)
                self.files.append(SpoolFile.create(place, {**self._header, "part": part}))
            except OSError as refused:
                error = refused.strerror or str(refused)

    def append_values(self, values: Mapping[str, Any]) -> None:
        self.append(VALUES, json.dumps(plain_columns(values)).encode())

    def delete(self) -> None:
        """Removes the files, once the store has everything."""
        while self.files:
            self.files.pop().delete()

    def leave(self) -> str:
        """Closes the files, leaves them for the next program and returns their names."""
        names = _names(self.files)
        while self.files:
            self.files.pop().close()
        return names


def places_of(store: RunStore) -> list[Path]:
    """Returns the directories of this store's files: its own, then the temporary one."""
    own = store.file.parent if store.file is not None else home()
    return list(dict.fromkeys([own, Path(tempfile.gettempdir())]))


def _schema(header: Mapping[str, Any] | None = None) -> Any:
    pa = arrow()
    fields = [("kind", pa.string()), ("crc", pa.uint32()), ("payload", pa.binary())]
    return pa.schema(fields, metadata=header and {"vitprof": json.dumps(header)})


def import_left(
    store: RunStore,
    sum_up: Callable[[int, float | None], None],
    *,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[list[str], set[int]]:
    """Imports the files that programs which have ended left for this store, and removes them.

    Reads only files of this user that name this store. A damaged file is read up to the damage and
    set aside. What the store does not take, or not within `IMPORT_S`, is left for the next time.
    `sum_up` is called for each run once its steps are stored, with its id and when it ended on its
    clock, None where that was not recorded. Returns lines for the user, and the ids of runs that still
    have data in files.
    """
    lines = list[str]()
    until = clock() + IMPORT_S
    remaining = _orphaned(store, lines)
    try:
        for run_id in sorted(remaining):
            lines += _import(store, remaining[run_id], lambda: clock() > until, sum_up)
            del remaining[run_id]
    except StoreAwayError:
        pass
    except TimeoutError:
        what = f"what waited for the run store ({_names(remaining[run_id])})"
        lines.append(f"run {run_id}: {what} is large; the next start imports the rest")
    finally:
        for files in remaining.values():
            for file in files:
                file.close()
    return lines, set(remaining)


def _orphaned(store: RunStore, lines: list[str]) -> dict[int, list[SpoolFile]]:
    """Returns the files that ended programs left for this store, by run, in the order they were
    written; adds to `lines` what is wrong with others.
    """
    of_run: dict[int, list[SpoolFile]] = {}
    paths = (path for place in places_of(store) for path in sorted(place.glob(f"{PREFIX}*")))
    for path in paths:
        file = SpoolFile.open_orphan(path)
        if file is None:
            continue
        if not file.size:  # its program was killed just after it made the file
            file.delete()
            continue
        try:
            file.read_header()
        except ValueError as error:
            what = f"{path}, which waited for the run store"
            lines.append(f"{what}, cannot be read ({error}): {file.set_aside()}")
            continue
        if file.header["store"] == store.identity:
            of_run.setdefault(file.header["run"]["id"], []).append(file)
        else:
            file.close()
    for files in of_run.values():
        files.sort(key=lambda file: int(file.header["part"]))
    return of_run


def _import(
    store: RunStore,
    files: list[SpoolFile],
    late: Callable[[], bool],
    sum_up: Callable[[int, float | None], None],
) -> list[str]:
    """Imports what can be read of a run's files, and returns lines for the user.

    Raises `StoreAwayError`, and `TimeoutError` once `late` returns true.
    """
    names = _names(files)
    header = files[0].header
    run_id = header["run"]["id"]
    why = header["why"]
    if not store.has_run(header["run"]):
        for file in files:
            file.delete()
        gone = f"run {run_id} is not in the store any more"
        return [f"{gone}: what waited for it ({names}) was deleted"]
    n_steps = 0
    values = dict[str, Any]()
    damage = dict[SpoolFile, str]()
    for file in files:
        try:
            for n in _written(store, run_id, file, values, late):
                n_steps += n
        except (StoreAwayError, TimeoutError):
            raise
        except (ArithmeticError, LookupError, TypeError, ValueError, StoreError) as error:
            damage[file] = one_line(error) if isinstance(error, VitprofError) else str(error)
    ended_s = values.pop("t_end_s", None)
    notices = list(values.get("notices") or store.run(run_id).notices)
    if ended_s is None:
        notices.append(
            f"the run store could not be written ({why}) when the program ended; what was measured until then was "
            "imported later"
        )
    if damage:
        reasons = "; ".join(damage.values())
        notices.append(f"a part of what waited for the run store is lost: {reasons}")
    store.update_run(run_id, **(values | {"notices": notices}))
    # a run that began again after its "end" is live
    has_ended = ended_s is not None and values.get("status") not in LIVE_STATUSES
    sum_up(run_id, float(ended_s) if has_ended else None)
    lines = []
    if n_steps or not damage:
        imported = f"{n_steps:,} steps that waited for the run store ({names}) were imported"
        lines.append(f"run {run_id}: {imported}")
    for file in files:
        if file in damage:
            aside = file.set_aside()
            problem = f"{file.path} could not be read to its end ({damage[file]})"
            lines.append(f"run {run_id}: {problem}: {aside}")
        else:
            file.delete()
    return lines


def _names(files: list[SpoolFile]) -> str:
    return ", ".join(str(file.path) for file in files)


def _written(
    store: RunStore, run_id: int, file: SpoolFile, values: dict[str, Any], late: Callable[[], bool]
) -> Iterator[int]:
    """Writes the chunks of a file to the store and yields the number of steps in each; adds columns of
    the run to `values`. Raises as `_import` does, and `ValueError` and the like for what is damaged.
    """
    for kind, payload in file.entries():
        if late():
            raise TimeoutError
        if kind == VALUES:
            columns = json.loads(payload)
            store.check_values(run_id, columns)
            values |= columns
        elif kind in NUMBER:
            chunk = loaded(cast("Kind", kind), payload)
            store.record(run_id, [chunk], again=True)
            yield chunk.rows if kind == "steps" else 0
