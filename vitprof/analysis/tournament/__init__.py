"""Analysis of a tournament: its runs in; leaderboard, Pareto fronts and one recommendation out."""

from vitprof.analysis.tournament.costs import BreakEven, Cost, break_even, cost, pareto, setup_s
from vitprof.analysis.tournament.entries import (
    OUT_OF_THE_RACE,
    THROTTLED,
    Entry,
    Outcome,
    Status,
    key_in_words,
    setting_in_words,
    trial_key,
)
from vitprof.analysis.tournament.leaderboard import (
    ArticleLine,
    ArticleTable,
    Leaderboard,
    LeaderboardRow,
    article_table,
    leaderboard,
    runs_words,
    spoiled_words,
    uneven_words,
)
from vitprof.analysis.tournament.recommend import Recommendation, can_be_fastest, recommend
from vitprof.analysis.tournament.tuning import Candidate, Importances, TriedSetting, importances

__all__ = [
    "OUT_OF_THE_RACE",
    "THROTTLED",
    "ArticleLine",
    "ArticleTable",
    "BreakEven",
    "Candidate",
    "Cost",
    "Entry",
    "Importances",
    "Leaderboard",
    "LeaderboardRow",
    "Outcome",
    "Recommendation",
    "Status",
    "TriedSetting",
    "article_table",
    "break_even",
    "can_be_fastest",
    "cost",
    "importances",
    "key_in_words",
    "leaderboard",
    "pareto",
    "recommend",
    "runs_words",
    "setting_in_words",
    "setup_s",
    "spoiled_words",
    "trial_key",
    "uneven_words",
]
