"""What a trial of a tournament does in the script's processes: changes the arguments of the train DataLoader as it is
constructed, keeps samples, and reports which files are written.
"""

import contextlib
import functools
import hashlib
import inspect
import itertools
import json
import os
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType, ModuleType
from typing import Any

from vitprof.watch import decoding, early_iterators, packing, worker_setup
from vitprof.watch.patching import (
    OPENED_UNDER,
    READ_AGAIN,
    STATEFUL,
    TRIAL_OVERRIDES,
    when_imported,
)
from vitprof.watch.proxy import Proxy
from vitprof.watch.script_objects import ByIdentity, length

TELL = "VITPROF_WATCH_TELL"
"""Environment variable: a file, each line a JSON list: a topic ("opened", "read", "notice", "problem", "pixels",
"unused") and a text."""
MOST_FRAMES = 60
SAMPLE_OVERHEAD = 100
"""Approximate bytes for the entry of a kept sample itself."""
BYTE_CODE = f"{os.sep}__pycache__{os.sep}"
NO_FILES = ("/dev/", "/proc/", "/sys/")
DELETES = ("os.remove", "os.rmdir", "os.rename", "shutil.rmtree")
DELETED = " (deleted)"
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_made = ByIdentity[dict[str, Any]]()
_set_up = ByIdentity[worker_setup.InWorkers]()
"""What is set in the workers of the loaders that are changed."""
_counts: Counter[str] = Counter()


def emit(about: str, text: str) -> None:
    """Appends a line to the file, where one is named, for the program that started the trial."""
    # the socket belongs to the process that trains, once it does; others open files and make loaders too, and earlier
    path = os.environ.get(TELL)
    if not path:
        return
    line = (json.dumps([about, text]) + "\n").encode()
    with contextlib.suppress(OSError), open(path, "ab", buffering=0) as file:
        file.write(line)  # appended in one write: lines of several processes do not mix


def emitted(about: str) -> Iterator[str]:
    """Yields the texts of a topic that the trial's processes have appended so far."""
    with contextlib.suppress(OSError), open(os.environ.get(TELL, ""), "rb") as file:
        for line in file:
            # A process that was killed may have left a part of a line.
            with contextlib.suppress(ValueError):
                topic, text = json.loads(line)
                if topic == about:
                    yield text


def override_arguments(dataloader: ModuleType) -> None:
    """Patches the DataLoader to note where each one is made, and to change the arguments of the train loader.

    `TRIAL_OVERRIDES` holds a JSON object: {} in a first trial, else "place", "nth" (null: every one), "arguments",
    "cache_bytes" (null: samples are not kept), "packs" and "as_uint8" (`packing`), "sharing_strategy" and
    "worker_threads" (`worker_setup`; null: the script's own), "across_epochs" (`early_iterators`),
    "decoder" (`decoding.decode_by`; null: the script's own)
    and "stored" (`StoredSamples`; null: the dataset's own samples).
    """
    wanted: dict[str, Any] = json.loads(os.environ[TRIAL_OVERRIDES])
    _put_in(dataloader.DataLoader, wanted, dataloader)
    when_imported(STATEFUL, lambda module: _put_in(module.StatefulDataLoader, wanted, dataloader))
    if wanted.get("packs") or wanted.get("as_uint8"):
        saving = packing.Saving(
            functools.partial(emit, "notice"), functools.partial(emit, "unused")
        )
        unpack = functools.partial(packing.unpack_batches, saving=saving)
        unpack(dataloader)
        when_imported(STATEFUL, unpack)
    if wanted.get("across_epochs"):
        early = early_iterators.EarlyIterators(
            _is_changed, functools.partial(emit, "notice"), functools.partial(emit, "unused")
        )
        early.patch(dataloader)
        when_imported(STATEFUL, early.patch)
    if any(wanted.get(name) is not None for name in worker_setup.NAMES):
        set_up = functools.partial(worker_setup.set_up_workers, of=_set_up.get)
        set_up(dataloader)
        when_imported(STATEFUL, set_up)
    if wanted.get("decoder"):
        send = functools.partial(emit, "pixels")
        decoding.decode_by(wanted["decoder"], send, functools.partial(emitted, "pixels"))


def _is_changed(loader: Any) -> bool:
    """Returns whether the trial changes a loader."""
    made = _made.get(loader)
    return made is not None and bool(made.get("changed"))


def _put_in(kind: Any, wanted: dict[str, Any], dataloader: ModuleType) -> None:
    begin = kind.__init__
    signature = inspect.signature(begin)

    @functools.wraps(begin)
    def begin_changed(self: Any, *args: Any, **kwargs: Any) -> None:
        made: dict[str, Any] = {}
        in_workers = None
        try:
            bound = signature.bind(self, *args, **kwargs)
            made = _noted(bound.arguments, dataloader, sys._getframe(1))
            if wanted and wanted["place"] == made["place"] and wanted["nth"] in (None, made["nth"]):
                _check_taken(wanted["arguments"], signature)
                in_workers = worker_setup.in_workers(wanted)
                # As a script imports it at its top: forked workers have it.
                decoding.check_decoder(wanted.get("decoder"))
                _change(bound.arguments, wanted, made, dataloader)
                args, kwargs = bound.args[1:], bound.kwargs
        except TypeError:  # the script's own mistake, which PyTorch will report
            pass
        except Exception as error:  # nothing was changed, so the trial fails; this line says why
            emit("problem", f"{type(error).__name__}: {error}")
        begin(self, *args, **kwargs)
        _made[self] = made
        if in_workers is not None and made["changed"]:
            _set_up[self] = in_workers

    kind.__init__ = begin_changed


SINCE = {"in_order": "2.6"}
"""Argument of the DataLoader -> the first PyTorch that takes it."""


def _check_taken(arguments: Mapping[str, Any], signature: inspect.Signature) -> None:
    """Raises `ValueError` for an argument that the script's PyTorch does not take."""
    for name in arguments:
        if name in signature.parameters:
            continue
        since = f", which came with PyTorch {SINCE[name]}" if name in SINCE else ""
        version = getattr(sys.modules.get("torch"), "__version__", "an unknown one")
        raise ValueError(f"its DataLoader takes no {name}{since}: the script's is {version}")


def made_of(loader: Any) -> dict[str, Any]:
    """Returns what was noted when a DataLoader was made, with "made_" before each name; empty outside of trials.

    "place": a hash of the lines of code that led to it, its dataset and its sampler; "where": the script's own line;
    "digest": the SHA-256 of the file with that line, by which it is known again; "" where the code is in no file;
    "by_script": whether that line made it, not a framework; "by_package": the package whose code did, else "";
    "nth": its number among those made there; "alone": whether it is the only one so far; "sharing_strategy",
    "worker_threads", "forks": see `worker_setup.facts_of`; "changed": whether its arguments were changed;
    "given": the names of the arguments that the script passed, separated by spaces; "own_batches": whether the script
    makes its batches itself; "iterable": whether it is an IterableDataset's.
    """
    made = _made.get(loader)
    if not made:
        return {}
    return {f"made_{name}": value for name, value in made.items()} | {
        "made_alone": _counts[made["place"]] == 1,
        **{f"made_{name}": value for name, value in worker_setup.facts_of(loader).items()},
    }


def _noted(arguments: dict[str, Any], dataloader: ModuleType, frame: FrameType) -> dict[str, Any]:
    chain, own = _led_here(frame)
    by_script = "site-packages" not in frame.f_code.co_filename
    dataset = arguments["dataset"]
    n_samples = length(dataset)
    if n_samples is None:  # an IterableDataset, or a dataset without a length
        n_samples = -1
    sampler = arguments.get("batch_sampler")
    if sampler is None:
        sampler = arguments.get("sampler")
    sampled = "shuffled" if arguments.get("shuffle") else type(sampler).__qualname__
    text = "|".join([*chain, type(dataset).__qualname__, str(n_samples), sampled])
    place = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    _counts[place] += 1
    return {
        "place": place,
        "where": _line_of(own),
        "digest": _digest(own.f_code.co_filename),
        "by_script": by_script,
        "by_package": "" if by_script else _package_of(frame),
        "nth": _counts[place],
        "changed": False,
        "given": " ".join(name for name in arguments if name not in ("self", "dataset")),
        "own_batches": arguments.get("batch_sampler") is not None
        or arguments.get("batch_size", 1) is None,
        "iterable": isinstance(dataset, dataloader.IterableDataset),
    }


def _led_here(frame: FrameType) -> tuple[list[str], FrameType]:
    """Returns what led to a call, and the script's own code of it."""
    frames = [each for each, _ in itertools.islice(traceback.walk_stack(frame), MOST_FRAMES)]
    own = (each for each in frames if "site-packages" not in each.f_code.co_filename)
    # a line may have two calls
    chain = [f"{_line_of(each)}:{each.f_lasti}" for each in frames]
    return chain, next(own, frame)


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _line_of(frame: FrameType) -> str:
    # without the folder, which is another one where trials run in copies of it
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


@functools.lru_cache(maxsize=16)
def _digest(path: str) -> str:
    # no pipe, such as /dev/stdin: what is read of it is gone
    if not os.path.isfile(path):
        return ""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read(), usedforsecurity=False).hexdigest()
    except OSError:
        return ""


def _change(
    call_arguments: dict[str, Any],
    wanted: dict[str, Any],
    made: dict[str, Any],
    dataloader: ModuleType,
) -> None:
    arguments, cache_bytes, stored = (
        wanted["arguments"],
        wanted["cache_bytes"],
        wanted.get("stored"),
    )
    if "batch_size" in arguments and made["own_batches"]:
        raise ValueError("the script makes its batches itself: batch_size cannot be varied")
    if cache_bytes is not None:
        workers = arguments.get("num_workers", call_arguments.get("num_workers", 0))
        call_arguments["dataset"] = KeptSamples(
            call_arguments["dataset"], cache_bytes // max(workers, 1)
        )
    if stored is not None:
        from vitprof.watch.stored_samples import StoredSamples

        call_arguments["dataset"] = StoredSamples(call_arguments["dataset"], stored)
    joins = bool(wanted.get("packs"))
    as_uint8 = bool(wanted.get("as_uint8"))
    if joins or as_uint8:
        call_arguments["collate_fn"] = packing.PackingCollate(
            _collate_of(call_arguments, dataloader), joins=joins, as_uint8=as_uint8
        )
    call_arguments.update(arguments)
    made["changed"] = True


def _collate_of(call_arguments: dict[str, Any], dataloader: ModuleType) -> Any:
    """Returns the collate function that PyTorch would use."""
    given = call_arguments.get("collate_fn")
    if given is not None:
        return given
    makes_batches = call_arguments.get("batch_sampler") is None
    if makes_batches and call_arguments.get("batch_size", 1) is None:
        return dataloader._utils.collate.default_convert
    return dataloader._utils.collate.default_collate


class KeptSamples(Proxy):
    """A proxy of a dataset that keeps samples as first read, in each process, up to `limit_bytes`."""

    def __init__(self, dataset: Any, limit_bytes: int) -> None:
        super().__init__(dataset)
        self._vitprof_limit = limit_bytes
        self._vitprof_kept: dict[Any, Any] = {}
        self._vitprof_left = limit_bytes

    def __reduce_ex__(self, _: Any) -> tuple[Any, tuple[Any, ...]]:
        return KeptSamples, (self._vitprof_wrapped, self._vitprof_limit)

    def __len__(self) -> int:
        return len(self._vitprof_wrapped)

    def __getitem__(self, index: Any) -> Any:
        key = _key_of(index)
        if key in self._vitprof_kept:
            return self._vitprof_kept[key]
        return self._keep(key, self._vitprof_wrapped[index])

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        """Returns the samples of a whole batch: PyTorch calls this method where a dataset has it."""
        get_batch = getattr(self._vitprof_wrapped, "__getitems__", None)
        if get_batch is None:
            return [self[index] for index in indices]
        samples: list[Any] = [None] * len(indices)
        missing = []
        for at, index in enumerate(indices):
            key = _key_of(index)
            if key in self._vitprof_kept:
                samples[at] = self._vitprof_kept[key]
            else:
                missing.append((at, key, index))
        if missing:
            read = get_batch([index for _, _, index in missing])
            for (at, key, _), sample in zip(missing, read, strict=True):
                samples[at] = self._keep(key, sample)
        return samples

    def _keep(self, key: Any, sample: Any) -> Any:
        if key is not NOT_KEPT and self._vitprof_left > 0:
            self._vitprof_left -= n_bytes(sample) + SAMPLE_OVERHEAD
            if self._vitprof_left > 0:
                self._vitprof_kept[key] = sample
            else:
                n, of = (
                    len(self._vitprof_kept),
                    f" of {len(self)}" if hasattr(self._vitprof_wrapped, "__len__") else "",
                )
                full = f"{self._vitprof_limit / 1e9:.3g} GB for each loading process were full after {n}{of} samples"
                emit(
                    "notice",
                    f"decode_cache=ram does not fit: {full}; the others are read again each time",
                )
        return sample


NOT_KEPT = object()
"""Stands for an index by which nothing is kept."""


def _key_of(index: Any) -> Any:
    """Returns what a sample is kept by: its index, a number for an array or a tensor of one.

    `NOT_KEPT` for what names several samples (a list, a slice, an array), as where the sampler makes
    whole batches: another selection is drawn each time. Many of these have no hash, and a tensor has
    that of the object.
    """
    n_dimensions = getattr(index, "ndim", None)
    if n_dimensions is not None:
        return NOT_KEPT if n_dimensions else index.item()
    if isinstance(index, slice):
        return NOT_KEPT
    try:
        hash(index)
    except TypeError:
        return NOT_KEPT
    return index


def n_bytes(value: Any) -> int:
    """Returns the approximate bytes of a sample: its arrays, tensors and PIL images, also in containers."""
    if isinstance(size := getattr(value, "nbytes", None), int):  # NumPy and PyTorch
        return size
    if isinstance(value, Mapping):
        return sum(map(n_bytes, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(n_bytes, value))
    if isinstance(size := getattr(value, "size", None), tuple) and hasattr(
        value, "getbands"
    ):  # a PIL image
        return int(size[0] * size[1] * len(value.getbands()))
    return sys.getsizeof(value)


class WrittenFiles:
    """The files that Python or `torch.save` writes or deletes, in this process and its forks: each outside of a folder
    is reported once. The program that started the trial looks at that folder itself.
    """

    def __init__(self, folder: str) -> None:
        self._within = os.path.join(folder, "")
        self._own = {os.path.abspath(os.environ.get(TELL, ""))}
        """vitprof's own file, and those that are made to be temporary."""
        self._created = set[str]()
        self._reported = set[str]()

    def on_event(self, event: str, args: tuple[Any, ...]) -> None:
        """Takes an event, as of `sys.addaudithook`."""
        with contextlib.suppress(Exception):  # the script would get it
            if event == "open":
                self._opened(*args)
            elif event in DELETES:
                self._deleted(event, args)
            elif event in ("tempfile.mkstemp", "tempfile.mkdtemp"):
                self._own.add(os.path.realpath(os.fsdecode(args[0])))

    def _opened(self, path: Any, _: Any, flags: Any) -> None:
        # a folder is opened to make a file without a name in it
        if isinstance(flags, int) and flags & WRITES and not os.path.isdir(path):
            self.report(path)

    def _deleted(self, event: str, args: tuple[Any, ...]) -> None:
        # no names in a folder that is open
        if len(args) > 1 and args[-1] not in (-1, None):
            return
        self.report(args[0], DELETED)
        if event == "os.rename":
            self.report(args[1])

    def report(self, path: object, what: str = "") -> None:
        """Reports a file that is written, or deleted (`what`)."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return
        whole = os.path.realpath(os.fsdecode(path))
        if self._is_no_news(whole) or (what and whole in self._created):
            return
        if not what and not os.path.lexists(whole):
            self._created.add(whole)
        if whole + what not in self._reported:
            self._reported.add(whole + what)
            emit("opened", whole + what)

    def _is_no_news(self, path: str) -> bool:
        if path.startswith((self._within, *NO_FILES)) or BYTE_CODE in path:
            return True
        parents = (path[:i] for i, letter in enumerate(path) if letter == os.sep)
        return not self._own.isdisjoint((path, *parents))


def report_written_files() -> None:
    """Reports each file outside `OPENED_UNDER` once that is written or deleted, see `WrittenFiles`."""
    files = WrittenFiles(os.environ[OPENED_UNDER])

    def save_reported(module: ModuleType) -> None:
        save = module.save

        @functools.wraps(save)
        def saved(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(Exception):
                files.report(f)  # PyTorch writes past Python
            return save(obj, f, *args, **kwargs)

        module.save = saved  # type: ignore[attr-defined]

    sys.addaudithook(files.on_event)
    when_imported("torch.serialization", save_reported)


class ReadFiles:
    """The files, of some, that Python reads in this process and its forks: each is reported once."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._waiting = set(paths)
        self._names = {os.path.basename(path) for path in paths}

    def on_event(self, event: str, args: tuple[Any, ...]) -> None:
        """Takes an event, as of `sys.addaudithook`: a name decides first, as a script may open a file for each
        sample.
        """
        if event != "open":
            return
        with contextlib.suppress(Exception):  # the script would get it
            path, _, flags = args
            if os.path.basename(os.fsdecode(path)) not in self._names or flags & WRITES:
                return
            whole = os.path.realpath(os.fsdecode(path))
            if whole in self._waiting:
                self._waiting.discard(whole)
                emit("read", whole)


def report_read_files() -> None:
    """Reports each file that an earlier trial wrote once this one reads it, see `ReadFiles`."""
    with contextlib.suppress(OSError, ValueError), open(os.environ[READ_AGAIN], "rb") as file:
        sys.addaudithook(ReadFiles(json.load(file)).on_event)
