"""Data sets: `prepare` makes or downloads one once and checks it each time; `open_source` reads it.

Each is kept in `<home>/data/<directory>`, in the form that torchvision's MNIST or ImageFolder takes, with a
`manifest.json` that records what made it and each file's size (SHA-256 too, where that is quick). The whole directory
is made elsewhere and renamed into place in one step, so it is either complete or absent.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

from vitprof import home
from vitprof.config.catalog import DatasetInfo, dataset_info
from vitprof.engine.data import digits, idx, mnist, photos
from vitprof.engine.data.contract import Maker, OnProgress, Source, Stop, never, silent
from vitprof.engine.data.manifest import Kind, check, fsync, locked, read_manifest, seal
from vitprof.errors import DataError

MAKERS: dict[str, Maker] = {"digits": digits, "mnist": mnist, "photos": photos}


def _idx_files(root: Path) -> dict[str, Path]:
    return {name: idx.raw_dir(root) / name for name in idx.FILES}


KINDS: dict[str, Kind] = {
    "idx": Kind(_idx_files, hashed=True, resumable=False),
    "jpeg": Kind(photos.files, hashed=False, resumable=True),
}


def prepare(
    name: str,
    n_images: int | None = None,
    *,
    progress: OnProgress = silent,
    stop: Stop = never,
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
    """Makes the set in `.<name>.partial-<identity>`, then moves it to `root`. One process at a time.

    Of a resumable kind that directory stays if it is interrupted, and the next try continues there.
    """
    parent, kind = home.ensure_dir(root.parent), KINDS[info.kind]
    identity = json.dumps([MAKERS[info.name].IDENTITY, info.n_train, info.n_test])
    partial = parent / f".{root.name}.partial-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"
    with locked(parent / f".{root.name}.lock", "making this data set", progress, stop):
        if _is_made(info, root):  # by the process that held the lock
            return
        for other in parent.glob(f".{root.name}.partial-*"):
            if other != partial or not kind.resumable:
                shutil.rmtree(other, ignore_errors=True)
        try:
            with idx.writing(partial):
                partial.mkdir(exist_ok=True)
            _fill(info, partial, root, progress, stop)
        except BaseException as error:
            # also of a resumable one where the disk is full: it must not stay full of hidden files
            if not kind.resumable or isinstance(error, DataError):
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
        outdated = root.with_name(f".{root.name}.old")
        shutil.rmtree(outdated, ignore_errors=True)
        if root.is_dir():
            root.rename(outdated)
        os.replace(directory, root)
        fsync(root.parent)
        shutil.rmtree(outdated, ignore_errors=True)
