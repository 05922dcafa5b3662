"""Compare: finished runs side by side, and their CSV. What it shows is kept in the URL."""

from vitprof.ui.compare import page
from vitprof.ui.navigation import through_app

with through_app("pages/compare.py"):
    page()
