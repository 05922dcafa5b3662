"""Steps and telemetry as pandas DataFrames, with the columns of the CSV files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vitprof.analysis.arrays import Series
from vitprof.config.accelerators import is_simulated
from vitprof.export.objects import INTEGERS
from vitprof.export.timestamps import since_start
from vitprof.store import StoredRun

if TYPE_CHECKING:
    import pandas as pd


def frame(run: StoredRun, series: Series) -> pd.DataFrame:
    """Returns a DataFrame with one row for each step, or each sample of telemetry, of a run.

    `series` holds the columns by name, each of shape (n,). run_id and name come first and simulated comes last, so that
    frames of several runs can be concatenated. Whole numbers are int64, all others float64 with NaN for what is not
    known. Moments are seconds since the job left the queue.
    """
    import pandas as pd

    columns: dict[str, Any] = {"run_id": run.id, "name": run.name}
    for name, values in since_start(series, run.t_origin_s or 0.0).items():
        columns[name] = values.astype("int64") if name in INTEGERS else values
    n = len(next(iter(series.values())))
    return pd.DataFrame({**columns, "simulated": is_simulated(run.config.device)}, index=pd.RangeIndex(n))
