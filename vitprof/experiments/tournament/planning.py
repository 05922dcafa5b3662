"""The settings that a tournament compares: strategies of vitprof's own, or arguments of a user's own
script.

The first trial of a script is the script as it is. It shows the train loader and what the script writes;
the user then agrees that it is repeated. The other trials change the arguments of that loader as it is
constructed (`vitprof.watch`).
"""

import itertools
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from vitprof import formats
from vitprof.analysis.tournament.entries import trial_key
from vitprof.analysis.tournament.epoch_samples import epoch_samples
from vitprof.config import (
    KNOBS,
    PARTS,
    RunConfig,
    bounds,
    own_script,
)
from vitprof.config.availability import Machine, availability
from vitprof.config.parts import STORAGES
from vitprof.config.resolve import resolve
from vitprof.config.script_decoders import LIBRARIES, TriedDecoder, tried_decoder
from vitprof.config.strategies import strategy
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.config.varied import NEED_WORKERS, Value, setting_words
from vitprof.datasets import catalog
from vitprof.errors import ConfigError, JobError, StoreError
from vitprof.experiments.headroom_runs import why_no_cold
from vitprof.experiments.script_data import plans
from vitprof.jobs import command, script_python, trial_folder
from vitprof.jobs.runners import Runner
from vitprof.masking import MASKED, masked_command
from vitprof.names import tamed_name
from vitprof.program import program
from vitprof.store import RunStore
from vitprof.store.tournaments import insert_tournament, set_spec, tournament
from vitprof.telemetry.visible import visible_gpus

LEAST_STEADY_STEPS = 30
"""The least steady steps of a trial whose length is given in seconds: a slow setting would have too few
for an interval."""
PROOF_S = 3.0
"""Seconds of each run that proves the gain of an advice."""
WhyNot = Callable[[RunConfig], str]
"""Returns why a resolved job cannot be run here, in one line; "" if it can."""


def why_not_here(config: RunConfig, machine: Machine | None = None) -> str:
    """Returns why the resolved job cannot be run on this machine, in one line; "" if it can."""
    info = catalog.dataset_info(config.dataset, config.n_images)
    parts = {kind: getattr(config, kind) for kind in PARTS} | {"device": config.device}
    seen = availability(strategy(config.strategy), info, parts, machine=machine)
    if seen.verdict == "bad":
        return seen.reason
    return why_no_cold(config) if config.page_cache == "cold" else ""


@dataclass(frozen=True)
class PlannedTrial:
    """One setting of a tournament."""

    key: str
    """As of `trial_key`."""
    config: RunConfig
    """The resolved job; the job as requested where it cannot be resolved."""
    workers: int | None
    """None for a strategy that takes none."""
    refused: str = ""
    """Why it cannot be run here; "" if it can."""
    setting: own_script.OwnSetting | None = None
    """What it changes in a user's own script; None for a job of vitprof's own."""


def plan(spec: TournamentSpec, why_not: WhyNot = lambda config: "") -> tuple[PlannedTrial, ...]:
    """Returns every trial of `spec` once; those that cannot be run have the reason in `refused`.

    A strategy without workers has one trial. One whose samples are in memory has no page cache to warm:
    "warm" is run as "as-is", and "cold" is refused. Raises `ConfigError` where the baseline is no trial
    of this tournament.
    """
    script = spec.script
    if script is not None:
        settings = own_script.settings_of(script, spec.base.steps)
        return tuple(_of_own_script(spec.base, script, setting) for setting in settings)
    if spec.jobs:
        return tuple(_of_job(job, spec.jobs, why_not) for job in spec.jobs)
    trials: dict[str, PlannedTrial] = {}
    for setting in _settings(spec):
        trial = _planned(spec.base, setting, why_not)
        trials.setdefault(trial.key, trial)
    _check_taken(spec)
    if spec.baseline and spec.baseline not in trials:
        names = list(itertools.islice(trials, 8))
        if len(trials) > len(names):
            names.append("...")
        choose = f"there is no such trial; choose one of {', '.join(names)}"
        raise ConfigError("baseline", spec.baseline, choose)
    return tuple(trials.values())


def create_tournament(store: RunStore, spec: TournamentSpec, name: str = "") -> int:
    """Stores a tournament with status "queued" and returns its id. Raises `ConfigError` as `plan` does."""
    plan(spec)
    return insert_tournament(store, spec, name)


@dataclass(frozen=True)
class Setting:
    """A combination of what a tournament of vitprof's own jobs varies."""

    strategy: str
    batch_size: int
    workers: int | None
    """None: the strategy's own number."""
    page_cache: str
    others: Mapping[str, Value]
    """Name in `OTHERS_OF_A_JOB` -> value."""


def _settings(spec: TournamentSpec) -> Iterator[Setting]:
    """Yields every combination of a tournament's strategies and settings."""
    names = [name for name, _ in spec.vary]
    lists = (spec.strategies, spec.batch_sizes, spec.workers or (None,), spec.page_caches)
    values = [values for _, values in spec.vary]
    for strategy_name, batch_size, workers, page_cache in itertools.product(*lists):
        for chosen in itertools.product(*values):
            others = dict(zip(names, chosen, strict=True))
            yield Setting(strategy_name, batch_size, workers, page_cache, others)


def _check_taken(spec: TournamentSpec) -> None:
    """Raises `ConfigError` for a setting that is varied and that none of the strategies takes."""
    info = catalog.dataset_info(spec.base.dataset, spec.base.n_images)
    accepted: set[str] = set()
    for name in spec.strategies:
        chosen = strategy(name)
        accepted.update(chosen.knobs(chosen.combination(info), info))
    for name, _ in spec.vary:
        if name not in accepted:
            why = f"no strategy of this tournament takes it: {', '.join(spec.strategies)}"
            raise ConfigError("vary", name, why)


def _planned(base: RunConfig, setting: Setting, why_not: WhyNot) -> PlannedTrial:
    chosen = strategy(setting.strategy)
    info = catalog.dataset_info(base.dataset, base.n_images)
    parts = chosen.combination(info)
    accepted = chosen.knobs(parts, info)
    knobs = {knob: getattr(base, knob) if knob in accepted else None for knob in KNOBS}
    n_workers = None
    if "workers" in accepted:
        workers = base.workers if setting.workers is None else setting.workers
        knobs["workers"] = workers
        # for the key, the number that the strategy takes by itself
        n_workers = accepted["workers"] if workers is None else workers
    others = {name: value for name, value in setting.others.items() if name in accepted}
    if n_workers == 0:
        # so all of their values are one trial
        others = {name: value for name, value in others.items() if name not in NEED_WORKERS}
    knobs |= others
    page_cache = setting.page_cache
    in_memory = not STORAGES[parts.storage].on_disk or parts.location == "ram-disk"
    if in_memory and page_cache == "warm":
        page_cache = "as-is"
    least_steps = base.least_steps
    if base.seconds:
        least_steps = max(least_steps, LEAST_STEADY_STEPS)
    changes = {
        "strategy": setting.strategy,
        "batch_size": setting.batch_size,
        "page_cache": page_cache,
        "least_steps": least_steps,
    }
    requested = replace(base, **changes, **knobs)  # type: ignore[arg-type]
    more = [setting_words(name, value) for name, value in others.items()]
    key = trial_key(setting.strategy, setting.batch_size, n_workers, page_cache, more)
    try:
        config = resolve(requested)
    except ConfigError as error:
        refused = f"{error.field} {error.value}: {error.allowed}"
        return PlannedTrial(key, requested, n_workers, refused)
    return PlannedTrial(key, config, n_workers, why_not(config))


def _of_job(job: RunConfig, jobs: Sequence[RunConfig], why_not: WhyNot) -> PlannedTrial:
    """Returns a whole job as a trial; its key has the settings that differ from those of the first job."""
    config = replace(resolve(job), name="")
    usual = resolve(jobs[0]).to_dict()
    first_of_strategy = next(other for other in jobs if other.strategy == job.strategy)
    of_strategy = resolve(first_of_strategy).to_dict()
    # these belong to the strategy
    usual |= {name: of_strategy[name] for name in (*PARTS, *KNOBS)}
    in_key = ("name", "strategy", "batch_size", "workers", "page_cache")
    more = []
    for name, value in config.to_dict().items():
        if name in in_key or value == usual[name]:
            continue
        more.append(setting_words(name, value))
    key = trial_key(config.strategy, config.batch_size, config.workers, config.page_cache, more)
    return PlannedTrial(key, config, config.workers, why_not(config))


def in_turns(*configs: RunConfig, of_run: int | None = None) -> TournamentSpec:
    """Returns the tournament of whole jobs, of which the first is the baseline.

    `of_run`: the run whose advice the others are.
    """
    budget: dict[str, Any] = {
        "epochs": None,
        "steps": None,
        "seconds": PROOF_S,
        "least_steps": LEAST_STEADY_STEPS,
    }
    short = [replace(resolve(job), name="", evaluate=False, **budget) for job in configs]
    jobs = tuple(dict.fromkeys(short))
    strategies = tuple(dict.fromkeys(job.strategy for job in jobs))
    sizes = tuple(dict.fromkeys(job.batch_size for job in jobs))
    return TournamentSpec(jobs[0], strategies, sizes, early_stop=False, jobs=jobs, of_run=of_run)


def _of_own_script(
    base: RunConfig, script: own_script.OwnScript, setting: own_script.OwnSetting
) -> PlannedTrial:
    loader = {**(script.loader or {}), **setting.changes}
    # a change is named "workers", PyTorch's argument "num_workers"
    loader["num_workers"] = loader.get("workers", loader.get("num_workers"))
    if loader["num_workers"] == 0:
        loader |= dict.fromkeys(NEED_WORKERS)
    config = own_script.with_loader(base, {"watched": loader})
    name = tamed_name(f"{own_script.own_key_in_words(setting.key)}: {shlex.join(script.command)}")
    storage = own_script.KEPT_IN_RAM if setting.keeps_samples else None
    config = replace(config, name=name, storage=storage)
    return PlannedTrial(setting.key, config, config.workers, setting.refused, setting)


def baseline_of(spec: TournamentSpec, planned: Sequence[PlannedTrial]) -> str:
    """Returns the key of the trial that the others are compared with."""
    return spec.baseline or next((t.key for t in planned if not t.refused), planned[0].key)


def rounds_words(spec: TournamentSpec) -> str:
    """Returns how many rounds there are, and how many there may be: "3 rounds, up to 10 until it is decided"."""
    rounds = formats.count(spec.repeats, "round")
    if not spec.until_decided:
        return rounds
    return f"{rounds}, up to {spec.repeats + bounds.MORE_ROUNDS} until it is decided"


# a user's own script

CACHE_SHARE = 0.5
"""Share of the free memory for samples that are kept; the rest is for additional workers and batches."""
MOST_WRITES = 1000
"""The most names of written files that the store keeps."""
MOST_NAMED = 4
"""The most names of files, or of links to them, in a line."""
_commands: dict[tuple[str, ...], tuple[str, ...]] = {}
"""A command as it is stored, without its secrets -> the command that was given to this program."""


def keep_command(command: Sequence[str]) -> tuple[str, ...]:
    """Returns a command as it may be stored, without its secrets; this program can then start it."""
    stored = masked_command(command)
    _commands[stored] = tuple(command)
    return stored


def command_of(script: own_script.OwnScript) -> tuple[str, ...]:
    """Returns the command to start. Raises `ConfigError` where its secrets were given to another program."""
    if script.command not in _commands and any(MASKED in part for part in script.command):
        why = "its secrets are not stored; give the whole command again after --"
        raise ConfigError("command", shlex.join(script.command), why)
    return _commands.get(script.command, script.command)


def start_trial(
    spec: TournamentSpec, planned: PlannedTrial, number: int, changes: list[str] | None = None
) -> Callable[[Path], Runner]:
    """Returns a function that starts a trial of the script, given the file for what the script prints.

    `number` counts the starts of the script, from 1. `changes`: the list to which the files are added
    that the trial writes or deletes; None: they are not looked for.
    """
    script = _own(spec)
    setting = planned.setting or own_script.OwnSetting(own_script.UNCHANGED)
    loader = script.loader or {}
    stored = plans.stored_as(script, setting)
    cache_bytes = None
    if setting.keeps_samples:
        cache_bytes = int(psutil.virtual_memory().available * CACHE_SHARE)
    trial = command.TrialCommand(
        command=command_of(script),
        directory=script.directory,
        number=number,
        steps=spec.base.steps or 1,
        arguments=setting.arguments,
        place=loader.get("made_place", ""),
        where=loader.get("made_where", ""),
        nth=None if loader.get("made_alone", True) else loader.get("made_nth"),
        cache_bytes=cache_bytes,
        packs=setting.packs,
        as_uint8=setting.as_uint8,
        across_epochs=setting.across_epochs,
        sharing_strategy=setting.sharing_strategy,
        worker_threads=setting.worker_threads,
        decoder=_decoder_of(spec, script, setting),
        stored=stored,
        remarks=setting.remarks,
        lists_changes=changes is not None,
        isolation=script.isolation,
        layered=script.layered,
        lasting=tuple(os.path.join(script.directory, path) for path in script.lasting_files),
    )

    def start(log: Path) -> Runner:
        if stored is not None and stored["cold"]:
            plans.forget(Path(stored["folder"]))
        return command.TrialRunner(trial, log, changes)

    return start


def _decoder_of(
    spec: TournamentSpec, script: own_script.OwnScript, setting: own_script.OwnSetting
) -> TriedDecoder | None:
    if setting.decoder is None:
        return None
    loader = script.loader or {}
    return tried_decoder(
        setting.decoder,
        steps=spec.base.steps or 1,
        # Where the script's batches are its own, their size is not known.
        batch_size=int(setting.changes.get("batch_size") or loader.get("batch_size") or 1),
        workers=int(setting.changes.get("workers", loader.get("num_workers")) or 0),
        allows_other_pixels=script.allows_other_pixels,
    )


def check_decoders(
    script_command: Sequence[str], vary: Sequence[tuple[str, tuple[Value, ...]]]
) -> None:
    """Raises `ConfigError` for a decoder that the script's Python does not have, where its command says
    which Python that is.
    """
    decoders = [str(value) for name, values in vary if name == "decoder" for value in values]
    tried = {name: LIBRARIES[name] for name in decoders if name in LIBRARIES}
    modules = [library.module for library in tried.values()]
    python = script_python.python_of(script_command)
    if not modules or not python:
        return
    missing = script_python.missing_modules(python, modules)
    for name, library in tried.items():
        if library.module in missing:
            todo = (
                f"{shlex.join([*python, '-m', 'pip', 'install', library.package])}, or leave it out"
            )
            why = f"the script's Python has no module {library.module}: {todo}"
            raise ConfigError("vary", f"decoder={name}", why)


def learn(store: RunStore, tournament_id: int, run_id: int, changes: Sequence[str]) -> None:
    """Stores what the first trial showed: the loader, and the files it wrote and deleted.

    Raises `StoreError`.
    """
    spec = tournament(store, tournament_id).spec
    run = store.run(run_id)
    environment = run.environment
    script = _own(spec)
    lasting = set()
    for path in changes:
        # temporary files elsewhere, which the script removed again, do not matter to the user
        is_remark = path.endswith(")")
        if is_remark or not os.path.isabs(path) or os.path.lexists(path):
            lasting.add(path)
    # the line that there are more comes last, so that it is kept
    files = sorted(lasting, key=lambda path: (path == trial_folder.MORE, path))[-MOST_WRITES:]
    loader = dict(environment.get("watched") or {})
    loader["iterators_at_once"] = bool(run.facts.get("iterators_at_once"))
    steps = store.steps(run_id, names=("epoch", "samples"))
    loader["epoch_samples"] = list(epoch_samples(steps).ended)
    if "pin_memory" in dict(script.vary):
        # pinning is no setting to try where no GPU can be copied to
        loader["may_pin"] = environment.get("device") != "cpu" or bool(visible_gpus())
    known = replace(script, loader=loader, writes=tuple(files))
    as_watched = own_script.with_loader(spec.base, environment)
    base = replace(
        spec.base,
        dataset=as_watched.dataset,
        device=as_watched.device,
        batch_size=as_watched.batch_size,
    )
    set_spec(store, tournament_id, replace(spec, script=known, base=base))


def agree(store: RunStore, tournament_id: int) -> None:
    """Records that the user agrees that the script is repeated. Raises `StoreError`."""
    spec = tournament(store, tournament_id).spec
    set_spec(store, tournament_id, replace(spec, script=replace(_own(spec), agreed=True)))


def begin_words(script: own_script.OwnScript, steps: int | None) -> str:
    """Returns what each trial runs, that it trains, and what becomes of what it writes, in a line."""
    runs = f"each trial runs {shlex.join(script.command)} in {script.directory} and trains for up to {steps} steps"
    places = " or in ".join(["there", *script.layered])
    discarded = "discarded when the trial ends; files written elsewhere stay"
    if script.isolation == trial_folder.LAYER:
        writes = f"files written {places} are {discarded}"
    elif script.isolation == trial_folder.COPY:
        writes = f"it works in a copy of that folder, which is {discarded}"
    else:
        writes = "it writes what it always writes, such as checkpoints"
    ways = [f"through {words}" for words in script.links_out]
    ways += [f"at {words}" for words in script.open_places]
    if ways:
        writes += f", such as {_some(ways)}"
    return f"{runs}; {writes}"


def check_links(script: own_script.OwnScript) -> None:
    """Raises `JobError` where a link leads out of the script's folder that did not, or led elsewhere, when
    the user agreed to the tournament.
    """
    if not script.isolation:
        return
    found = trial_folder.isolation_of(script.directory, command_of(script))
    new = [link for link in found.links_out if link not in script.links_out]
    if new:
        what = f"a link in {script.directory} leads out of it since the tournament began: {new[0]}"
        raise JobError(f"{what}; begin a new tournament, which asks before it writes there")


def written_words(script: own_script.OwnScript) -> str:
    """Returns what the first trial wrote, in a line."""
    if not script.writes:
        return f"the first trial wrote no file under {script.directory}"
    names = _some(script.writes)
    n = formats.count(len(script.writes), "file")
    gone = "" if script.lasting else ", all of them gone with it"
    return f"the first trial in {script.directory} wrote or deleted {n}{gone}: {names}"


def _some(names: Sequence[str]) -> str:
    """Returns the first names of a list, and how many more there are."""
    words = ", ".join(names[:MOST_NAMED])
    n_unnamed = len(names) - MOST_NAMED
    return f"{words} and {n_unnamed} more" if n_unnamed > 0 else words


def resume_command(tournament_id: int) -> str:
    """Returns the command that resumes a tournament."""
    return f"{program()} tournament resume {tournament_id}"


def nothing_to_compare(planned: Sequence[PlannedTrial]) -> str:
    """Returns why no setting can run but the script as it is."""
    as_it_is, *others = planned
    remarks: list[str] = []
    if as_it_is.setting:
        remarks += as_it_is.setting.remarks
    remarks += [trial.refused for trial in others]
    why = "; ".join(dict.fromkeys(remarks)) or "the requested settings are the script's own"
    return f"nothing to compare the script with: {why}"


def _own(spec: TournamentSpec) -> own_script.OwnScript:
    if spec.script is None:
        raise StoreError("this tournament does not run a script of your own")
    return spec.script
