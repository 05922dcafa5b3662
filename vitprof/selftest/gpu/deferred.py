"""Compute-bound: deferred marks must give the same compute time as marks that the host waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from vitprof.analysis.timing.steady import steady_state
from vitprof.selftest.gpu.bench import Bench, Recorded
from vitprof.selftest.gpu.outcome import Outcome, judged, not_run

if TYPE_CHECKING:
    from vitprof.measure.devices import Device, Mark

ROUNDS = 3
MOST_OFF_FRAC = 0.02
JOB: dict[str, Any] = {"dataset": "digits", "strategy": "device", "warmup_steps": 4, "steps": 14}


class Synchronising:
    """A device that the host waits for before and after each mark. Everything else is passed on to the device."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def mark(self) -> Mark:
        """Returns a mark after all work launched so far, once the device has passed it."""
        self._device.synchronize()
        mark = self._device.mark()
        self._device.wait(mark)
        return mark


def compute_bound(bench: Bench) -> Outcome:
    """Trains a model whose kernels take far longer than their launches, in turns with and without a wait at marks."""
    from vitprof.engine.trainer import open_trainer

    plain = bench.device
    waiting = cast("Device", Synchronising(plain))
    found: dict[bool, list[float]] = {False: [], True: []}
    try:
        for _ in range(ROUNDS):
            for forced in (False, True):
                recorded = bench.run(
                    device=waiting if forced else plain,
                    trains=lambda config, device: open_trainer(config, plain),
                    **JOB | dict(bench.heavy),
                )
                found[forced].append(_compute_ms(recorded))
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
        return not_run(f"the model {bench.heavy.get('model', 'tiny')} needs more device memory than is free")
    deferred, forced_ms = (float(np.median(found[forced])) for forced in (False, True))
    off = deferred / forced_ms - 1
    wrong = [] if abs(off) <= MOST_OFF_FRAC else [f"they differ by {off:+.1%}, and {MOST_OFF_FRAC:.0%} is allowed"]
    return judged(
        f"compute {deferred:.2f} ms deferred, {forced_ms:.2f} ms with a wait at each mark ({off:+.1%})",
        wrong,
        deferred_ms=found[False],
        forced_ms=found[True],
    )


def _compute_ms(recorded: Recorded) -> float:
    steps = recorded.steps
    return float(np.median(steps["compute_s"][steady_state(steps)])) * 1e3
