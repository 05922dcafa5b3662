"""The report of the self-test on a GPU: a line for each case, one for all, and a file for a bug report."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import vitprof
from vitprof.home import ensure_dir, home
from vitprof.program import program
from vitprof.recording.columns import SCHEMA_VERSION
from vitprof.selftest.gpu.case import GpuCase
from vitprof.selftest.gpu.outcome import Outcome, finite
from vitprof.telemetry import Nvml

FILE_NAME = "selftest-gpu.json"
READ = "docs/gpu.md"
VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    "MKL_NUM_THREADS",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_TF32_OVERRIDE",
    "NVIDIA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)
"""Environment variables that change what is measured. The others are left out: they can hold names and secrets."""
A_UUID = re.compile(r"\b(GPU|MIG)-[0-9a-fA-F-]+")


@dataclass(frozen=True)
class Line:
    """A case and its outcome."""

    case: GpuCase
    outcome: Outcome
    seconds: float
    """How long it took."""

    @property
    def measured(self) -> str:
        """Returns what was measured, and what is wrong with it or why it was not run."""
        found = self.outcome
        return f"{found.measured}: {found.reason}" if found.measured and found.reason else found.measured + found.reason

    @property
    def words(self) -> str:
        """Returns status, name, expectation and measurement in one line."""
        return (
            f"{self.outcome.status.upper()}: {self.case.name}. Expected: {self.case.expected}. "
            f"Measured: {self.measured or 'nothing'}."
        )


@dataclass(frozen=True)
class GpuReport:
    """The outcomes of a self-test on a GPU, in the order of the cases."""

    lines: tuple[Line, ...]
    machine: Mapping[str, Any]
    """Device, software and processor; nothing that names the machine or its user."""
    seconds: float
    asked: int
    """Number of cases requested."""
    stopped: bool = False

    @property
    def ok(self) -> bool:
        """Returns whether nothing failed and it was not stopped. A case that cannot be run here is no failure."""
        return not self.stopped and not self._named("failed")

    @property
    def sentence(self) -> str:
        """Returns the whole report in one line."""
        passed, failed, left = (self._named(status) for status in ("passed", "failed", "not run"))
        rest = f"; not run: {', '.join(left)}" if left else ""
        if self.stopped:
            said = f"selftest on the GPU stopped after {len(self.lines)} of {self.asked} cases: {len(passed)} passed"
            return said + (f", failed: {', '.join(failed)}" if failed else "")
        if failed:
            return f"selftest on the GPU failed: {', '.join(failed)}; {len(passed)} of {self.asked} passed{rest}"
        return f"selftest on the GPU passed: {len(passed)} of {self.asked}{rest}"

    @property
    def advice(self) -> str:
        """Returns what the user should read or do next."""
        if self._named("failed"):
            return (
                f"Do not trust the figures of what failed on this machine yet. {READ} says for each case what a "
                "failure may mean and what to try; send the file in with a bug report."
            )
        return (
            f"Read {READ} next: what each case means, what is never measured, and what to look at first on a GPU. "
            f"Then press `See a starved GPU` on the Profile page, or run `{program()} run --strategy per-sample`."
        )

    def _named(self, status: str) -> list[str]:
        return [line.case.name for line in self.lines if line.outcome.status == status]

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON; NaN becomes None."""
        return {
            "ok": self.ok,
            "stopped": self.stopped,
            "sentence": self.sentence,
            "advice": self.advice,
            "seconds": self.seconds,
            "asked": self.asked,
            "machine": finite(self.machine),
            "results": [
                {"case": line.case.name, "expected": line.case.expected, "seconds": line.seconds}
                | line.outcome.to_dict()
                for line in self.lines
            ],
        }

    def to_json(self) -> str:
        """Returns the text of the file for a bug report, without what names the machine, its user or the card."""
        told = {"schema_version": SCHEMA_VERSION} | self.to_dict()
        text = json.dumps(told, indent=2, allow_nan=False, default=str, ensure_ascii=False) + "\n"
        for path, name in ((home(), "VITPROF_HOME"), (Path.home(), "~")):
            if len(path.parts) > 1:
                text = text.replace(str(path), name)
        return A_UUID.sub(r"\1-UUID", text)

    def write(self) -> Path:
        """Writes that file to `VITPROF_HOME`, in place of the last one, and returns its path. Raises `VitprofError`."""
        path = ensure_dir(home()) / FILE_NAME
        path.write_text(self.to_json(), encoding="utf-8")
        return path


def machine_facts(told: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the facts `told` by the device's process, with what this process sees of the machine."""
    with Nvml() as nvml:
        gpus = [
            {"name": gpu.name, "slice": bool(gpu.slice_of), "memory_bytes": gpu.memory_bytes, "driver": gpu.driver}
            for gpu in nvml.gpus()
        ]
    return {
        **told,
        "vitprof": vitprof.__version__,
        "cores": psutil.cpu_count(logical=False),
        "memory_available_bytes": psutil.virtual_memory().available,
        "nvml_gpus": gpus,
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }
