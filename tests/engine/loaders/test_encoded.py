"""Loaders over JPEG files: the same samples from each, random crops included, and what becomes of damaged files."""

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.loaders.loader_helpers import (
    DALI,
    GENERATOR,
    IN_LOOP,
    NO_DALI,
    SPDL,
    WORKERS,
    as_images,
    collected,
    info_of,
    labels_of,
    opened,
    other,
    photos_config,
    storage_of,
    variant_id,
)
from tests.engine_fixtures import N_PHOTOS, vitprof_threads
from vitprof.engine.loaders.batch_assembly import open_maker
from vitprof.engine.loaders.contract import epoch_order
from vitprof.errors import SampleError, one_line

pytestmark = pytest.mark.usefixtures("photos")


THREADS = {"loader": "threads"}
EXACT: list[dict[str, Any]] = [THREADS, GENERATOR, IN_LOOP, WORKERS, *SPDL]
"""DALI is the one that decodes whole batches, with a resize of its own."""
RESAMPLED = 2.0
"""Largest mean difference of an image (of 255) that one of them decoded from what Pillow makes of it: 0.21 was seen.
Two different photos differ by 40 and more."""
LARGEST = 24
"""Largest difference of a pixel: 9 was seen."""


@NO_DALI
@pytest.mark.parametrize("augment", ["off", "cpu"])
def test_batches_decoded_at_once_are_the_same_up_to_resampling(augment: str) -> None:
    """Decoded and resized as Pillow does it: the same crop, the same flip."""
    config = photos_config(loader="dali", augment=augment)
    storage = storage_of(config)
    make = open_maker(storage, info_of(config), other(config, decoder="pil"), train=True)
    with opened(config, storage=storage) as loader:
        assert len(loader) == 8
        for epoch, n in ((0, N_PHOTOS), (1, 32)):
            order = epoch_order(N_PHOTOS, 42, epoch)[:n]
            batches = collected(itertools.islice(loader.epoch(epoch), math.ceil(n / 16)))
            assert [len(batch.labels) for batch in batches] == ([16] * 7 + [8])[: len(batches)]
            assert batches[0].images.dtype == torch.uint8
            assert batches[0].images.shape == (16, 3, 224, 224)
            assert torch.equal(labels_of(batches), storage.labels[order])
            difference = abs(as_images(batches) - as_images([make(epoch, order)]))
            assert difference.mean(axis=(1, 2, 3)).max() < RESAMPLED
            assert difference.max() < LARGEST


@NO_DALI
def test_epochs_that_are_broken_off_and_a_batch_that_stays_until_the_next_but_one() -> None:
    config = photos_config(loader="dali", batch_size=8)
    storage = storage_of(config)

    def n_threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    before = n_threads()
    with opened(config, storage=storage) as loader:
        late = loader.epoch(0)
        next(late)
        assert n_threads() > before
        collected(itertools.islice(loader.epoch(1), 2))
        previous, labels = None, []
        for number, batch in enumerate(loader.epoch(2)):
            if previous is not None:
                assert torch.equal(*previous)
            previous = batch.images, batch.images.clone()
            labels.append(batch.labels.clone())
            if number == 3:
                late.close()
        assert torch.equal(torch.cat(labels), storage.labels[epoch_order(N_PHOTOS, 42, 2)])
    assert not vitprof_threads()
    assert (
        n_threads() <= before + 1
    )  # DALI's own too, which Python does not list; OpenMP may have started one


def without_table(whole: bytes) -> bytes:
    """A header that can be read, data that cannot be decoded: the tables of quantisation (DQT) are gone."""
    while (at := whole.find(b"\xff\xdb")) >= 0:
        whole = whole[:at] + whole[at + 2 + int.from_bytes(whole[at + 2 : at + 4], "big") :]
    return whole


DAMAGES = {
    "truncated": lambda whole: whole[: len(whole) // 2],
    "tail": lambda whole: whole[: -len(whole) // 50],  # less than any crop needs
    "empty": lambda _: b"",
    "text": lambda _: b"no image at all",
    "table": without_table,
    "gap": lambda whole: whole[: len(whole) // 5] + b"\xff\xd9",  # only decoding can find that
}
FOUND_AT_ONCE = ("truncated", "tail", "empty", "text", "table")
"""Found by those that decode whole batches. A gap in the data is not: see `vitprof.engine.loaders.dali`."""


def damage(root: Path, kind: str, index: int) -> Path:
    """Damage the file of training sample number `index`."""
    path = sorted((root / "train").glob("*/*"))[index]
    whole = path.read_bytes()
    path.unlink()  # a link
    path.write_bytes(DAMAGES[kind](whole))
    return path


@pytest.mark.parametrize(
    ("variant", "kind"),
    [(THREADS, kind) for kind in DAMAGES]
    + [(variant, "gap") for variant in EXACT[1:]]
    + [pytest.param({"loader": "dali"}, kind, marks=NO_DALI) for kind in FOUND_AT_ONCE],
    ids=lambda value: value if isinstance(value, str) else variant_id(value),
)
def test_a_damaged_file_is_named(variant: dict[str, Any], kind: str, own_photos: Path) -> None:
    in_second_batch = 5 if variant in EXACT else int(epoch_order(N_PHOTOS, 42, 0)[5])
    path = damage(own_photos, kind, in_second_batch)
    config = photos_config(**variant, shuffle="none" if variant in EXACT else None, batch_size=4)
    with opened(config, storage=storage_of(config, root=own_photos)) as loader:
        for _ in range(2):
            with pytest.raises(SampleError) as caught:
                list(loader.epoch(0))
            assert one_line(caught.value).startswith(str(path))
            assert "\n" not in one_line(caught.value)


@pytest.mark.parametrize("variant", [*EXACT, DALI], ids=variant_id)
def test_damaged_files_are_skipped_and_named(variant: dict[str, Any], own_photos: Path) -> None:
    """Several kinds in one batch, and all four of the next; all other samples come as if nothing was."""
    order = epoch_order(N_PHOTOS, 42, 0).tolist()
    bad = dict(zip([*order[4:8], *order[1:3]], [*FOUND_AT_ONCE, "truncated"], strict=True))
    paths = {str(damage(own_photos, kind, index)) for index, kind in bad.items()}
    prefetch_factor = None if variant in EXACT else 3
    config = photos_config(
        **variant, skip_unreadable=True, batch_size=4, prefetch_factor=prefetch_factor
    )
    storage = storage_of(config, root=own_photos)
    make = open_maker(storage, info_of(config), other(config, decoder="pil"), train=True)
    with opened(config, storage=storage) as loader:
        batches = collected(loader.epoch(0))
        assert [len(batch.labels) for batch in batches] == [2, 0] + [4] * 28
        assert [len(batch.images) for batch in batches] == [2, 0] + [4] * 28
        assert [len(batch.unreadable) for batch in batches] == [2, 4] + [0] * 28
        left = torch.tensor([index for index in order if index not in bad])
        assert torch.equal(labels_of(batches), storage.labels[left])
        assert {line.split(" ")[0] for batch in batches for line in batch.unreadable} == paths
        if variant not in EXACT:
            images = as_images([batch for batch in batches if len(batch.labels)])
            difference = abs(images - as_images([make(0, left)])).mean(axis=(1, 2, 3))
            # Where a file fails inside DALI its batch is made by simplejpeg, which does not smooth as Pillow does.
            assert (difference < RESAMPLED).mean() > 0.8
            assert difference.max() < 10
        named = [line for batch in loader.epoch(1) for line in batch.unreadable]
        assert {line.split(" ")[0] for line in named} == paths
