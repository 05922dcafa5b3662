"""The settings in the sidebar: what the next run will be, Run, and what the run needs or why it cannot run."""

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
    catalog,
    estimates,
    strategies,
)
from vitprof.config.availability import availability
from vitprof.config.bounds import RUN_BOUNDS
from vitprof.config.parts import DECODERS, PARTS_BY_KIND, why_not
from vitprof.config.resolve import resolve
from vitprof.errors import ConfigError
from vitprof.jobs.scheduling import ahead_of_a_new_run
from vitprof.names import MAX_NAME, NAME_CUT, cut_name
from vitprof.recording.columns import DELAYED_STAGES
from vitprof.ui import device_field, notifications, own_sets, resources, texts, widgets

MAIN_KNOBS: tuple[str, ...] = ("workers", "cache_mb", "slow_drive")
"""The knobs that a strategy depends on most; the others are a click away."""
READ_FIRST: tuple[str, ...] = ("dataset", "n_images", "model", "image_size", "precision", *PARTS)
"""Widgets that decide what is drawn above them: their values are read before they are drawn."""
FILLED_IN: tuple[str, ...] = ("n_images", "image_size", "lr", "augment")
"""Settings that a job gets from its data set and its model unless chosen, besides parts and knobs."""
SHOWN_AS = "shown as"
TAKEN_OVER = "The settings are in the sidebar. Press Run there."
OFFERED = "settings to press Run for"


def use(strategy: str, dataset: str, n_images: int | None) -> None:
    widgets.settings().update(dict.fromkeys((*KNOBS, *PARTS)))
    widgets.settings().update(strategy=strategy, dataset=dataset, n_images=n_images)


def offer(config: RunConfig, words: str = TAKEN_OVER) -> None:
    """Puts a job's config into the sidebar, and says so: in a toast, and at Run until it is pressed."""
    use_config(config)
    st.session_state[OFFERED] = True
    notifications.say_there(words, ":material/tune:")


def use_config(config: RunConfig) -> None:
    """Puts a job's config into this session's settings before they are drawn; its defaults stay unset."""
    values = widgets.settings()
    given = _chosen(config).to_dict()
    budget = next(name for name in BUDGETS if given[name] is not None)
    values.update({name: value for name, value in given.items() if name not in BUDGETS})
    values.update({"budget": budget, budget: given[budget], SHOWN_AS: None})
    for name in (
        *widgets.FIELDS,
        "budget",
    ):  # widgets show what the settings say, not what they were set to before
        st.session_state.pop(f"set-{name}", None)


def _chosen(config: RunConfig) -> RunConfig:
    try:
        whole = resolve(config)
    except ConfigError:  # the form says what is wrong
        return config
    for name in (*PARTS, *KNOBS, *FILLED_IN):
        with contextlib.suppress(ConfigError):
            without = dataclasses.replace(config, **{name: None})  # type: ignore[arg-type]
            config = without if resolve(without) == whole else config
    by_name = dataclasses.replace(config, device=accelerators.as_asked(config.device))
    return by_name if resolve(by_name) == whole else config


def settings_form() -> tuple[RunConfig | None, bool]:
    """Draws the sidebar's settings; returns the config (None, with a message shown, if they cannot work), and whether
    Run was pressed. Knobs that the strategy does not take are hidden.
    """
    own_sets.take_added()
    values = widgets.settings()
    rejected = _reject_unusable(values)
    widgets.read_first(READ_FIRST, _names())
    button = st.container(key="run-box", gap="xxsmall")
    notes = st.container(key="run-notes", gap="xxsmall")
    plan = _strategy(widgets.data_set())
    widgets.choice(
        "dataset", list(catalog.DATASETS), show=lambda name: catalog.DATASETS[name].title
    )
    own_sets.draw_form()
    info = widgets.data_set()
    parts = plan.combination(info, values)
    context = (plan.name, info.name, parts)
    fresh = values.get(SHOWN_AS) != context
    values[SHOWN_AS] = context
    knobs = plan.knobs(parts, info)
    main = {name: knobs[name] for name in MAIN_KNOBS if knobs.get(name) is not None}
    device_field.draw_device("set-device")
    _main(main, info, fresh)
    _budget()
    with st.expander("Loading"):
        _loading(
            {name: default for name, default in knobs.items() if name not in main}, info, fresh
        )
    with st.expander("Parts"):
        _parts(plan, info, fresh)
    with st.expander("Model"):
        _model(info)
    with st.expander("Measuring"):
        widgets.toggle("loader_times")
        widgets.choice("replay", [None, *CHOICES["replay"]], none="no: load every batch")
        widgets.choice(
            "inject", [None, *(f"{stage}:20" for stage in DELAYED_STAGES)], none="none", typed=True
        )
        widgets.choice("slow_rank", [None, "1:20"], none="none", typed=True)
    with st.expander("More"):
        key = widgets.state_key("name", values["name"])
        values["name"] = widgets.name_field(
            widgets.label("name"), key, help=widgets.help_of("name")
        )
        for name in ("loader_only", "evaluate", "share_machine"):
            widgets.toggle(name)
        for name in ("warmup_steps", "least_steps", "threads", "seed", "ranks"):
            widgets.number(name)
        widgets.choice("isolation", CHOICES["isolation"])
    config = _config(plan, info)
    widgets.say_settings()
    return run_button(config, plan, info, rejected, button, notes)


def _strategy(info: catalog.DatasetInfo) -> strategies.Strategy:
    values = widgets.settings()
    before = values["strategy"]

    def show(name: str) -> str:
        plan = strategies.STRATEGIES[name]
        seen = availability(plan, info, machine=resources.machine())
        return f"{name} - {plan.title}" + (
            f" (not here: {seen.reason})" if seen.verdict == "bad" else ""
        )

    widgets.choice("strategy", list(strategies.STRATEGIES), show=show)
    plan = strategies.STRATEGIES[values["strategy"]]
    if plan.name != before:  # a strategy starts with its defaults
        use(plan.name, values["dataset"], values["n_images"])
    st.caption(plan.what)
    return plan


def _main(knobs: dict[str, Any], info: catalog.DatasetInfo, fresh: bool) -> None:
    numbers = [
        *(["n_images"] if info.any_size else []),
        "batch_size",
        *(k for k in knobs if k not in CHOICES),
    ]
    for first in range(0, len(numbers), 2):
        pair = numbers[first : first + 2]
        for column, name in zip(st.columns(len(pair)), pair, strict=True):
            with column:
                if name in knobs:
                    widgets.knob(name, knobs[name], fresh=fresh)
                else:
                    widgets.number(name, hint=f"{catalog.DATASETS[info.name].n_train:,}")
    for name, default in knobs.items():
        if name in CHOICES:
            widgets.knob(name, default, fresh=fresh)


def _budget() -> None:
    values = widgets.settings()
    left, right = st.columns(2)
    options = ["seconds", "steps", "epochs"]
    shown = values["budget"]
    key = widgets.state_key("budget", shown)
    values["budget"] = field = left.selectbox(
        "Budget", options, options.index(shown), help="What ends the run.", key=key
    )
    bounds = RUN_BOUNDS[field]
    length = values[field] or widgets.BUDGET_DEFAULTS[field]
    length = int(length) if bounds.whole else float(length)
    key = widgets.state_key(field, length)
    text = widgets.help_of(field)
    values[field] = right.number_input(
        field.capitalize(), value=length, help=text, key=key, **widgets.stepped(bounds)
    )


def _loading(knobs: dict[str, Any], info: catalog.DatasetInfo, fresh: bool) -> None:
    workers = widgets.settings()["workers"]
    for name, default in knobs.items():
        if workers == 0 and name in ("prefetch_factor", "persistent_workers", "start_method"):
            continue  # without workers there is nothing to prefetch, to keep, or to start
        widgets.knob(
            name, default, options=DECODERS[info.kind] if name == "decoder" else (), fresh=fresh
        )
    widgets.choice("augment", [None, *CHOICES["augment"]])
    widgets.choice("page_cache", CHOICES["page_cache"])
    widgets.toggle("skip_unreadable")


def _parts(plan: strategies.Strategy, info: catalog.DatasetInfo, fresh: bool) -> None:
    values = widgets.settings()
    own = plan.combination(info)
    st.caption("Any part can be replaced. Each list offers what fits the other three.")
    for kind in PARTS:
        chosen = {k: values[k] for k in PARTS}
        own_name = getattr(own, kind)
        fitting = [
            n
            for n in PARTS_BY_KIND[kind]
            if not why_not(info, plan.combination(info, chosen | {kind: n}))
        ]
        offered = [None, *(name for name in fitting if name != own_name)]
        widgets.choice(kind, offered, none=f"strategy's own: {own_name}", fresh=fresh)


def _model(info: catalog.DatasetInfo) -> None:
    values = widgets.settings()
    widgets.choice(
        "model", list(catalog.MODELS), show=lambda name: catalog.MODELS[name].title, typed=True
    )
    widgets.choice("precision", CHOICES["precision"])
    widgets.number("image_size", hint=f"the model's, {catalog.MODELS[values['model']].image_size}")
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
        "model": catalog.MODELS,
    }
    if (model := widgets.settings()["model"]).partition(":")[0] in catalog.MODEL_LIBRARIES:  # typed
        named["model"] = [*catalog.MODELS, model]
    return {kind: [*names] for kind, names in {**named, **PARTS_BY_KIND}.items()}


def _reject_unusable(values: dict[str, Any]) -> str:
    name = values["name"]
    values["name"] = cut_name(name) if len(name) > MAX_NAME else name
    cut = [f"{widgets.label('name')}: {NAME_CUT}"] if len(name) > MAX_NAME else []
    return "; ".join([*cut, *widgets.reject(_names(), widgets.DEFAULTS)])


def _config(plan: strategies.Strategy, info: catalog.DatasetInfo) -> RunConfig | ConfigError:
    try:
        config = widgets.job(plan, info)
        resolve(config)
    except ConfigError as error:
        return error
    return config


def run_button(
    config: RunConfig | ConfigError,
    plan: strategies.Strategy,
    info: catalog.DatasetInfo,
    rejected: str,
    button: DeltaGenerator,
    notes: DeltaGenerator,
) -> tuple[RunConfig | None, bool]:
    """Draws Run and the expected duration in `button`, and in `notes` what the run needs, why it cannot run, and the
    warning `rejected`. Returns the config if it can be run, and whether Run was pressed.
    """
    given = (
        config.to_dict()
        if isinstance(config, RunConfig)
        else {k: widgets.settings()[k] for k in PARTS}
    )
    seen = availability(plan, info, given, machine=resources.machine())
    usable = None
    message = ""
    only_seen = ""
    if isinstance(config, ConfigError) and (
        seen.verdict != "bad" or config.field not in ("strategy", *PARTS)
    ):
        message = widgets.all_wrong(config)
    elif seen.verdict == "bad":
        message = f"Not possible here: {seen.reason}"
    elif isinstance(config, RunConfig) and not (only_seen := resources.store().why_not_changed()):
        usable = config
    before = usable and len(
        ahead_of_a_new_run(resources.store(), usable.device, shares=usable.share_machine)
    )
    with button:
        pressed = st.button(
            f"Run after {formats.count(before, 'other')}" if before else "Run",
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
        if usable is not None:
            whole = resolve(usable)
            there = (home.data_dir() / info.directory).is_dir()
            ready = estimates.made(whole.storage or "", info) is not None
            if lasts := estimates.duration_sentence(
                estimates.duration(whole, info, made=there, prepared=ready)
            ):
                st.caption(f":material/schedule: {texts.escaped(lasts)}")
        if message:
            st.error(texts.escaped(message))
    with notes:
        if rejected and not (message and message in rejected):
            st.warning(texts.escaped(rejected))
        if only_seen:
            st.info(texts.escaped(only_seen))
        if usable is not None:
            needs = estimates.footprint(plan.combination(info, usable.to_dict()), info)
            lines = [seen.reason, resized(info), ", ".join(takes(needs, info))]
            if any(lines):
                st.caption(texts.escaped(" ".join(texts.sentence(line) for line in lines if line)))
    return usable, pressed


def takes(needs: estimates.Footprint, info: catalog.DatasetInfo) -> list[str]:
    there = (home.data_dir() / info.directory).is_dir()
    stored = needs.made
    storing = (
        f"prepares {needs.prepared_as} once (about {formats.size(needs.prepared_bytes)} on disk)"
    )
    if stored is not None:
        took = formats.seconds(stored.prepare_s)
        storing = (
            f"{needs.prepared_as} is prepared ({formats.size(stored.size_bytes)}, took {took})"
        )
    parts = {
        f"makes {info.name} first (about {formats.size(needs.source_bytes)} on disk)": not there,
        storing: needs.prepared_as is not None,
        f"copies {formats.size(needs.staged_bytes)} to the local disk": needs.staged_bytes,
        f"copies {formats.size(needs.ram_disk_bytes)} to the RAM disk": needs.ram_disk_bytes,
        f"keeps about {formats.size(needs.ram_bytes)} in RAM": needs.ram_bytes
        > needs.ram_disk_bytes,
        f"keeps about {formats.size(needs.device_bytes)} on the device": needs.device_bytes,
    }
    return [words for words, holds in parts.items() if holds]


def resized(info: catalog.DatasetInfo) -> str:
    values = widgets.settings()
    wanted = values["image_size"] or catalog.MODELS[values["model"]].image_size
    words = f"model {values['model']} takes {wanted} px: the device resizes the images of {info.image_size} px"
    return "" if wanted == info.image_size else words
