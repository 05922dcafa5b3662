"""The form that sets a tournament up: what it runs, an estimate of what it takes, and Start.

It takes time, disk and memory.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from vitprof import errors, formats, home
from vitprof.analysis.tournament.entries import key_in_words
from vitprof.config import RunConfig, availability, bounds, estimates, tournament_spec
from vitprof.config.accelerators import accelerator
from vitprof.config.strategies import STRATEGIES
from vitprof.datasets.catalog import DatasetInfo, dataset_info
from vitprof.experiments.tournament.duration import size_words
from vitprof.experiments.tournament.planning import PlannedTrial, plan, why_not_here
from vitprof.names import cut_name
from vitprof.store import RunGroup, RunQuery, RunStore
from vitprof.ui import resources, texts, widgets
from vitprof.ui.profile.headroom_section import STARTUP_S
from vitprof.ui.texts import escaped
from vitprof.ui.tournament import fields, state

NAME_KEY = f"{fields.TRIAL}name"
LIMIT_MIN = bounds.Bounds(0.1, bounds.TOURNAMENT_BOUNDS["seconds"].most / 60, whole=False)
"""Bounds of the time for the whole tournament, in minutes."""


def draw_setup() -> None:
    rejected = fields.reject_unusable()
    # read before the fields are drawn, which put their own values there
    own = [name for name in st.query_params if name.startswith(fields.TRIAL)]
    from_url = {name: st.query_params.get_all(name) for name in own}
    with st.container(border=True, key="tournament-setup"):
        batch_sizes = fields.draw_job()
        ready = None
        try:
            info = widgets.data_set()
            machine = resources.machine()
            reasons = {}
            for name, strategy in STRATEGIES.items():
                reasons[name] = availability.why_unavailable(strategy, info, machine)
            picked = fields.draw_strategies(info, reasons)
            budget, repeats = fields.draw_length()
            drawer = st.expander("Advanced", key="tournament-advanced")
            with drawer:
                fields.draw_model()
                trials = fields.draw_more_trials(info, picked, reasons)
                evaluate, rules = fields.draw_rules()
            trials |= {"strategies": picked, "batch_sizes": batch_sizes}
            each_run = budget | {"evaluate": evaluate}
            spec = fields.make_spec(trials, each_run, rules | {"repeats": repeats})
            ready = _ready(spec, drawer)
        except errors.ConfigError as error:
            st.error(escaped(widgets.wrong(error)))
        messages = [text for text in (rejected, fields.not_taken_in(from_url)) if text]
        if messages:
            st.warning(escaped("; ".join(messages)))
        _draw_start(ready)
        widgets.say_settings()
        st.caption(escaped(fields.what_is_taken()))


def _ready(
    spec: tournament_spec.TournamentSpec, drawer: DeltaGenerator
) -> tournament_spec.TournamentSpec | None:
    """Draws what the tournament takes, and what of it cannot run here; returns it if it can be
    started.
    """
    planned = plan(spec, lambda config: why_not_here(config, resources.machine()))
    able = [trial for trial in planned if not trial.refused]
    refused = [trial for trial in planned if trial.refused]
    with drawer:
        spec = _draw_last(spec, able)
    needs = estimate(able, spec.repeats, resources.store())
    how_many, written = estimate_sentence(needs, len(able), spec)
    if able:
        st.markdown(f":material/schedule: **{escaped(how_many)}**")
    if able and written:
        st.caption(escaped(formats.sentence(written)))
    if refused:
        lines = [f"- **{escaped(key_in_words(t.key))}**: {escaped(t.refused)}" for t in refused]
        with st.expander(f"{len(refused)} of {len(planned)} settings cannot run here: why"):
            st.markdown("\n".join(lines))
    needed = needs.disk_bytes + needs.staged_bytes
    free = resources.machine().disk_bytes
    if not able:
        st.error("None of these settings can run here: choose other strategies.")
        return None
    if needed > free:
        st.error(
            f"Together they write {formats.size(needed)}, but only {formats.size(free)} are free: "
            "choose fewer strategies, or set VITPROF_HOME to a larger disk."
        )
    return spec if needed <= free else None


def _draw_last(
    spec: tournament_spec.TournamentSpec, able: Sequence[PlannedTrial]
) -> tournament_spec.TournamentSpec:
    """Draws baseline, time for all of it, and name; returns the spec with the first two.

    The name stays in the session: the spec has none.
    """
    names = {trial.key: key_in_words(trial.key) for trial in able}
    left, middle, right = st.columns(3)
    with left:
        first = "the first"
        if names:
            first += f": {next(iter(names.values()))}"
        options = ["", *names]
        key = f"{fields.TRIAL}baseline"
        widgets.keep_to(options, key, "")
        baseline = st.selectbox(
            "Compared with",
            options,
            format_func=lambda key: names.get(key, first),
            key=key,
            persist_state="session",
            help="The baseline of the speed-ups. You can change it in the results.",
        )
    with middle:
        minutes = widgets.number_field(
            "Time for all of it (min)",
            LIMIT_MIN,
            placeholder="no limit",
            value=None,
            **widgets.kept(f"{fields.TRIAL}limit"),
            help="No run starts after this time. The result is what was measured until then.",
        )
    with right:
        widgets.name_field(
            "Name",
            NAME_KEY,
            persist_state="session",
            placeholder=spec.title,
            help="Its name in the list. Empty: made from what it tries.",
        )
    seconds = None if minutes is None else minutes * 60
    return replace(spec, baseline=baseline or "", seconds=seconds)


def _draw_start(spec: tournament_spec.TournamentSpec | None) -> None:
    busy = state.busy()
    texts.act_button(
        "Start tournament",
        "tournament-start",
        "emoji_events",
        lambda: _start(spec),
        "Runs one setting after another, also when this page is closed. Other runs wait in the queue meanwhile.",
        type="primary",
        disabled=spec is None or busy,
    )
    if busy:
        st.caption("A tournament is running. Start this one when that has ended.")


def _start(spec: tournament_spec.TournamentSpec | None) -> None:
    if spec is not None:
        state.open_one(state.start(spec, cut_name(st.session_state[NAME_KEY])))


EARLIER = 20
"""Earlier runs of a strategy that are looked through for one with a throughput."""


@dataclass(frozen=True)
class Estimate:
    """What the trials that can run here take together."""

    seconds: float
    """Of all runs together. Those of `unknown` trials count with what is known of them, at least
    their start."""
    unknown: int
    """Number of trials whose speed is not known yet: their runs may take longer."""
    disk_bytes: int
    """What is written and kept: storages, and the data set itself if it is not there yet."""
    staged_bytes: int
    """The largest copy that a run makes and removes again."""
    ram_bytes: int
    """The most that a trial keeps in memory."""
    prepares: tuple[str, ...]
    """Names of the storages that are made first."""
    makes: str
    """Name of the data set that is made first; "" if it is there."""


def estimate(able: Sequence[PlannedTrial], repeats: int, store: RunStore) -> Estimate:
    """Returns what the trials take together, each run `repeats` times."""
    seconds = 0.0
    unknown = 0
    source = 0
    prepared = dict[str, int]()
    staged = 0
    ram = 0
    makes = ""
    speeds: dict[tuple[str, int], float] = {}
    for trial in able:
        config = trial.config
        info = dataset_info(config.dataset, config.n_images)
        training_s = config.seconds
        if training_s is None:
            name = (config.strategy, config.batch_size)
            if name not in speeds:
                speeds[name] = _samples_per_s(config, store)
            training_s = _training_s(config, info, speeds[name])
            if math.isnan(speeds[name]):
                unknown += 1
        seconds += repeats * (STARTUP_S + training_s)
        combination = STRATEGIES[config.strategy].combination(info, config.to_dict())
        needs = estimates.footprint(combination, info, config.cache_mb)
        if needs.prepared_as is not None and needs.made is None:
            prepared[needs.prepared_as] = needs.prepared_bytes
        staged = max(staged, needs.staged_bytes)
        ram = max(ram, needs.ram_bytes)
        missing = not (home.data_dir() / info.directory).is_dir()
        if missing and needs.made_bytes:  # else it makes links alone
            source = needs.made_bytes
            makes = info.name
    return Estimate(
        seconds=seconds,
        unknown=unknown,
        disk_bytes=sum(prepared.values()) + source,
        staged_bytes=staged,
        ram_bytes=ram,
        prepares=tuple(prepared),
        makes=makes,
    )


def estimate_sentence(
    needs: Estimate, trials: int, spec: tournament_spec.TournamentSpec
) -> tuple[str, str]:
    """Returns how many runs there are and how long they take, and what is written and kept, in
    words.
    """
    time = f"about {formats.rough_time(needs.seconds)}"
    if needs.unknown:
        time = f"at least {formats.rough_time(needs.seconds)} ({needs.unknown} of the settings never ran here)"
    how_many = size_words(spec, trials, time, needs.seconds)
    written = []
    if needs.makes:
        written.append(f"makes {needs.makes} first, which also takes time")
    if needs.prepares:
        written.append(f"prepares {', '.join(needs.prepares)} once, which also takes time")
    if needs.disk_bytes:
        written.append(f"keeps about {formats.size(needs.disk_bytes)} on disk")
    if needs.staged_bytes:
        size = formats.size(needs.staged_bytes)
        written.append(f"needs {size} on disk for a copy during a run")
    if needs.ram_bytes:
        written.append(f"keeps up to {formats.size(needs.ram_bytes)} of samples in RAM")
    return how_many, "; ".join(written)


def _samples_per_s(config: RunConfig, store: RunStore) -> float:
    """Returns the speed of the newest earlier runs like it, that with the nearest batch size; NaN
    without any.
    """
    wanted = {
        "status": "done",
        "strategy": config.strategy,
        "dataset": config.dataset,
        "device": config.device,
    }
    query = RunQuery(filters={name: (value,) for name, value in wanted.items()}, helpers=True)
    rows = []
    for row in store.list_runs(query, limit=EARLIER):
        # not those of a headroom: they load free data
        group = RunGroup.parse(row.group_key)
        trains = not row.group_key or (group is not None and group.kind == "tournament")
        if row.samples_per_s and trains:
            rows.append(row)
    nearest = min(rows, key=lambda r: abs(math.log(r.batch_size / config.batch_size)), default=None)
    if nearest is None:
        return math.nan
    return float(nearest.samples_per_s or math.nan)


def _training_s(config: RunConfig, info: DatasetInfo, samples_per_s: float) -> float:
    """Returns how long a run of some steps trains; 0 where nothing is known of its speed."""
    steps = config.steps
    if steps is None:
        steps = (config.epochs or 1) * (info.n_train // config.batch_size)
    if math.isfinite(samples_per_s):
        return steps * config.batch_size / samples_per_s
    if config.simulated:  # at least the device's own time is known
        return steps * accelerator(config.device).span_s(config.batch_size)
    return 0.0
