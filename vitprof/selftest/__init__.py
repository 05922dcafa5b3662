"""The self-test: jobs slowed down in a known way (`driver`), and a real GPU (`gpu`), to check what is reported."""

from vitprof.selftest.cases import CASES, QUICK, Case, n_jobs
from vitprof.selftest.driver import run_selftest
from vitprof.selftest.report import CaseOutcome, Result, SelftestReport

__all__ = [
    "CASES",
    "QUICK",
    "Case",
    "CaseOutcome",
    "Result",
    "SelftestReport",
    "n_jobs",
    "run_selftest",
]
