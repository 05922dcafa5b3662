"""The cases: a job, what is put in its way, and what must be said of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitprof.config import RunConfig, injection
from vitprof.config.accelerators import accelerator

N_PHOTOS = 120
SLOW_MB_S, SLOW_LATENCY_MS = 40.0, 3.0
"""A drive on which a photo of about 0.1 MB takes half its time for opening and half for its bytes."""


WITH_WORKERS = "workers"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A job that is slowed down in a known way, and its reference: the same job without that."""

    name: str
    what: str
    """What is put in its way, in words."""
    base: RunConfig
    """The reference."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """What is different in the slowed job."""
    launch_ms: float = 0.0
    """What launching a step takes in the slowed job."""
    hogs: bool = False
    """Whether other programs keep all cores busy while it runs."""
    part: str
    """The part of loading that must get the blame (`timing.exposure.Share.name`); empty where no part has it."""
    right: tuple[str, ...]
    """Causes (`analysis.verdict.verdict.Verdict.cause`) that count as right, or else names of signatures."""
    why: str
    """Why these, and what size is expected."""

    @property
    def slowed(self) -> RunConfig:
        """Returns the job with what is put in its way."""
        return dataclasses.replace(self.base, **self.changes)

    @property
    def compute_ms(self) -> float:
        """Returns what the simulated device computes for each batch."""
        return accelerator(self.base.device).compute_s(self.base.batch_size) * 1e3

    @property
    def makers(self) -> int:
        """Returns how many batches are made at once."""
        return max(1, self.base.workers or 1)

    @property
    def injected_ms(self) -> float | None:
        """Returns the wait that is put into each batch; None where it is not injected."""
        inject = self.slowed.inject
        return injection(inject)[1] * 1e3 if inject else None

    @property
    def own_process(self) -> bool:
        """Returns whether it must not run in a thread: worker processes want to be forked, and CPU hogs are children of
        it.
        """
        return self.hogs or self.base.strategy == WITH_WORKERS

    @property
    def hidden(self) -> bool:
        """Returns whether the device must not notice anything."""
        return not self.right


COMMON: dict[str, Any] = {"threads": 1, "evaluate": False, "warmup_steps": 4, "steps": 32}

# Sample by sample in the training loop, as tutorials do: all five parts can be told apart. Fetching 16 digits takes
# longer than the device's 1 ms, or about that, so nearly all of a wait is exposed.
IN_THE_LOOP = RunConfig(strategy="per-sample", batch_size=16, device="simulated:1,0", **COMMON)
WHOLE_BATCHES = RunConfig(strategy="memory", batch_size=64, device="simulated:4,0", **COMMON)
GENERATOR = RunConfig(strategy="generator", storage="idx", batch_size=16, device="simulated:2,10", **COMMON)
# The fetch is next to nothing, the device takes 12 ms: less than one of the waits, more than the other.
AHEAD = RunConfig(strategy="memory-ahead", batch_size=64, device="simulated:12,0", **COMMON)
# Four digits: a worker that has slept makes more of them slower than one that has not.
WORKERS = RunConfig(strategy=WITH_WORKERS, storage="memory", workers=2, batch_size=4, device="simulated:4,0", **COMMON)
PHOTOS: dict[str, Any] = COMMON | {"dataset": "photos", "n_images": N_PHOTOS, "batch_size": 4, "steps": 30}
# Two photos: decoding them hides behind compute. Threads slow each other down, so more of them would not be the same
# with a wait among them.
THREADS = RunConfig(strategy="threads", workers=2, device="simulated:4,0", **PHOTOS | {"batch_size": 2, "steps": 36})
DRIVE = RunConfig(strategy="generator", device="simulated:4,0", **PHOTOS)
# Long enough for ten readings of the CPU's use, on which the rule about other programs rests. Other programs begin when
# training is seen to have begun, up to 0.6 s later: within the warm-up. Without torchvision, which takes longer to load
# than this job to run.
CPU_BOUND = RunConfig(
    strategy="generator",
    device="simulated:1,0",
    telemetry_hz=10,
    **PHOTOS | {"warmup_steps": 200, "steps": 320},
)

# 1 ms of kernels; long enough for the steps behind a gate.
LAUNCHES = RunConfig(
    strategy="memory", batch_size=64, device="simulated:1,0", **COMMON | {"warmup_steps": 6, "steps": 100}
)

LOOP_WHY = "It is the only part of that length, and it is exposed but for what the device still computes."
CASES: tuple[Case, ...] = (
    *(
        Case(
            name=f"{part}, in the loop",
            what=f"20 ms in {words}, sample by sample without workers",
            base=IN_THE_LOOP,
            changes={"inject": f"{part}:20"},
            part=part,
            right=(part,),
            why=LOOP_WHY,
        )
        for part, words in (
            ("read", "reading"),
            ("decode", "decoding"),
            ("transform", "transforms"),
            ("collate", "collating"),
            ("transfer", "the copy to the device"),
        )
    ),
    Case(
        name="partly hidden",
        what="20 ms in reading, in a thread ahead of a device that computes for 12 ms",
        base=AHEAD,
        changes={"inject": "read:20"},
        part="read",
        right=("read",),
        why="Of 20 ms of reading 12 pass while the device computes: 8 are exposed.",
    ),
    Case(
        name="fully hidden",
        what="8 ms in reading, in a thread ahead of a device that computes for 12 ms",
        base=AHEAD,
        changes={"inject": "read:8"},
        part="read",
        right=(),
        why="All of it passes while the device computes: it must cost nothing, and the run not be input-bound.",
    ),
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
        why="A batch takes the latency of its files and their bytes / bandwidth longer. Reading is the part; that the "
        "drive is slow is known from the settings.",
    ),
    Case(
        name="launch-bound",
        what="launches of 4 ms for 1 ms of kernels, whole batches from memory",
        base=LAUNCHES,
        changes={"device": "simulated:1,0,launch=4"},
        launch_ms=4.0,
        part="",
        right=("launches",),
        why="The device waits for launches for 3 ms inside each step. Marks around a step alone call that compute.",
    ),
    Case(
        name="CPU hogs",
        what="other programs on all cores, photos decoded in the loop",
        base=CPU_BOUND,
        hogs=True,
        part="",
        right=("cpu_contention", "other-programs"),
        why="The loop's own work gets slower, in all its parts alike; either the cause or the signature must say why. "
        "How much they take is the system's choice: it is compared with what the reference idled less, but for the "
        "CPU time that the same work took more. Beside other programs a core computes slower too (shared halves, "
        "caches, clocks); the verdict's size is the wait for a core.",
    ),
    Case(
        name="read, whole batches",
        what="20 ms in reading, whole batches from memory in the loop",
        base=WHOLE_BATCHES,
        changes={"inject": "read:20"},
        part="read",
        right=("read",),
        why="The fetch itself takes next to nothing: all but the 4 ms that the device computes is exposed.",
    ),
    Case(
        name="decode, generator",
        what="20 ms in decoding, a generator in the loop",
        base=GENERATOR,
        changes={"inject": "decode:20"},
        part="decode",
        right=("decode",),
        why=LOOP_WHY,
    ),
    Case(
        name="read, workers",
        what="40 ms in reading, two worker processes",
        base=WORKERS,
        changes={"inject": "read:40"},
        part="read",
        right=("read",),
        why="Two batches are made at once: a batch comes every 20 ms and the device computes for 4 of them.",
    ),
    Case(
        name="collate, workers",
        what="40 ms in collating, two worker processes",
        base=WORKERS,
        changes={"inject": "collate:40"},
        part="collate",
        right=("collate",),
        why="As for reading: whichever part the workers wait in, the device waits for their pace.",
    ),
    Case(
        name="read, threads",
        what="40 ms in reading, two threads that decode photos",
        base=THREADS,
        changes={"inject": "read:40"},
        part="read",
        right=("read",),
        why="As with two workers: while one thread waits, the other one makes the next batch.",
    ),
)
QUICK: tuple[Case, ...] = CASES[:10]
"""Those that share jobs, or that no other stands for."""


def n_jobs(cases: Sequence[Case], rounds: int) -> int:
    """Returns the jobs that these cases take, reference runs included."""
    return (len(cases) + len({case.base for case in cases})) * rounds
