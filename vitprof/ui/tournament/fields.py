"""The fields of the form that sets a tournament up.

With the sidebar's settings they make the tournament.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from vitprof.analysis.thresholds import MIN_STEPS
from vitprof.config import (
    BUDGETS,
    CHOICES,
    PARTS,
    RunConfig,
    bounds,
    models,
    strategies,
    tournament_spec,
)
from vitprof.config.varied import read_numbers
from vitprof.datasets import catalog
from vitprof.errors import ConfigError
from vitprof.ui import device_field, own_sets, resources
from vitprof.ui.texts import escaped, value_in_words
from vitprof.ui.widgets import (
    FIELDS,
    help_of,
    kept,
    label,
    number_field,
    reject,
    requested,
    settings,
)

TRIAL = "trial_"
"""Prefix of the form's own fields in the URL, which also holds the sidebar's settings."""
STRATEGIES_KEY = f"{TRIAL}strategies"
BATCH_SIZES = (32, 64, 128, 256, 512, 1024, 2048)
WORKERS = (0, 1, 2, 4, 8)
PREFETCH_FACTORS = (2, 4, 8)
TYPED_HELP = (
    "Type other numbers, or a range (0..8, 0..16:4, 1..64:x2), and press Enter to add them."
)
PAGE_CACHES = {"as-is": "unchanged", "warm": "warm", "cold": "cold"}
BUDGETS_AT_FIRST: dict[str, float] = {"seconds": 5.0, "steps": 100, "epochs": 1}
"""How long a run is unless chosen: a session's first tournament then takes about a minute."""
DEVICE = "tournament-device"
"""Key of the choice of a device."""


READ_FIRST = ("model", "n_images")
"""Fields of the drawer that decide what is drawn above it: their values are read before they are
drawn."""


def draw_job() -> list[Any]:
    """Draws data set, device and batch sizes; returns the batch sizes, what was typed as it is."""
    left, middle, right = st.columns(3)
    values = settings()
    for field in READ_FIRST:
        values[field] = st.session_state.get(f"tournament-{field}", values[field])
    with left:
        before = values["dataset"]
        _pick("dataset", list(catalog.DATASETS), lambda name: catalog.DATASETS[name].title)
        if values["dataset"] != before:
            _suit(before)
        own_sets.draw_suited()
        if words := own_sets.unreadable():
            st.error(f"{escaped(words)}.")
            own_sets.draw_skip("tournament-skip")
    with middle:
        if values["device"] == "auto" and DEVICE not in st.session_state and not resources.gpus():
            values["device"] = "simulated:h100"  # on the CPU strategies hardly differ
        device_field.draw_device(DEVICE)
    with right:
        batch_sizes = _draw_numbers(
            "batch_sizes",
            "Batch sizes",
            [values["batch_size"]],
            BATCH_SIZES,
            help=f"Samples for each step. {TYPED_HELP}",
        )
    if values["device"] == "cpu" or (values["device"] == "auto" and not resources.gpus()):
        st.caption(
            ":material/info: On the CPU, computing takes most of the time, so strategies hardly "
            "differ. A simulated device shows how they would compare on a GPU."
        )
    return batch_sizes


def draw_model() -> None:
    """Draws the model, and the number of images of a data set that can have any."""
    values = settings()
    left, right = st.columns(2)
    with left:
        _pick("model", list(models.MODELS), lambda name: models.MODELS[name].title)
    info = catalog.DATASETS[values["dataset"]]
    if info.any_size:
        with right:
            values["n_images"] = number_field(
                label("n_images"),
                bounds.RUN_BOUNDS["n_images"],
                step=1000,
                value=None,
                placeholder=f"{info.n_train:,}",
                key=_key("n_images"),
                help=help_of("n_images"),
            )


def _suit(before: str) -> None:
    """Sets model and batch size to what fits the data set that was just chosen; other batch sizes that
    were chosen stay.
    """
    values = settings()
    size_before = values["batch_size"]
    own_sets.suit(before)
    st.session_state.pop("tournament-model", None)
    sizes = f"{TRIAL}batch_sizes"
    if st.session_state.get(sizes) == [size_before]:
        st.session_state[sizes] = [values["batch_size"]]


def _pick(field: str, options: list[str], show: Callable[[str], str]) -> None:
    given = st.selectbox(
        label(field), options, format_func=show, key=_key(field), help=help_of(field)
    )
    settings()[field] = given or FIELDS[field].default


def _key(field: str) -> str:
    key = f"tournament-{field}"
    st.session_state.setdefault(key, settings()[field])
    return key


def draw_more_trials(
    info: catalog.DatasetInfo, picked: Sequence[str], reasons: Mapping[str, str]
) -> dict[str, Any]:
    """Draws what else is tried of the strategies `picked`: workers, prefetch factors and page caches;
    returns what was chosen.

    `reasons`: why each strategy cannot run here; "" if it can.
    """
    can_run = [name for name in picked if not reasons[name]]
    left, middle, right = st.columns(3)
    with left:
        workers = _draw_taken(
            "workers",
            "Workers",
            WORKERS,
            _that_take("workers", can_run, info),
            "Processes or threads that load.",
        )
    with middle:
        prefetch_factors = _draw_taken(
            "prefetch_factor",
            "Prefetch factors",
            PREFETCH_FACTORS,
            _that_take("prefetch_factor", can_run, info),
            "Batches kept ready by each worker, or by a thread that reads ahead.",
        )
    page_caches = right.multiselect(
        "Page cache at the start",
        list(CHOICES["page_cache"]),
        default="as-is",
        format_func=PAGE_CACHES.__getitem__,
        **kept(f"{TRIAL}page_caches"),
        help="The system's cache of the data's files before each run: unchanged, read in (warm), or dropped (cold: "
        "the first pass reads from the disk). Cold and warm are different experiments.",
    )
    return {
        "workers": workers,
        "prefetch_factor": prefetch_factors,
        "page_caches": page_caches,
    }


def _that_take(setting: str, names: Sequence[str], info: catalog.DatasetInfo) -> list[str]:
    """Returns which of these strategies take a setting."""
    takes = []
    for name in names:
        plan = strategies.STRATEGIES[name]
        if setting in plan.knobs(plan.combination(info), info):
            takes.append(name)
    return takes


def _draw_taken(
    name: str, words: str, offered: tuple[int, ...], takes: Sequence[str], what: str
) -> list[Any]:
    """Draws a choice of numbers of a setting that the strategies `takes` take; returns none without such a
    strategy.
    """
    placeholder = f"none of these takes {words.lower()}"
    these = ""
    if takes:
        placeholder = "each strategy's own"
        these = f" (here {', '.join(takes)})"
    picked = _draw_numbers(
        name,
        words,
        [],
        offered,
        disabled=not takes,
        placeholder=placeholder,
        help=f"{what} A strategy that takes them{these} is tried with each number, the others once. Empty: each "
        f"strategy's own. {TYPED_HELP}",
    )
    return picked if takes else []


def draw_strategies(info: catalog.DatasetInfo, reasons: Mapping[str, str]) -> list[str]:
    """Draws the choice of strategies; returns their names. `reasons` are as for `draw_more_trials`."""
    usual = list(FIRST[info.kind])
    # another kind of data set brings its own strategies, unless the user has chosen some
    of_other_kinds = [list(first) for kind, first in FIRST.items() if kind != info.kind]
    if st.session_state.get(STRATEGIES_KEY) in of_other_kinds:
        st.session_state[STRATEGIES_KEY] = usual
    can_run = [name for name in strategies.STRATEGIES if not reasons[name]]
    left, right = st.columns([4, 1], vertical_alignment="bottom")
    picked = left.multiselect(
        "Strategies",
        list(strategies.STRATEGIES),
        default=usual,
        **kept(STRATEGIES_KEY),
        help="How samples are stored, loaded and copied to the device. The page Strategies explains each. One that "
        "cannot run here stays in the table with the reason.",
        placeholder="Choose strategies",
        wrap=True,
    )
    right.button(
        "All that can run",
        width="stretch",
        key="tournament-all",
        icon=":material/select_all:",
        on_click=st.session_state.update,
        args=({STRATEGIES_KEY: can_run},),
        help="Takes longer: some prepare a copy of the data first, and the slow drive is slow on purpose.",
    )
    not_here = {name: reason for name, reason in reasons.items() if reason}
    if not_here:
        lines = [f"- **{name}**: {escaped(reason)}" for name, reason in not_here.items()]
        st.caption(f"Not possible here: {', '.join(not_here)}", help="\n".join(lines))
    return picked


def _draw_numbers(
    name: str, words: str, usual: list[int], offered: tuple[int, ...], **more: Any
) -> list[Any]:
    """Draws a choice of numbers, to which others can be typed; returns what was typed as it is."""
    options = sorted({*offered, *usual})
    key = f"{TRIAL}{name}"
    picked = st.multiselect(
        words, options, default=usual, accept_new_options=True, **kept(key), **more
    )
    numbers: list[Any] = list(picked)
    return numbers


def draw_length() -> tuple[dict[str, Any], float | None]:
    """Draws how long each run is, and the rounds; returns the budget of a run and the rounds."""
    left, middle, right = st.columns(3)
    budget = str(
        left.selectbox(
            "Length of each run in",
            list(BUDGETS_AT_FIRST),
            **kept(f"{TRIAL}lasts"),
            help="What ends a run. Seconds give slow and fast settings the same time; epochs also measure the pause "
            "between epochs.",
        )
    )
    with middle:
        lasts = number_field(
            budget.capitalize(),
            bounds.RUN_BOUNDS[budget],
            value=BUDGETS_AT_FIRST[budget],
            **kept(f"{TRIAL}{budget}"),
            help=f"{help_of(budget)} For each run. An interval needs at least {MIN_STEPS} steps after the first "
            f"{settings()['warmup_steps']}, which are warm-up.",
        )
    with right:
        repeats = number_field(
            "Rounds",
            bounds.TOURNAMENT_BOUNDS["repeats"],
            value=tournament_spec.TournamentSpec.repeats,
            **kept(f"{TRIAL}repeats"),
            help="Every setting runs once in each round. The difference between rounds shows which gains are more than "
            "chance. After one round nothing can be recommended, after two rarely.",
        )
    return {budget: lasts}, repeats


def draw_rules() -> tuple[bool, dict[str, Any]]:
    """Draws what ends a run or the tournament before or after its length, and the evaluation; returns
    whether runs are evaluated, and the settings of the tournament.
    """
    with st.container(horizontal=True):
        until_decided = st.toggle(
            "Go on until it is decided",
            value=True,
            **kept(f"{TRIAL}until_decided"),
            help=f"After these rounds, runs up to {bounds.MORE_ROUNDS} more with the settings that can be the fastest, "
            "until one is within 5% of the fastest with 95% certainty, or the time limit is reached.",
        )
        early_stop = st.toggle(
            "Cut short what is too slow",
            value=True,
            **kept(f"{TRIAL}early_stop"),
            help="Stops a run, and does not repeat it, once it is clear (99%) that its setting cannot be the fastest, "
            "whatever other programs did. The baseline always runs to its end.",
        )
        evaluate = st.toggle(
            "Evaluate each run",
            **kept(f"{TRIAL}evaluate"),
            help="On the test set, at its end, for the accuracy. Takes longer; not on a simulated device.",
        )
    return evaluate, {"until_decided": until_decided, "early_stop": early_stop}


FIRST: dict[str, tuple[str, ...]] = {
    "idx": ("per-sample", "workers", "tensordataset", "memory"),
    "jpeg": ("per-sample", "workers", "threads", "prefetch"),
}
"""Strategies to begin with, by kind of data set: the usual ones and what beats them, quick to
prepare."""
IN_THE_FORM = ("dataset", "n_images", "model", "device")
"""Settings of the sidebar that are in this form too: a change here is a change there."""
NOT_TAKEN = (
    "strategy",
    "batch_size",
    "workers",
    "prefetch_factor",
    "page_cache",
    "name",
    "evaluate",
    "replay",
    *BUDGETS,
    *PARTS,
)
"""Settings of the sidebar that a tournament varies, has its own fields for, or cannot use."""


def make_spec(
    trials: Mapping[str, Any], each_run: Mapping[str, Any], rounds: Mapping[str, Any]
) -> tournament_spec.TournamentSpec:
    """Returns the tournament of these fields. Raises `ConfigError`."""
    ignored = list(NOT_TAKEN)
    if "seconds" not in each_run:  # else a run of 10 steps would go on to 30
        ignored.append("least_steps")
    base = RunConfig(**requested(*ignored), **each_run)
    chosen: dict[str, Any] = {
        "strategies": tuple(trials["strategies"]),
        "page_caches": tuple(trials["page_caches"]),
        "batch_sizes": _read("batch_sizes", trials["batch_sizes"], bounds.RUN_BOUNDS["batch_size"]),
    }
    if trials["workers"]:  # else each strategy's own
        chosen["workers"] = _read("workers", trials["workers"], bounds.RUN_BOUNDS["workers"])
    name = "prefetch_factor"
    if trials[name]:
        chosen["vary"] = ((name, _read(name, trials[name], bounds.RUN_BOUNDS[name])),)
    return tournament_spec.TournamentSpec(base, **chosen, **rounds)


def _read(name: str, picked: Sequence[int | str], allowed: bounds.Bounds) -> tuple[int, ...]:
    """Returns the numbers of a field, each once, with those of the ranges that were typed.

    Raises `ConfigError`.
    """
    numbers: list[int] = []
    for value in picked:
        try:
            numbers += read_numbers(str(value), allowed)
        except ValueError as error:
            raise ConfigError(name, value, str(error)) from None
    return tuple(dict.fromkeys(numbers))


def what_is_taken() -> str:
    """Returns which of the sidebar's settings the tournament takes, and which it does not, in
    words.
    """
    values = settings()
    changed = []
    for name, field in FIELDS.items():
        is_changed = values[name] is not None and values[name] != field.default
        if is_changed and name not in (*NOT_TAKEN, *IN_THE_FORM):
            changed.append(f"{label(name)} {value_in_words(values[name])}")
    text = "Everything else is at its default."
    if changed:
        text = f"From the settings of Profile: {', '.join(changed)}."
    ignored = [label(name) for name in (*PARTS, "replay") if values[name] is not None]
    if ignored:
        text += f" Not taken from there: {', '.join(ignored)}, as a tournament compares whole strategies."
    return text


def reject_unusable() -> str:
    """Resets the sidebar's settings that the form cannot show; returns the message that says so, ""
    for none.
    """
    named = {"dataset": list(catalog.DATASETS), "model": list(models.MODELS)}
    with_options: dict[str, list[str]] = {}
    checked: list[str] = []
    for name in ("dataset", "model", "n_images", "device", "batch_size"):
        if f"tournament-{name}" in st.session_state:
            continue  # a field that is on the page already says itself what is wrong
        if name in named:
            with_options[name] = named[name]
        else:
            checked.append(name)
    return "; ".join(reject(with_options, checked))


def not_taken_in(from_url: Mapping[str, Sequence[str]]) -> str:
    """Returns a message about the values in the URL that the fields did not take.

    Call it after they are drawn.
    """
    lines = []
    for name, texts in from_url.items():
        if name not in st.session_state:  # its field is not shown now
            continue
        value = st.session_state[name]
        values = value if isinstance(value, list) else [value]
        accepted = {"", *(_as_in_url(each) for each in values)}
        what = name.removeprefix(TRIAL).replace("_", " ").capitalize()
        for text in texts:
            if text not in accepted:
                lines.append(f"{what}: {text[:40]} is not possible; the default is used")
    return "; ".join(lines)


def _as_in_url(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.12g}"
    return str(value)
