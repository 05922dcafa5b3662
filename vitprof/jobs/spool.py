"""What a store that is away could not take yet, in a file: appended to while it is away, read when it is back.

A file is a row of frames: one byte for the kind, four for the length of the payload, four for its CRC-32 (little
endian), the payload. The first is the header, JSON that says whose it is. Then come steps and telemetry, C-ordered
float64 matrices (of telemetry with the number of the sample before its columns), and values, columns of the run as
JSON. Whoever writes a file holds a lock on it: whose lock can be had was left.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import stat
import struct
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vitprof.config import RunConfig
from vitprof.records import Phase

PREFIX = "vitprof-spool-"
DAMAGED = "vitprof-damaged-"
"""What a file is called that could not be read whole: nobody reads it again."""
MAGIC = "vitprof spool 1"
HEADER, STEPS, TELEMETRY, VALUES = b"H", b"S", b"T", b"V"
FRAME = struct.Struct("<cII")
MOST_BYTES = 256 << 20
"""Of all files of a run: over a million steps."""
MOST_FRAME_BYTES = 64 << 20


class NoRoom(Exception):
    """A frame that no file can take; the message says why."""


class SpoolFile:
    """One file that is open, and locked by this process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self._descriptor = path, descriptor
        self.size = os.fstat(descriptor).st_size
        self._read = 0

    @classmethod
    def create(cls, directory: Path) -> SpoolFile:
        """Returns a new file, which only this user can read. Raises `OSError`."""
        while True:  # again only where somebody took it for one that was left, before it was locked
            descriptor, name = tempfile.mkstemp(prefix=PREFIX, dir=directory)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if os.fstat(descriptor).st_nlink:
                    return cls(Path(name), descriptor)
            except OSError:
                os.close(descriptor)
                raise
            os.close(descriptor)

    @classmethod
    def left(cls, path: Path) -> SpoolFile | None:
        """Returns a file that a program left; None for one that is in use, and for what is not ours."""
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
        except OSError:  # its owner lives
            pass
        os.close(descriptor)
        return None

    def append(self, kind: bytes, payload: bytes) -> None:
        """Adds a frame: the whole of it, or nothing. Raises `OSError`."""
        frame = FRAME.pack(kind, len(payload), zlib.crc32(payload)) + payload
        try:
            written = 0
            while written < len(frame):
                written += os.pwrite(self._descriptor, frame[written:], self.size + written)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self.size)
            raise
        self.size += len(frame)

    def next_frame(self) -> tuple[bytes, bytes] | None:
        """Returns kind and payload of the next frame; None at the end. Raises `ValueError` for a part of a frame."""
        if self._read >= self.size:
            return None
        head = os.pread(self._descriptor, FRAME.size, self._read)
        if len(head) < FRAME.size:
            raise ValueError("its end is missing")
        kind, length, crc = FRAME.unpack(head)
        if kind not in (HEADER, STEPS, TELEMETRY, VALUES) or length > MOST_FRAME_BYTES:
            raise ValueError("it is damaged")
        if self._read + FRAME.size + length > self.size:
            raise ValueError("its end is missing")
        payload = os.pread(self._descriptor, length, self._read + FRAME.size)
        if zlib.crc32(payload) != crc:
            raise ValueError("it is damaged")
        self._read += FRAME.size + length
        return kind, payload

    def frames(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields the frames that were not read before. Raises `ValueError`, `OSError`."""
        while (frame := self.next_frame()) is not None:
            yield frame

    def close(self) -> None:
        """Lets go of it: whoever looks for what was left finds it."""
        os.close(self._descriptor)

    def delete(self) -> None:
        """Removes it, and lets go of it."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
        self.close()

    def set_aside(self) -> Path:
        """Gives it a name under which nobody takes it for one that was left, and lets go of it; that name."""
        aside = self.path.with_name(DAMAGED + self.path.name.removeprefix(PREFIX))
        with contextlib.suppress(OSError):
            self.path.rename(aside)
        self.close()
        return aside


class Spool:
    """The files of one run, in the first of `places` that has room, then in the next."""

    def __init__(self, header: Mapping[str, Any], places: Sequence[Path], most_bytes: int = MOST_BYTES) -> None:
        self._header, self._places, self._most_bytes = header, list(places), most_bytes
        self._files: list[SpoolFile] = []

    @property
    def paths(self) -> list[Path]:
        return [file.path for file in self._files]

    def append(self, kind: bytes, payload: bytes) -> None:
        """Adds a frame. Raises `NoRoom`."""
        if sum(file.size for file in self._files) + len(payload) > self._most_bytes:
            raise NoRoom(f"the {self._most_bytes >> 20} MB that may wait for it were full")
        why = ""
        while True:
            try:
                if not self._files:
                    self._begin()
                self._files[-1].append(kind, payload)
                return
            except OSError as error:
                why = error.strerror or str(error)
            if not self._places:
                raise NoRoom(f"no file could take what waits ({why})")
            with contextlib.suppress(OSError):
                self._begin()

    def _begin(self) -> None:
        """Begins the next file. Raises `OSError`."""
        if not self._places:
            raise OSError("no place is left")
        file = SpoolFile.create(self._places.pop(0))
        try:
            file.append(HEADER, json.dumps({**self._header, "part": len(self._files)}).encode())
        except OSError:
            file.delete()
            raise
        self._files.append(file)

    def unread(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields the frames that were not read before. Raises `ValueError`, `OSError`."""
        for file in self._files:
            yield from file.frames()

    def delete(self) -> None:
        """Removes the files: the store has it all."""
        for file in self._files:
            file.delete()
        self._files.clear()

    def leave(self) -> None:
        """Lets go of the files: they are for whoever comes next."""
        for file in self._files:
            file.close()
        self._files.clear()


def values_frame(values: Mapping[str, Any]) -> bytes:
    """Returns columns of a run as they are kept in a file."""
    plain = dict(values)
    if "config" in plain:
        plain["config"] = plain["config"].to_dict()
    if "phases" in plain:
        plain["phases"] = [dataclasses.astuple(phase) for phase in plain["phases"]]
    return json.dumps(plain).encode()


def values_of(payload: bytes) -> dict[str, Any]:
    """Returns the inverse of `values_frame`. Raises `ValueError`, `TypeError`, `ConfigError`."""
    values: dict[str, Any] = json.loads(payload)
    if "config" in values:
        values["config"] = RunConfig.from_dict(values["config"])
    if "phases" in values:
        values["phases"] = [Phase(*phase) for phase in values["phases"]]
    return values
