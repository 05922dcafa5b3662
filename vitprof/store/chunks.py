"""Chunks: rows of a run's steps or telemetry as the store and the spool files hold them, and their table
in the store.

While a run lives, each write makes a chunk: an Arrow IPC stream of float64 columns, cheap to make
(0.15 ms for 300 steps). Later many of them become one Parquet chunk (zstd), a quarter of the size.
There

- times in seconds (`*_s`, moments and durations) are whole nanoseconds, `duration[ns]`, delta packed:
  the resolution of the clocks that they were read from. That takes less than float32 (47 bytes a
  step, not 61), and moments stay exact;
- columns of whole numbers are int64, delta packed: a bit or two for a row where they hardly change;
- everything else, such as the loss, keeps its 64 bits, with the bytes of the same place together
  (byte stream split).

A column without any value is omitted; a reader gets NaN for it, as for one that the writer did not know. So a new
column of steps needs no migration, and one that only another version knows is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import sqlalchemy as sa

from vitprof.analysis.arrays import Floats, Series
from vitprof.errors import StoreError
from vitprof.recording.codec import array, arrow, floats
from vitprof.recording.columns import STEP_COLUMNS, TELEMETRY_COLUMNS
from vitprof.store.database import Database, series

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["steps", "telemetry", "ranks"]
"""Steps of rank 0, telemetry, and steps of the other ranks of a distributed job."""
NUMBER: Mapping[Kind, str] = {"steps": "step", "telemetry": "seq", "ranks": "step"}
"""The column that numbers the rows, in ascending order."""
COLUMNS: Mapping[Kind, tuple[str, ...]] = {
    "steps": STEP_COLUMNS,
    "telemetry": ("seq", *TELEMETRY_COLUMNS),
    "ranks": STEP_COLUMNS,
}
MOST_ROWS = 32_768
"""Most rows of a Parquet chunk: 8 MB as float64, 1.5 MB as it is stored."""
PARQUET = b"PAR1"
"""First bytes of a Parquet file."""
LARGEST_S = 9e9
"""The largest time (s) that is stored as nanoseconds: int64 ends at 9.2e9 s."""
EXACT = 2.0**53
"""Below it every whole number is a float64."""
Names = Sequence[str] | None
"""Columns by name; None: all of them."""


@dataclass(frozen=True)
class Chunk:
    """Rows with ascending numbers, of one rank."""

    kind: Kind
    rank: int
    first: int
    last: int
    rows: int
    data: bytes
    """An Arrow IPC stream or a Parquet file."""

    @property
    def merged(self) -> bool:
        """Returns whether it is a Parquet file."""
        return self.data.startswith(PARQUET)

    @property
    def names(self) -> list[str]:
        """Returns the names of the columns that it has values of."""
        pa = arrow()
        source = pa.BufferReader(self.data)
        try:
            if self.merged:
                return list(pa.parquet.read_schema(source).names)
            return list(pa.ipc.open_stream(source).schema.names)
        except (pa.ArrowException, OSError) as error:
            raise StoreError(f"damaged {self.kind}: {error}") from error

    def read(self, names: Names = None) -> dict[str, Floats]:
        """Returns those of the columns `names` (default: all) that it has values of.

        Raises `ValueError` for damaged data.
        """
        table = self.table(names)
        return {
            name: floats(table[name])
            for name in table.column_names
            if names is None or name in names
        }

    def table(self, names: Names = None) -> pa.Table:
        """Returns the chunk's columns, at least those of `names`, as an Arrow table. Raises `ValueError`.

        It starts no threads of Arrow's: a process that ended while one began was aborted
        (https://github.com/apache/arrow/issues/34314).
        """
        pa = arrow()
        try:
            if self.merged:
                file = pa.parquet.ParquetFile(pa.BufferReader(self.data))
                kept = names and [name for name in file.schema_arrow.names if name in names]
                return file.read(kept, use_threads=False)
            alone = pa.ipc.IpcReadOptions(use_threads=False)
            return pa.ipc.open_stream(self.data, options=alone).read_all()
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"damaged {self.kind}: {error}") from error


def chunks_of(kind: Kind, series: Series, *, merge: bool = False) -> Iterator[Chunk]:
    """Yields chunks of these rows, one for each rank; with `merge`, Parquet ones of at most `MOST_ROWS`."""
    if not len(series[NUMBER[kind]]):
        return
    # without the column, and where it is not known, all rows are rank 0's
    ranks = np.nan_to_num(series.get("rank", np.zeros(1)))
    for rank in np.unique(ranks):
        of_rank = series
        is_rank = ranks == rank
        if not is_rank.all():
            of_rank = {name: values[is_rank] for name, values in series.items()}
        of_rank = in_order(kind, of_rank)
        n = len(of_rank[NUMBER[kind]])
        at_once = MOST_ROWS if merge else n
        for at in range(0, n, at_once):
            part = {name: values[at : at + at_once] for name, values in of_rank.items()}
            yield _chunk(kind, int(rank), part, merge=merge)


def merge(chunks: Sequence[Chunk]) -> list[Chunk]:
    """Returns the rows of chunks of one kind as Parquet chunks. Raises `ValueError`."""
    # null where one is missing
    table = arrow().concat_tables([c.table() for c in chunks], promote_options="default")
    series = {name: floats(table[name]) for name in table.column_names}
    return list(chunks_of(chunks[0].kind, series, merge=True))


def loaded(kind: Kind, data: bytes) -> Chunk:
    """Returns the chunk with these bytes, which may come from a file that anybody wrote.

    Raises `ValueError` where they are none.
    """
    chunk = Chunk(kind, 0, 0, 0, 0, data)
    is_float64 = arrow().types.is_float64
    if not chunk.merged and not all(is_float64(field.type) for field in chunk.table().schema):
        raise ValueError(f"damaged {kind}: other values than numbers")
    key = chunk.read((NUMBER[kind], "rank"))
    numbers = key.get(NUMBER[kind], np.empty(0))
    rank = key.get("rank", np.zeros(1))
    # every comparison with NaN is false
    ascending = (np.diff(numbers, prepend=-1.0) > 0).all()
    if not len(numbers) or not ascending or np.any(rank != rank[0]):
        raise ValueError(f"damaged {kind}: no rows in ascending order")
    return Chunk(kind, int(rank[0]), int(numbers[0]), int(numbers[-1]), len(numbers), data)


def joined(
    kind: Kind, parts: Iterable[Series], names: Names = None, *, most: int | None = None
) -> dict[str, Floats]:
    """Returns the rows of all parts, in ascending order of their numbers.

    `names`: the columns; by default all known ones and then the others. NaN where a part has no such
    column. `most`: no fewer rows than there are; then `parts` are read one after the other, each in
    memory once.
    """
    if most is None:
        parts = list(parts)
        most = sum(map(n_rows, parts))
    whole = {name: np.empty(most) for name in names or COLUMNS[kind]}
    at = 0
    for part in parts:
        end = at + n_rows(part)
        if names is None:
            for name in part:
                if name not in whole:
                    whole[name] = np.full(most, np.nan)
        for name, values in whole.items():
            values[at:end] = part.get(name, np.nan)
        at = end
    return dict(in_order(kind, {name: values[:at] for name, values in whole.items()}))


def in_order(kind: Kind, series: Series) -> Series:
    """Returns the rows in ascending order of their numbers."""
    numbers = series.get(NUMBER[kind])
    if numbers is None or (np.diff(numbers) >= 0).all():
        return series
    order = np.argsort(numbers, kind="stable")
    return {name: values[order] for name, values in series.items()}


def n_rows(series: Series) -> int:
    return len(next(iter(series.values()), ()))


def columns_of(rows: Iterable[Sequence[float]] | Floats, names: Sequence[str]) -> dict[str, Floats]:
    """Returns rows, each with a value for each of `names`, as columns.

    Raises `ValueError` for a row that has more or fewer values.
    """
    if not isinstance(rows, np.ndarray):
        rows = list(rows)
    table = np.asarray(rows, dtype=np.float64)
    if table.size and table.shape[1:] != (len(names),):
        raise ValueError(f"a row needs {len(names)} values: {', '.join(names)}")
    return dict(zip(names, table.reshape(-1, len(names)).T, strict=True))


def _chunk(kind: Kind, rank: int, series: Series, *, merge: bool) -> Chunk:
    numbers = series[NUMBER[kind]]
    kept = {name: values for name, values in series.items() if not np.isnan(values).all()}
    data = _parquet(kept) if merge else _stream(kept)
    return Chunk(kind, rank, int(numbers[0]), int(numbers[-1]), len(numbers), data)


def _stream(series: Series) -> bytes:
    pa = arrow()
    batch = pa.record_batch([array(values) for values in series.values()], list(series))
    return bytes(batch.schema.serialize().to_pybytes() + batch.serialize().to_pybytes())


def _parquet(series: Series) -> bytes:
    pa = arrow()
    table = pa.table([_packed(name, values) for name, values in series.items()], list(series))
    encodings = {
        f.name: "BYTE_STREAM_SPLIT" if f.type == pa.float64() else "DELTA_BINARY_PACKED"
        for f in table.schema
    }
    out = pa.BufferOutputStream()
    pa.parquet.write_table(
        table, out, compression="zstd", use_dictionary=False, column_encoding=encodings
    )
    return out.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _packed(name: str, values: Floats) -> pa.Array:
    """Returns a column as nanoseconds, whole numbers or float64, see the module's docstring; null for
    NaN.
    """
    pa = arrow()
    known = values
    mask = None
    unknown = np.isnan(values)
    if unknown.any():
        known = np.where(unknown, 0.0, values)
        mask = unknown
    largest = max(known.max(), -known.min())
    is_time = name.endswith("_s") and not name.endswith("_per_s")
    if is_time and largest < LARGEST_S:
        return array(np.rint(known * 1e9).astype(np.int64), mask, pa.duration("ns"))
    if largest < EXACT and (known == np.rint(known)).all():
        return array(known.astype(np.int64), mask)
    return array(values, mask)


def as_table(series: Series, whole: Iterable[str] = ()) -> Any:
    """Returns the columns as an Arrow table, with null for NaN and infinity.

    `whole`: names of the columns that become int64.
    """
    pa = arrow()
    integers = set(whole)
    columns = {}
    for name, values in series.items():
        typed = values.astype(np.int64) if name in integers else values
        columns[name] = array(typed, ~np.isfinite(values))
    return pa.table(columns)


PART_ROWS = 16_384
"""Most rows of a part, see `SeriesStore.steps_in_parts`: 4 MB."""
MOST_SMALL_ROWS = MOST_ROWS
"""The number of rows in small chunks that are merged while a run lives. A larger number saves no CPU that
could be told from noise, and makes the file larger: 58, 78, 95 or 136 MB for a million steps with 1, 4,
8 or 16 times `MOST_ROWS`."""
INSERT = sa.insert(series)
"""Made once: to make a statement takes longer than to run it."""
MOST_CHUNKS = 1_024
"""The number of small chunks that are merged though they have few rows: reading one takes 0.1 ms."""


class SeriesStore(Database):
    """The steps and the telemetry of runs. All methods raise `StoreError`."""

    def mark_warmup(self, run_id: int, numbers: Collection[int]) -> None:
        """Sets `warmup` to 1 for stored steps, which leaves them out of steady-state figures.

        `numbers`: the steps' numbers.
        """
        if not numbers:
            return
        wanted = np.array(sorted(numbers), dtype=np.float64)
        near = _chunks(run_id, "steps", int(wanted[0]) - 1, int(wanted[-1]))
        with self.writing() as db:
            for row in db.execute(near.with_for_update()).fetchall():
                chunk = _chunk_of(row)
                if not np.isin(wanted, chunk.read(["step"])["step"]).any():
                    continue
                steps = chunk.read()
                before = steps.get("warmup", np.zeros(chunk.rows))
                steps["warmup"] = np.where(np.isin(steps["step"], wanted), 1.0, before)
                changed = _chunk("steps", chunk.rank, steps, merge=chunk.merged)
                db.execute(sa.update(series).where(*_is(run_id, chunk)).values(bytes=changed.data))

    def compact(self, run_id: int, *, all_of_it: bool = True) -> None:
        """Merges the run's small chunks into large ones.

        `all_of_it`: whether to do so where there are only few of them.
        """
        small = (series.c.run_id == run_id, series.c.merged.is_(False))
        key = (series.c.kind, series.c.rank)
        totals = sa.select(*key, sa.func.count(), sa.func.sum(series.c.rows)).where(*small)
        with self.transaction() as db:
            counts = db.execute(totals.group_by(*key)).fetchall()
        for kind, rank, n, rows in counts:
            if all_of_it or rows >= MOST_SMALL_ROWS or n >= MOST_CHUNKS:
                self._merge(run_id, (*small, series.c.kind == kind, series.c.rank == rank))

    def _merge(self, run_id: int, small: Sequence[sa.ColumnElement[bool]]) -> None:
        query = sa.select(series).where(*small).order_by(series.c.chunk)
        with self.transaction() as db:
            chunks = [_chunk_of(row) for row in db.execute(query)]
        # merged outside of a transaction, which others would wait for; so it may have changed meanwhile
        large = merge(chunks)
        with self.writing() as db:
            gone = db.execute(sa.delete(series).where(*small, series.c.chunk <= chunks[-1].first))
            if gone.rowcount != len(chunks):
                raise StoreError(
                    f"the {chunks[0].kind} of run {run_id} changed while they were being merged"
                )
            insert_chunks(db, run_id, large)

    def n_steps(self, run_id: int) -> int:
        """Returns the number of the run's steps, without reading them."""
        total = sa.select(sa.func.sum(series.c.rows)).where(
            series.c.run_id == run_id, series.c.kind == "steps"
        )
        with self.transaction() as db:
            return int(db.execute(total).scalar() or 0)

    def step_names(self, run_id: int) -> tuple[str, ...]:
        """Returns the names of the columns of the run's steps: `STEP_COLUMNS`, then those of other versions."""
        names = dict.fromkeys(STEP_COLUMNS)
        with self.transaction() as db:
            for row in db.execute(_chunks(run_id, "steps", -1, None)):
                names |= dict.fromkeys(_chunk_of(row).names)
        return tuple(names)

    def steps(
        self, run_id: int, *, after: int = -1, until: int | None = None, names: Names = None
    ) -> Series:
        """Returns the run's steps with numbers above `after` and up to `until`, in order.

        That is a float64 array for each of the columns `names`, NaN where a value is not available. By
        default all columns: those of `STEP_COLUMNS`, then those that only another version knows.
        """
        return self._whole(run_id, "steps", after, until, names)

    def telemetry(self, run_id: int, *, after: int = -1, names: Names = None) -> Series:
        """Returns the run's telemetry samples with numbers ("seq") above `after`, in order, as `steps` does."""
        if names is not None:
            names = ("seq", *names)
        return self._whole(run_id, "telemetry", after, None, names)

    def steps_of_ranks(self, run_id: int, *, names: Names = None) -> dict[int, Series]:
        """Returns the steps of each rank of a distributed job, by rank, as `steps` does.

        Those of rank 0 alone where there is no other rank.
        """
        with_rank = None if names is None else ("rank", *names)
        others = self._whole(run_id, "ranks", -1, None, with_rank)
        of_rank = {0: self.steps(run_id, names=names)}
        for rank in np.unique(others["rank"]):
            is_rank = others["rank"] == rank
            of_rank[int(rank)] = {name: values[is_rank] for name, values in others.items()}
        return of_rank

    def steps_of_rank(
        self, run_id: int, rank: int, *, after: int, names: Sequence[str]
    ) -> Iterator[Series]:
        """Yields a rank's steps with numbers above `after`, chunk by chunk, with the columns of `steps`."""
        kind: Kind = "ranks" if rank else "steps"
        query = _chunks(run_id, kind, after, None).where(series.c.rank == rank)
        with self.transaction() as db:
            for row in db.execution_options(stream_results=True, max_row_buffer=16).execute(query):
                yield joined(kind, [self._part(row, names, after, None)], names)

    def steps_in_parts(
        self, run_id: int, *, after: int = -1, names: Names = None, rows: int = PART_ROWS
    ) -> Iterator[Series]:
        """Yields the run's steps with numbers above `after`, in order, at most `rows` at a time; at least
        one part.

        A run of any length takes the memory of one part. All parts show the run as it was at the first
        one.
        """
        wanted = _with_number("steps", names)
        waiting: list[Series] = []
        n = 0
        none_yet = True
        # one transaction: the run may be written to meanwhile
        with self.transaction() as db:
            query = _chunks(run_id, "steps", after, None)
            for row in db.execution_options(stream_results=True, max_row_buffer=16).execute(query):
                waiting.append(self._part(row, wanted, after, None))
                n += n_rows(waiting[-1])
                if n < rows:
                    continue
                whole = joined("steps", waiting, wanted)
                full = n - n % rows
                for at in range(0, full, rows):
                    yield {name: whole[name][at : at + rows] for name in names or whole}
                waiting = [{name: values[full:] for name, values in whole.items()}]
                n = n - full
                none_yet = False
        if n or none_yet:
            whole = joined("steps", waiting, wanted)
            yield {name: whole[name] for name in names or whole}

    def _whole(
        self, run_id: int, kind: Kind, after: int, until: int | None, names: Names
    ) -> dict[str, Floats]:
        wanted = _with_number(kind, names)
        with self.transaction() as db:
            rows = db.execute(_chunks(run_id, kind, after, until)).fetchall()
        parts = (self._part(row, wanted, after, until) for row in rows)
        whole = joined(kind, parts, wanted, most=sum(row.rows for row in rows))
        return {name: whole[name] for name in names or whole}

    def _part(self, row: sa.Row[Any], names: Names, after: int, until: int | None) -> Series:
        chunk = _chunk_of(row)
        try:
            part = chunk.read(names)
        except ValueError as error:
            raise StoreError(
                f"the run store {self.url} failed: run {row.run_id} has {error}"
            ) from error
        numbers = part[NUMBER[chunk.kind]]
        first = int(np.searchsorted(numbers, after, side="right"))
        end = chunk.rows
        if until is not None:
            end = int(np.searchsorted(numbers, until, side="right"))
        if first == 0 and end == chunk.rows:
            return part
        return {name: values[first:end] for name, values in part.items()}


def _with_number(kind: Kind, names: Names) -> Sequence[str] | None:
    """Returns `names` with the column that numbers the rows, by which they are selected and ordered."""
    number = NUMBER[kind]
    if names is None or number in names:
        return names
    return (number, *names)


def insert_chunks(
    db: sa.Connection, run_id: int, chunks: Iterable[Chunk], *, again: bool = False
) -> None:
    """Adds chunks; with `again`, without the rows that are stored already."""
    for each in chunks:
        for new in _not_stored(db, run_id, each) if again else [each]:
            values = {
                "run_id": run_id,
                "kind": new.kind,
                "rank": new.rank,
                "chunk": new.first,
                "last": new.last,
            }
            db.execute(
                INSERT, {**values, "rows": new.rows, "merged": new.merged, "bytes": new.data}
            )


def _not_stored(db: sa.Connection, run_id: int, chunk: Chunk) -> list[Chunk]:
    """Returns the rows of a chunk that the store does not have, as chunks."""
    number = NUMBER[chunk.kind]
    overlapping = _chunks(run_id, chunk.kind, chunk.first - 1, chunk.last).where(
        series.c.rank == chunk.rank
    )
    stored = [_chunk_of(row).read([number])[number] for row in db.execute(overlapping)]
    if not stored:
        return [chunk]
    rows = chunk.read()
    new = ~np.isin(rows[number], np.concatenate(stored))
    return list(chunks_of(chunk.kind, {name: values[new] for name, values in rows.items()}))


def _chunks(run_id: int, kind: Kind, after: int, until: int | None) -> sa.Select[Any]:
    query = sa.select(series).where(
        series.c.run_id == run_id, series.c.kind == kind, series.c.last > after
    )
    if until is not None:
        query = query.where(series.c.chunk <= until)
    return query.order_by(series.c.chunk, series.c.rank)


def _chunk_of(row: sa.Row[Any]) -> Chunk:
    return Chunk(row.kind, row.rank, row.chunk, row.last, row.rows, row.bytes)


def _is(run_id: int, chunk: Chunk) -> tuple[sa.ColumnElement[bool], ...]:
    key = {"run_id": run_id, "kind": chunk.kind, "rank": chunk.rank, "chunk": chunk.first}
    return tuple(series.c[name] == value for name, value in key.items())
