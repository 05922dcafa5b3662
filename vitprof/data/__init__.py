"""Data sets: `prepare` makes or downloads one once and checks it each time; `read_split` gives its arrays.

Each lies in `<home>/data/<name>`, in the form that `torchvision.datasets.MNIST(root, download=False)` takes, with a
`manifest.json` that records size and SHA-256 of each file and what made them. The whole directory is made elsewhere
and renamed into place in one step: it is either there and complete, or not there.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import psutil
from numpy.typing import NDArray

from vitprof import home
from vitprof.catalog import dataset_info
from vitprof.data import digits, idx, mnist
from vitprof.errors import DataError

Progress = Callable[[float, str], None]
"""Told how far something is: fraction 0..1 and a short message."""

Stop = Callable[[], bool]
"""Asked now and then; true means: stop (`JobStopped` is raised and nothing half-made stays)."""

MANIFEST = "manifest.json"


class Maker(Protocol):
    """What a module that makes a data set offers."""

    MAKER: dict[str, int | str]
    """Identity of what is made; a set on disk with another one is made again."""

    @property
    def make(self) -> Callable[..., None]:
        """`make(directory, *, progress, stop)`: put the four files under the existing `directory`."""


MAKERS: dict[str, Maker] = {"digits": digits, "mnist": mnist}


def _silent(fraction: float, message: str) -> None:
    """Progress nobody asked for."""


def _never() -> bool:
    return False


def prepare(name: str, *, progress: Progress = _silent, stop: Stop = _never) -> Path:
    """Make (digits) or download (mnist) the data set if it is not there yet, check it, and return its root.

    The root is what `torchvision.datasets.MNIST(root, download=False)` and `read_split` take. Several processes may
    do this at once. Raises `ConfigError` for an unknown name, `VitprofError` if the home directory cannot be written
    to, `DataError` if the set is damaged or cannot be made here, `JobStopped` if `stop()` turned true.
    """
    dataset_info(name)
    root = home.data_dir() / name
    maker = MAKERS[name]
    manifest = _read_manifest(root)
    if manifest is None or manifest["maker"] != maker.MAKER:
        _make(root, maker, progress, stop)
    else:
        _check(root, manifest)
    progress(1.0, f"{name} is ready")
    return root


def read_split(root: Path, train: bool) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (n, 28, 28) uint8 and labels (n,) int64, 0..9, of the training or the test split under `root`.

    Raises `DataError` if a file is missing or damaged, or if the two do not belong together.
    """
    images_file, labels_file = idx.split_files(root, train)
    images, labels = idx.read_idx(images_file), idx.read_idx(labels_file)
    if images.shape != (*labels.shape, 28, 28) or labels.max(initial=0) > 9:
        raise DataError(
            f"{images_file} {images.shape} and {labels_file.name} {labels.shape} are not images of 28 x 28 with "
            f"labels 0 to 9; delete {root} and it is made again"
        )
    return images, labels.astype(np.int64)


def _make(root: Path, maker: Maker, progress: Progress, stop: Stop) -> None:
    """Make the set in a temporary directory beside `root`, then put it there; leaves nothing else behind."""
    parent = home.ensure_dir(root.parent)
    _remove_leftovers(parent)
    temporary = parent / f".{root.name}.tmp-{platform.node()}-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        with idx.writing(temporary):
            temporary.mkdir()
        maker.make(temporary, progress=lambda fraction, message: progress(0.95 * fraction, message), stop=stop)
        progress(0.95, f"{root.name}: recording checksums")
        with idx.writing(temporary):
            _seal(temporary, maker)
        with idx.writing(root):
            _put_in_place(temporary, root, maker)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _remove_leftovers(parent: Path) -> None:
    """Remove temporary directories of processes that died while making a set."""
    # The host stands in the name because a home may be shared: process ids of other hosts say nothing here.
    left = re.compile(rf"\.\w+\.tmp-{re.escape(platform.node())}-(\d+)-[0-9a-f]+(\.old)?")
    for path in parent.iterdir():
        match = left.fullmatch(path.name)
        if match and not psutil.pid_exists(int(match[1])):
            shutil.rmtree(path, ignore_errors=True)


def _seal(directory: Path, maker: Maker) -> None:
    """Write the manifest of a set just made, and see to it that everything is on the disk and not just on its way."""
    raw = idx.raw_dir(directory)
    files = {name: {"size": (raw / name).stat().st_size, "sha256": _sha256(raw / name)} for name in idx.FILES}
    manifest = directory / MANIFEST
    manifest.write_text(json.dumps({"maker": maker.MAKER, "files": files}, indent=2) + "\n", encoding="utf-8")
    for path in (*(raw / name for name in idx.FILES), manifest, raw, raw.parent, directory):
        _fsync(path)


def _put_in_place(temporary: Path, root: Path, maker: Maker) -> None:
    """Rename a finished set to `root`, unless somebody else was faster and has put the same there."""
    for _ in range(10):  # again only when somebody else came in between
        try:
            os.replace(temporary, root)  # takes the place of an empty directory, never of one with content
            _fsync(root.parent)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        there = _read_manifest(root)
        if there is not None and there["maker"] == maker.MAKER:
            _check(root, there)
            return
        outdated = temporary.with_name(f"{temporary.name}.old")
        try:
            os.replace(root, outdated)
        except FileNotFoundError:
            continue
        shutil.rmtree(outdated, ignore_errors=True)
    raise DataError(f"{root} keeps being replaced by other processes; stop them and try again")


def _read_manifest(root: Path) -> dict[str, Any] | None:
    """The manifest under `root`; None if there is no set yet. Raises `DataError` if it is unreadable."""
    path = root / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(manifest["maker"], dict) or not isinstance(manifest["files"], dict):
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


def _check(root: Path, manifest: dict[str, Any]) -> None:
    """Compare each file with the manifest. Raises `DataError` that names the first that is missing or differs."""
    for name in idx.FILES:
        path = idx.raw_dir(root) / name
        recorded = manifest["files"].get(name)
        try:
            if not isinstance(recorded, dict) or path.stat().st_size != recorded.get("size"):
                what = "size"
            elif _sha256(path) != recorded.get("sha256"):
                what = "hash"
            else:
                continue
        except (FileNotFoundError, NotADirectoryError):
            raise DataError(f"{path} is missing; delete {root} and it is made again") from None
        except OSError as error:
            raise DataError(
                f"cannot read {path}: {error.strerror or error}; delete {root} and it is made again"
            ) from error
        raise DataError(f"{path} is damaged ({what} differs from {MANIFEST}); delete {root} and it is made again")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(1 << 20))
    with path.open("rb", buffering=0) as file:
        while n := file.readinto(buffer):
            digest.update(buffer[:n])
    return digest.hexdigest()


def _fsync(path: Path) -> None:
    """Wait until a file's or directory's content is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
