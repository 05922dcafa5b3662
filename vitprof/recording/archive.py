"""Recordings as one file, `NAME.vitprof`, that another machine can read.

It is a zip file (deflated) of

- `manifest.json`: `format`, `version`, the vitprof that wrote it, and `runs`, the number of recordings;
- `recording-N.json` for N = 1, 2, ...: a `Recording` without its series; `facts.imported` says where it was recorded;
- `steps-N.parquet` and `telemetry-N.parquet`: its series, uncompressed, as the zip file is.

The sender of a file is not trusted: sizes are bounded whatever its headers claim, and it is refused
as a whole where anything in it does not fit the type.
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
from vitprof.config import PARTS, RunConfig, models
from vitprof.config.own_script import KEPT_IN_RAM, OWN_SCRIPT, is_own_script
from vitprof.config.strategies import strategy
from vitprof.datasets import catalog
from vitprof.datasets.own import registry
from vitprof.formats import size
from vitprof.names import MARK, MAX_NAME, NOT_SHOWN
from vitprof.recording import codec, series_file
from vitprof.recording.columns import (
    ENDED_STATUSES,
    STEP_COLUMNS,
    TELEMETRY_COLUMNS,
    StepRecord,
    columns,
)
from vitprof.recording.recording import Columns, Environment, Recording
from vitprof.recording.verdict import with_gain

FORMAT = "vitprof recordings"
VERSION = 2
"""It rises when an older vitprof could not read what a newer one writes."""
SUFFIX = ".vitprof"
MANIFEST = "manifest.json"
MAX_RUNS = 1_000
MAX_FILE_BYTES = 192 * 2**20
"""Just under the 200 MB that Streamlit takes as an upload."""
MAX_UNPACKED_BYTES = 256 * 2**20
"""The most bytes of all series in a file: 1.3 million steps."""
MAX_SERIES_BYTES = 2**30
"""The most bytes of all series in memory, where they are until all are checked: 3.3 million steps. A file
leaves out columns without a value, and may say once what is the same in all rows."""
MAX_JSON_BYTES = 2**21
MAX_READ_BYTES = 2**18
"""The most bytes that zipfile may read at once, such as its table of contents: under 70 bytes for a
file of a run."""
COMPRESSION_LEVEL = 1
"""Of deflate: steps shrink to 0.27 of their size at level 1 as at level 6, in half of the time."""
START = b"PK\x03\x04"
"""A file begins with its first member: zipfile would take one with anything in front of it."""
END = b"PK\x05\x06"
"""A file ends with zip's end record."""
END_BYTES = 22
"""Length of that record without a comment."""
DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    RuntimeError,
    LookupError,
    ArithmeticError,
    ValueError,
)
"""What zipfile raises for a file that is no zip file, for a damaged one, and for an encrypted
member."""
NOT_AN_ARCHIVE = f"it is not a file of runs that vitprof wrote (*{SUFFIX}), or it is damaged"
EXPORT_FEWER = "export fewer at a time"
TOO_MANY_RUNS = f"it holds more than the {MAX_RUNS:,} runs that are allowed"
MAX_TEXT = 10_000
"""The most characters of a text."""
MAX_KEY = 100
"""The most characters of a key."""
MAX_DEPTH = 12
"""The deepest nesting; a verdict has its deepest values at depth 5."""
MAX_EXACT = 2**53
"""Whole numbers up to here are exact as float64, and every database holds them."""
MAX_TIME_S = 1e9
"""The latest time on a monotonic clock, which counts from its machine's start: 31 years.

In ns it fits int64."""
MAX_WHOLE = 2.0**31
"""Numbers of steps and epochs, and samples of a batch, are below that."""
WHOLE = tuple(c.name for c in columns(StepRecord) if c.integer)
"""Columns of steps that hold whole numbers."""


class ArchiveError(errors.VitprofError):
    """A file of recordings that cannot be written, or one that is refused; nothing of it was
    stored.
    """


def need(holds: object, otherwise: str) -> None:
    """Raises `ArchiveError` with the message `otherwise` unless `holds`."""
    if not holds:
        raise ArchiveError(otherwise)


# writing


def pack(recordings: Iterable[Recording]) -> bytes:
    """Returns the file of these recordings.

    The same ones give the same bytes. Raises `ArchiveError`.
    """
    target = io.BytesIO()
    n = 0
    unpacked = 0
    in_memory = 0
    with zipfile.ZipFile(target, "w") as archive:
        for n, recording in enumerate(recordings, 1):
            for name, data in zip(_names(n), _members_of(recording), strict=True):
                unpacked += len(data)
                _write(archive, name, data)
            in_memory += _bytes_of(recording)
            # Checked with each run: what does not fit is not made first.
            allowed = (
                f"a file may hold {MAX_RUNS:,} runs and {size(MAX_UNPACKED_BYTES)}; {EXPORT_FEWER}"
            )
            need(
                n <= MAX_RUNS and unpacked <= MAX_UNPACKED_BYTES,
                f"{n:,} run(s) take {size(unpacked)}; {allowed}",
            )
            need(
                in_memory <= MAX_SERIES_BYTES,
                f"{n:,} run(s) take {size(in_memory)} in memory, of at most {size(MAX_SERIES_BYTES)}; {EXPORT_FEWER}",
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
    # A ZipInfo of its own has no time in it: the same runs give the same bytes.
    info = zipfile.ZipInfo(name)
    archive.writestr(info, data, zipfile.ZIP_DEFLATED, COMPRESSION_LEVEL)


def _names(number: int) -> tuple[str, str, str]:
    return f"recording-{number}.json", f"steps-{number}.parquet", f"telemetry-{number}.parquet"


def _members_of(recording: Recording) -> tuple[bytes, bytes, bytes]:
    without_series = dataclasses.replace(recording, steps=None, telemetry=None)
    plain = harmless(codec.to_plain(without_series, Recording))
    described = json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode()
    too_long = f"run {recording.run_id} has more notes, notices and phases than a file may hold; leave it out"
    need(len(described) <= MAX_JSON_BYTES, too_long)
    return described, _parquet(recording.steps or {}), _parquet(recording.telemetry or {})


def _parquet(series: Columns) -> bytes:
    """Returns the columns that have any value; a reader gets NaN for the others."""
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
    # Each byte of the floats in a stream of its own: these compress, the floats themselves hardly
    # do.
    small = {
        "use_dictionary": False,
        "write_statistics": False,
        "use_byte_stream_split": True,
        "store_schema": False,
    }
    pq.write_table(table, out, compression="none", **small)
    return out.getvalue()


def harmless(value: Any, depth: int = 0) -> Any:
    """Returns plain values, with texts cut short and without what cannot be shown.

    NaN, infinities and whole numbers beyond `MAX_EXACT` become None. What is nested deeper than
    `MAX_DEPTH` becomes its text.
    """
    if isinstance(value, str):
        return NOT_SHOWN.sub(MARK, value[:MAX_TEXT])
    if isinstance(value, dict) and depth <= MAX_DEPTH:
        return {
            harmless(str(key))[:MAX_KEY]: harmless(item, depth + 1) for key, item in value.items()
        }
    if isinstance(value, list) and depth <= MAX_DEPTH:
        return [harmless(item, depth + 1) for item in value]
    if isinstance(value, float):
        return value if abs(value) < np.inf else None
    if isinstance(value, int):
        return value if abs(value) <= MAX_EXACT else None
    if value is None:
        return None
    return harmless(str(value))


# reading


def unpack(source: BinaryIO) -> list[Recording]:
    """Returns the recordings of a file, all of it checked. Raises `ArchiveError`."""
    n_bytes = source.seek(0, io.SEEK_END)
    too_large = f"it has {size(n_bytes)}, and {size(MAX_FILE_BYTES)} are allowed"
    need(n_bytes <= MAX_FILE_BYTES, too_large)
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
    # Not isinstance: JSON's true is an int in Python.
    if type(n) is not int or not 1 <= n <= MAX_RUNS:
        raise ArchiveError(f"its {MANIFEST} is not as vitprof writes it")
    wanted = {name for number in range(1, n + 1) for name in _names(number)}
    need(wanted <= set(members), "a part of a run is missing in it")
    need(wanted == set(members), "it has files that do not belong to a run")
    # a config names its data set, which its run describes; nothing of that is kept
    recordings: list[Recording] = []
    n_bytes = 0
    with registry.guests(), series_file.SeriesReader() as reader:
        for number in range(1, n + 1):
            recording = _recording(number, members, reader)
            n_bytes += _bytes_of(recording)
            too_many = f"its series take more than the {size(MAX_SERIES_BYTES)} that are allowed"
            need(n_bytes <= MAX_SERIES_BYTES, too_many)
            recordings.append(recording)
    return recordings


def _bytes_of(recording: Recording) -> int:
    """Returns what the series of a recording take in memory."""
    series = (recording.steps or {}, recording.telemetry or {})
    return sum(values.nbytes for columns in series for values in columns.values())


class _BoundedReader:
    """A file for zipfile that refuses to read too much at once, whatever sizes the archive claims."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self.seek = source.seek
        self.tell = source.tell
        self.seekable = source.seekable

    def read(self, n: int = -1, /) -> bytes:
        need(n <= MAX_READ_BYTES, TOO_MANY_RUNS)
        if n < 0:
            # As much as there is: zipfile reads the end record so.
            n = MAX_READ_BYTES
        return self._source.read(n)


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
        # Only for these two zipfile bounds what it unpacks at once.
        bounded = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
        need(
            {info.compress_type for info in infos} <= bounded,
            "it is packed in a way that vitprof does not write",
        )
        # The manifest comes on top.
        remaining = MAX_UNPACKED_BYTES + MAX_JSON_BYTES
        for info in infos:
            members[info.filename] = _member(archive, info, remaining)
            remaining -= len(members[info.filename])
    return members


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, remaining: int) -> bytes:
    """Returns a member's bytes.

    Raises `ArchiveError` as soon as they grow too large, whatever its header says.
    """
    allowed = MAX_JSON_BYTES if info.filename.endswith(".json") else MAX_UNPACKED_BYTES
    data = bytearray()
    with archive.open(info) as member:
        while part := member.read(MAX_READ_BYTES):
            data += part
            too_large = len(data) > min(allowed, remaining)
            need(
                not too_large,
                f"{info.filename} would unpack to more than the {size(allowed)} that are allowed",
            )
    return bytes(data)


def _json(data: bytes, what: str) -> dict[str, Any]:
    """Returns the JSON object in `data`, harmless. Raises `ArchiveError`."""
    try:
        # Python's reader takes NaN, which RFC 8259 does not have; int("NaN") raises.
        value: Any = json.loads(data.decode(), parse_constant=int)
    except (ValueError, RecursionError) as error:
        raise ArchiveError(f"{what} is not JSON in UTF-8 as vitprof writes it") from error
    need(isinstance(value, dict), f"{what} is not a JSON object")
    return dict(harmless(value))


def _recording(
    number: int, members: dict[str, bytes], reader: series_file.SeriesReader
) -> Recording:
    """Returns a recording that fits its type and makes sense.

    Raises `ArchiveError` that names the file.
    """
    names = _names(number)
    values = _json(members.pop(names[0]), names[0])
    try:
        own = (values.get("facts") or {}).get("own_set")
        if own:
            known = codec.from_plain(registry.OwnSet, own).without_secrets()
            registry.introduce(known)
            own["spec"] = known.spec
        values["config"] = _config(values.get("config"))
        if isinstance(values.get("verdict"), dict):
            values["verdict"] = with_gain(values["verdict"])
        recording = codec.from_plain(Recording, values | {"steps": None, "telemetry": None})
        _check(recording)
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
    steps = _columns(reader, members.pop(names[1]), STEP_COLUMNS, names[1])
    of_telemetry = ("seq", *TELEMETRY_COLUMNS)
    telemetry = _columns(reader, members.pop(names[2]), of_telemetry, names[2])
    _check_steps(steps, names[1])
    t_s = telemetry["t_s"]
    in_time = np.all(np.abs(t_s) <= MAX_TIME_S) and np.all(np.diff(t_s) >= 0)
    need(in_time, f"{names[2]}: its samples are not in the order of time")
    numbers = np.arange(len(t_s), dtype=np.float64)
    return dataclasses.replace(recording, steps=steps, telemetry={**telemetry, "seq": numbers})


def _config(values: Any) -> RunConfig:
    """Returns a config whose names are known here, as pages look them up.

    It may be one that cannot be run, since an older vitprof may have allowed more: `resolve` checks
    that before a run. Raises `ConfigError`, `ArchiveError`.
    """
    try:
        config = RunConfig.from_dict(values)
        parts = {kind: getattr(config, kind) for kind in PARTS}
        if is_own_script(config):
            storage = parts.pop("storage")
            usual = {"location": None, "loader": "dataloader", "transfer": None}
            fits = parts == usual and config.model == OWN_SCRIPT
            need(
                fits and storage in (None, KEPT_IN_RAM) and len(config.dataset) <= MAX_NAME,
                NOT_AS_WRITTEN,
            )
            return config
        # Looked up for the errors that they raise.
        info = catalog.dataset_info(config.dataset, config.n_images)
        _ = models.model_preset(config.model)
        _ = strategy(config.strategy).combination(info, parts).parts
    except LookupError as error:
        raise ArchiveError(f"its config names {error}, which this vitprof does not have") from error
    return config


NOT_AS_WRITTEN = "config is not as vitprof writes it"


CREATED = "%Y-%m-%dT%H:%M:%SZ"
CREATED_LENGTH = len("2026-01-31T23:59:59Z")
MAX_HOST = 255
"""The most characters of a host's name (RFC 1035)."""
MAX_ROLE = 200


def _check(run: Recording) -> None:
    """Raises `ArchiveError` for values that have the right type and that no run has."""
    origin = run.facts.get("imported") or {}
    times = [run.t_origin_s or 0.0, run.training_since_s or 0.0]
    for phase in run.phases:
        times += [phase.t_start_s, phase.t_end_s]
    # strptime takes "1" for "01", so the length is checked, too. It raises ValueError.
    created = len(run.created_utc) == CREATED_LENGTH and dt.datetime.strptime(
        run.created_utc, CREATED
    )
    on_a_clock = all(abs(t) <= MAX_TIME_S for t in times)
    in_time = all(phase.t_start_s <= phase.t_end_s for phase in run.phases)
    # Facts and environment are looked up together.
    in_both = run.facts.keys() & Environment.__annotations__.keys()
    for field, holds in {
        "run_id": 0 < run.run_id < MAX_WHOLE,
        "name": 0 < len(run.name) <= MAX_NAME,
        "status": run.status in ENDED_STATUSES,
        "created_utc": created,
        "phases": on_a_clock and in_time,
        "facts": origin and _is_origin(origin["host"], origin["run_id"]),
        "environment": not in_both,
        "role": len(run.role) <= MAX_ROLE,
    }.items():
        need(holds, f"{field} is not as vitprof writes it")


def _is_origin(host: object, run_id: object) -> bool:
    """Returns whether these may say where a run was recorded: they are compared with those of others."""
    is_host = isinstance(host, str) and 0 < len(host) <= MAX_HOST
    return is_host and type(run_id) is int and 0 < run_id < MAX_WHOLE


def _columns(
    reader: series_file.SeriesReader, data: bytes, known: tuple[str, ...], what: str
) -> Columns:
    """Returns the columns of a file, (n,) float64 each: the known ones, NaN where it has none, then
    the others.
    """
    try:
        series = reader.columns(data, len(known), MAX_SERIES_BYTES)
    except series_file.Unreadable as error:
        raise ArchiveError(f"{what} {error}") from error
    need(
        not any(np.isinf(values).any() for values in series.values()),
        f"{what}: a number in it is too large",
    )
    n = len(next(iter(series.values()), ()))
    missing = {name: np.full(n, np.nan) for name in known}
    return missing | series


def _check_steps(steps: Columns, what: str) -> None:
    """Raises `ArchiveError` for steps on which the analysis cannot rely."""
    for name in WHOLE:
        # NaN where the column is not in the file: that is refused, too.
        values = steps[name]
        whole = np.all((values >= 0) & (values < MAX_WHOLE) & (values % 1 == 0))
        need(whole, f"{what}: {name} has to be whole numbers")
    ascending = np.diff(steps["step"]) > 0
    # A row may be another rank's part of the same step.
    next_rank = (np.diff(steps["step"]) == 0) & (np.diff(steps["rank"]) > 0)
    need(np.all(ascending | next_rank), f"{what}: its steps are not in order")
    # One sort, not a look for each rank: a sender may give each step a rank of its own.
    by_rank = np.argsort(steps["rank"], kind="stable")
    same = np.diff(steps["rank"][by_rank]) == 0
    goes_back = np.diff(steps["t_start_s"][by_rank]) < 0
    goes_back |= np.diff(steps["epoch"][by_rank]) < 0
    in_time = np.all(np.isfinite(steps["t_start_s"])) and not np.any(same & goes_back)
    need(in_time, f"{what}: its steps are not in the order of time")
    for name, values in steps.items():
        too_long = name.endswith("_s") and np.any(np.abs(values) > MAX_TIME_S)
        need(not too_long, f"{what}: {name} has times that no clock shows")
