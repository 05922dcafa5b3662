"""A user's own training script: its config, in the fields of any other run, and the settings of a
tournament on it.
"""

from __future__ import annotations

import itertools
import math
import os
import shlex
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from vitprof.config import RunConfig, bounds
from vitprof.config.parts import DEPRECATED_DECODERS
from vitprof.config.script_decoders import AS_IS, DECODE_BY, LIBRARIES
from vitprof.config.varied import (
    OF_A_JOB,
    OF_A_SCRIPT,
    OF_A_SCRIPT_NEED_WORKERS,
    STORAGE,
    Value,
    check_varied,
    written,
)
from vitprof.errors import ConfigError
from vitprof.names import tamed_name
from vitprof.program import from_anywhere, program

OWN_SCRIPT = "own-script"
"""Strategy and model of such a run, neither of which vitprof chose."""
UNKNOWN_DATA = "own-data"
"""Data set of such a run until its Dataset is known."""
ARGUMENTS = {
    "workers": "num_workers",
    "prefetch_factor": "prefetch_factor",
    "pin_memory": "pin_memory",
    "persistent_workers": "persistent_workers",
    "start_method": "multiprocessing_context",
    "batch_size": "batch_size",
    "in_order": "in_order",
}
"""Setting -> PyTorch's name for it as an argument of DataLoader."""
CALLS: dict[str, tuple[str, dict[str, str]]] = {
    "transformers": (
        "TrainingArguments",
        {
            "num_workers": "dataloader_num_workers",
            "prefetch_factor": "dataloader_prefetch_factor",
            "pin_memory": "dataloader_pin_memory",
            "persistent_workers": "dataloader_persistent_workers",
            "batch_size": "per_device_train_batch_size",
        },
    ),
    "ultralytics": ("YOLO(...).train", {"num_workers": "workers", "batch_size": "batch"}),
    "fastai": (
        "DataLoaders",
        {"num_workers": "num_workers", "pin_memory": "pin_memory", "batch_size": "bs"},
    ),
    "timm": (
        "create_loader",
        {name: name for name in ("num_workers", "pin_memory", "persistent_workers", "batch_size")},
    ),
    "skorch": ("NeuralNet", {name: f"iterator_train__{name}" for name in ARGUMENTS.values()}),
}
"""Framework or package that makes the DataLoader -> the call that takes its arguments, and their names there."""


def is_own_script(config: RunConfig) -> bool:
    """Returns whether the run is a user's own script, none of whose settings vitprof chose."""
    return config.strategy == OWN_SCRIPT


def own_config(name: str, **more: Any) -> RunConfig:
    """Returns the config of a script of which only the name is known yet; `more` sets other fields."""
    known: dict[str, Any] = {
        "strategy": OWN_SCRIPT,
        "model": OWN_SCRIPT,
        "dataset": UNKNOWN_DATA,
        "loader": "dataloader",
        "batch_size": 1,
        "evaluate": False,
    }
    return RunConfig(name=tamed_name(name), **known, **more)


def with_loader(config: RunConfig, environment: Mapping[str, Any]) -> RunConfig:
    """Returns `config` with the device and the train loader ("watched") that the script's process
    reported, but for values that vitprof would not use.
    """
    loader = environment.get("watched") or {}
    changes: dict[str, Any] = {}
    for setting in OF_A_JOB:
        changes[setting] = loader.get(ARGUMENTS[setting])
    changes["start_method"] = loader.get("start_method")
    changes["dataset"] = loader.get("dataset")
    changes["device"] = environment.get("device")
    for setting, value in changes.items():
        if value is not None:
            # what is out of bounds for a job of vitprof's own may well work in a script
            with suppress(ConfigError):
                config = replace(config, **{setting: value})
    return config


UNCHANGED = f"{OWN_SCRIPT}/unchanged"
"""Key of the trial of the unchanged script: the first one, with which the others are compared."""
UNCHANGED_IN_WORDS = "the unchanged script"
KEEP_SAMPLES = "keep the Dataset's samples in memory after their first reading"
PACK = (
    "pack each batch into one tensor for each dtype, in collate_fn (docs/own-script-tournament.md)"
)
SHARE_BY = 'call torch.multiprocessing.set_sharing_strategy("{}") at the top of the script'
SET_THREADS = (
    "call torch.set_num_threads({0}) and, if it is used, cv2.setNumThreads({0}) in worker_init_fn"
)
AS_UINT8 = (
    "hand floats of whole numbers / 255 over as uint8, and divide in the loop "
    "(docs/own-script-tournament.md)"
)
BEGIN_EARLY = "begin the next epoch's iterator before this one ends (docs/own-script-tournament.md)"
OUT_OF_ORDER = "in_order=off"
"""Part of the key of a setting that gives batches in another order than the sampler's."""
ACROSS_EPOCHS = "across_epochs=on"
"""Part of the key of a setting that begins each epoch before the last one has ended."""
WORDS = {
    "workers=1": "1 worker",
    "workers": "{} workers",
    "prefetch_factor": "prefetch {}",
    "batch_size": "batch {}",
    "pin_memory=on": "pinned",
    "pin_memory=off": "not pinned",
    "persistent_workers=on": "persistent workers",
    "persistent_workers=off": "workers started each epoch",
    "decode_cache=ram": "samples kept in RAM",
    "pack=on": "packed",
    "uint8=on": "as uint8",
    "sharing_strategy": "shared by {}",
    "worker_threads=1": "1 thread in each worker",
    "worker_threads": "{} threads in each worker",
    "in_order=on": "in order",
    OUT_OF_ORDER: "batches as they are made",
    ACROSS_EPOCHS: "epochs begun early",
    "decoder": "JPEG by {}",
    STORAGE: "{}",
}
"""Part of a trial's key, or its name alone -> words for it and its value."""


OTHER_ORDER = {
    OUT_OF_ORDER: "batches then come in another order than the sampler's",
    ACROSS_EPOCHS: (
        "where anything draws random numbers between two epochs, such as validation, samples then come in another order"
    ),
}
"""Part of a key -> what the setting does to the order of samples, and with it to the losses."""


def is_own_key(key: str) -> bool:
    """Returns whether a trial's key is that of a setting of a user's own script."""
    return key.startswith(f"{OWN_SCRIPT}/")


def is_out_of_order(key: str) -> bool:
    """Returns whether a trial's key is that of a setting that changes the order of a script's batches."""
    return is_own_key(key) and OUT_OF_ORDER in key.split("/")


def begins_early(key: str) -> bool:
    """Returns whether a trial's key is that of a setting that begins each epoch before the last one ends."""
    return is_own_key(key) and ACROSS_EPOCHS in key.split("/")


def own_key_in_words(key: str) -> str:
    """Returns "own-script/workers=4/pin_memory=on" as "4 workers, pinned"; any other text unchanged."""
    if key == UNCHANGED:
        return UNCHANGED_IN_WORDS
    words = []
    for part in key.split("/")[1:]:
        name, separator, value = part.partition("=")
        if not separator:
            return key
        template = WORDS.get(part, WORDS.get(name, "{}"))
        words.append(template.format(value))
    return ", ".join(words) or key


def is_dataloader(loader: Mapping[str, Any]) -> bool:
    """Returns whether the facts of a loader are those of a DataLoader, as far as they are known."""
    return not loader or "prefetch_factor" in loader


def to_compare(
    environment: Mapping[str, Any], workers: int, command: str, advised: Collection[int] = ()
) -> str:
    """Returns the tournament to type for a watched run; "" where its loader takes no arguments.

    `workers`: the run's own number. `command`: that of the script. `advised`: the numbers of workers
    that its verdict advises.
    """
    if not is_dataloader(environment.get("watched") or {}):
        return ""
    values = ",".join(map(str, workers_to_compare(environment, workers, advised)))
    return f"{from_anywhere()} tournament --vary workers={values} -- {command}"


def workers_to_compare(
    environment: Mapping[str, Any], workers: int, advised: Collection[int] = ()
) -> tuple[int, ...]:
    """Returns the numbers of workers that are worth a tournament of a watched run, in order; the
    arguments are as in `to_compare`."""
    cores = int(environment.get("job_cpu_count") or environment.get("cpu_count") or 2)
    numbers = {0, 2 * workers, cores // 2, cores, *advised}
    # the script as it is, which has its own number, runs in any case
    return tuple(sorted(numbers - {workers}))


def to_prove(arguments: Mapping[str, Any], command: str) -> str:
    """Returns the tournament to type that runs a script with these arguments of its DataLoader and
    unchanged; "" where one of them is none that a tournament varies."""
    settings = {argument: name for name, argument in ARGUMENTS.items()}
    if not arguments or not set(arguments) <= set(settings):
        return ""
    varied = [f"--vary {settings[name]}={written(value)}" for name, value in arguments.items()]
    return f"{from_anywhere()} tournament {' '.join(varied)} -- {command}"


def argument_words(loader: Mapping[str, Any], name: str, value: Any) -> str:
    """Returns "num_workers=4 in the DataLoader", as the script's framework has it."""
    call, names = _call(loader)
    if name not in names:
        call = "DataLoader"
        names = {name: name}
    where = "the DataLoader" if call == "DataLoader" else call
    return f"{names[name]}={value!r} in {where}"


def _call(loader: Mapping[str, Any]) -> tuple[str, Mapping[str, str]]:
    """Returns the call that makes a loader, and its names for PyTorch's arguments."""
    own_names = {name: name for name in (*WITHOUT_WORKERS, *ARGUMENTS.values())}
    by_pytorch = ("DataLoader", own_names)
    if loader.get("made_by_script"):
        return by_pytorch
    # In this order: a framework may have the loader made by the code of another package.
    makers = (str(loader.get("framework")), str(loader.get("made_by_package")))
    return next((CALLS[maker] for maker in makers if maker in CALLS), by_pytorch)


def code_line(script: OwnScript, key: str) -> str:
    """Returns a setting as one line of code, `DataLoader(..., num_workers=4)`; "" for the script as it is.

    An argument that the script gives but the setting does not allow gets the value that means the same as
    no argument.
    """
    setting = next((s for s in settings_of(script) if s.key == key), None)
    if setting is None or not setting.changes:
        return ""
    form = setting.changes.get(STORAGE)
    if form:
        return f"{program()} convert --to {form} --out DIRECTORY -- {shlex.join(script.command)}"
    loader = script.loader or {}
    changed = changed_arguments(setting, loader)
    given_names = str(loader.get("made_given") or "").split()
    call, names = _call(loader)
    arguments = []
    for name, value in setting.arguments.items():
        if name in names and (name in changed or name in given_names):
            arguments.append(f"{names[name]}={value!r}")
    line = ""
    if arguments:
        line = f"{call}(..., {', '.join(arguments)})"
    missing = sorted(changed - set(names))
    if missing:
        line += f"  # {call} does not take {' and '.join(missing)}"
    elif "lightning" in str(loader.get("framework")):
        line += "  # in the LightningDataModule, or wherever train_dataloader() is"
    more = besides_arguments(setting)
    if not more:
        return line
    words = " and ".join(more)
    return f"{line}  # and {words}" if line else f"# {words}"


def changed_arguments(setting: OwnSetting, loader: Mapping[str, Any]) -> set[str]:
    """Returns PyTorch's names of the arguments that a script has to give for a setting.

    Batches come in order without `in_order=True`, which an older PyTorch does not take.
    """
    changed = {ARGUMENTS[name] for name in setting.changes if name in ARGUMENTS}
    if setting.changes.get("in_order") is True and _own_value("in_order", loader):
        changed.discard("in_order")
    return changed


def patch_command(script: OwnScript, key: str, tournament_id: int) -> str:
    """Returns the command that prints a setting as a patch of the script; "" where its DataLoader is
    not made by the script, or the setting is no argument of one.
    """
    made_by_script = (script.loader or {}).get("made_by_script") is True
    if not made_by_script or not code_line(script, key).startswith("DataLoader("):
        return ""
    return f"{program()} patch {tournament_id}"


def besides_arguments(setting: OwnSetting) -> list[str]:
    """Returns what to do in a script for a setting, besides the arguments of its DataLoader."""
    to_do = []
    if setting.keeps_samples:
        to_do.append(KEEP_SAMPLES)
    if setting.packs:
        to_do.append(PACK)
    if setting.as_uint8:
        to_do.append(AS_UINT8)
    if setting.across_epochs:
        to_do.append(BEGIN_EARLY)
    if setting.sharing_strategy is not None:
        to_do.append(SHARE_BY.format(setting.sharing_strategy))
    if setting.worker_threads is not None:
        to_do.append(SET_THREADS.format(setting.worker_threads))
    if setting.decoder is not None:
        to_do.append(DECODE_BY.format(LIBRARIES[setting.decoder].code))
    return to_do


KEPT_IN_RAM = "memory"
"""`RunConfig.storage` of a run whose samples are kept in memory after they were first read."""
WITHOUT_WORKERS: dict[str, Any] = {
    "prefetch_factor": None,
    "multiprocessing_context": None,
    "persistent_workers": False,
    "timeout": 0,
}
"""Arguments that PyTorch takes with workers only, with the values that they must have without workers."""
DEFAULT_PREFETCH = 2
"""PyTorch's default of prefetch_factor with workers."""


@dataclass(frozen=True)
class OwnScript:
    """A script, the arguments of its train DataLoader to vary, and what its first trial showed.

    Raises `ConfigError`.
    """

    command: tuple[str, ...]
    """The command to run, as a list of arguments."""
    directory: str
    """Its working directory."""
    vary: tuple[tuple[str, tuple[Value, ...]], ...]
    """Names in `OF_A_SCRIPT` with their values; every combination is a setting."""
    loader: Mapping[str, Any] | None = None
    """The train loader of the unchanged script, as the first trial reported it
    (`vitprof.watch.loader_facts.loader_facts`); None until then."""
    writes: tuple[str, ...] = ()
    """Files that the first trial wrote or deleted: relative to the working directory, or outside it whole
    paths."""
    agreed: bool = False
    """Whether a person agreed, after the first trial, to repeat the script."""
    isolation: str = ""
    """How its trials leave the working directory as it is: "layer" or "copy"; "" where they don't."""
    layered: tuple[str, ...] = ()
    """Other folders that a layer covers."""
    links_out: tuple[str, ...] = ()
    """Links by which trials write to files that stay, in words."""
    open_places: tuple[str, ...] = ()
    """What the command names and nothing covers, in words."""
    conversion: Mapping[str, Any] | None = None
    """Samples that are stored in other forms, in each of which the script is run (`experiments.script_data.plans`)."""
    allows_other_order: bool = False
    """Whether the user asked for settings that change the order of batches, and with it the losses."""
    allows_other_pixels: bool = False
    """Whether the user asked for decoders whose pixels differ from those that the script has now."""

    def __post_init__(self) -> None:
        is_command = bool(self.command) and all(isinstance(part, str) for part in self.command)
        _check("command", is_command, self.command)
        _check("directory", isinstance(self.directory, str) and self.directory, self.directory)
        # JSON has lists only
        object.__setattr__(self, "command", tuple(self.command))
        object.__setattr__(self, "writes", tuple(self.writes))
        for name in ("layered", "links_out", "open_places"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "vary", tuple((name, tuple(values)) for name, values in self.vary))
        can_be_varied: tuple[str, ...] = OF_A_SCRIPT
        if self.conversion is not None:
            can_be_varied += (STORAGE,)
        check_varied(self.vary, can_be_varied)
        for name in ("allows_other_order", "allows_other_pixels"):
            value = getattr(self, name)
            _check(name, isinstance(value, bool), value)
        self._check_order()
        if not self.vary:
            raise ConfigError("vary", "", "give at least one, such as workers=0,2,4")
        n = math.prod(len(values) for _, values in self.vary)
        if n > bounds.MOST_TRIALS:
            raise ConfigError(
                "vary", n, f"that makes {n} settings; {bounds.MOST_TRIALS} are allowed"
            )

    def _check_order(self) -> None:
        """Raises `ConfigError` for a setting that changes the order of batches, unless that is allowed."""
        if self.allows_other_order:
            return
        for name, values in self.vary:
            for value in values:
                setting = f"{name}={written(value)}"
                why = OTHER_ORDER.get(setting)
                if why is not None:
                    ask = "so the losses may differ: add --allow-other-order, or leave it out"
                    raise ConfigError("vary", setting, f"{why}, {ask}")

    @property
    def lasting(self) -> tuple[str, ...]:
        """Returns those of `writes` that stay when a trial has ended."""
        return tuple(path for path in self.writes if not self.isolation or os.path.isabs(path))

    @property
    def lasting_files(self) -> tuple[str, ...]:
        """Returns those of `lasting` that were written, without remarks such as "(deleted)"."""
        return tuple(path for path in self.lasting if not path.endswith(")"))


@dataclass(frozen=True)
class OwnSetting:
    """One setting of the script's train loader."""

    key: str
    """ "own-script/workers=4/pin_memory=on", or `UNCHANGED`."""
    changes: Mapping[str, Value] = field(default_factory=dict)
    """Name in `OF_A_SCRIPT` -> value; empty for the script as it is."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The same as arguments of the DataLoader, with the others that PyTorch then requires to change."""
    remarks: tuple[str, ...] = ()
    """What was left out or added because some arguments do not go together."""
    refused: str = ""
    """Why it cannot be tried, in one line; "" if it can."""

    @property
    def keeps_samples(self) -> bool:
        """Returns whether the Dataset's samples are kept in memory after they were first read."""
        return self.changes.get("decode_cache") == "ram"

    @property
    def packs(self) -> bool:
        """Returns whether batches cross from workers packed."""
        return self.changes.get("pack") == "on"

    @property
    def as_uint8(self) -> bool:
        """Returns whether floats that are whole numbers / 255 cross from workers as uint8."""
        return self.changes.get("uint8") == "on"

    @property
    def across_epochs(self) -> bool:
        """Returns whether each epoch begins before the last one has ended."""
        return self.changes.get("across_epochs") == "on"

    @property
    def sharing_strategy(self) -> str | None:
        """Returns by which strategy of PyTorch's tensors cross from workers; None for the script's own."""
        strategy = self.changes.get("sharing_strategy")
        return None if strategy is None else str(strategy)

    @property
    def worker_threads(self) -> int | None:
        """Returns the threads of an operation in a worker; None for the script's own number."""
        threads = self.changes.get("worker_threads")
        return None if threads is None else int(threads)

    @property
    def decoder(self) -> str | None:
        """Returns by which library JPEG files are decoded; None for the script's own."""
        decoder = self.changes.get("decoder")
        return None if decoder is None else str(decoder)


def settings_of(script: OwnScript, steps: int | None = None) -> tuple[OwnSetting, ...]:
    """Returns the settings of a script, each once: first the script as it is, then every combination of
    what is varied.

    A combination that PyTorch does not allow is changed to one that it does, and its remarks say so:
    without workers there is nothing to prefetch, to keep alive or to start. Once the script's own loader
    is known, a combination equal to it counts as the script as it is. `steps`: training steps in a trial.
    """
    settings = {UNCHANGED: OwnSetting(UNCHANGED)}
    names = [name for name, _ in script.vary]
    for values in itertools.product(*(values for _, values in script.vary)):
        new = _setting(dict(zip(names, values, strict=True)), script.loader, steps)
        known = settings.setdefault(new.key, new)
        # two combinations may become the same setting, each with a remark of its own
        remarks = tuple(dict.fromkeys((*known.remarks, *new.remarks)))
        settings[new.key] = replace(known, remarks=remarks)
    return tuple(settings.values())


def _setting(
    requested: dict[str, Value], loader: Mapping[str, Any] | None, steps: int | None
) -> OwnSetting:
    workers = requested.get("workers", (loader or {}).get("num_workers"))
    changes = {name: value for name, value in requested.items() if value not in ("off", AS_IS)}
    remarks = []
    if workers == 0:
        useless = _take_useless(changes)
        if useless:
            have = "has" if len(useless) == 1 else "have"
            remarks.append(f"without workers {' and '.join(useless)} {have} no meaning: left out")
    elif changes.get("decode_cache") == "ram" and changes.get("persistent_workers") is not True:
        changes["persistent_workers"] = True
        remarks.append(
            "decode_cache=ram: persistent_workers is on, as samples are kept by the workers"
        )
    if changes.get("in_order") is False and _own_value("in_order", loader or {}):
        remarks.append(
            "in_order=off gives batches as they are made, not in the sampler's order: "
            "the losses may differ"
        )
    if (loader or {}).get("may_pin") is False and changes.pop("pin_memory", None) is not None:
        remarks.append("without a GPU pin_memory has no effect: left out")
    if changes.get("decode_cache") == "ram":
        remarks.append(
            "decode_cache=ram keeps each sample as it was first read: random transforms are frozen"
        )
    if changes.get("decoder") in DEPRECATED_DECODERS:
        remarks.append(
            f"decoder={changes['decoder']} is {DEPRECATED_DECODERS[str(changes['decoder'])]}"
        )
    changes = {name: changes[name] for name in (*OF_A_SCRIPT, STORAGE) if name in changes}
    is_own = loader is not None and all(
        _own_value(name, loader) == value for name, value in changes.items()
    )
    if is_own or not changes:
        return OwnSetting(UNCHANGED, remarks=tuple(remarks))
    arguments = {ARGUMENTS[name]: value for name, value in changes.items() if name in ARGUMENTS}
    if workers == 0:
        arguments |= WITHOUT_WORKERS
    key = "/".join([OWN_SCRIPT, *(f"{name}={written(value)}" for name, value in changes.items())])
    refused = _why_not(changes, loader, steps) if loader is not None else ""
    return OwnSetting(key, changes, arguments, tuple(remarks), refused)


def _take_useless(changes: dict[str, Value]) -> list[str]:
    """Removes what has no meaning without workers; returns the names of what would have changed something
    with them.
    """
    useless = []
    for name in OF_A_SCRIPT_NEED_WORKERS:
        value = changes.pop(name, None)
        # What PyTorch does unasked: batches come in order, and workers are not kept.
        is_usual = value is True if name == "in_order" else value is False
        if value is not None and not is_usual:
            useless.append(name)
    return useless


def _why_not(changes: Mapping[str, Value], loader: Mapping[str, Any], steps: int | None) -> str:
    if "batch_size" in changes and loader.get("made_own_batches"):
        why = "the script gives batch_sampler= or batch_size=None, which makes its batches"
        return f"{why}: batch_size cannot be varied"
    if changes.get("persistent_workers") and loader.get("iterators_at_once"):
        why = "several iterators of its loader are open at once, as of zip(loader, loader)"
        return f"{why}: with persistent workers they would be one, and share its batches"
    return (
        _why_no_threads(changes, loader)
        or why_not_divided(changes, loader, steps)
        or _why_not_kept(changes, loader, steps)
        or _why_not_across_epochs(changes, loader, steps)
    )


def _why_not_kept(
    changes: Mapping[str, Value], loader: Mapping[str, Any], steps: int | None
) -> str:
    """Returns why samples cannot be kept in memory, or why that would show nothing; "" if neither is so."""
    if changes.get("decode_cache") != "ram":
        return ""
    if loader.get("made_iterable"):
        return "the dataset is an IterableDataset, whose samples have no index to keep them by: leave decode_cache out"
    epoch_steps = _epoch_steps(changes, loader)
    if epoch_steps is None or steps is None or steps >= 2 * epoch_steps:
        return ""
    return (
        f"no sample is read again within {steps} steps: an epoch has {epoch_steps}, and the first "
        f"one fills the cache; give --steps {2 * epoch_steps} or more"
    )


def _why_not_across_epochs(
    changes: Mapping[str, Value], loader: Mapping[str, Any], steps: int | None
) -> str:
    """Returns why no epoch can begin before the last one has ended, or why none would; "" if neither is so."""
    if changes.get("across_epochs") != "on":
        return ""
    if loader.get("made_iterable"):
        return (
            "the dataset is an IterableDataset, of which nobody knows before it ends: "
            "leave across_epochs out"
        )
    if loader.get("iterators_at_once"):
        why = "several iterators of its loader are open at once, as of zip(loader, loader)"
        return f"{why}: which of them begins the next epoch is not known"
    if changes.get("persistent_workers", loader.get("persistent_workers")):
        return (
            "workers that are kept begin an epoch only once the last one has ended: "
            "give --vary persistent_workers=off with it"
        )
    epoch_steps = _epoch_steps(changes, loader)
    if epoch_steps is None or steps is None or steps >= 2 * epoch_steps:
        return ""
    return (
        f"no more than one epoch begins within {steps} steps: an epoch has {epoch_steps}; "
        f"give --steps {2 * epoch_steps} or more"
    )


def _epoch_steps(changes: Mapping[str, Value], loader: Mapping[str, Any]) -> int | None:
    """Returns the steps of an epoch with a setting; None where that is not known."""
    if "batch_size" not in changes and loader.get("epoch_batches"):
        return int(loader["epoch_batches"])
    n_samples = loader.get("n_samples")
    batch = changes.get("batch_size") or loader.get("batch_size")
    if not isinstance(n_samples, int) or not isinstance(batch, int):
        return None
    return math.ceil(n_samples / batch)


def _why_no_threads(changes: Mapping[str, Value], loader: Mapping[str, Any]) -> str:
    """Returns why workers cannot have so many threads; "" if they can.

    GNU's OpenMP keeps its threads for the next operation, and a forked process has none of them: its first
    operation on several threads waited for ever. OpenCV's do the same.
    """
    threads = changes.get("worker_threads")
    method = changes.get("start_method")
    is_forked = method == "fork" if method else bool(loader.get("made_forks"))
    if not is_forked or not isinstance(threads, int) or threads < 2:
        return ""
    return (
        "its workers are forked, and an operation on more than 1 thread may wait in them for threads that the "
        "script has used before; give --vary start_method=forkserver or spawn with it"
    )


def why_not_divided(
    changes: Mapping[str, Value], loader: Mapping[str, Any], steps: int | None
) -> str:
    """Returns why nobody could tell whether the workers of an IterableDataset share its samples; "" where
    that is known, or a trial counts the samples of an epoch.
    """
    workers = changes.get("workers")
    if not isinstance(workers, int) or not divides_anew(loader, workers):
        return ""
    shards = loader.get("shards")
    if shards is not None and workers > shards:
        has = "1 shard" if shards == 1 else f"{shards} shards"
        return f"its IterableDataset has {has}, and each worker reads whole ones: {workers} workers are too many"
    if loader.get("divides"):
        return ""
    unknown = (
        "its IterableDataset is not known to divide its samples among workers: each would give all"
    )
    epoch_samples = loader.get("epoch_samples")
    batch = changes.get("batch_size") or loader.get("batch_size")
    if not epoch_samples or not isinstance(batch, int):
        return (
            f"{unknown}, and no epoch ended that tells their number; give --steps for more than one"
        )
    # the last batch of each worker may not be full
    needed = 2 * (math.ceil(max(epoch_samples) / batch) + max(1, workers))
    if steps is None or steps < needed:
        return f"{unknown}; give --steps {needed} or more, so the samples of an epoch are counted"
    return ""


def divides_anew(loader: Mapping[str, Any], workers: int) -> bool:
    """Returns whether so many workers divide the samples of an IterableDataset in another way than the
    script's own: one worker gives what the loop itself would read.
    """
    own = max(1, int(loader.get("num_workers") or 0))
    return bool(loader.get("iterable")) and max(1, workers) != own


def _own_value(name: str, loader: Mapping[str, Any]) -> Any:
    """Returns the script's own value of a name in `OF_A_SCRIPT`."""
    if name in ("decode_cache", "pack", "uint8", "across_epochs"):
        return "off"
    if name == "decoder":
        return AS_IS
    if name == "workers":
        return loader.get("num_workers")
    if name == "in_order":
        return loader.get(name, True)
    if name in ("sharing_strategy", "worker_threads"):
        return loader.get(f"made_{name}")
    value = loader.get(name)
    if name == "prefetch_factor" and value is None:
        return DEFAULT_PREFETCH
    return value


def _check(name: str, holds: object, value: object) -> None:
    if not holds:
        raise ConfigError(name, value, "it is not in the form that vitprof writes")
