"""The manifest of a data set: what made it, and the size of each of its files (for some kinds the hash too)."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitprof.engine.data.idx import write_error, writing
from vitprof.errors import DataError, JobStopped, SampleError

if TYPE_CHECKING:
    from vitprof.engine.data.contract import OnProgress, Stop

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Kind:
    """The files of a kind of data set (`DatasetInfo.kind`), and how they are checked and made."""

    files: Callable[[Path], Mapping[str, Path]]
    """Returns the files under a root by their name in the manifest: those that should be there, if that is known
    without a manifest, otherwise those that are."""
    hashed: bool
    """Whether content is compared too. Not for image files: reading a gigabyte at each start would take seconds, and a
    damaged file is noticed when it is decoded."""
    resumable: bool
    """Whether its maker continues from the files that an interrupted try has left."""


def seal(directory: Path, kind: Kind, maker: Mapping[str, int | str]) -> None:
    """Writes the manifest of a set just made, and waits until it and the files that are hashed are on the disk.

    Other files are left to the system: one that a power failure cuts short is recognised by its size.
    """
    there = kind.files(directory)
    files = {name: _facts(path, kind.hashed) for name, path in there.items()}
    manifest = directory / MANIFEST
    manifest.write_text(json.dumps({"maker": maker, "files": files}, indent=2) + "\n", encoding="utf-8")
    parents = {parent for path in there.values() for parent in path.parents if parent.is_relative_to(directory)}
    for path in (*(there.values() if kind.hashed else ()), manifest, *sorted(parents, reverse=True)):
        fsync(path)


def _facts(path: Path, hashed: bool) -> dict[str, int | str]:
    facts: dict[str, int | str] = {"size": path.stat().st_size}
    return facts | {"sha256": _sha256(path)} if hashed else facts


def read_manifest(
    root: Path, dicts: tuple[str, ...] = ("maker", "files"), numbers: tuple[str, ...] = ()
) -> dict[str, Any] | None:
    """Returns the manifest in `root`, a data set's or a storage's; None if nothing is there yet.

    Entries named in `dicts` must be dicts, those in `numbers` numbers. Raises `DataError` if the manifest is
    unreadable, damaged, or missing although `root` has content.
    """
    path = root / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not all(isinstance(manifest[name], dict) for name in dicts) or not all(
            isinstance(manifest[name], int | float) for name in numbers
        ):
            raise TypeError
    except (FileNotFoundError, NotADirectoryError):
        if root.is_dir() and any(root.iterdir()):
            raise DataError(f"{path} is missing; delete {root} and it is made again") from None
        return None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}; make it readable, or delete {root}") from error
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path} is damaged; delete {root} and it is made again") from None
    return manifest


def check(root: Path, kind: Kind, manifest: dict[str, Any], *, skip_unreadable: bool = False) -> None:
    """Compares each file with the manifest. Raises a `DataError` that names the first that is missing or differs.

    For an image file of another size it is a `SampleError`; with `skip_unreadable`, none: readers find such files.
    """
    remedy = f"delete {root} and it is made again"
    recorded: dict[str, Any] = manifest["files"]
    try:
        there = kind.files(root)
    except OSError as error:
        raise DataError(f"cannot read {root}: {error.strerror or error}; {remedy}") from error
    for name in sorted(there.keys() | recorded.keys()):
        facts, path = recorded.get(name), there.get(name, root / name)
        if name not in recorded and not kind.hashed:
            raise DataError(f"{path} is not one of the set's files; move it away")
        try:
            if not isinstance(facts, dict) or path.stat().st_size != facts.get("size"):
                what = "size"
            elif kind.hashed and _sha256(path) != facts.get("sha256"):
                what = "hash"
            else:
                continue
        except (FileNotFoundError, NotADirectoryError):
            raise DataError(f"{path} is missing; {remedy}") from None
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}; {remedy}") from error
        if kind.hashed:
            raise DataError(f"{path} is damaged ({what} differs from {MANIFEST}); {remedy}")
        if not skip_unreadable:
            raise SampleError(
                f"{path} is damaged ({what} differs from {MANIFEST}); skip unreadable samples, or {remedy}"
            )


def _sha256(path: Path) -> str:
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fsync(path: Path) -> None:
    """Waits until a file's or directory's content is on the disk. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


POLL_S = 0.2


@contextmanager
def locked(path: Path, doing: str, progress: OnProgress, stop: Stop) -> Iterator[None]:
    """Holds the lock file at `path`, which is not removed. `doing` says in messages what the lock is held for.

    Raises `JobStopped` if `stop()` turned true while waiting, `DataError` if the file cannot be written.
    """
    with writing(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                pass
            except OSError as error:
                raise write_error(path, error) from error
            if stop():
                raise JobStopped(f"stopped while waiting for another process that is {doing}")
            progress(0.0, f"another process is {doing}")
            time.sleep(POLL_S)
        yield
    finally:
        os.close(descriptor)
