"""Checks of what is either the same in all runs or not, other than the way they load their data."""

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np

from vitprof.analysis.arrays import Floats
from vitprof.config import (
    CONFIG_COLUMNS,
    GROUPS,
    KNOBS,
    PARTS,
    RunConfig,
    own_script,
    parts,
    resolve,
)
from vitprof.errors import ConfigError, VitprofError
from vitprof.recording.columns import RunSummary

Level = Literal["warning", "note"]


@dataclass(frozen=True)
class RunFacts:
    """The facts of one run that `comparability` looks at."""

    id: int
    config: RunConfig
    environment: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    summary: RunSummary | None = None
    loss_step: Floats = field(default_factory=lambda: np.empty(0))
    """(n,) numbers of the first steps."""
    loss: Floats = field(default_factory=lambda: np.empty(0))
    sm_clock_mhz: float = np.nan
    other_gpu_bytes: float = np.nan
    others_cores: float = np.nan
    """Cores that other programs took in the steady state, on average (`others_cpu`)."""
    source: str = ""
    """The file that the run was read from, in which `id` is its number; empty for a run of the
    store."""

    @property
    def label(self) -> str:
        return f"{self.id} of {self.source}" if self.source else str(self.id)


@dataclass(frozen=True)
class Caveat:
    """A difference between runs that makes comparing them less than fair."""

    topic: str
    """Machine word: order, data, model, batch, device, machine, clocks, page-cache, gpu-processes,
    vitprof, profiler, versions, variables, power, cpu, sharing or losses."""
    level: Level
    """warning: the comparison may mislead; note: fine as long as it is meant."""
    sentence: str


Check = Callable[[Sequence[RunFacts]], Caveat | None]
"""Returns what makes comparing these runs unfair in one respect; None if nothing does."""


def which(runs: Sequence[RunFacts]) -> str:
    """Returns "run 3", or "runs 3, 4 and 5"."""
    *others, last = [run.label for run in runs]
    if not others:
        return f"run {last}"
    return f"runs {', '.join(others)} and {last}"


def _differs(
    topic: str,
    what: str,
    values: str | Callable[[RunFacts], Hashable | None],
    why: str,
    level: Level = "warning",
) -> Check:
    """Returns a check that finds runs whose `values` are known and not all the same.

    `values` is a field of the config ("config.seed"), a key of the environment ("hostname"), or a
    function that gives the value of a run.
    """

    def value_of(run: RunFacts) -> Hashable | None:
        if callable(values):
            return values(run)
        if values.startswith("config."):
            value: Hashable = getattr(run.config, values.removeprefix("config."))
            return value
        return run.environment.get(values)

    def check(runs: Sequence[RunFacts]) -> Caveat | None:
        by_value: dict[Hashable, list[RunFacts]] = {}
        for run in runs:
            if (value := value_of(run)) is not None:
                by_value.setdefault(value, []).append(run)
        if len(by_value) < 2:
            return None
        values_of = "; ".join(f"{value} in {which(those)}" for value, those in by_value.items())
        return Caveat(topic, level, f"{what}: {values_of}. {why}")

    return check


def _order(run: RunFacts) -> str:
    orders = {
        "full": "shuffled samples",
        "block": "shuffled blocks of neighbours",
        "none": "as stored",
    }
    # storages that give finished samples are always shuffled
    return orders[run.config.shuffle or "full"]


def _data(run: RunFacts) -> str:
    if not run.config.n_images:
        return run.config.dataset
    return f"{run.config.dataset} with {run.config.n_images:,} images"


def _compiled(run: RunFacts) -> str:
    if not run.config.compile:
        return "off"
    return f"on ({run.config.compile_mode or 'default mode'})"


def _optimizer(run: RunFacts) -> str:
    return "fused Adam" if run.config.fused_optimizer else "Adam"


def _device(run: RunFacts) -> str:
    return str(run.environment.get("device") or run.config.device)


def _n_ranks(run: RunFacts) -> int:
    return int(run.environment.get("world_size") or run.config.ranks)


def _kind_of_device(run: RunFacts) -> str | None:
    name = _device(run)
    if name == "auto":
        return None
    return "simulated" if name.startswith("simulated") else "real"


def device_name(run: RunFacts) -> str | None:
    name = _device(run)
    if name.startswith("simulated"):
        return name
    known = run.environment.get("device_name")
    return None if known is None else str(known)


def _power_limit(run: RunFacts) -> str | None:
    watts = run.environment.get("gpu_power_limit_w")
    return None if watts is None else f"{float(watts):.0f} W"


def _shared(runs: Sequence[RunFacts]) -> Caveat | None:
    """Returns a caveat about runs that shared the machine.

    Also if all of them did: not all lose the same by it.
    """
    shared = [run for run in runs if run.facts.get("n_beside")]
    if not shared:
        return None
    sentence = (
        f"{which(shared).capitalize()} ran while another run was running on the same machine, "
        "which took CPU and disk: loading may be slower than alone."
    )
    advice = dict.fromkeys(_how_to_run_alone(run.config) for run in shared)
    return Caveat("sharing", "warning", " ".join([sentence, *advice]))


def _how_to_run_alone(config: RunConfig) -> str:
    if own_script.is_own_script(config):
        return "End other runs, then watch again to compare."
    if config.share_machine:
        return "Run again with share_machine off to compare."
    # started all the same, or another one was
    return "Run again while no other run is running to compare."


def _variables(run: RunFacts) -> str | None:
    """Returns the variables that can change results; None for a run made before they were
    recorded.
    """
    variables = run.environment.get("variables")
    if variables is None:
        return None
    return str(variables) or "none"


def _measured_by(run: RunFacts) -> str:
    return "torch.profiler" if run.facts.get("trace") else "vitprof"


def _loads(run: RunFacts) -> str:
    return "loading without training" if run.config.loader_only else "training"


def _n_samples(run: RunFacts) -> int | None:
    n: int | None = (run.environment.get("watched") or {}).get("n_samples")
    return n


WORK = "They did not do the same work."
SPEED = "The device computes at another speed."
CPU = "Loading is CPU work."
NEIGHBOURS = "Neighbours read in one piece load faster than random samples, and train differently."
WEIGHTS = "Weights and sample order differ, so losses cannot agree."
DASHBOARD = "There the dashboard's own work slows the loop."
WHEREVER = "It takes time wherever it is done, and the images are not the same."
CHANGES = "They can change how fast the device or the CPU computes, and what can overlap."
OLDER = "Its speed may have changed."
CHECKS: tuple[Check, ...] = (
    _differs("data", "The data differ", _data, WORK),
    _differs("data", "The number of samples differs", _n_samples, WORK),
    _differs("model", "The model differs", "config.model", WORK),
    _differs("model", "The image size differs", "config.image_size", WORK),
    _differs("model", "The precision differs", "config.precision", SPEED),
    _differs("model", "torch.compile differs", _compiled, SPEED),
    _differs(
        "model",
        "The optimizer differs",
        _optimizer,
        SPEED,
    ),
    _differs("order", "The sample order differs", _order, NEIGHBOURS),
    _differs("order", "The seed differs", "config.seed", WEIGHTS, "note"),
    _differs("data", "Augmentation differs", "config.augment", WHEREVER, "note"),
    _differs(
        "batch",
        "The batch size differs",
        "config.batch_size",
        "Compare samples/s, not steps.",
        "note",
    ),
    _differs(
        "device",
        "Some ran on a simulated accelerator",
        _kind_of_device,
        "Only the loading of those was real.",
    ),
    _differs("device", "The device differs", device_name, "So does the time that a step computes."),
    _differs(
        "device", "Some only loaded", _loads, "Without training nothing competes with the loader."
    ),
    _differs(
        "device", "The number of training processes differs", _n_ranks, "They share the machine."
    ),
    _differs(
        "machine", "The machine differs", "hostname", "CPU, drive and memory are not the same."
    ),
    _differs("cpu", "The number of cores differs", "cpu_count", CPU),
    _differs(
        "cpu",
        "PyTorch's CPU threads differ",
        "torch_threads",
        "They compete with loading for cores.",
        "note",
    ),
    _differs(
        "cpu", "Some trained in a thread of the dashboard", "config.isolation", DASHBOARD, "note"
    ),
    _differs(
        "profiler",
        "Some were read from a trace",
        _measured_by,
        "The profiler slows the host down.",
    ),
    _shared,
    _differs(
        "power",
        "The GPU's power limit differs",
        _power_limit,
        "A lower limit lowers its clock under load.",
    ),
    _differs("variables", "Environment variables differ", _variables, CHANGES),
    _differs(
        "vitprof", "The version of vitprof differs", "vitprof", "It may measure in another way."
    ),
    _differs("versions", "The version of PyTorch differs", "torch", OLDER),
    _differs("versions", "The version of torchvision differs", "torchvision", OLDER),
    _differs("versions", "The version of Python differs", "python", OLDER),
    _differs("versions", "The version of NVIDIA driver differs", "driver_version", OLDER),
    _differs("versions", "The version of CUDA differs", "cuda_version", OLDER),
)
"""Checks of what is either the same or not."""


DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(RunConfig)}
ORDER = dict.fromkeys(
    name for name in itertools.chain(*GROUPS.values(), CONFIG_COLUMNS) if name != "name"
)
"""All settings but the run's name, in the order of `GROUPS`."""


@dataclass(frozen=True)
class Cell:
    """A setting of one run."""

    value: Any
    """As the run used it; None if it is not set, or no part of the strategy takes it."""
    default: bool
    """Whether leaving it out gives the same value: the strategy's, the model's or vitprof's own.
    False for None."""
    differs: bool
    """Whether it is another value than the baseline's; False if one of the two does not take the
    setting."""


@dataclass(frozen=True)
class Difference:
    """A setting that is not the same in all runs."""

    field: str
    cells: tuple[Cell, ...]


def config_differences(configs: Sequence[RunConfig], baseline: int = 0) -> tuple[Difference, ...]:
    """Returns the settings in which resolved `configs` differ, in the order of `ORDER`.

    Empty for fewer than two runs. A setting that only some of them take is left out if those all
    have it at the same default: it says no more than their strategies or data sets do.
    """
    differences = []
    for name in ORDER:
        values = [getattr(config, name) for config in configs]
        if all(value == values[0] for value in values):
            continue
        takes = [_takes(config, name) for config in configs]
        cells = []
        for config, value, takes_it in zip(configs, values, takes, strict=True):
            differs = value != values[baseline] and takes_it and takes[baseline]
            cells.append(Cell(value, _is_default(config, name), differs))
        taking = list(itertools.compress(cells, takes))
        same_default = all(cell.default and cell.value == taking[0].value for cell in taking)
        if all(takes) or not same_default:
            differences.append(Difference(name, tuple(cells)))
    return tuple(differences)


def _takes(config: RunConfig, name: str) -> bool:
    """Returns whether the setting has a meaning in the run.

    It may still be None, as the bandwidth of a slow drive.
    """
    if getattr(config, name) is not None or name not in (*KNOBS, "n_images"):
        return True
    try:
        knobs = parts.Combination(**{kind: getattr(config, kind) for kind in PARTS}).knobs()
    except ConfigError:  # a part that this version does not know
        return False
    return name in knobs and knobs[name] is None


def _is_default(config: RunConfig, name: str) -> bool:
    value = getattr(config, name)
    if value is None:
        return False
    try:
        left_out = resolve.resolve(replace(config, **{name: DEFAULTS[name]}))
    except VitprofError:  # it cannot be left out, or this version no longer knows the strategy
        return False
    return bool(getattr(left_out, name) == value)
