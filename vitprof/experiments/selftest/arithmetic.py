"""What must be found, worked out from what is known: the wait, the device's time and how long fetching takes.

All times in milliseconds for each batch. On a device that executes steps by itself (CUDA, simulated) the loop fetches
the next batch while the device computes, so of `fetch` only what is longer than `compute` leaves the device idle. With
n workers n batches are made at once: one is there every `fetch / n`.
"""

from __future__ import annotations

TOLERANCE_FRAC = 0.1
TOLERANCE_MS = 0.3
"""The size of a cause must be right within 10% or 0.3 ms for each batch, whichever is more."""
TOLERANCE_IDLE_FRAC = 0.01
"""The idle share must be right within one percentage point, or by what 0.3 ms of a step are."""


def exposed_ms(fetch: float, compute: float, makers: int = 1) -> float:
    """Returns how long the device idles for each batch: max(0, fetch / makers - compute)."""
    return max(0.0, fetch / makers - compute)


def expected_ms(wait: float, fetch: float, compute: float, makers: int = 1) -> float:
    """Returns how much longer it idles for each batch if a wait of `wait` is put into a fetch of `fetch`.

    Three kinds: where `fetch` alone keeps the device waiting, all of the wait (shared by the makers); where the wait
    is longer than what the device still has to compute, the rest of it; where it is shorter, nothing.
    """
    return exposed_ms(fetch + wait, compute, makers) - exposed_ms(fetch, compute, makers)


def drive_ms(n_bytes: float, mb_s: float, latency_ms: float) -> float:
    """Returns what a slow drive takes for a file of `n_bytes`: its latency, and bytes / bandwidth."""
    return latency_ms + n_bytes / (mb_s * 1e6) * 1e3


def tolerance_ms(expected: float) -> float:
    """Returns how far a size may be off."""
    return max(TOLERANCE_FRAC * expected, TOLERANCE_MS)


def idle_frac(compute: float, step: float) -> float:
    """Returns the share of the time that a device idles which computes for `compute` of each step of `step`."""
    return max(0.0, 1 - compute / step)


def tolerance_idle_frac(step: float) -> float:
    """Returns how far the idle share may be off."""
    return max(TOLERANCE_IDLE_FRAC, TOLERANCE_MS / step)
