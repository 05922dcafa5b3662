"""The strategies: named combinations of parts (`vitprof.config.parts`), which `vitprof.engine` puts together."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vitprof import choices
from vitprof.config import KNOBS, PARTS, plugins
from vitprof.config.parts import DECODERS, LOADERS, STORAGES, TRANSFERS, WORKERS, Combination
from vitprof.datasets import catalog

BY_KIND = {
    "source": {"idx": "idx", "jpeg": "imagefolder"},
    "lmdb": {"idx": "lmdb", "jpeg": "lmdb-encoded"},
}
"""What a strategy's storage stands for, by `DatasetInfo.kind`: "source" are the data set's own files, read
as in tutorials; "lmdb" keeps pixels of small images and encoded files of large ones."""

AMIDI = "Amidi's tutorial 'How to generate your data in parallel with PyTorch'"


@dataclass(frozen=True)
class Strategy:
    """A way of bringing samples from storage to the device."""

    name: str
    """Its name, for `run --strategy`."""
    title: str
    """Its title."""
    what: str
    """What it does, in two sentences."""
    when: str
    """When it helps."""
    costs: str
    """What it costs: RAM, disk, preparation."""
    origin: str
    """Where a reader may have met it, in one sentence: the tutorial, library or habit that it comes from."""
    storage: str = "files"
    """A name in `vitprof.config.parts.STORAGES`, or "source": the data set's own files, read as in tutorials."""
    loader: str = "dataloader"
    """A name in `vitprof.config.parts.LOADERS`: what builds batches."""
    transfer: str = "pinned"
    """A name in `vitprof.config.parts.TRANSFERS`: how a batch reaches the device."""
    location: str = "disk"
    """A name in `vitprof.config.parts.LOCATIONS`: where the storage is kept."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of settings that differ from those of its parts (names in `KNOBS`)."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Settings that belong to the strategy: they are not offered, and other values are refused."""

    def combination(
        self, info: catalog.DatasetInfo, overrides: Mapping[str, str | None] | None = None
    ) -> Combination:
        """Returns its parts for the data set `info`; `overrides` (by the names in `PARTS`) replace some of
        them.

        Raises `ConfigError` for a part that does not exist.
        """
        parts = {
            "storage": BY_KIND.get(self.storage, {}).get(info.kind, self.storage),
            "location": self.location,
            "loader": self.loader,
            "transfer": self.transfer,
        }
        for kind, name in (overrides or {}).items():
            if kind in PARTS and name is not None:
                parts[kind] = name
        return Combination(**parts)

    def knobs(self, parts: Combination, info: catalog.DatasetInfo) -> dict[str, Any]:
        """Returns the settings it takes with these parts (names in `KNOBS`), with their defaults."""
        accepted = parts.knobs()
        if "decoder" in accepted:
            accepted["decoder"] = DECODERS[info.kind][0]
        accepted |= {name: value for name, value in self.defaults.items() if name in accepted}
        # "No workers" is about the DataLoader; another loader in its place has threads.
        held = [
            name for name in self.fixed if parts.loader == self.loader or name not in NO_WORKERS
        ]
        return {name: accepted[name] for name in KNOBS if name in accepted and name not in held}


NO_WORKERS: dict[str, Any] = {
    **WORKERS,
    "workers": 0,
    "prefetch_factor": None,
    "pin_memory": False,
    "persistent_workers": False,
}
"""Settings of a DataLoader without workers."""

STRATEGIES = choices.by_name(
    Strategy(
        name="per-sample",
        title="Sample by sample",
        what="torchvision's Dataset with its usual transforms and a DataLoader without workers. Each sample is read, "
        "converted and transformed on its own, in the training loop.",
        when="The baseline that tutorials start with. The device waits while every batch is put together.",
        costs="Nothing to prepare. One core's time for every sample, during which training waits.",
        origin="The Dataset and DataLoader of most PyTorch tutorials, without workers",
        storage="source",
        transfer="blocking",
        fixed=NO_WORKERS,
    ),
    Strategy(
        name="workers",
        title="DataLoader workers",
        what="The Dataset and transforms of 'per-sample'; worker processes make batches ahead of time. Batches are in "
        "page-locked memory if there is a GPU.",
        when="Hides loading behind compute as long as the workers together are faster than the device.",
        costs="A CPU core and some 0.5 GB of RAM for each worker, shared memory for the batches kept ready, and a "
        "slower first batch.",
        origin="PyTorch's DataLoader with num_workers, as its documentation describes it",
        storage="source",
    ),
    Strategy(
        name="tensordataset",
        title="TensorDataset",
        what="The whole set as one float tensor in a TensorDataset, with a DataLoader without workers. No decoding, "
        "but samples are still indexed and collated one by one.",
        when="The usual form of 'whole set in memory', for sets that fit with 4 bytes for each pixel value.",
        costs="RAM: 4 bytes for each pixel value. Loading the set once.",
        origin="PyTorch's own class for a set in memory, torch.utils.data.TensorDataset",
        storage="memory-float",
        transfer="blocking",
        fixed=NO_WORKERS,
    ),
    Strategy(
        name="memory",
        title="In memory, whole batches",
        what="The whole set as one uint8 tensor in RAM. Each batch is one index_select, normalised on the device.",
        when="The fastest loading from RAM for a set that fits: no work for each sample.",
        costs="RAM: one byte for each pixel value. Photos are cropped and decoded once beforehand.",
        origin="TensorDataset taken further: a batch is indexed at once, not sample by sample",
        storage="memory",
        loader="batches",
    ),
    Strategy(
        name="memory-ahead",
        title="In memory, one batch ahead",
        what="As 'memory', but a thread gathers the next batch while the current one trains. The loop only takes what "
        "is ready.",
        when="Batches so large that gathering them takes a noticeable part of a step.",
        costs="RAM as 'memory', and up to 1.4 times its CPU time for handing batches over.",
        origin="The prefetcher of NVIDIA Apex's ImageNet example, with a thread on the CPU in place of a CUDA stream",
        storage="memory",
        loader="ahead",
    ),
    Strategy(
        name="device",
        title="Resident on the device",
        what="The whole set as one uint8 tensor in the device's memory. Batches are selected there.",
        when="No transfer at all: for sets that fit next to model and activations. On the CPU the same as 'memory'.",
        costs="Device memory: one byte for each pixel value.",
        origin="The habit of moving a small set to the GPU as a whole before training",
        storage="memory",
        loader="batches",
        transfer="resident",
    ),
    Strategy(
        name="preprocessed",
        title="Preprocessed, memory-mapped",
        what="Decoding, resizing and cropping are done once and kept as uint8 in one memory-mapped file. A batch is "
        "one gather of its rows; random augmentation moves to the device.",
        when="Decoding is the bottleneck and the disk has room. The system's page cache keeps what fits in RAM.",
        costs="Disk: one byte for each pixel value (photos: 0.15 MB each, more than their JPEG files), and time to "
        "prepare it once. Random crops are taken from the stored size.",
        origin="The usual advice for slow decoding: do once, before training, what is the same in every epoch",
        storage="memmap",
        loader="ahead",
    ),
    Strategy(
        name="cache",
        title="Partial cache",
        what="A fixed random part of the set is kept in memory, as much as a budget allows. The rest is read from disk "
        "each time.",
        when="Sets larger than RAM on a disk that is slower than memory. The hit rate limits the gain.",
        costs="RAM: the budget. The share of the set that fits is the hit rate.",
        origin="The usual advice for a set larger than RAM: keep a part of it in memory",
        storage="raw-files",
        loader="ahead",
        defaults={"cache_mb": 32.0},
    ),
    Strategy(
        name="threads",
        title="Decoding threads",
        what="A pool of threads reads, decodes and crops outside Python's lock, each image straight into its batch. No "
        "processes, no copies between them, uint8 until the device.",
        when="JPEG or PNG files that must stay files: about twice as fast for each core as PIL in processes.",
        costs="CPU cores, and memory for each batch kept ready. Image files of digits are prepared once.",
        origin="The workers of a DataLoader, as threads in place of processes",
        loader="threads",
    ),
    Strategy(
        name="prefetch",
        title="CUDA-stream prefetcher",
        what="Worker processes decode to uint8; a CUDA stream of its own copies and normalises the next batch while "
        "the current one trains. The training stream only waits for what it needs.",
        when="The copy to the GPU or normalisation on the CPU shows in the step.",
        costs="Device memory for the batches in flight. It does not help a loader that is too slow itself.",
        origin="The prefetcher of NVIDIA Apex's ImageNet example",
        transfer="stream",
    ),
    Strategy(
        name="ram-disk",
        title="RAM disk",
        what="The image files are copied to a tmpfs before training and read from there. Decoding stays what it was.",
        when="Files on a drive that is slow even when warm (network mounts). Over a warm page cache it gains nothing: "
        "1.04 times was measured.",
        costs="RAM: the size of the files. The time to copy them, which is counted and shown separately.",
        origin="The usual advice for a slow drive: copy the files to a disk in RAM first",
        location="ram-disk",
    ),
    Strategy(
        name="dali",
        title="NVIDIA DALI",
        what="A DALI pipeline decodes, crops and flips, with threads on the CPU or, with a GPU, on the GPU. Batches "
        "arrive as uint8.",
        when="Decoding is the bottleneck and the GPU has time left for it.",
        costs="A package of 0.5 GB; GPU memory and time if it decodes there.",
        origin="DALI, NVIDIA's library for loading and decoding",
        loader="dali",
        transfer="blocking",
    ),
    Strategy(
        name="pt",
        title="One .pt file for each sample",
        what="Samples with string IDs: data/<id>.pt, a partition into training and validation, and labels. A Dataset "
        "loads one file for each sample, in worker processes.",
        when="Samples that are costly to make and small. Unpickling a tensor costs more than reading its bytes.",
        costs="Disk: a file for each sample, at least 4 KB each. The time to write them once.",
        origin=f"{AMIDI}, whose Dataset reads one file for each sample",
        storage="pt",
    ),
    Strategy(
        name="pt-whole",
        title="One .pt file, loaded whole",
        what="All images in one .pt file, read into memory at the start. Batches are slices of it in stored order.",
        when="Small sets whose order does not matter.",
        costs="RAM for the whole set, and the time to read it at every start. No shuffling.",
        origin=f"The first of the two slow forms that begin {AMIDI}",
        storage="pt-whole",
        loader="batches",
        transfer="blocking",
    ),
    Strategy(
        name="pt-mmap",
        title="One .pt file, memory-mapped",
        what="All images in one .pt file that is opened with mmap=True: nothing is read at the start. Pages come in as "
        "batches touch them.",
        when="As 'preprocessed', for data that is kept as .pt.",
        costs="Disk: one byte for each pixel value, written once.",
        origin="The file of 'pt-whole', read with torch.load(mmap=True)",
        storage="pt-single",
        loader="ahead",
    ),
    Strategy(
        name="generator",
        title="Single-core generator",
        what="A Python generator reads, decodes and stacks sample after sample and yields a batch when it is full. It "
        "runs in the training loop, on one core.",
        when="Never the fastest: loading in parallel replaces it.",
        costs="One core's time for every sample, during which training waits.",
        origin=f"The second of the two slow forms that begin {AMIDI}",
        loader="generator",
        transfer="blocking",
    ),
    Strategy(
        name="slow-drive",
        title="Slow drive (throttled)",
        what="DataLoader workers read image files from a drive that is throttled to the bandwidth and latency of a "
        "network drive or a mechanical disk. Its runs are marked 'throttled' everywhere.",
        when="To see how training from a mounted drive affects the device, before trying it for an hour.",
        costs="Time: hours, at a network drive's 0.2 s for each file. Image files of digits are prepared once.",
        origin="Notebooks and clusters that train straight from a mounted network drive",
        location="slow-drive",
    ),
    Strategy(
        name="staged",
        title="Staged from the slow drive (throttled)",
        what="The files are copied from the slow drive to the local disk first, in large blocks, and read from there. "
        "The time for copying is counted and shown separately.",
        when="Several epochs over files on a network drive, and room on the local disk.",
        costs="Local disk: the size of the files. The time to copy them once for each run.",
        origin="The usual advice for a network drive: copy the files to the local disk first",
        location="staged",
    ),
    Strategy(
        name="hdf5",
        title="HDF5",
        what="All images in one HDF5 file in one piece, opened by each process on its own. A batch is one gather "
        "through the file's mapping.",
        when="One file instead of many, for tools that use HDF5. As fast as a memory-mapped array.",
        costs="Disk: one byte for each pixel value, written once.",
        origin="Data sets that are kept as one HDF5 file, read with h5py",
        storage="hdf5",
    ),
    Strategy(
        name="hdf5-chunked",
        title="HDF5 in chunks, block shuffle",
        what="All images in one HDF5 file in chunks. Blocks of neighbours are shuffled rather than samples, so that "
        "each chunk is read once.",
        when="Chunked or compressed files that others made. Reading a random row costs a whole chunk.",
        costs="Disk: one byte for each pixel value, written once. A coarser shuffle.",
        origin="Data sets that others made as HDF5 in chunks, in an order that suits chunks",
        storage="hdf5-chunked",
        loader="ahead",
    ),
    Strategy(
        name="lmdb",
        title="LMDB",
        what="A memory-mapped key-value store with an entry for each sample, opened once in each process without "
        "locks. Pixels of small images, the encoded files of photos.",
        when="Millions of small files on a drive where opening a file is slow.",
        costs="Disk: the size of the samples and some 10% more, written once.",
        origin="LMDB, a key-value store in one file, a common form for many small files",
        storage="lmdb",
    ),
)


def strategy(name: str) -> Strategy:
    return choices.chosen(STRATEGIES, "strategy", name)


PLUGGED = plugins.added(
    {"storages": STORAGES, "loaders": LOADERS, "transfers": TRANSFERS}, STRATEGIES
)
"""The parts of other packages."""
