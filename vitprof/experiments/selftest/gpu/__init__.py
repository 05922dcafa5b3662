"""The self-test on a real GPU: does what vitprof says of one hold on this machine, and does everything run?

`case.py` has the cases, one file for each family of them has what they do. Those on a device run in a process of its
own (`child.py`) with a `bench`, which works with any device behind the Device protocol; those that start jobs and
scripts get a `host`. `driver.py` runs them, `report.py` says what came of them.
"""

from vitprof.experiments.selftest.gpu.case import GPU_CASES, TOTAL_S, GpuCase
from vitprof.experiments.selftest.gpu.driver import run_gpu_selftest
from vitprof.experiments.selftest.gpu.outcome import Outcome
from vitprof.experiments.selftest.gpu.report import FILE_NAME, GpuReport, Line

__all__ = ["FILE_NAME", "GPU_CASES", "TOTAL_S", "GpuCase", "GpuReport", "Line", "Outcome", "run_gpu_selftest"]
