"""A run of the store as an object."""

from __future__ import annotations

import contextlib
import functools
import html
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vitprof import formats
from vitprof.analysis.arrays import Series
from vitprof.analysis.verdict.headroom import Headroom
from vitprof.config import RunConfig
from vitprof.export.tables import INTEGERS, run_object, since_start
from vitprof.notebook import needed
from vitprof.recording.columns import RunSummary, Status
from vitprof.store import RunStore, StoredRun

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


class Run:
    """A run as it was when it was read; `vitprof.run(id)` reads it again.

    Its steps and its telemetry are read on first access and kept.
    """

    def __init__(self, stored: StoredRun, tags: Sequence[str] = ()) -> None:
        self._stored = stored
        self.tags = tuple(tags)
        """Its tags, sorted."""

    @property
    def id(self) -> int:
        """Returns its number in the store."""
        return self._stored.id

    @property
    def name(self) -> str:
        """Returns its name."""
        return self._stored.name

    @property
    def status(self) -> Status:
        """Returns its status: queued, running, done, stopped, failed or interrupted."""
        return self._stored.status

    @property
    def created_utc(self) -> str:
        """Returns when it was submitted, in UTC, as ISO 8601 with a Z."""
        return self._stored.created_utc

    @property
    def config(self) -> RunConfig:
        """Returns all its settings, each an attribute."""
        return self._stored.config

    @property
    def summary(self) -> RunSummary | None:
        """Returns its figures, each an attribute with its unit in its name and NaN where it is not known; None for a
        run that was never summed up.
        """
        return self._stored.summary

    @property
    def verdict(self) -> str:
        """Returns the verdict in one sentence; "" where there is none."""
        return self._stored.verdict.sentence if self._stored.verdict else ""

    @property
    def verdict_kind(self) -> str:
        """Returns the verdict in a word or two, such as "input-bound"; "" where there is none."""
        return self._stored.verdict.kind if self._stored.verdict else ""

    @property
    def simulated(self) -> bool:
        """Returns whether its device was simulated."""
        return self._stored.simulated

    @property
    def note(self) -> str:
        """Returns the note that a person wrote about it; "" if there is none."""
        return self._stored.note

    @property
    def error(self) -> str:
        """Returns why it failed, in one line; "" if it did not fail."""
        return self._stored.error

    @functools.cached_property
    def steps(self) -> pd.DataFrame:
        """Returns one row for each step, with the columns of `export --format steps-csv`.

        Whole numbers are int64, all others float64 with NaN for what is not known. Raises `VitprofError` if pandas is
        missing or the store cannot be read.
        """
        return self._frame(self._steps)

    @functools.cached_property
    def telemetry(self) -> pd.DataFrame:
        """Returns one row for each sample of telemetry: run_id, name, the columns of docs/formats.md, and simulated.

        The types and errors are those of `steps`.
        """
        return self._frame(self._telemetry)

    def figure(self, name: str, *, step: int | None = None) -> go.Figure:
        """Returns the chart of the Profile page called `name`, as a Plotly figure.

        `step`: number of the step to look at, for charts that show single steps. Raises `ValueError` for an unknown
        name (it lists the known ones) or a step for a chart that takes none, `VitprofError` where the run lacks what
        the chart shows or plotly is missing.
        """
        with needed():
            from vitprof.notebook.figures import Material, draw

        return draw(name, Material(self._stored, self._steps, self._telemetry, self._headroom, step))

    def to_dict(self) -> dict[str, Any]:
        """Returns the object that `vitprof runs RUN --json` prints: plain values, None for what is not known."""
        return run_object(self._stored, self.tags)

    def __repr__(self) -> str:
        said = f": {self.verdict}" if self.verdict else ""
        return f"<vitprof run {self.id} {self.name!r}, {self._state()}{said}>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><th style="text-align:left">{html.escape(label)}</th>'
            f'<td style="text-align:left">{html.escape(value)}</td></tr>'
            for label, value in self._figures()
        )
        head = html.escape(f"run {self.id}: {self.name} ({self._state()})")
        return f"<p><b>{head}</b><br>{html.escape(self.verdict or self.error)}</p><table>{rows}</table>"

    def _state(self) -> str:
        return self.status + (", simulated" if self.simulated else "")

    def _figures(self) -> list[tuple[str, str]]:
        """Returns labels and values to show at a glance; figures that are not known are left out."""
        s, config = self.summary or RunSummary(), self.config
        device = str(self._stored.environment.get("device_name") or config.device)
        low, high = formats.number(s.samples_per_s_low), formats.number(s.samples_per_s_high)
        known = math.isfinite(s.samples_per_s_low)
        interval = f" (95%: {low} to {high}, n = {s.n_steady_steps} steps)" if known else ""
        rows = [
            ("strategy", f"{config.strategy}, batch size {config.batch_size}"),
            ("data set", config.dataset),
            ("device", device),
            ("throughput", formats.number(s.samples_per_s, "samples/s") + interval),
            ("step, median", formats.seconds(s.step_ms_median / 1e3)),
            ("data wait", formats.percent(s.data_wait_frac)),
            ("device idle", formats.percent(s.device_idle_frac)),
        ]
        return [row for row in rows if not row[1].startswith(formats.NOT_AVAILABLE)]

    @functools.cached_property
    def _steps(self) -> Series:
        with contextlib.closing(RunStore()) as store:
            return store.steps(self.id)

    @functools.cached_property
    def _telemetry(self) -> Series:
        with contextlib.closing(RunStore()) as store:
            return store.telemetry(self.id)

    def _headroom(self) -> Headroom | None:
        from vitprof.experiments.headroom import find_headroom

        with contextlib.closing(RunStore()) as store:
            return find_headroom(store, self._stored)

    def _frame(self, series: Series) -> pd.DataFrame:
        with needed():
            return frame(self._stored, series)


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
    return pd.DataFrame({**columns, "simulated": run.simulated}, index=pd.RangeIndex(n))
