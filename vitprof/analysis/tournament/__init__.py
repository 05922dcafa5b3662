"""Analysis of a tournament: its runs in; leaderboard, Pareto fronts and one recommendation out."""

from vitprof.analysis.tournament.article import ArticleCell, ArticleLine, ArticleTable, article_table
from vitprof.analysis.tournament.blocks import block_rates
from vitprof.analysis.tournament.break_even import BreakEven, break_even, setup_s
from vitprof.analysis.tournament.early import EARLIEST_STOP_FRAC, cannot_win, without_others
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
from vitprof.analysis.tournament.halving import Candidate, Rung, first_rung, rung_sizes, rungs, survivors
from vitprof.analysis.tournament.importance import Importances, TriedSetting, importances
from vitprof.analysis.tournament.leaderboard import leaderboard
from vitprof.analysis.tournament.pareto import Cost, cost, pareto
from vitprof.analysis.tournament.recommend import Recommendation, can_be_fastest, recommend
from vitprof.analysis.tournament.rows import Leaderboard, LeaderboardRow, runs_words, spoiled_words, uneven_words
from vitprof.analysis.tournament.scores import LEAST_ROUNDS, rounds_of, spoiled, usable

__all__ = [
    "EARLIEST_STOP_FRAC",
    "LEAST_ROUNDS",
    "OUT_OF_THE_RACE",
    "THROTTLED",
    "ArticleCell",
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
    "Rung",
    "Status",
    "TriedSetting",
    "article_table",
    "block_rates",
    "break_even",
    "can_be_fastest",
    "cannot_win",
    "cost",
    "first_rung",
    "importances",
    "key_in_words",
    "leaderboard",
    "pareto",
    "recommend",
    "rounds_of",
    "rung_sizes",
    "rungs",
    "runs_words",
    "setting_in_words",
    "setup_s",
    "spoiled",
    "spoiled_words",
    "survivors",
    "trial_key",
    "uneven_words",
    "usable",
    "without_others",
]
