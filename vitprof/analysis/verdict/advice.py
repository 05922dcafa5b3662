"""What to try next: legal settings, not in use yet, aimed at the cause; for one's own script,
DataLoader arguments.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from vitprof import errors, formats
from vitprof.analysis.timing.loading import heaviest, synchronous, transform_times
from vitprof.analysis.verdict import advice_rules
from vitprof.config import (
    KNOBS,
    PARTS,
    RunConfig,
    estimates,
    own_script,
    parts,
    strategies,
)
from vitprof.config.resolve import resolve
from vitprof.datasets import catalog
from vitprof.formats import percent, seconds
from vitprof.recording.verdict import Advice

MAX_ADVICE = 3
"""Pieces of advice given at most."""
RAM_FRAC = 0.5
"""Share of the machine's memory that a data set may take: the rest is for model, workers and the
page cache."""
RESIDENT = "resident"
"""The transfer of strategy device: nothing is copied while training, so there is no transfer to
keep or to choose."""
DEVICE_FRAC = 0.5
"""Share of the device's memory that a resident data set may take: the rest is for model and
activations."""


def apply(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """Returns `config` with `settings` changed.

    If they name a strategy, its parts and knobs are to be resolved.

    The training stays the same: random augmentation moves to the device if samples are finished
    beforehand. A transfer that was chosen in place of the strategy's own is kept, unless a strategy
    copies nothing. An injected wait is dropped if no stage is left for it. Raises `ConfigError` if
    a value is not allowed.
    """
    changes: dict[str, Any] = {"name": ""}
    info = catalog.dataset_info(config.dataset, config.n_images)
    if "strategy" in settings:
        changes |= dict.fromkeys((*PARTS, *KNOBS))
        combination = strategies.strategy(str(settings["strategy"])).combination(info)
        usual = strategies.strategy(config.strategy).combination(info).transfer
        transfer = config.transfer or ""
        was_chosen = transfer not in ("", usual, RESIDENT)
        if was_chosen and "transfer" not in settings and combination.transfer != RESIDENT:
            combination = replace(combination, transfer=transfer)
            changes["transfer"] = transfer
    else:
        combination = parts.Combination(
            **{kind: settings.get(kind, getattr(config, kind)) for kind in PARTS}
        )
        changes |= dict.fromkeys(set(KNOBS) - set(combination.knobs()))
    storage = parts.STORAGES[combination.storage]
    by_sample = storage.form == "encoded" or storage.transforms
    if "strategy" in settings and config.augment == "cpu" and not by_sample:
        changes["augment"] = "device"
    if not storage.on_disk or combination.location == "ram-disk":
        changes["page_cache"] = "as-is"
    return _without_idle_injection(replace(config, **(changes | dict(settings))))


def _without_idle_injection(config: RunConfig) -> RunConfig:
    try:
        resolve(config)
    except errors.ConfigError as error:
        if error.field == "inject":
            return replace(config, inject=None)
    return config


def advise(
    situation: advice_rules.Situation,
    *,
    possible: Callable[[RunConfig], bool] | None = None,
) -> tuple[Advice, ...]:
    """Returns at most three things to try, the best first.

    `possible` says whether a resolved config can run on this machine; without it, no loader that
    needs a package of its own is advised. Advice with settings can be resolved, differs from what
    is in use, and fits into memory as far as that is known.
    """
    if own_script.is_own_script(situation.config):
        return tuple(own_script_advice(situation))[:MAX_ADVICE]
    chosen: list[Advice] = []
    in_use_or_chosen = {_key(situation.config)}
    for advice in advice_rules.advice_of_rules(situation):
        if not advice.settings:
            if advice.words not in [other.words for other in chosen]:
                chosen.append(advice)
            continue
        config = _resolved(situation.config, advice.settings)
        if config is None or _key(config) in in_use_or_chosen or not _fits(config, situation):
            continue
        if _can_run(config, possible):
            in_use_or_chosen.add(_key(config))
            chosen.append(advice)
    return tuple(chosen[:MAX_ADVICE])


def _can_run(config: RunConfig, possible: Callable[[RunConfig], bool] | None) -> bool:
    """Returns whether the job can run; without `possible`, no package of its own is known to be
    there.
    """
    if possible is not None:
        return possible(config)
    return not parts.LOADERS[config.loader or ""].packages


def _resolved(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig | None:
    try:
        return resolve(apply(config, settings))
    except errors.ConfigError:
        return None


def _key(config: RunConfig) -> tuple[Any, ...]:
    """Returns a key that is equal for resolved configs of the same job, whatever their strategies
    are called.
    """
    others = (
        "augment",
        "batch_size",
        "precision",
        "compile",
        "compile_mode",
        "fused_optimizer",
        "page_cache",
    )
    return tuple(getattr(config, name) for name in (*PARTS, *KNOBS, *others))


def _fits(config: RunConfig, situation: advice_rules.Situation) -> bool:
    """Returns whether the job fits into memory, as far as that is known; what is in use does."""
    info = catalog.dataset_info(config.dataset, config.n_images)
    needs = _footprint(config, info)
    if needs == _footprint(situation.config, info):
        return True
    facts = situation.facts
    ram_bytes = facts.get("memory_bytes")
    if ram_bytes and needs.ram_bytes > RAM_FRAC * float(ram_bytes):
        return False
    if not needs.device_bytes or situation.on_cpu:
        return True
    device_bytes = facts.get("gpu_memory_free_bytes")  # other programs may have the rest
    if device_bytes is None:
        device_bytes = facts.get("gpu_memory_bytes")
    return needs.device_bytes <= DEVICE_FRAC * float(device_bytes or 0)


def _footprint(config: RunConfig, info: catalog.DatasetInfo) -> estimates.Footprint:
    combination = parts.Combination(*(getattr(config, kind) for kind in PARTS))
    return estimates.footprint(combination, info, config.cache_mb)


LESS_SAMPLING = Advice(
    {},
    "a sampler that draws the indices of many batches at once",
    "It runs in the training loop's process, between two batches: no number of workers changes that.",
)
MAKING = ("read", "transform", "collate", "loading")
"""Causes for which batches are made too slowly."""
WATCH_THE_SCRIPT = Advice(
    {},
    "watching the script: vitprof watch -- python train.py",
    "A trace does not say which part of making a batch takes the time. Watching does.",
)
"""What a run that was read from a trace of a profiler needs before anything can be advised."""
NOT_MADE = ("sampler", "epoch_start", "hand_over")
"""Causes for which no batch that is kept ready makes up. One that waits to be handed over is made: a
`prefetch_factor` of 4 was advised for 1.3 times the speed, and gave 1.0."""
MORE_READY = 4
"""The `prefetch_factor` to advise; PyTorch's own is 2."""


def own_script_advice(s: advice_rules.Situation) -> Iterator[Advice]:
    """Yields what may help, the best first. `settings` are empty: vitprof cannot set any of it."""
    if s.kind == "not input-bound" and s.sure:
        return
    if s.cause == "launches":
        yield from advice_rules.LAUNCH_LESS[: 1 if s.on_cpu else None]
        return
    if s.is_disturbed:
        yield advice_rules.END_OTHERS
        yield from _one_thread(s)
        return
    if s.facts.get("trace") and s.cause in MAKING:
        yield WATCH_THE_SCRIPT
    if s.facts.get("loader_waits_for_ranks") and not s.config.workers:
        reason = "Workers cannot run those of the dataset or collate_fn: batches are made in the training loop."
        yield Advice({}, "taking the collectives out of the loader", reason)
        return
    if s.cause == "sampler":
        yield LESS_SAMPLING
    yield from _against_causes(s)
    if "sampler" in s.causes and s.cause != "sampler":
        yield LESS_SAMPLING
    if "transfer" in (s.cause, *s.causes) and not s.on_cpu and not s.config.pin_memory:
        reason = "With non_blocking=True in .to(), pinned batches are copied without another copy on the host."
        yield advice_rules.argument(s, "pin_memory", True, reason)


def _against_causes(s: advice_rules.Situation) -> Iterator[Advice]:
    """Yields what helps against slow making, handing over and beginning."""
    loader = s.facts.get("watched") or {}
    workers = s.config.workers or 0
    fewer = []
    if s.cause == "hand_over":
        fewer = list(_fewer_workers(s, workers))
    yield from fewer
    yield from advice_rules.epoch_starts(s)
    if s.cause == "cpu_contention":
        yield advice_rules.END_OTHERS
        yield from _one_thread(s)
    making = []
    if not fewer:
        making = [cause for cause in (s.cause, *s.causes) if cause in MAKING]
    # of an iterator for each batch, what workers make ahead is thrown away
    if making and not workers and s.iteration_s < advice_rules.SHORT_ITERATION_S:
        yield from _workers_that_stay(s)
    elif making and not s.begins_each_batch:
        yield from _make_concurrently(s, loader)
    if workers and not fewer and s.cause not in NOT_MADE and not s.begins_each_batch:
        yield from _more_ready(s, workers)
    if workers:
        making.append(s.cause)
    for cause in dict.fromkeys(making):
        yield from _lighter(s, cause)


THREADS_WAITED_FRAC = 0.25
"""Share of the time of making batches for which threads of PyTorch had no core, from which one thread is
advised."""


def _one_thread(s: advice_rules.Situation) -> Iterator[Advice]:
    """Yields the advice to take one thread of PyTorch where other programs have cores that several want.

    The threads of an operation wait for each other: one without a core holds up all. While other
    programs used 1.4 of two cores, 76 steps with a blur took 177 s with two threads; with one they
    took 41 s before that, and 43 s after it.
    """
    threads = int(s.facts.get("torch_threads") or 1)
    stages = ((s.facts.get("making") or {}).get("stages") or {}).values()
    took_s = math.fsum(stage["took_s"] for stage in stages)
    waited_s = math.fsum(stage["threads_queued_s"] for stage in stages)
    in_the_loop = not s.config.workers
    if not in_the_loop or threads < 2 or not took_s or waited_s < THREADS_WAITED_FRAC * took_s:
        return
    waited = percent(min(1.0, waited_s / took_s))
    reason = (
        f"{threads} threads make a batch together, and some had no core for {waited} of that time: the "
        "others wait for them."
    )
    yield Advice({}, "one thread of PyTorch while these programs run: OMP_NUM_THREADS=1", reason)


def _make_concurrently(s: advice_rules.Situation, loader: Mapping[str, Any]) -> Iterator[Advice]:
    """Yields advice to make more batches at once, with workers or, without a DataLoader, with
    one.
    """
    if own_script.is_dataloader(loader):
        yield from _more_dataloader_workers(s, loader)
        return
    name = loader.get("dataset") or "what makes the batches"
    ahead = "whose workers make batches ahead"
    words = f"more workers or threads in {name}, or a DataLoader around its samples, {ahead}"
    yield Advice({}, words, f"The loop waits for {name} to make a batch.")


def _workers_that_stay(s: advice_rules.Situation) -> Iterator[Advice]:
    """Yields the advice to have workers where iterations are short: to start them takes as long."""
    if s.begins_each_batch:
        return
    reason = f"An iteration over the loader takes {seconds(s.iteration_s)}: workers would be started for each."
    yield Advice({}, "longer epochs, or one loader for all of them whose workers stay", reason)


def _more_ready(s: advice_rules.Situation, workers: int) -> Iterator[Advice]:
    """Yields advice to keep more batches ready, where only some are made too slowly."""
    if (s.config.prefetch_factor or 2) >= MORE_READY:
        return
    batch_ms = s.making_ms / workers
    work_ms = s.step_ms - s.idle_ms + s.sampler_ms
    # Beside a step that is mostly a wait anything is quick: the workers have to keep up with the work.
    if batch_ms < min(EVEN * s.step_ms, work_ms):
        reason = (
            "Workers are fast enough on average: more batches kept ready make up for slow ones."
        )
        advice = advice_rules.argument(s, "prefetch_factor", MORE_READY, reason)
        yield replace(advice, most_times=s.step_ms / work_ms)


def _fewer_workers(s: advice_rules.Situation, workers: int) -> Iterator[Advice]:
    """Yields advice against workers whose hand-over takes longer than making batches in the
    loop.
    """
    cores = int(s.facts.get("job_cpu_count") or s.facts.get("cpu_count") or 0)
    handing_ms = s.idle_ms - s.sampler_ms
    if workers and s.making_ms < handing_ms:
        takes = f"Making a batch takes {seconds(s.making_ms / 1e3)}, its hand-over {seconds(handing_ms / 1e3)} more"
        reason = f"{takes}: in the training loop itself nothing is handed over."
        yield advice_rules.argument(s, "num_workers", 0, reason)
    elif 0 < cores < workers:
        yield advice_rules.argument(
            s, "num_workers", cores, f"{workers} workers take turns on {cores} cores."
        )


def _lighter(s: advice_rules.Situation, cause: str) -> Iterator[Advice]:
    """Yields advice to do less of what takes longest."""
    if cause == "hand_over":
        yield _lighter_batches(s)
        return
    watched = s.facts.get("watched") or {}
    if cause == "read" and s.waits:
        words = FETCHING_SAMPLES
        if watched.get("iterable"):
            words = FETCHING_A_STREAM
        elif watched.get("by_batch"):
            words = FETCHING_A_BATCH
        waiting = percent(s.waiting_frac)
        yield Advice({}, words, f"{waiting} of the time of making a batch is a wait, not CPU work.")
        return
    saved_ms = s.exposed_ms.get(cause, math.nan)
    if cause == "read":
        saved_ms = math.nan  # what of it a change would save is not known
        cause = _work_of_dataset(s)
    if cause == "transform":
        yield _lighter_transforms(s, saved_ms)
        return
    words, work = LIGHTER.get(cause, ("", ""))
    in_short = ""
    if cause == "collate":
        in_short = COLLATE
        if watched.get("iterable") or watched.get("by_batch"):
            words = COLLATE
    if words:
        reason = _goes_into(s, cause, work)
        yield Advice({}, words, reason, most_times=_times(s, saved_ms), in_short=in_short)


ONCE = "the non-random transforms done once, in advance"


def _lighter_transforms(s: advice_rules.Situation, saved_ms: float) -> Advice:
    """Returns the advice against slow transforms, which names the heaviest one if it is known.

    `saved_ms`: by how much a step would be shorter without all of them; `most_times` is of the
    heaviest one alone.
    """
    words, work = LIGHTER["transform"]
    most = heaviest(transform_times(s.facts))
    if s.on_cpu:  # the device is where transforms run anyway
        in_short = "lighter transforms" if most is None else f"a lighter {most.name}"
        words = f"{in_short}, or {ONCE}"
    elif most is not None:
        in_short = f"{most.name} on the device"
        words = f"{in_short}, and {ONCE}"
    else:
        in_short = "transforms on the device"
    if most is not None:
        work += f", {percent(most.frac)} of that into {most.name}"
        saved_ms *= most.frac
    reason = _goes_into(s, "transform", work)
    return Advice({}, words, reason, most_times=_times(s, saved_ms), in_short=in_short)


def _work_of_dataset(s: advice_rules.Situation) -> str:
    """Returns what takes longest in a dataset, a key of `LIGHTER`. Where it opens files and no Compose was seen, it
    may transform the samples itself: a faster decoder was advised for a blur in `__getitem__`."""
    making = s.facts.get("making") or {}
    if "opened" not in making or making["opened"] < making["batches"]:
        return "read"
    return "files" if transform_times(s.facts) else "files and more"


def _goes_into(s: advice_rules.Situation, cause: str, work: str) -> str:
    """Returns how much of the training time a stage of loading costs: "42% of the training time goes
    into transforms."."""
    stage = "read" if cause.startswith("files") else cause
    frac = s.waited_fracs.get(stage, math.nan)
    how_much = "Training time" if math.isnan(frac) else f"{percent(frac)} of the training time"
    return f"{how_much} goes into {work}."


def _times(s: advice_rules.Situation, saved_ms: float) -> float:
    """Returns how many times as fast a step is that is `saved_ms` shorter, at most; NaN if it is not
    known."""
    left_ms = s.step_ms - saved_ms
    return s.step_ms / left_ms if left_ms > 0 else math.nan


def _lighter_batches(s: advice_rules.Situation) -> Advice:
    """Returns the advice against batches that are made, and cross slowly from the workers."""
    of_batch = s.facts.get("handed_over") or {}
    tensors = int(of_batch.get("tensors") or FEW_TENSORS + 1)
    if tensors <= FEW_TENSORS and of_batch["bytes"] < SMALL_BYTES:
        reason = "Each takes about as long to cross from its worker, however small it is."
        return Advice({}, "larger batches", reason)
    reason = "Most of the wait is for batches that are made, on their way from a worker."
    words = "batches of few large tensors, converted on the device"
    if s.on_cpu:
        words = "batches of few large tensors, converted in the training loop"
    return Advice({}, words, reason)


FEW_TENSORS = 4
SMALL_BYTES = 1 << 20
"""Up to so many tensors, and fewer bytes in all of them, a batch cannot cross much faster."""
SPARE = 1.25
"""How much faster than the device workers should be together: each makes its batches unevenly."""
MOST_FOR_WAITS = 16
"""The most workers to advise where they mostly wait."""
EVEN = 0.9
"""Share of a step in which the workers make a batch, below which only some batches are slow: where
all are, a step takes as long."""
WHAT_IS_WAITED_FOR = "what the dataset waits for (a network, a drive)"
FETCHING_SAMPLES = f"fetching {WHAT_IS_WAITED_FOR} for a whole batch at once, in __getitems__"
FETCHING_A_BATCH = (
    f"fetching {WHAT_IS_WAITED_FOR} for the samples of a batch at the same time, as by threads"
)
"""For a dataset that makes a whole batch already, by `__getitems__` or by itself."""
FETCHING_A_STREAM = f"fetching {WHAT_IS_WAITED_FOR} ahead, in larger parts or by threads"
"""For an IterableDataset: nobody asks it for several samples."""
COLLATE = "a collate function that fills one tensor"
LIGHTER = {
    "read": ("less work in the dataset for each sample", "the dataset, without its transforms"),
    "files": (
        "a faster decoder, smaller files, or samples kept decoded in one memory-mapped file",
        "the dataset: reading and decoding",
    ),
    "files and more": (
        "less work in the dataset for each sample: smaller images, lighter transforms, a faster decoder, or samples "
        "kept ready in one memory-mapped file",
        "the dataset: reading, decoding, and what else it does with a sample",
    ),
    "transform": (
        "transforms on the device, or the non-random ones done once, in advance",
        "transforms",
    ),
    "collate": (
        f"{COLLATE}, or __getitems__ in the dataset",
        "putting samples together",
    ),
}
"""What takes longest -> what to try, and what the training time goes into."""


def _more_dataloader_workers(
    s: advice_rules.Situation, loader: Mapping[str, Any]
) -> Iterator[Advice]:
    """Yields advice to use as many workers as keep up and have a free core.

    Of an IterableDataset no more than it has shards, and only where it is known to divide its samples.

    Where batches mostly wait they need no core of their own. One worker in place of the loop is
    advised where a device computes meanwhile, or a core was measured to be free: on the CPU the
    training itself may use all the others.
    """
    workers, wanted, free = advice_rules.workers_wanted(s)
    cores = int(s.facts.get("job_cpu_count") or s.facts.get("cpu_count") or 1)
    work_ms = max(s.step_ms - s.idle_ms + s.sampler_ms, s.making_ms / MOST_FOR_WAITS)
    if s.waits:
        most = max(2, int(cores / (1.001 - s.waiting_frac)))  # more would need more cores
        wanted = max(wanted, min(most, math.ceil(s.making_ms / work_ms)))
    elif s.making_ms > 0 and work_ms > 0:
        wanted = min(wanted, max(workers + 1, math.ceil(SPARE * s.making_ms / work_ms)))
        if s.making_cores > 1:
            wanted = min(wanted, max(1, int(cores / s.making_cores)))
    unsure = s.on_cpu and math.isnan(s.free_cores)
    if wanted > max(1, workers) and loader.get("iterable"):
        shards = loader.get("shards")
        if shards is not None and shards <= max(1, workers):
            yield _more_shards(loader, shards)
            return
        if not loader.get("divides"):
            yield _divide_first(loader)
            return
        wanted = min(wanted, shards or wanted)
    if wanted <= workers or (wanted == 1 and synchronous(s.config) and unsure):
        return
    now = "in the training loop itself"
    if workers:
        now = f"by {formats.count(workers, 'worker')}"
    if s.waits:
        reason = f"Batches are made {now}, each mostly a wait: workers wait at once, unless for one drive or lock."
    else:
        cores_are = "core is" if free == 1 else "cores are"
        reason = f"Batches are made {now}; about {free} more {cores_are} free."
    advice = advice_rules.argument(
        s, "num_workers", wanted, reason, advice_rules.part_of_machine(s)
    )
    if s.making_ms > 0:
        least_ms = max(s.making_ms / wanted, work_ms)
        if s.making_cores > 0:  # however many workers share the cores
            least_ms = max(least_ms, s.making_ms * s.making_cores / cores)
        advice = replace(advice, most_times=s.step_ms / least_ms)
    yield advice


def _more_shards(loader: Mapping[str, Any], shards: int) -> Advice:
    has = formats.count(shards, "shard")
    reason = f"{loader.get('dataset')} has {has}, and each worker reads whole ones: more workers have nothing to do."
    return Advice({}, "storing the samples in more shards, and then more workers", reason)


def _divide_first(loader: Mapping[str, Any]) -> Advice:
    """Returns the advice where it cannot be told whether workers would share the samples."""
    reason = (
        f"{loader.get('dataset')} is an IterableDataset, and nothing in its code is seen to ask for its worker: "
        "then each worker gives all samples, and nothing is faster. More workers are no advice before that."
    )
    words = "giving each worker its part of the samples (torch.utils.data.get_worker_info), then workers"
    return Advice({}, words, reason)
