"""The fields of the form that sets a tournament up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from vitprof.analysis.thresholds import MIN_STEPS
from vitprof.config import CHOICES
from vitprof.config.accelerators import PRESETS, SIMULATED
from vitprof.config.bounds import RUN_BOUNDS, TOURNAMENT_BOUNDS
from vitprof.config.catalog import DATASETS, MODELS, DatasetInfo
from vitprof.config.strategies import STRATEGIES
from vitprof.ui import resources
from vitprof.ui.texts import escaped
from vitprof.ui.tournament.choices import FIRST, as_numbers, batch_sizes, choices, strategies
from vitprof.ui.tournament.state import known
from vitprof.ui.widgets import FIELDS, help_of, label, settings

BATCH_SIZES = (32, 64, 128, 256, 512, 1024, 2048)
WORKERS = (0, 1, 2, 4, 8)
PAGE_CACHES = {"as-is": "as it is", "warm": "warm", "cold": "cold"}


def shown(name: str, value: Any) -> str:
    """A field's key; its state is `value` where it is new on the page."""
    key = f"tournament-{name}"
    if key not in st.session_state:
        st.session_state[key] = value
    return key


def draw_job() -> None:
    """What every trial trains, and on what: settings of the sidebar, so that a change here is a change there."""
    left, middle, right = st.columns(3)
    values = settings()
    with left:
        _pick("dataset", list(DATASETS), lambda name: DATASETS[name].title)
        info = DATASETS[values["dataset"]]
        if info.any_size:
            values["n_images"] = st.number_input(
                label("n_images"),
                min_value=int(RUN_BOUNDS["n_images"].least),
                max_value=int(RUN_BOUNDS["n_images"].most),
                step=1000,
                value=None,
                placeholder=f"{info.n_train:,}",
                key=shown("n_images", values["n_images"]),
                help=help_of("n_images"),
            )
    with middle:
        _pick("model", list(MODELS), lambda name: MODELS[name].title)
    with right:
        names = {f"cuda:{g.index}": f"cuda:{g.index} ({g.name})" for g in resources.gpus()}
        names |= {f"{SIMULATED}{a.name}": f"{SIMULATED}{a.name} ({a.times})" for a in PRESETS.values()}
        _pick("device", ["auto", *names, "cpu"], lambda name: names.get(name, name), typed=True)
    if values["device"] == "cpu" or (values["device"] == "auto" and not resources.gpus()):
        st.caption(
            ":material/info: On the CPU computing takes most of the time, so that strategies hardly differ. A "
            "simulated device shows what a GPU would make of them."
        )


def _pick(field: str, options: list[str], show: Callable[[str], str], *, typed: bool = False) -> None:
    """One of a few for a setting that Profile has too. Not its widget: two pages with one key lose its value."""
    values = settings()
    key = shown(field, values[field])
    if typed and st.session_state[key] not in (None, *options):
        options = [*options, st.session_state[key]]
    given = st.selectbox(
        label(field), options, format_func=show, key=key, help=help_of(field), accept_new_options=typed
    )
    values[field] = given or FIELDS[field].default


def draw_trials(info: DatasetInfo, why: Mapping[str, str]) -> None:
    """Strategies, batch sizes, workers, page caches: every combination is a trial. `why`: what cannot run here."""
    picked = _draw_strategies(info, why)
    takes = [name for name in picked if not why[name] and _takes_workers(name, info)]
    chosen = choices()
    left, middle, right = st.columns(3)
    with left:
        chosen["batch_sizes"] = _draw_numbers(
            "batch_sizes",
            "Batch sizes",
            batch_sizes(),
            BATCH_SIZES,
            help="Samples for each step. Type another number and press Enter to add it.",
        )
    with middle:
        chosen["workers"] = _draw_numbers(
            "workers",
            "Workers",
            chosen["workers"],
            WORKERS,
            disabled=not takes,
            placeholder="each strategy's own" if takes else "none of these takes workers",
            help="Processes or threads that load. Strategies whose loader has any are tried with each number"
            f"{' (here ' + ', '.join(takes) + ')' if takes else ''}, the others once. Empty: each strategy's own.",
        )
    with right:
        chosen["page_caches"] = st.multiselect(
            "Page cache at the start",
            list(CHOICES["page_cache"]),
            format_func=lambda name: PAGE_CACHES[name],
            key=shown("page_caches", chosen["page_caches"]),
            help="The system's cache of the data's files before each run: as it is, read in (warm), or dropped (cold: "
            "the first pass comes from the disk). Cold and warm are different experiments.",
        )


def _draw_strategies(info: DatasetInfo, why: Mapping[str, str]) -> list[str]:
    chosen = choices()
    usual = list(FIRST[info.kind])
    key = shown("strategies", strategies(info))
    if chosen["strategies"] is None and chosen.get("kind") not in (None, info.kind):  # another data set was chosen
        st.session_state[key] = usual
    chosen["kind"] = info.kind
    left, right = st.columns([4, 1], vertical_alignment="bottom")
    with left:
        picked = st.multiselect(
            "Strategies",
            list(STRATEGIES),
            format_func=lambda name: f"{name} (not here)" if why.get(name) else name,
            key=key,
            help="How samples are stored, loaded and brought to the device. The page Strategies explains each. One "
            "that cannot run here stays in the table with the reason.",
            placeholder="Choose strategies",
            width="stretch",
            **known(st.multiselect, wrap=True),
        )
    with right:
        st.button(
            "All that can run",
            width="stretch",
            key="tournament-all",
            icon=":material/select_all:",
            on_click=_choose,
            args=([name for name in STRATEGIES if not why[name]],),
            help="Takes longer: some prepare a copy of the data first, and the slow drive is slow on purpose.",
        )
    chosen["strategies"] = None if picked == usual else picked
    if not_here := {name: reason for name, reason in why.items() if reason}:
        with st.expander(f"Not possible here: {', '.join(not_here)}"):
            st.markdown("\n".join(f"- **{name}**: {escaped(reason)}" for name, reason in not_here.items()))
    return picked


def _choose(names: list[str]) -> None:
    choices()["strategies"] = st.session_state["tournament-strategies"] = names


def _takes_workers(name: str, info: DatasetInfo) -> bool:
    plan = STRATEGIES[name]
    return "workers" in plan.knobs(plan.combination(info), info)


def _draw_numbers(name: str, words: str, value: list[Any], offered: tuple[int, ...], **more: Any) -> list[Any]:
    """Several numbers, others than those offered if typed. What is no number stays text, and is refused by name."""
    key = shown(name, value)
    # Set by hand each time: what is typed comes as text, and the list of options changes with it.
    st.session_state[key] = as_numbers(st.session_state[key])
    options = {*offered, *(v for v in st.session_state[key] if isinstance(v, int))}
    picked: list[Any] = st.multiselect(
        words,
        sorted(options),
        format_func=lambda v: f"{v:,}" if isinstance(v, int) else str(v),
        accept_new_options=True,
        key=key,
        **more,
    )
    return as_numbers(picked)


def draw_runs() -> None:
    """How long a run is, how often it is repeated, and whether it is cut short."""
    chosen = choices()
    first, second, third = st.columns(3)
    with first:
        chosen["budget"] = st.selectbox(
            "Each run lasts",
            ("seconds", "steps", "epochs"),
            format_func=lambda b: f"so many {b}",
            key=shown("budget", chosen["budget"]),
            help="What ends a run. Seconds give slow and fast settings the same time; epochs also measure the pause "
            "between epochs.",
        )
    budget = str(chosen["budget"])
    with second:
        bounds = RUN_BOUNDS[budget]
        kind = int if bounds.whole else float
        chosen[budget] = st.number_input(
            budget.capitalize(),
            min_value=kind(bounds.least),
            max_value=kind(bounds.most),
            step=kind(1),
            format="%d" if bounds.whole else "%g",
            key=shown(budget, chosen[budget]),
            help=f"{help_of(budget)} For each run. An interval needs at least {MIN_STEPS} steps after the first "
            f"{settings()['warmup_steps']}, which are warm-up.",
        )
    with third:
        chosen["repeats"] = st.number_input(
            "Repeats",
            min_value=int(TOURNAMENT_BOUNDS["repeats"].least),
            max_value=int(TOURNAMENT_BOUNDS["repeats"].most),
            step=1,
            key=shown("repeats", chosen["repeats"]),
            help="Rounds: every trial once, then every trial again. What differs between rounds tells a gain from "
            "chance; with 3 or more the intervals are narrow.",
        )
    with st.container(horizontal=True):
        chosen["early_stop"] = st.toggle(
            "Cut short what cannot win",
            key=shown("early_stop", chosen["early_stop"]),
            help="A trial whose throughput so far lies below the best one's beyond doubt (99%) is stopped, says so, "
            "and is not repeated. The baseline always runs to its end.",
        )
        chosen["evaluate"] = st.toggle(
            "Evaluate each run",
            key=shown("evaluate", chosen["evaluate"]),
            help="On the test set at its end, for the accuracy. Takes longer; a simulated device has none.",
        )
