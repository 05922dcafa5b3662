"""Recordings as one file, `NAME.vitprof`, that another machine can read.

It is a zip file (deflated) of

- `manifest.json`: `format`, `version`, the vitprof that wrote it, and `runs`, the number of recordings;
- `recording-N.json` for N = 1, 2, ...: a `Recording` without its series; `facts.imported` says where it was recorded;
- `steps-N.parquet` and `telemetry-N.parquet`: its series, uncompressed, as the zip file is.

The sender of a file is not trusted: sizes are bounded whatever its headers claim, and it is refused as a whole where
anything in it does not fit the type.
"""

import dataclasses
import datetime as dt
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Iterable
from typing import Any, BinaryIO

import numpy as np

from vitprof import __version__, errors
from vitprof.config import PARTS, RunConfig, catalog
from vitprof.config.own_script import KEPT_IN_RAM, OWN_SCRIPT, is_own_script
from vitprof.config.strategies import strategy
from vitprof.formats import size
from vitprof.names import MARK, MAX_NAME, NOT_SHOWN
from vitprof.recording import codec
from vitprof.recording.columns import (
    ENDED_STATUSES,
    STEP_COLUMNS,
    TELEMETRY_COLUMNS,
    StepRecord,
    columns,
)
from vitprof.recording.recording import Columns, Environment, Recording
from vitprof.sets import registry

FORMAT, VERSION = "vitprof recordings", 2
"""The version rises when an older vitprof could not read what a newer one writes."""
SUFFIX = ".vitprof"
MANIFEST = "manifest.json"
MAX_RUNS = 1_000
MAX_FILE_BYTES = 192 * 2**20
"""Just under the 200 MB that Streamlit takes as an upload."""
MAX_UNPACKED_BYTES = 256 * 2**20
"""The most bytes of all series together, which are in memory until all are checked: 1.3 million steps."""
MAX_JSON_BYTES = 2**21
MAX_READ_BYTES = 2**18
"""The most bytes that zipfile may read at once, such as its table of contents: under 70 bytes for a file of a run."""
COMPRESSION_LEVEL = 1
"""Of deflate: steps shrink to 0.27 of their size at level 1 as at level 6, in half of the time."""
START, END, END_BYTES = b"PK\x03\x04", b"PK\x05\x06", 22
"""A file begins with its first member, and ends with zip's end record without a comment."""
DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError),
    *(RuntimeError, LookupError, ArithmeticError, ValueError),
)
"""What zipfile raises for a file that is no zip file, for a damaged one, and for an encrypted member."""
NOT_AN_ARCHIVE = f"it is not a file of runs that vitprof wrote (*{SUFFIX}), or it is damaged"
EXPORT_FEWER = "export fewer at a time"
TOO_MANY_RUNS = f"it holds more than the {MAX_RUNS:,} runs that are allowed"
MAX_TEXT, MAX_KEY, MAX_DEPTH = 10_000, 100, 12
"""The most characters of a text and of a key, and the deepest nesting; a verdict has its deepest values at depth 5."""
MAX_EXACT = 2**53
"""Whole numbers up to here are exact as float64, and every database holds them."""
MAX_TIME_S = 1e9
"""The latest time on a monotonic clock, which counts from its machine's start: 31 years. In ns it fits int64."""
MAX_WHOLE = 2.0**31
"""Numbers of steps and epochs, and samples of a batch, are below that."""
WHOLE = tuple(c.name for c in columns(StepRecord) if c.integer)


class ArchiveError(errors.VitprofError):
    """A file of recordings that cannot be written, or one that is refused; nothing of it was stored."""


def need(holds: object, otherwise: str) -> None:
    """Raises `ArchiveError` with the message `otherwise` unless `holds`."""
    if not holds:
        raise ArchiveError(otherwise)


# writing


def pack(recordings: Iterable[Recording]) -> bytes:
    """Returns the file of these recordings. The same ones give the same bytes. Raises `ArchiveError`."""
    target = io.BytesIO()
    n = 0
    unpacked = 0
    with zipfile.ZipFile(target, "w") as archive:
        for n, recording in enumerate(recordings, 1):
            for name, data in zip(_names(n), _members_of(recording), strict=True):
                unpacked += len(data)
                _write(archive, name, data)
            allowed = (
                f"a file may hold {MAX_RUNS:,} runs and {size(MAX_UNPACKED_BYTES)}; {EXPORT_FEWER}"
            )
            need(
                n <= MAX_RUNS and unpacked <= MAX_UNPACKED_BYTES,
                f"{n:,} run(s) take {size(unpacked)}; {allowed}",
            )
        manifest = {"format": FORMAT, "version": VERSION, "vitprof": __version__, "runs": n}
        _write(archive, MANIFEST, json.dumps(manifest).encode())
    packed = target.tell()
    need(
        packed <= MAX_FILE_BYTES,
        f"it would have {size(packed)} of at most {size(MAX_FILE_BYTES)}; {EXPORT_FEWER}",
    )
    return target.getvalue()


def _write(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    archive.writestr(
        zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED, COMPRESSION_LEVEL
    )  # no time in it


def _names(number: int) -> tuple[str, str, str]:
    return f"recording-{number}.json", f"steps-{number}.parquet", f"telemetry-{number}.parquet"


def _members_of(recording: Recording) -> tuple[bytes, bytes, bytes]:
    plain = harmless(
        codec.to_plain(dataclasses.replace(recording, steps=None, telemetry=None), Recording)
    )
    described = json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode()
    long = f"run {recording.run_id} has more notes, notices and phases than a file may hold; leave it out"
    need(len(described) <= MAX_JSON_BYTES, long)
    return described, _parquet(recording.steps or {}), _parquet(recording.telemetry or {})


def _parquet(series: Columns) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    finite = {
        name: np.where(np.isfinite(values), values, np.nan) for name, values in series.items()
    }
    kept = {
        name: codec.array(values) for name, values in finite.items() if not np.isnan(values).all()
    }
    table = pa.table([*kept.values()], [*kept])
    out = io.BytesIO()
    small = {
        "use_dictionary": False,
        "write_statistics": False,
        "use_byte_stream_split": True,
        "store_schema": False,
    }
    pq.write_table(table, out, compression="none", **small)
    return out.getvalue()


def harmless(value: Any, depth: int = 0) -> Any:
    """Returns plain values, texts cut short and shown safely; None for NaN, infinities and what exceeds `MAX_EXACT`."""
    if isinstance(value, str):
        return NOT_SHOWN.sub(MARK, value[:MAX_TEXT])
    if isinstance(value, dict) and depth <= MAX_DEPTH:
        return {
            harmless(str(key))[:MAX_KEY]: harmless(item, depth + 1) for key, item in value.items()
        }
    if isinstance(value, list) and depth <= MAX_DEPTH:
        return [harmless(item, depth + 1) for item in value]
    if isinstance(value, (int, float)):
        return (
            value
            if abs(value) <= MAX_EXACT or (isinstance(value, float) and abs(value) < np.inf)
            else None
        )
    return value if value is None else harmless(str(value))


# reading


def unpack(source: BinaryIO) -> list[Recording]:
    """Returns the recordings of a file, all of it checked. Raises `ArchiveError`."""
    n_bytes = source.seek(0, io.SEEK_END)
    need(
        n_bytes <= MAX_FILE_BYTES, f"it has {size(n_bytes)}, and {size(MAX_FILE_BYTES)} are allowed"
    )
    try:
        members = _members(source, n_bytes)
        manifest = _json(members.pop(MANIFEST), MANIFEST)
    except DAMAGED as error:
        raise ArchiveError(NOT_AN_ARCHIVE) from error
    need(str(manifest.get("format")).startswith("vitprof "), NOT_AN_ARCHIVE)
    known = (manifest["format"], manifest.get("version")) == (FORMAT, VERSION)
    need(
        known, "it was written by another version of vitprof, in a form that this one does not know"
    )
    n = manifest.get("runs")
    if type(n) is not int or not 1 <= n <= MAX_RUNS:
        raise ArchiveError(f"its {MANIFEST} is not as vitprof writes it")
    wanted = {name for number in range(1, n + 1) for name in _names(number)}
    need(wanted <= set(members), "a part of a run is missing in it")
    need(wanted == set(members), "it has files that do not belong to a run")
    return [_recording(number, members) for number in range(1, n + 1)]


class _BoundedReader:
    """A file for zipfile that refuses to read too much at once, whatever sizes the archive claims."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self.seek = source.seek
        self.tell = source.tell
        self.seekable = source.seekable

    def read(self, n: int = -1, /) -> bytes:
        need(n <= MAX_READ_BYTES, TOO_MANY_RUNS)
        return self._source.read(n if n >= 0 else MAX_READ_BYTES)


def _members(source: BinaryIO, n_bytes: int) -> dict[str, bytes]:
    """Returns everything in a zip file. Raises `ArchiveError`, or one of `DAMAGED`."""
    for at, magic in ((0, START), (max(0, n_bytes - END_BYTES), END)):
        source.seek(at)
        need(source.read(len(magic)) == magic, NOT_AN_ARCHIVE)
    members: dict[str, bytes] = {}
    with zipfile.ZipFile(_BoundedReader(source)) as archive:
        infos = archive.infolist()
        need(len(infos) <= 1 + 3 * MAX_RUNS, TOO_MANY_RUNS)
        need(len({info.filename for info in infos}) == len(infos), NOT_AN_ARCHIVE)
        ways = {
            info.compress_type for info in infos
        }  # only for these two zipfile bounds what it unpacks at once
        need(
            ways <= {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED},
            "it is packed in a way that vitprof does not write",
        )
        left = MAX_UNPACKED_BYTES + MAX_JSON_BYTES  # the manifest comes on top
        for info in infos:
            members[info.filename] = _member(archive, info, left)
            left -= len(members[info.filename])
    return members


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, left: int) -> bytes:
    """Returns a member's bytes. Raises `ArchiveError` as soon as they grow too large, whatever its header says."""
    allowed = MAX_JSON_BYTES if info.filename.endswith(".json") else MAX_UNPACKED_BYTES
    data = bytearray()
    with archive.open(info) as member:
        while part := member.read(MAX_READ_BYTES):
            data += part
            too_large = len(data) > min(allowed, left)
            need(
                not too_large,
                f"{info.filename} would unpack to more than the {size(allowed)} that are allowed",
            )
    return bytes(data)


def _json(data: bytes, what: str) -> dict[str, Any]:
    try:
        value: Any = json.loads(
            data.decode(), parse_constant=int
        )  # int("NaN") raises: RFC 8259 has none
    except (ValueError, RecursionError) as error:
        raise ArchiveError(f"{what} is not JSON in UTF-8 as vitprof writes it") from error
    need(isinstance(value, dict), f"{what} is not a JSON object")
    return dict(harmless(value))


def _recording(number: int, members: dict[str, bytes]) -> Recording:
    names = _names(number)
    values = _json(members.pop(names[0]), names[0])
    try:
        if own := (values.get("facts") or {}).get("own_set"):
            registry.remember(codec.from_plain(registry.OwnSet, own))
        values["config"] = _config(values.get("config"))
        found = codec.from_plain(Recording, values | {"steps": None, "telemetry": None})
        _check(found)
    except errors.ConfigError as error:
        raise ArchiveError(
            f"{names[0]}: this vitprof cannot use its config ({errors.one_line(error)})"
        ) from error
    except ArchiveError as error:
        raise ArchiveError(f"{names[0]}: {error}") from error
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
        raise ArchiveError(
            f"{names[0]}: it is not as vitprof writes it ({codec.first_error(error)})"
        ) from error
    steps = _columns(members.pop(names[1]), STEP_COLUMNS, names[1])
    telemetry = _columns(members.pop(names[2]), ("seq", *TELEMETRY_COLUMNS), names[2])
    _check_steps(steps, names[1])
    in_time = np.all(np.abs(telemetry["t_s"]) <= MAX_TIME_S) and np.all(
        np.diff(telemetry["t_s"]) >= 0
    )
    need(in_time, f"{names[2]}: its samples are not in the order of time")
    numbers = np.arange(len(telemetry["t_s"]), dtype=np.float64)
    return dataclasses.replace(found, steps=steps, telemetry={**telemetry, "seq": numbers})


def _config(values: Any) -> RunConfig:
    """Returns a config whose names are known here; it need not be runnable. Raises `ConfigError`, `ArchiveError`."""
    try:
        config = RunConfig.from_dict(values)
        if is_own_script(config):
            own = {kind: getattr(config, kind) for kind in PARTS if kind != "storage"}
            fits = (
                own == {"location": None, "loader": "dataloader", "transfer": None}
                and config.model == OWN_SCRIPT
            )
            need(
                fits and config.storage in (None, KEPT_IN_RAM) and len(config.dataset) <= MAX_NAME,
                NOT_AS_WRITTEN,
            )
            return config
        info = catalog.dataset_info(config.dataset, config.n_images)
        _ = catalog.model_preset(config.model)
        _ = (
            strategy(config.strategy)
            .combination(info, {kind: getattr(config, kind) for kind in PARTS})
            .parts
        )
    except LookupError as error:
        raise ArchiveError(f"its config names {error}, which this vitprof does not have") from error
    return config


NOT_AS_WRITTEN = "config is not as vitprof writes it"


def _check(run: Recording) -> None:
    origin = run.facts.get("imported") or {}
    spans = [(phase.t_start_s, phase.t_end_s) for phase in run.phases]
    times = [
        run.t_origin_s or 0.0,
        run.training_since_s or 0.0,
        *(t for span in spans for t in span),
    ]
    for field, holds in {
        "run_id": 0 < run.run_id < MAX_WHOLE,
        "name": 0 < len(run.name) <= MAX_NAME,
        "status": run.status in ENDED_STATUSES,
        "created_utc": len(run.created_utc) == 20
        and dt.datetime.strptime(run.created_utc, "%Y-%m-%dT%H:%M:%SZ"),
        "phases": all(abs(t) <= MAX_TIME_S for t in times)
        and all(start <= end for start, end in spans),
        "facts": origin and 0 < origin["run_id"] < MAX_WHOLE and 0 < len(origin["host"]) <= 255,
        "environment": not run.facts.keys()
        & Environment.__annotations__.keys(),  # both are looked up together
        "role": len(run.role) <= 200,
    }.items():
        need(holds, f"{field} is not as vitprof writes it")


def _columns(data: bytes, known: tuple[str, ...], what: str) -> Columns:
    """Returns the columns of a file, (n,) float64 each: the known ones, NaN where it has none, then the others."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        about = file.metadata
        names = file.schema_arrow.names
        n = about.num_rows
        groups = range(about.num_row_groups)
        chunks = [about.row_group(g).column(c) for g in groups for c in range(about.num_columns)]
        need(
            {chunk.compression for chunk in chunks} <= {"UNCOMPRESSED"},
            f"{what} is packed a second time",
        )
        allowed = 8 * n * max(len(names), len(known)) <= MAX_UNPACKED_BYTES
        need(allowed, f"{what} has more rows than the {size(MAX_UNPACKED_BYTES)} that are allowed")
        flat = len(set(names)) == len(names) == about.num_columns
        need(
            flat and set(file.schema_arrow.types) <= {pa.float64()},
            f"{what} has columns that are no numbers",
        )
        table = file.read()
        series = {name: codec.floats(table.column(name)) for name in names}
    except (pa.ArrowException, OSError) as error:
        raise ArchiveError(f"{what} is damaged: {errors.one_line(error)}") from error
    need(
        not any(np.isinf(values).any() for values in series.values()),
        f"{what}: a number in it is too large",
    )
    return {name: np.full(n, np.nan) for name in known} | series


def _check_steps(steps: Columns, what: str) -> None:
    """Raises `ArchiveError` for steps on which the analysis cannot rely."""
    for name in WHOLE:
        values = steps[name]  # NaN where the column is not in the file
        whole = np.all((values >= 0) & (values < MAX_WHOLE) & (values % 1 == 0))
        need(whole, f"{what}: {name} has to be whole numbers")
    ascending = np.diff(steps["step"]) > 0
    again = np.diff(steps["step"]) == 0  # another rank's part of the same step
    need(
        np.all(ascending | (again & (np.diff(steps["rank"]) > 0))),
        f"{what}: its steps are not in order",
    )
    by_rank = np.argsort(
        steps["rank"], kind="stable"
    )  # one sort, as a sender may give each step a rank of its own
    same = np.diff(steps["rank"][by_rank]) == 0
    back = [np.diff(steps[name][by_rank]) < 0 for name in ("t_start_s", "epoch")]
    in_time = np.all(np.isfinite(steps["t_start_s"])) and not np.any(same & (back[0] | back[1]))
    need(in_time, f"{what}: its steps are not in the order of time")
    for name, values in steps.items():
        too_long = name.endswith("_s") and np.any(np.abs(values) > MAX_TIME_S)
        need(not too_long, f"{what}: {name} has times that no clock shows")
