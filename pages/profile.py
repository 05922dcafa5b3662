"""Profile: set up one job in the sidebar, run it, watch where its time goes, and read the result."""

from vitprof.ui.navigation import through_app
from vitprof.ui.profile.page import page

with through_app("pages/profile.py"):
    page()
