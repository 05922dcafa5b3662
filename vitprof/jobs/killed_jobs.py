"""Jobs that were killed: why, as far as the system says, and what they left behind."""

import contextlib
import math
import multiprocessing.process
import multiprocessing.util
import os
import re
import resource
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from vitprof.cores import control_groups
from vitprof.formats import size
from vitprof.home import home, process_space, temporary_prefix

ROOT = Path("/")
"""Where `proc` and `sys` are; tests have a root of their own."""
MEMORY_CHECK_S = 1.0
"""How often (s) the memory of a running job is read."""
NO_LIMIT = 2**60
"""Version 1 of control groups reports "no limit" as a number near 2**63."""
TRY = "try a smaller batch size, fewer workers, a smaller prefetch factor, or a storage that is not kept in memory"
OWNER = "VITPROF_OWNER"
"""The environment variable of a job, and of all that it starts: the process that started it, "process_space-pid"."""


@dataclass(frozen=True)
class KillCounts:
    """How often memory has run short so far; None where the kernel does not report it."""

    group: int | None
    """Processes that the kernel killed in this process's control group, such as a container's: `oom_kill` of cgroup
    v2's memory.events, of v1's memory.oom_control."""
    limit: int | None
    """Times that the limit of that group, or of one above it, was reached: `oom` of memory.events, v1's failcnt. Does
    not rise where the whole machine runs out of memory."""
    machine: int | None
    """Processes that the kernel killed on the whole machine: `oom_kill` of /proc/vmstat, from Linux 4.13 on."""


def kill_counts() -> KillCounts:
    """Returns the current counts."""
    groups = _groups()
    killed = None
    if groups:
        own = groups[0]
        events = _numbers(own / "memory.events") or _numbers(own / "memory.oom_control")
        killed = events.get("oom_kill")
    limits = [
        _numbers(group / "memory.events").get("oom", _number(group / "memory.failcnt"))
        for group in groups
    ]
    known = [limit for limit in limits if limit is not None]
    reached = sum(known) if known else None
    return KillCounts(killed, reached, _numbers(ROOT / "proc/vmstat").get("oom_kill"))


def memory_limit() -> int | None:
    """Returns the bytes that this process's control group may use, by its own limit or one above it.

    None where no limit is set.
    """
    limits = (
        _number(group / name)
        for group in _groups()
        for name in ("memory.max", "memory.limit_in_bytes")
    )
    return min((limit for limit in limits if limit is not None and limit < NO_LIMIT), default=None)


def _groups() -> list[Path]:
    """Returns the folders of this process's memory groups, its own first; [] where there are none."""
    for groups in control_groups("memory", ROOT):
        if groups and (groups[0] / "memory.stat").exists():
            return groups
    return []


def _number(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text())
    return None


def _numbers(path: Path) -> dict[str, int]:
    with contextlib.suppress(OSError, ValueError):
        pairs = (line.split() for line in path.read_text().splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}
    return {}


class MemoryWitness:
    """The memory that a job holds while it runs, and the reason why it was killed."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = kill_counts()
        self._sampled_s = -math.inf
        self._held_bytes = 0

    def sample(self) -> None:
        """Notes the resident memory of the job's processes, at most once a second."""
        now = time.monotonic()
        if now - self._sampled_s >= MEMORY_CHECK_S:
            self._sampled_s = now
            # 0: it has just ended
            self._held_bytes = _resident(self._pid) or self._held_bytes

    def killed_words(self) -> str:
        """Returns why SIGKILL ended the job, in words, without a full stop."""
        now = kill_counts()
        before = self._before
        held = ""
        if self._held_bytes:
            held = f"; the job held {size(self._held_bytes)} when last seen"
        killed_in_group = _has_risen(now.group, before.group)
        if killed_in_group and _has_risen(now.limit, before.limit):
            limit = memory_limit()
            of = "" if limit is None else f" of {size(limit)}"
            group = f"its control group (a container's, or the session's) reached its limit{of}"
            return f"the kernel ended it because {group}{held}; {TRY}, or raise the limit (docker run --memory)"
        # of a kernel that reports no groups, all that is known is that some process was killed
        killed_somewhere = now.group is None and _has_risen(now.machine, before.machine)
        if killed_in_group or killed_somewhere:
            machine = f"the machine's memory of {size(psutil.virtual_memory().total)} was used up"
            return f"the kernel ended it because {machine}{held}; {TRY}, or end other programs"
        if now.group is None and now.machine is None:
            return f"the system may have run out of memory{held}"
        return f"not by the kernel for memory, so by a person or a program such as a batch system or earlyoom{held}"

    def script_words(self) -> str:
        """Returns why SIGKILL ended a process of a user's script, in words, without a full stop.

        The script may be in another control group than this process, as in a container that it starts: where
        the kernel killed anything on this machine, it is not known what.
        """
        now = kill_counts()
        is_of_another = not _has_risen(now.group, self._before.group)
        if (
            now.group is not None
            and is_of_another
            and _has_risen(now.machine, self._before.machine)
        ):
            return f"the kernel ended a process of this machine as memory was short, maybe this one; {TRY}"
        return self.killed_words()


def _has_risen(now: int | None, before: int | None) -> bool:
    return now is not None and now > (before or 0)


def _resident(pid: int) -> int:
    """Returns the resident bytes of a process and its descendants; 0 where they have ended."""
    held = 0
    with contextlib.suppress(OSError, IndexError, ValueError):
        held = int((ROOT / f"proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
        for children in (ROOT / f"proc/{pid}/task").glob("*/children"):
            held += sum(_resident(int(child)) for child in children.read_text().split())
    return held


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether the system refused memory, in Python, in PyTorch's allocator or in a fork."""
    message = str(error)
    refused = "can't allocate memory" in message or "Cannot allocate memory" in message
    return refused or isinstance(error, MemoryError)


def out_of_memory_words(message: str) -> str:
    """Returns one line for a job that the system refused memory; it names a limit of this process."""
    todo = f"{TRY}, or end other programs"
    for name, number, option in (
        ("data", resource.RLIMIT_DATA, "-d"),
        ("address space", resource.RLIMIT_AS, "-v"),
    ):
        soft, _hard = resource.getrlimit(number)
        if soft != resource.RLIM_INFINITY:
            todo = f"this process may have {size(soft)} of {name} (ulimit {option}): raise it, or {TRY}"
    return f"out of memory ({message}); the job held {size(_resident(os.getpid()))}; {todo}"


def owner_mark() -> str:
    """Returns the value of `OWNER` that names this process."""
    return f"{process_space()}-{os.getpid()}"


def mark_multiprocessing() -> None:
    """Makes multiprocessing's temporary directory for this process and its workers, with a name that
    says whose it is. `multiprocessing.util.get_temp_dir` would make one as this does; it then returns
    this one.
    """
    made = tempfile.mkdtemp(prefix=temporary_prefix("mp"))
    multiprocessing.util.Finalize(
        None, shutil.rmtree, (made,), {"ignore_errors": True}, exitpriority=-100
    )
    multiprocessing.process.current_process()._config["tempdir"] = made  # type: ignore[attr-defined]


def clear_orphans() -> None:
    """Removes temporary files, and kills processes, of jobs whose owner is gone.

    They belong to this user, and are marked by a vitprof process of this pid namespace
    (`home.process_space`). The processes are those that were suspended (SIGSTOP, Ctrl-Z) and so
    never noticed that their owner ended; others end by themselves.
    """
    clear_temporary()
    for process in psutil.process_iter():
        # psutil notices if its id is another process's by now
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() == psutil.STATUS_STOPPED and process.uids().real == os.getuid():
                space, _, pid = process.environ().get(OWNER, "").rpartition("-")
                if space == process_space() and pid.isdecimal() and not psutil.pid_exists(int(pid)):
                    process.kill()


def clear_temporary() -> None:
    """Removes our temporary files and directories whose process is gone."""
    for folder in temporary_places():
        for path in _orphaned_in(folder):
            with contextlib.suppress(OSError):
                if path.is_dir():
                    remove_tree(path)
                else:
                    path.unlink()


def temporary_places() -> list[Path]:
    """Returns the folders for temporary files of vitprof, the usual one first.

    The others are used where the usual one can have no layer (`trial_folder`).
    """
    return [Path(tempfile.gettempdir()), home(), Path("/dev/shm")]


def remove_tree(path: Path) -> None:
    """Removes a folder with all that is in it, as far as that can be done."""
    for work in path.glob("*/work/work"):
        with contextlib.suppress(OSError):
            # overlayfs makes it so that only root can list it
            work.chmod(0o700)
    shutil.rmtree(path, ignore_errors=True)


def _orphaned_in(directory: Path) -> Iterator[Path]:
    """Yields temporary files and folders of this user whose process, by their name, is gone."""
    ours = re.compile(rf"vitprof-[a-z-]+-{re.escape(process_space())}-(\d+)-\w+")
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            match = ours.fullmatch(entry.name)
            if not match or psutil.pid_exists(int(match[1])):
                continue
            # it may have been removed meanwhile
            with contextlib.suppress(OSError):
                about = entry.stat(follow_symlinks=False)
                if about.st_uid == os.geteuid() and (
                    stat.S_ISDIR(about.st_mode) or stat.S_ISREG(about.st_mode)
                ):
                    yield Path(entry.path)
