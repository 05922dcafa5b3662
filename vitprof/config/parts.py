"""The parts that strategies are made of: storages, locations, loaders and transfers, and which of them fit
together.

The code of each part is in the package of its kind in `vitprof.engine`, under the same name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vitprof import choices
from vitprof.config import PARTS
from vitprof.datasets import catalog
from vitprof.errors import ConfigError
from vitprof.forms import FORMS

Form = Literal["samples", "pixels", "encoded"]
"""What a storage delivers: finished samples one by one (a torch Dataset with transforms, as in tutorials),
uint8 pixels of one size in whole batches, or encoded images (JPEG, PNG) that have to be decoded and
cropped."""
Access = Literal["memory", "mapping", "file", "file for each sample"]
"""How a sample is reached: in memory; through a mapping, whose pages count as the job's memory once
touched; read from one file for all, or from a file of its own."""
Concurrency = Literal["loop", "thread", "threads", "processes"]
"""Where batches are made: while the training loop waits for them, or ahead of it by one thread, by several,
or by worker processes."""


@dataclass(frozen=True)
class Part:
    """One part of a strategy."""

    name: str
    title: str
    knobs: Mapping[str, Any] = field(default_factory=dict)
    """The settings it takes (names in `vitprof.config.KNOBS`), with their defaults."""
    packages: tuple[str, ...] = ()
    """Packages that it needs and a program that only watches does not."""


BLOCK = 4096
"""Least bytes of disk that a file takes on most file systems; also the size of a page of an LMDB database."""
JPEG_BYTES = 105_000
"""Mean bytes of a photo at JPEG quality 90 (`vitprof.config.catalog`)."""
PNG_BYTES = 350
"""Bytes of a digit as PNG, so that it always takes one block."""


def blocks(n_bytes: int) -> int:
    """Returns the bytes of disk that a file of `n_bytes` takes: whole blocks."""
    n_blocks = (n_bytes + BLOCK - 1) // BLOCK
    return n_blocks * BLOCK


@dataclass(frozen=True)
class StoragePart(Part):
    """The format that samples are stored in."""

    form: Form = "pixels"
    kinds: tuple[str, ...] = ("idx", "jpeg")
    access: Access = "file"
    transforms: bool = False
    """Whether its samples come through torchvision's transforms, which may augment them."""
    read_from: Mapping[str, str | None] = field(default_factory=dict)
    """Kind of data set -> the storage that it is read from, where that is another one; None: the data
    set's own files."""
    sample_bytes: Callable[[int], int] = lambda pixels: pixels
    """Bytes of an image's pixels -> about how many bytes of disk it takes. Of form "encoded" the files'
    own count."""
    prepare_s: Mapping[str, float] = field(default_factory=lambda: {"jpeg": 1.8e-3})
    """Kind of data set -> seconds to store one image: medians on two cores. Others take less than 5
    us."""
    ram_bytes: int = 0
    """Bytes of RAM for each pixel value of the set."""
    in_form: str = ""
    """The form of `vitprof.forms` that keeps a value for each image; "": the storage is written and
    read in a way of its own."""

    @property
    def on_disk(self) -> bool:
        """Returns whether batches are read from files, so that their location matters."""
        return self.access != "memory"


ENCODED_KNOBS: dict[str, Any] = {"decoder": None}
"""Settings of storages of encoded images. The default decoder depends on the kind of data set: `DECODERS`."""
DECODERS: dict[str, tuple[str, ...]] = {
    "jpeg": ("simplejpeg", "opencv", "pil", "torchvision", "torchcodec"),
    "idx": ("opencv", "pil", "torchvision", "torchcodec"),
}
"""Kind of data set -> decoders for its image files (PNG for "idx"); the first is the default and the fastest."""
DEPRECATED_DECODERS: dict[str, str] = {"torchvision": "deprecated since 0.29"}
"""Decoders that are kept for existing runs -> what is wrong with them. None is the first in `DECODERS`."""

OF_EACH: Access = "file for each sample"
BY_SAMPLE: dict[str, Any] = {"form": "samples", "transforms": True}
ENCODED: dict[str, Any] = {"form": "encoded", "knobs": ENCODED_KNOBS}
ENCODED_JPEG = ENCODED | {"kinds": ("jpeg",), "prepare_s": {}}
IN_MEMORY: dict[str, Any] = {"access": "memory", "read_from": {"idx": None, "jpeg": "memmap"}}
"""What several storages have in common."""
STORAGES = choices.by_name(
    # torchvision's MNIST with ToTensor and Normalize. It reads the whole file into memory when it is opened; each
    # sample becomes a PIL image and a tensor.
    StoragePart(
        "idx",
        "MNIST's IDX files",
        kinds=("idx",),
        access="memory",
        read_from={"idx": None},
        ram_bytes=1,
        **BY_SAMPLE,
    ),
    # torchvision's ImageFolder with PIL, RandomResizedCrop, flip, ToTensor and Normalize.
    StoragePart(
        "imagefolder",
        "Image folder, sample by sample",
        kinds=("jpeg",),
        access=OF_EACH,
        read_from={"jpeg": None},
        **BY_SAMPLE,
    ),
    # One PNG (digits) or JPEG (photos) file for each sample, decoded to uint8.
    StoragePart(
        "files",
        "Image files",
        access=OF_EACH,
        read_from={"jpeg": None},
        prepare_s={"idx": 0.2e-3},
        **ENCODED,
    ),
    # One file with the bare uint8 pixels of each sample, read straight into the batch.
    StoragePart(
        "raw-files",
        "Raw files",
        access=OF_EACH,
        sample_bytes=blocks,
        prepare_s={"idx": 0.06e-3, "jpeg": 1.8e-3},
    ),
    # data/<id>.pt with string IDs, with a partition and labels; torch.load(weights_only=True) for each.
    StoragePart(
        "pt",
        "One .pt file for each sample",
        access=OF_EACH,
        # torch.save writes a zip archive around a tensor
        sample_bytes=lambda pixels: blocks(pixels + 1_500),
        prepare_s={"idx": 0.26e-3, "jpeg": 7e-3},
    ),
    # All images in one .pt file, mapped into memory (mmap=True); pages come in as they are touched.
    StoragePart("pt-single", "One .pt file", access="mapping"),
    # All images in one .pt file, read into memory before training and sliced batch by batch.
    StoragePart(
        "pt-whole",
        "One .pt file loaded whole",
        knobs={"shuffle": "none"},
        **IN_MEMORY | {"read_from": dict.fromkeys(("idx", "jpeg"), "pt-single"), "ram_bytes": 1},
    ),
    # X_train, Y_train, X_test, Y_test in one HDF5 file, uint8, stored in one piece; opened by each process on its own.
    StoragePart("hdf5", "HDF5, contiguous", access="mapping", packages=("h5py",)),
    # The same in chunks; read chunk by chunk in shuffled blocks, since a random row costs a whole chunk.
    StoragePart("hdf5-chunked", "HDF5, chunked", knobs={"shuffle": "block"}, packages=("h5py",)),
    # The encoded files one after another in one HDF5 data set, with their offsets.
    StoragePart(
        "hdf5-encoded",
        "HDF5 with JPEG bytes",
        packages=("h5py",),
        in_form="hdf5",
        **ENCODED_JPEG,
    ),
    # A memory-mapped B+ tree with a key for each sample; raw pixels (digits) read in whole batches.
    StoragePart(
        "lmdb",
        "LMDB",
        kinds=("idx",),
        access="mapping",
        # The leaves of a B+ tree filled in order hold as many entries as fit a page.
        sample_bytes=lambda pixels: BLOCK // max(1, BLOCK // (pixels + 32)),
        packages=("lmdb",),
        in_form="lmdb",
    ),
    # A memory-mapped B+ tree with the encoded file of each sample under its key.
    StoragePart(
        "lmdb-encoded",
        "LMDB with JPEG bytes",
        access="mapping",
        packages=("lmdb",),
        in_form="lmdb",
        **ENCODED_JPEG,
    ),
    # WebDataset's tar shards, read by position, so that all samples are shuffled.
    StoragePart("webdataset", "WebDataset tar shards", in_form="webdataset", **ENCODED_JPEG),
    # All images as one uint8 array in a .npy file, mapped into memory; a batch is one gather of its rows.
    StoragePart("memmap", "Memory-mapped array (.npy)", access="mapping"),
    # The whole set as one uint8 tensor in RAM.
    StoragePart("memory", "Array in memory", ram_bytes=1, **IN_MEMORY),
    # The whole set as one float32 tensor in RAM, in a TensorDataset.
    StoragePart("memory-float", "Float tensor in memory", form="samples", ram_bytes=4, **IN_MEMORY),
)


STORAGES |= {
    name: StoragePart(name, form.title, packages=(form.package,), in_form=name, **ENCODED_JPEG)
    for name, form in FORMS.items()
    if form.job
}


def prepared_as(storage: str, kind: str) -> str | None:
    """Returns the storage on disk that `storage` is read from, for that kind of data set; None: the set's
    own files.
    """
    return STORAGES[storage].read_from.get(kind, storage)


SLOW_KNOBS: dict[str, Any] = {
    "slow_drive": "network-drive",
    "slow_mb_s": None,
    "slow_latency_ms": None,
}

LOCATIONS = choices.by_name(
    # The file system that VITPROF_HOME is on.
    Part("disk", "Disk"),
    # Copied to a tmpfs before training; removed afterwards.
    Part("ram-disk", "RAM disk"),
    # Reads are throttled to the bandwidth of a slow drive, and opening a file costs its latency.
    Part("slow-drive", "Slow drive (throttled)", knobs=SLOW_KNOBS),
    # Copied from the slow drive to the local disk first, in large blocks; the time for copying is counted.
    Part("staged", "Staged from the slow drive (throttled)", knobs=SLOW_KNOBS),
)


THROTTLED = tuple(name for name, location in LOCATIONS.items() if location.knobs)
"""Locations that read from the imitated slow drive; they are labelled wherever they appear."""


@dataclass(frozen=True)
class LoaderPart(Part):
    """What builds batches."""

    forms: tuple[Form, ...] = ("samples", "pixels", "encoded")
    kinds: tuple[str, ...] = ("idx", "jpeg")
    made_by: Concurrency = "loop"
    decodes: bool = False
    """Whether it decodes whole batches by itself, on the GPU if there is one, so that it takes no decoder."""

    @property
    def worker(self) -> str:
        """Returns what one of its `workers` is called: a worker is a process, a thread is not."""
        return "thread" if self.made_by == "threads" else "worker"


THREADS = {"workers": 2, "prefetch_factor": 2}
DECODING: dict[str, Any] = {"forms": ("encoded",), "knobs": THREADS, "made_by": "threads"}
WORKERS = {**THREADS, "pin_memory": True, "persistent_workers": True, "start_method": None}

LOADERS = choices.by_name(
    # torch.utils.data.DataLoader, in the loop or with worker processes.
    LoaderPart("dataloader", "PyTorch DataLoader", knobs=WORKERS, made_by="processes"),
    # Each batch is one read of the storage, in the training loop.
    LoaderPart("batches", "Whole batches in the loop", forms=("pixels",)),
    # A thread reads the next batch while the current one trains.
    LoaderPart(
        "ahead",
        "Whole batches, one ahead",
        forms=("pixels",),
        knobs={"prefetch_factor": 1},
        made_by="thread",
    ),
    # A pool of threads reads, decodes and crops outside the GIL, each image straight into its batch.
    LoaderPart("threads", "Decoding threads", **DECODING),
    # A Python generator that makes one sample after another and yields a batch when it is full.
    LoaderPart("generator", "Single-core generator"),
    # A DALI pipeline decodes, crops and flips; on the GPU where there is one.
    LoaderPart(
        "dali",
        "NVIDIA DALI",
        kinds=("jpeg",),
        decodes=True,
        packages=("nvidia-dali-cuda130",),
        **DECODING,
    ),
)

TRANSFERS = choices.by_name(
    # .to(device): the loop waits until the copy is done.
    Part("blocking", "Blocking copy"),
    # Batches are in page-locked memory, which is reused; the copy is queued and the loop goes on.
    Part("pinned", "Pinned, non-blocking"),
    # Copy and normalisation run in a CUDA stream of their own while the previous batch trains.
    Part("stream", "Prefetch stream"),
    # The storage is on the device; there is nothing to copy.
    Part("resident", "Resident"),
)

PARTS_BY_KIND: dict[str, Mapping[str, Part]] = dict(
    zip(PARTS, (STORAGES, LOCATIONS, LOADERS, TRANSFERS), strict=True)
)
"""Field of `RunConfig` that chooses a part -> the parts of that kind by name."""


@dataclass(frozen=True)
class Combination:
    """A storage, a location, a loader and a transfer, by name. `why_not` checks whether they fit together.

    Raises `ConfigError` for a name that does not exist.
    """

    storage: str
    location: str
    loader: str
    transfer: str

    def __post_init__(self) -> None:
        for kind, known in PARTS_BY_KIND.items():
            choices.chosen(known, kind, getattr(self, kind))

    @property
    def parts(self) -> tuple[StoragePart, Part, LoaderPart, Part]:
        return (
            STORAGES[self.storage],
            LOCATIONS[self.location],
            LOADERS[self.loader],
            TRANSFERS[self.transfer],
        )

    def knobs(self) -> dict[str, Any]:
        """Returns the settings that the four parts take together, with their defaults."""
        knobs: dict[str, Any] = {}
        for part in self.parts:
            knobs |= part.knobs
        storage, _, loader, _ = self.parts
        if loader.decodes:
            knobs.pop("decoder", None)
        if storage.form != "samples" and not loader.decodes:
            knobs.setdefault("shuffle", "full")
            if storage.on_disk:
                knobs["cache_mb"] = None
        return knobs


def why_not(info: catalog.DatasetInfo, parts: Combination) -> ConfigError | None:
    """Returns why `parts` cannot load the data set `info`; None if they can."""
    storage, location, loader, transfer = parts.parts
    if info.kind not in storage.kinds:
        fitting = [each.name for each in STORAGES.values() if info.kind in each.kinds]
        allowed = f"it cannot keep {info.name}; choose one of {', '.join(fitting)}"
        return ConfigError("storage", storage.name, allowed)
    if info.kind not in loader.kinds or storage.form not in loader.forms:
        of_kind = [each for each in LOADERS.values() if info.kind in each.kinds]
        fitting = [each.name for each in of_kind if storage.form in each.forms]
        allowed = f"it cannot read storage {storage.name}; choose one of {', '.join(fitting)}"
        return ConfigError("loader", loader.name, allowed)
    if location.name != "disk" and not storage.on_disk:
        in_memory = f"storage {storage.name} is in memory while training; leave it"
        return ConfigError("location", location.name, in_memory)
    if transfer.name == "resident" and (storage.name, loader.name) != ("memory", "batches"):
        return ConfigError("transfer", transfer.name, "it needs storage memory and loader batches")
    return None
