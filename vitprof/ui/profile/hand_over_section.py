"""How batches cross from the workers of a watched script, on the Loading tab."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import streamlit as st

from vitprof import formats, store
from vitprof.analysis.arrays import Mask, Series, mean
from vitprof.analysis.timing import hand_over, worker_use
from vitprof.ui import findings, tables

HELP = (
    "Batches cross from a worker in shared memory: each storage of their tensors is a segment of "
    "its own. Figures are of the first batch, of what the first worker says of itself, and of "
    "samples while it ran."
)


class Row(NamedTuple):
    """A line of the table."""

    what: str
    how_much: str
    meaning: str


COLUMNS: tuple[tables.TableColumn, ...] = (
    tables.TableColumn("What", "What is told.", lambda row: row.what),
    tables.TableColumn("How much", "The figure.", lambda row: row.how_much),
    tables.TableColumn("Meaning", "How to read it.", lambda row: row.meaning),
)


def draw_hand_over(run: store.StoredRun, steps: Series, keep: Mask) -> None:
    """Draws what is known of it, with shares of the steps in `keep`, (n,) bool; nothing for a run without
    workers."""
    if not run.config.workers:
        return
    rows = [*_of_a_batch(run), *_of_pickling(run, steps, keep), *_of_descriptors(run)]
    if rows:
        rows += _of_the_workers(run, findings.worker_telemetry(run.id))
        st.header("From the workers to the training", anchor=False, help=HELP)
        tables.draw(COLUMNS, [(row,) for row in rows], key="hand-over", whole=True)


def _of_a_batch(run: store.StoredRun) -> Iterator[Row]:
    of_batch: dict[str, Any] = run.facts.get("handed_over") or {}
    if not of_batch:
        return
    if "start_method" in of_batch:
        how = f"{run.config.workers} by {of_batch['start_method']}"
        yield Row("Workers", how, "How they were started.")
    dtypes = ", ".join(f"{n} {dtype}" for dtype, n in of_batch["dtypes"].items())
    tensors = f"{of_batch['tensors']:,} ({formats.size(of_batch['bytes'])})"
    yield Row("Tensors of a batch", tensors, f"Each crosses by itself: {dtypes}.")
    if "storages" in of_batch:
        by = of_batch.get("sharing", "").replace("_", " ")
        segments = f"{of_batch['storages']:,}"
        if by:
            segments += f", by {by}"
        yield Row("Segments of shared memory", segments, "Tensors that are views share one.")


def _of_pickling(run: store.StoredRun, steps: Series, keep: Mask) -> Iterator[Row]:
    of_batch: dict[str, Any] = run.facts.get("handed_over") or {}
    if "pickle_cpu_s" in of_batch:
        cpu = formats.seconds(of_batch["pickle_cpu_s"])
        made_s = mean((steps["made_end_s"] - steps["made_start_s"])[keep])
        yield Row(
            "Pickling a batch",
            f"{cpu} of CPU{_share(of_batch['pickle_cpu_s'], made_s, 'making it')}",
            f"In a thread of its worker, {formats.seconds(of_batch['pickle_s'])} from begin to end, while the "
            "next batch is made: a worker can make so much less, and the training pays only where it waits "
            "for workers. It grows with the number of segments.",
        )
    if "unpickle_s" in of_batch:
        step_s = mean(steps["step_s"][keep])
        yield Row(
            "Unpickling a batch",
            formats.seconds(of_batch["unpickle_s"])
            + _share(of_batch["unpickle_s"], step_s, "a step"),
            f"In the thread that does the {of_batch['unpickled_in']}{_while_locked(of_batch)}. "
            "It grows with the number of segments.",
        )


def _while_locked(of_batch: dict[str, Any]) -> str:
    """Returns for how long a thread that pins keeps the training from Python's lock at most."""
    if of_batch["unpickled_in"] != "pinning" or "unpickle_cpu_s" not in of_batch:
        return ""
    cpu = formats.seconds(of_batch["unpickle_cpu_s"])
    return f", which holds Python's lock for most of {cpu} of CPU"


def _share(seconds: float, whole_s: float, whole: str) -> str:
    """Returns what share of another time it is, in parentheses; nothing where that is not known."""
    return f" ({formats.percent(seconds / whole_s)} of {whole})" if whole_s > 0 else ""


def _of_descriptors(run: store.StoredRun) -> Iterator[Row]:
    held = hand_over.descriptors_of({**run.environment, **run.facts}, run.config)
    if held is not None:
        where = "a worker" if held.in_worker else "the process that trains"
        yield Row(
            "Open descriptors, at most",
            f"{held.most:,} of {held.limit:,} ({formats.percent(held.frac)})",
            f"In {where}: one for each segment of {held.batches} batches that are ready.",
        )


def _of_the_workers(run: store.StoredRun, telemetry: Series) -> Iterator[Row]:
    peak = worker_use.shared_memory_peak(telemetry)
    if peak is not None:
        yield Row(
            "/dev/shm at its peak",
            f"{formats.size(peak.used_bytes)} of {formats.size(peak.size_bytes)} "
            f"({formats.percent(peak.frac)})",
            "Of all programs. Where it is full, a worker ends with a bus error.",
        )
    memory = worker_use.worker_memory(telemetry)
    if memory is not None:
        private = formats.size(memory.private_bytes)
        yield Row(
            "Private memory of a worker",
            f"{private}; {formats.size(memory.pss_bytes)} with its part of shared pages",
            "Mean over the workers in the last sample: what their end would free.",
        )
        if memory.n_samples > 1:
            yield Row("Its growth", _growth(memory), "Over the time that the same workers ran.")
    threads = mean(telemetry["worker_threads"])
    if math.isfinite(threads):
        cores = formats.number(mean(telemetry["worker_cpu_pct"]) / 100)
        set_to = (run.facts.get("handed_over") or {}).get("torch_threads")
        of_torch = f" PyTorch is set to {set_to} in an operation." if set_to else ""
        yield Row(
            "Threads of a worker",
            f"{threads:.0f}; {cores} cores busy",
            f"Mean over the workers. Three are its own and PyTorch's.{of_torch}",
        )


def _growth(memory: worker_use.WorkerMemory) -> str:
    """Returns by how much it grew, and the rate of that where it is real."""
    grown = f"{formats.size(memory.grown_bytes)} in {formats.seconds(memory.span_s)}"
    if not memory.grows:
        return f"{grown}, {formats.count(memory.n_samples, 'sample')}: no steady growth"
    an_hour = formats.size(memory.bytes_per_s.value * 3600)
    return f"{an_hour} an hour; {grown}"
