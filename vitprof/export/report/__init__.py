"""Runs as one self-contained HTML file, with Plotly's bundle inside, compressed; it opens without a network. Its
content security policy forbids every request and other script. Without JavaScript all figures are still in tables.
"""

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import plotly.graph_objects as go

from vitprof import formats
from vitprof.analysis.arrays import Series, known, mean
from vitprof.analysis.compare import comparison, guard
from vitprof.analysis.timing import loading, timeline
from vitprof.analysis.timing.gaps import IDLE_CAUSES, find_gaps, idle_interval
from vitprof.analysis.timing.steady import steady_state, training
from vitprof.analysis.timing.utilisation import idle_bins
from vitprof.analysis.verdict import headroom as free_data
from vitprof.analysis.verdict.verdict import judge
from vitprof.charts import live, style
from vitprof.charts.breakdown import device_time, loading_bar, waterfall
from vitprof.charts.comparison import idle_strips
from vitprof.errors import VitprofError
from vitprof.export import tables
from vitprof.export.report.page import Chart, Contents, Table, whole_page
from vitprof.program import program
from vitprof.recording.columns import RunSummary
from vitprof.recording.verdict import Verdict
from vitprof.store import RunStore, StoredRun

MOST_RUNS = 100
"""The most runs in a report: each takes about 25 kB of tables, and the file stays below 5 MB."""
MOST_CHARTED = 20
"""The most runs of a report that have charts, about 60 kB each; those after them have only tables."""
GROUPS = 325
"""Groups of neighbouring steps in a chart, two points each."""


def html_report(
    store: RunStore,
    runs: Sequence[StoredRun],
    *,
    headrooms: Mapping[int, free_data.Headroom] | None = None,
    verdicts: Mapping[int, Verdict] | None = None,
    now: dt.datetime | None = None,
) -> str:
    """Returns the text of the HTML file. `headrooms` and `verdicts` are by run id; a run without an entry in `verdicts`
    has the stored verdict, one in `headrooms` is judged again. Raises `VitprofError` for no runs or too many.
    """
    if not runs:
        raise VitprofError(f"a report needs at least one run; {program()} runs lists them")
    if len(runs) > MOST_RUNS:
        raise VitprofError(
            f"a report holds at most {MOST_RUNS} runs, not {len(runs)}; choose fewer, or export CSV"
        )
    found: list[Contents] = []
    facts = []
    for run in runs:
        steps = store.steps(run.id)
        telemetry = store.telemetry(run.id)
        verdict = (verdicts or {}).get(run.id)
        headroom = (headrooms or {}).get(run.id)
        found.append(
            _contents(run, steps, telemetry, verdict, headroom, charted=len(found) < MOST_CHARTED)
        )
        if len(runs) > 1:
            about = (run.id, run.config, run.environment, run.facts, run.summary)
            facts.append(guard.run_facts(*about, steps, telemetry))
    overview = _comparison(found) if len(runs) > 1 else None
    return whole_page(
        found,
        overview,
        [c.sentence for c in guard.comparability(facts)],
        now or dt.datetime.now(dt.UTC),
    )


def _contents(
    run: StoredRun,
    steps: Series,
    telemetry: Series,
    verdict: Verdict | None,
    headroom: free_data.Headroom | None,
    *,
    charted: bool,
) -> Contents:
    if not len(steps["step"]):
        return Contents(run, verdict, _headline(run))
    if verdict is None and headroom is None:
        verdict = run.verdict
    if verdict is None:
        verdict = judge(
            run.config, steps, run.phases, telemetry, run.environment | run.facts, headroom=headroom
        )
    parts: list[Chart | Table] = [] if run.config.loader_only else _device_time(run, steps)
    parts += _each_step(steps)
    if run.config.loader_times:
        parts += _loading(run, steps)
    if headroom is not None:
        parts += _headroom(run, headroom)
    if verdict is None or verdict.kind != "inconclusive":
        parts += _own_headroom(run)
    return Contents(
        run, verdict, _headline(run), [p for p in parts if charted or isinstance(p, Table)]
    )


def _device_time(run: StoredRun, steps: Series) -> list[Chart | Table]:
    gaps = find_gaps(steps, run.phases).only(training(steps))
    if not gaps.span_ns:
        return []
    intervals = idle_interval(gaps)
    shares = gaps.shares()
    rows = [("compute", formats.percent(shares["busy"]), "", formats.seconds(gaps.busy_ns / 1e9))]
    if (bubbles := intervals.get("launch_idle")) and bubbles.value > 0:
        spread = _percents(bubbles.low, bubbles.high)
        took = formats.seconds(bubbles.value * gaps.span_s)
        rows.append(("of it launch bubbles", formats.percent(bubbles.value), spread, took))
    for cause in IDLE_CAUSES:
        if shares[cause] > 0:
            spread = _percents(intervals[cause].low, intervals[cause].high)
            name = f"idle, cause: {style.DEVICE_TIME[cause][0]}"
            rows.append(
                (name, formats.percent(shares[cause]), spread, formats.seconds(gaps.seconds(cause)))
            )
    table = Table(
        "Where the device's time went",
        ("what", "share", "95% interval", "time"),
        rows,
        f"Steady state: {len(gaps.index):,} steps, {formats.seconds(gaps.span_s)}. Data waits of "
        f"{formats.seconds(gaps.hidden_wait_ns / 1e9)} were hidden behind queued work of the device and cost nothing.",
    )

    def idle() -> go.Figure:
        edges, share = idle_bins(steps, run.phases)
        return idle_strips(
            ["device"], edges, share[None], since="the run began", origin_s=run.t_origin_s or 0.0
        )

    says = (
        "Steady state, from marks of the device: compute, and idle time by what it waited for. Launch bubbles, where "
        "they are known, are the part of compute in which the device waited for the next launch."
    )
    pieces = "The whole run in 500 pieces of the same length. Blank: evaluation."
    drawn = Chart(table.title, says, 190, partial(device_time, gaps, intervals))
    return [drawn, table, Chart("Idle share over the run", pieces, 130, idle)]


def _each_step(steps: Series) -> list[Chart | Table]:
    steady = steady_state(steps)
    columns = {
        "data wait": "data_wait_s",
        "H2D": "h2d_s",
        "compute": "compute_s",
        "whole step": "step_s",
    }
    rows = []
    for name, column in columns.items():
        values = known(steps[column][steady])
        if len(values):
            quantiles = (
                formats.seconds(float(q)) for q in np.quantile(values, (0.05, 0.5, 0.95, 1.0))
            )
            rows.append((name, formats.seconds(mean(values)), *quantiles))
    header = ("of a step", "mean", "5%", "median", "95%", "longest")
    table = Table("Time of each step", header, rows, f"Steady state, n = {int(steady.sum()):,}.")
    n = len(steps["step"])
    thinned = (
        f" Of {n:,} steps the quickest and the slowest of each group of neighbours."
        if n > GROUPS
        else ""
    )
    says = f"Data wait of the loop, copy to the device (H2D) and compute, in milliseconds.{thinned}"

    def draw() -> dict[str, Any]:
        return live.live_figure(
            live.BATCHES, live.BATCHES.build(steps, 0.0, 0, n, timeline.group_size(n, GROUPS))
        )

    return [Chart("Time of each step", says, 320, draw), table]


def _loading(run: StoredRun, steps: Series) -> list[Chart | Table]:
    found = loading.loading_of(steps, run.config)
    if not found.n or not found.largest:
        return []
    rows = []
    for stage in (s for s in found.stages if s.frac >= 0):
        value, low, high = (formats.seconds(v / 1e3) for v in stage.ms)
        spread = f"{low} to {high}" if math.isfinite(stage.ms.low) else ""
        rows.append((stage.words, value, spread, formats.percent(stage.frac)))
    note = f"Steady state, n = {found.n:,} batches. Most of it is {found.largest}."
    if math.isfinite(found.busy_frac):
        note += f" The loader was busy {formats.percent(found.busy_frac)} of the time."
    if math.isfinite(found.queue_depth):
        note += f" When the loop asked, {found.queue_depth:.1f} batches were ready on average."
    title = "Where a batch's loading time goes"
    table = Table(title, ("stage", "mean", "95% interval", "share"), rows, note)
    return [
        Chart(title, "Mean over the steady state.", 270, partial(loading_bar, found)),
        table,
        *_transforms(run),
    ]


def _transforms(run: StoredRun) -> list[Table]:
    rows = [
        (t.name, formats.seconds(t.s_per_sample), formats.percent(t.frac), f"{t.calls:,}")
        for t in loading.transform_times(run.facts)
    ]
    note = "Each transform of torchvision's Compose, over the train loader's batches after the warm-up."
    return (
        [Table("Transforms", ("transform", "mean, a sample", "share", "calls"), rows, note)]
        if rows
        else []
    )


def _own_headroom(run: StoredRun) -> list[Table]:
    found = free_data.own_headroom(run.facts)
    if found is None or math.isnan(found.speed_up.value):
        return []
    rows = [
        (name, f"{ratio.value:.2f}x", f"{ratio.low:.2f}x to {ratio.high:.2f}x", f"{found.n_pairs}")
        for name, ratio in (
            ("step", found.speed_up),
            ("step without its data wait", found.training),
        )
    ]
    header = ("time of", "ratio", "95% interval", "pairs of blocks")
    note = free_data.own_headroom_sentence(found)
    return [Table("New batches against kept ones", header, rows, note)]


def _headroom(run: StoredRun, found: free_data.Headroom) -> list[Chart | Table]:
    batch = run.config.batch_size
    note = " ".join([free_data.headroom_sentence(found, batch), *found.notes])
    table = Table("Headroom", tables.ANCHORS_HEADER, tables.anchors_in_words(found, batch), note)
    says = "What a step takes with free data, and what each stage of loading adds. Measured by replaying batches."
    return [Chart("Headroom", says, 320, partial(waterfall, found, batch)), table]


def _percents(low: float, high: float) -> str:
    return f"{formats.percent(low)} to {formats.percent(high)}" if math.isfinite(low) else ""


def _headline(run: StoredRun) -> Table:
    note = "" if run.summary else "This run has no summary: it did not finish."
    return Table("Figures", ("figure", "value", "meaning"), tables.figures_in_words(run), note)


def _comparison(found: Sequence[Contents]) -> Table:
    rows: list[tuple[str, ...]] = []
    summaries = [c.run.summary for c in found]
    for one, gain in zip(
        found, comparison.against(summaries, comparison.slowest(summaries)), strict=True
    ):
        s = one.run.summary or RunSummary()
        half = (s.samples_per_s_high - s.samples_per_s_low) / 2
        spread = f" ± {formats.percent(half / s.samples_per_s)}" if math.isfinite(half) else ""
        kind = one.verdict.kind if one.verdict else one.run.status
        speed_up = f"{gain.speed_up:.2f}x{f', {gain.relation}' if gain.relation in ('equal', 'undecided') else ''}"
        rows.append(
            (
                f"{one.run.id}: {one.run.name}",
                kind + (", simulated" if one.run.simulated else ""),
                formats.number(s.samples_per_s) + spread,
                speed_up if math.isfinite(gain.speed_up) else formats.NOT_AVAILABLE,
                ("" if s.n_epochs_measured else "~ ") + formats.seconds(s.epoch_s),
                formats.percent(s.data_wait_frac),
                formats.percent(s.device_idle_frac),
                formats.size(s.gpu_mem_peak_bytes),
                formats.size(s.rss_peak_bytes),
            )
        )
    header = (
        "run",
        "verdict",
        "samples/s",
        "speed-up",
        "epoch",
        "data wait",
        "idle",
        "GPU memory",
        "memory",
    )
    at = header.index("GPU memory")  # without a GPU none has it
    shown = [
        i
        for i in range(len(header))
        if i != at or any(row[at] != formats.NOT_AVAILABLE for row in rows)
    ]
    note = (
        "Speed-up: over the slowest run; equal where it is surely within 5%, undecided where 95% intervals overlap. "
        "~: extrapolated from the throughput."
    )
    return Table(
        "Runs",
        tuple(header[i] for i in shown),
        [tuple(row[i] for i in shown) for row in rows],
        note,
    )
