"""SM activity and SM occupancy: how much of a GPU is busy, by NVML's GPM counters (Hopper and later).

NVML's plain utilisation is 100% as soon as one small kernel runs all the time; these two say how many multiprocessors
(SMs) were busy, and how full those were.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pynvml

BETWEEN_S = 0.1
"""Least time (s) between two samples of the counters: "should be greater than 100ms due to the internal sample refresh
rate" (NVML's reference, nvmlGpmMetricsGet). A read before that returns the last figures again."""
NEEDS_HOPPER = "this GPU has no GPM counters; Hopper and later have them"
METRICS: dict[str, str] = {
    "gpu_sm_active_pct": "NVML_GPM_METRIC_SM_UTIL",
    "gpu_sm_occupancy_pct": "NVML_GPM_METRIC_SM_OCCUPANCY",
}
"""Field of a telemetry sample -> NVML's metric: "percentage of SMs that were busy", "percentage of warps that were
active vs theoretical maximum"."""


class Gpm:
    """The counters of one GPU, or of one slice of it, from one reading to the next. `close` frees their memory."""

    why_not: str
    """Why the last reading had no figures, for people; empty where it had some, and after the first reading, which has
    no earlier one to compare with."""

    def __init__(self, ask: Callable[..., Any], causes: dict[str, str], card: Any, instance: int | None) -> None:
        """`ask` and `causes` are those of `Nvml`; `card` is the GPU's handle; `instance` is the GPU instance of a slice
        in MIG mode, else None.
        """
        self._ask, self._causes, self._card, self._instance = ask, causes, card, instance
        self._values: dict[str, float] = {}
        self._since_s = math.nan
        self._before: Any = None
        self._samples: list[Any] = []
        support = ask("nvmlGpmQueryDeviceSupport", card)
        self.why_not = "" if support is not None else self._cause("nvmlGpmQueryDeviceSupport")
        if support is not None and not support.isSupportedDevice:
            self.why_not = NEEDS_HOPPER
        self._works = not self.why_not

    def read(self, now: float) -> dict[str, float]:
        """Returns the figures for the time since the last reading, in percent; leaves out those that are not available.

        `now` is in seconds.
        """
        if not self._works or 0 <= now - self._since_s <= BETWEEN_S:
            return self._values
        self.why_not, self._values = "", {}
        sample = self._sample()
        if sample is not None and self._before is not None:
            self._values = self._metrics(self._before, sample)
        self._before, self._since_s = sample, now
        return self._values

    def start_anew(self) -> None:
        """Forgets the last reading, so that the next figures do not cover the time since then."""
        self._before, self._since_s, self._values = None, math.nan, {}

    def close(self) -> None:
        """Frees the memory of the samples. May be called again."""
        while self._samples:
            self._ask("nvmlGpmSampleFree", self._samples.pop())

    def _sample(self) -> Any:
        """Returns the counters as they are now, in the one of the two samples that does not hold the last reading."""
        while len(self._samples) < 2:
            made = self._ask("nvmlGpmSampleAlloc")
            if made is None:
                self.why_not = self._cause("nvmlGpmSampleAlloc")
                return None
            self._samples.append(made)
        free = self._samples[0 if self._before is not self._samples[0] else 1]
        function = "nvmlGpmSampleGet" if self._instance is None else "nvmlGpmMigSampleGet"
        which = () if self._instance is None else (self._instance,)
        if self._ask(function, self._card, *which, free) is None:
            self.why_not = self._cause(function)
            return None
        return free

    def _metrics(self, before: Any, after: Any) -> dict[str, float]:
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(METRICS)
        request.sample1, request.sample2 = before, after
        for place, metric in enumerate(METRICS.values()):
            request.metrics[place].metricId = getattr(pynvml, metric)
        if self._ask("nvmlGpmMetricsGet", request) is None:
            self.why_not = self._cause("nvmlGpmMetricsGet")
            return {}
        values = {}
        for place, name in enumerate(METRICS):
            metric = request.metrics[place]
            if metric.nvmlReturn != pynvml.NVML_SUCCESS:
                self.why_not = f"NVML: {pynvml.NVMLError(metric.nvmlReturn)}"
            elif math.isfinite(metric.value):
                values[name] = float(metric.value)
        return values

    def _cause(self, function: str) -> str:
        return f"NVML: {self._causes.get(function, 'no answer')}"
