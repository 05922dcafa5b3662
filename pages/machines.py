"""Machines: which jobs are starved now, on all machines of the store, and what idle devices cost."""

from vitprof.ui.machines import page
from vitprof.ui.navigation import through_app

with through_app("pages/machines.py"):
    page()
