"""Tournaments: which settings are run against each other, in which order, and what the store keeps of it.

A trial is one setting: a strategy, a batch size, a number of workers and a state of the page cache. It is run several
times, in rounds: A B C, A B C, so that a slow change of the machine meets all alike. The runs of a tournament share the
group "tournament:<id>"; the role of each is "<trial key>#<round>". So what has been done is known from the runs alone.
"""

from vitprof.tournaments.planning import PlannedTrial, baseline_of, plan, read_role, role_of, schedule
from vitprof.tournaments.spec import MOST_REPEATS, MOST_TRIALS, TournamentSpec
from vitprof.tournaments.stored import (
    GROUP,
    StoredTournament,
    TournamentStatus,
    claim,
    create_tournament,
    delete_tournament,
    list_tournaments,
    release,
    set_status,
    tournament,
)

__all__ = [
    "GROUP",
    "MOST_REPEATS",
    "MOST_TRIALS",
    "PlannedTrial",
    "StoredTournament",
    "TournamentSpec",
    "TournamentStatus",
    "baseline_of",
    "claim",
    "create_tournament",
    "delete_tournament",
    "list_tournaments",
    "plan",
    "read_role",
    "release",
    "role_of",
    "schedule",
    "set_status",
    "tournament",
]
