"""Whether what vitprof reports is true on this machine: jobs slowed down in a known way, and what is said of them."""

from vitprof.experiments.selftest.cases import CASES, QUICK, Case, n_jobs
from vitprof.experiments.selftest.driver import SelftestProgress, run_selftest
from vitprof.experiments.selftest.report import Result, SelftestReport

__all__ = ["CASES", "QUICK", "Case", "Result", "SelftestProgress", "SelftestReport", "n_jobs", "run_selftest"]
