"""Steps and telemetry whose figures can be added up by hand: what nearly every test of a figure begins with."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from vitprof.analysis.arrays import Series
from vitprof.recording.columns import STEP_COLUMNS, TELEMETRY_COLUMNS

Values = Sequence[float] | np.ndarray


def made_steps(
    waits: Values,
    computes: Values | float,
    *,
    h2d: float = 0.0,
    samples: int = 10,
    warmup: int = 0,
    epochs: Values | None = None,
    began: float = 100.0,
    pause: float = 0.0,
    **columns: Any,
) -> dict[str, np.ndarray]:
    """Returns steps of a device that works only while the loop waits for it, with `pause` seconds after each. Each is a
    data wait, a copy of `h2d` seconds and a computation; loss is 10, 9.9, 9.8 and so on. `columns` are others, of one
    value or one for each step."""
    wait = np.asarray(waits, dtype=float)
    n = len(wait)
    compute = np.broadcast_to(np.asarray(computes, dtype=float), n)
    number = np.arange(n, dtype=float)
    step = wait + h2d + compute
    start = began + np.concatenate([[0.0], np.cumsum(step + pause)])[:n]
    known = {
        "rank": 0,
        "step": number,
        "epoch": 0 if epochs is None else epochs,
        "warmup": number < warmup,
    }
    known |= {
        "samples": samples,
        "loss": 10 - number / 10,
        "t_start_s": start,
        "data_wait_s": wait,
        "step_s": step,
    }
    known |= {"exposed_wait_s": wait, "h2d_s": h2d, "gap_s": wait + h2d}
    return of_columns(
        STEP_COLUMNS,
        n,
        known | {"compute_s": compute, "compute_start_s": start + wait + h2d} | columns,
    )


def made_telemetry(t_s: Values = (), **known: Any) -> Series:
    """Returns telemetry with these columns, each of one value or one for each sample."""
    return of_columns(TELEMETRY_COLUMNS, len(t_s), {"t_s": t_s, **known})


def of_columns(names: Sequence[str], n: int, known: dict[str, Any]) -> dict[str, np.ndarray]:
    """Returns `n` rows of these columns; all that are not known are not available."""
    return {
        c: np.broadcast_to(np.asarray(known.get(c, np.nan), dtype=float), n).copy() for c in names
    }
