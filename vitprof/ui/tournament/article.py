"""The article's table as a data frame."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from vitprof.analysis.tournament import ArticleCell, ArticleTable
from vitprof.ui.tables import rounded
from vitprof.ui.tournament.table import MIB


@dataclass(frozen=True)
class Measure:
    """One of the article's three figures."""

    name: str
    unit: str
    value: Callable[[ArticleCell], float]


MEASURES = (
    Measure("Epoch", "s", lambda c: c.epoch_s),
    Measure("GPU memory", "MiB", lambda c: c.gpu_mem_bytes / MIB),
    Measure("GPU-util", "%", lambda c: c.gpu_util_pct),
)


def article_frame(found: ArticleTable) -> pd.DataFrame:
    """Returns the article's table: a row for each setting and, for each figure, a column for each batch size. A figure
    that no cell has is left out.
    """
    data: dict[str, Sequence[str] | Sequence[float]] = {"Setting": [line.name for line in found.lines]}
    for measure in MEASURES:
        columns = {
            f"{measure.name} ({measure.unit}), batch {batch:,}": [
                math.nan if line.cells[i] is None else rounded(measure.value(line.cells[i]))  # type: ignore[arg-type]
                for line in found.lines
            ]
            for i, batch in enumerate(found.batch_sizes)
        }
        if any(math.isfinite(v) for values in columns.values() for v in values):
            data |= columns
    return pd.DataFrame(data)
