"""Strategies: what each does, when it helps, what it costs, and whether it can run here."""

from vitprof.ui.navigation import through_app
from vitprof.ui.strategies import page

with through_app("pages/strategies.py"):
    page()
