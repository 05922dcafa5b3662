"""Memory of processes, of a control group, and shared memory."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vitprof.telemetry.memory import available_bytes, memory_of, shared_memory

ROLLUP = b"""563973d6e000-7ffe7a509000 ---p 00000000 00:00 0                          [rollup]
Rss:              336028 kB
Pss:               72103 kB
Pss_Dirty:         69936 kB
Shared_Clean:      34664 kB
Shared_Dirty:     289384 kB
Private_Clean:        20 kB
Private_Dirty:     11980 kB
Swap:                  0 kB
"""


def test_what_linux_says_of_a_process(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "smaps_rollup").write_bytes(ROLLUP)
    found = memory_of(7, tmp_path)
    assert found == (12_000 * 1024, 72_103 * 1024, 336_028 * 1024)
    for damaged in (b"", b"one line\n", ROLLUP.replace(b"Pss: ", b"Xss: ")):
        (tmp_path / "7" / "smaps_rollup").write_bytes(damaged)
        assert memory_of(7, tmp_path) is None
    assert memory_of(8, tmp_path) is None, "it has ended"


# A worker that was forked, and reads a list of its parent's: it counts references to each object.
COPIES = """
import os, sys
names = [str(number) for number in range(400_000)]
order, answer = os.pipe(), os.pipe()
if os.fork() == 0:
    os.write(answer[1], b"%d\\n" % os.getpid())
    os.read(order[0], 1)
    kept = [name for name in names]
    os.write(answer[1], b"read\\n")
    os.read(order[0], 1)
    os._exit(0)
answers = os.fdopen(answer[0])
print(answers.readline(), end="", flush=True)
sys.stdin.readline()
os.write(order[1], b"x")
print(answers.readline(), end="", flush=True)
sys.stdin.readline()
os.write(order[1], b"x")
os.wait()
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="Linux says it")
def test_pages_of_a_list_become_a_forked_processs_own_as_it_reads_it() -> None:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", COPIES]
    with subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        before = memory_of(pid)
        print(file=parent.stdin, flush=True)
        assert parent.stdout.readline() == "read\n"
        after = memory_of(pid)
        print(file=parent.stdin, flush=True)
    assert before is not None
    assert after is not None
    # 400,000 strings of 56 bytes or so, and the list that the process made of them.
    own = 8 * 400_000
    copied = after.private_bytes - before.private_bytes - own
    assert copied > 16e6
    assert after.rss_bytes - before.rss_bytes < own + copied / 4


def test_a_limit_of_the_control_group_is_less_than_the_machines(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    group = tmp_path / "sys/fs/cgroup/job"
    group.mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n")
    (group / "memory.max").write_text("max\n")
    unlimited = available_bytes(tmp_path)
    assert unlimited > 1e6
    (group / "memory.max").write_text("1000000\n")
    (group / "memory.current").write_text("700000\n")
    (group / "memory.stat").write_text("anon 400000\nfile 300000\n")
    assert available_bytes(tmp_path) == 600_000
    (group / "memory.stat").write_text("anon 400000\n")
    assert available_bytes(tmp_path) > 1e6, "it does not say what is in the page cache"


def test_a_limit_of_version_1(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    group = tmp_path / "sys/fs/cgroup/memory/job"
    group.mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/job\n")
    (group / "memory.limit_in_bytes").write_text("900000\n")
    (group / "memory.usage_in_bytes").write_text("800000\n")
    (group / "memory.stat").write_text("cache 1\ntotal_cache 50000\n")
    assert available_bytes(tmp_path) == 150_000


def test_shared_memory_is_used_and_free(tmp_path: Path) -> None:
    facts = os.statvfs(tmp_path)
    found = shared_memory(tmp_path)
    assert 0 < found.used_bytes < facts.f_blocks * facts.f_frsize
    assert found.free_bytes > 0
    assert all(math.isnan(each) for each in shared_memory(tmp_path / "none"))
