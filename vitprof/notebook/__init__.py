"""Runs of the store in Python, for a notebook or a script: `vitprof.runs()`, `vitprof.run(1)`.

See docs/python.md. The store is open only while it is read. Nothing is imported before it is
needed: `import vitprof` stays fast, and a package that is missing is named by the call that needs
it.
"""

from __future__ import annotations

import contextlib
import functools
import html
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitprof import errors, formats, program
from vitprof.recording.columns import RunSummary, Status

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from vitprof.analysis.arrays import Series
    from vitprof.analysis.verdict.headroom import Headroom
    from vitprof.config import RunConfig
    from vitprof.store import RunStore, StoredRun

Several = str | Iterable[str]
"""One value, or several: a run matches if it has any of them."""


def runs(
    text: str = "",
    *,
    tag: Several = (),
    strategy: Several = (),
    dataset: Several = (),
    device: Several = (),
    verdict: Several = (),
    status: Several = (),
    helpers: bool = False,
    sort: str = "id",
    ascending: bool = False,
    limit: int | None = None,
) -> list[Run]:
    """Returns the runs of the store as they are now (see `Run`), newest first.

    The filters are the options of `vitprof runs`. `text`: words to find in name, note, tags,
    strategy, data set or device. `tag` to `status`: one value or several; a run matches if it has
    any of them. `helpers`: whether to include runs made for other runs, such as anchors of headroom
    and trials of tournaments. `sort`: id, name, strategy, samples_per_s, idle_frac or
    device_idle_frac. `limit`: the most runs to return; None for all. Runs that another version of
    vitprof wrote and this one cannot read are left out.

    Raises `ConfigError` for a value that is not allowed, `VitprofError` if the store cannot be
    opened or a package is missing.
    """
    with needed():
        from vitprof.store import MAX_ID, RunQuery

    most = MAX_ID
    if limit is not None:
        most = _whole("limit", limit)
    if not 1 <= most <= MAX_ID:
        raise errors.ConfigError("limit", limit, "give a whole number of at least 1")
    filters = {
        "tag": tag,
        "strategy": strategy,
        "dataset": dataset,
        "device": device,
        "verdict": verdict,
    }
    wanted = {name: _several(values) for name, values in (filters | {"status": status}).items()}
    query = RunQuery(
        text=text, filters=wanted, helpers=helpers, sort=sort, descending=not ascending
    )
    matches = []
    with _open_store() as store:
        for row in store.list_runs(query, limit=most):
            # A run may have been deleted since it was listed, or be of another version.
            with contextlib.suppress(errors.StoreError):
                matches.append(_run(store.run(row.id), row.tags))
    return matches


def run(run_id: int) -> Run:
    """Returns one run of the store, as it is now.

    Raises `ConfigError` if `run_id` is not a whole number, `VitprofError` if there is no such run,
    it cannot be read, or a package is missing.
    """
    number = _whole("run_id", run_id)
    with _open_store() as store:
        return _run(store.run(number), store.tags(number))


@dataclass(frozen=True, repr=False, eq=False)
class Run:
    """A run as it was when it was read; `vitprof.run(id)` reads it again.

    Its steps and its telemetry are read on first access and kept.
    """

    id: int
    """Its number in the store."""
    name: str
    """Its name."""
    status: Status
    """queued, running, done, stopped, failed or interrupted."""
    created_utc: str
    """When it was submitted, in UTC, as ISO 8601 with a Z."""
    config: RunConfig
    """All its settings, each an attribute."""
    summary: RunSummary | None
    """Its figures, each an attribute with its unit in its name, and NaN where it is not known.

    None for a run that was never summed up.
    """
    simulated: bool
    """Whether its device was simulated."""
    note: str
    """The note that a person wrote about it; "" if there is none."""
    error: str
    """Why it failed, in one line; "" if it did not fail."""
    verdict: str
    """The verdict in one sentence; "" where there is none."""
    verdict_kind: str
    """The verdict in a word or two, such as "input-bound"; "" where there is none."""
    tags: tuple[str, ...]
    """Its tags, sorted."""
    _stored: StoredRun

    @functools.cached_property
    def steps(self) -> pd.DataFrame:
        """Returns one row for each step, with the columns of `export --format steps-csv`.

        Whole numbers are int64, all others float64 with NaN for what is not known. Raises
        `VitprofError` if pandas is missing or the store cannot be read.
        """
        return frame(self._stored, self._steps)

    @functools.cached_property
    def telemetry(self) -> pd.DataFrame:
        """Returns one row for each sample of telemetry: run_id, name, the columns of
        docs/formats.md, and simulated.

        The types and errors are those of `steps`.
        """
        return frame(self._stored, self._telemetry)

    def figure(self, name: str, *, step: int | None = None) -> go.Figure:
        """Returns the chart of the Profile page called `name`, as a Plotly figure.

        `step`: number of the step to look at, for charts that show single steps. Raises
        `ValueError` for an unknown name (it lists the known ones) or a step for a chart that takes
        none, `VitprofError` where the run lacks what the chart shows or plotly is missing.
        """
        with needed():
            from vitprof.notebook.figures import Material, draw

        return draw(
            name, Material(self._stored, self._steps, self._telemetry, self._headroom, step)
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the object that `vitprof runs RUN --json` prints: plain values, None for what is
        not known.
        """
        from vitprof.export.tables import run_object

        return run_object(self._stored, self.tags)

    def __repr__(self) -> str:
        verdict = f": {self.verdict}" if self.verdict else ""
        return f"<vitprof run {self.id} {self.name!r}, {self._state}{verdict}>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><th style="text-align:left">{html.escape(label)}</th>'
            f'<td style="text-align:left">{html.escape(value)}</td></tr>'
            for label, value in self._figures()
        )
        head = html.escape(f"run {self.id}: {self.name} ({self._state})")
        return f"<p><b>{head}</b><br>{html.escape(self.verdict or self.error)}</p><table>{rows}</table>"

    @property
    def _state(self) -> str:
        # Simulated results are labelled as such everywhere.
        if self.simulated:
            return f"{self.status}, simulated"
        return self.status

    def _figures(self) -> list[tuple[str, str]]:
        """Returns labels and values to show at a glance; figures that are not known are left out."""
        s = self.summary or RunSummary()
        config = self.config
        interval = ""
        if math.isfinite(s.samples_per_s_low):
            low = formats.number(s.samples_per_s_low)
            high = formats.number(s.samples_per_s_high)
            interval = f" (95%: {low} to {high}, n = {s.n_steady_steps} steps)"
        rows = [
            ("strategy", f"{config.strategy}, batch size {config.batch_size}"),
            ("data set", config.dataset),
            ("device", str(self._stored.environment.get("device_name") or config.device)),
            ("throughput", formats.number(s.samples_per_s, "samples/s") + interval),
            ("step, median", formats.seconds(s.step_ms_median / 1e3)),
            ("data wait", formats.percent(s.data_wait_frac)),
            ("device idle", formats.percent(s.device_idle_frac)),
        ]
        return [row for row in rows if not row[1].startswith(formats.NOT_AVAILABLE)]

    @functools.cached_property
    def _steps(self) -> Series:
        with _open_store() as store:
            return store.steps(self.id)

    @functools.cached_property
    def _telemetry(self) -> Series:
        with _open_store() as store:
            return store.telemetry(self.id)

    def _headroom(self) -> Headroom | None:
        from vitprof.experiments.headroom_runs import find_headroom

        with _open_store() as store:
            return find_headroom(store, self._stored)


def _run(stored: StoredRun, tags: Sequence[str]) -> Run:
    same = (
        "id",
        "name",
        "status",
        "created_utc",
        "config",
        "summary",
        "simulated",
        "note",
        "error",
    )
    values: dict[str, Any] = {name: getattr(stored, name) for name in same}
    values |= {"verdict": "", "verdict_kind": ""}
    if stored.verdict:
        from vitprof.analysis.verdict.rendering import in_a_word

        values |= {"verdict": stored.verdict.sentence, "verdict_kind": in_a_word(stored.verdict)}
    return Run(**values, tags=tuple(tags), _stored=stored)


def frame(run: StoredRun, series: Series) -> pd.DataFrame:
    """Returns a DataFrame with one row for each step, or each sample of telemetry, of a run.

    `series` holds the columns by name, each of shape (n,). run_id and name come first and simulated
    comes last, so that frames of several runs can be concatenated. Moments are seconds since the
    job left the queue. Raises `VitprofError` if pandas is missing.
    """
    with needed():
        import pandas as pd

        from vitprof.export.tables import INTEGERS, since_start

    columns: dict[str, Any] = {"run_id": run.id, "name": run.name}
    for name, values in since_start(series, run.t_origin_s).items():
        columns[name] = values.astype("int64") if name in INTEGERS else values
    n = len(next(iter(series.values())))
    return pd.DataFrame({**columns, "simulated": run.simulated}, index=pd.RangeIndex(n))


@contextlib.contextmanager
def needed() -> Iterator[None]:
    """Turns the error of a missing package in the block into a `VitprofError` that says what to
    install.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        # A module of vitprof's own that is missing is a bug, and nothing that a user could install.
        if (error.name or "vitprof").partition(".")[0] == "vitprof":
            raise
        raise errors.VitprofError(program.missing_words(error)) from None


@contextlib.contextmanager
def _open_store() -> Iterator[RunStore]:
    """Opens the store for the block.

    Runs whose program is gone are summed up first, as on the command line.
    """
    with needed():
        from vitprof.jobs.finalise import settle_interrupted
        from vitprof.store import RunStore
    with contextlib.closing(RunStore()) as store:
        settle_interrupted(store)
        yield store


def _several(values: Several) -> tuple[str, ...]:
    # A string is an iterable of strings, too: of its letters.
    if isinstance(values, str):
        return (values,)
    return tuple(values)


def _whole(name: str, value: int) -> int:
    """Returns `value` as an int, also where it is one of NumPy's.

    Raises `ConfigError` if it is no whole number.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise errors.ConfigError(name, value, "give a whole number") from None
