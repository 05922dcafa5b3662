"""The form's own choices as the address says them: short, and only what is not as usual.

Not the sidebar's names, which stand in the same address: a tournament has several batch sizes, and a budget of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from vitprof.config import BUDGETS, CHOICES
from vitprof.config.bounds import RUN_BOUNDS, TOURNAMENT_BOUNDS, Bounds
from vitprof.config.strategies import STRATEGIES

LISTS = {
    "strategies": "strategies",
    "batch_sizes": "batch_sizes",
    "workers": "worker_counts",
    "page_caches": "page_caches",
}
FLAGS = {"early_stop": "early_stop", "evaluate": "trial_evaluate"}
LIMIT_MIN = Bounds(0.1, TOURNAMENT_BOUNDS["seconds"].most / 60, whole=False)
"""Minutes for all of it; with fewer no trial would be begun."""
MOST = 50
"""Values of a list that are read from an address."""
NAMED = {"strategies": tuple(STRATEGIES), "page_caches": tuple(CHOICES["page_cache"])}


def changed_choices(chosen: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, str]:
    """What differs from `usual`, by its name in the address. An empty list is left out: it can't be started."""
    said = {}
    for name, word in LISTS.items():
        if chosen[name] and list(chosen[name]) != list(usual[name] or ()):
            said[word] = ",".join(str(value) for value in chosen[name])
    budget = chosen["budget"]
    if (budget, chosen[budget]) != (usual["budget"], usual[usual["budget"]]):
        said["trial"] = f"{chosen[budget]:.12g}-{budget}"
    if chosen["repeats"] != usual["repeats"]:
        said["repeats"] = str(chosen["repeats"])
    if chosen["limit"] is not None:
        said["limit"] = f"{chosen['limit']:.12g}"
    for name, word in FLAGS.items():
        if chosen[name] != usual[name]:
            said[word] = "true" if chosen[name] else "false"
    return said


def read_choices(query: Mapping[str, str]) -> dict[str, Any]:
    """The choices that an address names; "rejected" are lines about what it names that cannot be."""
    found: dict[str, Any] = {}
    wrong: list[tuple[str, str]] = []
    for name, word in LISTS.items():
        values = list(dict.fromkeys(filter(None, (v.strip() for v in query.get(word, "").split(",")))))[:MOST]
        wrong += [(word, v) for v in values if not _fits(name, v)]
        if fitting := [v for v in values if _fits(name, v)]:
            found[name] = fitting if name in NAMED else [int(v) for v in fitting]
    for word, read in SINGLE.items():
        if word in query:
            given = read(query[word])
            if given is None:
                wrong.append((word, query[word]))
            found |= given or {}
    told = [f"{word.replace('_', ' ').capitalize()}: {what[:40]} cannot be; it is as usual" for word, what in wrong]
    return found | ({"rejected": told} if told else {})


def _trial(text: str) -> dict[str, Any] | None:
    amount, _, budget = text.partition("-")
    number = _number(amount)
    if budget not in BUDGETS or not _within(RUN_BOUNDS[budget], number):
        return None
    return {"budget": budget, budget: int(number) if RUN_BOUNDS[budget].whole else number}


def _repeats(text: str) -> dict[str, Any] | None:
    number = _number(text)
    return {"repeats": int(number)} if _within(TOURNAMENT_BOUNDS["repeats"], number) else None


def _limit(text: str) -> dict[str, Any] | None:
    number = _number(text)
    return {"limit": number} if _within(LIMIT_MIN, number) else None


def _flag(name: str) -> Callable[[str], dict[str, Any] | None]:
    return lambda text: {name: text == "true"} if text in ("true", "false") else None


def _fits(name: str, value: str) -> bool:
    if name in NAMED:
        return value in NAMED[name]
    return value.isascii() and value.isdecimal() and _within(TOURNAMENT_BOUNDS[name], _number(value))


def _within(bounds: Bounds, number: float) -> bool:
    return bounds.least <= number <= bounds.most and (not bounds.whole or number.is_integer())


def _number(text: str) -> float:
    """NaN for what is no number below 1e9."""
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if abs(number) < 1e9 else math.nan


SINGLE: dict[str, Callable[[str], dict[str, Any] | None]] = {
    "trial": _trial,
    "repeats": _repeats,
    "limit": _limit,
    **{word: _flag(name) for name, word in FLAGS.items()},
}
"""What reads a value of the address; None: it cannot be."""
OWN = (*LISTS.values(), *SINGLE)
"""Every name in the address that is the form's own."""
