"""The time in which at least one kernel ran, by torch.profiler: what vitprof's own figure is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def kernels_s(work: Callable[[], None]) -> float:
    """Returns the seconds of the union of all kernels and copies of `work` on CUDA devices; 0 where none is seen.

    torch.profiler uses CUPTI, which some containers and drivers deny to users. `work` must wait for its device.
    """
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        work()
    events = found.events() or ()
    spans = ((e.time_range.start, e.time_range.end) for e in events if e.device_type == DeviceType.CUDA)
    return union(spans) / 1e6  # microseconds


def union(spans: Iterable[tuple[float, float]]) -> float:
    """Returns the total length that the spans (start, end) cover."""
    covered, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered
