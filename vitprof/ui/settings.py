"""The settings in the sidebar: what the next run will be."""

from __future__ import annotations

import dataclasses
from typing import Any

import streamlit as st

from vitprof.catalog import DATASETS, MODELS
from vitprof.errors import ConfigError
from vitprof.records import BUDGETS, RunConfig
from vitprof.strategies import STRATEGIES, resolve
from vitprof.ui.resources import gpus

FIELDS = {f.name: f for f in dataclasses.fields(RunConfig)}
LABELS = {
    "dataset": "Data set",
    "batch_size": "Batch size",
    "pin_memory": "Pin memory",
    "persistent_workers": "Persistent workers",
    "prefetch_factor": "Prefetch factor",
    "warmup_steps": "Warm-up steps",
    "lr": "Learning rate",
    "image_size": "Image size (px)",
    "threads": "Torch CPU threads",
    "compile": "torch.compile",
    "evaluate": "Evaluate on the test set",
    "loader_only": "Loader only (no training)",
    "name": "Name of the run",
}
BUDGET_DEFAULTS: dict[str, float] = {"steps": 200, "epochs": 1, "seconds": 20}
STATE = "settings"


def label(field: str) -> str:
    """A setting's name as the page shows it."""
    return LABELS.get(field, field.replace("_", " ").capitalize())


def _settings() -> dict[str, Any]:
    """This session's settings. They outlive the widgets, which vanish with their page; the URL can preset them."""
    if STATE not in st.session_state:
        values: dict[str, Any] = {f.name: f.default for f in FIELDS.values()}
        values |= {"budget": "steps", **BUDGET_DEFAULTS}
        for name in st.query_params:
            if name in FIELDS:
                values[name] = _parsed(name, st.query_params[name])
                if name in BUDGETS:
                    values["budget"] = name
        st.session_state[STATE] = values
    settings: dict[str, Any] = st.session_state[STATE]
    return settings


def _parsed(name: str, text: str) -> Any:
    """A setting from the URL; text that does not fit stays text, and the check of the config names it."""
    kind = str(FIELDS[name].type).removesuffix(" | None")
    if kind == "bool":
        return {"true": True, "false": False}.get(text.lower(), text)
    try:
        return {"int": int, "float": float}.get(kind, str)(text)
    except ValueError:
        return text


def _number(field: str, *, least: int = 0, most: int | None = None, step: int = 1) -> None:
    settings = _settings()
    settings[field] = st.number_input(
        label(field),
        min_value=least,
        max_value=most,
        value=settings[field],
        step=step,
        help=_help(field),
        key=f"set-{field}",
    )


def _choice(field: str, options: list[str], titles: dict[str, str] | None = None) -> None:
    settings = _settings()
    if settings[field] not in options:  # from the URL; if it cannot work, the check of the config says why
        options = [*options, settings[field]]
    settings[field] = st.selectbox(
        label(field),
        options,
        index=options.index(settings[field]),
        format_func=lambda option: (titles or {}).get(option, option),
        help=_help(field),
        key=f"set-{field}",
    )


def _toggle(field: str) -> None:
    settings = _settings()
    settings[field] = st.checkbox(label(field), value=bool(settings[field]), help=_help(field), key=f"set-{field}")


def _help(field: str) -> str:
    text = str(FIELDS[field].metadata["doc"])
    return text[0].upper() + text[1:] + "."


def settings_form() -> tuple[RunConfig | None, bool]:
    """Draw the sidebar's settings; the config they make (None, with a message shown, if they cannot work), Run pressed.

    Knobs that the chosen strategy does not take are hidden.
    """
    settings = _settings()
    rejected = _reject_unusable(settings)
    _choice("strategy", list(STRATEGIES), {s.name: f"{s.name} - {s.title}" for s in STRATEGIES.values()})
    plan = STRATEGIES[settings["strategy"]]
    st.caption(plan.what)
    _number("batch_size", least=1, step=32)
    _knobs(dict(plan.defaults))
    _budget()
    pressed_slot = st.container()
    with st.expander("Data, model and device"):
        _choice("dataset", list(DATASETS), {d.name: d.title for d in DATASETS.values()})
        st.caption(DATASETS[settings["dataset"]].note)
        _choice("model", list(MODELS), {m.name: m.title for m in MODELS.values()})
        names = {f"cuda:{g.index}": f"cuda:{g.index} ({g.name})" for g in gpus()}
        _choice("device", ["auto", *names, "cpu"], names)
        _choice("precision", ["fp32", "bf16"])
        _number("image_size", least=1)
        _toggle("compile")
    with st.expander("More"):
        settings["name"] = st.text_input(
            label("name"), value=settings["name"], max_chars=200, help=_help("name"), key="set-name"
        )
        _toggle("loader_only")
        _toggle("evaluate")
        _number("warmup_steps")
        _number("threads")
        _number("seed", most=2**32 - 1)
        _choice("isolation", ["process", "thread"])
    config = _config(settings, takes=set(plan.defaults))
    if rejected:
        st.warning(rejected)
    if isinstance(config, ConfigError):
        st.error(f"{label(config.field)} {config.value}: {config.allowed}")
    usable = config if isinstance(config, RunConfig) else None
    pressed = pressed_slot.button(
        "Run", type="primary", width="stretch", key="run-button", disabled=usable is None, icon=":material/play_arrow:"
    )
    return usable, pressed


def _knobs(defaults: dict[str, Any]) -> None:
    """The settings that only this strategy takes, each starting from the strategy's own default."""
    settings = _settings()
    for name, default in defaults.items():
        if settings[name] is None:
            settings[name] = default
    if "workers" in defaults:
        _number("workers")
        if settings["workers"]:
            _number("prefetch_factor", least=1)
            _toggle("persistent_workers")
        _toggle("pin_memory")


def _budget() -> None:
    settings = _settings()
    left, right = st.columns(2)
    with left:
        options = ["steps", "epochs", "seconds"]
        settings["budget"] = st.selectbox(
            "Budget", options, index=options.index(settings["budget"]), help="What ends the run.", key="set-budget"
        )
    with right:
        field = settings["budget"]
        whole = field != "seconds"
        kind = int if whole else float
        settings[field] = st.number_input(
            field.capitalize(),
            min_value=kind(1) if whole else 0.1,
            value=kind(settings[field] or BUDGET_DEFAULTS[field]),
            step=kind(1),
            help=_help(field),
            key=f"set-{field}",
        )


def _reject_unusable(settings: dict[str, Any]) -> str:
    """Put back what came with the URL and no widget could show; the message that says so."""
    messages = []
    allowed: dict[str, list[str]] = {"strategy": [*STRATEGIES], "dataset": [*DATASETS], "model": [*MODELS]}
    for field, names in allowed.items():
        if settings[field] not in names:
            messages.append(f"{label(field)} {settings[field]}: choose one of {', '.join(names)}")
            settings[field] = FIELDS[field].default
    for name, spec in FIELDS.items():
        try:
            RunConfig(**{name: settings[name]})
        except ConfigError as error:
            messages.append(f"{label(name)} {error.value}: {error.allowed}")
            settings[name] = BUDGET_DEFAULTS.get(name, spec.default)
    return "; ".join(messages)


def _config(settings: dict[str, Any], takes: set[str]) -> RunConfig | ConfigError:
    """The config the settings make, checked as a run would check it, or what is wrong with them."""
    values = {name: settings[name] for name in FIELDS if name not in BUDGETS}
    for knob in ("workers", "prefetch_factor", "pin_memory", "persistent_workers"):
        if knob not in takes:
            values[knob] = None
    values[settings["budget"]] = settings[settings["budget"]]
    try:
        config = RunConfig(**values)
        resolve(config)
    except ConfigError as error:
        return error
    return config
