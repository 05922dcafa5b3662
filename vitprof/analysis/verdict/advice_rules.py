"""What helps against each cause: settings of vitprof's own."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vitprof.analysis import thresholds
from vitprof.analysis.signatures.stalls import FEW_STEPS
from vitprof.analysis.timing.loading import synchronous
from vitprof.config import (
    PARTS,
    RunConfig,
    estimates,
    own_script,
    parts,
)
from vitprof.cores import cores_in_words
from vitprof.datasets import catalog
from vitprof.formats import count, percent, size
from vitprof.recording.verdict import Advice, Signature


@dataclass(frozen=True)
class Situation:
    """A judged run, as far as advice depends on it."""

    config: RunConfig
    cause: str
    kind: str
    sure: bool = True
    """Whether the whole interval of the idle time is in that class; if not, loading may cost more
    than the class says."""
    on_cpu: bool = False
    """Whether the CPU trains: there is no copy to save, and loading takes CPU from training."""
    simulated: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The run's facts and its environment in one mapping."""
    free_cores: float = math.nan
    """Cores that are idle while the job trains; NaN if not known."""
    samples_per_s: float = math.nan
    signatures: Sequence[Signature] = ()
    idle_ms: float = math.nan
    """Milliseconds of a step that the device idles for data, of the `step_ms` that it takes."""
    step_ms: float = math.nan
    waiting_frac: float = math.nan
    """Share of the time of making a batch that is neither CPU work nor a wait for a core
    (`resources.waiting_frac`)."""
    loader: Mapping[str, Any] = field(default_factory=dict)
    """Of an own script, the facts of the loader that is waited for longest."""
    sampler_ms: float = 0.0
    """Milliseconds that the sampler takes in a step, whatever the number of workers."""
    exposed_ms: Mapping[str, float] = field(default_factory=dict)
    """Stage of loading -> milliseconds by which a step would be shorter if the stage took no time
    (`Share.exposed_ms`)."""
    waited_fracs: Mapping[str, float] = field(default_factory=dict)
    """Stage of loading -> share of the training time that is waited for it, as the answer has it."""
    is_unclear: bool = False
    """Whether another stage than the largest may take longest without other programs."""
    causes: Sequence[str] = ()
    """Stages with a large share of the idle time, the largest first; their advice follows that for
    `cause`."""

    @property
    def info(self) -> catalog.DatasetInfo:
        return catalog.dataset_info(self.config.dataset, self.config.n_images)

    @property
    def jpeg(self) -> bool:
        """Returns whether the data set is of kind "jpeg" (`DatasetInfo.kind`)."""
        return self.info.kind == "jpeg"

    @property
    def form(self) -> str:
        """Returns the form in which the storage keeps samples (`StoragePart.form`)."""
        return parts.STORAGES[self.config.storage or ""].form

    @property
    def waits(self) -> bool:
        """Returns whether making a batch is mostly a wait: for a network, a drive, a lock or a
        sleep.
        """
        return self.waiting_frac >= thresholds.WAITING_FRAC

    @property
    def begins_each_batch(self) -> bool:
        """Returns whether an own script begins an iterator for each batch: none is fetched ahead of its request, and
        workers are started, or emptied, for each."""
        long = next((x for x in self.signatures if x.name == "epoch-start"), None)
        if long is not None and long.evidence.get("steps_of_an_epoch", math.inf) < FEW_STEPS:
            return True
        return float(self.facts.get("batches_of_an_iterator", math.inf)) < FEW_STEPS

    @property
    def iteration_s(self) -> float:
        """Returns how long an iteration over an own script's loader takes; infinity where few were begun."""
        batches = float(self.facts.get("batches_of_an_iterator", math.inf))
        return batches * self.step_ms / 1e3 if math.isfinite(batches) else math.inf

    @property
    def is_disturbed(self) -> bool:
        """Returns whether all that was seen may be the work of other programs: they slow each stage by another
        share, and where the CPU trains, training, too.
        """
        return self.is_unclear or (self.cause == "cpu_contention" and self.on_cpu)

    @property
    def making_ms(self) -> float:
        """Returns the milliseconds that an own script takes to make a batch, in any process; NaN if
        not known.
        """
        making = self.facts.get("making") or {}
        if "made_s" not in making:
            return math.nan
        return float(1e3 * making["made_s"] / making["batches"])

    @property
    def making_cores(self) -> float:
        """Returns how many cores an own script uses while it makes a batch: several where threads of the
        dataset's work at once; NaN if not known.
        """
        making = self.facts.get("making") or {}
        if "made_s" not in making:
            return math.nan
        return float(making.get("cpu_s", math.nan) / making["made_s"])

    @property
    def warm(self) -> bool:
        """Returns whether the files were in the page cache when training began; True if that is not
        known.
        """
        cached = self.facts.get("page_cached_frac")
        return cached is None or not float(cached) < thresholds.MOSTLY_CACHED_FRAC

    @property
    def augments_apart(self) -> bool:
        """Returns whether augmentation on the CPU is work of its own for each sample.

        It is none where photos are decoded: their random crop takes the place of the fixed one, and
        resizes fewer pixels: 0.7 ms in place of 1.0 ms for a photo of 373 x 373. Augmented on the
        device instead, a job on 540 of them ran 0.82 times as fast (95%: 0.75 to 0.90).
        """
        return self.config.augment == "cpu" and (self.form == "pixels" or not self.jpeg)

    @property
    def augmenting_ms(self) -> float:
        """Returns about how many milliseconds the CPU takes to augment a whole batch in a step of
        training."""
        values = self.info.channels * self.info.image_size**2 * self.config.batch_size
        cores = int(self.facts.get("job_cpu_count") or self.facts.get("cpu_count") or 1)
        return 1e3 * values * AUGMENTING_CORE_S / cores

    def times_on_cpu(self, saved_ms: float) -> float:
        """Returns how many times as fast the job is at most where the CPU trains, if loading takes
        `saved_ms` less of a step and augmentation moves into the step; NaN where that is not known.

        There the device is made of the same cores, and what is moved to it has to be done by them.
        """
        left_ms = self.step_ms - saved_ms + self.augmenting_ms
        return self.step_ms / left_ms if left_ms > 0 else math.nan

    @property
    def gains_by_prepared_samples(self) -> bool:
        """Returns whether samples that were finished beforehand may be faster to train on. Their
        random augmentation is then a part of the step."""
        if not self.on_cpu or self.config.augment != "cpu":
            return True
        return self.times_on_cpu(self.idle_ms) >= WORTH_MOVING


def _choose(kind: str, name: str, reason: str) -> Advice:
    """Returns the advice to take another part, or another strategy."""
    return Advice({kind: name}, f"{kind} {name}", reason)


GRAPHS = "With CUDA graphs a step is launched as a whole. The first steps take long."
LAUNCH_LESS = (
    Advice(
        {},
        "a larger batch",
        "Python and kernel launches cost the same for each step, however large it is.",
    ),
    Advice({}, 'torch.compile(model, mode="reduce-overhead"), or CUDA graphs', GRAPHS),
    Advice(
        {},
        "an optimizer with fused=True, and fewer small operations",
        "Each of them is a kernel launch of its own.",
    ),
)
"""Advice where Python launches slower than the device works."""
END_OTHERS = Advice(
    {}, "running again when quiet", "Other programs take cores that loading could use."
)


def advice_of_rules(s: Situation) -> Iterator[Advice]:
    """Yields the advice of all rules that apply, the best first; `advise` leaves out what is not
    possible.
    """
    if s.cause == "launches":
        yield from _launches(s)
        return
    if s.kind == "not input-bound" and s.sure:
        return
    if s.config.replay:  # nothing is loaded: another loader changes nothing
        if s.cause == "transfer" and s.config.replay == "host":
            yield from (advice for advice in _transfer(s) if "strategy" not in advice.settings)
        return
    if s.is_disturbed:
        yield END_OTHERS
        if s.is_unclear:
            yield from _whichever_stage(s)
        return
    yield from epoch_starts(s)
    if s.cause == "cpu_contention":
        yield END_OTHERS
    rules = RULES.get(s.cause, _preparing)
    yield from rules(s)
    for cause in s.causes:
        if RULES.get(cause, _preparing) is not rules:
            yield from RULES.get(cause, _preparing)(s)


def _whichever_stage(s: Situation) -> Iterator[Advice]:
    """Yields the settings that help whichever stage takes longest, where other programs hide which one
    does: what is advised for each stage that may.

    How many workers find a core is not known either, so no number of them is among it.
    """
    of_stages = []
    for cause in s.causes:
        alone = replace(s, cause=cause, causes=(cause,), is_unclear=False)
        of_stages.append(list(RULES.get(cause, _preparing)(alone)))
    if not of_stages:
        return
    first, *others = of_stages
    for advice in first:
        helps_all = all(any(advice.settings == each.settings for each in other) for other in others)
        if advice.settings and "workers" not in advice.settings and helps_all:
            yield advice


def argument(s: Situation, name: str, value: Any, reason: str, basis: str = "") -> Advice:
    """Returns the advice to set an argument of the DataLoader, where the script's framework has
    it.
    """
    words = own_script.argument_words(s.facts.get("watched") or {}, name, value)
    return Advice({}, f"setting {words}{basis}", reason, arguments={name: value})


def epoch_starts(s: Situation) -> Iterator[Advice]:
    """Yields what shortens the waits with which epochs begin, where they are long."""
    long = next((x for x in s.signatures if x.name == "epoch-start"), None)
    causes = {s.cause, *s.causes}
    matter = "epoch_start" in causes
    own = own_script.is_own_script(s.config)
    workers = s.config.workers or 0
    restarts = workers > 0 and s.config.persistent_workers is False
    at_once = bool(s.facts.get("iterators_at_once"))

    def setting(name: str, value: Any, words: str, reason: str) -> Advice:
        if own:
            return argument(s, own_script.ARGUMENTS[name], value, reason)
        return Advice({name: value}, words, reason)

    stays_short = workers > 0 and not restarts and s.iteration_s < SHORT_ITERATION_S
    if own and (s.begins_each_batch or (stays_short and matter)):
        yield _fewer_iterators(s)
    drawing_frac = 0.0 if long is None else _drawing_frac(long)
    draws = own and 2 * drawing_frac > 1
    if draws and long is not None:
        reason = f"The sampler takes {percent(drawing_frac * long.cost_frac)} of each epoch as that begins."
        yield Advice(
            {}, "a sampler that draws indices as they are needed, or longer epochs", reason
        )
    if restarts and at_once and (matter or long is not None):
        reason = (
            "With persistent workers all iterators of a loader are one: those that are open at once, "
            "as of zip(loader, loader), would share its batches."
        )
        yield Advice({}, "a loader for each iterator, with persistent_workers=True", reason)
    elif restarts and (matter or long is not None) and not (long and drawing_frac > MOST_DRAWING):
        part = "part" if long is None else percent((1 - drawing_frac) * long.cost_frac)
        reason = f"Starting the workers again takes {part} of each epoch."
        yield setting("persistent_workers", True, "persistent workers", reason)
    if restarts and matter and s.config.start_method == "spawn":
        reason = 'After multiprocessing.set_forkserver_preload(["torch"]) workers are forked with PyTorch imported.'
        yield setting("start_method", "forkserver", "start method forkserver", reason)
    if workers > 1 and not restarts and causes == {"epoch_start"} and not stays_short:
        reason = "Each has to start, or to fill its queue, as an epoch begins: try fewer."
        yield setting("workers", workers // 2, f"fewer workers ({workers // 2})", reason)
    elif matter and own and not workers and not draws:
        once = "doing once what iter(loader) and its first batch do, or longer epochs"
        yield Advice({}, once, "It is done anew for each epoch.")


SHORT_ITERATION_S = 0.5
"""Iterations that are shorter (s) are not worth a start of workers, which takes 0.05 to 0.2 s with its end."""
MOST_DRAWING = 0.9
"""Share of the waits as epochs begin that a sampler takes, from which on to start workers is little of them."""


def _drawing_frac(long: Signature) -> float:
    """Returns the share of the long waits as epochs begin that the sampler took."""
    excess_s = long.evidence.get("epoch_start_s", 0.0) - long.evidence.get("usual_wait_s", 0.0)
    sampler_s = long.evidence.get("sampler_s", 0.0)
    return min(1.0, sampler_s / excess_s) if excess_s > 0 else 0.0


def _fewer_iterators(s: Situation) -> Advice:
    """Returns the advice where an iterator is begun for each batch, or for few of them."""
    if s.loader.get("epoch_batches") == 1 or not s.begins_each_batch:
        words = (
            "one iteration for several epochs, by a sampler that gives all indices several times"
        )
        return Advice(
            {}, words, "Nothing is fetched ahead across the end of an epoch, and these are short."
        )
    words = "one iterator for many batches, as in `for batch in loader`"
    if not s.config.workers:
        reason = (
            "Each iter(loader) begins anew, here for a batch or two: nothing can be fetched ahead."
        )
        return Advice({}, f"{words}, with workers", reason)
    anew = "fetches ahead anew"
    if s.config.persistent_workers is False:
        anew = f"starts the workers and {anew}"
    return Advice({}, words, f"Each iter(loader) {anew}, here for a batch or two.")


def _launches(s: Situation) -> Iterator[Advice]:
    larger = 2 * s.config.batch_size
    yield Advice({"batch_size": larger}, f"a batch of {larger:,}", LAUNCH_LESS[0].reason)
    if s.simulated or s.on_cpu:
        return
    graphs = {"compile": True, "compile_mode": "reduce-overhead"}
    yield Advice(graphs, "torch.compile with mode reduce-overhead", GRAPHS)
    yield Advice(
        {"fused_optimizer": True},
        "fused Adam",
        "One kernel updates all parameters, where each had several.",
    )
    words = "torch.compile, which makes one operation of several small ones"
    yield Advice({"compile": True}, words, "Fewer kernels to launch, without CUDA graphs.")


def _cache(budget: int, reason: str) -> Advice:
    return Advice({"cache_mb": float(budget)}, f"a cache in memory of {budget:,} MB", reason)


def _slow_drive(s: Situation) -> Iterator[Advice]:
    reason = "Large blocks once instead of a slow read for each file in every epoch; the copy is counted."
    yield Advice(
        {"location": "staged"}, "staging: the files copied to the local disk first", reason
    )
    combination = parts.Combination(*(getattr(s.config, kind) for kind in PARTS))
    whole = estimates.footprint(combination, s.info)
    budget = math.ceil((whole.prepared_bytes or whole.source_bytes) / 1e6)
    yield _cache(budget, "What is in memory need not be read from the slow drive again.")
    yield from _more_workers(s, "Their waits for the drive overlap.")


def _read(s: Situation) -> Iterator[Advice]:
    if s.config.location == "slow-drive":
        yield from _slow_drive(s)
        return
    if not s.jpeg or s.form == "pixels":
        yield from _in_memory(s, "Nothing is read while training.")
    if not s.warm:
        cached = f"Only {percent(s.facts['page_cached_frac'])} of the files were in the page cache"
        yield Advice(
            {"location": "ram-disk"}, "the files on a RAM disk", f"{cached}; the copy is counted."
        )
        budget = math.ceil(float(s.facts.get("storage_bytes") or 0) / 1e6)
        if budget:
            yield _cache(budget, "The drive is read once.")
    if s.form != "pixels":
        yield from _preprocessed(s, "One gather from one file in place of a file for each sample.")
        yield from _more_workers(s, "Reads of several workers overlap.")
    else:
        yield from _preprocessed(s, "A batch is one gather from one memory-mapped file.")
    yield from _in_memory(s, "Nothing is read while training.")


def _preparing(s: Situation) -> Iterator[Advice]:
    """Yields advice against CPU work for each sample: decoding, transforms, collating, Python."""
    if s.cause == "transform" and s.augments_apart and not s.on_cpu:
        yield Advice(ON_DEVICE, "augmentation on the device", BY_BATCH)
    if not s.jpeg:
        yield from _in_memory(
            s, "No decoding and no Python for each sample: one call picks a whole batch."
        )
    if s.form == "encoded":
        if s.config.decoder is not None:
            best = parts.DECODERS[s.info.kind][0]
            yield _choose("decoder", best, _faster_than(s.config.decoder, jpeg=s.jpeg))
        reason = "Threads that decode outside Python's lock, straight into the batch: no copies between processes."
        yield _choose("loader", "threads", reason)
    elif s.form == "samples" and s.jpeg:
        reason = "simplejpeg outside Python's lock, straight into the batch: on each core about twice as fast as PIL."
        yield _choose("strategy", "threads", reason)
    yield from _more_workers(s, "Loading then runs at the same time as training, on free cores.")
    if s.cause == "transform" and s.augments_apart and s.on_cpu:
        yield from _augmented_by_batch(s)
    crops = "random crops are a part of the step" if s.on_cpu else "random crops move to the device"
    yield from _preprocessed(s, f"Decoding and resizing are done once; {crops}.")
    yield from _in_memory(s, "Decoded once beforehand; one call picks a whole batch.")
    if s.jpeg and not s.on_cpu and not s.simulated:
        yield _choose("strategy", "dali", "The GPU decodes, and it has time to spare.")


def _augmented_by_batch(s: Situation) -> Iterator[Advice]:
    """Yields the advice to augment whole batches where the CPU trains, if that takes it clearly less
    time than the loader takes to augment single samples."""
    times = s.times_on_cpu(s.exposed_ms.get("transform", math.nan))
    if times >= WORTH_MOVING:
        words = "augmentation of whole batches, in the step"
        yield Advice(ON_DEVICE, words, BY_BATCH, most_times=times)


ON_DEVICE = {"augment": "device"}
BY_BATCH = "Once for a batch there, not for each sample here."
WORTH_MOVING = 1.05
"""The least gain, as a ratio, for which work is moved from the loader into a step of the CPU."""
AUGMENTING_CORE_S = 14e-9
"""Core-seconds to augment a value of an image within a batch (`engine.transforms.on_device`): 7 to 21
ns on two cores, for batches of 128 and 1,000 digits and of 16 and 64 photos."""


def _faster_than(decoder: str, *, jpeg: bool) -> str:
    """Returns why the default decoder is faster than `decoder`.

    Figures: measured (docs/results.md).
    """
    if decoder in parts.DEPRECATED_DECODERS:
        much = "twice as fast" if jpeg else "faster"
        return f"It decodes and crops {much}, and torchvision's decoding is {parts.DEPRECATED_DECODERS[decoder]}."
    figures = ": 0.87 of libturbojpeg's speed, PIL 0.56" if jpeg else ""
    return f"It decodes faster than {decoder}{figures}."


def _hand_over(s: Situation) -> Iterator[Advice]:
    if s.form == "pixels":
        yield _choose(
            "loader", "ahead", "A thread of the same process: nothing is copied between processes."
        )
    elif s.form == "encoded":
        yield _choose(
            "loader", "threads", "Threads of the same process write straight into the batch."
        )
    elif s.jpeg:
        reason = (
            "Threads of the same process, and uint8 in place of float32: a quarter of the bytes."
        )
        yield _choose("strategy", "threads", reason)
    else:
        yield from _in_memory(s, "Nothing is handed over between processes.")
    if s.config.pin_memory and s.on_cpu:
        yield Advice(
            {"pin_memory": False}, "no pinning", "Without a GPU there is nothing to pin for."
        )
    yield from _preprocessed(s, "A thread gathers uint8 rows; no processes.")


def _transfer(s: Situation) -> Iterator[Advice]:
    if s.on_cpu:
        return
    if s.form == "samples":
        reason = "uint8 in place of float32 until the device: a quarter of the bytes to copy."
        yield _choose("strategy", "threads" if s.jpeg else "memory", reason)
    if s.config.transfer == "blocking":
        reason = "From page-locked memory the copy is faster and the loop does not wait for it."
        yield _choose("transfer", "pinned", reason)
    yield _choose("transfer", "stream", "The copy runs during the previous step.")
    yield _choose("strategy", "device", "The set is in the device's memory: there is no copy.")


def _more_workers(s: Situation, reason: str) -> Iterator[Advice]:
    """Yields advice to use as many workers as there are free cores.

    One worker in place of the loop would only add a hand-over on an asynchronous device, which
    computes while the loop loads anyway.
    """
    workers, wanted, _ = workers_wanted(s)
    in_place_of_the_loop = wanted == 1 and synchronous(s.config)
    if wanted <= workers or (in_place_of_the_loop and not s.on_cpu):
        return
    settings = {"workers": wanted}
    words = f"{count(wanted, 'worker')}{part_of_machine(s)}"
    if s.config.loader == "dataloader" and not workers:
        yield Advice({"strategy": "workers", **settings}, f"strategy workers with {words}", reason)
    yield Advice(settings, words, reason)


def workers_wanted(s: Situation) -> tuple[int, int, int]:
    """Returns the number of workers, how many to use, and the free cores.

    All cores but one, for the loop, are taken as free where that was not measured.
    """
    cores = int(s.facts.get("job_cpu_count") or s.facts.get("cpu_count") or 0)
    workers = s.config.workers or 0
    free = max(0, cores - 1 - workers)
    if math.isfinite(s.free_cores):
        free = int(s.free_cores + 0.5)
    return workers, min(cores, workers + free), free


def part_of_machine(s: Situation) -> str:
    """Returns which of the machine's cores the advice rests on; "" where the job has all of
    them.
    """
    of_job = int(s.facts.get("job_cpu_count") or 0)
    of_machine = int(s.facts.get("cpu_count") or 0)
    if not 0 < of_job < of_machine:
        return ""
    return f" ({cores_in_words(of_job, of_machine)})"


def _in_memory(s: Situation, reason: str) -> Iterator[Advice]:
    if s.config.storage == "memory" or not s.gains_by_prepared_samples:
        return
    kept = s.config.storage and not parts.STORAGES[s.config.storage].on_disk  # in RAM as it is
    takes = "" if kept else f" (it takes {size(estimates.pixel_bytes(s.info))} of RAM)"
    crops = " Crops are then taken from the stored size." if s.jpeg else ""
    yield Advice({"strategy": "memory"}, f"strategy memory{takes}", reason + crops)
    yield _choose("strategy", "memory-ahead", "The next batch is made while this one trains.")


def _preprocessed(s: Situation, reason: str) -> Iterator[Advice]:
    # in memory all of that is done already
    if s.config.storage != "memory" and s.gains_by_prepared_samples:
        yield _choose("strategy", "preprocessed", reason)


def _held_up(s: Situation) -> Iterator[Advice]:
    reason = "Batches are then made with less CPU work during the training."
    yield from _preprocessed(s, reason)
    yield from _in_memory(s, reason)


RULES: dict[str, Callable[[Situation], Iterator[Advice]]] = {
    "read": _read,
    "slow_drive": _slow_drive,
    "hand_over": _hand_over,
    "transfer": _transfer,
    "held_up": _held_up,
    **dict.fromkeys(("launches", "epoch_start", ""), lambda s: iter(())),
}
"""Rules by cause of the device's idle time; `_preparing` for all other causes."""
