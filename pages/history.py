"""History: finds, opens, names and exports runs. What it shows is kept in the URL."""

from vitprof.ui.history import page
from vitprof.ui.navigation import through_app

with through_app("pages/history.py"):
    page()
