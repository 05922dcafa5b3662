"""Runs and their steps as CSV, Parquet and JSON, from `vitprof.recording.columns` (docs/formats.md), and the figures of
a run in words. CSV is as in RFC 4180; a text cell that a spreadsheet would run as a formula gets an apostrophe in front
(OWASP, "CSV Injection"). Parquet and JSON (RFC 8259) have null, never NaN. Parquet's metadata has the schema version,
what the rows are, whether any run was simulated, and each run's settings and figures.
"""

import csv
import dataclasses
import io
import json
import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, BinaryIO

import numpy as np

from vitprof import formats
from vitprof.analysis.arrays import Series
from vitprof.analysis.timing import utilisation
from vitprof.analysis.verdict import headroom
from vitprof.config import CONFIG_COLUMNS, RunConfig, descriptions, types_of
from vitprof.recording import codec, columns, recording
from vitprof.store import RunStore, StoredRun, chunks
from vitprof.store.nodes import MOMENTS, of_other_ranks
from vitprof.store.predictions import StoredPrediction

FORMULA_STARTS = (*"=+-@\uff1d\uff0b\uff0d\uff20", "\t", "\r")
"""With the full-width forms, which spreadsheets of some languages take for the same."""
SUMMARY_HEADER = (
    *(*columns.RUN_COLUMNS, *CONFIG_COLUMNS, "device_name", *columns.SUMMARY_COLUMNS),
    *("error", "schema_version", "simulated", "verdict"),
)
STEPS_HEADER = (*columns.RUN_COLUMNS[:2], *columns.STEP_COLUMNS, "simulated")
FIGURES = (*columns.columns(columns.StepRecord), *columns.columns(columns.RunSummary))
INTEGERS = frozenset(c.name for c in FIGURES if c.integer) | {"seq"}
TIMESTAMPS = (*MOMENTS, "t_s")
"""Columns of steps and telemetry that are moments on the monotonic clock, not durations."""
KINDS: dict[str, type] = (
    dict.fromkeys((*STEPS_HEADER, *SUMMARY_HEADER), str)
    | {name: kind for name, (kind, *_) in types_of(RunConfig).items()}
    | {c.name: int if c.integer else float for c in FIGURES}
    | {"run_id": int, "schema_version": int, "simulated": bool}
)
ARROW = {int: "int64", float: "float64", bool: "bool"}
ROW_GROUP = 131_072
"""Rows of a row group: 35 MB of memory while it is written; readers load as many at once."""
NUMBERS_AT_ONCE = 100_000


def since_start(series: Series, origin_s: float | None) -> Series:
    """Returns the same columns, with moments in seconds since `origin_s`, so that runs can be laid over each other."""
    return {
        name: values - (origin_s or 0.0) if name in TIMESTAMPS else values
        for name, values in series.items()
    }


def step_names(store: RunStore, runs: Iterable[StoredRun]) -> tuple[str, ...]:
    return tuple(
        dict.fromkeys(
            (*columns.STEP_COLUMNS, *(name for run in runs for name in store.step_names(run.id)))
        )
    )


def figures(run: StoredRun) -> dict[str, float | int | None]:
    return (
        columns.summary_to_dict(run.summary)
        if run.summary
        else dict.fromkeys(columns.SUMMARY_COLUMNS)
    )


def summary_row(run: StoredRun) -> list[object]:
    summary = figures(run)
    device_name = run.environment.get("device_name")
    return [
        *(getattr(run, name) for name in columns.RUN_COLUMNS),
        *(getattr(run.config, name) for name in CONFIG_COLUMNS),
        None if device_name is None else str(device_name),
        *(summary[name] for name in columns.SUMMARY_COLUMNS),
        *(
            run.error,
            columns.SCHEMA_VERSION,
            run.simulated,
            run.verdict.kind if run.verdict else None,
        ),
    ]


def figures_in_words(run: StoredRun) -> list[tuple[str, str, str]]:
    """Returns the known figures of a run: the name of each, its value as a person reads it, and what it means."""
    s = run.summary or columns.RunSummary()
    low = formats.number(s.samples_per_s_low)
    high = formats.number(s.samples_per_s_high)
    interval = f" ({low} to {high})" if math.isfinite(s.samples_per_s_low) else ""
    epoch = "measured" if s.n_epochs_measured else "extrapolated from the throughput"
    inside = f", inside the loader about {formats.percent(s.loader_times_frac)}"
    cost = "share of the time that vitprof's own recording took"
    rows = [
        (
            "Samples/s",
            formats.number(s.samples_per_s) + interval,
            "over the training time, with its 95% interval",
        ),
        (
            "Time of an epoch",
            ("" if s.n_epochs_measured else "~ ") + formats.seconds(s.epoch_s),
            epoch,
        ),
        (
            "Step, median",
            formats.seconds(s.step_ms_median / 1e3),
            f"of {s.n_steady_steps:,} steady steps",
        ),
        ("Step, 95% below", formats.seconds(s.step_ms_p95 / 1e3), ""),
        (
            "Device idle",
            formats.percent(s.device_idle_frac),
            "share of the time between steps without compute",
        ),
        (
            "Idle for data",
            formats.percent(s.exposed_wait_frac),
            "the part of it in which the loop waited for data",
        ),
        (
            "Idle for the copy",
            formats.percent(s.exposed_h2d_frac),
            "the part of it spent on the copy to the device",
        ),
        (
            "Data wait",
            formats.percent(s.data_wait_frac),
            "share of the time that the loop was blocked in next(loader)",
        ),
        (
            "GPU-util",
            formats.percent(s.gpu_util_pct_mean / 100),
            "mean while training, as NVML counts it",
        ),
        ("SM activity", utilisation.sm_activity(s, run.environment).words, utilisation.MEANING),
        *(
            (f"{m.name}, peak", formats.size(m.n_bytes), m.meaning)
            for m in utilisation.device_memory(s)
        ),
        ("Memory, peak", formats.size(s.rss_peak_bytes), "resident, of the job's processes"),
        ("CPU", formats.seconds(s.cpu_s_per_sample), "of the job's processes for each sample"),
        ("Preparing", formats.seconds(s.prepare_s), "data set and storage, not part of the epoch"),
        ("Storage", formats.size(s.storage_bytes), "on disk"),
        (
            "In the page cache",
            formats.percent(s.page_cached_frac),
            "share of the storage, at the start",
        ),
        (
            "Copied first",
            formats.seconds(s.stage_s or None),
            "to RAM disk or local disk, not part of the epoch",
        ),
        (
            "Cache hits",
            formats.percent(s.cache_hit_frac),
            "share of the samples that the partial cache had",
        ),
        (
            "Left out",
            f"{s.n_unreadable:,}" if s.n_unreadable else "",
            "samples that could not be read",
        ),
        ("First batch", formats.seconds(s.first_batch_s), "wait for it, worker start included"),
        (
            "Change of epochs",
            formats.seconds(s.epoch_restart_s),
            "median wait for the first batch of a later epoch",
        ),
        ("Whole job", formats.seconds(s.wall_s), "from its start to its end"),
        (
            "Training loss",
            formats.number(s.loss_last),
            f"of the last step; {formats.number(s.loss_first)} at first",
        ),
        ("Accuracy", formats.percent(s.test_accuracy), "on the test set, at the last evaluation"),
        (
            "Cost of recording",
            formats.percent(s.recording_frac),
            cost + inside * math.isfinite(s.loader_times_frac),
        ),
    ]
    return [row for row in rows if row[1] and formats.NOT_AVAILABLE not in row[1]]


ANCHORS_HEADER = ("anchor", "a step takes", "95% interval", "samples/s", "steps", "adds")


def anchors_in_words(found: headroom.Headroom, batch: int) -> list[tuple[str, ...]]:
    """Returns a row for each anchor of a headroom, with the columns of `ANCHORS_HEADER`; `batch`: samples in a step."""
    rows: list[tuple[str, ...]] = []
    added = {part.name.rpartition(" and ")[2]: part for part in found.parts}
    for a in found.anchors:
        step, low, high = (formats.seconds(v * batch) for v in a.interval)
        speed = formats.number(1 / a.s_per_sample if a.n_runs else None)
        name = f"{a.role}: {headroom.ANCHOR_WORDS[a.role]}"
        n = f"{a.n_steps} of {formats.count(a.n_runs, 'run')}"
        stage = added.get(headroom.ADDED_STAGE.get(a.role, ""))
        adds = ""
        if stage is not None and stage.distinguishable:
            adds = f"{stage.name} {formats.seconds(stage.s_per_sample * batch)}"
        elif stage is not None:
            most = f" (at most {formats.seconds(stage.high * batch)})" if stage.high > 0 else ""
            adds = f"{stage.name}: not distinguishable from nothing{most}"
        rows.append((name, step, f"{low} to {high}", speed, n, adds))
    return rows


PREDICTIONS_HEADER = (
    *("strategy", "predicted samples/s", "95% interval"),
    *("against this run", "measured samples/s", "error"),
)


def predictions_in_words(
    predictions: Sequence[StoredPrediction], profiled: StoredRun
) -> list[tuple[str, ...]]:
    """Returns a row for each prediction from a run, with the columns of `PREDICTIONS_HEADER`."""
    own = profiled.summary.samples_per_s if profiled.summary else math.nan
    return [
        (
            p.config.strategy,
            formats.number(p.samples_per_s),
            f"{formats.number(p.low)} to {formats.number(p.high)}",
            f"{formats.number(p.samples_per_s / own)}x",
            "predicted" if p.measured_per_s is None else formats.number(p.measured_per_s),
            "" if p.error is None else f"{p.error * 100:+.1f}%",
        )
        for p in predictions
    ]


# CSV


def cell_text(value: object) -> str:
    """Returns `value` as a CSV cell: numbers in full precision, "" for what is not available, no live formulas."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(float(value))  # NumPy's own repr is no number
    if isinstance(value, int):
        return repr(value)
    text = str(value)
    return "'" + text if text.startswith((*FORMULA_STARTS, "'")) else text


def csv_text(header: Iterable[str], rows: Iterable[Iterable[object]] = ()) -> str:
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(header)
    writer.writerows([cell_text(v) for v in row] for row in rows)
    return out.getvalue()


def summary_csv(runs: Iterable[StoredRun]) -> str:
    return csv_text(SUMMARY_HEADER, map(summary_row, runs))


def write_steps_csv(store: RunStore, runs: Sequence[StoredRun], file: BinaryIO) -> None:
    """Writes a row for each step, a few thousand in memory at a time; moments are seconds since the run began."""
    names = step_names(store, runs)
    file.write(csv_text((*STEPS_HEADER[:2], *names, STEPS_HEADER[-1])).encode())
    for run in runs:
        for part in chain(
            store.steps_in_parts(run.id, names=names), of_other_ranks(store, run, names)
        ):
            file.write(_rows(run, since_start(part, run.t_origin_s)))


def _rows(run: StoredRun, part: Series) -> bytes | memoryview:
    """Returns the rows of a part. A million take 3 s, a fifth of the time that Python's own `repr` of them takes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    before, after = (
        csv_text(map(cell_text, known)) for known in ((run.id, run.name), (run.simulated,))
    )
    text = pa.large_string()
    cells = [column.cast(text) for column in chunks.as_table(part, INTEGERS).columns]
    ends = (pa.scalar(before.removesuffix("\r\n"), text), pa.scalar(after, text))
    options = {"null_handling": "replace", "null_replacement": ""}
    rows = pc.binary_join_element_wise(
        ends[0], *cells, ends[1], pa.scalar(",", text), **options
    ).combine_chunks()
    _, ends_at, texts = (
        rows.buffers()
    )  # the texts of an array are stored one after another: they are the file
    n_bytes = int(np.frombuffer(ends_at, np.int64)[len(rows)])
    return memoryview(texts)[:n_bytes] if n_bytes else b""


# Parquet


def write_steps_parquet(store: RunStore, runs: Sequence[StoredRun], file: BinaryIO) -> None:
    """Writes a row for each step, one row group in memory at a time; moments are seconds since the run began."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = step_names(store, runs)
    schema = _schema((*STEPS_HEADER[:2], *names, STEPS_HEADER[-1]), "steps", runs)
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for run in runs:
            own = store.steps_in_parts(run.id, names=names, rows=ROW_GROUP)
            for part in chain(own, of_other_ranks(store, run, names)):
                steps = chunks.as_table(since_start(part, run.t_origin_s), INTEGERS)
                if n := steps.num_rows:
                    run_id, name, simulated = (
                        pa.repeat(value, n) for value in (run.id, run.name, run.simulated)
                    )
                    table = pa.Table.from_arrays(
                        [run_id, name, *steps.columns, simulated], schema=schema
                    )
                    writer.write_table(table, row_group_size=ROW_GROUP)


def summary_parquet(runs: Sequence[StoredRun]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _schema(SUMMARY_HEADER, "summary", runs)
    rows = [summary_row(run) for run in runs]
    arrays = [pa.array([row[i] for row in rows], f.type) for i, f in enumerate(schema)]
    out = pa.BufferOutputStream()
    pq.write_table(pa.table(arrays, schema=schema), out, compression="zstd")
    return bytes(out.getvalue())


def _schema(header: Iterable[str], rows: str, runs: Sequence[StoredRun]) -> Any:
    import pyarrow as pa

    metadata = {
        "vitprof.schema_version": str(columns.SCHEMA_VERSION),
        "vitprof.rows": rows,
        "vitprof.simulated": json.dumps(any(run.simulated for run in runs)),
    }
    if rows == "steps":
        metadata["vitprof.runs"] = json.dumps([run_object(run) for run in runs])
    docs = {c.name: c.doc for c in FIGURES} | {
        name: descriptions()[name] for name in CONFIG_COLUMNS
    }
    kinds = (
        (name, pa.type_for_alias(ARROW.get(KINDS.get(name, float), "string"))) for name in header
    )
    fields = [
        pa.field(n, kind, metadata={"description": docs[n]} if docs.get(n) else None)
        for n, kind in kinds
    ]
    return pa.schema(fields, metadata=metadata)


# JSON


def run_object(run: StoredRun, tags: Sequence[str] = ()) -> dict[str, Any]:
    """Returns a run as one JSON object, a `Recording` without series; its phases count from the run's beginning."""
    origin = run.t_origin_s or 0.0
    phases = [
        dataclasses.replace(p, t_start_s=p.t_start_s - origin, t_end_s=p.t_end_s - origin)
        for p in run.phases
    ]
    shown = dataclasses.replace(run, phases=tuple(phases), tags=tuple(tags))
    plain: dict[str, Any] = codec.to_plain(shown, recording.Recording)
    return plain | {"error": run.error or None}


def write_runs_json(
    store: RunStore, runs: Iterable[StoredRun], file: BinaryIO, *, series: bool = True
) -> None:
    """Writes runs as a line of JSON, with their series `NUMBERS_AT_ONCE` numbers at a time, or null if not `series`."""
    file.write(
        _json({"schema_version": columns.SCHEMA_VERSION, "runs": []}).removesuffix("]}").encode()
    )
    for number, run in enumerate(runs):
        about = run_object(run, store.tags(run.id))
        read = {"steps": store.steps, "telemetry": store.telemetry} if series else {}
        about = {name: value for name, value in about.items() if name not in read}
        file.write(f"{', ' if number else ''}{_json(about).removesuffix('}')}".encode())
        for name, of_run in read.items():
            file.write(f', "{name}": '.encode())
            _write_columns(since_start(of_run(run.id), run.t_origin_s), file)
        file.write(b"}")
    file.write(b"]}\n")


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def _write_columns(series: Series, file: BinaryIO) -> None:
    for number, (name, values) in enumerate(series.items()):
        file.write(f"{', ' if number else '{'}{_json(name)}: [".encode())
        for first in range(0, len(values), NUMBERS_AT_ONCE):
            part = values[first : first + NUMBERS_AT_ONCE]
            whole = name in INTEGERS
            plain: list[Any] = part.astype(int).tolist() if whole else part.tolist()
            for unknown in [] if whole else np.flatnonzero(~np.isfinite(part)).tolist():
                plain[unknown] = None
            file.write(((", " if first else "") + _json(plain)[1:-1]).encode())
        file.write(b"]")
    file.write(b"}")
