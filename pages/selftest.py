"""Self-test: known causes of waiting, and whether vitprof finds them."""

from vitprof.ui.navigation import through_app
from vitprof.ui.selftest import page

with through_app("pages/selftest.py"):
    page()
