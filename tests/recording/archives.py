"""Files of recordings, taken apart and put together again with changes."""

import io
import json
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vitprof.recording import archive, series_file


@pytest.fixture
def arrow_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has series read in this process: to begin another one for each of hundreds of files takes 0.3 s."""

    def columns(_reader: object, *request: Any) -> series_file.Series:
        return series_file.columns_of(*request)

    monkeypatch.setattr(series_file.SeriesReader, "columns", columns)


def unpacked(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def packed(members: dict[str, bytes], /, **manifest: Any) -> bytes:
    """A file of `members`, with a manifest changed by `manifest`."""
    told = json.loads(members[archive.MANIFEST]) | manifest
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, data in (members | {archive.MANIFEST: json.dumps(told).encode()}).items():
            opened.writestr(name, data)
    return target.getvalue()


def changed(
    data: bytes, change: Callable[[dict[str, Any]], object], name: str = "recording-1.json"
) -> bytes:
    members = unpacked(data)
    values = json.loads(members[name])
    change(values)
    return packed(members | {name: json.dumps(values).encode()})


def parquet(series: dict[str, Any], **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(series), out, **{"compression": "none", **options})
    return out.getvalue()


def with_columns(
    data: bytes, change: Callable[[dict[str, np.ndarray]], object], kind: str = "steps"
) -> bytes:
    """The file with the series of its run changed."""
    members, name = unpacked(data), f"{kind}-1.parquet"
    table = pq.read_table(io.BytesIO(members[name]))
    series = {column: table.column(column).to_numpy().copy() for column in table.column_names}
    change(series)
    return packed(members | {name: parquet(series)})
