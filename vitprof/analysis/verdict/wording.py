"""The sentences of a verdict, made from figures computed elsewhere."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitprof.analysis import arrays, thresholds
from vitprof.analysis.signatures.resources import Contention
from vitprof.analysis.timing.loading import STAGE_WORDS, Exposure, synchronous
from vitprof.analysis.verdict.advice_rules import Situation
from vitprof.config import RunConfig, own_script, parts
from vitprof.formats import number, percent, seconds
from vitprof.recording.verdict import Advice


@dataclass(frozen=True)
class Device:
    """The device of a run, as far as wording and advice depend on it."""

    words: str
    """Clause for its waiting, before a share of time: "the GPU is idle"."""
    simulated: bool
    on_cpu: bool
    util_frac: float = math.nan
    """The share of the time in which NVML saw a kernel run (GPU-util); NaN if not known."""


def find_device(config: RunConfig, facts: Mapping[str, Any], util_pct: float = math.nan) -> Device:
    """Returns the device that the run's environment (in `facts`) names, else the one that `config`
    asks for.
    """
    name = str(facts.get("device") or config.device)
    if untested := facts.get("untested_device"):
        words = f"the {untested} device (its timing is untested on hardware) is idle"
        return Device(words, simulated=False, on_cpu=False)
    if name.startswith("simulated"):
        return Device("the simulated GPU is idle", simulated=True, on_cpu=False)
    on_cpu = name == "cpu" or (name == "auto" and not facts.get("cuda_version"))
    words = "training on the CPU is stalled" if on_cpu else "the GPU is idle"
    return Device(words, simulated=False, on_cpu=on_cpu, util_frac=util_pct / 100)


@dataclass(frozen=True)
class SpeedUp:
    """How many times as fast the job would be if data were free, with its 95% interval."""

    value: float
    low: float
    high: float
    measured: bool
    other_runs: bool = False
    """Whether it was measured in other runs of the same job, at another time."""
    between: float = math.nan
    """What was measured for the steps between epoch starts, where that is not the gain; else
    NaN."""


def waits(device: Device, exposure: Exposure, share: str, spread: str = "") -> str:
    """Returns for what `share` of the time the device waits, and the single step that decides it.

    It waits for data, and for copies if they have at least `COPIES_TOLD_FRAC` of the idle time.
    """
    data = "data and copies" if _copies(exposure) >= thresholds.COPIES_TOLD_FRAC else "data"
    event = ""
    if one := exposure.event:
        wait = f"one wait of {seconds(one.idle_s)}, in step {one.step}, decides that"
        event = f" ({wait}: {percent(one.idle_frac_without)} without it)"
    if _may_idle_inside(device, exposure) or exposure.outside.value >= thresholds.OUTSIDE_TOLD_FRAC:
        return f"{device.words} for {data} {share} of the time{spread}{event}"
    return f"{device.words} {share} of the time{spread}, waiting for {data}{event}"


def _may_idle_inside(device: Device, exposure: Exposure) -> bool:
    """Returns whether the device may have waited inside the steps, for a time that is not known."""
    return exposure.host_paced and not device.on_cpu and not math.isfinite(exposure.launches.value)


def _idle_inside(device: Device, idle_frac: float) -> str:
    if not math.isfinite(device.util_frac):
        return "for how long is not known"
    about = percent(max(0.0, 1 - device.util_frac - idle_frac))
    return f"for about {about} of the time by NVML, which saw a kernel run {percent(device.util_frac)} of it"


def _copies(exposure: Exposure) -> float:
    return sum(share.frac for share in exposure.shares if share.name == "transfer")


LONG_FIRST_S = 0.5
"""Wait for the first batch of the only epoch, in seconds, from which it is named where it would
change the class."""
WHOLE_EPOCHS_FRAC = 0.02
"""Difference of the share over whole epochs from that of the run, which may end within one, for
naming it."""
WORTH_AN_INTERVAL = 1.03
"""High end of a speed-up, over its value, from which its interval is given."""
MODERATE = f"{thresholds.MODERATE_FRAC * 100:g}"
INPUT_BOUND = f"{thresholds.INPUT_BOUND_FRAC * 100:g}"
CLASSES = (
    f"under {MODERATE}% of the time idle for data is not input-bound, {MODERATE} to {INPUT_BOUND}% "
    f"moderately, over {INPUT_BOUND}% input-bound"
)
"""The classes of the verdict, for help texts."""
CAUSE_WORDS: dict[str, str] = {
    "transform": "transforms on the CPU are",
    "collate": "putting samples together into batches (collate) is",
    "rest": "Python between the stages of loading (loops, calls, locks) is",
    "hand_over": "handing over finished batches from the loader's workers is",
    "transfer": "the copy to the device is",
    "epoch_start": "waiting as epochs begin is",
    "held_up": "the loader, which keeps Python from launching work, is",
    "loading": "making batches is",
    "slow_drive": "reading from the slow drive is",
    "cpu_contention": "other programs that keep the CPU busy cost about",
}
"""A verdict's cause -> how a clause on its share begins."""

CAUSE_NAMES: dict[str, str] = STAGE_WORDS | {
    "transfer": "the copy to the device",
    "epoch_start": "epoch starts",
    "loading": "making batches",
    "slow_drive": "the slow drive",
    "cpu_contention": "other programs",
    "other-programs": "other programs",
    "launches": "launches",
}
"""A verdict's cause, or the signature with that meaning -> its name in a table or a list."""


def cause_words(config: RunConfig, cause: str, *, waits: bool = False) -> str:
    """Returns the cause as the start of a clause: "preparation (decoding by PIL) is".

    `config` is resolved. `waits`: making a batch is mostly a wait.
    """
    if cause == "read" and own_script.is_own_script(config):
        what = "mostly waiting, not CPU work" if waits else "what is no transform"
        return f"the dataset ({what}) is"
    if cause == "read":
        storage = parts.STORAGES.get(config.storage or "")
        return f"reading ({storage.title if storage else 'storage'}) is"
    if cause == "decode":
        loader = parts.LOADERS.get(config.loader or "")
        decoder = config.decoder or "PIL"
        if loader is not None and loader.decodes:
            decoder = loader.title
        return f"preparation (decoding by {decoder}) is"
    if cause == "hand_over" and synchronous(config):
        return "what comes between a finished batch and the loop is"
    return CAUSE_WORDS[cause]


def verdict_sentence(
    situation: Situation,
    device: Device,
    exposure: Exposure,
    cause_frac: float,
    speed_up: SpeedUp,
    advice: tuple[Advice, ...],
    contention: Contention,
) -> str:
    """Returns the sentence of a verdict that is not inconclusive."""
    kind = situation.kind
    title = kind[0].upper() + kind[1:]
    try_first = f"; try {advice[0].words}" if advice else ""
    held_up = _held_up(situation)
    spread = _spread(exposure.idle, exposure.n + exposure.starts.n)
    waited = waits(device, exposure, percent(exposure.idle.value), spread)
    waited += _starts(exposure) + held_up
    if situation.config.replay:
        return f"{title}: {waited}; {_replayed(situation.config, exposure, situation.cause)}."
    if kind == "launch-bound":
        gains = _gains_at_most(situation, device, exposure)
        return f"{title}: {_paced(device, exposure)}{held_up}; {gains}{try_first}."
    if kind == "not input-bound":
        return f"{title}: {waited}{_not_input_bound(situation, device, exposure)}."
    if outside := _outside_steps(
        situation, device, exposure, ", or loading that vitprof does not see"
    ):
        waited += f"; another {outside}"
    if asleep := asleep_in_steps(situation):
        waited += f"; another {asleep}"
    mostly = _main_cause(situation, exposure, cause_frac)
    if outside_next := outside_loader(situation.facts):
        return f"{title}: {waited}; {mostly}; {outside_next}."
    free = _free_data(device, situation.config, exposure, speed_up, situation.held_up_frac > 0)
    if situation.cause in ("epoch_start", "held_up"):  # both are in `waited`
        return f"{title}: {waited}; {free}{try_first}."
    if not speed_up.measured:
        free += _inflated(exposure, contention)
    return f"{title}: {waited}; {mostly}; {free}{try_first}."


def _not_input_bound(situation: Situation, device: Device, exposure: Exposure) -> str:
    """Returns the end of the sentence on a run that is not input-bound: what it has to gain, and
    where the time goes.
    """
    if not situation.sure:
        gain = percent(_most_gain(situation, exposure))
        return f"; a faster loader may gain up to {gain}: train for longer to find out"
    gains = _gains_at_most(situation, device, exposure)
    if asleep := asleep_in_steps(situation):
        return f": {gains}; {asleep}"
    if outside := _outside_steps(situation, device, exposure):
        return f": {gains}; {outside}"
    if _may_idle_inside(device, exposure):
        inside = _idle_inside(device, exposure.idle.value)
        return (
            f": {gains}; loading keeps up; Python launched the steps no faster than they ran, so "
            f"the GPU may be idle inside them too, {inside}"
        )
    return f": {gains}; the time goes into the model, and loading keeps up"


def _most_gain(situation: Situation, exposure: Exposure) -> float:
    """Returns by which share the job would be faster without all waits for data, by the interval's
    high end.
    """
    lost = exposure.idle.high + situation.held_up_frac
    return max(0.0, lost / (1 - lost)) if lost < 1 else math.inf


def _gains_at_most(situation: Situation, device: Device, exposure: Exposure) -> str:
    """Returns a clause on what free data would gain at most."""
    gains = "a faster loader gains"
    if _share_cpu(device, situation.config, exposure):
        gains = "ending these waits gains"
    return f"{gains} at most {percent(_most_gain(situation, exposure))}"


def _outside_steps(
    situation: Situation, device: Device, exposure: Exposure, or_else: str = ""
) -> str:
    """Returns a clause on the time between steps, and on what it may be spent; "" where it is
    little.
    """
    frac = exposure.outside.value
    if device.on_cpu:  # whose steps have no device work that marks their ends
        frac = max(frac, float(situation.facts.get("between_steps_frac") or 0.0))
    if frac < thresholds.OUTSIDE_TOLD_FRAC:
        return ""
    spent_on = "logging, metrics, checkpoints"
    if situation.facts.get("world_size", 1) > 1:
        spent_on += ", waits for other ranks"
    outside = f"{percent(frac)} of the time passes outside of the steps"
    return f"{outside}, before the next batch is requested ({spent_on}{or_else})"


def _main_cause(situation: Situation, exposure: Exposure, cause_frac: float) -> str:
    """Returns a clause on what most of the wait is for."""
    of_steps = situation.cause not in ("epoch_start", "cpu_contention")
    if exposure.starts.frac >= thresholds.EPOCH_STARTS_FRAC and of_steps:
        # the sentence has named the epoch starts: "of that" is of what is between them
        cause_frac /= sum(share.frac for share in exposure.shares if share.name != "epoch_start")
    cause = cause_words(situation.config, situation.cause, waits=situation.waits)
    mostly = f"{cause} {percent(cause_frac)} of that"
    if slowest := slowest_loader(situation.facts):
        of_slowest = (
            f"{percent(slowest['share'])} of the wait is for the loader of {slowest['dataset']}"
        )
        return f"{of_slowest}; {mostly}"
    return mostly


def _starts(exposure: Exposure) -> str:
    """Returns a clause on the waits with which epochs begin; "" where they are few, or not known
    and short.
    """
    idle = exposure.idle.value
    starts = exposure.starts
    if not starts.n:
        whole_s = exposure.n * exposure.step_s + starts.first_s
        with_first = (idle * exposure.n * exposure.step_s + starts.first_s) / whole_s
        edges = (thresholds.MODERATE_FRAC, thresholds.INPUT_BOUND_FRAC)
        other_class = any(idle < edge <= with_first for edge in edges)
        if not other_class or starts.first_s < LONG_FIRST_S:
            return ""
        first = seconds(starts.first_s)
        return f" (no second epoch was seen: waits as epochs begin are not in that; the first took {first})"
    if starts.frac < thresholds.EPOCH_STARTS_FRAC:
        return ""
    how_many = f" each, {starts.n} seen" if starts.n > 1 else ", one seen"
    each = f"{seconds(starts.wait_s)}{how_many}"
    if abs(starts.epoch_frac - idle) >= WHOLE_EPOCHS_FRAC:
        each += f"; {percent(starts.epoch_frac)} of the time over whole epochs"
    between = f"{percent(exposure.between.value)} in the steps between"
    share = starts.frac * starts.wait_s / starts.excess_s  # all of these waits, as charts draw them
    return f", {percent(share)} as epochs begin ({each}); {between}"


def _share_cpu(device: Device, config: RunConfig, exposure: Exposure) -> bool:
    """Returns whether steps take longer because batches are made meanwhile.

    Their speed without is then no bound.
    """
    return (device.on_cpu or exposure.host_paced) and not synchronous(config)


def _held_up(situation: Situation) -> str:
    """Returns a clause on the time in which the loader keeps Python from launching; "" where that
    is little.
    """
    frac = situation.held_up_frac
    config = situation.config
    if not frac:
        return ""
    makers = parts.LOADERS[config.loader or ""].made_by
    n = config.workers or 1
    one = {"processes": "worker", "threads": "thread", "thread": "thread"}[makers]
    who = f"{n} {one}s keep" if n > 1 else f"{one} keeps"
    how = "cores" if makers == "processes" else "Python's lock, or cores"
    return f"; for another {percent(frac)} the loader's {who} Python from launching the model's work: they share {how}"


def _spread(share: arrays.Interval, n: int) -> str:
    """Returns the interval of a share and the steps that it is from: " (12-14%, 100 steps)"."""
    low = percent(share.low)
    interval = percent(share.high)
    if low != interval:
        interval = f"{low.removesuffix('%')}-{interval}"
    return f" ({interval}, {n} steps)"


def _paced(device: Device, exposure: Exposure) -> str:
    """Returns the start of the sentence for a run that is launch-bound."""
    where = ""
    if exposure.launches.value >= thresholds.BUBBLES_TOLD_FRAC:
        where = f", {percent(exposure.launches.value)} inside the steps, where it looks busy"
    time = f"{percent(exposure.paced.value)} of the time{_spread(exposure.paced, exposure.n)}"
    return f"{device.words} {time}, waiting for Python to launch its work{where}"


def _replayed(config: RunConfig, exposure: Exposure, cause: str) -> str:
    """Returns the end of the sentence for a replay, in which nothing is loaded: what remains to
    wait for.
    """
    where = "on the device" if config.replay == "device" else "in host memory"
    copy = ""
    if config.replay == "host" and cause == "transfer":
        copy = f"the copy ({percent(_copies(exposure))} of that) and "
    return f"this is a replay of batches kept {where}: what is left is {copy}the loop's own work, not loading"


def _free_data(
    device: Device, config: RunConfig, exposure: Exposure, speed_up: SpeedUp, held_up: bool
) -> str:
    """Returns a clause on how fast the job would be if data were free."""
    times = f"{number(speed_up.value)}x as fast"
    interval = f"{number(speed_up.low)}-{number(speed_up.high)}"
    if speed_up.measured:
        when = "measured"
        # what remains of a step with free data, in those runs and in this one: where more remains
        # in those, they lost less to loading
        remaining_there = 1 / speed_up.high
        remaining = 1 - exposure.idle.low
        if speed_up.other_runs and remaining_there > remaining + thresholds.EQUAL_FRAC:
            when = "measured while loading was faster than in this run: repeat both"
        return f"with free data this job runs {times} ({interval}, {when})"
    between = math.isfinite(speed_up.between)
    few_starts = exposure.starts.frac < thresholds.EPOCH_STARTS_FRAC
    if not between and not held_up and few_starts and _share_cpu(device, config, exposure):
        # without loading, the workers' share of the CPU goes to training: the gain may be larger
        work = "training" if device.on_cpu else "launches"
        return f"with free data this job would run about {times} (loading and {work} share the CPU)"
    known = []
    if speed_up.high > WORTH_AN_INTERVAL * speed_up.value:
        known.append(interval)
    if between:
        known.append(f"{number(speed_up.between)}x was measured for the steps between")
    if known:
        times += f" ({'; '.join(known)})"
    return f"with free data this job would run about {times}"


def _inflated(exposure: Exposure, contention: Contention) -> str:
    """Returns a clause on how much of that speed-up other programs took, out of a loader's reach;
    "" if little.
    """
    if not contention.inflates(exposure.idle_ms):
        return ""
    if contention.of_training_too:
        return ", as long as other programs, which slow loading and training alike, keep running"
    without = contention.idle_frac_without(exposure.idle_ms, exposure.step_s * 1e3)
    return f" (perhaps only {number(1 / (1 - without))}x without the other programs, which make data look slower)"


def slowest_loader(facts: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns the loader waited for longest of those of steps that ask several, with its `share` of
    the wait.
    """
    loaders = [loader for loader in facts.get("loaders") or [] if loader["wait_s"]]
    total_s = sum(loader["wait_s"] for loader in loaders)
    if not total_s:
        return None
    slowest = max(loaders, key=lambda loader: loader["wait_s"])
    return {**slowest, "share": slowest["wait_s"] / total_s}


def outside_loader(facts: Mapping[str, Any]) -> str:
    """Returns what passes between the loader and the model, where batches may be prepared, too; ""
    if little.
    """
    outside = float(facts.get("outside_next_frac") or 0.0)
    if outside <= thresholds.OUTSIDE_NEXT_FRAC:
        return ""
    return (
        f"another {percent(outside)} of the time passes between the loader and the model, in the "
        "loop or in a generator or function around the loader: if batches are prepared there, that "
        "is loading, too; do it in the dataset, or watch what gives the finished batches: for "
        "batch in vitprof.watch(batches)"
    )


FREE_CORES = 0.25
"""With fewer free cores than this a script that seems to sleep may wait for a core, or for a thread
that does."""


def asleep_in_steps(situation: Situation) -> str:
    """Returns a clause on the time asleep after the model's call; "" if little, or not known to be
    sleep.
    """
    asleep = float(situation.facts.get("asleep_frac") or 0.0)
    # "not at least": where it is not known how many cores are free, it may wait for one
    if asleep < thresholds.OUTSIDE_TOLD_FRAC or not situation.free_cores >= FREE_CORES:
        return ""
    return (
        f"{percent(asleep)} of the time the script sleeps between the model's call and the "
        "optimizer's step: if it waits for data there, that is loading, too; get them with the "
        "batch"
    )
