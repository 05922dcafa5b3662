"""The form that sets a tournament up: what it runs, what that takes, and Start."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import streamlit as st

from vitprof.analysis.tournament import key_in_words
from vitprof.config.availability import why_unavailable
from vitprof.config.bounds import TOURNAMENT_BOUNDS, Bounds
from vitprof.config.catalog import DATASETS, DatasetInfo, dataset_info
from vitprof.config.strategies import STRATEGIES
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.errors import ConfigError
from vitprof.experiments.tournament.planning import PlannedTrial, plan, why_not_here
from vitprof.formats import size
from vitprof.names import cut_name
from vitprof.ui import resources
from vitprof.ui.resources import machine
from vitprof.ui.texts import escaped
from vitprof.ui.tournament.estimate import estimate, estimate_sentence
from vitprof.ui.tournament.fields import (
    TRIAL,
    draw_job,
    draw_runs,
    draw_trials,
    in_url,
    make_spec,
    not_taken_in,
    reject_unusable,
    what_is_taken,
)
from vitprof.ui.tournament.state import WATCH_S, act, open_one, running_tournament, start, work
from vitprof.ui.widgets import IN_URL, keep_to, label, name_field, say_settings, settings, within

NAME_KEY = f"{TRIAL}name"
LIMIT_MIN = Bounds(0.1, TOURNAMENT_BOUNDS["seconds"].most / 60, whole=False)
"""Bounds of the time for the whole tournament, in minutes."""


def draw_setup() -> None:
    """Draws the whole form."""
    rejected, from_url = reject_unusable(), in_url()
    with st.container(border=True, key="tournament-setup"):
        st.header("New tournament", anchor=False)
        draw_job()
        spec: TournamentSpec | ConfigError
        try:
            info = _info()
            trials = draw_trials(
                info, {name: why_unavailable(STRATEGIES[name], info, machine()) for name in STRATEGIES}
            )
            spec = make_spec(info, trials, *draw_runs())
        except ConfigError as error:  # a number of images that is not possible
            spec = error
        ready = None
        if isinstance(spec, ConfigError):
            st.error(escaped(f"{label(spec.field)} {spec.value}".strip() + f": {spec.allowed}"))
        else:
            ready = _ready(spec)
        if messages := list(filter(None, (rejected, not_taken_in(from_url)))):
            st.warning(escaped("; ".join(messages)))
        _draw_start(ready)
        say_settings()
        st.caption(escaped(what_is_taken()))


def _info() -> DatasetInfo:
    values = settings()
    return dataset_info(values["dataset"], values["n_images"] if DATASETS[values["dataset"]].any_size else None)


def _ready(spec: TournamentSpec) -> TournamentSpec | None:
    """Draws the last choices and what all of it takes; returns the spec, None where it cannot be started."""
    planned = plan(spec, lambda config: why_not_here(config, machine()))
    able = [trial for trial in planned if not trial.refused]
    spec = _draw_last(spec, able)
    _say_what_it_takes(spec, planned, able)
    if wrong := _why_not(spec, able):
        st.error(escaped(wrong))
        return None
    return spec


def _draw_last(spec: TournamentSpec, able: Sequence[PlannedTrial]) -> TournamentSpec:
    """Draws what depends on the trials or is rarely needed: baseline, time for all of it, name. Returns the spec with
    baseline and time; the name stays in the session.
    """
    names = {trial.key: key_in_words(trial.key) for trial in able}
    left, middle, right = st.columns(3)
    with left:
        first = f"the first: {next(iter(names.values()))}" if names else "the first"
        options, key = ["", *names], f"{TRIAL}baseline"
        keep_to(options, key, "")
        baseline = st.selectbox(
            "Compared with",
            options,
            format_func=lambda key: names.get(key, first),
            key=key,
            persist_state="session",
            help="The baseline of the speed-ups. You can change it in the results.",
        )
    with middle:
        minutes = st.number_input(
            "Time for all of it (min)",
            **within(LIMIT_MIN),
            placeholder="no limit",
            value=None,
            key=f"{TRIAL}limit",
            bind=IN_URL,
            help="No run starts after this time. The result is what was measured until then.",
        )
    with right:
        name_field(
            "Name",
            NAME_KEY,
            persist_state="session",
            placeholder=spec.title,
            help="Its name in the list. Empty: made from what it tries.",
        )
    return dataclasses.replace(spec, baseline=baseline or "", seconds=None if minutes is None else minutes * 60)


def _say_what_it_takes(spec: TournamentSpec, planned: Sequence[PlannedTrial], able: Sequence[PlannedTrial]) -> None:
    """Says how many runs, how long, what is written; and what is left out, with the reasons."""
    how_many, written = estimate_sentence(estimate(able, spec.repeats, resources.store()), len(able), spec)
    if able:
        st.markdown(f":material/schedule: **{escaped(how_many)}**")
    if able and written:
        st.caption(escaped(written[:1].upper() + written[1:] + "."))
    refused = [trial for trial in planned if trial.refused]
    if refused:
        with st.expander(f"{len(refused)} of {len(planned)} settings cannot run here: why"):
            st.markdown(
                "\n".join(f"- **{escaped(key_in_words(trial.key))}**: {escaped(trial.refused)}" for trial in refused)
            )


def _why_not(spec: TournamentSpec, able: Sequence[PlannedTrial]) -> str:
    """Returns why it cannot be started, in one line; "" if it can."""
    if not able:
        return "None of these settings can run here: choose other strategies."
    needed, free = estimate(able, spec.repeats, resources.store()).needs_disk, machine().disk_bytes
    if needed > free:
        return (
            f"Together they write {size(needed)}, but only {size(free)} are free: choose fewer strategies, or set "
            "VITPROF_HOME to a larger disk."
        )
    return ""


def _draw_start(spec: TournamentSpec | None) -> None:
    running, tuning = running_tournament(), work().running
    st.button(
        "Start tournament",
        type="primary",
        icon=":material/emoji_events:",
        key="tournament-start",
        disabled=spec is None or running is not None or tuning,
        on_click=act,
        args=(lambda: _start(spec),),
        help="Runs one setting after another, also when this page is closed. Other runs wait in the queue meanwhile.",
    )
    if running is not None:
        st.caption(
            f"Tournament {running.id} is running. Start this one when it has ended: they would disturb each other."
        )
    elif tuning:
        st.caption(
            "A strategy is being tuned, see *Tune one strategy*. Start this when that has ended: they would disturb "
            "each other."
        )
    if running is not None or tuning:
        st.fragment(_draw_when_free, run_every=WATCH_S)()


def _draw_when_free() -> None:
    if running_tournament() is None and not work().running:
        st.rerun(scope="app")


def _start(spec: TournamentSpec | None) -> None:
    if spec is not None:
        open_one(start(spec, cut_name(st.session_state[NAME_KEY])))
