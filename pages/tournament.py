"""Try fixes: compares strategies and batch sizes by running them, and names the one setting to use."""

from vitprof.ui.navigation import through_app
from vitprof.ui.tournament.page import page

with through_app("pages/tournament.py"):
    page()
