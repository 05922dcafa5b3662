"""The form that sets a tournament up: what it runs, an estimate of the time, disk and memory it takes, and Start."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from vitprof import errors, formats, home
from vitprof.analysis.tournament.entries import key_in_words
from vitprof.config import RunConfig, availability, bounds, estimates, tournament_spec
from vitprof.config.accelerators import accelerator
from vitprof.config.catalog import DatasetInfo, dataset_info
from vitprof.config.strategies import STRATEGIES
from vitprof.experiments.tournament.planning import PlannedTrial, plan, why_not_here
from vitprof.names import cut_name
from vitprof.store import RunGroup, RunQuery, RunStore
from vitprof.ui import resources, texts, widgets
from vitprof.ui.profile.what_if import STARTUP_S
from vitprof.ui.texts import escaped, rough_time
from vitprof.ui.tournament import fields, state

NAME_KEY = f"{fields.TRIAL}name"
LIMIT_MIN = bounds.Bounds(0.1, bounds.TOURNAMENT_BOUNDS["seconds"].most / 60, whole=False)


def draw_setup() -> None:
    rejected = fields.reject_unusable()
    from_url = {
        n: st.query_params.get_all(n) for n in st.query_params if n.startswith(fields.TRIAL)
    }
    with st.container(border=True, key="tournament-setup"):
        fields.draw_job()
        ready = None
        try:
            info = widgets.data_set()
            here = resources.machine()
            reasons = {
                name: availability.why_unavailable(s, info, here) for name, s in STRATEGIES.items()
            }
            trials = fields.draw_trials(info, reasons)
            more = st.expander("Rounds, length of a run, limits")
            with more:
                runs = fields.draw_runs()
            ready = _ready(fields.make_spec(trials, *runs), more)
        except errors.ConfigError as error:
            st.error(escaped(widgets.wrong(error)))
        if messages := list(filter(None, (rejected, fields.not_taken_in(from_url)))):
            st.warning(escaped("; ".join(messages)))
        _draw_start(ready)
        widgets.say_settings()
        st.caption(escaped(fields.what_is_taken()))


def _ready(
    spec: tournament_spec.TournamentSpec, more: DeltaGenerator
) -> tournament_spec.TournamentSpec | None:
    planned = plan(spec, lambda config: why_not_here(config, resources.machine()))
    able = [trial for trial in planned if not trial.refused]
    refused = [trial for trial in planned if trial.refused]
    with more:
        spec = _draw_last(spec, able)
    needs = estimate(able, spec.repeats, resources.store())
    how_many, written = estimate_sentence(needs, len(able), spec)
    if able:
        st.markdown(f":material/schedule: **{escaped(how_many)}**")
    if able and written:
        st.caption(escaped(written[:1].upper() + written[1:] + "."))
    if refused:
        with st.expander(f"{len(refused)} of {len(planned)} settings cannot run here: why"):
            st.markdown(
                "\n".join(
                    f"- **{escaped(key_in_words(t.key))}**: {escaped(t.refused)}" for t in refused
                )
            )
    needed = needs.disk_bytes + needs.staged_bytes
    free = resources.machine().disk_bytes
    if not able:
        st.error("None of these settings can run here: choose other strategies.")
    elif needed > free:
        st.error(
            f"Together they write {formats.size(needed)}, but only {formats.size(free)} are free: choose fewer "
            "strategies, or set VITPROF_HOME to a larger disk."
        )
    return spec if able and needed <= free else None


def _draw_last(
    spec: tournament_spec.TournamentSpec, able: Sequence[PlannedTrial]
) -> tournament_spec.TournamentSpec:
    names = {trial.key: key_in_words(trial.key) for trial in able}
    left, middle, right = st.columns(3)
    with left:
        first = f"the first: {next(iter(names.values()))}" if names else "the first"
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
    minutes = middle.number_input(
        "Time for all of it (min)",
        **widgets.stepped(LIMIT_MIN),
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
    return replace(spec, baseline=baseline or "", seconds=None if minutes is None else minutes * 60)


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
        st.caption(
            "A tournament is running or a strategy is being tuned. Start this one when that has ended."
        )
        st.fragment(_draw_when_free, run_every=state.WATCH_S)()


def _draw_when_free() -> None:
    if not state.busy():
        st.rerun(scope="app")


def _start(spec: tournament_spec.TournamentSpec | None) -> None:
    if spec is not None:
        state.open_one(state.start(spec, cut_name(st.session_state[NAME_KEY])))


EARLIER = 20
"""Earlier runs of a strategy that are looked through for one with a throughput."""


@dataclass(frozen=True)
class Estimate:
    """What the trials that can run here take together."""

    seconds: float
    """Of all runs together. Those of `unknown` trials count with what is known of them, at least their start."""
    unknown: int
    """Number of trials whose speed is not known yet: their runs may take longer."""
    disk_bytes: int
    """What is written and kept: storages, and the data set itself if it is not there yet."""
    staged_bytes: int
    """The largest copy that a run makes and removes again."""
    ram_bytes: int
    prepares: tuple[str, ...]
    makes: str


def estimate(able: Sequence[PlannedTrial], repeats: int, store: RunStore) -> Estimate:
    seconds = 0.0
    unknown = 0
    source = 0
    prepared = dict[str, int]()
    staged = 0
    ram = 0
    makes = ""
    speeds: dict[tuple[str, int], float] = {}
    for config in (trial.config for trial in able):
        info = dataset_info(config.dataset, config.n_images)
        name = (config.strategy, config.batch_size)
        if config.seconds is None and name not in speeds:
            speeds[name] = _samples_per_s(config, store)
        took = (
            config.seconds
            if config.seconds is not None
            else _training_s(config, info, speeds[name])
        )
        unknown += config.seconds is None and math.isnan(speeds[name])
        seconds += repeats * (STARTUP_S + took)
        needs = estimates.footprint(
            STRATEGIES[config.strategy].combination(info, config.to_dict()), info, config.cache_mb
        )
        if needs.prepared_as is not None and needs.made is None:
            prepared[needs.prepared_as] = needs.prepared_bytes
        staged = max(staged, needs.staged_bytes)
        ram = max(ram, needs.ram_bytes)
        if not (home.data_dir() / info.directory).is_dir():
            source = needs.source_bytes
            makes = info.name
    return Estimate(
        seconds, unknown, sum(prepared.values()) + source, staged, ram, tuple(prepared), makes
    )


def estimate_sentence(
    needs: Estimate, trials: int, spec: tournament_spec.TournamentSpec
) -> tuple[str, str]:
    runs = trials * spec.repeats
    time = f"about {rough_time(needs.seconds)}"
    if needs.unknown:
        time = (
            f"at least {rough_time(needs.seconds)} ({needs.unknown} of the settings never ran here)"
        )
    how_many = f"{formats.count(trials, 'setting')} x {formats.count(spec.repeats, 'round')}"
    how_many += f" = {formats.count(runs, 'run')}, {time}"
    if spec.until_decided and trials > 1:
        most = spec.repeats + bounds.MORE_ROUNDS
        longest = rough_time(needs.seconds * most / spec.repeats)
        how_many += f"; up to {most} rounds (about {longest}) until it is decided"
    written = {
        f"makes {needs.makes} first, which also takes time": needs.makes,
        f"prepares {', '.join(needs.prepares)} once, which also takes time": needs.prepares,
        f"keeps about {formats.size(needs.disk_bytes)} on disk": needs.disk_bytes,
        f"needs {formats.size(needs.staged_bytes)} on disk for a copy during a run": needs.staged_bytes,
        f"keeps up to {formats.size(needs.ram_bytes)} of samples in RAM": needs.ram_bytes,
    }
    return how_many, "; ".join(words for words, holds in written.items() if holds)


def _samples_per_s(config: RunConfig, store: RunStore) -> float:
    wanted = {
        "status": "done",
        "strategy": config.strategy,
        "dataset": config.dataset,
        "device": config.device,
    }
    query = RunQuery(filters={name: (value,) for name, value in wanted.items()}, helpers=True)
    groups = (
        (r, RunGroup.parse(r.group_key))
        for r in store.list_runs(query, limit=EARLIER)
        if r.samples_per_s
    )
    rows = [
        r
        for r, group in groups
        if not r.group_key or (group is not None and group.kind == "tournament")
    ]
    nearest = min(rows, key=lambda r: abs(math.log(r.batch_size / config.batch_size)), default=None)
    return float(nearest.samples_per_s or math.nan) if nearest is not None else math.nan


def _training_s(config: RunConfig, info: DatasetInfo, samples_per_s: float) -> float:
    steps = (
        config.steps
        if config.steps is not None
        else (config.epochs or 1) * (info.n_train // config.batch_size)
    )
    if math.isfinite(samples_per_s):
        return steps * config.batch_size / samples_per_s
    return steps * accelerator(config.device).span_s(config.batch_size) if config.simulated else 0.0
