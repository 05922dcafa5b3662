"""The Profile page: set up one job, run it, watch it, and read the result in tabs.

Only the tab that is open is drawn.
"""

import math
from collections.abc import Callable
from functools import partial

import streamlit as st

from vitprof import formats, store
from vitprof.analysis import thresholds
from vitprof.analysis.timing import compute_parts
from vitprof.analysis.verdict import headroom, rendering
from vitprof.analysis.verdict.advice import apply
from vitprof.charts import breakdown
from vitprof.config import own_script
from vitprof.recording.verdict import Advice
from vitprof.ui import downloads, findings, live_chart, notifications, resources, talk, widgets
from vitprof.ui.profile import live, proof, runs, settings, timeline, verdict_card, welcome
from vitprof.ui.profile.ended_run import EndedRun
from vitprof.ui.profile.headroom_section import draw_headroom
from vitprof.ui.profile.rank_section import draw_ranks
from vitprof.ui.texts import escaped, guarded
from vitprof.ui.tournament import state


@guarded
def page() -> None:
    run = runs.chosen_run()
    runs.take_settings(run)
    config = None
    # settings of vitprof's own jobs say nothing about a script that was started elsewhere
    if run is None or not own_script.is_own_script(run.config):
        with st.sidebar:
            config, pressed = settings.settings_form()
        if pressed and config is not None:
            guarded(runs.start)(config, from_sidebar=True)
            run = runs.chosen_run()
    if run is None:
        runs.draw_queue(None)
        welcome.draw_welcome(config)
        return
    runs.draw_title(run)
    notifications.watch(run)
    if run.live:
        # the browser asks for each refresh: without one the job goes on, and nothing is drawn
        with st.container(key="live"):
            st.fragment(live.draw_live, run_every=live.REFRESH_S)(run.id, run.status)
    else:
        draw_ended(run)


def draw_ended(run: store.StoredRun) -> None:
    live.draw_state(run, 0.0)
    series = resources.series(run.id)
    if run.summary is None:
        series.refresh(run.facts)
        n_steps = len(series.steps()["step"])
    else:
        # the tabs that need its steps read them, once the answer is on the page
        series.refresh_telemetry()
        n_steps = run.summary.n_steps
    if not n_steps:
        st.info("This run ended before its first step, so there is nothing to draw.")
        st.caption(live.set_up(run))
        return
    ended = EndedRun(run)
    if run.config.loader_only:
        live.draw_headline(run, series)
    else:
        verdict_card.draw_verdict(ended)
    live.draw_tiles(run, series)
    st.caption(live.set_up(run))
    draw_tabs(ended)


def draw_tabs(ended: EndedRun) -> None:
    """Draws the tabs, the open one with its content; the one that was last open is open first."""
    tabs: dict[str, Callable[[], None]] = {
        "Answer": partial(draw_answer, ended),
        "Timeline": partial(timeline.draw_timeline, ended.run),
        "Loading": partial(timeline.draw_loading, ended.run),
        "Export": partial(draw_export, ended),
    }
    last = st.session_state.get(runs.LAST)
    chosen = st.session_state.get(runs.SHOW, st.query_params.get(runs.SHOW))
    if chosen is None:
        if last is not None and runs.SHOW not in st.session_state:
            st.session_state[runs.SHOW] = last
    elif chosen not in tabs:  # a link to a tab that there is no more
        st.session_state[runs.SHOW] = "Answer"
    drawn = st.tabs(list(tabs), key=runs.SHOW, bind=widgets.IN_URL)
    for tab, draw in zip(drawn, tabs.values(), strict=True):
        if tab.open:
            with tab:
                draw()
    st.session_state[runs.LAST] = st.session_state[runs.SHOW]


def draw_export(ended: EndedRun) -> None:
    """Draws the tab: the picture for a talk, files, code, and the answer as text."""
    run = ended.run
    if not run.config.loader_only:
        talk.draw_of_run(run, lambda: ended.answer.proof)
    downloads.draw_exports(run)
    verdict_card.draw_as_markdown(ended)


TRY_HELP = (
    "The best first: settings that can run here and are not in use yet, each with its reason."
)
DEVICE_TIME_HELP = (
    "Steady steps and epoch starts, timed on the device. Each idle moment counts for the one thing that the step "
    "was waiting for. Epoch starts: by how much the first batch of an epoch is waited for longer than others. Host "
    "work: Python, kernel launches, optimizer. Launch bubbles: the part of compute in which the device waited for the "
    "next launch, known where about ten steps were launched in advance. Point at a part for its "
    "95% interval."
)


@guarded
def draw_answer(ended: EndedRun) -> None:
    """Draws the tab, which says why the device waits: for what, what to try, patterns found,
    headroom, and what recording cost.

    When it waits is on the tab Timeline.
    """
    run = ended.run
    if run.config.loader_only:
        st.header("Loading alone, without training", anchor=False)
    else:
        question = "Why does the device wait?"
        if live.is_simulated_run(run):
            question += " (simulated)"
        st.header(question, anchor=False, help=DEVICE_TIME_HELP)
    draw_device_time(run)
    draw_ranks(run)
    if ended.verdict.advice:
        st.header("What to try", anchor=proof.ANCHOR, help=TRY_HELP)
        _draw_all_advice(ended)
    _draw_of_own_script(ended)
    draw_signatures(ended)
    # it needs a job that trained, and that can be run again from here
    if not (run.config.loader_only or own_script.is_own_script(run.config)):
        draw_headroom(run)
    draw_recording_cost(ended)


def _draw_all_advice(ended: EndedRun) -> None:
    in_card = verdict_card.place_with_buttons(ended.answer)
    for place, advice in enumerate(ended.verdict.advice):
        # the card has the buttons of the one that it shows
        _draw_advice(ended, advice, place, with_buttons=place != in_card)


def _draw_of_own_script(ended: EndedRun) -> None:
    """Draws the tournament to type for a watched script, and the headroom measured in it."""
    run = ended.run
    compare = ""
    if own_script.is_own_script(run.config):
        compare = runs.to_compare_here(run)
    if compare:
        _draw_tournament_of_workers(ended, compare)
    measured = headroom.own_headroom(run.facts)
    if measured is not None and ended.verdict.is_conclusive:
        st.markdown(escaped(headroom.own_headroom_sentence(measured)))


def _draw_tournament_of_workers(ended: EndedRun, compare: str) -> None:
    """Draws the tournament to type, and the one that has compared the same settings already."""
    compared = ended.compared_workers
    if compared is None:
        st.markdown("Settings of its DataLoader against each other, a tournament of this script:")
        st.code(compare, language=None, wrap_lines=True)
        return
    st.markdown(f"Tournament {compared.id} has compared these settings of its DataLoader:")
    st.page_link(
        "pages/tournament.py",
        label="All figures",
        icon=":material/emoji_events:",
        query_params={state.CHOSEN: str(compared.id)},
        help="Opens it on *Try fixes*: every run, more rounds.",
    )
    st.markdown("To run it again, as after a change of the script:")
    st.code(compare, language=None, wrap_lines=True)


def _draw_advice(ended: EndedRun, advice: Advice, place: int, *, with_buttons: bool) -> None:
    run = ended.run
    number = f"{place + 1}\\."
    words = escaped(formats.sentence(advice.words))
    line = f"{number} **{words}** {escaped(formats.sentence(rendering.why_advised(advice)))}"
    if not advice.settings:
        st.markdown(line)
        return
    # advice is checked when it is given: it can be resolved
    advised = apply(run.config, advice.settings)
    spec = proof.spec_of(run.config, advised, of_run=run.id)
    proven = None
    if spec is not None:
        proven = next((t for t in ended.begun_proofs if t.spec.jobs == spec.jobs), None)
    refuted = proven is not None and proof.is_refuted(proven)
    if refuted:
        line = f"{number} ~~{words}~~"
    if refuted or not with_buttons:
        st.markdown(line)
    else:
        text, buttons = st.columns([3, 2], vertical_alignment="center", gap="small")
        text.markdown(line)
        with buttons.container(horizontal=True, horizontal_alignment="right", gap="small"):
            verdict_card.draw_advice_buttons(ended, advice, place)
    if proven is not None:
        proof.draw_result(proven, place)


@guarded
def draw_device_time(run: store.StoredRun) -> None:
    if run.config.loader_only:
        st.caption(
            "No model was trained, so no device could wait. Run the same settings with training to "
            "see whether this is fast enough: switch off *Loader only* under *Advanced*."
        )
        return
    idle = findings.idle_of(run.id)
    if idle is None:
        st.caption("No steady step has device times, so they cannot be added up.")
        return
    text = _idle_sentence(idle)
    alt = f"The device's time by what it was spent on, as one bar. {text}"
    figure = breakdown.device_time(idle.gaps, idle.intervals)
    live_chart.plot(figure, height=160, key="device-time", alt=alt)
    st.caption(text)
    _draw_parts_of_compute(run)


PARTS_HELP = (
    "Forward: from the batch on the device to the backward pass, with the loss. Backward: until the "
    "optimizer steps, gradient clipping included. Rest: what is none of the three, such as metrics "
    "and logging. On a GPU from marks of the device, in some of the steps."
)


def _draw_parts_of_compute(run: store.StoredRun) -> None:
    """Draws what a step's compute is made of, where that was measured."""
    divided = None
    if run.summary is not None:
        divided = compute_parts.divided_compute_of(run.summary)
    if divided is None:
        return
    words = compute_parts.divided_in_words(divided)
    st.markdown(f"{words}, in {divided.n:,} steps whose parts are known.", help=PARTS_HELP)


WORTH_SAYING_FRAC = 0.005
"""Share of the time from which idle time for other reasons than data is told."""


def _idle_sentence(times: findings.Idle) -> str:
    def share(name: str) -> str:
        interval = times.intervals[name]
        value = formats.percent(interval.value)
        if not math.isfinite(interval.low):
            return value
        return f"{value} ({formats.percent(interval.low)} to {formats.percent(interval.high)})"

    gaps = times.gaps
    bubbles = times.intervals.get("launch_idle")
    copies_frac = times.intervals["h2d"].value / max(times.intervals["waits"].value, 1e-12)
    waited_for = "data"
    if copies_frac >= thresholds.COPIES_TOLD_FRAC:
        waited_for = "data and copies"
    steps = f"{times.n:,} steps"
    if times.n_epoch_starts:
        steps = formats.steps(times.n - times.n_epoch_starts, times.n_epoch_starts)
    text = f"The device waited for {waited_for} {share('waits')} of {formats.seconds(gaps.span_s)}: {steps}."
    otherwise_frac = times.intervals["idle"].value - times.intervals["waits"].value
    if otherwise_frac >= WORTH_SAYING_FRAC:
        text += f" It was idle for other reasons another {formats.percent(otherwise_frac)}."
    if bubbles and bubbles.value > 0:
        text += f" It waited another {share('launch_idle')} for kernel launches inside its steps."
    if gaps.hidden_wait_ns:
        hidden = formats.seconds(gaps.hidden_wait_ns / 1e9)
        text += f" Another {hidden} of data waits cost nothing: the device still had work queued."
    return text


SIGNATURES_HELP = "What points at one cause, such as stalls at every n-th batch, a slow worker, or other programs."


@guarded
def draw_signatures(ended: EndedRun) -> None:
    signatures = ended.verdict.signatures
    if signatures:
        st.header("Patterns found", anchor=False, help=SIGNATURES_HELP)
    starts = any(signature.name == "epoch-start" for signature in signatures)
    for signature in signatures:
        cost = ""
        if signature.cost_frac > 0:
            # where epochs begin with long waits, the others are of the steps between
            of_steps = starts and signature.name != "epoch-start"
            between = " between epoch starts" if of_steps else ""
            cost = f" Cost: {formats.percent(signature.cost_frac)} of the time{between}."
        name = escaped(formats.sentence(signature.name.replace("-", " ")))
        st.markdown(
            f":material/troubleshoot: **{name}** {escaped(signature.sentence)}{escaped(cost)}"
        )
        with st.expander("Based on"):
            figures = []
            for name, value in signature.evidence.items():
                figures.append(f"{name.replace('_', ' ')} {value:.4g}")
            st.caption(f"{escaped(signature.based_on)}. {escaped(', '.join(figures))}")


@guarded
def draw_recording_cost(ended: EndedRun) -> None:
    run = ended.run
    _, cost = findings.device_account(run.id)
    if not math.isfinite(cost.frac):
        took = "What recording took is not known for these steps"
        if run.facts.get("trace"):
            took = "These steps include what torch.profiler itself took"
        elif own_script.is_own_script(run.config):
            took = "Watching takes 0.05 to 0.2 ms a step"
        st.caption(f"{took}: docs/overhead.md")
        return
    idle = ""
    if math.isfinite(cost.exposed_frac) and not run.config.loader_only:
        idle = f" and kept the device idle {formats.percent(cost.exposed_frac)} of it"
    more = ""
    if ended.verdict.cores_taken is not None:
        more = "Other programs ran: on a quiet machine it takes less. "
    inside_frac = math.nan
    if run.summary is not None:
        inside_frac = run.summary.loader_times_frac
    if math.isfinite(inside_frac) and run.config.loader_times:
        where = ", in its workers" if run.config.workers else ""
        more += f"Measuring inside the loader took about {formats.percent(inside_frac)}{where}."
    elif math.isfinite(inside_frac):
        more += "Nothing was measured inside the loader."
    st.caption(
        f":material/speed: vitprof's own recording took at most {formats.percent(cost.frac)} of "
        "this run's time "
        f"({formats.seconds(cost.s_per_step)} a step, in {cost.n:,} of its steps){idle}. {more}",
        help="All that the loop did between the launch of a step and the request for the next batch, and the clock "
        "readings inside the loader, which *Measure inside the loader* switches off. Steps after which an epoch "
        "ends, or the script does something else, are left out.",
    )
