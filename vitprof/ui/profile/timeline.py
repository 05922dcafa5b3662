"""The tabs Timeline (charts over time, a window of steps, one with the chain of its batch) and
Loading.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import streamlit as st

from vitprof import formats, store
from vitprof.analysis.arrays import Series, median
from vitprof.analysis.timing import (
    late_batches,
    loading,
    periods,
    roofline,
    slow_samples,
    slow_workers,
    steady,
    timeline,
)
from vitprof.analysis.verdict.causal import CausalProfile, causal_profile
from vitprof.charts import breakdown, live
from vitprof.charts import causal as causal_chart
from vitprof.charts import timeline as lanes
from vitprof.charts.roofline import roofline as draw_roofs
from vitprof.export.tables import figures_in_words
from vitprof.ui import findings, resources, tables, texts
from vitprof.ui.live_chart import Pick, draw_growing, plot
from vitprof.ui.profile.hand_over_section import draw_hand_over
from vitprof.ui.profile.live import draw_gaps, draw_others

WINDOW = 30
"""Steps in the window: about as many as can be told apart."""
BEFORE = 3
"""Steps drawn before the one that is looked at."""
WINDOW_HELP = (
    "What the loop did, the copies, and the device: compute, and gaps in the colour of what they "
    "waited for. Launch bubbles, where they are known, are drawn in one piece. Click a step for "
    "its figures; drag to zoom."
)


@st.fragment
@texts.guarded
def draw_timeline(run: store.StoredRun) -> None:
    series = resources.series(run.id)
    series.refresh(run.facts)
    chosen = Chosen(run)
    if not run.config.loader_only:
        draw_gaps(run, series, on_pick=chosen.pick_moment, at=chosen.at)
    _draw_window(run, chosen)
    draw_figures(run, chosen.at, largest=chosen.at == chosen.worst)
    draw_chain(run, chosen.at, key="step-chain")
    draw_others(run, series, on_pick=chosen.pick_position, at=chosen.at)
    draw_account(run)


class Chosen:
    """The step of a run that this session looks at, and the window around it."""

    def __init__(self, run: store.StoredRun) -> None:
        self.steps: Series = findings.all_columns(run.id)
        self._last = len(self.steps["step"]) - 1
        self._origin_s = run.t_origin_s or 0.0
        idle = None if run.config.loader_only else findings.idle_of(run.id)
        if idle is None:
            self.worst = int(np.nanargmax(np.nan_to_num(self.steps["step_s"])))
        else:
            self.worst = idle.worst
        self.key = f"step-{run.id}"
        self._window = f"window-{run.id}"
        if self.key not in st.session_state:
            self.show(self.worst)

    @property
    def at(self) -> int:
        return self._position(st.session_state[self.key])

    @property
    def first(self) -> int:
        """Position of the window's first step.

        It moves only where the chosen step would be outside.
        """
        first = int(st.session_state.get(self._window, -WINDOW))
        if not first <= self.at < first + WINDOW:
            first = self.at - BEFORE
        last_window = max(self._last + 1 - WINDOW, 0)
        first = min(max(first, 0), last_window)
        st.session_state[self._window] = first
        return first

    def show(self, at: int) -> None:
        st.session_state[self.key] = int(self.steps["step"][min(max(at, 0), self._last)])

    def pick_moment(self, pick: Pick) -> None:
        """Shows the step clicked in the chart of idle gaps."""
        of_wait = live.GAPS.traces[pick.trace].get("yaxis") == "y2"
        self.show(timeline.step_at(self.steps, pick.x + self._origin_s, of_wait=of_wait))

    def pick_position(self, pick: Pick) -> None:
        self.show(round(pick.x))

    def pick_number(self, pick: Pick) -> None:
        self.show(self._position(pick.data))

    def _position(self, number: float) -> int:
        return min(int(np.searchsorted(self.steps["step"], number)), self._last)


def _draw_window(run: store.StoredRun, chosen: Chosen) -> None:
    at = chosen.at
    number = chosen.steps["step"]
    largest = "Largest gap"
    about_largest = "The step before which the device was idle longest."
    about_window: str | None = WINDOW_HELP
    if run.config.loader_only:
        largest = "Longest step"
        about_largest = "The step that took longest."
        about_window = None
    st.header("Step by step", anchor=False, help=about_window)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        st.number_input(
            "Step",
            min_value=int(number[0]),
            max_value=int(number[-1]),
            # what a browser goes back to where no number is typed; else it would be the first step
            value=int(number[at]),
            step=1,
            key=chosen.key,
            help="Its figures and the chain of its batch are below. A click on a step in a chart sets it too.",
            width=160,
        )
        for words, symbol, to, text in (
            ("Earlier", "chevron_left", at - WINDOW, f"{WINDOW} steps back."),
            (largest, "search", chosen.worst, about_largest),
            ("Later", "chevron_right", at + WINDOW, f"{WINDOW} steps on."),
        ):
            icon = f":material/{symbol}:"
            st.button(
                words, icon=icon, key=f"window-{words}", on_click=chosen.show, args=(to,), help=text
            )
    if run.config.loader_only or findings.idle_of(run.id) is None:
        return
    first = chosen.first
    line = timeline.timeline(chosen.steps, run.phases, first, first + WINDOW)
    draw_growing(
        lanes.timeline_chart(line, origin_s=run.t_origin_s or 0.0, mark=int(number[at])).to_dict(),
        key="timeline",
        run=f"{run.id} from {first}",
        alt=f"What loop, copy and device did, step by step, for {WINDOW} steps from step {first:,} on",
        height=220,
        on_pick=chosen.pick_number,
    )


FIGURES: tuple[tuple[str, str, str], ...] = (
    ("Data wait", "data_wait_s", "The loop was blocked in next(loader) for this step's batch."),
    ("Copy (H2D)", "h2d_s", "The batch's copy to the device."),
    ("Compute", "compute_s", "The device worked on the step."),
    ("Idle gap", "gap_s", "The device computed nothing before the step."),
    ("Step", "step_s", "From the end of the step before to the end of this one, on the device."),
)
"""Label, column and meaning of the figures of a step."""
OF_LOADING = ("data_wait_s", "step_s")
"""Those that a run has which trains nothing."""


def draw_figures(run: store.StoredRun, at: int, *, largest: bool) -> None:
    steps = findings.all_columns(run.id)
    keep = steady.steady_state(steps)
    usual = {column: median(np.asarray(steps[column][keep])) for _, column, _ in FIGURES}
    stands_out = largest and not run.config.loader_only and steps["gap_s"][at] > usual["gap_s"]
    words = ", the largest gap after the warm-up" if stands_out else ""
    st.header(f"Step {int(steps['step'][at]):,}{words}", anchor=False)
    with st.container(horizontal=True, gap="small", key="step-figures"):
        for label, column, meaning in FIGURES:
            if run.config.loader_only and column not in OF_LOADING:
                continue
            value = float(steps[column][at])
            if math.isfinite(value):
                st.metric(
                    label,
                    formats.seconds(value),
                    f"median {formats.seconds(usual[column])}",
                    delta_color="off",
                    delta_arrow="off",
                    help=f"{meaning} The median is that of the steady steps.",
                    width="content",
                )


def draw_chain(run: store.StoredRun, at: int, *, key: str) -> None:
    steps = findings.all_columns(run.id)
    step = timeline.one_step(steps, at)
    text = chain_sentence(run, step)
    line = timeline.timeline(steps, run.phases, at, at + 1)
    if run.config.loader_only:
        line = line.only("host")
    figure = lanes.batch_chain(step, line, loading.stage_words(run.config))
    if figure.data:
        alt = f"The chain of step {step.number:,}: loader, loop, copy and device. {text}"
        plot(figure, height=230, key=key, alt=alt)
    st.caption(text)


def _making_words(run: store.StoredRun, step: timeline.OneStep) -> str:
    """Returns who made the batch of a step, and in which stages, the longest first."""
    if not math.isfinite(step.made_s):
        reason = "*Measure inside the loader* was off"
        if run.config.loader_times:
            reason = "the loader cannot tell"
        return f"How this batch was made is not known: {reason}."
    if loading.synchronous(run.config):
        who = "The loop itself"
    elif step.worker is None:
        who = "The loader"
    else:
        who = f"Worker {step.worker}"
    words = loading.stage_words(run.config)
    parts = []
    for name, spent_s in sorted(step.stages_s.items(), key=lambda stage: stage[1], reverse=True):
        if spent_s > 0 and name != "hand_over":
            parts.append(f"{words[name]} {formats.seconds(spent_s)}")
    stages = f": {', '.join(parts)}" if parts else ""
    return f"{who} made this batch in {formats.seconds(step.made_s)}{stages}."


def chain_sentence(run: store.StoredRun, step: timeline.OneStep) -> str:
    """Returns what happened to the batch of a step: made, waited for, decoded on the device."""
    text = _making_words(run, step)
    decoding = step.decode_wait_s if step.decode_wait_s > 0 else 0.0
    waited = formats.seconds(step.data_wait_s - decoding)
    if step.lay_ready_s > 0 and not loading.synchronous(run.config):
        ready = formats.seconds(step.lay_ready_s)
        text += f" It had been ready for {ready} when the loop asked for it, and was handed over in {waited}."
    elif step.data_wait_s > decoding:
        text += f" The loop waited {waited} for it."
    if decoding:
        text += f" Then the device waited {formats.seconds(decoding)} until it was decoded there."
    hidden = step.data_wait_s - step.exposed_wait_s
    if hidden > 0 and not run.config.loader_only:
        how_long = "all that time"
        if step.exposed_wait_s > 0:
            how_long = f"for {formats.seconds(hidden)} of that"
        text += f" The device still had work {how_long}."
    return text


@texts.guarded
def draw_account(run: store.StoredRun) -> None:
    if run.summary is not None and run.summary.n_steps:
        with st.expander(
            f"The whole run: {formats.seconds(run.summary.wall_s)}", icon=":material/timer:"
        ):
            rows = pd.DataFrame(figures_in_words(run), columns=["what", "how much", "meaning"])
            tables.show(rows, key="whole-run")


WORKER_COLUMNS: tuple[tables.TableColumn, ...] = (
    tables.TableColumn("Worker", "Number of the worker process.", lambda w: w.worker),
    tables.TableColumn("Batches", "Batches that it made.", lambda w: w.n_batches),
    tables.TableColumn(
        "A batch takes (ms)", "Median time to make a batch.", lambda w: w.made_s * 1e3
    ),
    tables.TableColumn(
        "95th percentile (ms)", "95% of its batches take less.", lambda w: w.made_p95_s * 1e3
    ),
    tables.TableColumn(
        "Busy (%)", "Share of the time that it was making batches.", lambda w: w.busy_frac * 100
    ),
)
SLOW_SAMPLE_COLUMNS: tuple[tables.TableColumn, ...] = (
    tables.TableColumn("Sample", "Index in the dataset.", lambda s: s.index),
    tables.TableColumn(
        "Longest (ms)",
        "The longest time that the dataset took for it.",
        lambda s: s.longest_s * 1e3,
    ),
    tables.TableColumn(
        "Times the median", "That over the median of all samples.", lambda s: s.ratio
    ),
    tables.TableColumn(
        "In all (s)", "The time that it took whenever it was slow.", lambda s: s.total_s
    ),
    tables.TableColumn("Times", "How often it was slow.", lambda s: s.times),
    tables.TableColumn(
        "File", "The file that the dataset opened last for it, with Python.", lambda s: s.file
    ),
    tables.TableColumn(
        "Size (MiB)",
        "Of that file.",
        lambda s: None if s.file_bytes is None else s.file_bytes / tables.MIB,
    ),
)
LATE_BATCH_COLUMNS: tuple[tables.TableColumn, ...] = (
    tables.TableColumn("Batches", "How many were late for this reason.", lambda c: c.n),
    tables.TableColumn("In all (s)", "For how long they were waited for.", lambda c: c.waited_s),
    tables.TableColumn(
        "Longest (s)", "The longest wait for one of them.", lambda c: c.longest["waited_s"]
    ),
    tables.TableColumn("Why", "What was seen of the process that made them.", lambda c: c.reason),
    tables.TableColumn(
        "Where",
        "What the process was in, and the place in the script that calls it.",
        lambda c: c.place,
    ),
    tables.TableColumn("Step", "The step of the longest wait.", lambda c: c.longest["step"]),
)
LATE_BATCHES_HELP = (
    "Batches that the loop waited for at least 0.1 s, and three times as long as nine of ten others. "
    "Meanwhile the processes of the script were looked at. Where they did several things, no cause is "
    "named. The first batch of an epoch is not among them."
)
SLOW_SAMPLES_HELP = (
    "Samples for which the dataset took more than four times the median, those that took longest in "
    "all first. What the training would gain without them is a replay of its loader's queue."
)
SLOW_BATCHES_HELP = (
    "Batches that take more than twice the median to make, where they are every k-th: by chance they "
    "would seem so in fewer than 1 of 1,000 runs."
)
CAUSAL_HELP = (
    "What a stage that is faster would save, measured: in blocks of steps it seemed faster, as everything else "
    "paused for a share of its time. Stages that hide behind others save nothing."
)
LOADING_HELP = (
    "Mean over the steady state, measured where the batch was made; of several threads on one "
    "batch the sum. Hand-over: the time that a finished batch took to reach the loop. Timeline "
    "shows how any batch was made."
)
ROOFLINE_HELP = (
    "Each stage alone on the cores that the loader uses: one for each worker or thread, at most "
    "those that the job has; the transfer and the device. The lowest of these three is the "
    "bottleneck. Stages are timed by the clock: where workers wait for a core, they look slower. "
    "The drive was read directly for a moment before training: it limits what the page cache does "
    "not hold."
)
TRANSFORMS_HELP = (
    "What each transform of torchvision's Compose takes, in the process that makes the batch: mean "
    "over the train loader's batches after the warm-up. A Compose within another one is one "
    "transform."
)


@texts.guarded
def draw_loading(run: store.StoredRun) -> None:
    if not run.config.loader_times:
        st.caption("Not measured: *Measure inside the loader* was off in this run.")
        return
    times = findings.loading_of(run.id)
    if not times.n or not times.largest:
        st.caption(
            "Not known: vitprof cannot see how this loader makes its batches, or it takes no time "
            "at all."
        )
        return
    st.header("Why is a batch slow?", anchor=False, help=LOADING_HELP)
    # the legend has six lines on a narrow screen
    figure = breakdown.loading_bar(times).update_layout(legend_font_size=10)
    text = f"Most of it is {times.largest}."
    if math.isfinite(times.busy_frac):
        text += f" The loader was busy {formats.percent(times.busy_frac)} of the time."
    if math.isfinite(times.queue_depth):
        text += f" When the loop asked, {times.queue_depth:.1f} batches were ready on average; "
        text += f"{formats.percent(times.queue_empty_frac)} of the time none was."
    plot(
        figure, height=250, key="loading-bar", alt=f"Mean loading time of a batch, by stage. {text}"
    )
    st.caption(text)
    steps = findings.all_columns(run.id)
    _draw_roofline(run, times, steps)
    _draw_transforms(loading.transform_times(run.facts))
    keep = steady.steady_state(steps)
    if workers := loading.by_worker(steps, keep):
        st.header(
            "Workers", anchor=False, help="Processes of the DataLoader, over the steady state."
        )
        tables.draw(WORKER_COLUMNS, [(w,) for w in workers], key="workers")
        _draw_slow_worker(findings.slow_worker_of(run.id))
    draw_hand_over(run, steps, keep)
    _draw_late_batches(late_batches.late_batches(run.facts))
    _draw_causal(causal_profile(run.facts, run.environment))
    uneven = findings.slow_samples_of(run.id)
    _draw_slow_samples(uneven)
    if uneven is None or uneven.period is None:
        _draw_slow_batches(findings.slow_batches_of(run.id))


def _draw_roofline(run: store.StoredRun, times: loading.Loading, steps: Series) -> None:
    makers = 1
    if run.config.loader in ("dataloader", "threads"):
        makers = run.config.workers or 1
    cores = min(int(run.environment.get("job_cpu_count") or 0), makers)
    if not cores:
        return
    drive_bytes_per_s = float(run.facts.get("drive_bytes_per_s") or math.nan)
    sample_bytes = float(run.facts.get("sample_file_bytes") or math.nan)
    rates = roofline.roofline_of(times, steps, cores, drive_bytes_per_s, sample_bytes)
    if rates is None or not findings.verdict_of(run).is_conclusive:
        return
    st.header("What each part could make", anchor=False, help=ROOFLINE_HELP)
    figure = draw_roofs(rates)
    alt = f"Samples per second that each part could make. The lowest is {rates.lowest.name}. {rates.sentence}"
    plot(figure, height=int(figure.layout.height), key="roofline", alt=alt)
    reached = formats.number(rates.reached_per_s, "samples/s")
    st.caption(
        texts.escaped(
            f"{rates.sentence} The dotted line: {reached} were reached between epoch starts."
        )
    )


def _draw_late_batches(found: late_batches.LateBatches | None) -> None:
    if found is None:
        return
    st.header("Late batches", anchor=False, help=LATE_BATCHES_HELP)
    st.caption(texts.escaped(found.sentence))
    rows = [(cluster,) for cluster in found.clusters]
    tables.draw(LATE_BATCH_COLUMNS, rows, key="late-batches")


def _draw_causal(found: CausalProfile | None) -> None:
    if found is None:
        return
    st.header("If a stage were faster", anchor=False, help=CAUSAL_HELP)
    text = " ".join(found.sentences)
    tried = [gain for gain in found.by_gain if math.isfinite(gain.quarter.low)]
    if tried and not found.why_unknown:
        figure = causal_chart.gain_bars(tried)
        alt = f"Share of a step's time that a faster stage saves. {text}"
        plot(figure, height=int(figure.layout.height), key="causal-bars", alt=alt)
    st.caption(texts.escaped(text))


def _draw_slow_worker(found: slow_workers.SlowWorker | None) -> None:
    if found is not None:
        st.caption(texts.escaped(found.sentence))


def _draw_slow_batches(found: periods.SlowBatches | None) -> None:
    if found is not None:
        st.header("Slow batches", anchor=False, help=SLOW_BATCHES_HELP)
        st.caption(texts.escaped(found.sentence))


def _draw_slow_samples(found: slow_samples.SlowSamples | None) -> None:
    if found is None:
        return
    st.header("Slow samples", anchor=False, help=SLOW_SAMPLES_HELP)
    text = found.sentence
    if not text and math.isfinite(found.saved_frac):
        text = f"They cost little: without the {found.removed} slowest"
        text += f" the training would take {formats.percent(found.saved_frac)} less time."
    elif not text:
        text = "What they cost is not known for this loader."
    usual = f" The median of {found.timed:,} samples is {formats.seconds(found.median_s)}."
    if found.period_words not in text:
        text = f"{found.period_words} {text}"
    st.caption(texts.escaped(text + usual))
    rows = [(sample,) for sample in found.listed]
    tables.draw(SLOW_SAMPLE_COLUMNS, rows, key="slow-samples")


def _draw_transforms(transforms: Sequence[loading.TransformTime]) -> None:
    if not any(t.frac > 0 for t in transforms):
        return
    st.header("Transforms", anchor=False, help=TRANSFORMS_HELP)
    figure = breakdown.transform_bars(transforms)
    alt = f"Mean time of each transform for a sample: {loading.shares_in_words(transforms)}."
    plot(figure, height=int(figure.layout.height), key="transform-bars", alt=alt)
    most = loading.heaviest(transforms)
    if most is None:
        st.caption(texts.escaped(loading.why_unreliable(transforms)))
        return
    took = f"{formats.percent(most.frac)} of the time in transforms, {formats.seconds(most.s_per_sample)} a sample"
    st.caption(texts.escaped(f"{most.name} takes {took}."))
