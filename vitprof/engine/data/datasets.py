"""Data sets: `prepare` makes or downloads one once and checks it each time; `open_source` reads it."""

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitprof import home
from vitprof.config.catalog import DatasetInfo, dataset_info
from vitprof.engine.data import contract, digits, mnist, own, photos
from vitprof.engine.data.contract import OnProgress, Source, Stop, never, silent
from vitprof.errors import DataError, SampleError

MANIFEST = "manifest.json"


def seal(directory: Path, info: DatasetInfo, maker: Mapping[str, int | str]) -> None:
    there = _files(info, directory)
    hashed = _hashed(info)
    files = {name: _facts(path, hashed) for name, path in there.items()}
    manifest = directory / MANIFEST
    manifest.write_text(
        json.dumps({"maker": maker, "files": files}, indent=2) + "\n", encoding="utf-8"
    )
    parents = {
        parent
        for path in there.values()
        for parent in path.parents
        if parent.is_relative_to(directory)
    }
    for path in (*(there.values() if hashed else ()), manifest, *sorted(parents, reverse=True)):
        contract.fsync(path)


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
            raise DataError(f"{path} is missing; {contract.made_again(root)}") from None
        return None
    except OSError as error:
        raise contract.read_error(
            path, error, f"make it readable, or {contract.made_again(root)}"
        ) from error
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path} is damaged; {contract.made_again(root)}") from None
    return manifest


def check(
    root: Path, info: DatasetInfo, manifest: dict[str, Any], *, skip_unreadable: bool = False
) -> None:
    """Compares each file with the manifest. Raises a `DataError` that names the first that is missing or differs."""
    remedy = contract.made_again(root)
    recorded: dict[str, Any] = manifest["files"]
    hashed = _hashed(info)
    with contract.reading(root, remedy):
        there = _files(info, root)
    for name in sorted(there.keys() | recorded.keys()):
        path = there.get(name, root / name)
        if name not in recorded and not hashed:
            raise DataError(f"{path} is not one of the set's files; move it away")
        with contract.reading(path, remedy):
            differs = _facts(path, hashed) != recorded.get(name)
        what = f"{path} is damaged (it differs from {MANIFEST})"
        if differs and hashed:
            raise DataError(f"{what}; {remedy}")
        if differs and not skip_unreadable:
            raise SampleError(f"{what}; skip unreadable samples, or {remedy}")


def _facts(path: Path, hashed: bool) -> dict[str, int | str]:
    """Returns what the manifest says of a file. Raises `OSError`."""
    facts: dict[str, int | str] = {"size": path.stat().st_size}
    if hashed:
        with path.open("rb", buffering=0) as file:
            facts["sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
    return facts


MAKERS: dict[str, Any] = {"digits": digits, "mnist": mnist, "photos": photos}
"""The module that makes each data set with `make(directory, [n_train, n_test,] *, progress, stop)`, which fills an
existing directory. `IDENTITY` is the identity of what that makes: a set on disk with a different one is made again."""


def _maker(info: DatasetInfo) -> Any:
    return own.maker(info.name) if info.own_bytes else MAKERS[info.name]


def _files(info: DatasetInfo, root: Path) -> dict[str, Path]:
    return (
        {name: mnist.raw_dir(root) / name for name in mnist.FILES}
        if info.kind == "idx"
        else photos.files(root)
    )


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
    if manifest is None or manifest["maker"] != _maker(info).IDENTITY:
        return False
    check(root, info, manifest, skip_unreadable=skip_unreadable)
    return True


def _make(info: DatasetInfo, root: Path, progress: OnProgress, stop: Stop) -> None:
    """Makes the set in `.<name>.partial-<identity>`, then moves it to `root`. One process at a time."""
    parent = home.ensure_dir(root.parent)
    resumable = not _hashed(info)
    identity = json.dumps([_maker(info).IDENTITY, info.n_train, info.n_test])
    partial = parent / f".{root.name}.partial-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"
    with contract.locked(parent / f".{root.name}.lock", "making this data set", progress, stop):
        if _is_made(info, root):  # by the process that held the lock
            return
        for other in parent.glob(f".{root.name}.partial-*"):
            if other != partial or not resumable:
                shutil.rmtree(other, ignore_errors=True)
        try:
            with contract.writing(partial):
                partial.mkdir(exist_ok=True)
            _fill(info, partial, root, progress, stop)
        except BaseException as error:
            # also of a resumable one where the disk is full: it must not stay full of hidden files
            if not resumable or isinstance(error, DataError):
                shutil.rmtree(partial, ignore_errors=True)
            raise


def _fill(info: DatasetInfo, directory: Path, root: Path, progress: OnProgress, stop: Stop) -> None:
    maker = _maker(info)
    sizes = {"n_train": info.n_train, "n_test": info.n_test} if info.any_size else {}
    maker.make(
        directory,
        **sizes,
        progress=lambda fraction, message: progress(0.95 * fraction, message),
        stop=stop,
    )
    progress(0.95, f"{root.name}: recording {'checksums' if _hashed(info) else 'sizes'}")
    with contract.writing(directory):
        seal(directory, info, maker.IDENTITY)
    with contract.writing(root):
        contract.put_in_place(directory, root)
