"""Data sets on disk: `prepare` makes or downloads one once and checks it each time.

Each is kept in `<home>/data/<directory>`, in the form that torchvision's MNIST or ImageFolder
takes, with a `manifest.json` that records what made it and each file's size (SHA-256, too, where
that is quick). The whole directory is made elsewhere and renamed into place in one step, so it is
either complete or absent.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitprof import home
from vitprof.datasets import digits, files, mnist, photos
from vitprof.datasets.catalog import DatasetInfo, dataset_info
from vitprof.datasets.files import OnProgress, Stop, never, silent
from vitprof.datasets.own import layout
from vitprof.errors import DataError, SampleError

MANIFEST = "manifest.json"
UNREADABLE = "unreadable"
"""Why a user's file cannot be read, in place of its size."""


def seal(directory: Path, info: DatasetInfo, maker: Mapping[str, int | str]) -> None:
    """Writes the manifest of a set just made, and waits until it and the files that are hashed are
    on the disk.

    Other files are left to the system: one that a power failure cuts short is recognised by its
    size.
    """
    there = _files(info, directory)
    hashed = _hashed(info)
    recorded = {name: _facts(path, hashed) for name, path in there.items()}
    manifest = directory / MANIFEST
    text = json.dumps({"maker": maker, "files": recorded}, indent=2)
    manifest.write_text(f"{text}\n", encoding="utf-8")
    parents = set[Path]()
    for path in there.values():
        parents |= {parent for parent in path.parents if parent.is_relative_to(directory)}
    if hashed:
        for path in there.values():
            files.fsync(path)
    # Then what lists them, the innermost directories first.
    for path in (manifest, *sorted(parents, reverse=True)):
        files.fsync(path)


def read_manifest(
    root: Path, dicts: tuple[str, ...] = ("maker", "files"), numbers: tuple[str, ...] = ()
) -> dict[str, Any] | None:
    """Returns the manifest in `root`, a data set's or a storage's; None if nothing is there yet.

    Entries named in `dicts` must be dicts, those in `numbers` numbers. Raises `DataError` if the
    manifest is unreadable, damaged, or missing although `root` has content.
    """
    path = root / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        has_dicts = all(isinstance(manifest[name], dict) for name in dicts)
        if not has_dicts or not all(isinstance(manifest[name], int | float) for name in numbers):
            raise TypeError
    except (FileNotFoundError, NotADirectoryError):
        if root.is_dir() and any(root.iterdir()):
            raise DataError(f"{path} is missing; {files.made_again(root)}") from None
        return None
    except OSError as error:
        remedy = f"make it readable, or {files.made_again(root)}"
        raise files.read_error(path, error, remedy) from error
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path} is damaged; {files.made_again(root)}") from None
    return manifest


def check(
    root: Path, info: DatasetInfo, manifest: dict[str, Any], *, skip_unreadable: bool = False
) -> None:
    """Compares each file with the manifest.

    Raises a `DataError` that names the first that is missing or differs.

    For an image file of another size, or a link to one that is gone, it is a `SampleError`; with
    `skip_unreadable`, none: readers find such files.
    """
    remedy = files.made_again(root)
    recorded: dict[str, Any] = manifest["files"]
    hashed = _hashed(info)
    with files.reading(root, remedy):
        there = _files(info, root)
    for name in sorted(there.keys() | recorded.keys()):
        path = there.get(name, root / name)
        if name not in recorded and not hashed:
            raise DataError(f"{path} is not one of the set's files; move it away")
        with files.reading(path, remedy):
            facts = _facts(path, hashed)
        if UNREADABLE in facts and not skip_unreadable:
            why = f"{path} cannot be read ({facts[UNREADABLE]})"
            raise SampleError(f"{why}; skip unreadable samples, or {remedy}")
        differs = facts != recorded.get(name)
        what = f"{path} is damaged (it differs from {MANIFEST})"
        if differs and hashed:
            raise DataError(f"{what}; {remedy}")
        if differs and not skip_unreadable:
            raise SampleError(f"{what}; skip unreadable samples, or {remedy}")


def _facts(path: Path, hashed: bool) -> dict[str, int | str]:
    """Returns what the manifest says of a file, also of a link that leads to none. Raises `OSError`."""
    try:
        facts: dict[str, int | str] = {"size": path.stat().st_size}
    except OSError as error:
        if not path.is_symlink():
            raise
        return {UNREADABLE: error.strerror or str(error)}
    if hashed:
        with path.open("rb", buffering=0) as file:
            facts["sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
    return facts


MAKERS: dict[str, Any] = {"digits": digits, "mnist": mnist, "photos": photos}
"""The module that makes each data set with `make(directory, [n_train, n_test,] *, progress, stop)`,
which fills an existing directory. `IDENTITY` is the identity of what that makes: a set on disk with
a different one is made again."""


def _maker(info: DatasetInfo) -> Any:
    return layout.maker(info.name) if info.own_bytes else MAKERS[info.name]


def _files(info: DatasetInfo, root: Path) -> dict[str, Path]:
    """Returns name in the manifest -> path of the files that should be there, of photos of those
    that are.
    """
    if info.kind == "idx":
        return {name: mnist.raw_dir(root) / name for name in mnist.FILES}
    return photos.image_files(root)


def _hashed(info: DatasetInfo) -> bool:
    """Returns whether content is compared, too: reading a gigabyte of photos takes seconds, and
    decoding finds damage.

    A set that is not hashed is made one file at a time, and continued where a try was interrupted.
    """
    return info.kind == "idx"


def prepare(
    name: str,
    n_images: int | None = None,
    *,
    progress: OnProgress = silent,
    stop: Stop = never,
    skip_unreadable: bool = False,
) -> Path:
    """Makes (digits, photos) or downloads (mnist) the data set if it is not there yet, checks it,
    and returns its root.

    The root is what `open_source` and torchvision's MNIST take, and ImageFolder with "train" or
    "test" appended. `n_images` is the size of the training set, where that can be chosen. Several
    processes may call this at once. With `skip_unreadable`, image files whose size differs from the
    record are left for the reader to detect.

    Raises `ConfigError` for an unknown name or size, `VitprofError` if the home directory cannot be
    written to, `DataError` if the set is damaged or cannot be made here (`SampleError` if one image
    file is damaged), `JobStopped` if `stop()` turned true. Photos made until then are kept.
    """
    info = dataset_info(name, n_images)
    root = home.data_dir() / info.directory
    if not _is_made(info, root, skip_unreadable):
        _make(info, root, progress, stop)
        if info.own_bytes and not skip_unreadable:
            # Names the first file that cannot be read.
            _is_made(info, root)
    progress(1.0, f"{name} is ready")
    return root


def _is_made(info: DatasetInfo, root: Path, skip_unreadable: bool = False) -> bool:
    """Returns whether the right set is under `root`. Raises `DataError` if it is there and damaged."""
    manifest = read_manifest(root)
    if manifest is None or manifest["maker"] != _maker(info).IDENTITY:
        return False
    check(root, info, manifest, skip_unreadable=skip_unreadable)
    return True


def _make(info: DatasetInfo, root: Path, progress: OnProgress, stop: Stop) -> None:
    """Makes the set in `.<name>.partial-<identity>`, then moves it to `root`.

    One process at a time.

    Of a resumable kind that directory stays if it is interrupted, and the next try continues there.
    """
    parent = home.ensure_dir(root.parent)
    resumable = not _hashed(info)
    identity = json.dumps([_maker(info).IDENTITY, info.n_train, info.n_test])
    partial = parent / f".{root.name}.partial-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"
    with files.locked(parent / f".{root.name}.lock", "making this data set", progress, stop):
        # The process that held the lock may have made it.
        if _is_made(info, root):
            return
        for other in parent.glob(f".{root.name}.partial-*"):
            if other != partial or not resumable:
                shutil.rmtree(other, ignore_errors=True)
        try:
            with files.writing(partial):
                partial.mkdir(exist_ok=True)
            _fill(info, partial, root, progress, stop)
        except BaseException as error:
            # Also of a resumable one where the disk is full: it must not stay full of hidden files.
            if not resumable or isinstance(error, DataError):
                shutil.rmtree(partial, ignore_errors=True)
            raise


def _fill(info: DatasetInfo, directory: Path, root: Path, progress: OnProgress, stop: Stop) -> None:
    """Makes the set in `directory` and moves it to `root`."""
    maker = _maker(info)
    sizes = {}
    if info.any_size:
        sizes = {"n_train": info.n_train, "n_test": info.n_test}
    maker.make(
        directory,
        **sizes,
        progress=lambda fraction, message: progress(0.95 * fraction, message),
        stop=stop,
    )
    progress(0.95, f"{root.name}: recording {'checksums' if _hashed(info) else 'sizes'}")
    with files.writing(directory):
        seal(directory, info, maker.IDENTITY)
    with files.writing(root):
        files.put_in_place(directory, root)
