"""The figures of a run, from its steps, telemetry and phases; of a running job, from sums over its steady steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitprof.analysis import thresholds
from vitprof.analysis.arrays import (
    Floats,
    Interval,
    Mask,
    Series,
    column,
    highest,
    known,
    mean,
)
from vitprof.analysis.intervals import ratio_interval
from vitprof.analysis.timing import steady
from vitprof.analysis.timing.chain import covered_before, nanoseconds, spans_of
from vitprof.analysis.timing.compute_parts import divide_compute, divided_figures
from vitprof.analysis.timing.energy import TrainingEnergy, training_energy
from vitprof.analysis.timing.gaps import Gaps, RunGaps, find_gaps
from vitprof.config import RunConfig, accelerators, own_script, parts
from vitprof.recording.columns import TIMED_STAGES, Phase, RunSummary, Stop


@dataclass(frozen=True)
class StepSums:
    """Sums over the wall clock of training so far, and figures that follow from them."""

    steps: int = 0
    samples: float = 0.0
    step_s: float = 0.0
    data_wait_s: float = 0.0
    exposed_wait_s: float = 0.0
    gap_s: float = 0.0
    compute_s: float = 0.0
    fed_steps: int = 0
    """Steps whose waits are known: nobody counted the samples of the others."""
    fed_s: float = 0.0
    """The seconds of these."""

    @classmethod
    def of(cls, summary: RunSummary) -> StepSums:
        """Returns sums for a run that has ended, scaled to one second of its steady time: no step has to be read."""
        return cls(
            steps=summary.n_steady_steps,
            samples=summary.samples_per_s,
            step_s=1.0,
            data_wait_s=summary.data_wait_frac,
            exposed_wait_s=summary.exposed_wait_frac,
            gap_s=summary.device_idle_frac,
            compute_s=summary.compute_frac,
            fed_steps=summary.n_steady_steps,
            fed_s=1.0,
        )

    def share(self, seconds: float) -> float:
        """Returns `seconds` as a share of the steady time; NaN before there is any."""
        return seconds / self.step_s if self.step_s > 0 else math.nan

    def plus(self, new: Series, counted: Mask) -> StepSums:
        """Returns these sums with the rows of `new` in `counted` added."""
        sums = {name: getattr(self, name) + float(new[name][counted].sum()) for name in SUMMED}
        fed = counted & np.isfinite(new["data_wait_s"])
        return StepSums(
            steps=self.steps + int(counted.sum()),
            samples=self.samples + float(new["samples"][fed].sum()),
            fed_steps=self.fed_steps + int(fed.sum()),
            fed_s=self.fed_s + float(new["step_s"][fed].sum()),
            **sums,
        )

    @property
    def samples_per_s(self) -> float:
        """Returns the throughput of the steps whose samples were counted; NaN before there is any
        steady time, and where more than a few were not."""
        if not self.samples or not _samples_are_counted(self.steps, self.fed_steps):
            return math.nan
        return self.samples / self.fed_s if self.fed_s > 0 else math.nan


def _samples_are_counted(n_steps: int, n_fed: int) -> bool:
    """Returns whether the samples of all but a few steps were counted: those of a step whose batch
    came from where vitprof sees nothing were not."""
    return n_steps - n_fed <= thresholds.UNCLEAR_LOADERS_FRAC * n_steps


def mean_step_s(
    config: RunConfig, summary: RunSummary | None, so_far: StepSums, n_training_steps: int = 0
) -> float:
    """Returns the mean seconds of a step while training, waits included; of a run that has ended,
    whose device was not timed and whose samples were not counted, the median. NaN before there is one.

    `summary`: None of a run that goes on; then `so_far` counts. `n_training_steps`: the steps in the
    training time of one that has ended (`Verdict.n_judged`); 0 if that is not known.
    """
    if summary is None:
        return so_far.step_s / so_far.steps if so_far.steps else math.nan
    if n_training_steps and math.isfinite(summary.training_s):
        return summary.training_s / n_training_steps
    if math.isfinite(summary.samples_per_s) and config.batch_size:
        return config.batch_size / summary.samples_per_s
    return summary.step_ms_median / 1e3


SUMMED = ("step_s", "data_wait_s", "exposed_wait_s", "gap_s", "compute_s")
"""Fields of `StepSums` that are sums of the column of the same name."""


class RunningTotals:
    """Totals of a run whose steps arrive in batches."""

    def __init__(self) -> None:
        self._last_epoch = -math.inf
        self._training = StepSums()
        self._begins = StepSums()
        """Sums over the steps past the warm-up but the run's first one (`_training`), and epoch starts."""
        self._inside = False

    @property
    def totals(self) -> StepSums:
        """Returns the sums over the wall clock of training so far, the steps that `steady.training` chooses."""
        return self._training if self._inside else self._begins

    def add(self, new: Series) -> None:
        inside, begins = steady.past_warmup(new, epoch_before=self._last_epoch)
        counted = inside | begins
        counted[:1] &= self._last_epoch > -math.inf
        self._last_epoch, self._inside = float(new["epoch"][-1]), self._inside or bool(inside.any())
        self._training, self._begins = (
            self._training.plus(new, counted),
            self._begins.plus(new, begins),
        )


@dataclass(frozen=True)
class RecordingCost:
    """The time between the launch of a step and the request for the next batch, over steady steps;
    NaN where not known.

    An upper bound on vitprof's recording and reports, since it includes the loop's own check
    whether to stop. Clock readings inside the loader are part of the data wait (`loader_times`
    switches them off).
    """

    frac: float = math.nan
    """Share of the time of the steps, 0..1: sum of the spans / sum of the step times."""
    s_per_step: float = math.nan
    exposed_frac: float = math.nan
    """The part of it in which the device idled, as a share of the same time. On an asynchronous
    device with steps queued the rest is hidden and costs nothing; on the CPU all of it is
    exposed."""
    n: int = 0


def recording_cost(
    steps: Series, phases: Sequence[Phase] = (), gaps: Gaps | None = None
) -> RecordingCost:
    """Returns the cost of recording `steps`, the (n,) columns of `StepRecord`.

    A step counts if it is steady and the next one follows in the same epoch without a phase (an
    evaluation) in between. Its time goes from its own request for a batch to the next one's, so the
    share is exact for the loop. `gaps` are those of all steps, if already known.
    """
    launched = steady.launched_s(steps)[:-1]
    requested_s = steps["t_start_s"][1:]
    followed = (
        steady.steady_state(steps)[:-1]
        & (np.diff(steps["epoch"]) == 0)
        & (np.diff(steps["step"]) == 1)
        & np.isfinite(launched)
        & (
            requested_s - launched > 1e-7
        )  # else watched: what that takes lies within its marks, and is not known
        & ~(
            column(steps, "outside_s")[1:] > 0
        )  # the script's own work there cannot be told from recording
    )
    if len(
        apart := spans_of(
            p
            for p in phases
            if len(requested_s) and p.t_end_s > requested_s[0] and p.t_start_s < requested_s[-1]
        )
    ):
        followed &= covered_before(apart, nanoseconds(requested_s)) == covered_before(
            apart, nanoseconds(launched)
        )
    index = np.flatnonzero(followed)
    if not len(index):
        return RecordingCost()
    spent = np.maximum(requested_s[index] - launched[index], 0.0)
    total = float((requested_s[index] - steps["t_start_s"][index]).sum()) or math.nan
    gaps = find_gaps(steps, phases) if gaps is None else gaps
    timed = np.append(False, followed)[gaps.index]
    known = timed.sum() == len(index) and bool(np.isfinite(steps["gap_s"][index + 1]).all())
    exposed = float(gaps.by_step("logging")[timed].sum()) if known else math.nan
    return RecordingCost(
        float(spent.sum()) / total, float(spent.mean()), exposed / total, len(index)
    )


LAPS_A_SAMPLE: dict[str, int] = {"idx": 1, "imagefolder": 4, "memory-float": 0}
"""Storage -> clock readings for each sample: of transforms, or of a file's pieces of 64 KB, decoding and transforms."""
LAPS_OF_FORM: dict[str, int] = {"encoded": 2, "pixels": 0}
"""The same by the form of a storage, for all others."""
LAPS_A_BATCH = 2
"""Laps that are noted for each batch."""


def loader_times_s(config: RunConfig, lap_s: float) -> float:
    """Returns the seconds that clock readings, of `lap_s` each, take for a batch in the loader; NaN if unknown."""
    if not config.loader_times:
        return 0.0
    if config.storage is None:
        return math.nan
    a_sample = LAPS_A_SAMPLE.get(
        config.storage, LAPS_OF_FORM.get(parts.STORAGES[config.storage].form, 0)
    )
    return lap_s * (LAPS_A_BATCH + a_sample * config.batch_size)


def looking_s(facts: Mapping[str, Any]) -> float:
    """Returns the seconds that looking at what stages use of the cores took in the loader of a built-in job."""
    making = facts.get("making") or {}
    return float(making.get("looking_s") or 0.0)


MIN_UTILISATION_SAMPLES = 3
"""Half a second of telemetry at the usual 5 Hz; the mean of fewer says little."""
FACT_FIGURES = (
    *(
        "storage_prepare_s",
        "storage_bytes",
        "stage_s",
        "stage_bytes",
        "page_cached_frac",
        "cache_hit_frac",
    ),
    *("test_loss", "test_accuracy", "gpu_mem_allocated_peak_bytes"),
)
"""Figures of a run that are facts of the same name."""
LOADING_STAGES = ("sampler", *TIMED_STAGES, "hand_over")


def epoch_seconds(
    steps: Series, n_train: int, samples_per_s: float, stops: Sequence[Stop] = ()
) -> tuple[float, int]:
    """Returns the training time of an epoch, without that of `stops`, and the number of whole
    epochs that it rests on.

    It is the median over whole epochs. Without one, or if `n_train` is 0 (not known), the number is 0 and
    the time extrapolated from `samples_per_s`, or NaN.
    """
    epoch = steps["epoch"].astype(int)
    if len(epoch) and n_train:
        whole = np.bincount(epoch, weights=steps["samples"]) == n_train
        if whole.any():
            return _median_seconds(steps, whole, stops)
    return (n_train / samples_per_s if n_train and samples_per_s > 0 else math.nan), 0


def _median_seconds(steps: Series, whole: Mask, stops: Sequence[Stop]) -> tuple[float, int]:
    """Returns the median time of the epochs in `whole`, without that of `stops`, and their number. The first
    one, which includes start-up, counts only if there is no other."""
    ran_s = steps["step_s"]
    if stops:
        ran_s = np.maximum(ran_s - steady.stopped_s(steps, stops), 0.0)
    seconds = np.bincount(steps["epoch"].astype(int), weights=ran_s)[whole]
    counted = seconds[1:] if len(seconds) > 1 and whole[0] else seconds
    return float(np.median(counted)), len(counted)


@dataclass(frozen=True)
class EpochFigures:
    """An epoch of a run; NaN where not known."""

    seconds: float
    n_measured: int
    """Whole epochs behind the time; 0: it is extrapolated, or not known."""
    samples: float


def epoch_of_script(
    steps: Series,
    epoch_steps: float | None,
    *,
    step_s: float,
    start_s: float = 0.0,
    stops: Sequence[Stop] = (),
) -> EpochFigures:
    """Returns the figures of an epoch of a watched script. Its dataset's length says nothing of it: a sampler may draw
    a part of the samples, or some of them several times.

    `epoch_steps`: by the length of its loader; None where that is not known. Then each epoch but the last is taken as
    a whole one, and the last one too if it is as long as these. `step_s`: the mean time of a steady step; `start_s`:
    how much longer the first step of an epoch takes.
    """
    epoch = steps["epoch"].astype(int)
    if not len(epoch):
        return EpochFigures(math.nan, 0, math.nan)
    n_steps = np.bincount(epoch)
    if epoch_steps is not None:
        whole = (
            np.abs(n_steps - epoch_steps) < 1
        )  # the last step of an epoch may have fewer batches
    else:
        whole = n_steps > 0
        whole[-1] = False
        if whole.any():
            whole[-1] = n_steps[-1] == np.median(n_steps[whole])
            epoch_steps = float(np.median(n_steps[whole]))
    if epoch_steps is None:
        return EpochFigures(math.nan, 0, math.nan)
    counted = steps["samples"][steps["samples"] > 0]
    samples = epoch_steps * mean(counted)
    if whole.any():
        seconds, n_measured = _median_seconds(steps, whole, stops)
        return EpochFigures(seconds, n_measured, samples)
    return EpochFigures(epoch_steps * step_s + start_s, 0, samples)


def summarise(
    config: RunConfig,
    steps: Series,
    telemetry: Series,
    phases: Sequence[Phase],
    facts: Mapping[str, Any],
    *,
    t_origin_s: float,
    t_end_s: float,
    gaps: RunGaps | None = None,
) -> RunSummary:
    """Returns a run's figures from `t_origin_s` to `t_end_s` on the monotonic clock; `gaps`, if known."""
    gaps = gaps or RunGaps.of(steps, phases)
    keep = steady.steady_state(steps)
    counted = steady.training(steps)
    totals = StepSums().plus(steps, counted)
    n_steady = int(keep.sum())
    step_s = steps["step_s"][keep]
    samples_per_s, low, high = _throughput(steps, counted)
    n_train = int(facts.get("n_train") or 0)
    stops = steady.stops_of(facts)
    if own_script.is_own_script(config):
        starts_s = steps["step_s"][steady.epoch_starts(steps)]
        start_s = max(0.0, mean(starts_s) - mean(step_s)) if len(starts_s) else 0.0
        epoch = epoch_of_script(
            steps, facts.get("epoch_steps"), step_s=mean(step_s), start_s=start_s, stops=stops
        )
    else:
        seconds, n_measured = epoch_seconds(steps, n_train, samples_per_s, stops)
        is_known = n_train > 0 and len(steps["step"]) > 0
        epoch = EpochFigures(seconds, n_measured, float(n_train) if is_known else math.nan)
    firsts = steps["data_wait_s"][steady.first_of_epoch(steps)]
    median_ms, p95_ms = np.percentile(step_s, (50, 95)) * 1e3 if n_steady else (math.nan, math.nan)
    divided = divide_compute(steps, keep)
    trained = not config.loader_only
    idle = gaps.training.shares() if trained else {}
    training_s = math.nan
    energy = TrainingEnergy()
    if trained and gaps.training.span_ns:
        training_s = gaps.training.span_s
        shares_card = str(facts.get("gpu_uuid") or "").startswith("MIG-")
        energy = training_energy(
            steps, phases, telemetry, counted, training_s, shares_card=shares_card
        )

    def spent(phase: str) -> float:
        took = [p.t_end_s - p.t_start_s for p in phases if p.name == phase]
        return math.fsum(took) if took else math.nan

    def fact(name: str) -> float:
        value = facts.get(name)
        return math.nan if value is None else float(value)

    # figures of SM activity cover the time since the sample before
    training_only = np.diff(telemetry["t_s"], prepend=-math.inf), steps, phases
    prepare_s = spent("prepare")
    staged_s = 0.0 if math.isnan(spent("stage")) else spent("stage")
    cpu_samples = (
        fact("cpu_samples") if config.isolation == "process" else math.nan
    )  # in a thread it is the program's
    nvml_peak = highest(telemetry["gpu_mem_job_bytes"])
    reserved_peak = fact("gpu_mem_reserved_peak_bytes")
    return RunSummary(
        n_steps=len(steps["step"]),
        n_steady_steps=n_steady,
        n_samples=int(steps["samples"].sum()),
        samples_per_s=samples_per_s,
        samples_per_s_low=low,
        samples_per_s_high=high,
        epoch_s=epoch.seconds,
        n_epochs_measured=epoch.n_measured,
        epoch_samples=epoch.samples,
        step_ms_median=float(median_ms),
        step_ms_p95=float(p95_ms),
        data_wait_frac=totals.share(totals.data_wait_s),
        h2d_frac=totals.share(float(steps["h2d_s"][counted].sum())),
        compute_frac=totals.share(totals.compute_s) if trained else math.nan,
        exposed_wait_frac=totals.share(totals.exposed_wait_s) if trained else math.nan,
        device_idle_frac=totals.share(totals.gap_s) if trained else math.nan,
        gpu_util_pct_mean=gpu_util_pct(telemetry, steps, phases, facts),
        gpu_mem_peak_bytes=nvml_peak if math.isfinite(nvml_peak) else reserved_peak,
        rss_peak_bytes=highest(telemetry["job_rss_bytes"]),
        cpu_s_per_sample=fact("cpu_s") / cpu_samples if cpu_samples > 0 else math.nan,
        prepare_s=prepare_s,
        n_unreadable=int(facts.get("n_unreadable") or 0),
        startup_s=float(steps["t_start_s"][0]) - t_origin_s - prepare_s - staged_s
        if len(steps["step"])
        else math.nan,
        first_batch_s=float(firsts[0]) if len(firsts) else math.nan,
        epoch_restart_s=float(np.median(firsts[1:])) if len(firsts) > 1 else math.nan,
        evaluate_s=spent("evaluate"),
        shutdown_s=spent("shutdown"),
        wall_s=t_end_s - t_origin_s,
        loss_first=float(steps["loss"][0]) if len(steps["step"]) else math.nan,
        loss_last=_last_loss(steps["loss"]),
        exposed_h2d_frac=idle.get("h2d", math.nan),
        idle_host_frac=idle.get("host", math.nan),
        idle_recording_frac=idle.get("logging", math.nan),
        recording_frac=recording_cost(steps, phases, gaps.every).frac,
        loader_times_frac=totals.share(
            loader_times_s(config, fact("lap_s")) * totals.steps + looking_s(facts)
        ),
        queue_depth_mean=mean(steps["queue_depth"][keep]),
        gpu_mem_nvml_peak_bytes=nvml_peak,
        gpu_mem_reserved_peak_bytes=reserved_peak,
        **{name: fact(name) for name in FACT_FIGURES},
        gpu_sm_active_pct_mean=_while_training_mean(telemetry, "gpu_sm_active_pct", *training_only),
        gpu_sm_occupancy_pct_mean=_while_training_mean(
            telemetry, "gpu_sm_occupancy_pct", *training_only
        ),
        n_divided_steps=0 if divided is None else divided.n,
        **divided_figures(divided),
        training_s=training_s,
        energy_j=energy.by_counter_j,
        energy_by_power_j=energy.by_power_j,
        n_energy_gpus=energy.n_gpus,
        **{
            f"{stage}_ms": mean(column(steps, f"{stage}_s")[keep]) * 1e3 for stage in LOADING_STAGES
        },
    )


def _throughput(steps: Series, counted: Mask) -> Interval:
    """Returns the samples per second of the steps in `counted`, of those whose waits are known. NaN
    where more than a few are not, and where no sample was counted. Without an interval where there are
    too few steps for a verdict: that of 18 was 0.00178 to 36,900 samples a second.
    """
    fed = counted & np.isfinite(steps["data_wait_s"])
    is_known = _samples_are_counted(int(counted.sum()), int(fed.sum()))
    if not steps["samples"][fed].any() or not is_known:
        return Interval(math.nan, math.nan, math.nan)
    starts = steady.epoch_starts(steps)[fed]
    throughput = ratio_interval(steps["samples"][fed], steps["step_s"][fed], starts)
    if fed.sum() < thresholds.MIN_STEPS:
        return Interval(throughput.value, math.nan, math.nan)
    return throughput


def _last_loss(loss: Floats) -> float:
    """Returns the last loss that was copied to the host: on a GPU not each one is. NaN where the last ones are no
    numbers: longer than between any two others.
    """
    at = np.flatnonzero(np.isfinite(loss))
    return (
        float(loss[at[-1]])
        if len(at) and len(loss) - at[-1] <= np.diff(at, prepend=-1).max()
        else math.nan
    )


def gpu_util_pct(
    telemetry: Series, steps: Series, phases: Sequence[Phase], facts: Mapping[str, Any]
) -> float:
    """Returns the mean utilisation; NaN for runs of a second or two, as a product's window may have been longer."""
    window_s = (
        accelerators.COUNTER_WINDOW_S if facts.get("simulated") else accelerators.LONGEST_WINDOW_S
    )
    return _while_training_mean(telemetry, "gpu_util_pct", window_s, steps, phases)


def _while_training_mean(
    telemetry: Series,
    name: str,
    looks_back_s: float | Floats,
    steps: Series,
    phases: Sequence[Phase],
) -> float:
    """Returns the mean over the samples that saw only training in `looks_back_s` before them; NaN with too few."""
    if not len(steps["step"]):
        return math.nan
    t = telemetry["t_s"]
    last = steady.end_s({name: values[-1:] for name, values in steps.items()})[0]
    inside = (t - looks_back_s >= steps["t_start_s"][0]) & (t <= last)
    for phase in phases:
        if phase.name == "evaluate":
            inside &= (t < phase.t_start_s) | (t - looks_back_s > phase.t_end_s)
    values = known(telemetry[name][inside])
    return float(values.mean()) if len(values) >= MIN_UTILISATION_SAMPLES else math.nan


START_WORDS: dict[str, str] = {
    "startup": "Start the process and load PyTorch",
    "prepare": "Prepare the data",
    "stage": "Copy the data",
    "model": "Open the data, build the model",
    "first batch": "First batch",
}
"""Phases in their order -> their names on a page."""


@dataclass(frozen=True)
class StartPhase:
    """A phase of a job's start."""

    name: str
    seconds: float
    """How long it took, or has taken so far; NaN if it is still to come."""
    running: bool


def start_phases(
    t_origin_s: float | None,
    phases: Sequence[Phase],
    training_since_s: float | None,
    now_s: float,
    *,
    copies: bool,
) -> list[StartPhase]:
    """Returns the phases of a job's start up to `now_s`, monotonic; `copies`: data are copied first."""
    ends = {p.name: p.t_end_s for p in reversed(phases)} | {"model": training_since_s}
    names = [name for name in START_WORDS if copies or name != "stage"]
    begin = now_s if t_origin_s is None else t_origin_s
    started: list[StartPhase] = []
    for at, name in enumerate(names):
        end = next((end for later in names[at:] if (end := ends.get(later)) is not None), None)
        if end is None:
            started.append(StartPhase(name, max(now_s - begin, 0.0), running=True))
            return started + [
                StartPhase(later, math.nan, running=False) for later in names[at + 1 :]
            ]
        started.append(StartPhase(name, max(end - begin, 0.0), running=False))
        begin = max(begin, end)
    return started
