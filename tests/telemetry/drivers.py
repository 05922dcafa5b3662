"""Builds the stand-ins for NVIDIA's libraries: `nvml_stub.c` and `cuda_stub.c`."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FIRST, SECOND = (
    "GPU-11111111-2222-3333-4444-555555555555",
    "GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee",
)
"""The stand-ins' GPUs in NVML's order; CUDA's is the other way round."""
SLICE = "MIG-5115ce00-0000-0000-0000-000000000001"
"""A slice of the second, where it is in MIG mode."""
CAN_BUILD = sys.platform == "linux" and bool(shutil.which("cc") or shutil.which("gcc"))


def build(source: str, name: str, directory: Path, *flags: str) -> Path:
    """Compiles `source` to the library `name` in `directory`, which it returns; skips the test where that cannot be."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip(
            "needs Linux and a C compiler (cc or gcc) to build a stand-in for NVIDIA's libraries"
        )
    command = [compiler, "-shared", "-fPIC", f"-Wl,-soname,{name}", *flags, "-o", directory / name]
    subprocess.run([*command, Path(__file__).with_name(source)], check=True, timeout=60)
    return directory
