"""Undersized DALI: a job whose DALI pipeline is too small must be called input-bound, by decoding."""

from __future__ import annotations

from typing import Any

from vitprof.config.availability import why_unavailable
from vitprof.config.catalog import dataset_info
from vitprof.config.strategies import strategy
from vitprof.selftest.cases import N_PHOTOS
from vitprof.selftest.gpu.bench import Bench, Spinning
from vitprof.selftest.gpu.outcome import Outcome, judged, not_run

COMPUTE_MS = 0.2
BOUND = ("input-bound", "moderately input-bound")
JOB: dict[str, Any] = {
    "dataset": "photos",
    "n_images": N_PHOTOS,
    "strategy": "dali",
    "workers": 1,
    "prefetch_factor": 1,
    "batch_size": 4,
    "warmup_steps": 8,
    "steps": 80,
}


def undersized_decoder(bench: Bench) -> Outcome:
    """Decodes with one thread and one batch ahead, for a device that computes for only 0.2 ms a step."""
    info = dataset_info("photos", N_PHOTOS)
    if reason := why_unavailable(strategy("dali"), info):
        return not_run(f"DALI: {reason}")
    ask_s = bench.spin(COMPUTE_MS / 1e3)
    recorded = bench.run(trains=lambda config, device: Spinning(device, ask_s), **JOB)
    verdict = recorded.verdict()
    wrong = []
    if verdict.kind not in BOUND:
        wrong.append(f"it was called {verdict.kind}")
    elif verdict.cause != "decode":
        wrong.append(f"the verdict named {verdict.cause or 'no cause'}")
    return judged(
        f"{verdict.kind}, by {verdict.cause or 'nothing'}; the device waits {verdict.idle_frac:.0%} of the time",
        wrong,
        kind=verdict.kind,
        cause=verdict.cause,
        idle_frac=verdict.idle_frac,
        compute_ms=recorded.steady("compute_s") * 1e3,
        step_ms=recorded.step_ms,
    )
