"""Charts of a tournament, and of a search for one strategy's best setting.

Of a tournament: the article's table in colours, the leaderboard, the Pareto front, break-even. Each figure has a title,
and its content in words for screen readers as `figure.layout.meta["alt"]`. Colours of text and paper are left to the
page, so that they suit its light or dark theme.
"""

from vitprof.charts.tournament.bars import throughput_bars
from vitprof.charts.tournament.break_even import break_even_chart
from vitprof.charts.tournament.heat import article_heat
from vitprof.charts.tournament.pareto import COSTS, pareto_chart
from vitprof.charts.tournament.tuning import importance_bars, optimization_history

__all__ = [
    "COSTS",
    "article_heat",
    "break_even_chart",
    "importance_bars",
    "optimization_history",
    "pareto_chart",
    "throughput_bars",
]
