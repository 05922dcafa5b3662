"""What a session has chosen for its next tournament, and the tournament that makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from vitprof.config import BUDGETS, PARTS, RunConfig
from vitprof.config.catalog import DATASETS, MODELS, DatasetInfo
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.errors import ConfigError
from vitprof.ui.tournament.url_codec import OWN, changed_choices, read_choices
from vitprof.ui.widgets import FIELDS, label, settings

STATE = "tournament-choices"
FIRST: dict[str, tuple[str, ...]] = {
    "idx": ("per-sample", "workers", "tensordataset", "memory"),
    "jpeg": ("per-sample", "workers", "threads", "prefetch"),
}
"""Strategies to begin with, by kind of data set: what most people use and what usually beats it, and nothing that has
to be prepared for minutes."""
DEFAULTS: dict[str, Any] = {
    "strategies": None,
    "batch_sizes": None,
    "workers": [],
    "page_caches": ["as-is"],
    "budget": "seconds",
    "seconds": 5.0,
    "steps": 100,
    "epochs": 1,
    "repeats": 2,
    "early_stop": True,
    "evaluate": False,
    "baseline": "",
    "limit": None,
    "name": "",
}
"""A session's first tournament: about a minute. None: it depends on the data set, or on the sidebar of Profile."""
IN_THE_FORM = ("dataset", "n_images", "model", "device")
"""Settings of the sidebar that stand in this form too: a change here is a change there."""
NOT_TAKEN = ("strategy", "batch_size", "workers", "page_cache", "name", "evaluate", "replay", *BUDGETS, *PARTS)
"""Settings of the sidebar that a tournament varies, has of its own, or cannot use."""


def choices() -> dict[str, Any]:
    """This session's; they outlive the widgets, which vanish while a tournament is shown."""
    if STATE not in st.session_state:
        st.session_state[STATE] = DEFAULTS | read_choices(st.query_params.to_dict())
    kept: dict[str, Any] = st.session_state[STATE]
    return kept


def strategies(info: DatasetInfo) -> list[str]:
    """The strategies chosen, or those to begin with."""
    chosen = choices()["strategies"]
    return list(FIRST[info.kind] if chosen is None else chosen)


def batch_sizes() -> list[Any]:
    """The batch sizes chosen, or that of the sidebar; text where something was typed that is no number."""
    chosen = choices()["batch_sizes"]
    return [settings()["batch_size"]] if chosen is None else list(chosen)


def say_choices() -> None:
    """Put what the form has chosen, and is not as usual, into the address: a link or a reload shows it again."""
    info = DATASETS[settings()["dataset"]]
    usual = DEFAULTS | {"strategies": list(FIRST[info.kind]), "batch_sizes": [settings()["batch_size"]]}
    said = changed_choices(choices() | {"strategies": strategies(info), "batch_sizes": batch_sizes()}, usual)
    before = st.query_params.to_dict()
    wanted = {name: value for name, value in before.items() if name not in OWN} | said
    if wanted != before:
        st.query_params.from_dict(wanted)


def make_spec(info: DatasetInfo) -> TournamentSpec | ConfigError:
    """The tournament that the choices make, or what is wrong with them."""
    chosen, values = choices(), settings()
    given = {name: values[name] for name in FIELDS if name not in NOT_TAKEN}
    if not info.any_size:
        given["n_images"] = None
    budget = chosen["budget"]
    try:
        return TournamentSpec(
            base=RunConfig(**given, **{budget: chosen[budget]}, evaluate=chosen["evaluate"]),
            strategies=tuple(strategies(info)),
            batch_sizes=_whole("batch_sizes", batch_sizes()),
            workers=_whole("workers", chosen["workers"]) or None,
            page_caches=tuple(chosen["page_caches"]),
            repeats=chosen["repeats"],
            early_stop=chosen["early_stop"],
        )
    except ConfigError as error:
        return error


def _whole(name: str, values: Sequence[Any]) -> tuple[int, ...]:
    """Numbers as they are, each once; text that is none is refused by name."""
    for value in values:
        if not isinstance(value, int):
            raise ConfigError(name, value, "give whole numbers only")
    return tuple(dict.fromkeys(values))


def as_numbers(values: Sequence[Any]) -> list[Any]:
    """What was typed as numbers where it is one, each once."""
    made = (int(v) if isinstance(v, str) and v.strip().isdecimal() and len(v) < 10 else v for v in values)
    return list(dict.fromkeys(made))


def what_is_taken() -> str:
    """Which settings of the sidebar every trial has, and which are left out, in a line."""
    values = settings()
    taken = [
        f"{label(name)} {values[name]}"
        for name, field in FIELDS.items()
        if name not in (*NOT_TAKEN, *IN_THE_FORM) and values[name] not in (field.default, None)
    ]
    left_out = [label(name) for name in (*PARTS, "replay") if values[name] is not None]
    said = f"From the settings of Profile: {', '.join(taken)}." if taken else "Everything else is at its default."
    if left_out:
        said += f" Not taken from there: {', '.join(left_out)}, as a tournament runs strategies as they are."
    return said


def reject_unusable() -> str:
    """Put back what came with the address and the form cannot show; the message that says so."""

    def new(name: str) -> bool:
        """Not set by the form's own field, which says itself what is wrong."""
        return f"tournament-{name}" not in st.session_state

    values, messages = settings(), list(choices().pop("rejected", ()))
    allowed: dict[str, list[str]] = {"dataset": list(DATASETS), "model": list(MODELS)}
    for name, names in allowed.items():
        if values[name] not in names and new(name):
            messages.append(f"{label(name)} {values[name]}: choose one of {', '.join(names)}")
            values[name] = FIELDS[name].default
    for name in filter(new, ("n_images", "device", "batch_size")):
        try:
            RunConfig(**{name: values[name]})
        except ConfigError as error:
            messages.append(f"{label(name)} {error.value}: {error.allowed}")
            values[name] = FIELDS[name].default
    return "; ".join(messages)
