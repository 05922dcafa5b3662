"""The roofline of loading as bars."""

import math

import plotly.graph_objects as go

from vitprof import formats
from vitprof.analysis.timing.roofline import DEVICE, TRANSFER, Roofline
from vitprof.charts import style
from vitprof.charts.breakdown import AROUND_PX, ROW_PX

ROOF_COLOURS = {TRANSFER: style.H2D, DEVICE: style.COMPUTE}


def roofline(rates: Roofline) -> go.Figure:
    """Returns bars of samples/s on a log scale, a line at what was reached."""
    names = [roof.name for roof in rates.roofs]
    lengths = [roof.samples_per_s for roof in rates.roofs]
    colours = [
        style.LOADING_COLOURS.get(r.stage, ROOF_COLOURS.get(r.name, style.DATA_WAIT))
        for r in rates.roofs
    ]
    texts = [formats.number(rate) for rate in lengths]
    hovers = [
        f"{r.name}<br>{formats.number(r.samples_per_s, 'samples/s')}: {r.words}"
        for r in rates.roofs
    ]
    bars = style.labelled_bars(names, lengths, texts, style.DATA_WAIT, hovers)
    # A colour for each bar in place of one for all.
    figure = go.Figure(bars | {"marker": {"color": colours}})
    reached = rates.reached_per_s
    figure.add_vline(x=reached, line={"dash": "dot", "color": style.NEUTRAL})
    ticks = {
        "tickformat": "~s",
        "tickvals": [digit * 10.0**n for n in range(-3, 9) for digit in (1, 3)],
    }
    # On the right there is room for the longest bar's text. An axis of logarithms takes logarithms.
    lowest = min(reached, *lengths) / 2
    highest = max(reached, *lengths) * 4
    ends = [math.log10(lowest), math.log10(highest)]
    return figure.update_layout(
        margin={"l": 8, "r": 40, "t": 24, "b": 44},
        showlegend=False,
        height=AROUND_PX + ROW_PX * len(names),
        xaxis=style.axis(
            "samples/s on its cores (log scale)", type="log", range=ends, fixedrange=True, **ticks
        ),
        yaxis=style.axis(
            "", **style.categories(autorange="reversed", automargin=True, showgrid=False)
        ),
    )
