"""The self-test: runs jobs slowed down in a known way, to check that what vitprof reports on this machine is true."""

from vitprof.selftest.cases import CASES, QUICK, Case, n_jobs
from vitprof.selftest.driver import SelftestProgress, run_selftest
from vitprof.selftest.report import Result, SelftestReport

__all__ = ["CASES", "QUICK", "Case", "Result", "SelftestProgress", "SelftestReport", "n_jobs", "run_selftest"]
