"""The state of the tournaments that this server runs, and what the URL says of them.

Also the progress of a tournament and its buttons. For a tournament on a user's own script the page
starts no command, but shows the line to type.
"""

import contextlib
import dataclasses
import math
import os
import threading
from typing import Any

import streamlit as st

from vitprof.analysis.tournament import recommend
from vitprof.analysis.tournament.entries import key_in_words
from vitprof.config import own_script, tournament_spec
from vitprof.errors import UNREADABLE_SAMPLE, JobError, StoreError
from vitprof.experiments.tournament import planning, tournament_runner, tournament_view
from vitprof.formats import count, rough_time, sentence
from vitprof.jobs.users import may_stop
from vitprof.store import MissingError, StoredRun, tournaments
from vitprof.ui import gate, notifications, resources, texts
from vitprof.ui.profile.live import NOW_HELP, STAGES

VIEWS_KEPT = 100
"""Tournaments whose summaries and blocks (20 numbers for each run) stay in memory: the list needs
them too."""
# Names in the URL.
CHOSEN = "tournament"
"""Which tournament is shown."""
AGAINST = "against"
"""The setting to compare with."""
SECTION = "section"
"""What is shown below the table."""
COLOUR = "colour"
COST = "cost"
SETTING = "setting"
"""What a section shows."""

REFRESH_S = 2.0
"""Seconds between redrawings of the bar."""
WATCH_S = 5.0
"""Seconds between an idle page's checks for changes."""
ADDED_ROUNDS = 3
"""Rounds that a press of the button adds."""
WHEN_QUIET = "For a firm number, once the other programs have ended"
"""What more rounds are for where a setting was faster while other programs ran: beside the same
programs they decide nothing."""
UNDER_WAY = ("waiting", "running")
LONGEST_FILES_PX = 300
"""Height from which a list of files is scrolled."""


@st.cache_resource(show_spinner=False)
def runners() -> tournament_runner.TournamentRunners:
    started = tournament_runner.TournamentRunners(resources.manager())
    # before the manager, registered earlier: no trial starts only to be stopped
    resources.at_end(started.shutdown)
    return started


STARTING = threading.Lock()
"""Held while a tournament is started: two tabs that press Start at once start one."""


@st.cache_resource(show_spinner=False, max_entries=VIEWS_KEPT)
def view(tournament_id: int) -> tournament_view.TournamentView:
    return tournament_view.TournamentView(resources.store(), tournament_id)


def running_tournament() -> tournaments.StoredTournament | None:
    return tournaments.held_tournament(resources.store())


def busy() -> bool:
    return running_tournament() is not None


def start(spec: tournament_spec.TournamentSpec, name: str) -> int:
    """Starts a tournament unless one is running; returns the id of the one that runs.

    Raises `VitprofError`.
    """
    with STARTING:
        if running := running_tournament():
            return running.id
        tournament_id = planning.create_tournament(resources.store(), spec, name)
        runners().run(tournament_id)
        return tournament_id


def resume(tournament_id: int) -> None:
    """Continues a tournament, or ends its pause. Raises `VitprofError` where it cannot."""
    with STARTING:
        running = running_tournament()
        if running is not None and running.id != tournament_id:
            raise JobError(
                f"tournament {running.id} is running; stop or pause it first: they would disturb each "
                "other"
            )
        runners().run(tournament_id)


def chosen() -> int | None:
    """Returns the tournament that the URL names; says, once, why one cannot be shown."""
    named = st.query_params.get(CHOSEN)
    if named is None:
        return None
    # isdecimal() alone takes other scripts' digits; no tournament has the number 0
    number = int(named) if named.isascii() and named.isdecimal() else 0
    try:
        return tournaments.tournament(resources.store(), number).id
    except MissingError:
        why = f"Tournament {named[:20]} is not here: it was deleted, or the link comes from another machine."
    except StoreError as error:
        why = str(error)
    leave()
    st.warning(texts.escaped(why))
    return None


def open_one(tournament_id: int) -> None:
    """Shows this tournament from the next run of the script on, with nothing chosen on its page
    yet.
    """
    for name in (AGAINST, SECTION, COLOUR, COST, SETTING):
        st.session_state.pop(name, None)
    st.query_params[CHOSEN] = str(tournament_id)


def leave() -> None:
    st.query_params.pop(CHOSEN, None)


def signature(now: tournament_view.TournamentState) -> tuple[object, ...]:
    """Returns what the page shows besides the progress bar.

    When it changes, once for each run, the page is redrawn.
    """
    t = now.tournament
    shown: list[object] = [t.status, t.held, t.note]
    for entry in now.entries:
        for outcome in entry.outcomes:
            if outcome.status not in UNDER_WAY:
                shown.append((outcome.run_id, outcome.status))
        shown.append("waiting" if entry.status in UNDER_WAY else entry.status)
    return tuple(shown)


def draw_state(now: tournament_view.TournamentState) -> None:
    """Draws how far a tournament is, or how it ended, and its buttons."""
    t = now.tournament
    script = now.tournament.spec.script
    if t.held:
        notifications.watch_tournament(t.id)
        st.fragment(_watch, run_every=REFRESH_S)(t.id, signature(now))
        _draw_buttons(t)
        return
    if t.status == "done":
        _draw_done(now)
    else:
        st.fragment(_watch, run_every=WATCH_S)(t.id, signature(now))
        _draw_ended_early(now)
    if script is not None:
        # of a conversion that is done the samples are gone
        of_conversion = script.conversion is not None
        if t.status != "done" or not of_conversion:
            _draw_commands(now, script)


def _draw_done(now: tournament_view.TournamentState) -> None:
    """Draws what a tournament took that is done, and the button for more rounds."""
    t = now.tournament
    if t.note:
        st.warning(texts.escaped(f"Ended: {t.note}."))
    runs = count(sum(entry.n_made for entry in now.entries), "run")
    took = rough_time(now.spent_s)
    is_busy = recommend.was_faster_while_busy(view(t.id).board(now))
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption(f":material/check: Done: {runs}, {took} of running", width="content")
        if t.spec.script is None:
            text = (
                "Runs every setting again that was not cut short. The time limit no longer applies."
            )
            if is_busy:
                st.caption(f"{WHEN_QUIET}:", width="content")
            words = f"Run {ADDED_ROUNDS} more rounds"
            texts.act_button(
                words, "tournament-more-rounds", "add", lambda: _add_rounds(t.id), text
            )


def _draw_ended_early(now: tournament_view.TournamentState) -> None:
    """Draws why a tournament does not run that is not done, and the button to resume it."""
    t = now.tournament
    state = {"queued": "Not started"}.get(t.status, t.status.capitalize())
    if not t.note:
        reason = state
    elif t.note.startswith(state.lower()):
        reason = t.note
    else:
        reason = f"{state}: {t.note}"
    done = f"{now.progress.done} of {now.progress.total} runs are done"
    words = f"{sentence(reason)} {done}."
    if t.spec.script is not None:  # its commands are below
        st.warning(texts.escaped(words))
        return
    if _draw_skip(now, reason, done):
        return
    st.warning(texts.escaped(f"{words} Resume to run the rest."))
    about = "Continues where it ended. A run that did not finish is run again."
    _draw_resume(t, about, type="primary")


def _draw_skip(now: tournament_view.TournamentState, reason: str, done: str) -> bool:
    """Draws the question whether images that cannot be read are skipped, where one ended a tournament;
    returns whether it did.
    """
    t = now.tournament
    if t.spec.base.skip_unreadable:
        return False
    runs = [outcome.run_id for entry in now.entries for outcome in entry.outcomes]
    facts = [resources.store().run(run_id).facts for run_id in runs]
    if not any(of_run.get(UNREADABLE_SAMPLE) for of_run in facts):
        return False
    st.warning(texts.escaped(f"{sentence(reason)} {done}."))
    spec = dataclasses.replace(t.spec, base=dataclasses.replace(t.spec.base, skip_unreadable=True))
    texts.act_button(
        "Skip such images and start again",
        "tournament-skip-again",
        "skip_next",
        lambda: open_one(start(spec, t.name)),
        "Starts another tournament of the same settings. It leaves out and counts what cannot be read.",
        type="primary",
    )
    return True


def _draw_resume(t: tournaments.StoredTournament, help: str, **more: Any) -> None:
    texts.act_button(
        "Resume", "tournament-resume", "play_arrow", lambda: resume(t.id), help, **more
    )


def _add_rounds(tournament_id: int) -> None:
    tournaments.add_rounds(resources.store(), tournament_id, ADDED_ROUNDS)
    resume(tournament_id)


@texts.guarded
def _watch(tournament_id: int, drawn: object) -> None:
    """Draws a running one's bar alone, a few hundred bytes.

    It redraws the whole page once `signature` has changed.
    """
    now = None
    with contextlib.suppress(StoreError):  # deleted
        now = view(tournament_id).state()
    if now is None or signature(now) != drawn:
        st.rerun(scope="app")
    if now.tournament.held:
        st.progress(now.progress.fraction, text=texts.escaped(_text(now)))
        run_id = now.progress.run_id
        jobs = resources.manager()
        if run_id is None:
            return
        if _waits(resources.store().run(run_id)) and jobs.may_stop(run_id):
            texts.act_button(
                "Run now", "tournament-now", "fast_forward", lambda: jobs.run_now(run_id), NOW_HELP
            )


def _waits(run: StoredRun) -> bool:
    """Returns whether it waits for jobs of other programs."""
    return run.status == "queued" and run.message != ""


def _stage(run: StoredRun) -> str:
    """Returns what a run is doing, or what it waits for."""
    if run.status == "queued":
        return run.message or "starting"
    return STAGES.get(run.stage, run.stage or "starting").partition(":")[0]


def _text(now: tournament_view.TournamentState) -> str:
    """Returns the progress in words: runs done, what runs now, how long it may go on."""
    p = now.progress
    spec = now.tournament.spec
    waits = False
    text = f"{p.done} of {p.total} runs done"
    if p.run_id is not None:
        run = resources.store().run(p.run_id)
        waits = _waits(run)
        text += f"; now {key_in_words(p.words)}, round {p.round}: {_stage(run)}"
    n_failed = sum(entry.status == "failed" for entry in now.entries)
    if n_failed:
        text += f"; {count(n_failed, 'setting')} failed"
    if p.round > spec.repeats:
        text += "; this round was added because it is not decided yet"
    elif spec.until_decided:
        text += f"; {planning.rounds_words(spec)}"
    if math.isfinite(p.seconds_left) and p.seconds_left > 0 and not waits:
        # most settings that were not tried yet are faster than the first, by which they are judged
        untried = any(e.status == "waiting" and not e.outcomes for e in now.entries)
        most = "at most " if untried else ""
        text += f"; {most}about {rough_time(p.seconds_left)} left"
    return text


def _draw_buttons(t: tournaments.StoredTournament) -> None:
    if t.holder_host:
        where = f"{t.holder_host}, process {t.holder_pid}"
        store = resources.store()
        about = (
            "Pauses the tournament here; then resume it. A run that did not finish is run again."
        )
        texts.draw_take_over(
            where, "tournament-take-over", lambda: tournaments.release(store, t.id), about
        )
        return
    if t.holder_pid != os.getpid() or runners().runner(t.id) is None:
        st.caption(f"It runs in another program (process {t.holder_pid}): pause or stop it there.")
        return
    if starter := gate.started_by(t.started_by):
        st.caption(texts.escaped(starter))
    if not may_stop(t.started_by):
        return
    with st.container(horizontal=True, vertical_alignment="center", key="tournament-buttons"):
        if t.status == "paused":
            _draw_resume(t, "Starts the next run.")
        else:
            text = "Finishes the current run and starts no more until you resume."
            texts.act_button(
                "Pause", "tournament-pause", "pause", lambda: runners().pause(t.id), text
            )
        text = "Stops the current run and starts no more. What was measured is kept, and you can resume later."
        texts.act_button("Stop", "tournament-stop", "stop", lambda: _stop(t.id), text)
        if t.status == "paused":
            why = f": {texts.escaped(t.note)}" if t.note else ""
            st.caption(f"Paused{why}.", width="content")


def _stop(tournament_id: int) -> None:
    st.toast("Stopping the current run.", icon=":material/stop:")
    runners().stop(tournament_id)


def _draw_commands(now: tournament_view.TournamentState, script: own_script.OwnScript) -> None:
    """Draws how to continue a tournament that is not running.

    For more rounds, with a yes after the first trial, or for the rest.
    """
    t = now.tournament
    words = "To run the rest, in a terminal:"
    options = ""
    if t.status == "done":
        words = "To run more rounds of every setting that was not cut short, in a terminal:"
        if recommend.was_faster_while_busy(view(t.id).board(now)):
            words = f"{WHEN_QUIET}, in a terminal:"
        options = f" --more-rounds {ADDED_ROUNDS}"
    elif script.loader is not None and not script.agreed:
        words = "If it may write them again, continue in a terminal:"
        options = " --yes"
        if script.lasting:
            st.markdown("Each trial runs the script again, which wrote or deleted these files:")
            height = min(LONGEST_FILES_PX, 60 + 24 * len(script.lasting))
            st.code("\n".join(script.lasting), language=None, height=height)
    st.caption(words)
    st.code(f"{planning.resume_command(t.id)}{options}", language="bash", wrap_lines=True)
