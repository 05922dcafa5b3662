"""The answer card: starved or not, by what, what there is to gain, and which fix, in one look.

Profile, Try fixes and own scripts draw the same card. Its words come from `analysis.verdict.answer`.
"""

import html
from collections.abc import Callable

import streamlit as st

from vitprof import formats
from vitprof.analysis.verdict import answer as answers
from vitprof.analysis.verdict.answer import Answer, Part
from vitprof.charts import style
from vitprof.config.device_rate import DEVICE_RATE, device_rate
from vitprof.errors import VitprofError, one_line
from vitprof.ui import texts

CAUSE_COLOURS: dict[str, str] = style.LOADING_COLOURS | {
    "loading": style.DATA_WAIT,
    "transfer": style.H2D,
    "epoch_start": style.EPOCH_BOUNDARY,
    "slow_drive": style.DATA_WAIT,
    answers.OTHERS: style.LOSS,
    answers.LAUNCHES: style.HOST,
    answers.BETWEEN: style.OUTSIDE,
    answers.COMPUTE: style.COMPUTE,
}
"""Name of a part of the training time -> the colour of its piece of the bar."""
UNKNOWN = "–"
NO_FIX = "none: loading keeps up"
STARVED_HELP = (
    "Share of the training time that the device waited, from times on the device and in the loop."
)


COST_HELP = (
    "The wall clock of training, without start-up, warm-up, validation and shutdown, times the devices. Recoverable: "
    "proven by runs of the fix, measured by replaying batches, or at most the wait for data. "
    f"Set {DEVICE_RATE} to the price of an hour of one device to have it in money. Energy of a part of the time is its "
    "share of the whole, the most that it can be: a GPU that waits draws less than one that computes."
)


def draw_answer(
    answer: Answer,
    draw_buttons: Callable[[], None] | None = None,
    *,
    no_fix: str = NO_FIX,
    starved_of: str = "",
) -> None:
    """Draws the four answers. `draw_buttons` draws what to press below the fix; `no_fix` is said
    where there is none. `starved_of`: what was starved, where it is not the run that is shown."""
    facts, fix = st.columns([13, 6.5], gap="medium", vertical_alignment="top")
    facts.html(_facts(answer, starved_of))
    with fix.container(key="answer-fix", gap="xsmall"):
        words = answers.first_fix_in_words(answer) or no_fix
        st.html(_cell("Fix?", _begun(words), answers.then_in_words(answer), kind="fix"))
        if draw_buttons is not None and answer.fix is not None:
            with st.container(horizontal=True, gap="xsmall", key="answer-buttons"):
                draw_buttons()
    _draw_cost(answer)
    for more in (answer.details, answer.remark):
        if more:
            st.caption(texts.escaped(more))


def _draw_cost(answer: Answer) -> None:
    """Draws the line on what the idle time cost, and what is wrong with the price of a device."""
    cost = answers.cost_in_words(answer)
    if not cost:
        return
    st.caption(texts.escaped(_begun(cost)), help=COST_HELP)
    try:
        device_rate()
    except VitprofError as error:
        st.caption(texts.escaped(one_line(error)))


def _begun(words: str) -> str:
    """Returns words with a capital letter, except where they are code: "num_workers=2"."""
    return words if "=" in words else formats.capitalised(words)


def _facts(answer: Answer, starved_of: str) -> str:
    """Returns the first three answers as HTML."""
    below = f"for {answer.waits_for}; {answers.interval_in_words(answer)}"
    if starved_of:
        below = f"{starved_of}, {below}"
    idle = _cell("Starved?", _starved(answer), below)
    return f'<div class="vitprof-answer">{idle}{_bar_cell(answer)}{_gain_cell(answer)}</div>'


def _starved(answer: Answer) -> str:
    return f"{formats.percent(answer.frac)} idle"


def _gain_cell(answer: Answer) -> str:
    proof = answer.proof
    most = answers.ceiling_in_words(answer)
    if proof is not None:
        below = answers.proof_conditions_in_words(proof)
        beside = answers.ceiling_beside_proof_in_words(answer)
        if beside:
            below += f"; {beside}"
        return _cell("Gain?", answers.times_in_words(proof), below)
    if most:
        return _cell("Gain?", most, answers.ceiling_interval_in_words(answer))
    by_loader = answers.most_in_words(answer)
    if by_loader:
        return _cell("Gain?", by_loader, "with a faster loader")
    return _cell("Gain?", UNKNOWN, "")


def _cell(question: str, value: str, below: str, kind: str = "") -> str:
    small = f"<small>{html.escape(below)}</small>" if below else ""
    return (
        f'<div class="vitprof-cell {kind}"><span>{html.escape(question)}</span>'
        f"<b>{html.escape(value)}</b>{small}</div>"
    )


def _bar_cell(answer: Answer) -> str:
    """Returns the training time as one bar, with its parts in words below it."""
    shown = [part for part in answers.named_parts(answer) if part.frac >= answers.WORTH_A_PIECE]
    if not shown:
        return _cell("By what?", UNKNOWN, "")
    label = html.escape(", ".join(part.in_words for part in shown))
    pieces = "".join(
        f'<i style="flex-grow:{part.frac:.4f};background:{_colour(part)}" '
        f'title="{html.escape(part.in_words)}"></i>'
        for part in shown
    )
    legend = "".join(
        f'<em><i style="background:{_colour(part)}"></i>{html.escape(part.in_words)}</em>'
        for part in shown
    )
    return (
        f'<div class="vitprof-cell by-what"><span>By what?</span>'
        f'<div class="bar" role="img" aria-label="{label}">{pieces}</div>'
        f'<div class="legend">{legend}</div></div>'
    )


def _colour(part: Part) -> str:
    return CAUSE_COLOURS.get(part.name, style.NEUTRAL)
