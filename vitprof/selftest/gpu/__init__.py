"""The self-test on a real GPU: what the figures of a run on it rest on, and that every strategy runs.

`driver.py` lists the cases and runs each in a process of its own (`child.py`), which opens the device as a `bench` that
works with any device behind the Device protocol; each family of cases has a file. `pytest -m gpu` checks more.
"""

from vitprof.selftest.gpu.driver import GPU_CASES, TOTAL_S, GpuCase, run_gpu_selftest

__all__ = ["GPU_CASES", "TOTAL_S", "GpuCase", "run_gpu_selftest"]
