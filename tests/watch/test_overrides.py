"""A trial's arguments in the loader that trains, whatever way a script makes it; and in no other."""

from __future__ import annotations

import ast
import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.watch.watching import Host, Told
from vitprof.watch import on_import

AS_IT_IS = [0, None, False, False, 2]
ONE = [1, 2, False, False, 2]


def run(host: Host, function: str, wanted: dict[str, Any]) -> Told:
    return host.run(f"tests.watch.own_scripts:{function}", env={"VITPROF_WATCH_OVERRIDES": json.dumps(wanted)})


def made(told: Told) -> dict[str, Any]:
    watched = told.note("environment")[0]["watched"]
    return {name.removeprefix("made_"): value for name, value in watched.items() if name.startswith("made_")}


def changed(host: Host, function: str, cache_bytes: int | None = None, **arguments: Any) -> tuple[Any, dict[str, Any]]:
    """What comes of a script in a later trial, made from what its first one told; and what that tells."""
    first = made(run(host, function, {}))
    assert not first["changed"]
    wanted = {"place": first["place"], "nth": None if first["alone"] else first["nth"]}
    told = run(host, function, wanted | {"arguments": arguments, "cache_bytes": cache_bytes})
    assert told.complaint == ""
    return ast.literal_eval(told.returned), made(told)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("in_one_line", [ONE, AS_IT_IS]),
        ("lazily_in_one_line", [ONE, AS_IT_IS]),
        ("each_epoch", [ONE, ONE, AS_IT_IS]),
    ],
)
def test_the_loader_that_trains_and_no_other(host: Host, function: str, expected: list[Any]) -> None:
    found, told = changed(host, function, num_workers=1)
    assert found == expected
    assert told["changed"]


def test_the_first_trial_changes_nothing(host: Host) -> None:
    told = run(host, "in_one_line", {})
    assert ast.literal_eval(told.returned) == [AS_IT_IS, AS_IT_IS]
    assert (made(told)["nth"], made(told)["alone"], made(told)["own_batches"]) == (2, False, False)
    assert made(told)["where"].startswith("own_scripts.py:")


@pytest.mark.slow
def test_what_needs_workers_is_taken_away_with_them(host: Host) -> None:
    """As the plan of a tournament has it: PyTorch refuses these arguments without workers."""
    none = {"prefetch_factor": None, "persistent_workers": False, "multiprocessing_context": None, "timeout": 0}
    assert changed(host, "of_a_class", num_workers=0, **none)[0] == AS_IT_IS
    assert changed(host, "of_a_class", prefetch_factor=4)[0] == [1, 4, False, True, 2]


@pytest.mark.slow
def test_batches_of_the_scripts_own_stay(host: Host) -> None:
    first = made(run(host, "own_batches", {}))
    assert first["own_batches"]
    wanted = {"place": first["place"], "nth": None, "arguments": {"batch_size": 4}, "cache_bytes": None}
    assert not made(run(host, "own_batches", wanted))["changed"]


def test_nothing_is_changed_where_no_loader_is_made_there(host: Host) -> None:
    told = run(host, "each_epoch", {"place": "x", "nth": None, "arguments": {"num_workers": 1}, "cache_bytes": None})
    assert ast.literal_eval(told.returned) == [AS_IT_IS] * 3
    assert not made(told)["changed"]


@pytest.mark.slow
def test_samples_are_kept_with_what_was_random_of_them(host: Host) -> None:
    (reads, same, is_one, asked), _ = changed(host, "kept", cache_bytes=1_000_000)
    assert (reads, same, is_one, asked) == (8, True, True, 8)
    (reads, same, _, _), told = changed(host, "kept", cache_bytes=400)
    assert reads > 8, "what does not fit is read again"
    assert not same
    assert told["changed"]


def test_a_trial_that_nobody_watches_any_more_ends(host: Host) -> None:
    told = host.run(hang_up=True, epochs=200, env={"VITPROF_WATCH_OVERRIDES": "{}"})
    assert told.status == -15
    assert told.complaint.startswith("vitprof: gave up watching (sending data failed: ")
    assert told.complaint.endswith("the trial ends\n")


@pytest.mark.parametrize("rank", ["0", "1"])
def test_every_rank_of_a_distributed_job_gets_them(monkeypatch: pytest.MonkeyPatch, rank: str) -> None:
    """One of them alone would have other batches than the rest."""
    variables = {"VITPROF_WATCH_SOCKET": "x", "VITPROF_WATCH_STEPS": "9", "VITPROF_WATCH_OVERRIDES": "{}"}
    for name, value in {"RANK": rank, **variables}.items():
        monkeypatch.setenv(name, value)
    installed: list[str] = []
    monkeypatch.setattr("vitprof.watch.overrides.install", lambda module: installed.append("overrides"))
    hooks = SimpleNamespace(install=lambda module: installed.append("hooks"))
    monkeypatch.setitem(sys.modules, "vitprof.watch.loader_hooks", hooks)  # needs no PyTorch here
    monkeypatch.setattr("vitprof.watch.loader_hooks", hooks, raising=False)
    monkeypatch.setattr(sys, "meta_path", [])
    on_import.install()
    (found,) = sys.meta_path
    found._then(ModuleType("dataloader"))  # type: ignore[union-attr]
    assert installed == ["hooks", "overrides"]
