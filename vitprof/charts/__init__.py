"""Charts: arrays in, Plotly figures out. A colour means the same in every chart."""

from vitprof.charts.batch import batch_chain
from vitprof.charts.comparison import overlay, shares
from vitprof.charts.gaps import device_time, idle_heat, idle_over_time, loading_bar, timeline_chart
from vitprof.charts.headroom import waterfall
from vitprof.charts.live import (
    BATCHES,
    CPU,
    GAPS,
    GPU,
    LOSSES,
    MAX_GROUPS,
    OVERVIEW_GROUPS,
    LiveChart,
    live_figure,
)
from vitprof.charts.live_points import Builder, Points
from vitprof.charts.style import (
    COMPUTE,
    DATA_WAIT,
    EPOCH_BOUNDARY,
    EVALUATION,
    GPU_UTIL,
    H2D,
    HOST,
    IDLE,
    LEGEND,
    LOGGING,
    LOSS,
    MARGIN,
    MEMORY,
    NEUTRAL,
    RUN_COLOURS,
    plain,
)
from vitprof.charts.transforms import transform_bars

__all__ = [
    "BATCHES",
    "COMPUTE",
    "CPU",
    "DATA_WAIT",
    "EPOCH_BOUNDARY",
    "EVALUATION",
    "GAPS",
    "GPU",
    "GPU_UTIL",
    "H2D",
    "HOST",
    "IDLE",
    "LEGEND",
    "LOGGING",
    "LOSS",
    "LOSSES",
    "MARGIN",
    "MAX_GROUPS",
    "MEMORY",
    "NEUTRAL",
    "OVERVIEW_GROUPS",
    "RUN_COLOURS",
    "Builder",
    "LiveChart",
    "Points",
    "batch_chain",
    "device_time",
    "idle_heat",
    "idle_over_time",
    "live_figure",
    "loading_bar",
    "overlay",
    "plain",
    "shares",
    "timeline_chart",
    "transform_bars",
    "waterfall",
]
