"""What a self-test must find, calculated from the wait, the device's compute time and the time to fetch a batch.

All times are in milliseconds for each batch. A device that executes steps asynchronously (CUDA, simulated) computes
while the loop fetches the next batch, so only the part of `fetch` that is longer than `compute` leaves it idle. With n
workers n batches are made at once, and one arrives every `fetch / n`.
"""

from __future__ import annotations

TOLERANCE_FRAC = 0.1
TOLERANCE_MS = 0.3
"""The size of a cause must be right within 10% or 0.3 ms for each batch, whichever is more."""
TOLERANCE_IDLE_FRAC = 0.01
"""The idle share must be right within one percentage point or 0.3 ms of a step, whichever is more."""


def exposed_ms(fetch: float, compute: float, makers: int = 1) -> float:
    """Returns how long the device idles for each batch: max(0, fetch / makers - compute)."""
    return max(0.0, fetch / makers - compute)


def expected_ms(wait: float, fetch: float, compute: float, makers: int = 1) -> float:
    """Returns how much longer the device idles for each batch if `wait` is added to a fetch of `fetch`.

    Where `fetch` alone keeps the device waiting, that is the whole wait, divided by `makers`. Where it does not, it is
    the part of the wait that outlasts what the device still has to compute, or nothing.
    """
    return exposed_ms(fetch + wait, compute, makers) - exposed_ms(fetch, compute, makers)


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
