"""Analysis of a tournament: its runs in; leaderboard, Pareto fronts and one recommendation out."""
