"""The self-test on a real GPU: checks that what vitprof reports about it is true, and that everything runs on it.

`case.py` lists the cases; each family of them has a file of its own. Cases on the device run in a separate process
(`child.py`) with a `bench`, which works with any device behind the Device protocol. Cases that start jobs and scripts
get a `host`. `driver.py` runs them all, and `report.py` holds the results.
"""

from vitprof.selftest.gpu.case import GPU_CASES, TOTAL_S, GpuCase
from vitprof.selftest.gpu.driver import run_gpu_selftest
from vitprof.selftest.gpu.outcome import Outcome
from vitprof.selftest.gpu.report import FILE_NAME, GpuReport, Line

__all__ = ["FILE_NAME", "GPU_CASES", "TOTAL_S", "GpuCase", "GpuReport", "Line", "Outcome", "run_gpu_selftest"]
