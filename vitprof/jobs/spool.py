"""Files for what a store that is away cannot take: appended to while it is away, read when it is back.

A file is a sequence of frames: one byte for the kind, four for the length of the payload, four for its CRC-32 (little
endian), then the payload. The first frame is the header, JSON that says which run the file belongs to. Then come steps
and telemetry, C-ordered float64 matrices (telemetry with the sample's number before its columns), and values, columns
of the run as JSON. The program that writes a file holds a lock on it; a file without a lock was left behind.
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
from vitprof.recording.columns import Phase

PREFIX = "vitprof-spool-"
DAMAGED = "vitprof-damaged-"
"""Prefix of a file that could not be read to its end; it is not read again."""
MAGIC = "vitprof spool 1"
HEADER, STEPS, TELEMETRY, VALUES = b"H", b"S", b"T", b"V"
FRAME = struct.Struct("<cII")
MOST_BYTES = 256 << 20
"""Most bytes in all files of a run: over a million steps."""
MOST_FRAME_BYTES = 64 << 20


class NoRoom(Exception):
    """Raised where no file can take a frame; the message says why."""


class SpoolFile:
    """A file that is open, and locked by this process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self._descriptor = path, descriptor
        self.size = os.fstat(descriptor).st_size
        self._read = 0

    @classmethod
    def create(cls, directory: Path) -> SpoolFile:
        """Returns a new file that only this user can read. Raises `OSError`."""
        while True:  # again only where another program took it for one that was left, before it was locked
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

    def append(self, kind: bytes, payload: bytes) -> None:
        """Adds a whole frame, or nothing. Raises `OSError`."""
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
        """Returns the next frame's kind and payload; None at the end. Raises `ValueError` if it is cut off or damaged,
        and `OSError`.
        """
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
        """Closes and unlocks the file; a program that starts later finds it."""
        os.close(self._descriptor)

    def delete(self) -> None:
        """Removes and closes the file."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
        self.close()

    def set_aside(self) -> Path:
        """Renames the file so that it is not taken in again, and closes it. Returns the new path."""
        aside = self.path.with_name(DAMAGED + self.path.name.removeprefix(PREFIX))
        with contextlib.suppress(OSError):
            self.path.rename(aside)
        self.close()
        return aside


class Spool:
    """The files of one run: in the first of the directories `places` that has room, then in the next."""

    def __init__(self, header: Mapping[str, Any], places: Sequence[Path], most_bytes: int = MOST_BYTES) -> None:
        self._header, self._places, self._most_bytes = header, list(places), most_bytes
        self._files: list[SpoolFile] = []

    @property
    def paths(self) -> list[Path]:
        """Returns the paths of its files."""
        return [file.path for file in self._files]

    def append(self, kind: bytes, payload: bytes) -> None:
        """Adds a frame, to a new file where the last one has no room. Raises `NoRoom`."""
        if sum(file.size for file in self._files) + len(payload) > self._most_bytes:
            raise NoRoom(f"the {self._most_bytes >> 20} MB for waiting data were full")
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
                raise NoRoom(f"no file could be written ({why})")
            with contextlib.suppress(OSError):
                self._begin()

    def _begin(self) -> None:
        """Begins the next file. Raises `OSError`."""
        if not self._places:
            raise OSError("no directory is left")
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
        """Removes the files, once the store has everything."""
        for file in self._files:
            file.delete()
        self._files.clear()

    def leave(self) -> None:
        """Closes the files and leaves them for the next program."""
        for file in self._files:
            file.close()
        self._files.clear()


def values_frame(values: Mapping[str, Any]) -> bytes:
    """Returns columns of a run as the payload of a frame."""
    plain = dict(values)
    if "config" in plain:
        plain["config"] = plain["config"].to_dict()
    if "phases" in plain:
        plain["phases"] = [dataclasses.astuple(phase) for phase in plain["phases"]]
    return json.dumps(plain).encode()


def values_of(payload: bytes) -> dict[str, Any]:
    """Returns the columns of a run from a frame's payload: the inverse of `values_frame`. Raises `ValueError`,
    `TypeError`, `ConfigError`.
    """
    values: dict[str, Any] = json.loads(payload)
    if "config" in values:
        values["config"] = RunConfig.from_dict(values["config"])
    if "phases" in values:
        values["phases"] = [Phase(*phase) for phase in values["phases"]]
    return values
