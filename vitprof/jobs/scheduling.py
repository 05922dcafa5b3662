"""Whose turn it is: a machine runs one job at a time, unless they use different devices and all agreed
to share.

Two jobs at once take CPU and disk from each other, so neither measures what it would do alone. A run
waits for every run of its store on its machine that was submitted before it and that it cannot run
beside. Then it takes a place of the machine, which jobs of other homes, stores and users take too:
the first free one of `N_PLACES` files, which its program keeps locked until the job has ended, and
which says who has it. The system frees the place of a killed program.
"""

import contextlib
import getpass
import hashlib
import os
import sys
import threading
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
"""Jobs that the machine can have at once: jobs that share it, watched scripts, and those that did not
wait."""
MAX_BYTES = 4096
"""What is read of a place: any user can write there."""
CHECK_S = 1.0
"""How long (s) to wait for another program that looks through the places, which takes it 2 ms. A
program that was suspended meanwhile is not waited for any longer."""
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
        words = self.program
        words += f", process {self.pid}" if self.pid else " that cannot be named"
        if self.user not in ("", _user()):
            words += f", user {self.user}"
        if self.since_s:
            words += f", since {formats.moment(self.since_s)}"
        if _is_stopped(self.pid):
            words += "; it is stopped"
        if not self.store:
            words += (
                "; it does not say what it runs: begin without waiting with --anyway, or Run now"
            )
        return names.tamed_name(words)


HOLDER = TypeAdapter(Holder)


class MachineLock:
    """The place of one run. Release it when the job has ended."""

    def __init__(self, run: int, device: str, *, shares: bool, store_url: str) -> None:
        self.holder = Holder(
            program=caller(),
            run=run,
            device=queue_of(device),
            shares=shares,
            store=store_mark(store_url),
            home=str(home.home()),
            user=_user(),
            pid=os.getpid(),
        )
        self.not_seen = ""
        """Why the jobs of other programs cannot be seen, for a notice; such a job waits for none of them."""
        self._place: FileLock | None = None
        self._descriptor = -1
        """That of the place's file, while it is locked."""
        self._using = threading.Lock()
        """Held while the descriptor is used, and while it is closed: its number may then be another file's."""

    def acquire(self, *, anyway: bool = False) -> bool:
        """Takes a place if the job has its turn, and returns whether it has: every job that has a place
        may run at the same time, or `anyway`.
        """
        if self._place is not None:
            return True
        own = self.holder = replace(self.holder, since_s=time.time())
        with _one_at_a_time():
            places = dict(_places())
            others = [holder for holder in places.values() if holder is not None]
            if not anyway and not all(other.fits(own.shares, own.device) for other in others):
                return False
            self._lock_one([path for path, holder in places.items() if holder is None])
        return True

    def _lock_one(self, free: list[Path]) -> None:
        """Locks the first of the `free` places that can be locked, and notes where none can."""
        problem = f"all {N_PLACES} places are taken, or files that another user made"
        for path in free:
            place = FileLock(
                path, blocking=False, mode=0o666, thread_local=False, on_acquired=self._write
            )
            try:
                if path.parent == _own_folder():
                    home.ensure_dir(path.parent)
                place.acquire()
            except (OSError, NotImplementedError, VitprofError) as refused:
                # `Timeout`, for a job that did not check, is an OSError
                problem = getattr(refused, "strerror", None) or str(refused)
            else:
                self._place = place
                break
        if self._place is None or Path(self._place.lock_file).parent == _own_folder():
            self.not_seen = NOT_SEEN.format(f"{home.lock_dir()}: {problem}")

    def _write(self, fd: int) -> None:
        self._descriptor = fd
        os.truncate(fd, 0)
        os.pwrite(fd, HOLDER.dump_json(self.holder), 0)

    def name_run(self, run: int) -> None:
        """Says which run has the place, where that was not known when it was taken."""
        with self._using, contextlib.suppress(OSError):
            if self._place is not None and self.holder.run != run:
                self.holder = replace(self.holder, run=run)
                self._write(self._descriptor)

    def others(self) -> list[Holder]:
        """Returns the other jobs that have a place."""
        return [holder for holder in holders() if holder != self.holder]

    def release(self) -> None:
        """Frees the place. May be called again."""
        with self._using:
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
    """Yields the file of each place that can be used, and who has it; None where it is free."""
    names = [f"job-{number}.lock" for number in range(N_PLACES)]
    for path in (folder / name for folder in (home.lock_dir(), _own_folder()) for name in names):
        try:
            if path.exists():
                # a link to another file of the user, which would be emptied
                if path.lstat().st_nlink > 1:
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
    """Keeps two programs from looking through the places at once: of all users, or of this one where
    another user prevents that.
    """
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
    # the recorder of a script that watches itself is started by `python -c`
    if name == "-c":
        return "a watched script"
    return name or "a program"


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
class JobAhead:
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


def ahead_of(store: RunStore, run_id: int) -> list[JobAhead]:
    """Returns all jobs that a queued run waits for: of its store, running first, then of others.

    Raises `StoreError`.
    """
    run, concurrent = _on_its_machine(store, run_id)
    return [] if run is None else _jobs_ahead(store, run, concurrent)


def ahead_of_a_new_run(store: RunStore, device: str, *, shares: bool) -> list[JobAhead]:
    """Returns all jobs that a run on `device` would wait for if it were queued now. Raises `StoreError`."""
    new = LiveRun(MAX_ID, "", "queued", device, shares, *this_program())
    concurrent = [run for run in store.live_runs() if _on_same_machine(run, new)]
    return _jobs_ahead(store, new, concurrent)


def _jobs_ahead(store: RunStore, waiting: LiveRun, concurrent: Sequence[LiveRun]) -> list[JobAhead]:
    """Returns the jobs that the run `waiting` waits for; `concurrent`: other live runs of its store on
    its machine.
    """
    mark = store_mark(store.url)
    device = queue_of(waiting.device)
    every_holder = holders()
    holder_of = {holder.run: holder for holder in every_holder if holder.store == mark}

    def fits(run: LiveRun) -> bool:
        both_share = run.share_machine and waiting.share_machine
        return both_share and queue_of(run.device) != device

    earlier = [run for run in concurrent if run.id < waiting.id and not fits(run)]
    jobs_ahead = []
    for run in sorted(earlier, key=lambda run: (run.status != "running", run.id)):
        owner = _owner(run, holder_of.get(run.id))
        jobs_ahead.append(JobAhead(f"run {run.id}", device_of(run), run.share_machine, owner, run))
    for holder in every_holder:
        if holder.store != mark and not holder.fits(waiting.share_machine, device):
            jobs_ahead.append(JobAhead(name_of(holder), holder.device, holder.shares, holder.who))
    return jobs_ahead


def concurrently_running(store: RunStore, run_id: int) -> list[LiveRun]:
    """Returns the other running runs on the machine of a run. Raises `StoreError`."""
    _, concurrent = _on_its_machine(store, run_id)
    return [run for run in concurrent if run.status == "running"]


def _on_its_machine(store: RunStore, run_id: int) -> tuple[LiveRun | None, list[LiveRun]]:
    """Returns a run, None if it is not live, and the other live runs on its machine."""
    live = store.live_runs()
    its_run = next((run for run in live if run.id == run_id), None)
    if its_run is None:
        return None, []
    return its_run, [run for run in live if run.id != run_id and _on_same_machine(run, its_run)]


def why_waiting(jobs_ahead: Sequence[JobAhead], *, shares: bool) -> str:
    """Returns a line on what a run waits for (`ahead_of`) and why.

    `shares`: whether the run agreed to run at the same time as others.
    """
    first = jobs_ahead[0]
    more = f" and {len(jobs_ahead) - 1} more" if len(jobs_ahead) > 1 else ""
    if not shares:
        reason = ONE_AT_A_TIME
    elif first.shares:
        reason = ONE_A_DEVICE
    else:
        reason = ALONE
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


def _on_same_machine(run: LiveRun, other: LiveRun) -> bool:
    """Returns whether a run is on the machine of another one, and its program is still there."""
    if run.owner_host != other.owner_host:
        return False
    owner = (run.owner_host, run.owner_pid, run.owner_started)
    if owner == (other.owner_host, other.owner_pid, other.owner_started):
        return True
    return is_alive(*owner)
