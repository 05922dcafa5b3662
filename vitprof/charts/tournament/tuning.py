"""Charts of the search for a strategy's best setting: Optuna's optimization history and hyperparameter importances."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from vitprof import formats
from vitprof.analysis.tournament import Importances, TriedSetting
from vitprof.charts.style import MARGIN, axis, categories, hover_texts, plain
from vitprof.charts.tournament.shared import FRONT_COLOUR, LEGEND_BELOW, REST_COLOUR, finish


def optimization_history(trials: Sequence[TriedSetting], names: Sequence[str]) -> go.Figure:
    """Returns the throughput of each trial in the order in which they ran, and the best of the search so far.

    `names` are the settings in words. A failed trial has a number but no mark.
    """
    figure = go.Figure()
    for name, colour, symbol, of_check in (
        ("search", REST_COLOUR, "circle", False),
        ("check of the winner", FRONT_COLOUR, "diamond", True),
    ):
        at = [i for i, t in enumerate(trials) if (t.rung == 0) == of_check and math.isfinite(t.samples_per_s)]
        if at:
            figure.add_scatter(
                x=[i + 1 for i in at],
                y=[trials[i].samples_per_s for i in at],
                name=name,
                mode="markers",
                marker={"color": colour, "size": 9, "symbol": symbol},
                **hover_texts(
                    [
                        f"trial {i + 1}: {plain(names[i])}<br>{formats.number(trials[i].samples_per_s, 'samples/s')}"
                        for i in at
                    ]
                ),
            )
    best, so_far = math.nan, []
    for trial in trials:
        if trial.rung and math.isfinite(trial.samples_per_s):
            best = trial.samples_per_s if math.isnan(best) else max(best, trial.samples_per_s)
        so_far.append(best)
    figure.add_scatter(
        x=list(range(1, len(trials) + 1)),
        y=[None if math.isnan(v) else v for v in so_far],
        name="best of the search so far",
        mode="lines",
        line={"shape": "hv", "color": FRONT_COLOUR, "width": 1.5},
        hoverinfo="skip",
    )
    reached = "no figures" if math.isnan(best) else f"the best reaches {formats.number(best, 'samples/s')}"
    return finish(
        figure,
        "Optimization history",
        f"Throughput of {len(trials)} trials in the order in which they ran; {reached}.",
        legend=LEGEND_BELOW,
        showlegend=True,
        xaxis=axis("trial", tickformat="d", rangemode="tozero"),
        yaxis=axis("throughput (samples/s)", rangemode="tozero"),
    )


def importance_bars(importances: Importances) -> go.Figure:
    """Returns each parameter's share of the differences that the parameters explain, the largest on top."""
    names = list(importances.shares)
    shares = list(importances.shares.values())
    figure = go.Figure()
    figure.add_bar(
        x=shares,
        y=names,
        orientation="h",
        marker={"color": FRONT_COLOUR, "line": {"width": 0}},
        text=[f"{share:.0%}" for share in shares],
        textposition="outside",
        cliponaxis=False,
        hovertemplate="%{y}: %{x:.0%}<extra></extra>",
    )
    text = ", ".join(f"{name} {share:.0%}" for name, share in importances.shares.items())
    return finish(
        figure,
        "Hyperparameter importances",
        f"Share of the explained differences in throughput: {text}.",
        margin=MARGIN | {"l": 16},
        showlegend=False,
        xaxis=axis("share of the explained differences", range=[0, 1.12], tickformat=".0%"),
        yaxis=categories(autorange="reversed", automargin=True),
    )
