"""The card on top of a run that has ended: its verdict, and the four answers with the fix at hand."""

from functools import partial
from typing import Literal

import streamlit as st

from vitprof.analysis.verdict import rendering
from vitprof.analysis.verdict.advice import apply
from vitprof.analysis.verdict.answer import Answer
from vitprof.charts import style
from vitprof.config import RunConfig, own_script
from vitprof.errors import ConfigError
from vitprof.export import code
from vitprof.export.markdown import (
    answer_markdown,
    is_to_be_watched_again,
    meanwhile_command,
    next_command,
)
from vitprof.recording.verdict import Advice
from vitprof.ui import answer_card
from vitprof.ui.profile import live, proof, runs, settings
from vitprof.ui.profile.ended_run import EndedRun
from vitprof.ui.texts import act_button, escaped, guarded

LOOKS: dict[str, tuple[str, str]] = {
    "input-bound": (":material/hourglass_top:", style.VERDICTS["input-bound"]),
    "moderately input-bound": (":material/hourglass_bottom:", style.DATA_WAIT),
    "not input-bound": (":material/check_circle:", style.COMPUTE),
    "launch-bound": (":material/rocket_launch:", style.HOST),
    "inconclusive": (":material/help:", style.NEUTRAL),
}
"""Kind of a verdict -> its icon, and the colour at the card's edge. The word is in the sentence."""
VERDICT_HELP = (
    "From times on the device and in the training loop, never from GPU-util. The lower end of the "
    f"95% interval decides: {rendering.CLASSES}."
)
USE_HELP = "Puts this run's settings with this change into the sidebar; nothing is started."
CODE_HELP = "A script for your own training that loads this way."
CODE_PX = 360
TYPE_HELP = "The command that runs your script with and without it and says what it gains, or writes what is proven."


@guarded
def draw_verdict(ended: EndedRun) -> None:
    """Draws the card."""
    verdict = ended.verdict
    answer = ended.answer
    icon, colour = LOOKS[verdict.kind]
    with live.card(colour):
        with st.container(key="verdict-line"):
            line = f"{icon} **{escaped(answer.headline)}.** {escaped(answer.reason)}"
            st.markdown(line, help=VERDICT_HELP)
        if answer.is_conclusive:
            no_fix = answer_card.NO_FIX
            if verdict.kind != "not input-bound":
                no_fix = "none that vitprof knows"
            draw_buttons = partial(_draw_fix_buttons, ended)
            answer_card.draw_answer(answer, draw_buttons, no_fix=no_fix)
        elif answer.details:
            st.caption(escaped(answer.details))
        disturbed = verdict.is_of_other_programs or any(
            signature.name == "other-programs" for signature in verdict.signatures
        )
        if disturbed and not own_script.is_own_script(ended.run.config):
            runs.draw_when_quiet(ended.run)


def _draw_fix_buttons(ended: EndedRun) -> None:
    """Draws what to do with the fix: use it, prove it, or have it as code."""
    run = ended.run
    answer = ended.answer
    fix = answer.fix
    if fix is None:
        return
    if own_script.is_own_script(run.config):
        line = next_command(run, answer)
        label = "Try workers"
        meanwhile = meanwhile_command(run, answer)
        if meanwhile:
            label = "Watch again"
        if answer.proof is not None and answer.proof.quiet:
            label = "As a patch"
        elif fix.place is not None and answer.advice[fix.place].arguments:
            label = "Prove it"
        elif ended.compared_workers is not None and not is_to_be_watched_again(answer):
            # what the line would run has run: the list below says where
            return
        if line:
            with st.popover(label, icon=":material/balance:", help=TYPE_HELP):
                st.markdown("Type this in the folder of your script:")
                st.code(line, language=None, wrap_lines=True)
                if meanwhile:
                    st.markdown("Or now: what workers gain at least, while other programs run:")
                    st.code(meanwhile, language=None, wrap_lines=True)
        return
    place = place_with_buttons(answer)
    if place is not None:
        draw_advice_buttons(ended, answer.advice[place], place, first=True)


def place_with_buttons(answer: Answer) -> int | None:
    """Returns the place of the advice in the card that vitprof can follow; None without one.

    It is the second one where the first one is to end other programs.
    """
    for fix in (answer.fix, answer.then):
        if fix is not None and fix.place is not None and answer.advice[fix.place].settings:
            return fix.place
    return None


def draw_advice_buttons(
    ended: EndedRun, advice: Advice, place: int, *, first: bool = False
) -> None:
    """Draws the buttons of an advice that vitprof can follow: *Prove it* until it is proven, *Use
    it*, and *Code* of the `first` one."""
    run = ended.run
    try:
        advised = apply(run.config, advice.settings)
    except ConfigError:  # of a part that this version has no more
        return
    spec = proof.spec_of(run.config, advised, of_run=run.id)
    proven = None
    if spec is not None:
        proven = next((t for t in ended.begun_proofs if t.spec.jobs == spec.jobs), None)
    if spec is not None and proven is None:
        proof.draw_button(spec, place, first=first)
    elif first and proven is not None and proven.held:
        proof.draw_in_card(proven)
    kind: Literal["primary", "secondary"] = "secondary"
    if first and proven is not None and not proven.held:
        kind = "primary"
    use = partial(settings.offer, advised)
    act_button("Use it", f"use-advice-{place}", "tune", use, USE_HELP, type=kind)
    if not first:
        return
    as_code = st.popover(
        "Code", icon=":material/code:", help=CODE_HELP, key="answer-code", on_change="rerun"
    )
    if as_code.open:
        as_code.code(_code_of(advised), language="python", height=CODE_PX)


def _code_of(config: RunConfig) -> str:
    try:
        return code.script(config)
    except ConfigError as error:
        return f"# {error}"


@guarded
def draw_as_markdown(ended: EndedRun) -> None:
    """Draws the answer as Markdown, with the button that copies it."""
    st.header("Copy the answer", anchor=False)
    st.caption("For an issue or a chat: the verdict, its causes, the gain and the fix.")
    st.code(answer_markdown(ended.run, ended.answer), language="markdown", wrap_lines=True)
