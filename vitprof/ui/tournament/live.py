"""The state of a tournament: its progress with pause, resume and stop, and how to continue one that is not running. For
one on a user's own script the page starts no command, but shows the line to type.
"""

from __future__ import annotations

import math
import os
from typing import Any

import streamlit as st

from vitprof.analysis.tournament import key_in_words
from vitprof.config.own_script import OwnScript
from vitprof.errors import StoreError
from vitprof.experiments.tournament.planning import resume_command, rounds_words
from vitprof.experiments.tournament.tournament_view import TournamentState
from vitprof.experiments.trials import Progress
from vitprof.formats import count
from vitprof.jobs.users import may_stop
from vitprof.store.tournaments import StoredTournament, add_rounds, release
from vitprof.ui import login, resources
from vitprof.ui.notifications import watch_tournament
from vitprof.ui.profile.live import STAGES
from vitprof.ui.texts import escaped, guarded, rough_time
from vitprof.ui.tournament.state import WATCH_S, act, act_button, resume, runners, signature, view

REFRESH_S = 2.0
ADDED_ROUNDS = 3
"""Rounds that a press of the button adds."""


def draw_state(now: TournamentState) -> None:
    """Draws the progress while it is running, which redraws itself; else how it ended, and how to go on."""
    t = now.tournament
    if t.held:
        watch_tournament(t.id)
        st.fragment(_draw_progress, run_every=REFRESH_S)(t.id, signature(now))
        _draw_buttons(t)
        return
    if t.status == "done":
        if t.note:
            st.warning(escaped(f"Ended: {t.note}."))
        n_runs = sum(entry.n_made for entry in now.entries)
        with st.container(horizontal=True, vertical_alignment="center"):
            st.caption(
                f":material/check: Done: {count(n_runs, 'run')} in {rough_time(now.spent_s)}",
                width="content",
            )
            if t.spec.script is None:
                act_button(
                    f"Run {ADDED_ROUNDS} more rounds",
                    "tournament-more-rounds",
                    "add",
                    lambda: _add_rounds(t.id),
                    "Runs every setting again that was not cut short, and adds to what is known. The time limit no "
                    "longer applies.",
                )
        if t.spec.script is not None:
            draw_way_on(t, t.spec.script)
        return
    st.fragment(_watch, run_every=WATCH_S)(t.id, signature(now))
    state = {"paused": "Paused", "stopped": "Stopped", "queued": "Not started"}.get(t.status, t.status.capitalize())
    left = f"{now.progress.done} of {now.progress.total} runs are done"
    reason = t.note if t.note.startswith(state.lower()) else f"{state}: {t.note}" if t.note else state
    state = f"{reason[0].upper()}{reason[1:]}. {left}."
    if t.spec.script is not None:
        st.warning(escaped(state))
        draw_way_on(t, t.spec.script)
        return
    st.warning(escaped(f"{state} Resume to run the rest."))
    _draw_resume(t, "Continues where it ended. A run that did not finish is run again.", type="primary")


def _draw_resume(t: StoredTournament, help: str, **more: Any) -> None:
    act_button("Resume", "tournament-resume", "play_arrow", lambda: resume(t.id), help, **more)


def _add_rounds(tournament_id: int) -> None:
    add_rounds(resources.store(), tournament_id, ADDED_ROUNDS)
    resume(tournament_id)


@guarded
def _watch(tournament_id: int, drawn: object) -> None:
    """Redraws the page when another tab or program resumes the tournament, or deletes it."""
    try:
        changed = signature(view(tournament_id).look()) != drawn
    except StoreError:
        changed = True
    if changed:
        st.rerun(scope="app")


@guarded
def _draw_progress(tournament_id: int, drawn: object) -> None:
    """Draws the bar alone, a few hundred bytes; when more has changed (`signature`), the whole page is redrawn once."""
    try:
        now = view(tournament_id).look()
    except StoreError:  # deleted in another tab
        st.rerun(scope="app")
    if signature(now) != drawn:
        st.rerun(scope="app")
    st.progress(now.progress.fraction, text=escaped(_text(now)))


def _text(now: TournamentState) -> str:
    p = now.progress
    text = f"{p.done} of {p.total} runs done"
    if p.run_id is not None:
        text += f"; now {key_in_words(p.words)}, round {p.round}: {_stage(p)}"
    spec = now.tournament.spec
    if p.round > spec.repeats:
        text += "; this round was added because it is not decided yet"
    elif spec.until_decided:
        text += f"; {rounds_words(spec)}"
    if math.isfinite(p.seconds_left) and p.seconds_left > 0:
        text += f"; about {rough_time(p.seconds_left)} left"
    return text


def _stage(p: Progress) -> str:
    run = resources.store().run(p.run_id or 0)
    if run.status == "queued":
        return run.message or "starting"
    return STAGES.get(run.stage, run.stage or "starting").partition(":")[0]


def _draw_take_over(t: StoredTournament) -> None:
    """Draws the way to take over a tournament that the store says another machine, or a container restarted since, is
    running.
    """
    st.caption(
        f"It was started on another machine ({escaped(t.holder_host)}, process {t.holder_pid}). This machine cannot "
        "tell whether that process still runs; a container gets a new name each time it is started."
    )
    with st.popover("Take it over", icon=":material/move_up:", help="Asks before it does."):
        st.markdown("Is that machine gone, or was the container restarted? If not, two programs would run it at once.")
        st.button(
            "Yes, it is gone",
            type="primary",
            key="tournament-take-over",
            on_click=act,
            args=(lambda: release(resources.store(), t.id),),
            help="Pauses the tournament here; then resume it. A run that did not finish is run again.",
        )


def _draw_buttons(t: StoredTournament) -> None:
    if t.holder_host:
        _draw_take_over(t)
        return
    if t.holder_pid != os.getpid() or runners().runner(t.id) is None:
        st.caption(f"It runs in another program (process {t.holder_pid}): pause or stop it there.")
        return
    if starter := login.started_by(t.started_by):
        st.caption(escaped(starter))
    if not may_stop(t.started_by):
        return
    with st.container(horizontal=True, vertical_alignment="center", key="tournament-buttons"):
        if t.status == "paused":
            _draw_resume(t, "Starts the next run.")
        else:
            text = "Finishes the current run and starts no more until you resume."
            act_button("Pause", "tournament-pause", "pause", lambda: runners().pause(t.id), text)
        text = "Stops the current run and starts no more. What was measured is kept, and you can resume later."
        act_button("Stop", "tournament-stop", "stop", lambda: _stop(t.id), text)
        if t.status == "paused":
            st.caption(f"Paused: {escaped(t.note)}." if t.note else "Paused.", width="content")


def _stop(tournament_id: int) -> None:
    st.toast("Stopping the current run.", icon=":material/stop:")
    runners().stop(tournament_id)


def draw_line_to_type(stored: StoredTournament, words: str, options: str = "") -> None:
    """Draws the command that continues a tournament in a terminal; `words` say what it does."""
    st.caption(words)
    st.code(f"{resume_command(stored.id)}{options}", language="bash", wrap_lines=True)


def draw_way_on(stored: StoredTournament, script: OwnScript) -> None:
    """Draws how to continue a tournament that is not running: more rounds, a yes after the first trial, or the rest."""
    if stored.status == "done":
        draw_line_to_type(
            stored, "To run more rounds of every setting that was not cut short, in a terminal:", " --more-rounds 3"
        )
        return
    if script.loader is None or script.agreed:
        draw_line_to_type(stored, "To run the rest, in a terminal:")
        return
    if script.writes:
        st.markdown("Each trial runs the script again, which wrote these files:")
        st.code("\n".join(script.writes), language=None, height=min(300, 60 + 24 * len(script.writes)))
    draw_line_to_type(stored, "If it may write them again, continue in a terminal:", " --yes")
