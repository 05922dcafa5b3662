"""The sidebar's settings as one dict for each session, a widget for each kind of setting, and what
the URL keeps of them and of other controls.

A setting of None means the default: the strategy's, the model's, the preset's. It is kept as None,
so that another strategy brings its own default with it.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import streamlit as st

from vitprof import config, errors
from vitprof.config import strategies
from vitprof.config.bounds import RUN_BOUNDS, Bounds
from vitprof.datasets import catalog
from vitprof.formats import sentence
from vitprof.names import MAX_NAME, NAME_CUT, cut_name
from vitprof.ui.texts import escaped

FIELDS = {f.name: f for f in dataclasses.fields(config.RunConfig)}
LABELS = {
    "dataset": "Data set",
    "n_images": "Training images",
    "start_method": "Worker start method",
    "shuffle": "Order",
    "cache_mb": "Cache (MB)",
    "slow_mb_s": "Its bandwidth (MB/s)",
    "slow_latency_ms": "Its latency (ms)",
    "augment": "Augmentation",
    "skip_unreadable": "Skip unreadable samples",
    "page_cache": "Page cache at the start",
    "cudnn_benchmark": "cudnn.benchmark",
    "warmup_steps": "Warm-up steps",
    "least_steps": "Minimum steady steps",
    "lr": "Learning rate",
    "image_size": "Image size (px)",
    "threads": "Torch CPU threads",
    "compile": "torch.compile",
    "evaluate": "Evaluate on the test set",
    "loader_only": "Loader only (no training)",
    "name": "Name of the run",
    "repeats": "Rounds",
    "share_machine": "Share the machine",
    "loader_times": "Measure inside the loader",
    "replay": "Replay the first batches",
    "inject": "Injected wait",
}
STEPS: dict[str, float] = {"batch_size": 32, "n_images": 1000, "cache_mb": 16.0, "slow_mb_s": 1.0}
"""What a number's + and - change it by; 1 if not named here."""
BUDGET = "seconds"
"""The unit of a run's length unless another is chosen: so a run ends within a minute, whatever it
loads."""
BUDGET_DEFAULTS: dict[str, float] = {"seconds": 20, "steps": 200, "epochs": 1}
DEFAULTS: dict[str, Any] = {f.name: f.default for f in FIELDS.values()} | {"evaluate": False}
"""The sidebar's defaults: those of `RunConfig`, but without an evaluation, which on a CPU takes
longer than the run itself."""
STATE = "settings"
AUTOMATIC = "automatic"
UNSET = ""
RUN = "run"
RUNS = "runs"
IN_URL: Literal["query-params"] = "query-params"
"""A widget's `bind` argument: its key is then its name in the URL, and its value is kept there."""
Option = TypeVar("Option", bound=str)


def kept(key: str) -> dict[str, Any]:
    """Returns what makes a widget keep its value in the URL under `key`."""
    return {"key": key, "bind": IN_URL}


def label(field: str) -> str:
    return LABELS.get(field, field.replace("_", " ").capitalize())


def help_of(field: str) -> str:
    return sentence(config.descriptions()[field])


def settings() -> dict[str, Any]:
    """Returns this session's settings, to read and to change.

    They outlive the widgets, which vanish with their page; the URL can preset them.
    """
    if STATE not in st.session_state:
        values = DEFAULTS | {"budget": BUDGET, **BUDGET_DEFAULTS}
        for name in st.query_params:
            if name in FIELDS:
                values[name] = _parsed(name, st.query_params[name])
                if name in config.BUDGETS:
                    values["budget"] = name
        st.session_state[STATE] = values
    stored: dict[str, Any] = st.session_state[STATE]
    return stored


def requested(*ignored: str) -> dict[str, Any]:
    """Returns this session's settings of a run but `ignored`, without a size where the data set has
    its own.
    """
    values = settings()
    chosen = {name: values[name] for name in FIELDS if name not in ignored}
    if not catalog.DATASETS[values["dataset"]].any_size:
        chosen["n_images"] = None
    return chosen


def data_set() -> catalog.DatasetInfo:
    return catalog.dataset_info(settings()["dataset"], requested()["n_images"])


def job(plan: strategies.Strategy, info: catalog.DatasetInfo, *ignored: str) -> config.RunConfig:
    """Returns a run with this session's settings but `ignored` and what the strategy lacks.

    Raises `ConfigError`.
    """
    values = settings()
    chosen = requested("strategy", *config.BUDGETS, *ignored)
    accepted = plan.knobs(plan.combination(info, chosen), info)
    chosen |= {name: None for name in config.KNOBS if name not in accepted}
    if values["budget"] != "seconds":  # else a run of 10 steps would go on to 30
        chosen["least_steps"] = DEFAULTS["least_steps"]
    return config.RunConfig(
        strategy=plan.name, **chosen, **{values["budget"]: values[values["budget"]]}
    )


def reject(names: Mapping[str, Sequence[str]], checked: Iterable[str]) -> list[str]:
    """Resets settings of this session that no widget can show; returns a message for each.

    They are those of `names` with a value that is not one of their names, and those of `checked`
    with a value that no job takes.
    """
    values = settings()
    messages = []
    for field, allowed in names.items():
        if values[field] not in (*allowed, DEFAULTS[field]):
            messages.append(f"{label(field)} {values[field]}: choose one of {', '.join(allowed)}")
            values[field] = DEFAULTS[field]
    for field in checked:
        if f"set-{field}" in st.session_state:  # the widget may have another value by now
            continue
        if error := _why_not(field):
            messages.append(wrong(error))
            values[field] = BUDGET_DEFAULTS.get(field, DEFAULTS[field])
    return messages


def _why_not(field: str) -> errors.ConfigError | None:
    try:
        config.RunConfig(**{field: settings()[field]})
    except errors.ConfigError as error:
        return error
    return None


def all_wrong(first: errors.ConfigError) -> str:
    """Returns what is wrong with this session's settings: `first`, and what no job takes
    besides.
    """
    others = [error for error in map(_why_not, FIELDS) if error is not None]
    lines = [wrong(error) for error in (first, *others)]
    return "; ".join(dict.fromkeys(lines))


def wrong(error: errors.ConfigError) -> str:
    return f"{label(error.field)} {error.value}".strip() + f": {error.allowed}"


def read_first(fields: Sequence[str], allowed: Mapping[str, Sequence[str]]) -> None:
    """Reads the values of these widgets before they are drawn: what is drawn above them depends on
    it.

    Those of `allowed` have a fixed list of options.
    """
    values = settings()
    for field in fields:
        key = f"set-{field}"
        if field in allowed:
            keep_to([UNSET, *allowed[field]], key, values[field] or UNSET)
        value = st.session_state.get(key, values[field])
        values[field] = None if value == UNSET else value


def _type_of(field: str) -> str:
    return str(FIELDS[field].type).removesuffix(" | None")


def _parsed(name: str, text: str) -> Any:
    """Returns a setting from the URL; text that does not fit stays text, and the check of the
    config names it.
    """
    kind = _type_of(name)
    if kind == "bool":
        return {"true": True, "false": False}.get(text.lower(), text)
    try:
        return {"int": int, "float": float}.get(kind, str)(text)
    except ValueError:
        return text


def state_key(field: str, shown: Any, fresh: bool = False) -> str:
    """Returns the widget's key. Sets its state to `shown` where the widget is new, or is `fresh`.

    It is `fresh` if it has to show another value than before. `shown` must be the widget's default
    too, unless it can be emptied: the browser takes the default for the value where it missed the
    state, which is sent once, as after a click while a busy page is redrawn.
    """
    key = f"set-{field}"
    if fresh or key not in st.session_state:
        st.session_state[key] = shown
    return key


def keep_to(options: Sequence[Any], key: str, otherwise: Any) -> None:
    """Sets a widget's state to `otherwise` where it is none of `options`.

    A late click may send a label that is no option any more.
    """
    if key in st.session_state and st.session_state[key] not in options:
        st.session_state[key] = otherwise


EXACT = 2**53
"""The largest number up to which a float has all whole ones."""


def number_field(
    words: str,
    limits: Bounds,
    *,
    value: float | None,
    key: str,
    step: float = 1,
    **options: Any,
) -> float | None:
    """Draws a number field; returns what was typed, a whole number as an int where `limits` ask for
    one, None where it is empty.

    All fields are drawn as those of fractions: in one of whole numbers Streamlit reads "1e9" as 1
    and "2.5" as 2, and says nothing. Its ends are checked with the config: for a number beyond them
    the browser would give the number before. `value` is its default; None: it can be emptied.
    Where a text that is no number is typed, the browser goes back to the default. So that is what
    the field has now, but in the URL (`bind`), which leaves defaults out. `options` are passed to
    `st.number_input`.
    """
    now = st.session_state.get(key)
    if isinstance(now, int):
        st.session_state[key] = float(now)
    default = value
    if value is not None and now is not None and "bind" not in options:
        default = now
    typed: float | None = st.number_input(
        words,
        value=None if default is None else float(default),
        step=float(step),
        format="%g",
        key=key,
        **options,
    )
    if typed is None or not limits.whole:
        return typed
    # a larger one has digits that nobody typed
    is_whole = typed.is_integer() and abs(typed) <= EXACT
    return int(typed) if is_whole else typed


def number(
    field: str, *, default: float | None = None, fresh: bool = False, hint: str = ""
) -> None:
    """Draws a number field for a setting, whose own value is `default`; `hint`: what an empty one
    is.
    """
    bounds = RUN_BOUNDS[field]
    optional = FIELDS[field].default is None and default is None
    shown = _shown(field, default)
    value = number_field(
        label(field),
        bounds,
        value=None if optional else shown,  # a number with a default cannot be emptied
        step=STEPS.get(field, 1),
        placeholder=hint or None,
        help=help_of(field),
        key=state_key(field, shown, fresh),
    )
    _keep(field, value, default)


def _shown(field: str, default: Any) -> Any:
    """Returns the setting, or `default` where it has none."""
    value = settings()[field]
    return default if value is None else value


def _keep(field: str, value: Any, default: Any) -> None:
    """Keeps what a widget was given; the default is kept as None, so that another strategy brings
    its own.
    """
    settings()[field] = None if value == default else value


def choice(
    field: str,
    options: Sequence[str | None],
    *,
    default: str | None = None,
    show: Callable[[str], str] = str,
    none: str = AUTOMATIC,
    fresh: bool = False,
    typed: bool = False,
) -> None:
    """Draws a list for a setting, whose own value is `default`; `none` is shown for None."""
    shown = _shown(field, default)
    if shown not in options:  # from the URL; if it cannot work, the check of the config says why
        options = [*options, shown]
    # A selectbox whose state is None has nothing chosen yet: the empty text stands for None.
    offered = [option or UNSET for option in options]
    key = state_key(field, shown or UNSET, fresh)
    if not typed:
        keep_to(offered, key, shown or UNSET)
    value = st.selectbox(
        label(field),
        offered,
        index=offered.index(shown or UNSET),
        format_func=lambda option: show(option) if option else none,
        help=help_of(field),
        key=key,
        accept_new_options=typed,
    )
    say_if_cut(show(value) if value else none)
    if value in (None, UNSET):
        value = default
    _keep(field, value, default)


FITS = 30
"""Characters of a chosen label that a field of the sidebar shows; it cuts off what is longer."""


def say_if_cut(label_shown: str) -> None:
    """Draws a chosen label below its field in full where the field cuts it off: a field cannot wrap it."""
    if len(label_shown) > FITS:
        st.caption(escaped(label_shown))


def toggle(field: str, *, default: bool | None = None, fresh: bool = False) -> None:
    shown = bool(_shown(field, default))
    given = st.checkbox(
        label(field), value=shown, help=help_of(field), key=state_key(field, shown, fresh)
    )
    _keep(field, given, default)


def knob(field: str, default: Any, *, options: Sequence[str] = (), fresh: bool = False) -> None:
    """Draws the widget that fits a knob of a strategy, whose own value is `default`."""
    if field in config.CHOICES:
        offered: list[str | None] = list(options or config.CHOICES[field])
        if default is None:
            offered.insert(0, None)
        choice(field, offered, default=default, fresh=fresh)
    elif _type_of(field) == "bool":
        toggle(field, default=bool(default), fresh=fresh)
    else:
        hint = "none" if field == "cache_mb" else "the preset's"
        number(field, default=default, fresh=fresh, hint=hint)


def name_field(words: str, key: str, **options: Any) -> str:
    """Draws a field for the name of a run or a tournament; returns the name as it is stored.

    It says where the name was cut: with `max_chars` a browser silently ignores a longer text that
    is pasted. `options` are passed to `st.text_input`.
    """
    name: str = st.text_input(words, key=key, **options)
    if len(name.strip()) > MAX_NAME:
        st.caption(f":material/content_cut: {sentence(NAME_CUT)}")
    return cut_name(name)


def changed_settings(values: dict[str, Any]) -> dict[str, str]:
    """Returns the settings that are not at their defaults, as the URL has them."""
    budget = values["budget"]
    defaults = dict(DEFAULTS)
    for name in config.BUDGETS:  # only the one that is chosen is in the URL
        defaults[name] = values[name]
    defaults[budget] = BUDGET_DEFAULTS[budget] if budget == BUDGET else None
    changed = {}
    for name in DEFAULTS:
        if values[name] not in (None, defaults[name]):
            changed[name] = _text(values[name])
    return changed


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return str(value).removesuffix(".0")
    return str(value)


def say_settings() -> None:
    """Writes the settings into the URL.

    Its other parameters stay: the run, and those of a page or of Streamlit.
    """
    wanted = changed_settings(settings())
    for name in list(st.query_params):
        if name in FIELDS and name not in wanted:
            del st.query_params[name]
    changed = {}
    for name, value in wanted.items():
        if st.query_params.get(name) != value:
            changed[name] = value
    if changed:
        st.query_params.update(changed)


def choose(
    name: str,
    words: str,
    options: Mapping[Option, str],
    *,
    default: Option,
    help: str,
    show_label: bool = True,
) -> Option:
    """Draws a choice of one of a few, whose name in the URL is `name`."""
    chosen = st.segmented_control(
        words,
        list(options),
        format_func=options.__getitem__,
        default=default,
        required=True,
        **kept(name),
        help=help,
        label_visibility="visible" if show_label else "collapsed",
    )
    return chosen or default  # an empty value in the URL leaves it without a choice
