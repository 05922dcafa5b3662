"""Runs and their steps as CSV, Parquet and JSON, and the figures of a run in words.

The columns follow from `vitprof.recording.columns`; docs/formats.md describes them.

CSV is UTF-8 as in RFC 4180 (comma, CRLF, quotes where needed) with units in the header. A text cell
that a spreadsheet would run as a formula gets an apostrophe in front (OWASP, "CSV Injection"),
which other readers have to remove. Parquet and JSON (RFC 8259) have null for what is not available,
never NaN. Parquet's metadata has the schema version, what the rows are and whether any run was
simulated; in a file of steps also each run's settings and figures as JSON.
"""

import csv
import dataclasses
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, BinaryIO, cast

import numpy as np

from vitprof import formats
from vitprof.analysis.arrays import Floats, Series
from vitprof.analysis.timing import utilisation
from vitprof.analysis.timing.compute_parts import divided_compute_of, parts_in_words
from vitprof.analysis.verdict import headroom, rendering
from vitprof.analysis.verdict.answer import Answer, answer_of, causes_in_words
from vitprof.config import CONFIG_COLUMNS, RunConfig, descriptions, types_of
from vitprof.config.device_rate import rate_if_valid
from vitprof.recording import codec, columns, recording
from vitprof.recording.idle_cost import IdleCost
from vitprof.recording.verdict import Verdict
from vitprof.store import RunStore, StoredRun, chunks
from vitprof.store.nodes import MOMENTS, of_other_ranks

FORMULA_STARTS = (*"=+-@\uff1d\uff0b\uff0d\uff20", "\t", "\r")
"""With the full-width forms, which spreadsheets of some languages take for the same."""
ANSWER_DOCS: dict[str, str] = {
    "waits_for": "what the device waited for: data, data and copies, launching kernels",
    "idle_frac": "share of the training time that it waited for that, 0 to 1",
    "idle_frac_low": "lower end of its 95% interval, which decides the verdict",
    "idle_frac_high": "upper end of that interval",
    "by_what": "causes of that, each with its share of the training time",
    "gain_at_most": "how many times as fast the job would be with free data",
    "gain_measured": "whether that was measured by replaying batches; estimated if not",
    "gain_proven": "how many times as fast the fix is, by runs of both on a quiet machine",
    "gain_proven_low": "lower end of its 95% interval",
    "gain_proven_high": "upper end of that interval",
    "gain_while_busy": "at least how many times as fast the fix was, where other programs ran",
    "proof_tournament": "number of the tournament that has shown that",
    "fix": "what to change",
    "next_fix": "where the fix is proven, an advice that no run has decided and that may gain clearly more",
    "next_fix_at_most": "about how many times as fast the job would be at most with that advice alone",
    "other_programs_cores": "CPU cores that other programs used on average in the steady state, "
    "where that was a quarter of a core or more",
    "waiting_s": "seconds of the training time that all devices together waited for data",
    "recoverable_s": "what a fix gets back of that, as recoverable_by says",
    "recoverable_by": "proven: by runs of the fix, measured: by replaying batches, at most: all of the wait",
    "waiting_money": "what waiting_s cost at the price in VITPROF_DEVICE_RATE",
    "recoverable_money": "the same of recoverable_s",
    "currency": "currency of that price",
    "waiting_at_most_j": "energy of waiting_s: its share of all energy, which is the most that it can be",
    "recoverable_at_most_j": "the same of recoverable_s",
    "energy_by": "counter: NVML's counter of total energy, power: samples of the power",
}
"""Columns of the answer on a run -> what they are; empty where there is no verdict."""
SUMMARY_HEADER = (
    *columns.RUN_COLUMNS,
    *CONFIG_COLUMNS,
    "device_name",
    *columns.SUMMARY_COLUMNS,
    "error",
    "schema_version",
    "simulated",
    "verdict",
    *ANSWER_DOCS,
)
STEPS_HEADER = (*columns.RUN_COLUMNS[:2], *columns.STEP_COLUMNS, "simulated")
FIGURES = (*columns.columns(columns.StepRecord), *columns.columns(columns.RunSummary))
INTEGERS = frozenset(c.name for c in FIGURES if c.integer) | {"seq"}
"""Columns of whole numbers."""
TIMESTAMPS = (*MOMENTS, "t_s")
"""Columns of steps and telemetry that are moments on the monotonic clock, not durations."""
KINDS: dict[str, type] = (
    dict.fromkeys((*STEPS_HEADER, *SUMMARY_HEADER), str)
    | {name: kind for name, (kind, *_) in types_of(RunConfig).items()}
    | {c.name: int if c.integer else float for c in FIGURES}
    | {"run_id": int, "schema_version": int, "simulated": bool, "gain_measured": bool}
    | {"proof_tournament": int}
    | {
        name: float
        for name in ANSWER_DOCS
        if name.startswith(("idle_frac", "gain_at", "gain_proven", "gain_while", "next_fix_at"))
        or name == "other_programs_cores"
        or name.endswith(("_s", "_money", "_j"))
    }
)
"""Column -> the type of its values; a column of steps that only another version knows holds
floats."""
ARROW = {int: "int64", float: "float64", bool: "bool"}
"""Type -> Arrow's name for it; text for all others."""
ROW_GROUP = 131_072
"""Rows of a row group: 35 MB of memory while it is written; readers load as many at once."""
NUMBERS_AT_ONCE = 100_000
"""Numbers of a series that are Python objects at the same time, which take four times the memory of
an array's."""


def since_start(series: Series, origin_s: float | None) -> Series:
    """Returns the same columns, with moments in seconds since `origin_s`, so that runs can be laid
    over each other.
    """
    return {
        name: values - (origin_s or 0.0) if name in TIMESTAMPS else values
        for name, values in series.items()
    }


def step_names(store: RunStore, runs: Iterable[StoredRun]) -> tuple[str, ...]:
    """Returns the columns of steps that these runs have: the known ones, then those of other
    versions.
    """
    names = dict.fromkeys(columns.STEP_COLUMNS)
    for run in runs:
        names |= dict.fromkeys(store.step_names(run.id))
    return tuple(names)


def _figures(run: StoredRun) -> dict[str, float | int | None]:
    """Returns the run's summary by name; all None for a run without a summary, rather than 0 steps."""
    if not run.summary:
        return dict.fromkeys(columns.SUMMARY_COLUMNS)
    return columns.summary_to_dict(run.summary)


Answers = Mapping[int, Answer]
"""Number of a run -> the answer on it, with what proofs have shown."""


def answer_values(run: StoredRun, answer: Answer | None) -> dict[str, object]:
    """Returns the answer on a run by the columns of `ANSWER_DOCS`; empty where there is none.

    `answer`: one that knows of proofs; without it that of the verdict alone.
    """
    values: dict[str, object] = dict.fromkeys(ANSWER_DOCS)
    if answer is None and run.verdict is not None:
        answer = answer_of(run.verdict, summary=run.summary, rate=rate_if_valid())
    if run.verdict is not None:
        values["other_programs_cores"] = _others_cores(run.verdict)
    if answer is None:
        return values
    if not answer.is_conclusive:
        if math.isfinite(answer.frac):
            values["idle_frac"] = answer.frac
        return values
    values["waits_for"] = answer.waits_for
    values["idle_frac"] = answer.frac
    values["idle_frac_low"] = answer.low
    values["idle_frac_high"] = answer.high
    values["by_what"] = causes_in_words(answer)
    if answer.ceiling is not None:
        values["gain_at_most"] = answer.ceiling.times
        values["gain_measured"] = answer.ceiling.measured
    proof = answer.proof
    if proof is not None and proof.quiet:
        values["gain_proven"] = proof.times
        values["gain_proven_low"] = proof.low
        values["gain_proven_high"] = proof.high
    elif proof is not None:
        values["gain_while_busy"] = proof.low
    if proof is not None:
        values["proof_tournament"] = proof.tournament_id
    if answer.fix is not None:
        values["fix"] = answer.fix.words
    if answer.then is not None:
        values["next_fix"] = answer.then.words
        values["next_fix_at_most"] = answer.then.most_times
    return values | _cost_values(answer.cost)


def _cost_values(cost: IdleCost | None) -> dict[str, object]:
    """Returns what the idle time of a run cost, by the columns of `ANSWER_DOCS` that are known."""
    if cost is None:
        return {}
    waiting = cost.so_far.waiting
    values: dict[str, object] = {
        "waiting_s": waiting.seconds,
        "waiting_money": columns.json_number(waiting.money),
        "waiting_at_most_j": columns.json_number(waiting.joules),
        "currency": cost.currency or None,
        "energy_by": cost.energy_by or None,
    }
    recoverable = cost.so_far.recoverable
    if recoverable is not None:
        values["recoverable_s"] = recoverable.seconds
        values["recoverable_by"] = cost.recoverable_by
        values["recoverable_money"] = columns.json_number(recoverable.money)
        values["recoverable_at_most_j"] = columns.json_number(recoverable.joules)
    return values


def _others_cores(verdict: Verdict) -> float | None:
    """Returns the CPU cores that other programs used, as the verdict has them; None where that was
    little.

    Verdicts of older versions had them only where those programs ran all the time.
    """
    if verdict.cores_taken is not None:
        return verdict.cores_taken.cores
    for signature in verdict.signatures:
        if signature.name == "other-programs":
            return signature.evidence.get("others_cores")
    return None


def summary_row(run: StoredRun, answers: Answers | None = None) -> list[object]:
    """Returns the values of a run in the order of `SUMMARY_HEADER`."""
    summary = _figures(run)
    device_name = run.environment.get("device_name")
    return [
        *(getattr(run, name) for name in columns.RUN_COLUMNS),
        *(getattr(run.config, name) for name in CONFIG_COLUMNS),
        None if device_name is None else str(device_name),
        *(summary[name] for name in columns.SUMMARY_COLUMNS),
        run.error,
        columns.SCHEMA_VERSION,
        run.simulated,
        rendering.in_a_word(run.verdict) if run.verdict else None,
        *answer_values(run, (answers or {}).get(run.id)).values(),
    ]


def _parts_of_compute(summary: columns.RunSummary) -> list[tuple[str, str, str]]:
    divided = divided_compute_of(summary)
    if divided is None:
        return []
    value = f"{formats.seconds(divided.median_s)}: {parts_in_words(divided)}"
    what = f"median, and shares, of the {divided.n:,} steady steps of which they are known"
    return [("Compute of a step", value, what)]


def figures_in_words(run: StoredRun) -> list[tuple[str, str, str]]:
    """Returns the known figures of a run: the name of each, its value as a person reads it, and
    what it means.
    """
    s = run.summary or columns.RunSummary()
    speed = formats.number(s.samples_per_s)
    if math.isfinite(s.samples_per_s_low):
        low = formats.number(s.samples_per_s_low)
        high = formats.number(s.samples_per_s_high)
        speed += f" ({low} to {high})"
    epoch = formats.seconds(s.epoch_s)
    epoch_from = "measured"
    if not s.n_epochs_measured:
        epoch = f"~ {epoch}"
        epoch_from = "extrapolated from the throughput"
    without = ""
    if run.verdict is not None and run.verdict.n_epoch_starts:
        starts = formats.count(run.verdict.n_epoch_starts, "epoch start")
        without = f", without the {starts}"
    cost = "share of the time that vitprof's own recording took"
    if math.isfinite(s.loader_times_frac):
        cost += f", inside the loader about {formats.percent(s.loader_times_frac)}"
    over_training = "over the training time"
    if math.isfinite(s.samples_per_s_low):
        over_training += ", with its 95% interval"
    rows = [
        ("Samples/s", speed, over_training),
        ("Time of an epoch", epoch, epoch_from),
        (
            "Step, median",
            formats.seconds(s.step_ms_median / 1e3),
            f"of {formats.steps(s.n_steady_steps)}{without}",
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
        *_parts_of_compute(s),
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
            "times that a sample could not be read; the same one counts again in each epoch",
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
        ("Cost of recording", formats.percent(s.recording_frac), cost),
    ]
    return [row for row in rows if row[1] and formats.NOT_AVAILABLE not in row[1]]


ANCHORS_HEADER = ("anchor", "a step takes", "95% interval", "samples/s", "steps", "adds")
"""What a table of anchors has in its first row."""


def anchors_in_words(measured: headroom.Headroom, batch: int) -> list[tuple[str, ...]]:
    """Returns a row for each anchor of a headroom, with the columns of `ANCHORS_HEADER`; `batch`:
    samples in a step.
    """
    rows: list[tuple[str, ...]] = []
    added = {part.name.rpartition(" and ")[2]: part for part in measured.parts}
    for a in measured.anchors:
        step, low, high = (formats.seconds(v * batch) for v in a.interval)
        speed = formats.number(1 / a.s_per_sample if a.n_runs else None)
        name = f"{a.role}: {headroom.ANCHOR_WORDS[a.role]}"
        n = f"{a.n_steps} in {formats.count(a.n_runs, 'run')}"
        stage = added.get(headroom.ADDED_STAGE.get(a.role, ""))
        adds = ""
        if stage is not None and stage.distinguishable:
            adds = f"{stage.name} {formats.seconds(stage.s_per_sample * batch)}"
        elif stage is not None:
            adds = f"{stage.name}: not distinguishable from nothing"
            if stage.high > 0:
                adds += f" (at most {formats.seconds(stage.high * batch)})"
        rows.append((name, step, f"{low} to {high}", speed, n, adds))
    return rows


# CSV


def cell_text(value: object) -> str:
    """Returns `value` as a CSV cell: numbers in full precision, "" for what is not available, no
    live formulas.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        # NumPy's own repr, np.float64(1.5), is no number.
        return repr(float(value))
    if isinstance(value, int):
        return repr(value)
    text = str(value)
    # An apostrophe of the text's own gets one, too, so that a reader can take one away from each.
    if text.startswith((*FORMULA_STARTS, "'")):
        return f"'{text}"
    return text


def csv_text(header: Iterable[str], rows: Iterable[Iterable[object]] = ()) -> str:
    """Returns a whole CSV file; every cell as `cell_text` writes it."""
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(header)
    writer.writerows([cell_text(v) for v in row] for row in rows)
    return out.getvalue()


def summary_csv(runs: Iterable[StoredRun], answers: Answers | None = None) -> str:
    """Returns a CSV file with one row for each run: its config, its summary and its answer."""
    return csv_text(SUMMARY_HEADER, [summary_row(run, answers) for run in runs])


def write_steps_csv(store: RunStore, runs: Sequence[StoredRun], file: BinaryIO) -> None:
    """Writes a CSV file with one row for each step of each run, with a few thousand rows in memory
    at a time.

    Moments are seconds since the run began.
    """
    names = step_names(store, runs)
    file.write(csv_text((*STEPS_HEADER[:2], *names, STEPS_HEADER[-1])).encode())
    for run in runs:
        own = store.steps_in_parts(run.id, names=names)
        for part in chain(own, of_other_ranks(store, run, names)):
            file.write(_rows(run, since_start(part, run.t_origin_s)))


def _rows(run: StoredRun, part: Series) -> bytes | memoryview:
    """Returns the rows of a part as CSV.

    Arrow writes the numbers. A million rows take 3 s, a fifth of the time that Python's own `repr`
    of them takes.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pa.large_string()
    # The cells that each row begins and ends with; the line's end comes with the last one.
    first = csv_text([cell_text(run.id), cell_text(run.name)]).removesuffix("\r\n")
    last = csv_text([cell_text(run.simulated)])
    cells = [column.cast(text) for column in chunks.as_table(part, INTEGERS).columns]
    options = {"null_handling": "replace", "null_replacement": ""}
    joined = pc.binary_join_element_wise(
        pa.scalar(first, text), *cells, pa.scalar(last, text), pa.scalar(",", text), **options
    )
    rows = joined.combine_chunks()
    # The texts of an array are stored one after another: they are the file.
    _, ends_at, texts = rows.buffers()
    n_bytes = int(np.frombuffer(ends_at, np.int64)[len(rows)])
    if not n_bytes:
        return b""
    return memoryview(texts)[:n_bytes]


# Parquet


def write_steps_parquet(store: RunStore, runs: Sequence[StoredRun], file: BinaryIO) -> None:
    """Writes a Parquet file with one row for each step of each run, with one row group in memory at
    a time.

    Columns are as in `STEPS_HEADER`; moments are seconds since the run began.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = step_names(store, runs)
    schema = _schema((*STEPS_HEADER[:2], *names, STEPS_HEADER[-1]), "steps", runs)
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for run in runs:
            own = store.steps_in_parts(run.id, names=names, rows=ROW_GROUP)
            for part in chain(own, of_other_ranks(store, run, names)):
                steps = chunks.as_table(since_start(part, run.t_origin_s), INTEGERS)
                n = steps.num_rows
                if not n:
                    continue
                run_id = pa.repeat(run.id, n)
                name = pa.repeat(run.name, n)
                simulated = pa.repeat(run.simulated, n)
                table = pa.Table.from_arrays(
                    [run_id, name, *steps.columns, simulated], schema=schema
                )
                writer.write_table(table, row_group_size=ROW_GROUP)


def summary_parquet(runs: Sequence[StoredRun], answers: Answers | None = None) -> bytes:
    """Returns a Parquet file with one row for each run, columns as in `SUMMARY_HEADER`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _schema(SUMMARY_HEADER, "summary", runs)
    rows = [summary_row(run, answers) for run in runs]
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
    docs = {column.name: column.doc for column in FIGURES}
    docs |= {name: descriptions()[name] for name in CONFIG_COLUMNS}
    docs |= ANSWER_DOCS
    fields = []
    for name in header:
        kind = pa.type_for_alias(ARROW.get(KINDS.get(name, float), "string"))
        described = {"description": docs[name]} if docs.get(name) else None
        fields.append(pa.field(name, kind, metadata=described))
    return pa.schema(fields, metadata=metadata)


# JSON


def run_object(
    run: StoredRun, tags: Sequence[str] = (), answer: Answer | None = None
) -> dict[str, Any]:
    """Returns a run as one JSON object, a `Recording` without series; its phases count from the
    run's beginning. `answer`: the answer on it, which knows what its idle time cost.
    """
    origin = run.t_origin_s or 0.0
    phases = [
        dataclasses.replace(p, t_start_s=p.t_start_s - origin, t_end_s=p.t_end_s - origin)
        for p in run.phases
    ]
    cost = None if answer is None else answer.cost
    shown = dataclasses.replace(run, phases=tuple(phases), tags=tuple(tags), idle_cost=cost)
    plain: dict[str, Any] = codec.to_plain(shown, recording.Recording)
    return plain | {"error": run.error or None}


def write_runs_json(
    store: RunStore,
    runs: Iterable[StoredRun],
    file: BinaryIO,
    *,
    series: bool = True,
    answers: Answers | None = None,
) -> None:
    """Writes runs as one JSON object on one line; each has its steps and telemetry, by column.

    These are null if not `series`. Moments are seconds since the run began. Only `NUMBERS_AT_ONCE`
    numbers at a time become Python objects: a million steps take the memory of their arrays.
    """
    whole = _json({"schema_version": columns.SCHEMA_VERSION, "runs": []})
    file.write(whole.removesuffix("]}").encode())
    read = {"steps": store.steps, "telemetry": store.telemetry} if series else {}
    for number, run in enumerate(runs):
        if number:
            file.write(b", ")
        about = run_object(run, store.tags(run.id), (answers or {}).get(run.id))
        about = {name: value for name, value in about.items() if name not in read}
        file.write(_json(about).removesuffix("}").encode())
        for name, of_run in read.items():
            file.write(f', "{name}": '.encode())
            _write_columns(since_start(of_run(run.id), run.t_origin_s), file)
        file.write(b"}")
    file.write(b"]}\n")


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def _write_columns(series: Series, file: BinaryIO) -> None:
    """Writes an object that has a list for each column; null for what is not available."""
    before = "{"
    for name, values in series.items():
        file.write(f"{before}{_json(name)}: [".encode())
        before = ", "
        for first in range(0, len(values), NUMBERS_AT_ONCE):
            if first:
                file.write(b", ")
            part = values[first : first + NUMBERS_AT_ONCE]
            file.write(_json(_plain(name, part))[1:-1].encode())
        file.write(b"]")
    file.write(b"}")


def _plain(name: str, values: Floats) -> list[Any]:
    """Returns a column's values as JSON can carry them."""
    if name in INTEGERS:
        return cast(list[Any], values.astype(int).tolist())
    plain: list[Any] = values.tolist()
    for unknown in np.flatnonzero(~np.isfinite(values)).tolist():
        plain[unknown] = None
    return plain
