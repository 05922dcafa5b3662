"""Files of what waits for an unavailable store: written by `outbox`, and imported at the start of the
next program.

A file is an Arrow IPC stream: its schema, whose metadata says which run the file belongs to, then
entries, record batches of one row. An entry is a chunk of steps or telemetry as the store keeps it,
or columns of the run as JSON, with its CRC-32. The program that writes a file holds a lock on it; a
file without a lock was left by a program that ended.
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
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import Field, TypeAdapter, ValidationError

from vitprof import formats
from vitprof.errors import StoreAwayError, StoreError, VitprofError, one_line
from vitprof.home import home
from vitprof.recording.codec import arrow
from vitprof.recording.columns import LIVE_STATUSES
from vitprof.store import RunStore, StoredRun
from vitprof.store.chunks import NUMBER, Kind, loaded
from vitprof.store.database import MAX_ID, NO_ANSWER
from vitprof.store.new_run import NewRun, plain_columns

PREFIX = "vitprof-spool-"
DAMAGED = "vitprof-damaged-"
"""Prefix of a file that could not be read to its end; it is not read again."""
MAGIC = "vitprof spool 3"
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
    """0 where the store had not taken the run when the file was begun."""
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
    whole: bool
    """Whether the first entry of the first part has all columns of a run, with which it can be added."""


HEADER = TypeAdapter(Header)


class SpoolFile:
    """A file that is open, and locked by this process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size
        self._header: Header | None = None

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

    @property
    def header(self) -> Header:
        """Returns what its schema says, once it was read."""
        assert self._header is not None
        return self._header

    def read_header(self, stores: Collection[str]) -> bool:
        """Reads `header` if the file is for one of these `stores`; returns whether it is.

        Raises `ValueError` for a file that is damaged, and for one of these stores that another version
        wrote.
        """
        header = json.loads((self._stream().schema.metadata or {}).get(b"vitprof", b"{}"))
        if not isinstance(header, dict) or header.get("store") not in stores:
            return False
        if header.get("magic") != MAGIC:
            raise ValueError("another version of vitprof wrote it")
        try:
            self._header = HEADER.validate_python(header)
        except ValidationError:
            raise ValueError("it is damaged") from None
        return True

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
                mmap.mmap(self._descriptor, self.size, access=mmap.ACCESS_READ),
                options=pa.ipc.IpcReadOptions(use_threads=False),
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

    def __init__(
        self, store: RunStore, run: StoredRun, why: str, *, new: NewRun | None = None
    ) -> None:
        """`why` says why the store could not be written. `new`: the run, where the store does not have it."""
        owner = {each.name: getattr(run, each.name) for each in fields(Owner)}
        self._header: dict[str, Any] = {"magic": MAGIC, "store": store.identity, "why": why}
        self._header |= {"run": owner, "whole": new is not None}
        # a file beside the store would hang as that does
        self._places = places_of(store, with_own=store.file is None or why != NO_ANSWER)
        self.files: list[SpoolFile] = []
        self.error = ""
        """Why an entry is in no file; "" where all are."""
        if new is not None:
            self.append_values(new.columns)

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


def places_of(store: RunStore, *, with_own: bool = True) -> list[Path]:
    """Returns the directories of this store's files: its own, then the temporary one."""
    places = [Path(tempfile.gettempdir())]
    if with_own:
        places.insert(0, store.file.parent if store.file is not None else home())
    return list(dict.fromkeys(places))


def _schema(header: Mapping[str, Any] | None = None) -> Any:
    pa = arrow()
    fields = [("kind", pa.string()), ("crc", pa.uint32()), ("payload", pa.binary())]
    return pa.schema(fields, metadata=header and {"vitprof": json.dumps(header)})


@dataclass
class _Taken:
    """What was read of a run's files."""

    n_steps: int = 0
    values: dict[str, Any] = field(default_factory=dict)
    """Columns of the run, which are not written yet."""
    damage: dict[SpoolFile, str] = field(default_factory=dict)
    """Files that could not be read to their end, and why."""


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
    waiting = set[int]()
    try:
        for owner in sorted(remaining, key=dataclasses.astuple):
            lines += _import(store, remaining[owner], lambda: clock() > until, sum_up)
            del remaining[owner]
        return lines, waiting
    except StoreAwayError:
        pass
    except TimeoutError:
        what = f"what waited for the run store ({_names(remaining[owner])})"
        lines.append(f"{_which(owner)}: {what} is large; the next start imports the rest")
    finally:
        for files in remaining.values():
            for file in files:
                file.close()
    with contextlib.suppress(StoreAwayError):
        ids = [store.id_of(dataclasses.asdict(owner)) for owner in remaining]
        waiting = {run_id for run_id in ids if run_id is not None}
    return lines, waiting


def _orphaned(store: RunStore, lines: list[str]) -> dict[Owner, list[SpoolFile]]:
    """Returns the files that ended programs left for this store, by run, in the order they were
    written; adds to `lines` what is wrong with others.
    """
    of_run: dict[Owner, list[SpoolFile]] = {}
    paths = (path for place in places_of(store) for path in sorted(place.glob(f"{PREFIX}*")))
    for path in paths:
        file = SpoolFile.open_orphan(path)
        if file is None:
            continue
        if not file.size:  # its program was killed just after it made the file
            file.delete()
            continue
        try:
            is_ours = file.read_header(store.identities)
        except ValueError as error:
            what = f"{path}, which waited for the run store"
            lines.append(f"{what}, cannot be read ({error}): {file.set_aside()}")
            continue
        if is_ours:
            of_run.setdefault(file.header.run, []).append(file)
        else:
            file.close()
    for files in of_run.values():
        files.sort(key=lambda file: file.header.part)
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
    why = files[0].header.why
    try:
        run_id = _run_of(store, files[0])
    except ValueError as error:
        what = f"{names}, which waited for the run store, cannot be read ({error})"
        asides = [file.set_aside() for file in files]
        return [f"{what}: {asides[0]}"]
    if run_id is None:
        for file in files:
            file.delete()
        gone = f"{_which(files[0].header.run)} is not in the store any more"
        return [f"{gone}: what waited for it ({names}) was deleted"]
    taken = _taken(store, run_id, files, late)
    values = taken.values
    damage = taken.damage
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
    if taken.n_steps or not damage:
        were = "was" if taken.n_steps == 1 else "were"
        steps = formats.count(taken.n_steps, "step")
        imported = f"{steps} that waited for the run store ({names}) {were} imported"
        lines.append(f"run {run_id}: {imported}")
    for file in files:
        if file in damage:
            aside = file.set_aside()
            problem = f"{file.path} could not be read to its end ({damage[file]})"
            lines.append(f"run {run_id}: {problem}: {aside}")
        else:
            file.delete()
    return lines


def _taken(
    store: RunStore, run_id: int, files: list[SpoolFile], late: Callable[[], bool]
) -> _Taken:
    """Writes what can be read of a run's files to the store. Raises as `_import` does."""
    taken = _Taken()
    for file in files:
        try:
            for n in _written(store, run_id, file, taken.values, late):
                taken.n_steps += n
        except (StoreAwayError, TimeoutError):
            raise
        except (ArithmeticError, LookupError, TypeError, ValueError, StoreError) as error:
            why = one_line(error) if isinstance(error, VitprofError) else str(error)
            taken.damage[file] = why
    return taken


def _run_of(store: RunStore, first: SpoolFile) -> int | None:
    """Returns the id of the run that a file belongs to, which is added where no store has it yet.

    None: it was deleted. Raises `ValueError` for a file that does not say enough of it.
    """
    known = store.id_of(dataclasses.asdict(first.header.run))
    if known is not None:
        return known if known > 0 else None
    if not first.header.whole:
        return None
    kind, columns = next(first.entries(), ("", b""))
    if kind != VALUES:
        raise ValueError("it is damaged")
    return store.add_new(NewRun.read(json.loads(columns)))


def _which(run: Owner) -> str:
    return f"run {run.id}" if run.id else f"a run of {run.created_utc}"


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
