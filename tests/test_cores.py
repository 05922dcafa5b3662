"""The cores of a job under affinity and quotas, as Linux has them in its files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vitprof import cores

V2 = {"proc/self/cgroup": "0::/slurm/job_7/step_0\n"}
CPU = "sys/fs/cgroup/cpu,cpuacct/docker/a/cpu.cfs_"
V1 = {"proc/self/cgroup": "4:memory:/docker/a\n3:cpu,cpuacct:/docker/a\n0::/\n"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        (V2, 8),
        (V2 | {"sys/fs/cgroup/slurm/job_7/step_0/cpu.max": "max 100000\n"}, 8),
        (V2 | {"sys/fs/cgroup/slurm/job_7/step_0/cpu.max": "400000 100000\n"}, 4),
        (V2 | {"sys/fs/cgroup/slurm/job_7/cpu.max": "250000 100000\n"}, 2),
        (V2 | {"sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        (V1 | {f"{CPU}quota_us": "-1\n"}, 8),
        (V1 | {f"{CPU}quota_us": "300000\n", f"{CPU}period_us": "100000\n"}, 3),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "1600000 100000\n"}, 8),
    ],
)
def test_the_smaller_of_affinity_and_quota(
    files: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert cores.job_cores(tmp_path) == expected


def test_the_processor_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert cores.processor_name(tmp_path) == "aarch64", "where Linux names none"
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: AMD EPYC 7B13\n")
    assert cores.processor_name(tmp_path) == "AMD EPYC 7B13"


def test_a_process_that_may_use_one_core_says_so() -> None:
    code = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); from vitprof import cores; "
    code += "mine = cores.job_cores(); print(mine, cores.cores_in_words(mine, os.cpu_count() or 1))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    all_cores = os.cpu_count() or 1
    assert done.stdout == (
        f"1 1 of {all_cores} cores are yours\n" if all_cores > 1 else "1 1 cores\n"
    )
