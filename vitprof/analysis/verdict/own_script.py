"""Advice for a user's own training script: arguments of its DataLoader, and the work of its dataset."""

from __future__ import annotations

import math
from collections.abc import Iterator

from vitprof.analysis.timing.exposure import synchronous
from vitprof.analysis.timing.transforms import heaviest, transform_times
from vitprof.analysis.verdict.situation import Situation
from vitprof.formats import percent
from vitprof.recording.verdict import Advice


def own_script_advice(s: Situation) -> Iterator[Advice]:
    """Yields what may help, the best first. `settings` are empty: vitprof cannot set any of it."""
    if s.kind == "not input-bound" and s.sure:
        return
    if s.cause == "launches":
        yield from LAUNCH_LESS[: 1 if s.on_cpu else None]
        return
    if s.config.workers and s.config.persistent_workers is False and _restarts(s):
        yield Advice({}, "setting persistent_workers=True in the DataLoader", "Workers start again for each epoch.")
    if s.cause == "cpu_contention":
        yield Advice({}, "ending the other programs that use the CPU", "They take cores that loading could use.")
    making = [cause for cause in (s.cause, *s.causes) if cause in ("read", "decode", "transform", "collate")]
    if making:
        yield from _more_workers(s)
    if s.config.workers and (s.config.prefetch_factor or 2) < 4:
        yield Advice(
            {},
            "setting prefetch_factor=4 in the DataLoader",
            "More batches kept ready make up for slow ones.",
        )
    for cause in dict.fromkeys(making):
        yield _lighter_transforms(s) if cause == "transform" else Advice({}, *LIGHTER[cause])
    if "hand_over" in (s.cause, *s.causes) and not s.on_cpu and not s.config.pin_memory:
        yield Advice(
            {},
            "setting pin_memory=True in the DataLoader and non_blocking=True in .to()",
            "Pinned batches are copied without another copy on the host.",
        )


LAUNCH_LESS = (
    Advice({}, "a larger batch", "Python and launches cost the same for each step, however large it is."),
    Advice(
        {},
        'torch.compile(model, mode="reduce-overhead"), or CUDA graphs',
        "A step is launched as a whole. The first steps take long.",
    ),
    Advice(
        {},
        "an optimizer with fused=True, and fewer small operations",
        "Each parameter's update and each small operation is a launch of its own.",
    ),
)
"""Advice where Python launches slower than the device works."""
LIGHTER = {
    "read": (
        "a faster decoder, smaller files, or samples kept decoded in one memory-mapped file",
        "Most of the work on a batch is done in the dataset: reading and decoding.",
    ),
    "decode": ("a faster decoder (simplejpeg, OpenCV)", "Most of the work on a batch is decoding."),
    "transform": (
        "transforms on the device, or those that are not random done once beforehand",
        "Most of the work on a batch is done in transforms.",
    ),
    "collate": (
        "a collate function that fills one tensor, or __getitems__ in the dataset",
        "Most of the work on a batch is putting its samples together.",
    ),
}
"""Stage that takes longest -> what to try, and why."""


def _lighter_transforms(s: Situation) -> Advice:
    """Returns advice on transforms, which names the heaviest if each one's time is known."""
    words, reason = LIGHTER["transform"]
    most = heaviest(transform_times(s.facts))
    if most is not None:
        reason = f"{reason.removesuffix('.')}, {percent(most.frac)} of it in {most.name}."
    if s.on_cpu:  # the device is where transforms run anyway
        heavy = f"a lighter {most.name}" if most is not None else "lighter transforms"
        words = f"{heavy}, or transforms that are not random done once beforehand"
    elif most is not None:
        words = f"{most.name} on the device, and transforms that are not random done once beforehand"
    return Advice({}, words, reason)


def _restarts(s: Situation) -> bool:
    return any(x.name == "epoch-start" and x.evidence.get("workers_restarted") for x in s.signatures)


def _more_workers(s: Situation) -> Iterator[Advice]:
    """Yields advice to use as many workers as there are free cores.

    One worker in place of the loop is advised where a device computes meanwhile, or a core was measured to be free: on
    the CPU the training itself may use all the others.
    """
    cores = s.facts.get("cpu_count")
    workers = s.config.workers or 0
    if not cores or s.free_cores < 1:
        return
    measured = math.isfinite(s.free_cores)
    free = int(s.free_cores) if measured else max(0, int(cores) - 1 - workers)
    wanted = min(int(cores), workers + free)
    if wanted <= workers or (wanted == 1 and synchronous(s.config) and s.on_cpu and not measured):
        return
    now = "in the training loop itself" if not workers else f"by {workers} worker{'s' if workers > 1 else ''}"
    yield Advice(
        {},
        f"setting num_workers={wanted} in the DataLoader",
        f"Batches are made {now}; about {free} more core{'s are' if free != 1 else ' is'} free.",
    )
