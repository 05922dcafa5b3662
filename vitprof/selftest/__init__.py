"""The self-test: runs jobs slowed down in a known way, to check that what vitprof reports on this machine is true.

On a simulated device (`driver.py`), and on a real GPU (`gpu/`).
"""

from vitprof.selftest.cases import CASES, QUICK, Case, n_jobs
from vitprof.selftest.driver import run_selftest
from vitprof.selftest.report import Outcome, Result, SelftestReport

__all__ = ["CASES", "QUICK", "Case", "Outcome", "Result", "SelftestReport", "n_jobs", "run_selftest"]
