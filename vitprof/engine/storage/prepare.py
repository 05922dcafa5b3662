"""Makes a storage from a data set once: timed, with progress, and never used half made.

A storage is kept in `<home>/prepared/<data set>/<storage>`. It is written to `<storage>.partial`
next to it, chunk by chunk. Only when everything is written is the directory, with its manifest,
renamed to its final name. An interrupted try starts over, except with many small files: then it
continues from a journal of what has been written.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from vitprof import home
from vitprof.config.parts import prepared_as
from vitprof.datasets import files as data
from vitprof.datasets.catalog import DatasetInfo
from vitprof.datasets.files import OnProgress, Stop
from vitprof.datasets.on_disk import MANIFEST, read_manifest
from vitprof.engine.storage import contract, format_of
from vitprof.engine.storage.source import Source, open_source
from vitprof.errors import DataError, JobStopped, SampleError

SPLITS: tuple[str, ...] = ("train", "test")
MAX_CHUNK_SAMPLES = 512
"""Samples that are made at once, at most."""
MAX_CHUNK_BYTES = 20_000_000
"""Chunks of large images have fewer samples (halved until they fit), so that a stop need not wait
long."""
NAMED_UNREADABLE = 10
"""Samples that cannot be read of which a manifest has the error; the others are only counted."""
JOURNAL_EVERY_S = 2.0
"""Most work, in seconds, that an interruption costs where the next try continues."""

Clock = Callable[[], float]


@dataclass(frozen=True)
class Prepared:
    """A finished storage."""

    directory: Path
    size_bytes: int
    """Room it takes on disk: allocated blocks, which is more than the files' lengths where they are
    small."""
    prepare_s: float
    """How long (s) making it took, when it was made (0 for a data set's own files).

    Includes tries that were interrupted, of one that was killed what its journal knew."""
    n_unreadable: int = 0
    """Samples of the data set that were left out because they cannot be read."""
    unreadable: tuple[str, ...] = ()
    """Errors of the first 10 of them, one line each."""


def prepare_storage(
    storage: str,
    info: DatasetInfo,
    source_root: Path,
    *,
    progress: OnProgress,
    stop: Stop,
    skip_unreadable: bool = False,
    clock: Clock = time.monotonic,
) -> Prepared:
    """Makes `storage` of the data set under `source_root` if it does not exist yet.

    Returns where it is, and facts.

    Several processes may call this at once: one makes it, the others wait. With `skip_unreadable`,
    samples of the data set that cannot be read are left out and counted in the manifest. Raises
    `DataError` (`SampleError` for an unreadable sample) and `JobStopped`; formats of many small
    files keep what is written until then for the next try.
    """
    stored_as = prepared_as(storage, info.kind)
    if stored_as is None:
        return Prepared(source_root, allocated_bytes(source_root), 0.0)
    root = home.home() / "prepared" / info.directory / stored_as
    form = format_of(stored_as)
    lock = home.ensure_dir(root.parent) / f"{stored_as}.lock"
    with data.locked(lock, f"preparing {stored_as}", progress, stop):
        wanted = _identity(stored_as, form.version, info, source_root)
        manifest = read_manifest(
            root, ("made_of", "files", "folders"), ("size_bytes", "prepare_s", "n_unreadable")
        )
        if manifest is None or manifest["made_of"] != wanted:
            making = _Making(form, info, source_root, root, wanted, progress, stop, clock)
            manifest = making.run(skip_unreadable)
        _check(root, manifest)
    n_unreadable = manifest["n_unreadable"]
    unreadable = tuple(manifest["unreadable"])
    if n_unreadable and not skip_unreadable:
        first = unreadable[0].partition(";")[0]
        raise DataError(
            f"{root} was made without samples that cannot be read ({n_unreadable:,}; the first: {first}); "
            f"skip unreadable samples, or repair them and delete {root}"
        )
    return Prepared(root, manifest["size_bytes"], manifest["prepare_s"], n_unreadable, unreadable)


@dataclass
class _Making:
    """One try at making a storage: writes to `<root>.partial`, goes on from a journal there,
    renames it to `root`.
    """

    _form: contract.Format
    _info: DatasetInfo
    _source_root: Path
    _root: Path
    _made_of: dict[str, Any]
    _progress: OnProgress
    _stop: Stop
    _clock: Clock
    _n_done: int = 0
    _n: int = 0

    def __post_init__(self) -> None:
        self._partial = self._root.with_name(f"{self._root.name}.partial")
        n_bytes = contract.image_bytes(self._info)
        self._chunk = contract.halved_until_small(MAX_CHUNK_SAMPLES, n_bytes, MAX_CHUNK_BYTES)

    def run(self, skip_unreadable: bool) -> dict[str, Any]:
        """Makes the storage and returns its manifest."""
        sources = {
            s: open_source(self._info, self._source_root, train=s == "train") for s in SPLITS
        }
        journal = None
        if self._form.resumable:
            journal = Journal.read(self._partial, self._made_of)
        if journal is None or (journal.unreadable and not skip_unreadable):
            journal = self._start_over({})
        began = self._clock() - journal.spent_s
        try:
            try:
                return self._write(sources, journal, began)
            except SampleError:
                if not skip_unreadable:
                    raise
            # Looked for only once one is found, so that intact data sets are not read twice.
            unreadable = {name: self._unreadable(name, source) for name, source in sources.items()}
            return self._write(sources, self._start_over(unreadable), began)
        except BaseException as error:
            if not self._form.resumable:
                shutil.rmtree(self._partial, ignore_errors=True)
            if isinstance(error, OSError):
                raise data.write_error(self._partial, error) from error
            raise

    def _unreadable(self, split: str, source: Source) -> dict[int, str]:
        """Returns number -> reason for each sample that cannot be read."""
        read = getattr(source, self._form.needs)
        tell = self._tell(split)
        n = len(source.ids)
        reasons: dict[int, str] = {}
        for start in range(0, n, self._chunk):
            message = f"looking for unreadable samples, {len(reasons):,} found"
            data.report(tell, self._stop, start / n, message, "looking for unreadable samples")
            end = min(start + self._chunk, n)
            try:
                read(start, end)
            except SampleError:
                # One by one, to find which of them.
                for i in range(start, end):
                    try:
                        read(i, i + 1)
                    except SampleError as error:
                        reasons[i] = str(error)
        return reasons

    def _start_over(self, unreadable: dict[str, dict[int, str]]) -> Journal:
        """Empties the directory. Returns a new journal, of a try without what is `unreadable`."""
        left_out = {split: found for split, found in unreadable.items() if found}
        with data.writing(self._partial):
            if self._partial.exists():
                shutil.rmtree(self._partial)
            self._partial.mkdir()
            journal = Journal(self._made_of, unreadable=left_out)
            if self._form.resumable:
                journal.write(self._partial)
        return journal

    def _write(
        self, all_sources: dict[str, Source], journal: Journal, began: float
    ) -> dict[str, Any]:
        sources = {
            s: Readable(source, journal.unreadable.get(s, {})) for s, source in all_sources.items()
        }
        if not sources["train"].ids or not sources["test"].ids:
            raise DataError(
                f"no sample under {self._source_root} can be read; {data.made_again(self._source_root)}"
            )
        self._n = sum(len(source.ids) for source in sources.values())
        self._n_done = journal.done
        if journal.split == "test":
            # The training split is complete.
            self._n_done += len(sources["train"].ids)
        n_remaining = self._n - self._n_done
        needed = int(n_remaining * self._form.bytes_a_sample(self._info))
        data.ensure_space(self._partial, needed)
        for name in SPLITS[SPLITS.index(journal.split) :]:
            if journal.split != name:
                journal.split = name
                journal.done = 0
            source = sources[name]
            info = self._info
            shape = (info.image_size, info.image_size, info.channels)
            facts = contract.SplitFacts(name, len(source.ids), shape, source.ids, source.labels)
            self._write_split(facts, source, journal, began)
        contract.write_labels(
            self._partial, {s: (source.ids, source.labels) for s, source in sources.items()}
        )
        return self._seal(journal, sources, began)

    def _write_split(
        self, facts: contract.SplitFacts, source: Source, journal: Journal, began: float
    ) -> None:
        tell = self._tell(facts.name)
        writer = self._form.open_writer(self._partial, facts)

        def note(done: int) -> None:
            if self._form.resumable:
                journal.done = done
                journal.spent_s = self._clock() - began
                journal.write(self._partial)

        noted_s = self._clock()
        try:
            for start in range(journal.done, facts.n, self._chunk):
                if self._stop():
                    note(start)
                    then = "starts over"
                    if self._form.resumable:
                        then = "continues from there"
                    raise JobStopped(f"stopped while preparing {self._root}; the next try {then}")
                end = min(start + self._chunk, facts.n)
                writer.add(start, getattr(source, self._form.needs)(start, end))
                self._n_done += end - start
                tell(self._n_done / self._n, f"{self._n_done:,} of {self._n:,} samples")
                if self._clock() - noted_s >= JOURNAL_EVERY_S:
                    note(end)
                    noted_s = self._clock()
            note(facts.n)
            tell(self._n_done / self._n, "finishing")
            writer.finish()
        finally:
            writer.close()

    def _seal(self, journal: Journal, sources: dict[str, Readable], began: float) -> dict[str, Any]:
        """Writes the finished storage's manifest, and renames the directory to its final name."""
        self._progress(0.99, f"{self._root.name}: waiting until it is on the disk")
        journal.remove(self._partial)
        # Before the manifest, which records the room on disk: some file systems know it late.
        _to_disk(self._partial)
        reasons = [reason for found in journal.unreadable.values() for reason in found.values()]
        facts = {
            "made_of": self._made_of,
            **{f"n_{split}": len(source.ids) for split, source in sources.items()},
            "n_unreadable": len(reasons),
            "unreadable": reasons[:NAMED_UNREADABLE],
            "prepare_s": self._clock() - began,
        }
        manifest = _write_manifest(self._partial, facts)
        data.fsync(self._partial / MANIFEST)
        data.fsync(self._partial)
        data.put_in_place(self._partial, self._root)
        message = f"{self._root.name} is ready"
        if reasons:
            message += f", {len(reasons):,} unreadable samples left out ({reasons[0]})"
        self._progress(1.0, message)
        return manifest

    def _tell(self, split: str) -> OnProgress:
        """Returns what receives the progress of a split; the rest is for the disk."""

        def tell(fraction: float, message: str) -> None:
            self._progress(0.99 * fraction, f"{self._root.name}: {split}, {message}")

        return tell


class Readable:
    """A source without some of its samples. The remaining ones are numbered from 0."""

    def __init__(self, source: Source, without: Collection[int]) -> None:
        self._source = source
        self._kept = np.setdiff1d(
            np.arange(len(source.ids)), np.fromiter(without, np.int64, len(without))
        )
        self.ids = [source.ids[i] for i in self._kept]
        self.labels: NDArray[np.int64] = source.labels[self._kept]

    def pixels(self, start: int, stop: int) -> NDArray[np.uint8]:
        parts = [self._source.pixels(first, last) for first, last in self._runs(start, stop)]
        if len(parts) == 1:
            # The usual case: not copied.
            return parts[0]
        return np.concatenate(parts)

    def encoded(self, start: int, stop: int) -> list[bytes]:
        files = []
        for first, last in self._runs(start, stop):
            files += self._source.encoded(first, last)
        return files

    def _runs(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Returns the ranges [first, last) of the source that hold the kept samples [start, stop),
        in order.
        """
        kept = self._kept[start:stop]
        breaks = np.flatnonzero(np.diff(kept) != 1) + 1
        return [(int(run[0]), int(run[-1]) + 1) for run in np.split(kept, breaks)]


JOURNAL = "journal.json"


@dataclass
class Journal:
    """What has been written so far.

    Trusted only until the machine restarts: written data may be lost in a crash.
    """

    made_of: dict[str, Any]
    """Identity of the storage (`_identity`); a journal with a different one is ignored."""
    split: str = "train"
    """The split being written; those before it are complete."""
    done: int = 0
    """Samples of that split that have been written."""
    spent_s: float = 0.0
    """Seconds spent so far, in all tries."""
    unreadable: dict[str, dict[int, str]] = field(default_factory=dict)
    """Split -> number in the data set -> reason, for each sample that is left out."""

    @classmethod
    def read(cls, directory: Path, made_of: dict[str, Any]) -> Journal | None:
        """Returns the journal of an earlier try at the same storage; None if there is none that can
        be used.
        """
        try:
            entry = json.loads((directory / JOURNAL).read_text(encoding="utf-8"))
            if entry["made_of"] != made_of or entry["boot"] != _boot():
                return None
            unreadable = {
                s: {int(i): str(why) for i, why in found.items()}
                for s, found in entry["unreadable"].items()
            }
            return cls(
                made_of,
                str(entry["split"]),
                int(entry["done"]),
                float(entry["spent_s"]),
                unreadable,
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            # It cannot be used: start over.
            return None

    def write(self, directory: Path) -> None:
        """Replaces the journal on disk atomically. Raises `OSError`."""
        entry = asdict(self) | {"boot": _boot()}
        temporary = directory / f"{JOURNAL}.tmp"
        temporary.write_text(json.dumps(entry), encoding="utf-8")
        os.replace(temporary, directory / JOURNAL)

    @staticmethod
    def remove(directory: Path) -> None:
        """Removes the journal; a finished storage has none."""
        for name in (JOURNAL, f"{JOURNAL}.tmp"):
            (directory / name).unlink(missing_ok=True)


def _boot() -> str:
    """Returns an ID of the machine's current boot: data in the page cache survive a killed process,
    but not a crash.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        # Not Linux.
        return f"{psutil.boot_time():.0f}"


# A storage's manifest: what it was made of, its files, and whether they are still unchanged.

FEW_FILES = 100
"""At most this many files are waited for one by one; 70,000 would take minutes: one call for the
file system then."""
BLOCK_BYTES = 512
"""Size of a block as stat counts them (stat(2))."""


def _identity(storage: str, version: int, info: DatasetInfo, source_root: Path) -> dict[str, Any]:
    """Returns the identity of a storage, with the maker from the data set's manifest.

    Raises `DataError`.
    """
    manifest = read_manifest(source_root)
    if manifest is None:
        raise DataError(f"{source_root} is empty; {data.made_again(source_root)}")
    return {
        "storage": storage,
        "version": version,
        "dataset": info.name,
        "maker": manifest["maker"],
        "n": [info.n_train, info.n_test],
        "shape": [info.image_size, info.image_size, info.channels],
    }


def _write_manifest(directory: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Adds the files in `directory` and their room to `facts`, writes the manifest and returns it.

    Raises `OSError`.
    """
    files, folders = _files(directory)
    facts = facts | {"files": files, "folders": folders, "size_bytes": allocated_bytes(directory)}
    (directory / MANIFEST).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return facts


def _check(root: Path, manifest: dict[str, Any]) -> None:
    """Compares what is in `root` with its manifest.

    Raises a `DataError` that names the first file that differs.
    """
    with data.reading(root):
        files, folders = _files(root)
    remedy = data.made_again(root)
    for name, size in manifest["files"].items():
        if name not in files:
            raise DataError(f"{root / name} is missing; {remedy}")
        if files[name] != size:
            raise DataError(
                f"{root / name} is damaged ({files[name]:,} bytes instead of {size:,}); {remedy}"
            )
    for name, n in manifest["folders"].items():
        there = folders.get(name, 0)
        if there < n:
            raise DataError(
                f"{root / name} is damaged ({there:,} files instead of {n:,}); {remedy}"
            )


def allocated_bytes(root: Path) -> int:
    """Returns the bytes of the blocks that the files under `root` take on disk; of links to files of the
    user that are gone, none.

    Raises `DataError`.
    """
    with data.reading(root):
        paths = (f"{top}/{name}" for top, _, names in _walk(root) for name in names)
        return sum(map(_blocks, paths)) * BLOCK_BYTES


def _blocks(path: str) -> int:
    try:
        return os.stat(path).st_blocks
    except OSError:
        if data.leads_nowhere(path):
            return 0
        raise


def _to_disk(directory: Path) -> None:
    """Waits until the files under `directory`, and the directories, are on the disk.

    Raises `OSError`.
    """
    found = list(_walk(directory))
    if sum(len(names) for _, _, names in found) > FEW_FILES and _syncfs(directory):
        return
    for top, _, names in reversed(found):
        for name in names:
            data.fsync(Path(top, name))
        data.fsync(Path(top))


def _syncfs(directory: Path) -> bool:
    """Waits for the whole file system of `directory`.

    Returns False where the system cannot (only Linux can).
    """
    try:
        syncfs = ctypes.CDLL(None, use_errno=True).syncfs
    except AttributeError:
        return False
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        if syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(descriptor)
    return True


def _files(root: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the size of each file in `root` but the manifest, and the number of entries in each
    folder below it.
    """
    (_, _, names), *below = _walk(root)
    files = {name: (root / name).stat().st_size for name in names if name != MANIFEST}
    folders = {}
    for top, inside, names in below:
        folders[f"{os.path.relpath(top, root)}/"] = len(inside) + len(names)
    return files, folders


def _walk(root: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Returns what `os.walk` does, which here raises `OSError`."""

    def fail(error: OSError) -> None:
        raise error

    return os.walk(root, onerror=fail)
