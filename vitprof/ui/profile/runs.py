"""Which run a page shows, its title, and its settings in the sidebar.

Also the other runs that are running or waiting.
"""

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from functools import partial

import streamlit as st

from vitprof import demo, errors, formats, store
from vitprof.analysis import thresholds
from vitprof.config import RunConfig
from vitprof.config.own_script import is_own_script, to_compare
from vitprof.jobs.scheduling import ahead_of
from vitprof.program import from_anywhere
from vitprof.recording.columns import LIVE_STATUSES
from vitprof.recording.verdict import advised_workers
from vitprof.telemetry.machine import READ_EVERY_S
from vitprof.ui import gate, resources, texts
from vitprof.ui.profile import live, settings
from vitprof.ui.widgets import FIELDS, RUN, RUNS, STATE

OWN_SCRIPT_HELP = "Watched from inside while it trained. Run it again with the same command."
TRACE_HELP = "Read from {}, a trace of torch.profiler: no stages of loading, and what the profiler costs is in it."
AGAIN_HELP = "Starts a new run with the same settings as this one, whatever the sidebar says."
COMPARE = ":material/compare_arrows:"
COMPARE_HELP = "Compares this run with the one that you came from."
STOP_HELP = "Stops after the current step and keeps what was measured so far."
QUIET_HELP = (
    "Waits until other programs leave the CPU alone, then starts a run with the same settings."
)
QUIET = "run to repeat when the machine is quiet"
CALM = "readings of a quiet machine in a row"
ENOUGH_CALM = 3
TAKEN = "run whose settings were taken"
BEFORE = "run shown before run {} was started"
FOLLOWED = "run that was shown because it was running"
SHOW = "tab"
"""Key of the tabs, which is their name in the URL."""
LAST = "tab shown last"
"""Key of the tab that was last open."""


def chosen_run() -> store.StoredRun | None:
    """Returns the run that the URL names, else the one running now or before, else the
    demonstration's.

    None without any of these.
    """
    if named := st.query_params.get(RUN):
        try:
            return resources.store().run(int(named))
        except store.UnreadableError as error:
            st.warning(texts.escaped(f"{error}."))
            del st.query_params[RUN]
        except (ValueError, errors.StoreError):
            st.warning(f"There is no run {texts.escaped(named)}. It may have been deleted.")
            del st.query_params[RUN]
    if running := running_run():
        st.session_state[FOLLOWED] = running.id
        if is_own_script(running.config):
            # a reload shows it again, also when it has ended
            st.query_params[RUN] = str(running.id)
        return running
    candidates = [st.session_state.get(FOLLOWED)]
    if demo.is_demonstration():
        candidates.append(demo.FIRST_SHOWN)
    for shown in candidates:
        with contextlib.suppress(errors.StoreError):  # deleted meanwhile
            if shown:
                return resources.store().run(shown)
    return None


def leave() -> None:
    st.query_params.pop(RUN, None)
    st.session_state.pop(FOLLOWED, None)


def running_run() -> store.StoredRun | None:
    """Returns a run that is running, or that a running one was made for."""
    for run in resources.store().runs(["running"]):
        requested = behind(run)
        if requested is not None:
            return requested
    return None


def behind(run: store.StoredRun) -> store.StoredRun | None:
    """Returns the run that the user requested: `run`, or the one it was made for.

    None where that one is there no more.
    """
    if not run.group_key:
        return run
    with contextlib.suppress(errors.StoreError):  # deleted meanwhile
        if run.group is not None and run.group.run_id is not None:
            return resources.store().run(run.group.run_id)
    return None


@texts.guarded
def draw_title(run: store.StoredRun) -> None:
    """Draws the run's name, a badge if its device was simulated, and Stop while it is live, else
    Run again.
    """
    jobs = resources.manager()
    texts.draw_problem()
    with st.container(horizontal=True, vertical_alignment="center", key="title"):
        st.title(texts.escaped(run.name), anchor=False, width="content")
        if live.is_simulated_run(run):
            texts.simulated_badge()
        if not run.live and not demo.is_demonstration():
            texts.act_button(
                "Start page",
                "to-start",
                "arrow_back",
                leave,
                "The first page again.",
                type="tertiary",
            )
        trace = run.facts.get("trace")
        if trace:
            read_from = TRACE_HELP.format(texts.escaped(str(trace["file"])))
            st.badge("from a trace", icon=":material/timeline:", color="gray", help=read_from)
        elif is_own_script(run.config):
            st.badge(
                "your own script", icon=":material/visibility:", color="gray", help=OWN_SCRIPT_HELP
            )
            if run.live and not jobs.may_stop(run.id):
                st.caption("Ctrl+C in its console stops it.", width="content")
            if command := run.facts.get("command"):
                _draw_commands(str(command))
        elif not run.live and st.button(
            "Run again", key="run-again", icon=":material/replay:", help=AGAIN_HELP
        ):
            start(run.config)
            st.rerun()
        earlier = "" if run.live else before(run)
        if earlier and st.button(f"Compare with run {earlier}", icon=COMPARE, help=COMPARE_HELP):
            st.switch_page("pages/compare.py", query_params={RUNS: f"{earlier},{run.id}"})
        if run.live and jobs.may_stop(run.id):
            # of a run that waits, Cancel is beside its place in the queue
            waits = run.status == "queued" and ahead_of(jobs.store, run.id)
            if not waits:
                texts.act_button(
                    "Stop", "stop-button", "stop", lambda: jobs.stop(run.id), STOP_HELP
                )
        draw_queue(run)
        if starter := gate.started_by(run.started_by):
            st.caption(texts.escaped(starter), width="content")


def before(run: store.StoredRun) -> str:
    """Returns the number of the run from which this one was started; "" where the two cannot be
    compared.
    """
    shown_before = st.session_state.get(BEFORE.format(run.id)) or ""
    try:
        earlier = resources.store().run(int(shown_before))
    except (errors.StoreError, ValueError):  # deleted meanwhile; or no run was shown
        return ""
    same_data = earlier.config.dataset == run.config.dataset
    same_device = earlier.config.device == run.config.device
    return str(earlier.id) if same_data and same_device else ""


def _draw_commands(command: str) -> None:
    with st.popover(
        "Run again", icon=":material/replay:", help="What to type to watch it again, or to compare."
    ):
        st.markdown("Watch it again, in the folder that it was started in:")
        st.code(f"{from_anywhere()} watch -- {command}", language=None, wrap_lines=True)


def to_compare_here(run: store.StoredRun) -> str:
    """Returns the tournament to type for a watched script; "" where it is not known how that was
    started.
    """
    command = str(run.facts.get("command") or "")
    if not command:
        return ""
    advised = advised_workers(run.verdict.advice) if run.verdict is not None else ()
    return to_compare(run.environment, run.config.workers or 0, command, advised)


@texts.guarded
def draw_when_quiet(run: store.StoredRun) -> None:
    """Draws the button to repeat a run that other programs disturbed once they have ended, and that
    wait.
    """
    if st.session_state.get(QUIET) == run.id:
        st.fragment(_wait_for_quiet, run_every=READ_EVERY_S)(run)
        return

    def wait() -> None:
        st.session_state.update({QUIET: run.id, CALM: (0, None)})

    texts.act_button("Run again when quiet", "run-when-quiet", "nights_stay", wait, QUIET_HELP)


def _wait_for_quiet(run: store.StoredRun) -> None:
    reading = resources.machine_watch().read()
    others = reading.cpu_pct / 100 * reading.cores
    calm, last = st.session_state[CALM]
    if reading is not last:  # one reading may serve two draws
        calm = calm + 1 if others < thresholds.OTHERS_CORES else 0
        st.session_state[CALM] = (calm, reading)
    if calm >= ENOUGH_CALM:
        del st.session_state[QUIET]
        start(run.config)
        st.rerun(scope="app")
    with st.container(horizontal=True, vertical_alignment="center"):
        busy = "measuring"
        if math.isfinite(others):
            busy = f"other programs use {formats.cores(others, reading.cores)}"
        words = f"Waiting for a quiet machine: {busy}."
        st.markdown(f":material/hourglass_empty: {words}", width="content")
        stop = partial(st.session_state.pop, QUIET, None)
        about = "Starts nothing."
        texts.act_button("Do not wait", "stop-waiting", "close", stop, about)


def start(config: RunConfig, *, from_sidebar: bool = False) -> None:
    """Starts a run, and shows it; `from_sidebar`: its settings are in the sidebar already."""
    run_id = resources.manager().submit(config)
    st.session_state[BEFORE.format(run_id)] = st.query_params.get(RUN)
    st.query_params[RUN] = str(run_id)
    # whatever tab of another run is open
    st.session_state.update({SHOW: "Answer", LAST: "Answer"})
    if from_sidebar:
        st.session_state[TAKEN] = run_id


def take_settings(run: store.StoredRun | None) -> None:
    """Puts the settings of a run that was opened into the sidebar, once, before they are drawn.

    Settings that a link names stay, and a run that is shown only because it is running was not
    opened.
    """
    if run is None or RUN not in st.query_params:
        return
    if st.session_state.get(TAKEN) == run.id or is_own_script(run.config):
        return
    in_link = STATE not in st.session_state and any(name in FIELDS for name in st.query_params)
    st.session_state[TAKEN] = run.id
    if not in_link:
        settings.use_config(dataclasses.replace(run.config, name=""))  # the name is that run's own


@texts.guarded
def draw_queue(shown: store.StoredRun | None) -> None:
    """Draws the other runs that are running or waiting, with a button to show each.

    Those of a group are one line. Beside a run they are behind a button, which moves nothing when
    it appears. It does not refresh itself: redrawn every 2 s, it lost clicks on Run.
    """
    groups: dict[object, list[store.StoredRun]] = {}
    for run in resources.store().runs(LIVE_STATUSES, oldest_first=True):
        groups.setdefault(run.group_key or run.id, []).append(run)
    others = []
    for runs in groups.values():
        target = behind(runs[0]) or runs[0]
        if shown is None or shown.id not in {target.id, *(run.id for run in runs)}:
            others.append((runs, target))
    if not others:
        return
    if shown is None:
        place = st.container(border=True)
        place.caption("In the queue")
    else:
        place = st.popover(
            f"Also in the queue: {len(others)}", icon=":material/queue:", key="queue"
        )
    with place:
        for runs, target in others:
            _draw_group(runs, target)


def _draw_group(runs: Sequence[store.StoredRun], target: store.StoredRun) -> None:
    """Draws a line for runs of one group, which may be a single run; Show opens `target`."""
    first = runs[0]
    group = first.group
    of_tournament = group is not None and group.kind == "tournament"
    words = f"run {first.id}: {texts.escaped(first.name)}"
    if first.group_key:
        words = live.made_for(first)
    state = texts.escaped(f"({first.status}, {first.config.device})")
    words = f"{formats.capitalised(words)} {state}"
    if len(runs) > 1:
        words += f", {len(runs)} to go"
    if starter := gate.started_by(first.started_by):
        words += f". {texts.escaped(starter)}"
    help_text = "Show this run on this page."
    if of_tournament:
        help_text = "Its progress and its leaderboard so far."
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(words, width="content")
        if st.button("Show", key=f"show-{first.id}", help=help_text):
            if group is not None and of_tournament:
                st.switch_page("pages/tournament.py", query_params={"tournament": str(group.of)})
            st.query_params[RUN] = str(target.id)
            st.rerun(scope="app")
        # a tournament that loses one trial goes on with the next: its own page pauses and stops it
        if not of_tournament and any(resources.manager().may_stop(run.id) for run in runs):
            end = "Stop"
            icon = "stop"
            if all(run.status == "queued" for run in runs):
                end = "Cancel"
                icon = "close"
            texts.act_button(end, f"stop-{first.id}", icon, lambda: stop_group(runs), STOP_HELP)


def stop_group(runs: Sequence[store.StoredRun]) -> None:
    """Stops those of the runs that this user may stop, the last one first, so that none starts
    meanwhile.
    """
    jobs = resources.manager()
    for run in reversed(runs):
        if jobs.may_stop(run.id):
            jobs.stop(run.id)
