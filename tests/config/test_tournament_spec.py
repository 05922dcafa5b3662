"""What a tournament's spec allows, and its way through JSON."""

import dataclasses
import json
from typing import Any

import pytest

from vitprof.config import RunConfig
from vitprof.config.bounds import MOST_TRIALS
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.errors import ConfigError

BASE = RunConfig(device="simulated:2,10", threads=1, steps=10, seed=7)


def made(**values: Any) -> TournamentSpec:
    return TournamentSpec(
        **({"base": BASE, "strategies": ("memory", "workers"), "batch_sizes": (32, 64)} | values)
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("strategies", ()),
        ("strategies", ("nonsense",)),
        ("strategies", ("memory", "memory")),
        ("strategies", (["memory"],)),
        ("baseline", 3),
        ("early_stop", "no"),
        ("batch_sizes", (True,)),
        ("batch_sizes", (32, 32)),
        ("batch_sizes", tuple(range(1, 502))),
        ("workers", ("2",)),
        ("page_caches", ("lukewarm",)),
        ("vary", (("workers", (2,)),)),
        ("vary", (("prefetch_factor", ()),)),
        ("vary", (("prefetch_factor", (2,)), ("prefetch_factor", (4,)))),
        ("seconds", float("nan")),
    ],
)
def test_what_it_refuses(field: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        made(**{field: value})
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("field", "value"), [("loader", "threads"), ("replay", "host")])
def test_what_the_base_must_leave_out(field: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        made(base=dataclasses.replace(BASE, **{field: value}))
    assert caught.value.field == field


def test_through_json_and_back_and_not_without_end() -> None:
    spec = made(
        workers=(0, 2), page_caches=("warm", "cold"), seconds=60.0, baseline="memory/b32/w-/as-is"
    )
    assert TournamentSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    spec = made(vary=(("prefetch_factor", (2, 4)), ("pin_memory", (True, False))))
    assert TournamentSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    assert spec.title == (
        "2 strategies x 2 batch sizes x 2 values of prefetch factor x 2 values of pin memory on digits"
    )
    with pytest.raises(
        ConfigError, match=f"^batch_sizes: {10**6} is not possible; give at most {MOST_TRIALS}$"
    ):
        made(batch_sizes=list(range(1, 10**6 + 1)))


def test_no_more_than_anybody_waits_for() -> None:
    hundred = tuple(range(1, 101))
    with pytest.raises(ConfigError, match="makes 40,000 trials, and 1,000 are allowed") as refused:
        made(workers=hundred, vary=(("prefetch_factor", hundred),))
    assert (refused.value.field, refused.value.value) == ("workers", "100 values")
    with pytest.raises(ConfigError) as refused:
        made(vary=(("prefetch_factor", tuple(range(1, 501))),))
    assert (refused.value.field, refused.value.value) == ("vary", "prefetch_factor, 500 values")


@pytest.mark.parametrize(
    "broken", [{"colour": "red"}, {"base": 3}, {"strategies": None}, {"base": {"colour": "red"}}]
)
def test_what_cannot_be_read(broken: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        TournamentSpec.from_dict(made().to_dict() | broken)
    with pytest.raises(ConfigError, match="strategies"):
        TournamentSpec.from_dict({"base": BASE.to_dict(), "batch_sizes": [1]})
