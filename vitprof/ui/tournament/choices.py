"""The tournament that the form's choices make with the settings of the sidebar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from vitprof.config import BUDGETS, PARTS, RunConfig
from vitprof.config.catalog import DATASETS, MODELS, DatasetInfo
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.errors import ConfigError
from vitprof.ui.widgets import FIELDS, label, settings

TRIAL = "trial_"
"""Prefix of the form's own fields in the URL, which also holds the sidebar's settings."""
FIRST: dict[str, tuple[str, ...]] = {
    "idx": ("per-sample", "workers", "tensordataset", "memory"),
    "jpeg": ("per-sample", "workers", "threads", "prefetch"),
}
"""Strategies to begin with, by kind of data set: what most people use and what usually beats it, without any that takes
minutes to prepare."""
IN_THE_FORM = ("dataset", "n_images", "model", "device")
"""Settings of the sidebar that are in this form too: a change here is a change there."""
NOT_TAKEN = ("strategy", "batch_size", "workers", "page_cache", "name", "evaluate", "replay", *BUDGETS, *PARTS)
"""Settings of the sidebar that a tournament varies, has its own fields for, or cannot use."""


def make_spec(
    info: DatasetInfo, trials: Mapping[str, Any], each_run: Mapping[str, Any], rounds: Mapping[str, Any]
) -> TournamentSpec | ConfigError:
    """Returns the tournament that the choices make, or what is wrong with them."""
    values = settings()
    given = {name: values[name] for name in FIELDS if name not in NOT_TAKEN}
    if not info.any_size:
        given["n_images"] = None
    try:
        return TournamentSpec(
            base=RunConfig(**given, **each_run),
            strategies=tuple(trials["strategies"]),
            batch_sizes=_whole("batch_sizes", trials["batch_sizes"]),
            workers=_whole("workers", trials["workers"]) or None,
            page_caches=tuple(trials["page_caches"]),
            **rounds,
        )
    except ConfigError as error:
        return error


def _whole(name: str, values: Sequence[Any]) -> tuple[int, ...]:
    """Returns the numbers, each once. Raises `ConfigError` for text."""
    for value in values:
        if not isinstance(value, int):
            raise ConfigError(name, value, "give whole numbers only")
    return tuple(dict.fromkeys(values))


def as_numbers(values: Sequence[Any]) -> list[Any]:
    """Returns the values, each once; text that is a whole number becomes one."""
    made = (int(v) if isinstance(v, str) and v.strip().isdecimal() and len(v) < 10 else v for v in values)
    return list(dict.fromkeys(made))


def what_is_taken() -> str:
    """Returns which settings of the sidebar every trial has, and which are left out, in a line."""
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
    """Resets the sidebar's settings that the form cannot show; returns the message that says so, "" for none."""

    def new(name: str) -> bool:
        """Returns whether the form's own field, which says itself what is wrong, is not on the page yet."""
        return f"tournament-{name}" not in st.session_state

    values, messages = settings(), []
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


def in_url() -> dict[str, list[str]]:
    """Returns what the URL says about the form's own fields. Call it before they are drawn."""
    return {name: st.query_params.get_all(name) for name in st.query_params if name.startswith(TRIAL)}


def not_taken_in(said: Mapping[str, Sequence[str]]) -> str:
    """Returns a message about the values in the URL that the fields did not take. Call it after they are drawn."""
    lines = []
    for name, texts in said.items():
        if name not in st.session_state:  # a field that is not shown now
            continue
        value = st.session_state[name]
        taken = {_as_in_url(v) for v in (value if isinstance(value, list) else [value])}
        what = name.removeprefix(TRIAL).replace("_", " ").capitalize()
        lines += [
            f"{what}: {text[:40]} is not possible; the default is used" for text in texts if text not in {"", *taken}
        ]
    return "; ".join(lines)


def _as_in_url(value: Any) -> str:
    return (
        str(value).lower() if isinstance(value, bool) else f"{value:.12g}" if isinstance(value, float) else str(value)
    )
