"""The rows of the table: what is measured against what, and the gate of each (issue "every loading strategy")."""

from contextlib import ExitStack
from typing import Any

from benchmarks import references
from benchmarks.loader_sides import SMALL_FILE, in_the_loop, opened, staging, with_threads
from benchmarks.measuring import Case, Rates, Settings, Side
from vitprof.datasets import on_disk
from vitprof.datasets.catalog import DatasetInfo, dataset_info

PHOTO_BATCH = 64
PHOTO_THREADS = 2
HIT = 0.5
"""Share of the data set that the partial cache holds."""
ONE_WRITER = 1.1
"""Writes to one file wait for each other, so a copy of a file cannot be faster than writing it; 0.1 is for noise."""
TWO_SOURCES = "a batch comes from two arrays, and torch gathers from one: its rows are moved twice"


def digits(settings: Settings) -> tuple[DatasetInfo, int]:
    """Returns the data set, and the batch size of the loaders over it."""
    info = dataset_info("digits")
    return info, min(settings.batch_size, info.n_train)


def whole_batches(things: ExitStack, settings: Settings, **config: Any) -> Side:
    """Returns the side that loads digits in whole batches, in the loop, through the ring of buffers: the strategy
    "memory" with the parts in `config`.
    """
    _, batch_size = digits(settings)
    return in_the_loop(
        opened(things, **({"strategy": "memory", "batch_size": batch_size} | config))
    )


def against_gather(name: str, title: str, at_least: float, **config: Any) -> Case:
    """Returns the case of whole batches against R."""

    def sides(things: ExitStack, settings: Settings) -> dict[str, Side]:
        r = references.gather(on_disk.prepare("digits"), digits(settings)[1])
        return {name: whole_batches(things, settings, **config), "R": r}

    return Case(name, title, sides, lambda rates: rates[name] / rates["R"], at_least)


def dataloader_against_tensors(things: ExitStack, settings: Settings) -> dict[str, Side]:
    return {
        "dataloader": whole_batches(things, settings, loader="dataloader", workers=0),
        "tensordataset": whole_batches(things, settings, strategy="tensordataset"),
    }


def raw_files(things: ExitStack, settings: Settings) -> dict[str, Side]:
    info, batch_size = digits(settings)
    pipeline = opened(things, strategy="memory", storage="raw-files", batch_size=batch_size)
    root = pipeline.root
    return {
        "raw-files": in_the_loop(pipeline),
        "bare": references.bare_files(info, root, batch_size),
    }


def raw_files_in_c(things: ExitStack, settings: Settings) -> dict[str, Side]:
    info, batch_size = digits(settings)
    pipeline = opened(things, strategy="memory", storage="raw-files", batch_size=batch_size)
    root = pipeline.root
    return {
        "raw-files": in_the_loop(pipeline),
        "bare": references.files_in_c(info, root, batch_size),
    }


def per_sample(things: ExitStack, settings: Settings) -> dict[str, Side]:
    info, batch_size = digits(settings)
    plain = references.plain_mnist(info, on_disk.prepare("digits"), batch_size)
    return {"per-sample": whole_batches(things, settings, strategy="per-sample"), "plain": plain}


def tensordataset(things: ExitStack, settings: Settings) -> dict[str, Side]:
    plain = references.plain_tensors(on_disk.prepare("digits"), digits(settings)[1])
    return {
        "tensordataset": whole_batches(things, settings, strategy="tensordataset"),
        "plain": plain,
    }


def photos(things: ExitStack, settings: Settings) -> dict[str, Side]:
    n = settings.photos
    parts: dict[str, Any] = {
        "strategy": "threads",
        "dataset": "photos",
        "n_images": n,
        "batch_size": min(PHOTO_BATCH, n),
    }
    pipeline = opened(things, workers=PHOTO_THREADS, **parts)
    j = references.decoding(dataset_info("photos", n), on_disk.prepare("photos", n))
    return {"threads": with_threads(pipeline, whole_epochs=True), "J": j}


def staging_case(
    name: str, title: str, file_bytes: int | None, believable: float | None = None
) -> Case:
    """Returns the case of copying files, against the slower of reading and writing them."""

    def sides(things: ExitStack, settings: Settings) -> dict[str, Side]:
        n_bytes = settings.staged_mb * 10**6
        if file_bytes:  # creating files takes most of the time
            return staging(things, n_bytes // 4, file_bytes)
        return staging(things, n_bytes, n_bytes)

    def ratio(rates: Rates) -> float:
        return rates["copied"] / min(rates["read"], rates["written"])

    return Case(name, title, sides, ratio, 0.9, clock="wall", units="bytes", believable=believable)


def cache_case(storage: str, why: str = "") -> Case:
    """Returns the case of a partial cache over a storage, against the speed that its two parts allow."""

    def sides(things: ExitStack, settings: Settings) -> dict[str, Side]:
        info, _ = digits(settings)
        cache_mb = HIT * info.n_train * info.image_size**2 * info.channels / 1e6
        return {
            "cached": whole_batches(things, settings, storage=storage, cache_mb=cache_mb),
            "memory": whole_batches(things, settings),
            storage: whole_batches(things, settings, storage=storage),
        }

    def ratio(rates: Rates) -> float:
        return rates["cached"] * (HIT / rates["memory"] + (1 - HIT) / rates[storage])

    return Case(
        f"cache-{storage}",
        f"partial cache, half of the set, over {storage}",
        sides,
        ratio,
        0.9,
        why=why,
    )


def ahead_case(storage: str) -> Case:
    """Returns the case of batches made one ahead in a thread, against batches made in the loop."""

    def sides(things: ExitStack, settings: Settings) -> dict[str, Side]:
        _, batch_size = digits(settings)
        ahead = opened(things, strategy="memory-ahead", storage=storage, batch_size=batch_size)
        return {
            "ahead": with_threads(ahead),
            "loop": whole_batches(things, settings, storage=storage),
        }

    title = f"{storage}, one ahead in a thread: CPU for each sample, in the loop = 1"
    return Case(
        f"ahead-{storage}", title, sides, lambda rates: rates["loop"] / rates["ahead"], at_most=1.4
    )


CASES: tuple[Case, ...] = (
    against_gather("memory", "memory, whole batch / R", 0.45),
    against_gather("memmap", "memmap, whole batch / R", 0.40, storage="memmap"),
    against_gather("pt-single", "pt-single (mmap), whole batch / R", 0.40, storage="pt-single"),
    against_gather("hdf5", "hdf5 contiguous, whole batch / R", 0.40, storage="hdf5"),
    against_gather("hdf5-chunked", "hdf5 chunked, block shuffle / R", 0.18, storage="hdf5-chunked"),
    against_gather(
        "dataloader", "DataLoader over memory, workers 0 / R", 0.15, loader="dataloader", workers=0
    ),
    Case(
        "dataloader-tensors",
        "DataLoader over memory / the TensorDataset form",
        dataloader_against_tensors,
        lambda rates: rates["dataloader"] / rates["tensordataset"],
        15,
    ),
    against_gather("lmdb", "lmdb, batched / R", 0.025, storage="lmdb"),
    Case(
        "raw-files",
        "one raw file for each sample / bare open, read, close loop in Python",
        raw_files,
        lambda rates: rates["raw-files"] / rates["bare"],
        0.8,
    ),
    Case(
        "raw-files-c",
        "one raw file for each sample / the same loop in C",
        raw_files_in_c,
        lambda rates: rates["raw-files"] / rates["bare"],
    ),
    Case(
        "per-sample",
        "per-sample / plain torch",
        per_sample,
        lambda rates: rates["per-sample"] / rates["plain"],
        0.9,
        1.1,
    ),
    Case(
        "tensordataset",
        "tensordataset / plain torch",
        tensordataset,
        lambda rates: rates["tensordataset"] / rates["plain"],
        0.9,
        1.1,
    ),
    Case(
        "photos-threads",
        "photos, thread pool, random resized crop 224 / J, for each core used",
        photos,
        lambda rates: rates["threads"] / rates["J"],
        0.65,
        whole=True,
    ),
    staging_case("staging-large", "staging one large file / min(read, write)", None, ONE_WRITER),
    staging_case("staging-small", "staging files of 100 kB / min(read, write)", SMALL_FILE),
    cache_case("raw-files"),
    cache_case("memmap", TWO_SOURCES),
    ahead_case("memory"),
    ahead_case("memmap"),
)
