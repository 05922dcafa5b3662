"""What a verdict rests on: the columns of a run, and what follows from them."""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from vitprof.analysis import arrays, thresholds
from vitprof.analysis.signatures.resources import (
    Contention,
    cores_taken,
    find_contention,
    free_cores,
    making_waited_ms,
    saturated,
    waiting_frac,
)
from vitprof.analysis.timing import core_waits
from vitprof.analysis.timing.gaps import RunGaps
from vitprof.analysis.timing.loading import Exposure, find_exposure, synchronous
from vitprof.analysis.timing.steady import Trace, training
from vitprof.analysis.timing.summary import gpu_util_pct
from vitprof.analysis.verdict.headroom import Headroom, own_headroom
from vitprof.config import RunConfig, own_script, parts
from vitprof.recording.columns import TIMED_STAGES, Phase
from vitprof.recording.verdict import (
    CoresTaken,
    DeviceKind,
    Gain,
    HeldUp,
    Kind,
    OtherPrograms,
    Share,
    SlowestLoader,
)

CPU_WORK = (*(stage for stage in TIMED_STAGES if stage != "read"), "rest", "loading", "hand_over")
"""Stages of loading that are CPU work; a read mostly waits."""
UNEVEN = 1.5
"""How many times as much as on average other programs may run in one stage: they go on with what they do as it suits
them."""
FREE_CORES = 0.25
"""With fewer free cores than this a script that seems to sleep may wait for a core, or for a thread
that does."""


def device_kind(config: RunConfig, facts: Mapping[str, Any]) -> DeviceKind:
    """Returns what the run's environment (in `facts`) says that trains, else what `config` asks
    for."""
    if facts.get("untested_device"):
        return "untested"
    name = str(facts.get("device") or config.device)
    if name.startswith("simulated"):
        return "simulated"
    if name == "cpu" or (name == "auto" and not facts.get("cuda_version")):
        return "cpu"
    return "gpu"


def before_model_frac(facts: Mapping[str, Any]) -> float:
    """Returns the share of the time between the loader and the model, where batches may be
    prepared; 0 where it is little."""
    frac = float(facts.get("outside_next_frac") or 0.0)
    return frac if frac > thresholds.OUTSIDE_NEXT_FRAC else 0.0


def left_early_frac(facts: Mapping[str, Any]) -> float:
    """Returns the share of the time in which workers ended of loops that were left early; 0 where it is little."""
    frac = float(facts.get("left_early_frac") or 0.0)
    return frac if frac > thresholds.OUTSIDE_NEXT_FRAC else 0.0


def read_in_step_bytes(facts: Mapping[str, Any]) -> float:
    """Returns the bytes that the thread that trains reads itself in a step, after its batch has
    come; 0 where most steps read little."""
    reading_frac = float(facts.get("reading_steps_frac") or 0.0)
    if reading_frac < thresholds.READING_STEPS_FRAC:
        return 0.0
    return float(facts.get("step_read_bytes") or 0.0)


def slowest_loader(facts: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns the facts of the loader that is waited for longest, with its `share` of all waits;
    None where a step asks one."""
    loaders = [loader for loader in facts.get("loaders") or [] if loader["wait_s"]]
    total_s = sum(loader["wait_s"] for loader in loaders)
    if not total_s:
        return None
    slowest = max(loaders, key=lambda loader: loader["wait_s"])
    return {**slowest, "share": slowest["wait_s"] / total_s}


class Evidence:
    """A run, and what its verdict rests on; each figure is computed when it is first needed.

    `trace.config` is resolved. `headroom` is the speed-up that replaying batches measured, if it
    was. `gaps` are the run's, if already known. `exposure` and what follows from it need a run
    whose device was timed.
    """

    def __init__(
        self,
        trace: Trace,
        phases: Sequence[Phase],
        headroom: Headroom | None,
        gaps: RunGaps | None,
    ) -> None:
        self.trace = trace
        self.config = trace.config
        self.facts = trace.facts
        self.phases = phases
        self.device = device_kind(trace.config, trace.facts)
        self._headroom = headroom
        self._gaps = gaps

    @property
    def on_cpu(self) -> bool:
        """Returns whether the CPU trains."""
        return self.device == "cpu"

    @property
    def n_recorded(self) -> int:
        """Returns the number of steps recorded, steady or not."""
        return len(self.trace.steps["step"])

    @functools.cached_property
    def gaps(self) -> RunGaps:
        """Returns what the device waited for between its steps."""
        return self._gaps or RunGaps.of(self.trace.steps, self.phases)

    @functools.cached_property
    def exposure(self) -> Exposure:
        """Returns for how long the device idled for data, and for what."""
        return find_exposure(self.config, self.trace.steps, self.phases, self.gaps)

    @functools.cached_property
    def contention(self) -> Contention:
        """Returns what other programs cost of the idle time: where it is known what each stage waited, that, as far as
        others can have caused it; else what telemetry saw of all threads.

        A thread of the job's that waits for a core waits for another program, or for another thread of the job. The
        first can't be longer than other programs ran.
        """
        lost_ms = [self._lost_ms(share) for share in self.exposure.shares]
        if not any(map(math.isfinite, lost_ms)):
            return find_contention(self.trace, self.exposure.idle_ms, on_cpu=self.on_cpu)
        if not self.saw_other_programs:
            return Contention(0.0, self.on_cpu)
        return Contention(math.fsum(filter(math.isfinite, lost_ms)), self.on_cpu)

    def _lost_ms(self, share: Share) -> float:
        """Returns the milliseconds of a stage's idle time for which its thread had no core, because of other
        programs; NaN where that is not known."""
        use = self._use_of(share.name)
        if use is None:
            return math.nan
        queued_frac = min(use["queued_s"] / use["took_s"], self.cores_taken.cores)
        return share.frac * self.exposure.idle_ms * queued_frac

    def _use_of(self, stage: str) -> Mapping[str, float] | None:
        """Returns what a stage used of the cores (`StageUse`); None where it was not looked at."""
        stages = (self.facts.get("making") or {}).get("stages") or {}
        use = stages.get(stage)
        return use if use is not None and use["took_s"] > 0 else None

    @functools.cached_property
    def cores_taken(self) -> CoresTaken:
        """Returns what other programs took of the cores."""
        lost_frac = math.nan
        if self.stage_bounds:
            whole_ms = math.fsum(each.took for each in self.stage_bounds.values())
            lost_ms = core_waits.lost_together(self.stage_bounds, self._waited_at_most_ms)
            lost_frac = lost_ms / whole_ms
        return replace(cores_taken(self.trace), waited_frac=lost_frac)

    @property
    def saw_other_programs(self) -> bool:
        """Returns whether other programs took so much that waits for a core may be theirs."""
        return cores_taken(self.trace).cores >= thresholds.OTHERS_SEEN_CORES

    @functools.cached_property
    def stage_bounds(self) -> dict[str, core_waits.Bounds]:
        """Returns the idle milliseconds a batch by stage, and what they may be if each thread always had a core.

        Of a stage that was not looked at it is known what all threads waited in the whole batch. Any part of that may
        be its. Where the system does not count it, they may have waited if all cores were busy. It is never more than
        the time in which other programs ran: threads wait for each other without these, too.
        """
        waited_ms = making_waited_ms(self.trace)
        others_frac = min(1.0, UNEVEN * cores_taken(self.trace).cores)
        bounds = {}
        for share in self.exposure.shares:
            idle_ms = share.frac * self.exposure.idle_ms
            use = self._use_of(share.name)
            queued_ms = 0.0
            may_ms = waited_ms
            if not math.isfinite(waited_ms):
                may_ms = idle_ms if self.saturated else 0.0
            if use is not None:
                queued_ms = idle_ms * use["queued_s"] / use["took_s"]
                may_ms = idle_ms * (
                    use["threads_queued_s"] / use["took_s"] + self._unseen_frac(share)
                )
            if share.name == "read" and self.config.location == "slow-drive":
                may_ms = 0.0  # its own limit, whatever the CPU does meanwhile
            may_ms = min(may_ms, others_frac * idle_ms)
            bounds[share.name] = core_waits.bounds_of(idle_ms, queued_ms, may_ms)
        return bounds

    def _unseen_frac(self, share: Share) -> float:
        """Returns the share of a stage's time that batches which were not looked at took more than those that were:
        waits are rare and long, and that may be some."""
        making = self.facts["making"]
        batches = int(making.get("looked_batches") or 0)
        if not batches or not share.own_ms > 0:
            return 0.0
        looked_ms = 1e3 * float(making["stages"][share.name]["took_s"]) / batches
        return max(0.0, 1 - looked_ms / share.own_ms)

    @property
    def is_unclear(self) -> bool:
        """Returns whether another stage than the largest one may take longest without other programs."""
        if not self.saw_other_programs or not self.stage_bounds:
            return False
        return not core_waits.surely_longest(self.stage_bounds, self._waited_at_most_ms)

    @property
    def _waited_at_most_ms(self) -> float:
        """Returns what threads waited for a core in a whole batch, where no stage of it was looked at by itself;
        infinite where one was, or where it is not counted."""
        looked_at = any(self._use_of(name) is not None for name in self.stage_bounds)
        waited_ms = making_waited_ms(self.trace)
        return math.inf if looked_at or not math.isfinite(waited_ms) else waited_ms

    @functools.cached_property
    def saturated(self) -> bool:
        """Returns whether other programs take CPU that the job would use."""
        return saturated(self.trace)

    @functools.cached_property
    def launching_held_up_frac(self) -> float:
        """Returns the share of the time in which Python is kept from launching the model's work, by
        the loader or by other programs.

        0 where that is little, not known, or of no matter since the device sets the pace. Not in a
        thread of the dashboard's: others of its threads may want Python's lock.
        """
        config = self.config
        if config.replay or config.isolation == "thread" or synchronous(config):
            return 0.0
        exposure = self.exposure
        off_cpu = float(self.facts.get("held_up_frac") or 0.0)
        if off_cpu < thresholds.HELD_UP_FRAC or not exposure.host_paced:
            return 0.0
        held_up = off_cpu * (1 - exposure.idle.value - exposure.outside.value)
        if math.isfinite(exposure.launches.value):
            return min(held_up, exposure.paced.value)
        return held_up

    @property
    def held_up_frac(self) -> float:
        """Returns the same as far as it is surely the loader that does so."""
        return 0.0 if self.saturated else self.launching_held_up_frac

    @functools.cached_property
    def kind(self) -> Kind:
        """Returns the class of the run."""
        return self.kind_with(self.held_up_frac)

    def kind_with(self, held_up: float) -> Kind:
        """Returns the class of the run if launches that were `held_up` count as idle for data."""
        exposure = self.exposure
        low = exposure.idle.low + held_up
        least_paced = exposure.paced.low - held_up
        if self.pace_decides(held_up) and least_paced >= thresholds.LAUNCH_BOUND_FRAC:
            return "launch-bound"
        if low < thresholds.MODERATE_FRAC:
            return "not input-bound"
        return "moderately input-bound" if low < thresholds.INPUT_BOUND_FRAC else "input-bound"

    def pace_decides(self, held_up: float) -> bool:
        """Returns whether the run may be launch-bound, by the estimates of what the device waits
        for."""
        exposure = self.exposure
        paced = exposure.paced.value - held_up
        return paced >= thresholds.LAUNCH_BOUND_FRAC and paced > exposure.idle.value + held_up

    @functools.cached_property
    def cause(self) -> tuple[str, float, float]:
        """Returns the cause (`Verdict.cause`), its share of the idle time and the milliseconds a
        batch that it costs.

        Where loading waited for cores that other programs had, they are the cause if that is more than the largest
        stage takes without them. Which stage that is may be unclear. Where the CPU trains the idle share is the same
        without them, as they slow loading and training alike; its cause may be another one.
        """
        exposure = self.exposure
        step_ms = self.trace.step_s * 1e3
        held_up = self.held_up_frac
        if self.kind == "launch-bound":
            return "launches", 1.0, exposure.paced.value * step_ms
        if held_up > exposure.idle.value:
            return "held_up", held_up / (held_up + exposure.idle.value), held_up * step_ms
        if not exposure.shares:
            return "", math.nan, math.nan
        largest = exposure.shares[0]
        # its own limit, whatever the CPU does meanwhile
        if largest.name == "read" and self.config.location == "slow-drive":
            return "slow_drive", largest.frac, largest.exposed_ms
        waited_ms = self.contention.waited_ms
        if self.is_inflated and waited_ms >= self._idle_ms_without_others(largest):
            return "cpu_contention", waited_ms / exposure.idle_ms, waited_ms
        if self.is_unclear:
            return "unclear", math.nan, math.nan
        return largest.name, largest.frac, largest.exposed_ms

    def _idle_ms_without_others(self, share: Share) -> float:
        """Returns the idle milliseconds of a stage without its part of what other programs cost: in proportion, where
        it was not looked at."""
        lost_ms = self._lost_ms(share)
        if not math.isfinite(lost_ms):
            lost_ms = share.frac * self.contention.waited_ms
        return share.frac * self.exposure.idle_ms - lost_ms

    @property
    def is_inflated(self) -> bool:
        """Returns whether waits for other programs are a good part of the largest stage, which is CPU work."""
        largest = self.exposure.shares[0] if self.exposure.shares else None
        if largest is None or largest.name not in CPU_WORK:
            return False
        return self.contention.inflates(largest.exposed_ms)

    @property
    def cause_part(self) -> str:
        """Returns what has the cause (`Verdict.cause_part`)."""
        cause, _, _ = self.cause
        config = self.config
        if cause == "read" and own_script.is_own_script(config):
            return "waits" if self.mostly_waits else "dataset"
        if cause == "read":
            storage = parts.STORAGES.get(config.storage or "")
            return storage.title if storage else ""
        if cause == "decode":
            loader = parts.LOADERS.get(config.loader or "")
            if loader is not None and loader.decodes:
                return loader.title
            return config.decoder or "PIL"
        if cause == "hand_over" and synchronous(config):
            return "loop"
        return ""

    @property
    def sampler_ms(self) -> float:
        """Returns the milliseconds that the sampler takes in a step, also where workers are behind anyway: with more
        of them the loop waits for it."""
        sampler_s = arrays.column(self.trace.steps, "sampler_s")[self.trace.steady]
        return 1e3 * arrays.mean(np.nan_to_num(sampler_s))

    @property
    def mostly_waits(self) -> bool:
        """Returns whether making a batch is mostly a wait: for a network, a drive, a lock."""
        return waiting_frac(self.trace) >= thresholds.WAITING_FRAC

    @property
    def idle_frac_without_others(self) -> float:
        """Returns the share of the time that the device would idle for data without other
        programs."""
        exposure = self.exposure
        return self.contention.idle_frac_without(exposure.idle_ms, exposure.step_s * 1e3)

    @property
    def other_programs(self) -> OtherPrograms | None:
        """Returns what other programs did to the idle time; None where that is little."""
        if not self.contention.inflates(self.exposure.idle_ms):
            return None
        return OtherPrograms(self.idle_frac_without_others, self.contention.of_training_too)

    @property
    def held_up(self) -> HeldUp | None:
        """Returns how the loader keeps Python from launching; None where it hardly does."""
        if not self.held_up_frac:
            return None
        by_processes = parts.LOADERS[self.config.loader or ""].made_by == "processes"
        makers: Literal["worker", "thread"] = "worker" if by_processes else "thread"
        return HeldUp(self.held_up_frac, makers, self.config.workers or 1)

    @property
    def shares_cpu_with(self) -> Literal["", "training", "launches"]:
        """Returns what takes longer because batches are made meanwhile; "" where nothing does."""
        if synchronous(self.config):
            return ""
        if self.on_cpu:
            return "training"
        return "launches" if self.exposure.host_paced else ""

    @property
    def outside_frac(self) -> float:
        """Returns the share of the time between steps that went into something else."""
        frac = self.exposure.outside.value
        if self.on_cpu:  # whose steps have no device work that marks their ends
            frac = max(frac, float(self.facts.get("between_steps_frac") or 0.0))
        return frac

    @property
    def asleep_frac(self) -> float:
        """Returns the share of the time asleep after the model's call; NaN if that may be no
        sleep."""
        slept_frac = float(self.facts.get("slept_frac") or 0.0)
        if slept_frac >= thresholds.OUTSIDE_TOLD_FRAC:
            return slept_frac
        # "not at least": where it is not known how many cores are free, it may wait for one
        if not free_cores(self.trace) >= FREE_CORES:
            return math.nan
        return float(self.facts.get("asleep_frac") or 0.0)

    @property
    def before_model_frac(self) -> float:
        """Returns the share of the time between the loader and the model; 0 where it is little."""
        return before_model_frac(self.facts)

    @property
    def left_early_frac(self) -> float:
        """Returns the share of the time in which workers ended of loops that were left early; 0 where it is
        little."""
        return left_early_frac(self.facts)

    @property
    def slowest_loader(self) -> SlowestLoader | None:
        """Returns the loader that is waited for longest; None where a step asks one."""
        slowest = slowest_loader(self.facts)
        if slowest is None:
            return None
        alike = [
            loader
            for loader in self.facts["loaders"]
            if loader.get("dataset") == slowest.get("dataset")
        ]
        waits_s = [loader["wait_s"] for loader in alike]
        return SlowestLoader(
            str(slowest["dataset"]),
            slowest["share"],
            nth=waits_s.index(slowest["wait_s"]) + 1,
            n_alike=len(alike),
        )

    @property
    def gpu_util_frac(self) -> float:
        """Returns the share of the time in which NVML saw a kernel run; NaN if not known."""
        if self.device != "gpu":
            return math.nan
        trace = self.trace
        return gpu_util_pct(trace.telemetry, trace.steps, self.phases, self.facts) / 100

    @property
    def samples_per_s(self) -> float:
        """Returns the throughput over the wall clock of training."""
        steps = self.trace.steps
        counted = training(steps)
        samples = float(steps["samples"][counted].sum())
        return samples / float(np.nansum(steps["step_s"][counted]))

    @property
    def starved_frac(self) -> float:
        """Returns the share of the time idle for data in few steady steps, if each was mostly that;
        NaN else.
        """
        steady = self.gaps.steady
        idle_s = steady.exposed_wait_ns / 1e9 + steady.by_step("h2d")
        whole_s = steady.idle_s + steady.compute_ns / 1e9
        mostly_idle = bool((idle_s > 0.5 * whole_s).all())
        if len(idle_s) < thresholds.LEAST_STARVED_STEPS or not mostly_idle:
            return math.nan
        return float(idle_s.sum() / whole_s.sum())

    @property
    def loop_waits_frac(self) -> float:
        """Returns the share of the loop's time that it waits for data; NaN without two steady steps
        in a row."""
        steps = self.trace.steps
        steady = self.trace.steady
        rows = np.flatnonzero(steady[:-1] & steady[1:])
        if not len(rows):
            return math.nan
        since_s = steps["t_start_s"]
        took_s = float((since_s[rows + 1] - since_s[rows]).sum())
        return float(steps["data_wait_s"][rows].sum()) / took_s

    @functools.cached_property
    def gain(self) -> Gain | None:
        """Returns what free data would gain: as measured in other runs or in a script's own, else
        estimated.

        The estimate: the same steps without the time that the device idled for data, and without
        launches that were held up. A headroom is one of the steady steps: where epochs begin with
        long waits it is what the steps between would gain. One of other runs above the estimate is
        none: they lost more to loading. None where batches may be prepared between the loader and
        the model, where workers ended of loops that were left early, and where other ranks, which this one waits for,
        were not seen.
        """
        others_known = self.facts.get("world_size", 1) < 2 or self.facts.get("ranks")
        if not others_known or self.before_model_frac or self.left_early_frac:
            return None
        estimate = arrays.Interval(*(_without(x + self.held_up_frac) for x in self.exposure.idle))
        measured, of_other_runs = self._measured_gain(estimate)
        if not math.isfinite(measured.value):
            return Gain(*estimate, basis="estimate")
        if self.exposure.starts.frac >= thresholds.EPOCH_STARTS_FRAC:
            return Gain(*estimate, basis="estimate", between_starts=measured.value)
        if not of_other_runs:
            return Gain(*measured, basis="this run")
        # what remains of a step with free data, in those runs and in this one: where more remains
        # in those, they lost less to loading
        remaining_there = 1 / measured.high
        remaining_here = 1 - self.exposure.idle.low
        lost_less = remaining_there > remaining_here + thresholds.EQUAL_FRAC
        return Gain(*measured, basis="other runs", lost_less=lost_less)

    def _measured_gain(self, estimate: arrays.Interval) -> tuple[arrays.Interval, bool]:
        """Returns the gain that replaying batches measured (NaN where none was), and whether other
        runs did."""
        headroom = self._headroom
        if headroom is not None and math.isfinite(headroom.speed_up):
            gain = arrays.Interval(headroom.speed_up, headroom.speed_up_low, headroom.speed_up_high)
            # where the CPU trains, or the host sets the pace, loading slows the steps themselves
            # down: the estimate is no bound
            bounded = not self.on_cpu and not self.exposure.host_paced
            if bounded and gain.low > estimate.high:
                gain = arrays.UNKNOWN
            return gain, True
        own = own_headroom(self.facts)
        if own is None:
            return arrays.UNKNOWN, False
        return own.speed_up, False  # of this very run, which lost as much to loading


def _without(share: float) -> float:
    """Returns how many times as fast a job is without this `share` of its time."""
    return 1 / (1 - share) if share < 1 else math.inf
