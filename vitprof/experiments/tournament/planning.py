"""The settings that a tournament compares."""

from __future__ import annotations

import dataclasses
import itertools
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vitprof.analysis.tournament import trial_key
from vitprof.config import KNOBS, PARTS, RunConfig
from vitprof.config.availability import Machine, availability
from vitprof.config.bounds import MORE_ROUNDS
from vitprof.config.catalog import dataset_info
from vitprof.config.own_script import (
    KEPT_IN_RAM,
    NEED_WORKERS,
    OwnScript,
    OwnSetting,
    own_key_in_words,
    settings_of,
    with_loader,
)
from vitprof.config.parts import STORAGES
from vitprof.config.resolve import resolve
from vitprof.config.strategies import strategy
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.errors import ConfigError
from vitprof.experiments.headroom import why_no_cold
from vitprof.names import tamed_name
from vitprof.store import RunStore
from vitprof.store.tournaments import insert_tournament

LEAST_STEADY_STEPS = 30
"""Least steady steps of a trial whose length is given in seconds: a slow setting would have too few for an interval."""
WhyNot = Callable[[RunConfig], str]
"""Returns why a resolved job cannot be run here, in one line; "" if it can."""


def why_not_here(config: RunConfig, machine: Machine | None = None) -> str:
    """Returns why the resolved job cannot be run on this machine, in one line; "" if it can."""
    info = dataset_info(config.dataset, config.n_images)
    parts = {kind: getattr(config, kind) for kind in PARTS} | {"device": config.device}
    seen = availability(strategy(config.strategy), info, parts, machine=machine)
    if seen.verdict == "bad":
        return seen.reason
    return why_no_cold(config) if config.page_cache == "cold" else ""


@dataclass(frozen=True)
class PlannedTrial:
    """One setting of a tournament."""

    key: str
    """ "strategy/b<batch>/w<workers or ->/<page cache>"."""
    config: RunConfig
    """The resolved job; the job as requested where it cannot be resolved."""
    workers: int | None
    """None for a strategy that takes none."""
    refused: str = ""
    """Why it cannot be run here; "" if it can."""
    setting: OwnSetting | None = None
    """What it changes in a user's own script; None for a job of vitprof's own."""


def plan(spec: TournamentSpec, why_not: WhyNot = lambda config: "") -> tuple[PlannedTrial, ...]:
    """Returns every trial of `spec` once; those that cannot be run have the reason in `refused`.

    A strategy without workers has one trial, whatever numbers of workers are requested. One whose samples are in memory
    has no page cache to warm: "warm" is run as "as-is", and "cold" is refused. Raises `ConfigError` where the baseline
    is no trial of this tournament.
    """
    if spec.script is not None:
        return tuple(_of_own_script(spec.base, spec.script, s) for s in settings_of(spec.script, spec.base.steps))
    trials: dict[str, PlannedTrial] = {}
    wanted = itertools.product(spec.strategies, spec.batch_sizes, spec.workers or (None,), spec.page_caches)
    for name, batch_size, workers, page_cache in wanted:
        trial = _planned(spec.base, name, batch_size, workers, page_cache, why_not)
        trials.setdefault(trial.key, trial)
    if spec.baseline and spec.baseline not in trials:
        few = ", ".join(itertools.islice(trials, 8)) + (", ..." if len(trials) > 8 else "")
        raise ConfigError("baseline", spec.baseline, f"there is no such trial; choose one of {few}")
    return tuple(trials.values())


def create_tournament(store: RunStore, spec: TournamentSpec, name: str = "") -> int:
    """Stores a tournament with status "queued" and returns its id. Raises `ConfigError` as `plan` does."""
    plan(spec)
    return insert_tournament(store, spec, name)


def _planned(
    base: RunConfig, name: str, batch_size: int, workers: int | None, page_cache: str, why_not: WhyNot
) -> PlannedTrial:
    chosen, info = strategy(name), dataset_info(base.dataset, base.n_images)
    parts = chosen.combination(info)
    taken = chosen.knobs(parts, info)
    knobs = {knob: getattr(base, knob) if knob in taken else None for knob in KNOBS}
    if "workers" in taken:
        knobs["workers"] = base.workers if workers is None else workers
    in_memory = not STORAGES[parts.storage].on_disk or parts.location == "ram-disk"
    if in_memory and page_cache == "warm":
        page_cache = "as-is"
    requested = dataclasses.replace(
        base,
        strategy=name,
        batch_size=batch_size,
        page_cache=page_cache,
        least_steps=max(base.least_steps, LEAST_STEADY_STEPS) if base.seconds else base.least_steps,
        **knobs,  # type: ignore[arg-type]
    )
    n_workers = (knobs["workers"] if knobs["workers"] is not None else taken["workers"]) if "workers" in taken else None
    key = trial_key(name, batch_size, n_workers, page_cache)
    try:
        config = resolve(requested)
    except ConfigError as error:
        return PlannedTrial(key, requested, n_workers, f"{error.field} {error.value}: {error.allowed}")
    return PlannedTrial(key, config, n_workers, why_not(config))


def _of_own_script(base: RunConfig, script: OwnScript, setting: OwnSetting) -> PlannedTrial:
    known = {**(script.loader or {}), **setting.changes}
    known["num_workers"] = known.get("workers", known.get("num_workers"))
    if known["num_workers"] == 0:
        known |= dict.fromkeys(NEED_WORKERS)
    config = with_loader(base, {"watched": known})
    name = tamed_name(f"{own_key_in_words(setting.key)}: {shlex.join(script.command)}")
    config = dataclasses.replace(config, name=name, storage=KEPT_IN_RAM if setting.keeps_samples else None)
    return PlannedTrial(setting.key, config, config.workers, setting.refused, setting)


def baseline_of(spec: TournamentSpec, planned: Sequence[PlannedTrial]) -> str:
    """Returns the key of the trial that the others are compared with."""
    return spec.baseline or next((t.key for t in planned if not t.refused), planned[0].key)


def rounds_words(spec: TournamentSpec) -> str:
    """Returns how many rounds there are, and how many there may be: "3 rounds, up to 10 until it is decided"."""
    rounds = f"{spec.repeats} {'round' if spec.repeats == 1 else 'rounds'}"
    return f"{rounds}, up to {spec.repeats + MORE_ROUNDS} until it is decided" if spec.until_decided else rounds
