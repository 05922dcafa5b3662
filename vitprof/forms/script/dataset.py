"""What a script's Dataset is: looked at in the script's own process, before the script ends."""

import contextlib
import functools
import importlib
import io
import os
import pickle
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

from vitprof.forms.script.opened_files import held_files, opening
from vitprof.forms.script.sample_values import NameOf, different, leaves_described, storage_point

TransformTimes = Callable[[], AbstractContextManager[dict[str, float]]]
"""Gives a dict that has, once a sample was made meanwhile, the seconds in each transform by its
name: of those in a torchvision Compose."""
MOST_SAMPLES = 32
"""Samples that are read, fewer where they take longer together than `MOST_S`."""
MOST_S = 10.0
MOST_KEY_CHARS = 60
TWICE = 8
"""Samples that are read again, to see whether they are the same."""
MOST_PICKLED_BYTES = 256 << 20
WORKER_LIMIT_S = 30
DECODERS = (
    ("PIL.ImageFile", "ImageFile.load"),
    ("cv2", "imread"),
    ("cv2", "imdecode"),
    ("torchvision.io", "read_image"),
    ("torchvision.io", "decode_image"),
    ("torchvision.io", "decode_jpeg"),
    ("soundfile", "read"),
    ("torchaudio", "load"),
)
"""Modules and functions that decode; their time is read where the script calls them by these
names."""
HANDLES = ("h5py", "lmdb", "lance", "zipfile", "tarfile", "sqlite3", "tables", "zarr")
"""Modules whose objects are open files, or hold some."""


class Read(NamedTuple):
    """A sample, and how it was made."""

    at: Any
    """Its index, which is a number for most datasets."""
    sample: Any
    seconds: float
    decode_s: float
    transforms: dict[str, float]
    """Seconds by the name of the transform, of those in a torchvision Compose."""
    opened: list[str]
    read_bytes: int
    """Bytes of read system calls; -1 where this system does not count them. A mapped file is read
    without."""


def _in_a_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _in_words(index: Any) -> str:
    return str(index) if isinstance(index, int) else repr(index)[:MOST_KEY_CHARS]


def described(
    dataset: Any,
    collate: Any,
    facts: Mapping[str, Any],
    name_of: NameOf,
    transform_times: TransformTimes,
    keys: Sequence[Any] = (),
) -> dict[str, Any]:
    """Returns what `dataset` is, as JSON can hold it; `facts` of its loader. `keys`: indices that its
    sampler gives, where they are no numbers.

    Raises what reading a sample does.
    """
    import torch

    iterable = isinstance(dataset, torch.utils.data.IterableDataset)
    by_index = hasattr(dataset, "__getitem__") and not iterable
    n: int | None = None
    with contextlib.suppress(Exception):  # it has no length, or is not open yet
        n = len(dataset)
    if n == 0:
        raise ValueError("it has no sample")
    chosen: list[Any] = list(range(MOST_SAMPLES))
    if by_index:
        chosen = spread(len(keys) or n or 1, MOST_SAMPLES)
    by_key = by_index and bool(keys)
    if by_key:
        chosen = [keys[number] for number in chosen]
    # before it is read here: it may open its files then
    held = handles(dataset)
    sent = pickled(dataset)
    fork, forked = _forked(dataset, chosen[:2], by_index, facts)
    failed: list[str] = []
    if facts.get("num_workers"):
        torch.set_num_threads(1)  # as in a worker; the script ends soon
    first = list(_reads(dataset, chosen, by_index, failed, transform_times))
    if not first:
        raise ValueError(failed[0] if failed else "it gave no sample")
    twice = [read.at for read in first[:TWICE]]
    again = list(_reads(dataset, twice, by_index, [], transform_times))
    differ = [different(a.sample, b.sample) for a, b in zip(first, again, strict=False)]
    fork["different"] = (
        any(different(a.sample, b) for a, b in zip(first, forked, strict=False)) and not failed
    )
    opened = [path for read in first for path in read.opened]
    return {
        "kind": f"{type(dataset).__module__}.{type(dataset).__qualname__}",
        "loader": dict(facts),
        "samples": n,
        "by_index": by_index,
        "key": repr(chosen[0])[:MOST_KEY_CHARS] if by_key else "",
        "leaves": leaves_described([read.sample for read in first]),
        "n_read": len(first),
        "failed": failed,
        "sample_s": [read.seconds for read in first],
        "again_s": [read.seconds for read in again],
        "decode_s": median(read.decode_s for read in first),
        "transforms_s": _medians([read.transforms for read in first]),
        "collate_s": _collate_s(facts.get("batch_size"), collate, [read.sample for read in first]),
        "files_opened": median(len(read.opened) for read in first),
        "read_bytes": median(read.read_bytes for read in first),
        "files": list(dict.fromkeys(opened))[:MOST_SAMPLES],
        "held_files": held_files()[:MOST_SAMPLES],
        "random": sorted({path for paths in differ for path in paths}),
        "n_random": sum(bool(paths) for paths in differ),
        "n_again": len(again),
        "storage_point": storage_point(dataset, twice, name_of) if by_index else None,
        "handles": held,
        "pickle": sent,
        "fork": fork,
    }


def spread(n: int, most: int) -> list[int]:
    """Returns at most `most` different indices below `n`, evenly spaced, with the first and the
    last.
    """
    return sorted({i * (n - 1) // max(1, most - 1) for i in range(most)})


# reading samples


def _reads(
    dataset: Any,
    chosen: Sequence[Any],
    by_index: bool,
    failed: list[str],
    transform_times: TransformTimes,
) -> Iterator[Read]:
    """Yields samples, until it takes too long; adds the errors of those that cannot be read to
    `failed`.
    """
    until = perf_counter() + MOST_S
    each = None if by_index else iter(dataset)
    with _decoding() as decoding, opening() as opened:
        for index in chosen:
            opened.clear()
            decoding[0] = 0.0
            before, own = _bytes_read()
            with transform_times() as transforms:
                began = perf_counter()
                try:
                    sample = dataset[index] if each is None else next(each)
                except StopIteration:
                    return
                except Exception as error:
                    failed.append(f"sample {_in_words(index)}: {_in_a_line(error)}")
                    if each is not None:
                        return
                    continue
                seconds = perf_counter() - began
            read_bytes = _bytes_read()[0] - before - own if before >= 0 else -1
            yield Read(index, sample, seconds, decoding[0], transforms, list(opened), read_bytes)
            if perf_counter() > until:
                return


@contextlib.contextmanager
def _decoding() -> Iterator[list[float]]:
    """Patches the decoders that are imported; gives a list with the seconds that they took."""
    spent, nested = [0.0], [False]

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            if nested[0]:
                return function(*args, **named)
            began, nested[0] = perf_counter(), True
            try:
                return function(*args, **named)
            finally:
                spent[0] += perf_counter() - began
                nested[0] = False

        return call

    with contextlib.ExitStack() as stack:
        for module, name in DECODERS:
            if module.partition(".")[0] not in sys.modules:
                continue
            *owners, last = name.split(".")
            owner: Any = None
            with contextlib.suppress(ImportError):
                owner = importlib.import_module(module)
            owner = functools.reduce(lambda of, each: getattr(of, each, None), owners, owner)
            if (function := getattr(owner, last, None)) is not None:
                setattr(owner, last, timed(function))
                stack.callback(setattr, owner, last, function)
        yield spent


def _bytes_read() -> tuple[int, int]:
    """Returns the bytes that this process has read by system calls, and those of this call, which
    counts too.
    """
    try:
        with open("/proc/self/io", "rb", buffering=0) as file:
            text = file.read(4096)
        return int(text.split()[1]), len(text)  # rchar
    except (OSError, ValueError, IndexError):
        return -1, 0


def _medians(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: median(row.get(name, 0.0) for row in rows) for name in names}


def _collate_s(size: int | None, collate: Any, samples: Sequence[Any]) -> float | None:
    """Returns the seconds that collating a batch takes; None where the loader makes none, or not of
    these samples.
    """
    if not size or collate is None or not samples:
        return None
    batch = [samples[i % len(samples)] for i in range(size)]
    times = []
    with contextlib.suppress(Exception):  # a batch of the script's own kind
        for _ in range(3):
            began = perf_counter()
            collate(batch)
            times.append(perf_counter() - began)
    return median(times) if times else None


# workers


def handles(dataset: Any) -> list[str]:
    """Returns what the dataset holds open, as "h5py.File in .file": each worker that is forked
    shares it.
    """
    found = []
    seen = {id(dataset)}
    left = deque([("", dataset, 0)])
    while left and len(seen) < 5000:
        path, value, depth = left.popleft()
        kind = type(value)
        module = kind.__module__.partition(".")[0]
        is_file = isinstance(value, io.IOBase) and not isinstance(value, (io.BytesIO, io.StringIO))
        if path and (is_file or module in HANDLES):
            if not getattr(value, "closed", False):
                found.append(
                    f"{kind.__module__.lstrip('_').partition('.')[0]}.{kind.__name__} in {path}"
                )
            continue
        if depth == 4:
            continue
        inner: list[tuple[str, Any]] = []
        if isinstance(value, Mapping):
            inner = [(f"{path}[{key!r}]", each) for key, each in list(value.items())[:64]]
        elif isinstance(value, (list, tuple)):
            inner = [(f"{path}[{i}]", each) for i, each in enumerate(value[:64])]
        elif (
            hasattr(value, "__dict__")
            and not isinstance(value, type)
            and not callable(getattr(value, "numel", None))
        ):
            inner = [(f"{path}.{name}", each) for name, each in vars(value).items()]
        for name, each in inner:
            if id(each) not in seen:
                seen.add(id(each))
                left.append((name, each, depth + 1))
    return found


class _Sink(io.RawIOBase):
    """A file that counts what is written, and takes no more than `MOST_PICKLED_BYTES`."""

    n = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        n = memoryview(data).nbytes
        self.n += n
        if self.n > MOST_PICKLED_BYTES:
            raise BufferError
        return n


def pickled(dataset: Any) -> dict[str, Any]:
    """Returns whether workers that start anew (spawn, forkserver) can be sent the dataset: bytes,
    or why not.
    """
    sink = _Sink()
    try:
        pickle.Pickler(sink, protocol=pickle.HIGHEST_PROTOCOL).dump(dataset)
    except BufferError:
        pass
    except Exception as error:
        return {"works": False, "why": _in_a_line(error)}
    return {"works": True, "bytes": sink.n}


def _forked(
    dataset: Any, chosen: Sequence[Any], by_index: bool, facts: Mapping[str, Any]
) -> tuple[dict[str, Any], Sequence[Any]]:
    """Returns whether a worker that is forked now reads samples, by PyTorch's own DataLoader, and
    which.
    """
    from torch.utils.data import DataLoader

    if facts.get("num_workers"):
        return {"works": True, "by_script": True}, ()
    if not hasattr(os, "fork"):
        return {"works": False, "why": "this system has no fork"}, ()
    more: dict[str, Any] = {"sampler": list(chosen)} if by_index else {}
    more |= {
        "multiprocessing_context": "fork",
        "timeout": WORKER_LIMIT_S,
        "collate_fn": lambda samples: samples,
    }
    try:
        worker: Any = DataLoader(dataset, batch_size=len(chosen), num_workers=1, **more)
        each = iter(worker)
        try:
            samples: Sequence[Any] = next(each)
        finally:
            each._shutdown_workers()
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()] or [""]
        return {"works": False, "why": f"{type(error).__name__}: {lines[-1]}"}, ()
    return {"works": True}, samples
