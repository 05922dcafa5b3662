"""What a script's Dataset is, as one value, and that in words."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from vitprof import formats
from vitprof.recording.recording import WatchedLoader

DTYPE_BYTES = {
    "uint8": 1,
    "int8": 1,
    "uint16": 2,
    "int16": 2,
    "int32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
}
NETWORK = (
    "nfs",
    "cifs",
    "smb",
    "ceph",
    "lustre",
    "gpfs",
    "beegfs",
    "9p",
    "fuse.",
    "afs",
    "glusterfs",
    "ocfs",
    "pvfs",
)
"""Beginnings of the names of file systems whose files may be on another machine."""
QUICKER = 5.0
"""A sample that is read again so many times as fast was kept."""
HELD_NAMED = 3
"""Files open all the time that are named."""


@dataclass(frozen=True)
class LeafFacts:
    """A place in the samples: what is there."""

    path: str
    """How to get it from a sample, in Python; "" where it is the sample."""
    kinds: tuple[str, ...]
    """"tensor", "array", "PIL image", else the names of its types."""
    dtypes: tuple[str, ...]
    """Of tensors and arrays, and the mode of an image."""
    least_shape: tuple[int, ...] | None
    """Least size of each dimension; null where samples differ in their number."""
    largest_shape: tuple[int, ...] | None
    """Largest size of each dimension; null where samples differ in their number."""
    bytes: float
    """Mean of the samples."""
    narrow: str
    """The narrowest integer type that all its values were made of, or fit in; "" where that is no
    narrower."""

    @property
    def times_narrow(self) -> float:
        """Returns how many times the bytes that its values need it takes; 1 where no narrower type
        is known.
        """
        widths = [DTYPE_BYTES.get(name, 8) for name in self.dtypes]
        if not self.narrow or not widths:
            return 1.0
        return max(widths) / DTYPE_BYTES[self.narrow]


@dataclass(frozen=True)
class StoragePoint:
    """Where the transforms of a dataset begin to be random: what is before could be stored once."""

    names: tuple[str, ...]
    """The transforms in turn."""
    same: int
    """How many of them, from the first one, make the same each time."""
    value: LeafFacts
    """What there is after these."""

    @property
    def first_random(self) -> str:
        """Returns the name of the first transform that is random; "" where none is."""
        if self.same >= len(self.names):
            return ""
        return self.names[self.same]


@dataclass(frozen=True)
class WorkerFacts:
    """Whether a worker process can read the dataset."""

    works: bool
    """Whether it can, as far as it was tried."""
    why: str = ""
    """The error, where it does not work."""
    by_script: bool = False
    """Whether that is known from the workers of the script's own loader."""
    different: bool = False
    """Whether it read other samples than the script's process."""
    bytes: int = 0
    """Of the dataset as it is sent to a process that starts anew; at most about 256 MB are
    counted."""


@dataclass(frozen=True)
class FileFacts:
    """The files that samples were read from."""

    example: str = ""
    """One of them; empty where there are none."""
    file_system: str = ""
    """Name of its file system."""
    mount: str = ""
    """Where that is mounted."""
    n: int = 0
    """Files that were read to time them."""
    mean_bytes: float = math.nan
    """Their mean size."""
    warm_s: float = math.nan
    """Median seconds to read one from the page cache; null where none was read."""
    cold_s: float = math.nan
    """The same from the drive."""
    why_not_cold: str = ""
    """Why that is not known; empty where it is."""

    @property
    def in_network(self) -> bool:
        return self.file_system.startswith(NETWORK)


@dataclass(frozen=True)
class DatasetFacts:
    """What the dataset of a script's train loader is, by the samples that were read of it."""

    kind: str
    """Its class with the module."""
    samples: int | None
    """Its length; null where it has none."""
    by_index: bool
    """Whether any sample can be read; else one after the other."""
    leaves: tuple[LeafFacts, ...]
    """What is in a sample."""
    n_read: int
    """Samples that were read."""
    failed: tuple[str, ...]
    """The errors of the samples that could not be read."""
    sample_s: tuple[float, ...]
    """Seconds for each sample, in the script's process."""
    again_s: tuple[float, ...]
    """The same for the first of them, read once more."""
    decode_s: float
    """Median seconds in decoders that are known; 0 where none was called."""
    transforms_s: dict[str, float]
    """Median seconds of each transform in a torchvision Compose."""
    collate_s: float | None
    """Seconds to collate a batch; null where that cannot be told."""
    files_opened: float
    """Median for a sample, as Python opens them; libraries in C may open more."""
    read_bytes: float
    """Median for a sample, by system calls; -1 where not counted. Files that are mapped are read
    without."""
    files: tuple[str, ...]
    """Some of the files that were opened."""
    held_files: tuple[str, ...]
    """Files that were open or mapped all the time."""
    random: tuple[str, ...]
    """Places at which a sample that was read twice differed."""
    n_random: int
    """Samples that differed."""
    n_again: int
    """Samples that were read twice."""
    storage_point: StoragePoint | None
    """Where its transforms begin to be random; null where it has none that can be told apart."""
    handles: tuple[str, ...]
    """What the dataset holds open."""
    pickle: WorkerFacts
    """Whether workers that start anew can be sent it."""
    fork: WorkerFacts
    """Whether workers that are forked can read it."""
    loader: WatchedLoader
    """Arguments of the train loader."""
    file_facts: FileFacts = FileFacts()
    """Where its files are."""
    key: str = ""
    """The first index that its sampler gives, where that is no number; empty where it is. What one
    index gives is then a sample, also where it is a slice."""

    @property
    def sample_bytes(self) -> float:
        return sum(leaf.bytes for leaf in self.leaves)

    @property
    def is_random(self) -> bool:
        return self.n_random > 0

    def sentences(self) -> list[str]:
        """Returns the facts as lines for a terminal."""
        return [*_what(self), *_times(self), *_files(self), *_random(self), *_workers(self)]


def _what(facts: DatasetFacts) -> Iterator[str]:
    module, _, name = facts.kind.rpartition(".")
    n = "it does not say how many samples"
    if facts.samples is not None:
        n = formats.count(facts.samples, "sample")
    how = "read by index" if facts.by_index else "read one after the other"
    if facts.key:
        how = f"read by what its sampler gives, such as {facts.key}: that is a sample here"
    yield f"{name} ({module}): {n}, {how}"
    size = formats.size(facts.sample_bytes)
    total = _all_together(facts, facts.sample_bytes)
    yield f"A sample: {formats.count(len(facts.leaves), 'value')}, {size}{total}"
    for leaf in facts.leaves:
        yield f"  {leaf.path or 'itself'}: {_value(leaf)}"


def _all_together(facts: DatasetFacts, sample_bytes: float) -> str:
    """Returns, for the end of a line, what all samples take; "" where their number is not known."""
    if facts.samples is None:
        return ""
    return f", {formats.size(sample_bytes * facts.samples)} all together"


def _value(leaf: LeafFacts) -> str:
    shape = ""
    if leaf.dtypes != ("",) or leaf.largest_shape:
        shape = f" {_shape(leaf)}"
    size = ""
    if leaf.largest_shape or leaf.bytes > 8:  # a number takes 8, which says nothing
        size = f", {formats.size(leaf.bytes)}"
    words = " or ".join(filter(None, (" ".join(leaf.kinds), *leaf.dtypes)))
    if len(leaf.kinds) == 1:
        words = words.replace(" or ", " ", 1)  # "tensor float32 or int64"
    return f"{words}{shape}{size}{_narrow(leaf)}"


def _shape(leaf: LeafFacts) -> str:
    if leaf.largest_shape is None or leaf.least_shape is None:
        return "of any number of dimensions"
    if leaf.least_shape == leaf.largest_shape:
        return str(leaf.largest_shape)
    sizes = []
    for least, largest in zip(leaf.least_shape, leaf.largest_shape, strict=True):
        sizes.append(str(least) if least == largest else f"{least} to {largest}")
    return f"({', '.join(sizes)})"


def _narrow(leaf: LeafFacts) -> str:
    if leaf.times_narrow <= 1:
        return ""
    was = "were made of" if any("float" in name for name in leaf.dtypes) else "fit in"
    return f"; its values {was} {leaf.narrow}: {leaf.times_narrow:g} times the bytes"


def _times(facts: DatasetFacts) -> Iterator[str]:
    if facts.failed:
        yield f"{len(facts.failed)} of {len(facts.failed) + facts.n_read} samples cannot be read: {facts.failed[0]}"
    each = sorted(facts.sample_s)
    low, middle, high = (each[int(share * (len(each) - 1))] for share in (0.1, 0.5, 0.9))
    spread = f" ({formats.seconds(low)} to {formats.seconds(high)} for 80% of {facts.n_read})"
    where = "in the script's process"
    if facts.loader.get("num_workers"):
        where = "in one thread, as in a worker"
    yield f"Time for a sample {where}: {formats.seconds(middle)}{spread}"
    known = {"decoding": facts.decode_s, **facts.transforms_s}
    parts = [f"{name} {formats.seconds(spent)}" for name, spent in known.items() if spent > 0]
    rest = middle - sum(known.values())
    if parts:
        yield f"  {', '.join(parts)}, the rest {formats.seconds(max(0.0, rest))}"
    if facts.collate_s is not None:
        yield f"  collating a batch of {facts.loader.get('batch_size')}: {formats.seconds(facts.collate_s)}"
    if facts.again_s and median(facts.again_s) * QUICKER < median(facts.sample_s[: facts.n_again]):
        yield f"  read again: {formats.seconds(median(facts.again_s))}, so samples or their files are kept"


def _files(facts: DatasetFacts) -> Iterator[str]:
    files = facts.file_facts
    if facts.read_bytes < 0:
        read = "bytes read are not counted here"
    elif facts.held_files and not facts.read_bytes:
        read = "nothing read by system calls, but from a buffer or a mapping"
    else:
        read = f"{formats.size(facts.read_bytes)} read"
    if not facts.files and not facts.held_files:
        words = "none: samples are in memory or made"
        if facts.read_bytes > 0:
            words = f"{read}, from no file that is seen"
        yield f"Files for a sample: {words}"
        return
    opened = f"{facts.files_opened:g} opened, " if facts.files else ""
    place = "in a network" if files.in_network else "local"
    yield f"Files for a sample: {opened}{read}; {files.file_system} on {files.mount}, {place}"
    if facts.held_files:
        named = ", ".join(facts.held_files[:HELD_NAMED])
        if len(facts.held_files) > HELD_NAMED:
            named += " ..."
        yield f"  open or mapped all the time: {named}"
    if files.n:
        cold = files.why_not_cold
        if math.isfinite(files.cold_s):
            cold = f"{formats.seconds(files.cold_s)} from the drive"
        about = f"{formats.count(files.n, 'file')} of {formats.size(files.mean_bytes)}"
        yield f"  reading one ({about}): {formats.seconds(files.warm_s)} from memory, {cold}"


def _random(facts: DatasetFacts) -> Iterator[str]:
    if not facts.n_again:
        yield "Random: not known, no sample could be read twice"
        return
    if facts.is_random:
        places = ", ".join(path or "all" for path in facts.random)
        yield f"Random: yes, {facts.n_random} of {facts.n_again} samples that were read twice differ, at {places}"
    else:
        were = "was" if facts.n_again == 1 else "were"
        again = formats.count(facts.n_again, "sample")
        yield f"Random: no, {again} that {were} read twice {were} the same"
    point = facts.storage_point
    if point is not None and point.first_random:
        total = _all_together(facts, point.value.bytes)
        yield f"  the same each time before {point.first_random}: {_value(point.value)}{total}"


def _workers(facts: DatasetFacts) -> Iterator[str]:
    fork = "yes, the script's own" if facts.fork.by_script else "yes"
    if facts.fork.different and not facts.is_random:
        fork = "no, it read other samples than the script's process"
    if not facts.fork.works:
        fork = f"no: {facts.fork.why}"
    sent = f"no: {facts.pickle.why}"
    if facts.pickle.works:
        sent = f"yes, {formats.size(facts.pickle.bytes)} are sent"
    yield f"Workers: by fork {fork}; by spawn or forkserver {sent}"
    if facts.handles:
        held = ", ".join(facts.handles)
        yield f"  it holds open {held}: workers that are forked later share that"
