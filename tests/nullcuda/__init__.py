"""A GPU that is not there: real `torch.cuda` on a device that takes time and computes nothing. See README.md. It is
built once for these sources and this PyTorch, into the system's folder for temporary files."""

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sysconfig
import tempfile
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).parent
SITE = Path(sysconfig.get_path("purelib"))
N_BATCHES = 36
"""Of each of `scripts`, which takes seconds to import."""
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")


def missing() -> str:
    """Returns why it cannot be built here; empty if it can."""
    if lacking := [name for name in ("gcc", "make", "nm") if shutil.which(name) is None]:
        return f"needs {', '.join(lacking)}"
    if not (SITE / "nvidia" / "cu13" / "include" / "cuda.h").exists():
        return "needs a PyTorch for CUDA 13, whose packages bring the headers"
    return ""


@functools.cache
def library() -> Path:
    """Returns the folder of its libraries; builds them where that is not done yet. Raises if the compiler fails."""
    sources = sorted([*HERE.glob("*.[ch]"), HERE / "gen_stubs.py", HERE / "Makefile"])
    state = hashlib.sha256(b"".join(path.read_bytes() for path in sources))
    state.update(f"{SITE} {metadata.version('torch')}".encode())
    built = Path(tempfile.gettempdir()) / f"nullcuda-{os.getuid()}-{state.hexdigest()[:16]}"
    built.mkdir(mode=0o700, exist_ok=True)
    with (built / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all((built / "lib" / name).exists() for name in LIBRARIES):
            for path in sources:
                shutil.copy(path, built)
            done = subprocess.run(
                ["make", f"SITE={SITE}"], cwd=built, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise RuntimeError(f"the null device is not built: {done.stderr[-2000:]}")
    return built / "lib"


def environment(shm: Path, **settings: object) -> dict[str, str]:
    """Returns the variables with which a process, and those that it starts, have the device. `shm`: the file that these
    processes share, made by the first of them; `settings`: README's variables without their beginning, such as
    `devices=2`."""
    lib = str(library())
    paths = {"LD_PRELOAD": f"{lib}/{LIBRARIES[0]}", "LD_LIBRARY_PATH": lib}
    joined = {
        name: f"{path}:{os.environ[name]}" if os.environ.get(name) else path
        for name, path in paths.items()
    }
    return {
        **joined,
        "NULLCUDA_SHM": str(shm),
        **{f"NULLCUDA_{k.upper()}": str(v) for k, v in settings.items()},
    }
