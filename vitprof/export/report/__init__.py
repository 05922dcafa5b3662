"""One or several runs as one self-contained HTML file with charts, figures and settings; it opens
without a network.

Plotly's own bundle is inside, compressed, and is unpacked in the browser. The file's content
security policy forbids every request and every script but its own two. Without JavaScript all
figures are still in tables.
"""

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import plotly.graph_objects as go

from vitprof import formats
from vitprof.analysis.arrays import Series, known, mean
from vitprof.analysis.compare import comparison, guard
from vitprof.analysis.compare.differences import RunFacts
from vitprof.analysis.timing import loading, timeline
from vitprof.analysis.timing.gaps import IDLE_CAUSES, training_time
from vitprof.analysis.timing.steady import epoch_starts, steady_state
from vitprof.analysis.verdict import headroom as free_data
from vitprof.analysis.verdict.answer import Proof, answer_of
from vitprof.analysis.verdict.rendering import in_a_word
from vitprof.analysis.verdict.verdict import judge
from vitprof.charts import live, style
from vitprof.charts.breakdown import device_time, loading_bar, waterfall
from vitprof.charts.talk import IN_NARROW_REPORT, IN_REPORT
from vitprof.config.device_rate import rate_if_valid
from vitprof.errors import VitprofError
from vitprof.export import tables, talk
from vitprof.export.report.page import Chart, Contents, Table, whole_page
from vitprof.program import program
from vitprof.recording.columns import RunSummary
from vitprof.recording.verdict import Verdict
from vitprof.store import RunStore, StoredRun

MOST_RUNS = 100
"""The most runs in a report: each takes about 25 kB of tables, and the file stays below 5 MB."""
MOST_CHARTED = 20
"""The most runs of a report that have charts, about 60 kB each; those after them have only
tables."""
GROUPS = 325
"""Groups of neighbouring steps in a chart, two points each."""


def html_report(
    store: RunStore,
    runs: Sequence[StoredRun],
    *,
    headrooms: Mapping[int, free_data.Headroom] | None = None,
    verdicts: Mapping[int, Verdict] | None = None,
    proofs: Mapping[int, Sequence[Proof]] | None = None,
    now: dt.datetime | None = None,
) -> str:
    """Returns the text of the HTML file. Raises `VitprofError` for no runs or too many.

    `headrooms` and `verdicts` are by run id. A run without an entry in `verdicts` has the stored
    verdict; with an entry in `headrooms` it is judged again. `proofs` are what proofs of fixes
    have shown, by run id. `now` (with a time zone) is when the report was made.
    """
    if not runs:
        raise VitprofError(f"a report needs at least one run; {program()} runs lists them")
    if len(runs) > MOST_RUNS:
        raise VitprofError(
            f"a report holds at most {MOST_RUNS} runs, not {len(runs)}; choose fewer, or export CSV"
        )
    contents: list[Contents] = []
    facts = []
    for run in runs:
        steps = store.steps(run.id)
        telemetry = store.telemetry(run.id)
        verdict = (verdicts or {}).get(run.id)
        headroom = (headrooms or {}).get(run.id)
        charted = len(contents) < MOST_CHARTED
        # Of two runs the picture is one of both.
        alone = len(runs) != 2
        of_run = _contents(
            run, steps, telemetry, verdict, headroom, charted=charted, pictured=alone
        )
        if of_run.verdict is not None:
            shown = (proofs or {}).get(run.id, ())
            answer = answer_of(of_run.verdict, shown, summary=run.summary, rate=rate_if_valid())
            of_run = replace(of_run, answer=answer)
        contents.append(of_run)
        if len(runs) > 1:
            about = (run.id, run.config, run.environment, run.facts, run.summary)
            facts.append(guard.run_facts(*about, steps, telemetry))
    caveats = guard.comparability(facts)
    overview: list[Chart | Table] = []
    if len(runs) > 1:
        overview.append(_comparison(contents, facts))
    if len(runs) == 2:
        overview += _pair(store, contents, facts)
    differences = [caveat.sentence for caveat in caveats]
    return whole_page(contents, overview, differences, now or dt.datetime.now(dt.UTC))


def _pair(
    store: RunStore, contents: Sequence[Contents], facts: Sequence[RunFacts]
) -> list[Chart | Table]:
    """Returns the picture of two runs, the slower one first; none where either has no verdict or
    no device times.
    """
    summaries = [one.run.summary for one in contents]
    now = comparison.slowest(summaries) or 0
    trusts = guard.trusts_of(facts, now)
    gain = comparison.against(summaries, now, trusts)[1 - now]
    parts = []
    for one in (contents[now], contents[1 - now]):
        if one.verdict is None:
            return []
        parts.append(talk.Part(one.run, store.steps(one.run.id), one.verdict))
    return _picture(parts, gain)


def _picture(
    parts: Sequence[talk.Part], gain: comparison.RunComparison | None = None
) -> list[Chart | Table]:
    """Returns the picture of a run or of two, if there is one."""
    made = talk.talk(parts, gain)
    if made is None:
        return []
    wide = made.figure(IN_REPORT)

    def draw() -> go.Figure:
        narrow = made.figure(IN_NARROW_REPORT).to_dict()
        narrow["layout"].pop("template", None)
        # The width is that of the page.
        return wide.update_layout(width=None, meta={"narrow": narrow})

    says = "A stretch of steady training that is typical of the run; beneath it the whole run."
    return [Chart("What the device did", says, int(wide.layout.height), draw)]


def _contents(
    run: StoredRun,
    steps: Series,
    telemetry: Series,
    verdict: Verdict | None,
    headroom: free_data.Headroom | None,
    *,
    charted: bool,
    pictured: bool,
) -> Contents:
    """Returns what to say about `run`, unless `charted` with tables only.

    `pictured`: with the picture of the run alone. `verdict` and `headroom` are as in
    `html_report`. `steps` and `telemetry` are the run's series, (n,) by column.
    """
    if not len(steps["step"]):
        return Contents(run, verdict, None, _headline(run))
    if verdict is None and headroom is None:
        verdict = run.verdict
    if verdict is None:
        facts = run.environment | run.facts
        verdict = judge(run.config, steps, run.phases, telemetry, facts, headroom=headroom)
    parts: list[Chart | Table] = []
    if not run.config.loader_only:
        if verdict is not None and charted and pictured:
            parts += _picture([talk.Part(run, steps, verdict)])
        parts += _device_time(run, steps)
    parts += _each_step(steps)
    if run.config.loader_times:
        parts += _loading(run, steps)
    if headroom is not None:
        parts += _headroom(run, headroom)
    if verdict is None or verdict.is_conclusive:
        parts += _own_headroom(run)
    shown = [part for part in parts if charted or isinstance(part, Table)]
    return Contents(run, verdict, None, _headline(run), shown)


def _device_time(run: StoredRun, steps: Series) -> list[Chart | Table]:
    """Returns compute and idle time by cause: as a bar, over the run, and in a table."""
    training = training_time(steps, run.phases)
    gaps = training.gaps
    if not gaps.span_ns:
        return []
    intervals = training.intervals()
    shares = gaps.shares()
    rows = [("compute", formats.percent(shares["busy"]), "", formats.seconds(gaps.busy_ns / 1e9))]
    bubbles = intervals.get("launch_idle")
    if bubbles and bubbles.value > 0:
        spread = _percents(bubbles.low, bubbles.high)
        took = formats.seconds(bubbles.value * gaps.span_s)
        rows.append(("of it launch bubbles", formats.percent(bubbles.value), spread, took))
    for cause in IDLE_CAUSES:
        if shares[cause] > 0:
            spread = _percents(intervals[cause].low, intervals[cause].high)
            name = f"idle, cause: {style.DEVICE_TIME[cause][0]}"
            took = formats.seconds(gaps.seconds(cause))
            rows.append((name, formats.percent(shares[cause]), spread, took))
    n_steps = formats.steps(len(gaps.index) - training.n_starts, training.n_starts)
    table = Table(
        "Why does the device wait?",
        ("what", "share", "95% interval", "time"),
        rows,
        f"Training time: {n_steps}, {formats.seconds(gaps.span_s)}. Data waits of "
        f"{formats.seconds(gaps.hidden_wait_ns / 1e9)} were hidden behind queued work of the device and cost nothing.",
    )

    says = (
        "Training time, from marks of the device: compute, and idle time by what it waited for. Launch bubbles, where "
        "they are known, are the part of compute in which the device waited for the next launch."
    )
    return [Chart(table.title, says, 190, partial(device_time, gaps, intervals)), table]


def _each_step(steps: Series) -> list[Chart | Table]:
    """Returns data wait, copy and compute of each step as a chart, and their quantiles in a table."""
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
    note = formats.steps(int(steady.sum()))
    n_starts = int(epoch_starts(steps).sum())
    if n_starts:
        note += f", without the {formats.count(n_starts, 'epoch start')}"
    table = Table("Time of each step", header, rows, f"Steady state: {note}.")
    n = len(steps["step"])
    says = "Data wait of the loop, copy to the device (H2D) and compute, in milliseconds."
    if n > GROUPS:
        says += f" Of {n:,} steps the quickest and the slowest of each group of neighbours."

    def draw() -> dict[str, Any]:
        points = live.BATCHES.build(steps, 0.0, 0, n, timeline.group_size(n, GROUPS))
        return live.live_figure(live.BATCHES, points)

    return [Chart("Time of each step", says, 320, draw), table]


def _loading(run: StoredRun, steps: Series) -> list[Chart | Table]:
    """Returns the parts of loading a batch."""
    breakdown = loading.loading_of(steps, run.config)
    if not breakdown.n or not breakdown.largest:
        return []
    rows = []
    for stage in breakdown.stages:
        if not stage.frac >= 0:
            # NaN where the stage is not known.
            continue
        value, low, high = (formats.seconds(v / 1e3) for v in stage.ms)
        spread = f"{low} to {high}" if math.isfinite(stage.ms.low) else ""
        rows.append((stage.words, value, spread, formats.percent(stage.frac)))
    note = f"Steady state: {breakdown.n:,} batches. Most of it is {breakdown.largest}."
    if math.isfinite(breakdown.busy_frac):
        note += f" The loader was busy {formats.percent(breakdown.busy_frac)} of the time."
    if math.isfinite(breakdown.queue_depth):
        note += f" When the loop asked, {breakdown.queue_depth:.1f} batches were ready on average."
    title = "Why is a batch slow?"
    table = Table(title, ("stage", "mean", "95% interval", "share"), rows, note)
    chart = Chart(title, "Mean over the steady state.", 270, partial(loading_bar, breakdown))
    return [chart, table, *_transforms(run)]


def _transforms(run: StoredRun) -> list[Table]:
    """Returns the table of the times of each transform, for a watched run that has them."""
    transforms = loading.transform_times(run.facts)
    rows = [
        (
            t.name,
            formats.seconds(t.s_per_sample),
            formats.percent(t.frac),
            formats.seconds(t.cpu_s_per_sample),
            f"{t.calls:,}",
        )
        for t in transforms
    ]
    if not rows:
        return []
    note = "Each transform of torchvision's Compose, over the train loader's batches after the warm-up."
    note = " ".join((note, loading.why_unreliable(transforms))).strip()
    heads = ("transform", "mean, a sample", "share", "CPU time", "calls")
    return [Table("Transforms", heads, rows, note)]


def _own_headroom(run: StoredRun) -> list[Table]:
    """Returns the headroom that was measured in a user's own loop, if it was."""
    headroom = free_data.own_headroom(run.facts)
    if headroom is None or math.isnan(headroom.speed_up.value):
        return []
    ratios = {"step": headroom.speed_up, "step without its data wait": headroom.training}
    rows = [
        (
            name,
            f"{ratio.value:.2f}x",
            f"{ratio.low:.2f}x to {ratio.high:.2f}x",
            f"{headroom.n_pairs}",
        )
        for name, ratio in ratios.items()
    ]
    header = ("time of", "ratio", "95% interval", "pairs of blocks")
    note = free_data.own_headroom_sentence(headroom)
    return [Table("New batches against kept ones", header, rows, note)]


def _headroom(run: StoredRun, headroom: free_data.Headroom) -> list[Chart | Table]:
    """Returns what was measured with free data, as a chart and a table."""
    batch = run.config.batch_size
    note = " ".join([free_data.headroom_sentence(headroom, batch), *headroom.notes])
    table = Table("Headroom", tables.ANCHORS_HEADER, tables.anchors_in_words(headroom, batch), note)
    says = "What a step takes with free data, and what each stage of loading adds. Measured by replaying batches."
    return [Chart("Headroom", says, 320, partial(waterfall, headroom, batch)), table]


def _percents(low: float, high: float) -> str:
    if not math.isfinite(low):
        return ""
    return f"{formats.percent(low)} to {formats.percent(high)}"


def _headline(run: StoredRun) -> Table:
    """Returns the table of headline figures with what they mean; those that are not available are
    left out.
    """
    note = "" if run.summary else "This run has no summary: it did not finish."
    return Table("Figures", ("figure", "value", "meaning"), tables.figures_in_words(run), note)


def _comparison(contents: Sequence[Contents], facts: Sequence[RunFacts]) -> Table:
    """Returns the table that compares runs, with one row for each; a run that is unlike the slowest
    one has no speed-up.
    """
    rows: list[tuple[str, ...]] = []
    summaries = [c.run.summary for c in contents]
    slowest = comparison.slowest(summaries)
    trusts = guard.trusts_of(facts, slowest)
    gains = comparison.against(summaries, slowest, trusts)
    for one, gain in zip(contents, gains, strict=True):
        s = one.run.summary or RunSummary()
        kind = in_a_word(one.verdict) if one.verdict else one.run.status
        if one.run.simulated:
            kind += ", simulated"
        speed = formats.number(s.samples_per_s)
        half = (s.samples_per_s_high - s.samples_per_s_low) / 2
        if math.isfinite(half):
            speed += f" ± {formats.percent(half / s.samples_per_s)}"
        speed_up = formats.NOT_AVAILABLE
        if gain.relation == "not comparable":
            speed_up = gain.relation
        elif math.isfinite(gain.speed_up):
            speed_up = f"{gain.speed_up:.2f}x"
            if gain.relation in ("equal", "undecided", "not firm"):
                speed_up += f", {gain.relation}"
        epoch = formats.seconds(s.epoch_s)
        if not s.n_epochs_measured:
            epoch = f"~ {epoch}"
        rows.append(
            (
                f"{one.run.id}: {one.run.name}",
                kind,
                speed,
                speed_up,
                epoch,
                formats.percent(s.data_wait_frac),
                formats.percent(one.verdict.stated_idle_frac if one.verdict else math.nan),
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
    shown = list(range(len(header)))
    gpu_memory = header.index("GPU memory")
    if all(row[gpu_memory] == formats.NOT_AVAILABLE for row in rows):
        # Without a GPU none has it.
        shown.remove(gpu_memory)
    note = (
        "Speed-up: over the slowest run; equal where it is surely within 5%, undecided where 95% intervals overlap; "
        "not firm where other programs ran or conditions differed, not comparable where the runs are unlike, as said "
        "below. Idle: as the verdict states it. ~: extrapolated from the throughput."
    )
    return Table(
        "Runs",
        tuple(header[i] for i in shown),
        [tuple(row[i] for i in shown) for row in rows],
        note,
    )
