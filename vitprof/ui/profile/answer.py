"""The verdict on a run as a card, and the tab Answer: what to try, the chart behind the verdict, patterns found, files
to share, what recording cost.
"""

from __future__ import annotations

import math

import streamlit as st

from vitprof import formats
from vitprof.analysis.verdict.advice import apply
from vitprof.analysis.verdict.headroom import own_headroom, own_headroom_sentence
from vitprof.analysis.verdict.wording import CLASSES
from vitprof.charts.breakdown import device_time
from vitprof.charts.style import COMPUTE, DATA_WAIT, HOST, IDLE, NEUTRAL
from vitprof.recording.verdict import Advice
from vitprof.store import StoredRun
from vitprof.ui.downloads import draw_exports
from vitprof.ui.findings import Idle, device_account, idle_of, verdict_of
from vitprof.ui.live_chart import plot
from vitprof.ui.profile.live import card, is_simulated_run
from vitprof.ui.profile.settings import use_config
from vitprof.ui.texts import escaped, guarded, sentence

TRY_HELP = "The best first: settings that can run here and are not in use yet, each with its reason."


@guarded
def draw_answer(run: StoredRun) -> None:
    """Draws the tab: advice first, with the exports beside its heading."""
    verdict = verdict_of(run)
    advice = verdict.advice
    with st.container(
        horizontal=True, horizontal_alignment="distribute", vertical_alignment="center", key="answer-head"
    ):
        if advice:
            st.header("What to try", anchor=False, help=TRY_HELP, width="content")
        elif run.config.loader_only:
            st.header("Loading alone, without training", anchor=False, width="content")
        else:
            st.header(device_time_title(run), anchor=False, help=DEVICE_TIME_HELP, width="content")
        draw_exports(run)
    for number, one in enumerate(advice):
        _draw_advice(run, one, number)
    if verdict.kind != "inconclusive" and (measured := own_headroom(run.facts)) is not None:
        st.markdown(escaped(own_headroom_sentence(measured)))
    if advice:
        st.header(device_time_title(run), anchor=False, help=DEVICE_TIME_HELP)
    draw_device_time(run)
    draw_signatures(run)
    draw_recording_cost(run)


def _draw_advice(run: StoredRun, advice: Advice, number: int) -> None:
    """Draws one line: what to do and why, and a button where there is something to set."""
    line = f"{number + 1}\\. **{escaped(sentence(advice.words))}** {escaped(sentence(advice.reason))}"
    if not advice.settings:
        st.markdown(line)
    else:
        text, button = st.columns([3, 1], vertical_alignment="center", gap="small")
        text.markdown(line)
        button.button(
            "Use these settings",
            key=f"use-advice-{number}",
            icon=":material/tune:",
            help="Puts this run's settings with this change into the sidebar; nothing is started.",
            on_click=_use,
            args=(run, advice),
            width="stretch",
        )


def _use(run: StoredRun, advice: Advice) -> None:
    use_config(apply(run.config, advice.settings))  # advice is checked when it is given: it can be resolved
    st.session_state[USED] = run.id


SIGNATURES: dict[str, str] = {
    "worker-period": "A stall every few batches",
    "slow-worker": "One slow worker",
    "epoch-start": "Slow starts of epochs",
    "first-batch": "A slow first batch",
    "garbage-collection": "Spikes of garbage collection",
    "cold-to-warm": "Cold files that became warm",
    "memory-growth": "Memory that grows",
    "other-programs": "Other programs on the machine",
}
"""`Signature.name` in words."""


@guarded
def draw_signatures(run: StoredRun) -> None:
    """Draws one line for each pattern, the costliest first, its evidence a click away; nothing where none was found."""
    signatures = verdict_of(run).signatures
    if not signatures:
        return
    st.header(
        "Patterns found",
        anchor=False,
        help="Rules look for patterns that point at one cause: stalls at every n-th batch, one slow worker, slow "
        "starts of epochs, files read cold, garbage collection, growing memory, other programs.",
    )
    for signature in signatures:
        cost = f" Cost: {formats.percent(signature.cost_frac)} of the time." if signature.cost_frac > 0 else ""
        name = SIGNATURES.get(signature.name, signature.name)
        st.markdown(f":material/troubleshoot: **{name}.** {escaped(signature.sentence)}{escaped(cost)}")
        with st.expander("Based on"):
            figures = ", ".join(f"{n.replace('_', ' ')} {v:.4g}" for n, v in signature.evidence.items())
            st.caption(f"{escaped(signature.based_on)}. {escaped(figures)}")


LOOKS: dict[str, tuple[str, str]] = {
    "input-bound": (":material/hourglass_top:", IDLE),
    "moderately input-bound": (":material/hourglass_bottom:", DATA_WAIT),
    "not input-bound": (":material/check_circle:", COMPUTE),
    "launch-bound": (":material/rocket_launch:", HOST),
    "inconclusive": (":material/help:", NEUTRAL),
}
"""Kind of a verdict -> its icon, and the colour at the card's edge. The word is in the sentence."""
USED = "settings taken over"
VERDICT_HELP = (
    "From times on the device and in the training loop, never from GPU-util. The lower end of the 95% interval "
    f"decides: {CLASSES}."
)


@guarded
def draw_verdict(run: StoredRun) -> None:
    """Draws the card. The run needs at least one step."""
    verdict = verdict_of(run)
    icon, colour = LOOKS[verdict.kind]
    with card(colour):
        kind, _, rest = verdict.sentence.partition(":")
        st.markdown(f"{icon} **{escaped(kind)}:**{escaped(rest)}", help=VERDICT_HELP)
        if st.session_state.pop(USED, None) == run.id:
            st.caption(":material/check: The settings are in the sidebar. Press Run there.")


DEVICE_TIME_HEIGHT = 160
DEVICE_TIME_HELP = (
    "Steady state, timed on the device. Each moment in which it computed nothing counts for the one thing that the "
    "step was waiting for: data wait, the copy (H2D), host work (Python, launches, optimizer), the change of epochs, "
    "vitprof's own recording, what a script does outside its step, or other. Launch bubbles are the part of "
    "compute in which the device waited for the next launch; they are known where about ten steps were launched in "
    "advance, which shows how long the kernels alone take. Point at a part for its 95% interval."
)


def device_time_title(run: StoredRun) -> str:
    """Returns the heading of the chart."""
    return f"Where the device's time went{' (simulated)' if is_simulated_run(run) else ''}"


@guarded
def draw_device_time(run: StoredRun) -> None:
    """Draws the bar and its sentence; for a run that only loaded, why there is none."""
    if run.config.loader_only:
        st.caption(
            "No model was trained, so no device could wait. Run the same settings with training to see whether this "
            "is fast enough: switch off *Loader only* under *More*."
        )
        return
    idle = idle_of(run.id)
    if idle is None:
        st.caption("No steady step has device times, so they cannot be added up.")
        return
    text = _idle_sentence(idle)
    plot(
        device_time(idle.gaps, idle.intervals),
        height=DEVICE_TIME_HEIGHT,
        key="device-time",
        alt=f"The device's time by what it was spent on, as one bar. {text}",
    )
    st.caption(text)


def _idle_sentence(times: Idle) -> str:
    gaps, idle = times.gaps, times.intervals["idle"]
    text = (
        f"The device was idle {formats.percent(idle.value)} ({formats.percent(idle.low)} to "
        f"{formats.percent(idle.high)}) of {formats.seconds(gaps.span_s)}, over {times.n:,} steady steps."
    )
    if (bubbles := times.intervals.get("launch_idle")) and bubbles.value > 0:
        text += (
            f" It waited another {formats.percent(bubbles.value)} ({formats.percent(bubbles.low)} to "
            f"{formats.percent(bubbles.high)}) for launches inside its steps."
        )
    if gaps.hidden_wait_ns:
        hidden = formats.seconds(gaps.hidden_wait_ns / 1e9)
        text += f" Another {hidden} of data waits cost nothing: the device still had work queued."
    return text


@guarded
def draw_recording_cost(run: StoredRun) -> None:
    """Draws one line: the share of the run's time that vitprof's own recording took, at most."""
    _, cost = device_account(run.id)
    if not math.isfinite(cost.frac):
        st.caption("We cannot say what recording cost this run: that needs two steady steps in a row.")
        return
    idle = ""
    if math.isfinite(cost.exposed_frac) and not run.config.loader_only:
        idle = f" and kept the device idle {formats.percent(cost.exposed_frac)} of it"
    st.caption(
        f":material/speed: vitprof's own recording took at most {formats.percent(cost.frac)} of this run's time "
        f"({formats.seconds(cost.s_per_step)} a step, n = {cost.n:,}){idle}. {_inside_the_loader(run)}",
        help="Everything that the loop did between the launch of a step and the request for the next batch. Measuring "
        "inside the loader is added: the number of clock readings times what one took when the run began. The setting "
        "*Measure inside the loader* switches that off.",
    )


def _inside_the_loader(run: StoredRun) -> str:
    share = run.summary.loader_times_frac if run.summary else math.nan
    if not math.isfinite(share):
        return ""
    if not run.config.loader_times:
        return "Nothing was measured inside the loader."
    where = ", in its workers" if run.config.workers else ""
    return f"Measuring inside the loader took about {formats.percent(share)}{where}."
