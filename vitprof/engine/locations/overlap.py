"""Training starts on the slow drive while its files are copied; readers switch to the copy once it is complete."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from vitprof.engine.locations.staging import MOST_BESIDE_TRAINING, Copied, copy_tree
from vitprof.engine.locations.throttle import TokenBucket
from vitprof.engine.locations.tree import is_for_training
from vitprof.errors import DataError, JobStopped, one_line

if TYPE_CHECKING:
    from vitprof.engine.storage import Place

Opener = Callable[["Place"], Any]


class BackgroundCopy:
    """A thread that copies `source` to `target` during the `with` block, and writes a marker file when it is done.

    The file `marker` next to `target` is empty if the copy is complete, else it says why the copy failed. Every process
    that reads can see it. At the end of the block a copy that is still running is stopped; if the copy failed, its
    error is raised there, unless the block raises one of its own.
    """

    def __init__(self, source: Path, target: Path, throttle: TokenBucket, clock: Callable[[], float]) -> None:
        self.marker = target.with_name(f"{target.name}.done")
        self.copied: Copied | None = None
        """What was copied; None until the copy is complete."""
        self.fraction = 0.0
        """Share of the copy that is done, 0..1."""
        self._target = target
        self._copy = partial(
            copy_tree,
            source,
            target,
            throttle=throttle,
            wanted=is_for_training,
            most_threads=MOST_BESIDE_TRAINING,
            clock=clock,
        )
        self._halt = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="vitprof-stage")

    @property
    def complete(self) -> bool:
        """Returns whether the copy is complete, so that readers switch to it."""
        return self.copied is not None

    @property
    def n_bytes(self) -> int:
        """Returns the bytes of the complete copy; 0 before."""
        return self.copied.n_bytes if self.copied else 0

    def __enter__(self) -> BackgroundCopy:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._halt.set()
        self._thread.join()
        if self._error is not None and kind is None:
            raise self._error

    def _run(self) -> None:
        try:
            copied = self._copy(progress=self._note_progress, stop=self._halt.is_set)
            self._leave_word("")
            self.copied = copied
        except JobStopped:
            return
        except BaseException as error:  # raised at the end of the block
            self._error = error
            # If the disk is too full even for this, the error appears only at the end of the block.
            if self._target.parent.is_dir():
                self._leave_word(one_line(error), or_not=True)

    def _note_progress(self, fraction: float, message: str) -> None:
        self.fraction = fraction

    def _leave_word(self, word: str, *, or_not: bool = False) -> None:
        beginning = self.marker.with_name(f"{self.marker.name}.new")
        try:
            beginning.write_text(word, encoding="utf-8")
            os.replace(beginning, self.marker)
        except OSError as error:
            if not or_not:
                raise DataError(f"cannot write {self.marker}: {error.strerror or error}; free some space") from error


class OverlappedStorage:
    """A storage on the slow drive that switches to the local disk once the copy is complete.

    It has the attributes of the storage behind it: `read`, `read_encoded`, `dataset()`, `labels`, `shape` and so on.
    Until the marker exists, each process looks for it before each call (one `stat`). Can be pickled if the opener can.
    Raises `DataError` at the next call after the copy has failed.
    """

    def __init__(self, opener: Opener, slow: Place, local: Place, marker: Path) -> None:
        self._opener = opener
        self._slow_place, self._local_place = slow, local
        self._marker = str(marker)
        self._slow: Any = opener(slow)
        self._local: Any = None
        self._switching = threading.Lock()

    def __len__(self) -> int:
        return len(self._current())

    def __getattr__(self, name: str) -> Any:
        # Called only for what this class does not have: the interface of the storage behind it. Private names do not
        # belong to it, and looking them up during unpickling would recurse forever.
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self._current(), name)
        # A loader may keep the method, which has to look for the copy at each call, not once.
        return partial(self._call, name) if callable(value) else value

    def dataset(self, *stopwatch: Any) -> OverlappedDataset:
        """Returns the Dataset, which switches to the copy once that is complete. See `SampleStorage.dataset`."""
        return OverlappedDataset(self, *stopwatch)

    def close(self) -> None:
        """Closes what is open in this process."""
        for storage in (self._slow, self._local):
            if storage is not None:
                storage.close()

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._current(), name)(*args, **kwargs)

    def _current(self) -> Any:
        if self._local is None and os.path.exists(self._marker):
            self._switch()
        if self._local is not None:
            return self._local
        if self._slow is None:
            with self._switching:
                if self._slow is None:
                    self._slow = self._opener(self._slow_place)
        return self._slow

    def _switch(self) -> None:
        """Opens the copy. The slow storage stays open, since another thread may be reading from it."""
        with self._switching:
            if self._local is None:
                if wrong := Path(self._marker).read_text(encoding="utf-8"):
                    raise DataError(wrong)
                self._local = self._opener(self._local_place)

    def __getstate__(self) -> dict[str, Any]:
        return {n: v for n, v in self.__dict__.items() if n != "_switching"} | {"_slow": None, "_local": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._switching = threading.Lock()


class OverlappedDataset:
    """A map-style Dataset over an `OverlappedStorage`. Has `__getitems__` if the storage's own Dataset has it."""

    def __init__(self, storage: OverlappedStorage, *stopwatch: Any) -> None:
        self._storage, self._stopwatch = storage, stopwatch
        self._of: Any = None
        self._dataset: Any = None

    def __len__(self) -> int:
        return len(self._storage)

    def __getitem__(self, index: int) -> Any:
        return self._current()[index]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and name != "__getitems__":
            raise AttributeError(name)
        value = getattr(self._current(), name)
        return partial(self._call, name) if callable(value) else value

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._current(), name)(*args, **kwargs)

    def _current(self) -> Any:
        storage = self._storage._current()
        if self._of is not storage:
            self._of, self._dataset = storage, storage.dataset(*self._stopwatch)
        return self._dataset

    def __getstate__(self) -> dict[str, Any]:
        return {"_storage": self._storage, "_stopwatch": self._stopwatch, "_of": None, "_dataset": None}
