"""Data sets: `prepare` makes or downloads one once and checks it each time; `open_source` reads it.

Each is kept in `<home>/data/<directory>`, in the form that torchvision's MNIST or ImageFolder takes, with a
`manifest.json` that records what made it and each file's size (SHA-256 too, where that is quick). The whole directory
is made elsewhere and renamed into place in one step, so it is either complete or absent.
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
from pathlib import Path

import psutil

from vitprof import home
from vitprof.config.catalog import DatasetInfo, dataset_info
from vitprof.engine.data import digits, idx, mnist, photos
from vitprof.engine.data.contract import Maker, OnProgress, Source, Stop
from vitprof.engine.data.manifest import Kind, check, fsync, locked, read_manifest, seal
from vitprof.errors import DataError

MAKERS: dict[str, Maker] = {"digits": digits, "mnist": mnist, "photos": photos}


def _idx_files(root: Path) -> dict[str, Path]:
    return {name: idx.raw_dir(root) / name for name in idx.FILES}


KINDS: dict[str, Kind] = {
    "idx": Kind(_idx_files, hashed=True, resumable=False),
    "jpeg": Kind(photos.files, hashed=False, resumable=True),
}


def _silent(fraction: float, message: str) -> None:
    """Ignores progress."""


def _never() -> bool:
    return False


def prepare(
    name: str,
    n_images: int | None = None,
    *,
    progress: OnProgress = _silent,
    stop: Stop = _never,
    skip_unreadable: bool = False,
) -> Path:
    """Makes (digits, photos) or downloads (mnist) the data set if it is not there yet, checks it, and returns its root.

    The root is what `open_source` and torchvision's MNIST take, and ImageFolder with "train" or "test"
    appended. `n_images` is the size of the training set, where that can be chosen. Several processes may call this at
    once. With `skip_unreadable`, image files whose size differs from the record are left for the reader to detect.

    Raises `ConfigError` for an unknown name or size, `VitprofError` if the home directory cannot be written to,
    `DataError` if the set is damaged or cannot be made here (`SampleError` if one image file is damaged), `JobStopped`
    if `stop()` turned true. Photos made until then are kept aside, and the next call continues from there.
    """
    info = dataset_info(name, n_images)
    root = home.data_dir() / info.directory
    if not _is_made(info, root, skip_unreadable):
        if KINDS[info.kind].resumable:
            _make_or_go_on(info, root, progress, stop)
        else:
            _make(info, root, progress, stop)
    progress(1.0, f"{name} is ready")
    return root


def open_source(info: DatasetInfo, root: Path, *, train: bool) -> Source:
    """Returns one split of the data set under `root`. Raises `DataError` if its files are missing or damaged."""
    if info.kind == "idx":
        return idx.IdxSource(info, root, train)
    return photos.PhotosSource(info, root, train)


def _is_made(info: DatasetInfo, root: Path, skip_unreadable: bool = False) -> bool:
    """Returns whether the right set is under `root`. Raises `DataError` if it is there and damaged."""
    manifest = read_manifest(root)
    if manifest is None or manifest["maker"] != MAKERS[info.name].IDENTITY:
        return False
    check(root, KINDS[info.kind], manifest, skip_unreadable=skip_unreadable)
    return True


def _make(info: DatasetInfo, root: Path, progress: OnProgress, stop: Stop) -> None:
    """Makes the set in a temporary directory beside `root`, then moves it there; leaves nothing else behind."""
    parent = home.ensure_dir(root.parent)
    _remove_leftovers(parent)
    temporary = parent / f".{root.name}.tmp-{platform.node()}-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        with idx.writing(temporary):
            temporary.mkdir()
        _fill(info, temporary, root, progress, stop)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _make_or_go_on(info: DatasetInfo, root: Path, progress: OnProgress, stop: Stop) -> None:
    """Does the same in `.<name>.partial-<identity>`, which stays if it is interrupted. One process at a time."""
    parent = home.ensure_dir(root.parent)
    _remove_leftovers(parent)
    made = json.dumps([MAKERS[info.name].IDENTITY, info.n_train, info.n_test])
    partial = parent / f".{root.name}.partial-{hashlib.sha256(made.encode()).hexdigest()[:8]}"
    with locked(parent / f".{root.name}.lock", "making this data set", progress, stop):
        if _is_made(info, root):  # by the process that held the lock
            return
        for other in parent.glob(f".{root.name}.partial-*"):
            if other != partial:
                shutil.rmtree(other, ignore_errors=True)
        try:
            with idx.writing(partial):
                partial.mkdir(exist_ok=True)
            _fill(info, partial, root, progress, stop)
        except DataError:  # above all a full disk: it must not stay full of hidden files
            shutil.rmtree(partial, ignore_errors=True)
            raise


def _fill(info: DatasetInfo, directory: Path, root: Path, progress: OnProgress, stop: Stop) -> None:
    """Makes the set in `directory` and moves it to `root`."""
    maker, kind = MAKERS[info.name], KINDS[info.kind]
    sizes = {"n_train": info.n_train, "n_test": info.n_test} if info.any_size else {}
    maker.make(directory, **sizes, progress=lambda fraction, message: progress(0.95 * fraction, message), stop=stop)
    progress(0.95, f"{root.name}: recording {'checksums' if kind.hashed else 'sizes'}")
    with idx.writing(directory):
        seal(directory, kind, maker.IDENTITY)
    with idx.writing(root):
        _put_in_place(directory, root, info)


def _remove_leftovers(parent: Path) -> None:
    """Removes temporary directories of processes that died while making a set."""
    # The host is part of the name because a home may be shared: process ids of other hosts mean nothing here.
    left = re.compile(rf"\.[\w-]+\.tmp-{re.escape(platform.node())}-(\d+)-[0-9a-f]+(\.old)?")
    for path in parent.iterdir():
        match = left.fullmatch(path.name)
        if match and not psutil.pid_exists(int(match[1])):
            shutil.rmtree(path, ignore_errors=True)


def _put_in_place(temporary: Path, root: Path, info: DatasetInfo) -> None:
    """Renames a finished set to `root`, unless another process has already put the same set there."""
    for _ in range(10):  # more than once only if another process gets in between
        try:
            os.replace(temporary, root)  # replaces an empty directory, never one with content
            fsync(root.parent)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        if _is_made(info, root):
            return
        outdated = root.with_name(f".{root.name}.tmp-{platform.node()}-{os.getpid()}-{secrets.token_hex(4)}.old")
        try:
            os.replace(root, outdated)
        except FileNotFoundError:
            continue
        shutil.rmtree(outdated, ignore_errors=True)
    raise DataError(f"{root} keeps being replaced by other processes; stop them and try again")
