"""The cases: jobs that are slowed down, and what vitprof must report about each, by arithmetic."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitprof.config import RunConfig, injection
from vitprof.config.accelerators import accelerator

N_PHOTOS = 120
SLOW_MB_S, SLOW_LATENCY_MS = 40.0, 3.0
"""A slow drive, on which latency and bytes each take about half of the time for a photo of 0.1 MB."""
WITH_WORKERS = "workers"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A job that is slowed down in a known way, and its reference: the same job without the slowdown."""

    name: str
    what: str
    """The slowdown, in words."""
    base: RunConfig
    """The reference."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings that are different in the slowed job."""
    launch_ms: float = 0.0
    """Milliseconds that launching a step takes in the slowed job; 0 where launches are not slowed."""
    hogs: bool = False
    """Whether other programs keep all cores busy while it runs."""
    part: str = ""
    """The part of loading whose reported cost is checked (`recording.verdict.Share.name`); empty where it is none."""
    right: tuple[str, ...]
    """Causes (`analysis.verdict.verdict.Verdict.cause`) or names of signatures that count as right; empty where the
    slowdown must cost nothing."""

    @classmethod
    def waiting(cls, name: str, what: str, base: RunConfig, stage: str, ms: float) -> Case:
        """Returns the case of a wait of `ms` that is put into a stage of each batch, which then is the cause."""
        return cls(name=name, what=what, base=base, changes={"inject": f"{stage}:{ms:g}"}, part=stage, right=(stage,))

    @property
    def slowed(self) -> RunConfig:
        """Returns the slowed job."""
        return dataclasses.replace(self.base, **self.changes)

    @property
    def compute_ms(self) -> float:
        """Returns how many milliseconds the simulated device computes for each batch."""
        return accelerator(self.base.device).compute_s(self.base.batch_size) * 1e3

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
        """Returns whether the job needs its own process: it forks workers, or CPU hogs are children of this one."""
        return self.hogs or self.base.strategy == WITH_WORKERS


COMMON: dict[str, Any] = {"threads": 1, "evaluate": False, "warmup_steps": 4, "steps": 32}

# Sample by sample in the training loop, as tutorials do: all five parts can be told apart. Fetching 16 digits takes
# about as long as the device's 1 ms, or longer, so nearly all of a wait is exposed.
IN_THE_LOOP = RunConfig(strategy="per-sample", batch_size=16, device="simulated:1,0", **COMMON)
WHOLE_BATCHES = RunConfig(strategy="memory", batch_size=64, device="simulated:4,0", **COMMON)
GENERATOR = RunConfig(strategy="generator", storage="idx", batch_size=16, device="simulated:2,10", **COMMON)
# The fetch takes almost no time, and the device 12 ms: less than one of the waits, more than the other.
AHEAD = RunConfig(strategy="memory-ahead", batch_size=64, device="simulated:12,0", **COMMON)
AHEAD_WORDS = "in reading, in a thread ahead of a device that computes for 12 ms"
# Only four digits: with more of them, a worker that has just slept would be slower than one that has not.
WORKERS = RunConfig(strategy=WITH_WORKERS, storage="memory", workers=2, batch_size=4, device="simulated:4,0", **COMMON)
PHOTOS: dict[str, Any] = COMMON | {"dataset": "photos", "n_images": N_PHOTOS, "batch_size": 4, "steps": 30}
# Two photos: decoding them is hidden behind compute. Threads slow each other down, so with more photos a wait in one
# thread would change how long the others take.
THREADS = RunConfig(strategy="threads", workers=2, device="simulated:4,0", **PHOTOS | {"batch_size": 2, "steps": 36})
DRIVE = RunConfig(strategy="generator", device="simulated:4,0", **PHOTOS)
# Long enough for the ten readings of CPU use that the rule about other programs needs. Other programs start when this
# process sees that training has begun, up to 0.6 s late: within the warm-up. Without torchvision, which takes longer to
# load than this job takes to run.
CPU_BOUND = RunConfig(
    strategy="generator",
    device="simulated:1,0",
    telemetry_hz=10,
    **PHOTOS | {"warmup_steps": 200, "steps": 320},
)

# 1 ms of kernels; long enough for the steps that are measured behind a gate.
LAUNCHES = RunConfig(
    strategy="memory", batch_size=64, device="simulated:1,0", **COMMON | {"warmup_steps": 6, "steps": 100}
)

CASES: tuple[Case, ...] = (
    # The only part of that length; exposed except while the device still computes.
    *(
        Case.waiting(
            f"{stage}, in the loop", f"20 ms in {words}, sample by sample without workers", IN_THE_LOOP, stage, 20
        )
        for stage, words in (
            ("read", "reading"),
            ("decode", "decoding"),
            ("transform", "transforms"),
            ("collate", "collating"),
            ("transfer", "the copy to the device"),
        )
    ),
    # Of 20 ms of reading 12 pass while the device computes: 8 are exposed.
    Case.waiting("partly hidden", f"20 ms {AHEAD_WORDS}", AHEAD, "read", 20),
    # All of it passes while the device computes: it must cost nothing, and the run must not be input-bound.
    dataclasses.replace(Case.waiting("fully hidden", f"8 ms {AHEAD_WORDS}", AHEAD, "read", 8), right=()),
    # A batch takes longer by the latency of its files and their bytes / bandwidth. The part is reading; the settings
    # say that the drive is slow.
    Case(
        name="slow drive",
        what=f"a drive of {SLOW_MB_S:g} MB/s and {SLOW_LATENCY_MS:g} ms for each file, photos one after another",
        base=DRIVE,
        changes={
            "location": "slow-drive",
            "slow_drive": "network-drive",
            "slow_mb_s": SLOW_MB_S,
            "slow_latency_ms": SLOW_LATENCY_MS,
        },
        part="read",
        right=("slow_drive",),
    ),
    # The device waits 3 ms for launches inside each step. Marks around the step alone count that as compute.
    Case(
        name="launch-bound",
        what="launches of 4 ms for 1 ms of kernels, whole batches from memory",
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
        name="CPU hogs",
        what="other programs on all cores, photos decoded in the loop",
        base=CPU_BOUND,
        hogs=True,
        right=("cpu_contention", "other-programs"),
    ),
    # The fetch itself takes almost no time: all but the 4 ms that the device computes is exposed.
    Case.waiting(
        "read, whole batches", "20 ms in reading, whole batches from memory in the loop", WHOLE_BATCHES, "read", 20
    ),
    Case.waiting("decode, generator", "20 ms in decoding, a generator in the loop", GENERATOR, "decode", 20),
    # Two batches are made at once: one arrives every 20 ms, and the device computes for 4 ms of that, whichever part
    # the workers wait in. While one thread waits, the other one makes the next batch.
    Case.waiting("read, workers", "40 ms in reading, two worker processes", WORKERS, "read", 40),
    Case.waiting("collate, workers", "40 ms in collating, two worker processes", WORKERS, "collate", 40),
    Case.waiting("read, threads", "40 ms in reading, two threads that decode photos", THREADS, "read", 40),
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

    Where `fetch` alone keeps the device waiting, that is the whole wait, divided by `makers`. Where it does not, it is
    the part of the wait that outlasts what the device still has to compute, or nothing.
    """
    return max(0.0, (fetch + wait) / makers - compute) - max(0.0, fetch / makers - compute)


def drive_ms(n_bytes: float, mb_s: float, latency_ms: float) -> float:
    """Returns how long a slow drive takes for a file of `n_bytes`: its latency plus bytes / bandwidth."""
    return latency_ms + n_bytes / (mb_s * 1e6) * 1e3


def tolerance_ms(expected: float) -> float:
    """Returns how far the reported size of a cause may be off."""
    return max(TOLERANCE_FRAC * expected, TOLERANCE_MS)


def idle_frac(compute: float, step: float) -> float:
    """Returns the idle share (0..1) of a device that computes for `compute` in each step of length `step`."""
    return max(0.0, 1 - compute / step)


def tolerance_idle_frac(step: float) -> float:
    """Returns how far the idle share may be off."""
    return max(TOLERANCE_IDLE_FRAC, TOLERANCE_MS / step)
