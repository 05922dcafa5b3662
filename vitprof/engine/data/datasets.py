"""Data sets: `prepare` makes or downloads one once and checks it each time; `open_source` reads it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitprof import home
from vitprof.config.catalog import DatasetInfo, dataset_info
from vitprof.engine.data import digits, mnist, photos
from vitprof.engine.data.contract import Maker, OnProgress, Source, Stop, fsync, locked, never, silent, writing
from vitprof.errors import DataError, SampleError

MANIFEST = "manifest.json"


def seal(directory: Path, info: DatasetInfo, maker: Mapping[str, int | str]) -> None:
    there, hashed = _files(info, directory), _hashed(info)
    files = {
        name: {"size": path.stat().st_size} | ({"sha256": _sha256(path)} if hashed else {})
        for name, path in there.items()
    }
    manifest = directory / MANIFEST
    manifest.write_text(json.dumps({"maker": maker, "files": files}, indent=2) + "\n", encoding="utf-8")
    parents = {parent for path in there.values() for parent in path.parents if parent.is_relative_to(directory)}
    for path in (*(there.values() if hashed else ()), manifest, *sorted(parents, reverse=True)):
        fsync(path)


def read_manifest(
    root: Path, dicts: tuple[str, ...] = ("maker", "files"), numbers: tuple[str, ...] = ()
) -> dict[str, Any] | None:
    """Returns the manifest of a data set or storage; None if nothing is there. Raises `DataError` if it is damaged."""
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


def check(root: Path, info: DatasetInfo, manifest: dict[str, Any], *, skip_unreadable: bool = False) -> None:
    """Compares each file with the manifest. Raises a `DataError` that names the first that is missing or differs."""
    remedy = f"delete {root} and it is made again"
    recorded: dict[str, Any] = manifest["files"]
    hashed = _hashed(info)
    try:
        there = _files(info, root)
    except OSError as error:
        raise DataError(f"cannot read {root}: {error.strerror or error}; {remedy}") from error
    for name in sorted(there.keys() | recorded.keys()):
        facts, path = recorded.get(name), there.get(name, root / name)
        if name not in recorded and not hashed:
            raise DataError(f"{path} is not one of the set's files; move it away")
        try:
            if not isinstance(facts, dict) or path.stat().st_size != facts.get("size"):
                what = "size"
            elif hashed and _sha256(path) != facts.get("sha256"):
                what = "hash"
            else:
                continue
        except (FileNotFoundError, NotADirectoryError):
            raise DataError(f"{path} is missing; {remedy}") from None
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}; {remedy}") from error
        if hashed:
            raise DataError(f"{path} is damaged ({what} differs from {MANIFEST}); {remedy}")
        if not skip_unreadable:
            raise SampleError(
                f"{path} is damaged ({what} differs from {MANIFEST}); skip unreadable samples, or {remedy}"
            )


def _sha256(path: Path) -> str:
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


MAKERS: dict[str, Maker] = {"digits": digits, "mnist": mnist, "photos": photos}


def _files(info: DatasetInfo, root: Path) -> dict[str, Path]:
    return {name: mnist.raw_dir(root) / name for name in mnist.FILES} if info.kind == "idx" else photos.files(root)


def _hashed(info: DatasetInfo) -> bool:
    """Returns whether content is compared too: reading a gigabyte of photos takes seconds; decoding finds damage."""
    return info.kind == "idx"


def prepare(
    name: str,
    n_images: int | None = None,
    *,
    progress: OnProgress = silent,
    stop: Stop = never,
    skip_unreadable: bool = False,
) -> Path:
    """Makes (digits, photos) or downloads (mnist) the data set if it is not there yet, checks it, and returns its root.
    Several processes may call this at once. Raises `ConfigError`, `VitprofError`, `DataError` and `JobStopped`; photos
    made until then are kept.
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
        return mnist.IdxSource(info, root, train)
    return photos.PhotosSource(info, root, train)


def _is_made(info: DatasetInfo, root: Path, skip_unreadable: bool = False) -> bool:
    """Returns whether the right set is under `root`. Raises `DataError` if it is there and damaged."""
    manifest = read_manifest(root)
    if manifest is None or manifest["maker"] != MAKERS[info.name].IDENTITY:
        return False
    check(root, info, manifest, skip_unreadable=skip_unreadable)
    return True


def _make(info: DatasetInfo, root: Path, progress: OnProgress, stop: Stop) -> None:
    """Makes the set in `.<name>.partial-<identity>`, then moves it to `root`. One process at a time."""
    parent, resumable = home.ensure_dir(root.parent), not _hashed(info)
    identity = json.dumps([MAKERS[info.name].IDENTITY, info.n_train, info.n_test])
    partial = parent / f".{root.name}.partial-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"
    with locked(parent / f".{root.name}.lock", "making this data set", progress, stop):
        if _is_made(info, root):  # by the process that held the lock
            return
        for other in parent.glob(f".{root.name}.partial-*"):
            if other != partial or not resumable:
                shutil.rmtree(other, ignore_errors=True)
        try:
            with writing(partial):
                partial.mkdir(exist_ok=True)
            _fill(info, partial, root, progress, stop)
        except BaseException as error:
            # also of a resumable one where the disk is full: it must not stay full of hidden files
            if not resumable or isinstance(error, DataError):
                shutil.rmtree(partial, ignore_errors=True)
            raise


def _fill(info: DatasetInfo, directory: Path, root: Path, progress: OnProgress, stop: Stop) -> None:
    maker = MAKERS[info.name]
    sizes = {"n_train": info.n_train, "n_test": info.n_test} if info.any_size else {}
    maker.make(directory, **sizes, progress=lambda fraction, message: progress(0.95 * fraction, message), stop=stop)
    progress(0.95, f"{root.name}: recording {'checksums' if _hashed(info) else 'sizes'}")
    with writing(directory):
        seal(directory, info, maker.IDENTITY)
    with writing(root):
        outdated = root.with_name(f".{root.name}.old")
        shutil.rmtree(outdated, ignore_errors=True)
        if root.is_dir():
            root.rename(outdated)
        os.replace(directory, root)
        fsync(root.parent)
        shutil.rmtree(outdated, ignore_errors=True)
