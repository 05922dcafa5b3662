"""The installed PyTorch and the CUDA that it was built for, read from its version file without importing it."""

from __future__ import annotations

import ast
import functools
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from vitprof.config.gpu_findings import Version, version


@dataclass(frozen=True)
class TorchBuild:
    """What is known about a PyTorch before it is loaded."""

    version: str
    """Its own version, such as 2.15.0+cu132."""
    cuda: Version | None
    """Version of CUDA that it was built for, such as (13, 2); None for a build without CUDA."""
    rocm: bool = False
    """Whether it is a build for AMD's GPUs."""


@functools.cache
def torch_build() -> TorchBuild | None:
    """Returns the build that `torch/version.py` describes; None if it is missing or cannot be read."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    try:
        return read_build(Path(found.origin).with_name("version.py").read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return None


def read_build(source: str) -> TorchBuild | None:
    """Returns the build that the text of a version file describes; None if it names no version.

    Raises `SyntaxError` or `ValueError` if the text is no Python.
    """
    values: dict[str, str] = {}
    for line in ast.parse(source).body:
        if not isinstance(line, ast.Assign | ast.AnnAssign) or not isinstance(line.value, ast.Constant):
            continue
        target = line.target if isinstance(line, ast.AnnAssign) else line.targets[0]
        if isinstance(target, ast.Name) and isinstance(line.value.value, str):
            values[target.id] = line.value.value
    if "__version__" not in values:
        return None
    return TorchBuild(values["__version__"], version(values.get("cuda", "")), rocm="hip" in values)
