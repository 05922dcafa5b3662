"""The settings in the sidebar: what the next run will be, Run, and what the run needs or why it
cannot run.
"""

import contextlib
import dataclasses
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from vitprof import formats, home
from vitprof.config import (
    BUDGETS,
    CHOICES,
    KNOBS,
    PARTS,
    RunConfig,
    accelerators,
    estimates,
    models,
    strategies,
)
from vitprof.config.availability import Availability, availability
from vitprof.config.bounds import RUN_BOUNDS
from vitprof.config.parts import DECODERS, PARTS_BY_KIND, why_not
from vitprof.config.resolve import resolve
from vitprof.datasets import catalog
from vitprof.errors import ConfigError, VitprofError
from vitprof.jobs.scheduling import ahead_of_a_new_run
from vitprof.names import MAX_NAME, NAME_CUT, cut_name
from vitprof.recording.columns import DELAYED_STAGES
from vitprof.ui import device_field, notifications, own_sets, resources, texts, widgets

FIRST: tuple[str, ...] = ("dataset", "device", "batch_size", "strategy", "workers")
"""What a first run is set up by, besides its length; the others are in the drawer *Advanced*."""
READ_FIRST: tuple[str, ...] = ("n_images", "model", "image_size", "precision", *PARTS)
"""Widgets that decide what is drawn above them: their values are read before they are drawn."""
FILLED_IN: tuple[str, ...] = ("n_images", "image_size", "lr", "augment")
"""Settings that a job gets from its data set and its model unless chosen, besides parts and
knobs."""
OF_WORKERS: tuple[str, ...] = ("prefetch_factor", "persistent_workers", "start_method")
"""Knobs that are hidden without workers: there is nothing to prefetch, to keep, or to start."""
SHOWN_AS = "shown as"
TAKEN_OVER = "The settings are in the sidebar. Press Run there."
OFFERED = "settings to press Run for"


def use(strategy: str, dataset: str, n_images: int | None) -> None:
    """Sets this session's settings to a strategy with its defaults, on a data set of `n_images`
    (None: its own).
    """
    widgets.settings().update(dict.fromkeys((*KNOBS, *PARTS)))
    widgets.settings().update(strategy=strategy, dataset=dataset, n_images=n_images)


def offer(config: RunConfig, words: str = TAKEN_OVER) -> None:
    """Puts a job's config into the sidebar, and says so: in a toast, and at Run until it is
    pressed.
    """
    use_config(config)
    st.session_state[OFFERED] = True
    notifications.say_there(words, ":material/tune:")


def use_config(config: RunConfig) -> None:
    """Puts a job's config into this session's settings before they are drawn.

    What is its default anyway stays unset.
    """
    values = widgets.settings()
    chosen = _chosen(config).to_dict()
    budget = next(name for name in BUDGETS if chosen[name] is not None)
    values.update({name: value for name, value in chosen.items() if name not in BUDGETS})
    values.update({"budget": budget, budget: chosen[budget], SHOWN_AS: None})
    # widgets show what the settings say, not what they were set to before
    for name in (*widgets.FIELDS, "budget"):
        st.session_state.pop(f"set-{name}", None)


def _chosen(config: RunConfig) -> RunConfig:
    """Returns the config without what it would have anyway, so that another strategy brings its
    own.
    """
    try:
        whole = resolve(config)
    except ConfigError:  # the form says what is wrong
        return config
    for name in (*PARTS, *KNOBS, *FILLED_IN):
        with contextlib.suppress(ConfigError):
            without = dataclasses.replace(config, **{name: None})  # type: ignore[arg-type]
            if resolve(without) == whole:
                config = without
    by_name = dataclasses.replace(config, device=accelerators.as_requested(config.device))
    return by_name if resolve(by_name) == whole else config


def settings_form() -> tuple[RunConfig | None, bool]:
    """Draws the sidebar's settings; returns the config, and whether Run was pressed.

    Five come first, and the others are in one drawer. The config is None, with a message shown, if
    the settings cannot work. Knobs that the strategy does not take are hidden.
    """
    own_sets.take_added()
    values = widgets.settings()
    rejected = _reject_unusable(values)
    widgets.read_first(READ_FIRST, _names())
    button = st.container(key="run-box", gap="xxsmall")
    notes = st.container(key="run-notes", gap="xxsmall")
    before = values["dataset"]
    widgets.choice(
        "dataset", list(catalog.DATASETS), show=lambda name: catalog.DATASETS[name].title
    )
    if values["dataset"] != before:
        own_sets.suit(before)
    suited = st.container(key="suited", gap="xxsmall")
    own_sets.draw_form()
    info = widgets.data_set()
    device_field.draw_device("set-device")
    widgets.number("batch_size")
    plan = _strategy(info)
    parts = plan.combination(info, values)
    context = (plan.name, info.name, parts)
    fresh = values.get(SHOWN_AS) != context
    values[SHOWN_AS] = context
    knobs = plan.knobs(parts, info)
    if knobs.get("workers") is not None:
        widgets.knob("workers", knobs.pop("workers"), fresh=fresh)
    _budget()
    with st.expander("Advanced", key="advanced"):
        _advanced(plan, info, knobs, fresh)
    _changed_in_the_drawer()
    with suited:  # once the widgets below it were read
        own_sets.draw_suited()
    config = _config(plan, info)
    widgets.say_settings()
    return run_button(config, plan, info, rejected, button, notes)


def _strategy(info: catalog.DatasetInfo) -> strategies.Strategy:
    values = widgets.settings()
    before = values["strategy"]

    def show(name: str) -> str:
        plan = strategies.STRATEGIES[name]
        seen = availability(plan, info, machine=resources.machine())
        if seen.verdict == "bad":
            return f"{name} - {plan.title} (not here: {seen.reason})"
        return f"{name} - {plan.title}"

    widgets.choice("strategy", list(strategies.STRATEGIES), show=show)
    plan = strategies.STRATEGIES[values["strategy"]]
    if plan.name != before:  # a strategy starts with its defaults
        use(plan.name, values["dataset"], values["n_images"])
    first, _, more = plan.what.partition(". ")
    st.caption(formats.sentence(first), help=more or None)
    return plan


def _advanced(
    plan: strategies.Strategy, info: catalog.DatasetInfo, knobs: dict[str, Any], fresh: bool
) -> None:
    """Draws what few runs need, in groups. An expander in an expander is not allowed, so each group
    has a heading.
    """
    values = widgets.settings()
    st.markdown("**Loading**")
    _loading(knobs, info, fresh)
    st.markdown("**Parts of the strategy**")
    _parts(plan, info, fresh)
    st.markdown("**Model**")
    _model(info)
    st.markdown("**Measuring**")
    widgets.toggle("loader_times")
    widgets.choice("replay", [None, *CHOICES["replay"]], none="no: load every batch")
    delays = [f"{stage}:20" for stage in DELAYED_STAGES]
    widgets.choice("inject", [None, *delays], none="none", typed=True)
    widgets.choice("slow_rank", [None, "1:20"], none="none", typed=True)
    st.markdown("**The run**")
    key = widgets.state_key("name", values["name"])
    values["name"] = widgets.name_field(widgets.label("name"), key, help=widgets.help_of("name"))
    for name in ("loader_only", "evaluate", "share_machine"):
        widgets.toggle(name)
    for name in ("warmup_steps", "least_steps", "threads", "seed", "ranks"):
        widgets.number(name)
    widgets.choice("isolation", CHOICES["isolation"])


def _changed_in_the_drawer() -> None:
    """Says which settings of the drawer are not at their defaults: it may be closed."""
    values = widgets.settings() | widgets.requested()
    lines = []
    for name in widgets.changed_settings(values):
        if name not in (*FIRST, *BUDGETS):
            lines.append(f"{widgets.label(name)}: {texts.value_in_words(values[name])}")
    if lines:
        st.caption(f"Changed there: {texts.escaped('; '.join(lines))}")


def _budget() -> None:
    values = widgets.settings()
    left, right = st.columns(2)
    options = ["seconds", "steps", "epochs"]
    shown = values["budget"]
    key = widgets.state_key("budget", shown)
    field = left.selectbox(
        "Length in", options, options.index(shown), help="What ends the run.", key=key
    )
    values["budget"] = field
    bounds = RUN_BOUNDS[field]
    length = values[field] or widgets.BUDGET_DEFAULTS[field]
    key = widgets.state_key(field, length)
    text = widgets.help_of(field)
    with right:
        values[field] = widgets.number_field(
            field.capitalize(), bounds, value=length, help=text, key=key
        )


def _loading(knobs: dict[str, Any], info: catalog.DatasetInfo, fresh: bool) -> None:
    if info.any_size:
        widgets.number("n_images", hint=f"{catalog.DATASETS[info.name].n_train:,}")
    workers = widgets.settings()["workers"]
    for name, default in knobs.items():
        if workers == 0 and name in OF_WORKERS:
            continue
        options = DECODERS[info.kind] if name == "decoder" else ()
        widgets.knob(name, default, options=options, fresh=fresh)
    widgets.choice("augment", [None, *CHOICES["augment"]])
    widgets.choice("page_cache", CHOICES["page_cache"])
    widgets.toggle("skip_unreadable")


def _parts(plan: strategies.Strategy, info: catalog.DatasetInfo, fresh: bool) -> None:
    values = widgets.settings()
    own = plan.combination(info)
    st.caption("Any part can be replaced. Each list offers what fits the other three.")
    for kind in PARTS:
        chosen = {name: values[name] for name in PARTS}
        own_name = getattr(own, kind)
        offered: list[str | None] = [None]
        for name in PARTS_BY_KIND[kind]:
            combination = plan.combination(info, chosen | {kind: name})
            if name != own_name and not why_not(info, combination):
                offered.append(name)
        widgets.choice(kind, offered, none=f"strategy's own: {own_name}", fresh=fresh)


def _model(info: catalog.DatasetInfo) -> None:
    values = widgets.settings()
    widgets.choice(
        "model", list(models.MODELS), show=lambda name: models.MODELS[name].title, typed=True
    )
    widgets.choice("precision", CHOICES["precision"])
    widgets.number("image_size", hint=f"the model's, {models.MODELS[values['model']].image_size}")
    widgets.toggle("compile")
    if values["compile"]:
        widgets.choice(
            "compile_mode", [None, *CHOICES["compile_mode"]], none="torch.compile's default"
        )
    else:
        values["compile_mode"] = None
    widgets.toggle("fused_optimizer")
    widgets.toggle("cudnn_benchmark")
    st.caption(info.note)


def _names() -> dict[str, list[str]]:
    named: dict[str, Any] = {
        "strategy": strategies.STRATEGIES,
        "dataset": catalog.DATASETS,
        "model": models.MODELS,
    }
    model = widgets.settings()["model"]
    library, _, _ = model.partition(":")
    if library in models.MODEL_LIBRARIES:  # it was typed
        named["model"] = [*models.MODELS, model]
    return {kind: list(names) for kind, names in {**named, **PARTS_BY_KIND}.items()}


def _reject_unusable(values: dict[str, Any]) -> str:
    """Resets settings that no widget can show, as a URL may have them; returns what is said of
    that.
    """
    messages = []
    if len(values["name"]) > MAX_NAME:
        values["name"] = cut_name(values["name"])
        messages.append(f"{widgets.label('name')}: {NAME_CUT}")
    messages += widgets.reject(_names(), widgets.DEFAULTS)
    return "; ".join(messages)


def _config(plan: strategies.Strategy, info: catalog.DatasetInfo) -> RunConfig | ConfigError:
    try:
        config = widgets.job(plan, info)
        resolve(config)
    except ConfigError as error:
        return error
    return config


@dataclasses.dataclass(frozen=True)
class Runnable:
    """Whether this session's settings can be run, and why not."""

    usable: RunConfig | None = None
    """The job; None if it cannot be run."""
    problem: str = ""
    """What is wrong with the settings, or missing here."""
    unreadable: bool = False
    """Whether images cannot be read, and the user has to say whether they are skipped."""
    only_seen: str = ""
    """Why no job can be started at all."""


def _runnable(config: RunConfig | ConfigError, available: Availability) -> Runnable:
    """Returns whether the settings can be run; `seen` says whether their strategy can."""
    not_here = available.verdict == "bad"
    if isinstance(config, ConfigError):
        of_strategy = config.field in ("strategy", *PARTS)
        if not (not_here and of_strategy):  # else what is missing here says more
            return Runnable(problem=widgets.all_wrong(config))
    if not_here:
        return Runnable(problem=f"Not possible here: {available.reason}")
    if isinstance(config, ConfigError):
        return Runnable()
    if words := own_sets.unreadable():
        return Runnable(problem=f"{words}.", unreadable=True)
    if only_seen := resources.store().why_not_changed():
        return Runnable(only_seen=only_seen)
    return Runnable(usable=config)


def run_button(
    config: RunConfig | ConfigError,
    plan: strategies.Strategy,
    info: catalog.DatasetInfo,
    rejected: str,
    button: DeltaGenerator,
    notes: DeltaGenerator,
) -> tuple[RunConfig | None, bool]:
    """Draws Run and the expected duration in `button`; returns the config if it can be run, and the
    press.

    In `notes` it draws what the run needs, why it cannot run, and the warning `rejected`.
    """
    chosen = {kind: widgets.settings()[kind] for kind in PARTS}
    requested = config.to_dict() if isinstance(config, RunConfig) else chosen
    available = availability(plan, info, requested, machine=resources.machine())
    runnable = _runnable(config, available)
    usable = runnable.usable
    with button:
        pressed = _draw_run(usable)
        if usable is not None:
            _draw_duration(usable, info)
        if runnable.problem:
            st.error(texts.escaped(runnable.problem))
        if runnable.unreadable:
            own_sets.draw_skip("own-skip")
    with notes:
        said_above = bool(runnable.problem) and runnable.problem in rejected
        if rejected and not said_above:
            st.warning(texts.escaped(rejected))
        if runnable.only_seen:
            st.info(texts.escaped(runnable.only_seen))
        if usable is not None:
            needs = estimates.footprint(plan.combination(info, usable.to_dict()), info)
            lines = [available.reason, resized(info), ", ".join(takes(needs, info))]
            if any(lines):
                st.caption(
                    texts.escaped(" ".join(formats.sentence(line) for line in lines if line))
                )
    return usable, pressed


def _draw_run(usable: RunConfig | None) -> bool:
    """Draws Run, which says how many runs come before this one; returns whether it was pressed."""
    words = "Run"
    if usable is not None:
        n_ahead = _n_ahead(usable.device, usable.share_machine)
        if n_ahead:
            words = f"Run after {formats.count(n_ahead, 'other')}"
        # draws nothing: a button that is drawn anew every few seconds loses clicks
        watch = st.fragment(_rerun_when_changed, run_every=QUEUE_CHECK_S)
        watch(usable.device, usable.share_machine, n_ahead)
    pressed = st.button(
        words,
        type="primary",
        width="stretch",
        key="run-button",
        disabled=usable is None,
        icon=":material/play_arrow:",
    )
    if pressed or usable is None:
        st.session_state.pop(OFFERED, None)
    if st.session_state.get(OFFERED):
        st.success("These settings were taken over. Press Run.", icon=":material/tune:")
    return pressed


QUEUE_CHECK_S = 3.0
"""Seconds between two checks whether Run still says how many runs come first."""


def _n_ahead(device: str, shares: bool) -> int:
    """Returns how many runs come before a new one on `device`."""
    return len(ahead_of_a_new_run(resources.store(), device, shares=shares))


def _rerun_when_changed(device: str, shares: bool, drawn: int) -> None:
    with contextlib.suppress(VitprofError):  # the store is away; the page says so
        if _n_ahead(device, shares) != drawn:
            st.rerun(scope="app")


def _draw_duration(usable: RunConfig, info: catalog.DatasetInfo) -> None:
    """Draws how long the run is expected to take, where that is known."""
    whole = resolve(usable)
    made = (home.data_dir() / info.directory).is_dir()
    prepared = estimates.made(whole.storage or "", info) is not None
    duration = estimates.duration(
        whole, info, made=made, prepared=prepared, startup_s=resources.usual_startup_s()
    )
    if lasts := estimates.duration_sentence(duration):
        st.caption(f":material/schedule: {texts.escaped(lasts)}")


def takes(needs: estimates.Footprint, info: catalog.DatasetInfo) -> list[str]:
    """Returns what a run writes and keeps in memory, in parts of a sentence; nothing where that is
    little.
    """
    parts = []
    missing = not (home.data_dir() / info.directory).is_dir()
    if missing and needs.made_bytes:  # else it makes links alone
        does = "unpacks" if info.own_bytes else "makes"
        parts.append(f"{does} {info.name} first (about {formats.size(needs.made_bytes)} on disk)")
    stored = needs.made
    if needs.prepared_as is not None and stored is None:
        size = formats.size(needs.prepared_bytes)
        parts.append(f"prepares {needs.prepared_as} once (about {size} on disk)")
    elif needs.prepared_as is not None and stored is not None:
        took = formats.seconds(stored.prepare_s)
        size = formats.size(stored.size_bytes)
        parts.append(f"{needs.prepared_as} is prepared ({size}, took {took})")
    if needs.staged_bytes:
        parts.append(f"copies {formats.size(needs.staged_bytes)} to the local disk")
    if needs.ram_disk_bytes:
        parts.append(f"copies {formats.size(needs.ram_disk_bytes)} to the RAM disk")
    if needs.ram_bytes > needs.ram_disk_bytes:
        parts.append(f"keeps about {formats.size(needs.ram_bytes)} in RAM")
    if needs.device_bytes:
        parts.append(f"keeps about {formats.size(needs.device_bytes)} on the device")
    return parts


def resized(info: catalog.DatasetInfo) -> str:
    values = widgets.settings()
    wanted = values["image_size"] or models.MODELS[values["model"]].image_size
    if wanted == info.image_size:
        return ""
    return f"model {values['model']} takes {wanted} px: the device resizes the images of {info.image_size} px"
