"""What the store has of a run that is being recorded, kept beside it until the run ends.

It is all that remains of the run where the store's file is overwritten in place, or damaged.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from vitprof.store.chunks import NUMBER, Chunk, Kind, merge
from vitprof.store.new_run import plain_columns

MOST_BYTES = 256 << 20
"""Most bytes of a run that are kept: 5 million steps."""
MERGED_AT_ONCE = 128
"""Chunks in memory that are made into fewer ones, of a quarter of the bytes, and go into a file."""


class _Place(NamedTuple):
    """Where a chunk is in the file."""

    kind: str
    at: int
    n_bytes: int


class WrittenRun:
    """Columns and rows of a run. Belongs to the thread that writes to the store."""

    def __init__(self, folder: Path) -> None:
        """`folder`: for a file without a name, which is gone once this process is."""
        self.columns: dict[str, Any] | None = None
        """The run's columns as they are stored; None while they are not known."""
        self.lost: dict[Kind, int] = dict.fromkeys(NUMBER, 0)
        """Rows that are not kept, by kind."""
        self.why_lost = ""
        self._folder = folder
        self._n_rows: dict[Kind, int] = dict.fromkeys(NUMBER, 0)
        """Rows that were added, by kind."""
        self._pending: list[Chunk] = []
        self._file: IO[bytes] | None = None
        self._places: list[_Place] = []

    def add(self, chunks: Sequence[Chunk], values: Mapping[str, Any]) -> None:
        """Adds what the store has taken. Raises nothing: what cannot be kept is counted."""
        if self.columns is not None:
            self.columns |= plain_columns(values)
        self._pending += chunks
        for chunk in chunks:
            self._n_rows[chunk.kind] += chunk.rows
        if len(self._pending) < MERGED_AT_ONCE:
            return
        pending = self._pending
        self._pending = []
        for kind in NUMBER:
            of_kind = [chunk for chunk in pending if chunk.kind == kind]
            if of_kind:
                self._put(kind, of_kind)

    def _put(self, kind: Kind, chunks: Sequence[Chunk]) -> None:
        n_rows = sum(chunk.rows for chunk in chunks)
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
            for merged in merge(chunks):
                at = self._file.seek(0, 2)
                if at + len(merged.data) > MOST_BYTES:
                    raise OSError(f"{MOST_BYTES >> 20} MB of a run are kept next to the store")
                self._file.write(merged.data)
                self._places.append(_Place(kind, at, len(merged.data)))
                n_rows -= merged.rows
            self._file.flush()
        except Exception as error:
            # A full disk, or a defect of ours: the run is in the store, and goes on.
            self.lost[kind] += n_rows
            self.why_lost = str(error)

    def rows(self) -> Iterator[tuple[str, bytes]]:
        """Yields kind and bytes of each chunk. Raises `OSError`."""
        for place in self._places:
            assert self._file is not None
            self._file.seek(place.at)
            yield place.kind, self._file.read(place.n_bytes)
        for chunk in self._pending:
            yield chunk.kind, chunk.data

    def drop(self) -> None:
        """Forgets the rows, once the run is complete in the store. It may still go on."""
        self.lost = self._n_rows.copy()
        self.why_lost = "the run had ended, and was in the store alone"
        if self._file is not None:
            self._file.close()
        self._file = None
        self._places = []
        self._pending = []
