"""Peaks of device memory, each by the name of whoever counted it."""

from __future__ import annotations

from vitprof.analysis.timing.utilisation import device_memory
from vitprof.recording.columns import RunSummary


def test_each_figure_has_its_own_name_and_what_is_not_known_is_left_out() -> None:
    peaks = {"gpu_mem_nvml_peak_bytes": 9.0, "gpu_mem_reserved_peak_bytes": 4.0, "gpu_mem_allocated_peak_bytes": 3.0}
    told = [(figure.name, figure.n_bytes) for figure in device_memory(RunSummary(gpu_mem_peak_bytes=9.0, **peaks))]
    assert told == [("GPU memory, NVML", 9), ("GPU memory, reserved", 4), ("GPU memory, allocated", 3)]
    del peaks["gpu_mem_nvml_peak_bytes"]
    assert [f.n_bytes for f in device_memory(RunSummary(gpu_mem_peak_bytes=4.0, **peaks))] == [4, 3]
    assert device_memory(RunSummary()) == []


def test_a_run_from_before_they_were_told_apart_has_one_that_says_so() -> None:
    (figure,) = device_memory(RunSummary(gpu_mem_peak_bytes=5.0))
    assert (figure.name, figure.n_bytes) == ("GPU memory", 5)
    assert "NVML's, or PyTorch's" in figure.meaning
