"""Preflight: whether this machine has what vitprof needs, by the checks of `doctor`."""

from __future__ import annotations

from vitprof.selftest.gpu.bench import Bench
from vitprof.selftest.gpu.outcome import Outcome, judged


def machine(bench: Bench) -> Outcome:
    """Runs every check of `doctor`, and one small product of matrices on the device, which must be right."""
    import torch

    from vitprof.jobs.preflight import examine

    checks = list(examine())
    bad = [f"{check.what}: {check.found}; {check.meaning}" for check in checks if check.verdict == "bad"]
    notes = [f"{check.what}: {check.found}" for check in checks if check.verdict == "note"]
    # a wheel without code for this card can be imported, and fails at the first kernel
    ones = torch.ones((64, 64), device=bench.device.torch_device)
    if float((ones @ ones).sum()) != 64**3:
        bad.append("a product of two matrices is wrong on this device")
    told = f"{len(checks)} checked, {len(bad)} bad"
    return judged(
        told + (f"; notes: {'; '.join(notes)}" if notes else ""),
        bad,
        checks=[[check.what, check.found, check.verdict, check.meaning] for check in checks],
    )
