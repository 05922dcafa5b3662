"""The cases: jobs that are slowed down, what vitprof must report about each by arithmetic, and whether
it did.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from vitprof.analysis.arrays import mean, median
from vitprof.analysis.signatures.resources import others_cpu
from vitprof.analysis.timing.loading import STAGE_WORDS, synchronous
from vitprof.analysis.timing.steady import launched_s, steady_state
from vitprof.analysis.verdict.verdict import judge
from vitprof.config import RunConfig, accelerators, injection
from vitprof.errors import JobError
from vitprof.recording.columns import TIMED_STAGES
from vitprof.selftest.report import Result
from vitprof.store import RunStore

N_PHOTOS = 120
SLOW_MB_S = 40.0
"""Bandwidth (MB/s) of a slow drive. Latency and bytes each take about half of the time for a photo of
0.1 MB."""
SLOW_LATENCY_MS = 3.0
"""Its latency for each file."""
WITH_WORKERS = "workers"
"""The strategy whose job needs a process of its own."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A job that is slowed down in a known way, and its reference: the same job without the slowdown."""

    name: str
    what: str
    base: RunConfig
    changes: Mapping[str, Any] = field(default_factory=dict)
    launch_ms: float = 0.0
    """Milliseconds that launching a step takes in the slowed job; 0 where launches are not slowed."""
    hogs: bool = False
    """Whether other programs keep all cores busy while it runs."""
    part: str = ""
    """The part of loading whose reported cost is checked (`recording.verdict.Share.name`); empty where
    it is none."""
    right: tuple[str, ...]
    """Causes (`Verdict.cause`) or names of signatures that count as right; empty where the slowdown must
    cost nothing."""

    @classmethod
    def waiting(cls, name: str, what: str, base: RunConfig, stage: str, ms: float) -> Case:
        """Returns the case of a wait of `ms` that is put into a stage of each batch, which then is the
        cause.
        """
        return cls(
            name=name,
            what=what,
            base=base,
            changes={"inject": f"{stage}:{ms:g}"},
            part=stage,
            right=(stage,),
        )

    @property
    def slowed(self) -> RunConfig:
        return replace(self.base, **self.changes)

    @property
    def compute_ms(self) -> float:
        return accelerators.accelerator(self.base.device).compute_s(self.base.batch_size) * 1e3

    @property
    def makers(self) -> int:
        """Returns how many batches are made at once."""
        return max(1, self.base.workers or 1)

    @property
    def injected_ms(self) -> float | None:
        """Returns the milliseconds of wait that are injected into each batch; None where none is."""
        inject = self.slowed.inject
        return injection(inject)[1] * 1e3 if inject else None

    @property
    def own_process(self) -> bool:
        """Returns whether the job needs its own process: it forks workers, or CPU hogs are children of
        this one.
        """
        return self.hogs or self.base.strategy == WITH_WORKERS


COMMON: dict[str, Any] = {"threads": 1, "evaluate": False, "warmup_steps": 4, "steps": 32}

# Sample by sample in the training loop, as tutorials do: all five parts can be told apart. Fetching 16 digits takes
# about as long as the device's 1 ms, or longer, so nearly all of a wait is exposed.
IN_THE_LOOP = RunConfig(strategy="per-sample", batch_size=16, device="simulated:1,0", **COMMON)
BY_SAMPLE = "sample by sample"
WHOLE_BATCHES = RunConfig(strategy="memory", batch_size=64, device="simulated:4,0", **COMMON)
WHOLE_WORDS = "in reading, whole batches from memory in the loop"
GENERATOR = RunConfig(
    strategy="generator", storage="idx", batch_size=16, device="simulated:2,10", **COMMON
)
# The fetch takes almost no time, and the device 12 ms: less than one of the waits, more than the other.
AHEAD = RunConfig(strategy="memory-ahead", batch_size=64, device="simulated:12,0", **COMMON)
AHEAD_WORDS = "in reading, one batch ahead of 12 ms of compute"
# Only four digits: with more of them, a worker that has just slept would be slower than one that has not.
WORKERS = RunConfig(
    strategy=WITH_WORKERS,
    storage="memory",
    workers=2,
    batch_size=4,
    device="simulated:4,0",
    **COMMON,
)
PHOTOS: dict[str, Any] = COMMON | {
    "dataset": "photos",
    "n_images": N_PHOTOS,
    "batch_size": 4,
    "steps": 30,
}
# Two photos: decoding them is hidden behind compute. Threads slow each other down, so with more photos a wait in one
# thread would change how long the others take.
THREADS = RunConfig(
    strategy="threads", workers=2, device="simulated:4,0", **PHOTOS | {"batch_size": 2, "steps": 36}
)
DRIVE = RunConfig(strategy="generator", device="simulated:4,0", **PHOTOS)
SLOWED: dict[str, Any] = {
    "location": "slow-drive",
    "slow_drive": "network-drive",
    "slow_mb_s": SLOW_MB_S,
    "slow_latency_ms": SLOW_LATENCY_MS,
}
SLOW_WORDS = f"a drive of {SLOW_MB_S:g} MB/s and {SLOW_LATENCY_MS:g} ms a file, photos in the loop"
# Long enough for the ten readings of CPU use, 20 a second, that the rule about other programs needs. They start when
# this process sees that training has begun, up to 0.6 s late: within the warm-up. Without torchvision, which takes
# longer to load than this job takes to run.
READ_OFTEN = PHOTOS | {"telemetry_hz": 20, "warmup_steps": 140, "steps": 200}
CPU_BOUND = RunConfig(strategy="generator", device="simulated:1,0", **READ_OFTEN)

# 1 ms of kernels; long enough for the steps that are measured behind a gate.
LONGER = COMMON | {"warmup_steps": 6, "steps": 100}
LAUNCHES = RunConfig(strategy="memory", batch_size=64, device="simulated:1,0", **LONGER)

IN_STAGES = {stage: STAGE_WORDS[stage] for stage in TIMED_STAGES}
IN_STAGES["transfer"] = "the copy to the device"
"""The stages that a wait is put into -> where that is, in words."""

CASES: tuple[Case, ...] = (
    # The only part of that length; exposed except while the device still computes.
    *(
        Case.waiting(
            f"{stage}, in the loop", f"20 ms in {words}, {BY_SAMPLE}", IN_THE_LOOP, stage, 20
        )
        for stage, words in IN_STAGES.items()
    ),
    # Of 20 ms of reading 12 pass while the device computes: 8 are exposed.
    Case.waiting("partly hidden", f"20 ms {AHEAD_WORDS}", AHEAD, "read", 20),
    # All of it passes while the device computes: it must cost nothing, and the run must not be input-bound.
    replace(Case.waiting("fully hidden", f"8 ms {AHEAD_WORDS}", AHEAD, "read", 8), right=()),
    # A batch takes longer by the latency of its files and their bytes / bandwidth. The part is reading; the settings
    # say that the drive is slow.
    Case(
        name="slow drive",
        what=SLOW_WORDS,
        base=DRIVE,
        changes=SLOWED,
        part="read",
        right=("slow_drive",),
    ),
    # The device waits 3 ms for launches inside each step. Marks around the step alone count that as compute.
    Case(
        name="launch-bound",
        what="1 ms of kernels, launched in 4 ms, from memory",
        base=LAUNCHES,
        changes={"device": "simulated:1,0,launch=4"},
        launch_ms=4.0,
        right=("launches",),
    ),
    # The loop's own work gets slower, in all its parts alike; either the cause or the signature must say why. The
    # system decides how much CPU they take, so the size is compared with how much longer the device idled than in the
    # reference, minus the additional CPU time of the same work. Beside other programs a core also computes more slowly
    # (hyper-threads, caches, clocks); the verdict's size is only the wait for a core.
    Case(
        name="other programs",
        what="other programs on all cores, photos decoded in the loop",
        base=CPU_BOUND,
        hogs=True,
        right=("cpu_contention", "other-programs"),
    ),
    # The fetch itself takes almost no time: all but the 4 ms that the device computes is exposed.
    Case.waiting("read, whole batches", f"20 ms {WHOLE_WORDS}", WHOLE_BATCHES, "read", 20),
    Case.waiting(
        "decode, generator", "20 ms in decoding, a generator in the loop", GENERATOR, "decode", 20
    ),
    # Two batches are made at once: one arrives every 20 ms, and the device computes for 4 ms of that, whichever part
    # the workers wait in. While one thread waits, the other one makes the next batch.
    Case.waiting("read, workers", "40 ms in reading, two worker processes", WORKERS, "read", 40),
    Case.waiting(
        "collate, workers", "40 ms in collating, two worker processes", WORKERS, "collate", 40
    ),
    Case.waiting(
        "read, threads", "40 ms in reading, two threads that decode photos", THREADS, "read", 40
    ),
)
QUICK: tuple[Case, ...] = CASES[:10]
"""Cases that share jobs, or that check what no other case does."""


def n_jobs(cases: Sequence[Case], rounds: int) -> int:
    """Returns how many jobs `rounds` rounds of these cases take, reference runs included and retries not."""
    return (len(cases) + len({case.base for case in cases})) * rounds


TOLERANCE_FRAC = 0.1
TOLERANCE_MS = 0.3
"""The size of a cause must be right within 10% or 0.3 ms for each batch, whichever is more."""
TOLERANCE_IDLE_FRAC = 0.01
"""The idle share must be right within one percentage point or 0.3 ms of a step, whichever is more."""


def expected_ms(wait: float, fetch: float, compute: float, makers: int = 1) -> float:
    """Returns how much longer the device idles for each batch if `wait` is added to a fetch of `fetch`.

    Where `fetch` alone keeps the device waiting, that is the whole wait, divided by `makers`. Where it
    does not, it is the part of the wait that outlasts what the device still has to compute, or nothing.
    All times have the same unit, that of the result.
    """
    return max(0.0, (fetch + wait) / makers - compute) - max(0.0, fetch / makers - compute)


def idle_frac(compute: float, step: float) -> float:
    """Returns the idle share (0..1) of a device that computes for `compute` in each step of length
    `step`.
    """
    return max(0.0, 1 - compute / step)


@dataclass(frozen=True)
class Observed:
    """Figures of a run of a case, over its steady steps."""

    kind: str
    cause: str
    cause_ms: float
    launch_ms: float
    """Milliseconds that, by the verdict, the device waited for launches inside each step; 0 where that is
    not known."""
    launching_ms: float
    """Mean milliseconds from the arrival of a batch to the last launch of its step, by the host's
    clock."""
    signatures: tuple[str, ...]
    exposed_ms: Mapping[str, float]
    """Part of loading -> milliseconds for each batch that the verdict attributes to it."""
    idle_frac: float
    """The device's idle share, as the run's summary states it."""
    true_idle_frac: float
    """The idle share by arithmetic: from the device's known time, and steps and launches by the host's
    clock."""
    step_ms: float
    cpu_ms: float
    """CPU milliseconds of the job for each step, as the system counts them; NaN without a reading in the
    steady steps."""
    fetch_ms: float
    """Mean milliseconds that making a batch takes: in the loop, in a worker, or in all threads
    together."""
    start_s: float
    end_s: float
    others_cores: float = math.nan
    """Cores that other programs took, and the hogs of a case; NaN where not known."""


def observe(store: RunStore, run_id: int, case: Case) -> Observed:
    """Returns the figures of a run of `case`.

    Raises `JobError` where it did not finish or has too few steady steps.
    """
    run = store.run(run_id)
    if run.status != "done" or run.summary is None:
        how = f"{run.status}: {run.error}" if run.error else run.status
        raise JobError(f"its job did not finish ({how})")
    steps = store.steps(run_id)
    telemetry = store.telemetry(run_id)
    # without the setting of the injected wait: the verdict must find the cause by itself
    config = replace(run.config, inject=None)
    verdict = judge(config, steps, run.phases, telemetry, run.environment | run.facts)
    steady = steady_state(steps)
    launched = launched_s(steps)[steady]
    # With several workers or threads batches arrive in bunches: only whole bunches have the mean time.
    n = (len(launched) - 1) // case.makers * case.makers
    if n < 1:
        raise JobError("its job has too few steady steps")
    step_ms = float(launched[-1] - launched[-1 - n]) / n * 1e3
    if synchronous(run.config):
        fetch = steps["data_wait_s"]
    elif run.config.loader == "threads":
        # several threads work on a batch at once
        fetch = np.sum([steps[f"{stage}_s"] for stage in TIMED_STAGES], axis=0)
    else:
        fetch = steps["made_end_s"] - steps["made_start_s"]
    while_steady = (telemetry["t_s"] >= launched[0]) & (telemetry["t_s"] <= launched[-1])
    cpu_pct = mean(telemetry["job_cpu_pct"][while_steady])
    launching_ms = float(steps["host_s"][steady].mean()) * 1e3
    busy_ms = case.compute_ms
    # launched more slowly than it computes, the device is busy for as long as launching takes
    if accelerators.accelerator(run.config.device).launch_s > 0:
        busy_ms = max(busy_ms, launching_ms)
    return Observed(
        kind=verdict.kind,
        cause=verdict.cause,
        cause_ms=verdict.cause_ms_per_batch,
        launch_ms=float(np.nan_to_num(verdict.launch_frac)) * step_ms,
        launching_ms=launching_ms,
        signatures=tuple(signature.name for signature in verdict.signatures),
        exposed_ms={share.name: share.exposed_ms for share in verdict.shares},
        idle_frac=run.summary.device_idle_frac,
        true_idle_frac=idle_frac(busy_ms, step_ms),
        step_ms=step_ms,
        cpu_ms=cpu_pct / 100 * step_ms,
        fetch_ms=float(fetch[steady].mean()) * 1e3,
        others_cores=others_cpu(steps, telemetry, run.environment).cores,
        start_s=float(launched[0]),
        end_s=float(launched[-1]),
    )


@dataclass(frozen=True)
class Round:
    """Figures of a slowed run of a case, compared with the reference run just before it."""

    expected_ms: float
    """Milliseconds for each batch that the device must wait because of the slowdown."""
    reported_ms: float
    """Milliseconds for each batch that the verdict attributes to the slowdown, minus those in the
    reference run."""
    cause: str
    """A right cause where verdict or signatures name one; "" where the run is not input-bound; otherwise
    the verdict's cause, or its kind where it has none."""
    cause_ok: bool
    idle_frac: float
    true_idle_frac: float
    step_ms: float
    others_cores: float = math.nan
    """Cores that other programs took in the reference run; NaN where not known."""


def compare(case: Case, wait_ms: float, reference: Observed, slowed: Observed) -> Round:
    """Returns how a slowed run of `case` compares with its reference.

    `wait_ms` is the wait that each batch was given. The reported size is what the verdict attributes to
    the case's part in the slowed run, minus what it attributes to that part in the reference. Two kinds
    of cases have no wait of known length, so the expected size is measured:

    - Other programs, whose share of the CPU the system decides: how much longer the device idled in a
      step, by the host's clock and the device's known compute time, minus the additional CPU time of the
      job's own work.
    - Launches: how much longer they took than the kernels, by the host's clock, since a busy machine
      delays them.
    """
    if case.hogs:
        idle_ms = max(0.0, slowed.step_ms - case.compute_ms)
        idle_before_ms = max(0.0, reference.step_ms - case.compute_ms)
        more_cpu_ms = slowed.cpu_ms - reference.cpu_ms
        expected = idle_ms - idle_before_ms - more_cpu_ms
        reported = _contention_ms(slowed) - _contention_ms(reference)
    elif case.launch_ms:
        expected = max(0.0, slowed.launching_ms - case.compute_ms)
        reported = slowed.launch_ms - reference.launch_ms
    else:
        expected = expected_ms(wait_ms, reference.fetch_ms, case.compute_ms, case.makers)
        reported = slowed.exposed_ms.get(case.part, 0.0) - reference.exposed_ms.get(case.part, 0.0)
    causes = [slowed.cause]
    # the loop's own work gets slower, in all its parts alike: either may say why
    if case.hogs:
        causes += slowed.signatures
    named = [name for name in case.right if name in causes]
    # A run that is not input-bound names no cause: the largest part of almost nothing does not count as
    # one.
    costs_nothing = slowed.kind == "not input-bound"
    if named:
        cause = named[0]
    elif costs_nothing:
        cause = ""
    else:
        cause = slowed.cause or slowed.kind
    return Round(
        expected_ms=expected,
        reported_ms=reported,
        cause=cause,
        cause_ok=bool(named) if case.right else costs_nothing,
        idle_frac=slowed.idle_frac,
        true_idle_frac=slowed.true_idle_frac,
        step_ms=slowed.step_ms,
        others_cores=reference.others_cores,
    )


def _contention_ms(observed: Observed) -> float:
    """Returns the milliseconds for each batch that the verdict attributes to other programs."""
    return observed.cause_ms if observed.cause == "cpu_contention" else 0.0


def case_result(
    case: Case, rounds: Sequence[Round], *, retries: int = 0, failure: str = ""
) -> Result:
    """Returns the result of `case`: medians over `rounds`, and the cause that most of them named."""

    def middle(figure: Callable[[Round], float]) -> float:
        return median(np.array([figure(r) for r in rounds]))

    names = Counter(r.cause for r in rounds)
    expected = middle(lambda r: r.expected_ms)
    step_ms = middle(lambda r: r.step_ms)
    tolerance_ms = max(TOLERANCE_FRAC * expected, TOLERANCE_MS)
    error = middle(lambda r: r.reported_ms - r.expected_ms)
    idle_error = middle(lambda r: r.idle_frac - r.true_idle_frac)
    tolerance_idle = max(TOLERANCE_IDLE_FRAC, TOLERANCE_MS / step_ms)
    n_right = sum(r.cause_ok for r in rounds)
    return Result(
        case=case.name,
        what=case.what,
        expected_ms=expected,
        reported_ms=middle(lambda r: r.reported_ms),
        error_ms=error,
        tolerance_ms=tolerance_ms,
        cause=names.most_common(1)[0][0] if names else "",
        right=case.right,
        idle_frac=middle(lambda r: r.idle_frac),
        true_idle_frac=middle(lambda r: r.true_idle_frac),
        idle_error_frac=idle_error,
        rounds=len(rounds),
        retries=retries,
        others_cores=middle(lambda r: r.others_cores),
        cause_ok=n_right > len(rounds) / 2,
        size_ok=abs(error) <= tolerance_ms,
        idle_ok=abs(idle_error) <= tolerance_idle,
        failure=failure,
    )
