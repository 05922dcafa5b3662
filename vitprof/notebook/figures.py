"""The charts of a run by name, drawn as the Profile page draws them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from vitprof import errors, store
from vitprof.analysis.arrays import Series
from vitprof.analysis.timing import activity, loading, steady
from vitprof.analysis.timing.gaps import TrainingTime, training_time
from vitprof.analysis.timing.timeline import (
    after_largest_gap,
    one_step,
    timeline,
    typical_step,
)
from vitprof.analysis.verdict.headroom import Headroom
from vitprof.charts import breakdown, live, style
from vitprof.charts.comparison import activity_strips
from vitprof.charts.timeline import batch_chain, timeline_chart
from vitprof.program import program

WINDOW = 30
"""Steps in the time line, as on the Profile page."""
BEFORE = 3
"""How many of them come before the step that was asked for."""
USUAL_HEIGHT_PX = 340
"""Height of a chart that the pages extend while a run is going on."""
TITLE_PX = 40
"""Height of the title in pixels, added to the margin that a chart has on the pages."""


@dataclass(frozen=True)
class Material:
    """What a chart is drawn from."""

    run: store.StoredRun
    steps: Series
    telemetry: Series
    headroom: Callable[[], Headroom | None]
    """Reads the run's headroom as far as it is measured; None where it is not."""
    step: int | None
    """Number of the step to look at; None for the one that the page shows first."""

    def refuse(self, why: str) -> errors.VitprofError:
        """Returns the error to raise where this run has no such chart; `why` is the reason."""
        return errors.VitprofError(f"there is no such chart of run {self.run.id}: {why}")

    def at(self, usual: int) -> int:
        """Returns the index of the step to look at; `usual` if none was asked for.

        Raises `VitprofError` if the run has no step of that number.
        """
        if self.step is None:
            return usual
        positions = np.flatnonzero(self.steps["step"] == self.step)
        if not len(positions):
            first, last = (int(self.steps["step"][i]) for i in (0, -1))
            raise self.refuse(f"it has no step {self.step}; its steps are {first} to {last}")
        return int(positions[0])


@dataclass(frozen=True)
class NamedChart:
    """A chart that can be asked for by its name."""

    title: str
    height: int
    """Height in pixels."""
    draw: Callable[[Material], go.Figure | dict[str, Any]]
    of_device: bool = False
    """Whether it shows what the device did; a loader-only run has no such chart."""
    takes_step: bool = False
    """Whether it shows single steps, so that a step can be chosen."""


def draw(name: str, material: Material) -> go.Figure:
    """Returns the chart called `name`, with a title that names the run.

    Raises `ValueError` for a name that is not in `FIGURES`, or a step for a chart that takes none;
    `VitprofError` where the run lacks what the chart shows.
    """
    if name not in FIGURES:
        raise ValueError(f"there is no figure {name!r}; choose one of {', '.join(FIGURES)}")
    chart = FIGURES[name]
    run = material.run
    if material.step is not None and not chart.takes_step:
        takes = ", ".join(one for one, named in FIGURES.items() if named.takes_step)
        raise ValueError(f"figure {name!r} is of the whole run; a step can be given with {takes}")
    if not len(material.steps["step"]):
        raise material.refuse("it has no steps")
    if chart.of_device and run.config.loader_only:
        raise material.refuse("it trained nothing, so no device could wait")
    figure = go.Figure(chart.draw(material))
    heading = chart.title
    if run.simulated:
        heading += " (simulated)"
    title = f"{heading}<br><sup>{style.plain(f'run {run.id}: {run.name}')}</sup>"
    return figure.update_layout(
        title={"text": title, "y": 1, "yref": "container", "yanchor": "top", "pad": {"t": 22}},
        margin_t=(figure.layout.margin.t or 0) + TITLE_PX,
        height=(figure.layout.height or chart.height) + TITLE_PX,
    )


def _live(chart: live.LiveChart) -> NamedChart:
    """Returns one of the charts that the pages extend live, drawn for the whole run."""

    def build(m: Material) -> dict[str, Any]:
        series: Series = m.steps if chart.source == "steps" else m.telemetry
        n = len(next(iter(series.values())))
        rows_a_point = chart.group_size(n)
        points = chart.build(series, m.run.t_origin_s or 0.0, 0, n, rows_a_point)
        if not any(np.isfinite(p.y).any() for p in points):
            raise m.refuse("none of its figures is known")
        return live.live_figure(chart, points, each=rows_a_point)

    return NamedChart(chart.title, USUAL_HEIGHT_PX, build, of_device=chart is live.GAPS)


def _training_time(m: Material) -> TrainingTime:
    training = training_time(m.steps, m.run.phases)
    if not training.gaps.span_ns:
        raise m.refuse("no steady step has the device's times")
    return training


def _device_time(m: Material) -> go.Figure:
    training = _training_time(m)
    return breakdown.device_time(training.gaps, training.intervals())


def _idle(m: Material) -> go.Figure:
    return activity_strips(["device"], [activity.whole_run(m.steps)])


def _timeline(m: Material) -> go.Figure:
    at = m.at(after_largest_gap(_training_time(m).gaps))
    # Near the end of the run the window is moved back, so that it is still WINDOW steps long.
    latest_first = max(len(m.steps["step"]) - WINDOW, 0)
    first = min(max(at - BEFORE, 0), latest_first)
    line = timeline(m.steps, m.run.phases, first, first + WINDOW)
    return timeline_chart(line, origin_s=m.run.t_origin_s or 0.0, mark=int(m.steps["step"][at]))


def _batch(m: Material) -> go.Figure:
    usual = typical_step(m.steps, steady.steady_state(m.steps))
    if usual is None:
        usual = len(m.steps["step"]) - 1
    at = m.at(usual)
    line = timeline(m.steps, m.run.phases, at, at + 1)
    if m.run.config.loader_only:
        # It trained nothing: a lane of the device would be empty.
        line = line.only("host")
    return batch_chain(one_step(m.steps, at), line, loading.stage_words(m.run.config))


def _loading(m: Material) -> go.Figure:
    found = loading.loading_of(m.steps, m.run.config)
    if not found.n or not found.largest:
        raise m.refuse("how its loader makes batches is not known")
    return breakdown.loading_bar(found)


def _transforms(m: Material) -> go.Figure:
    found = loading.transform_times(m.run.facts)
    if not found:
        raise m.refuse(
            "it has no times of transforms; they are measured in scripts with a torchvision Compose"
        )
    return breakdown.transform_bars(found)


def _headroom(m: Material) -> go.Figure:
    found = m.headroom()
    if found is None:
        raise m.refuse(f"its headroom is not measured; run: {program()} headroom {m.run.id}")
    return breakdown.waterfall(found, m.run.config.batch_size)


FIGURES: Mapping[str, NamedChart] = {
    **{
        chart.key: _live(chart)
        for chart in (live.GAPS, live.BATCHES, live.LOSSES, live.GPU, live.CPU)
    },
    "device-time": NamedChart("Why does the device wait?", 200, _device_time, of_device=True),
    "idle": NamedChart("What the device did over the run", 190, _idle, of_device=True),
    "timeline": NamedChart("Step by step", 260, _timeline, of_device=True, takes_step=True),
    "batch": NamedChart("How a batch was made", 250, _batch, takes_step=True),
    "loading": NamedChart("Why is a batch slow?", 270, _loading),
    "transforms": NamedChart("Transforms", 200, _transforms),
    "headroom": NamedChart("Headroom", 330, _headroom),
}
"""Name -> chart, in the order in which error messages list them."""
