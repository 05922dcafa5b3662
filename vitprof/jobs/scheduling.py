"""Whose turn it is: a machine runs one job at a time, unless they use different devices and all agreed to share. A job
takes a place of the machine: the first free one of `N_PLACES` files, which its program keeps locked until the job has
ended. The system frees the place of a killed program.
"""

import contextlib
import getpass
import hashlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from vitprof import formats, home, names, program
from vitprof.config.accelerators import is_simulated
from vitprof.errors import VitprofError
from vitprof.store import RunStore
from vitprof.store.database import MAX_ID
from vitprof.store.stored_run import LiveRun, is_alive, this_program
from vitprof.telemetry.visible import visible_gpus

N_PLACES = 32
"""Jobs that the machine can have at once: some that share it, watched scripts, and those that did not wait."""
MAX_BYTES = 4096
CHECK_S = 1.0
"""How long (s) to wait for another program that looks through the places, which takes it 2 ms. One that is suspended
meanwhile is not waited for."""
NOT_SEEN = "other programs' jobs on this machine cannot be seen ({}): whether one ran at the same time is not known"


@dataclass(frozen=True)
class Holder:
    """A job that has a place, as its program wrote it."""

    program: str = "a program"
    run: int = 0
    device: str = "?"
    """The queue that the job is in, see `scheduling.queue_of`."""
    shares: bool = False
    """Whether it may run at the same time as others (`RunConfig.share_machine`)."""
    since_s: float = 0.0
    """When it was started, in seconds since the epoch."""
    store: str = ""
    """Which store the run is in: `store_mark` of its URL."""
    home: str = ""
    user: str = ""
    pid: int = 0

    def fits(self, shares: bool, device: str) -> bool:
        """Returns whether a job may run at the same time: both agreed to share the machine, on different devices."""
        return self.shares and shares and self.device != device

    @property
    def who(self) -> str:
        """Returns the owner in words: program, process, user (if another one), and since when."""
        user = f", user {self.user}" if self.user not in ("", _user()) else ""
        stopped = "; it is stopped" if _is_stopped(self.pid) else ""
        since = f", since {formats.moment(self.since_s)}" if self.since_s else ""
        silent = (
            ""
            if self.store
            else "; it does not say what it runs: begin without waiting with --anyway, or Run now"
        )
        process = f", process {self.pid}" if self.pid else " that cannot be named"
        return names.tamed_name(f"{self.program}{process}{user}{since}{stopped}{silent}")


HOLDER = TypeAdapter(Holder)


class MachineLock:
    """The place of one run. Release it when the job has ended."""

    def __init__(self, run: int, device: str, *, shares: bool, store_url: str) -> None:
        program = store_mark(store_url), str(home.home()), _user(), os.getpid()
        self.holder = Holder(caller(), run, queue_of(device), shares, 0.0, *program)
        self.not_seen = ""
        """Why the jobs of other programs cannot be seen, for a notice; such a job waits for none of them."""
        self._place: FileLock | None = None

    def acquire(self, *, anyway: bool = False) -> bool:
        """Returns whether the job has its turn: no other job has a place that it may not run beside, or `anyway`."""
        if self._place is not None:
            return True
        self.holder = replace(self.holder, since_s=time.time())
        with _one_at_a_time():
            places = dict(_places())
            if not anyway and not all(
                h.fits(self.holder.shares, self.holder.device) for h in places.values() if h
            ):
                return False
            self._take([path for path, holder in places.items() if holder is None])
        return True

    def _take(self, free: list[Path]) -> None:
        problem = f"all {N_PLACES} places are taken, or files that another user made"
        for path in free:
            place = FileLock(
                path, blocking=False, mode=0o666, thread_local=False, on_acquired=self._write
            )
            try:
                if path.parent == _own_folder():
                    home.ensure_dir(path.parent)
                place.acquire()
            except (
                OSError,
                NotImplementedError,
                VitprofError,
            ) as refused:
                # `Timeout`, where it did not check, is one
                problem = getattr(refused, "strerror", None) or str(refused)
            else:
                self._place = place
                break
        if self._place is None or Path(self._place.lock_file).parent == _own_folder():
            self.not_seen = NOT_SEEN.format(f"{home.lock_dir()}: {problem}")

    def _write(self, fd: int) -> None:
        os.truncate(fd, 0)
        os.pwrite(fd, HOLDER.dump_json(self.holder), 0)

    def others(self) -> list[Holder]:
        """Returns the other jobs that have a place."""
        return [holder for holder in holders() if holder != self.holder]

    def release(self) -> None:
        """Frees the place. May be called again."""
        if self._place is not None:
            self._place.release()
            self._place = None


def holders() -> list[Holder]:
    """Returns the jobs that have a place."""
    with _one_at_a_time():
        return [holder for _, holder in _places() if holder is not None]


def _own_folder() -> Path:
    """Returns the folder of places that no other user can spoil, which only this user's programs see."""
    return home.home() / "locks"


def _places() -> Iterator[tuple[Path, Holder | None]]:
    names = [f"job-{number}.lock" for number in range(N_PLACES)]
    for path in (folder / name for folder in (home.lock_dir(), _own_folder()) for name in names):
        try:
            if path.exists():
                if path.lstat().st_nlink > 1:  # it would be emptied
                    continue
                with FileLock(path, blocking=False, mode=0o666):
                    pass
            yield path, None
        except Timeout:
            yield path, _read(path)
        except (OSError, NotImplementedError):
            continue


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Keeps two programs from looking through the places at once; those of this user also where others prevent it."""
    with contextlib.ExitStack() as held:
        for folder in (home.lock_dir(), _own_folder()):
            # `Timeout` is an OSError
            with contextlib.suppress(OSError, NotImplementedError, VitprofError):
                if folder == _own_folder():
                    home.ensure_dir(folder)
                elif not folder.exists():
                    folder.mkdir(parents=True)
                    # as /tmp: mkdir's own mode is cut by the umask
                    folder.chmod(0o1777)
                held.enter_context(FileLock(folder / "check.lock", timeout=CHECK_S, mode=0o666))
                break
        yield


def _read(path: Path) -> Holder:
    with contextlib.suppress(OSError, ValidationError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            return HOLDER.validate_json(file.read(MAX_BYTES))
    return _silent(path)


def _silent(path: Path) -> Holder:
    """Returns who holds a place without having written so, as the system sees it."""
    with contextlib.suppress(OSError, ValueError, psutil.Error):
        about = path.stat()
        file = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
        locks = (line.split() for line in Path("/proc/locks").read_text().splitlines())
        for pid in (int(lock[4]) for lock in locks if lock[1] == "FLOCK" and lock[5] == file):
            process = psutil.Process(pid)
            return Holder(
                process.name(), since_s=process.create_time(), user=process.username(), pid=pid
            )
    return Holder()


def caller() -> str:
    if "streamlit" in sys.modules:
        return "the dashboard"
    name = Path(sys.argv[0]).name
    command = (sys.argv[1:] or [""])[0]
    if name in ("vitprof", "__main__.py") and command.replace("-", "").isalpha():
        return f"{program.program()} {command}"
    return "a watched script" if name == "-c" else name or "a program"


def store_mark(url: str) -> str:
    """Returns a hash that identifies a store without revealing its URL."""
    return hashlib.sha256(url.encode()).hexdigest()[:16]


def _is_stopped(pid: int) -> bool:
    with contextlib.suppress(psutil.Error, OverflowError, ValueError):
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    return False


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user id without a name, as in containers
        return str(os.getuid())


ONE_AT_A_TIME = "jobs run one at a time so that they do not take each other's CPU and disk"
ONE_A_DEVICE = "a device takes one job at a time"
ALONE = "it was started to run alone (share_machine off)"


@dataclass(frozen=True)
class Ahead:
    """A job that a run waits for."""

    name: str
    """The run in words: "run 3", "run 3 of another store"."""
    device: str
    shares: bool
    owner: str
    """Program, process, and since when; "" where it is this program."""
    run: LiveRun | None = None
    """The run, where it is in the same store."""


def queue_of(name: str) -> str:
    """Returns the queue for a device; "auto": of the first GPU shown, else the CPU's, as for a simulated device."""
    if is_simulated(name):
        return "cpu"
    if name != "auto":
        return name
    return "cuda:0" if visible_gpus() else "cpu"


def ahead_of(store: RunStore, run_id: int) -> list[Ahead]:
    """Returns all jobs that a queued run waits for: of its store, running first, then others. Raises `StoreError`."""
    mine, there = _on_its_machine(store, run_id)
    return [] if mine is None else _ahead(store, mine, there)


def ahead_of_a_new_run(store: RunStore, device: str, *, shares: bool) -> list[Ahead]:
    """Returns all jobs that a run on `device` would wait for if it were queued now. Raises `StoreError`."""
    mine = LiveRun(MAX_ID, "", "queued", device, shares, *this_program())
    return _ahead(store, mine, [run for run in store.live_runs() if _is_there(run, mine)])


def _ahead(store: RunStore, mine: LiveRun, there: Sequence[LiveRun]) -> list[Ahead]:
    mark = store_mark(store.url)
    device = queue_of(mine.device)
    everywhere = holders()
    of_run = {holder.run: holder for holder in everywhere if holder.store == mark}
    together = [
        run.id
        for run in there
        if run.share_machine and mine.share_machine and queue_of(run.device) != device
    ]
    here = [run for run in there if run.id < mine.id and run.id not in together]
    found = []
    for run in sorted(here, key=lambda run: (run.status != "running", run.id)):
        found.append(
            Ahead(
                f"run {run.id}",
                device_of(run),
                run.share_machine,
                _owner(run, of_run.get(run.id)),
                run,
            )
        )
    others = (h for h in everywhere if h.store != mark and not h.fits(mine.share_machine, device))
    return found + [
        Ahead(name_of(holder), holder.device, holder.shares, holder.who) for holder in others
    ]


def running_beside(store: RunStore, run_id: int) -> list[LiveRun]:
    """Returns the other runs that are running on the machine of a run. Raises `StoreError`."""
    return [run for run in _on_its_machine(store, run_id)[1] if run.status == "running"]


def _on_its_machine(store: RunStore, run_id: int) -> tuple[LiveRun | None, list[LiveRun]]:
    live = store.live_runs()
    mine = next((run for run in live if run.id == run_id), None)
    return mine, [
        run for run in live if mine is not None and run.id != run_id and _is_there(run, mine)
    ]


def why_waiting(ahead: Sequence[Ahead], *, shares: bool) -> str:
    """Returns a line on what a run waits for (`ahead_of`) and why; `shares`: whether it would run beside others."""
    first = ahead[0]
    more = f" and {len(ahead) - 1} more" if len(ahead) > 1 else ""
    reason = (ONE_A_DEVICE if first.shares else ALONE) if shares else ONE_AT_A_TIME
    owner = f" ({first.owner})" if first.owner else ""
    return f"waiting for {first.name} on {first.device}{owner}{more}; {reason}"


def device_of(run: LiveRun) -> str:
    """Returns the device of a run; for "auto" the device whose queue it is in."""
    return queue_of(run.device) if run.device == "auto" else run.device


def name_of(holder: Holder) -> str:
    """Returns a job of another store in words."""
    return f"run {holder.run} of another store" if holder.run else "a job"


def _owner(run: LiveRun, holder: Holder | None) -> str:
    if run.owner_pid == os.getpid():
        return ""
    return f"process {run.owner_pid}" if holder is None else holder.who


def _is_there(run: LiveRun, mine: LiveRun) -> bool:
    owner, mine_owner = ((r.owner_host, r.owner_pid, r.owner_started) for r in (run, mine))
    return owner[0] == mine_owner[0] and (owner == mine_owner or is_alive(*owner))
