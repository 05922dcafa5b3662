"""Chunks: rows of a run's steps or telemetry as the store and the spool files hold them, bytes that name their columns.

While a run lives, each write makes a chunk: an Arrow IPC stream of float64 columns, cheap to make (0.15 ms for 300
steps). Later many of them become one Parquet chunk (zstd), a quarter of the size. There

- times in seconds (`*_s`, moments and durations) are whole nanoseconds, `duration[ns]`, delta packed: the resolution of
  the clocks that they were read from. That takes less than float32 (47 bytes a step, not 61), and moments stay exact;
- columns of whole numbers are int64, delta packed: a bit or two for a row where they hardly change;
- everything else, such as the loss, keeps its 64 bits, with the bytes of the same place together (byte stream split).

A column without any value is omitted; a reader gets NaN for it, as for one that the writer did not know. So a new
column of steps needs no migration, and one that only another version knows is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from vitprof.analysis.arrays import Floats, Series
from vitprof.recording.columns import STEP_COLUMNS, TELEMETRY_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["steps", "telemetry"]
NUMBER: Mapping[Kind, str] = {"steps": "step", "telemetry": "seq"}
"""The column that numbers the rows, in ascending order."""
COLUMNS: Mapping[Kind, tuple[str, ...]] = {"steps": STEP_COLUMNS, "telemetry": ("seq", *TELEMETRY_COLUMNS)}
MOST_ROWS = 32_768
"""Most rows of a Parquet chunk: 8 MB as float64, 1.5 MB as it is stored."""
PARQUET = b"PAR1"
"""First bytes of a Parquet file."""
LARGEST_S = 9e9
"""The largest time (s) that is stored as nanoseconds: int64 ends at 9.2e9 s."""
EXACT = 2.0**53


def arrow() -> Any:
    """Returns `pyarrow`, which takes 60 ms to import, and lists of runs need none."""
    import pyarrow.parquet

    return pyarrow


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
        pa, source = arrow(), arrow().BufferReader(self.data)
        return list((pa.parquet.read_schema(source) if self.merged else pa.ipc.open_stream(source).schema).names)

    def read(self, names: Sequence[str] | None = None) -> dict[str, Floats]:
        """Returns those of the columns `names` (default: all) that it has values of. Raises `ValueError`."""
        table = self.table(names)
        return {name: _floats(table[name]) for name in table.column_names if names is None or name in names}

    def table(self, names: Sequence[str] | None = None) -> pa.Table:
        """Returns the chunk's columns, at least those of `names`, as an Arrow table. Raises `ValueError`."""
        pa = arrow()
        try:
            if self.merged:
                file = pa.parquet.ParquetFile(pa.BufferReader(self.data))
                return file.read(names and [name for name in file.schema_arrow.names if name in names])
            return pa.ipc.open_stream(self.data).read_all()
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"damaged {self.kind}: {error}") from error

    def replaced(self, series: Series) -> Chunk:
        """Returns a chunk of the same form with other values in its rows."""
        return _chunk(self.kind, self.rank, series, merge=self.merged)


def chunks_of(kind: Kind, series: Series, *, merge: bool = False) -> Iterator[Chunk]:
    """Yields chunks of these rows, one for each rank; with `merge`, Parquet ones of at most `MOST_ROWS`."""
    if not len(series[NUMBER[kind]]):
        return
    ranks = np.nan_to_num(series.get("rank", np.zeros(1)))
    for rank in np.unique(ranks):
        mine = series if (ranks == rank).all() else {name: values[ranks == rank] for name, values in series.items()}
        mine, n = in_order(kind, mine), len(mine[NUMBER[kind]])
        at_once = MOST_ROWS if merge else n
        for at in range(0, n, at_once):
            part = {name: values[at : at + at_once] for name, values in mine.items()}
            yield _chunk(kind, int(rank), part, merge=merge)


def merge(chunks: Sequence[Chunk]) -> list[Chunk]:
    """Returns the rows of chunks of one kind as Parquet chunks. Raises `ValueError`."""
    tables = [chunk.table() for chunk in chunks]
    table = arrow().concat_tables(tables, promote_options="default")  # null where a column is missing
    series = {name: _floats(table[name]) for name in table.column_names}
    return list(chunks_of(chunks[0].kind, series, merge=True))


def loaded(kind: Kind, data: bytes) -> Chunk:
    """Returns the chunk with these bytes. Raises `ValueError`."""
    key = Chunk(kind, 0, 0, 0, 0, data).read((NUMBER[kind], "rank"))
    numbers, rank = key.get(NUMBER[kind], np.empty(0)), key.get("rank", np.zeros(1))
    if not len(numbers):
        raise ValueError(f"damaged {kind}: no rows")
    return Chunk(kind, int(rank[0]), int(numbers[0]), int(numbers[-1]), len(numbers), data)


def joined(
    kind: Kind, parts: Iterable[Series], names: Sequence[str] | None = None, *, most: int | None = None
) -> dict[str, Floats]:
    """Returns the rows of all parts, in ascending order: the columns `names`, by default all; NaN where a part has
    none. With `most`, no fewer rows than there are, each part is in memory once.
    """
    if most is None:
        parts = list(parts)
        most = sum(map(n_rows, parts))
    whole, at = {name: np.empty(most) for name in names or COLUMNS[kind]}, 0
    for part in parts:
        end = at + n_rows(part)
        for name in part if names is None else ():
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
    """Returns rows, each with a value for each of `names`, as columns. Raises `ValueError` for other rows."""
    table = np.asarray(rows if isinstance(rows, np.ndarray) else list(rows), dtype=np.float64)
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
    batch = pa.record_batch([pa.array(np.ascontiguousarray(v)) for v in series.values()], list(series))
    return bytes(batch.schema.serialize().to_pybytes() + batch.serialize().to_pybytes())


def _parquet(series: Series) -> bytes:
    pa = arrow()
    table = pa.table([_packed(name, values) for name, values in series.items()], list(series))
    encodings = {f.name: "BYTE_STREAM_SPLIT" if f.type == pa.float64() else "DELTA_BINARY_PACKED" for f in table.schema}
    out = pa.BufferOutputStream()
    pa.parquet.write_table(table, out, compression="zstd", use_dictionary=False, column_encoding=encodings)
    return out.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _packed(name: str, values: Floats) -> pa.Array:
    """Returns a column as nanoseconds, whole numbers or float64, see the module's docstring; null for NaN."""
    pa, unknown = arrow(), np.isnan(values)
    known, mask = (np.where(unknown, 0.0, values), unknown) if unknown.any() else (values, None)
    top = max(known.max(), -known.min())
    if name.endswith("_s") and not name.endswith("_per_s") and top < LARGEST_S:
        return pa.array(np.rint(known * 1e9).astype(np.int64), pa.duration("ns"), mask=mask)
    if top < EXACT and (known == np.rint(known)).all():
        return pa.array(known.astype(np.int64), mask=mask)
    return pa.array(np.ascontiguousarray(values), mask=mask)


def _floats(column: pa.ChunkedArray) -> Floats:
    """Returns a column as float64, NaN for null, times in seconds. Arrow's `to_numpy` imports pandas: 0.4 s."""
    pa, whole = arrow(), column.combine_chunks()
    if not len(whole):
        return np.empty(0)
    if whole.type.bit_width != 64:  # of another version
        whole = whole.cast(pa.float64())
    known, values = whole.buffers()
    part = slice(whole.offset, whole.offset + len(whole))
    kind = np.float64 if pa.types.is_floating(whole.type) else np.int64
    floats: Floats = np.frombuffer(values, kind)[part].astype(np.float64, copy=whole.null_count > 0)
    if pa.types.is_duration(whole.type):
        floats /= 1e9
    if whole.null_count:
        unknown = np.unpackbits(np.frombuffer(known, np.uint8), bitorder="little")[part] == 0
        np.putmask(floats, unknown, np.nan)
    return floats


def as_table(series: Series, whole: Iterable[str] = ()) -> Any:
    """Returns the columns as an Arrow table, int64 where they are named in `whole`, with null for NaN and infinity."""
    pa, integers = arrow(), set(whole)
    typed = {name: values.astype(np.int64) if name in integers else values for name, values in series.items()}
    return pa.table({name: pa.array(typed[name], mask=~np.isfinite(values)) for name, values in series.items()})
