"""Makers: pure functions of epoch and indices, which never touch what is not theirs."""

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.loaders.loader_helpers import Sized, config_of, other, photos_config, storage_of
from tests.engine_fixtures import SMALL
from vitprof.datasets.catalog import DATASETS
from vitprof.engine import transforms
from vitprof.engine.loaders.batch_assembly import EncodedMaker, PixelMaker, open_maker
from vitprof.engine.storage.arrays import MemoryStorage

INDICES = torch.tensor([5, 3, 599, 3])


@pytest.mark.usefixtures("shared_home")
@pytest.mark.parametrize("storage", ["memory", "memmap", "files"])
class TestDigits:
    def test_a_sample_is_the_same_in_whatever_batch_wherever_that_lies_and_is_made(
        self, storage: str
    ) -> None:
        config = config_of(storage=storage, augment="cpu", skip_unreadable=True)
        make = open_maker(storage_of(config), SMALL, config, train=True)
        whole = make(2, INDICES)
        for row, index in enumerate(INDICES):
            alone = make(2, index[None])
            assert torch.equal(alone.images[0], whole.images[row])
            assert alone.labels[0] == whole.labels[row]
        assert torch.equal(whole.images[1], whole.images[3])
        assert not torch.equal(make(3, INDICES).images, whole.images)
        out = torch.zeros((4, 28, 28, 1), dtype=torch.uint8)
        given = make(2, INDICES, out)
        assert given.images.data_ptr() == out.data_ptr()
        assert torch.equal(given.images, whole.images)
        assert torch.equal(pickle.loads(pickle.dumps(make))(2, INDICES).images, whole.images), (
            "in another process"
        )
        empty = make(2, INDICES[:0])
        assert (len(empty.images), len(empty.labels), empty.unreadable) == (0, 0, ())

    def test_augmentation_is_of_this_seed_and_for_training_only(self, storage: str) -> None:
        config = config_of(storage=storage, augment="cpu")
        opened = storage_of(config)
        plain = open_maker(opened, SMALL, other(config, augment="off"), train=True)(
            0, INDICES
        ).images
        assert not torch.equal(
            open_maker(opened, SMALL, config, train=True)(0, INDICES).images, plain
        )
        assert torch.equal(open_maker(opened, SMALL, config, train=False)(0, INDICES).images, plain)
        uniform = [
            transforms.sample_uniform(config.seed, 1, index, transforms.N_UNIFORM)
            for index in INDICES.tolist()
        ]
        expected = plain.permute(0, 2, 3, 1).clone().numpy()
        transforms.on_cpu(expected, transforms.affine(torch.from_numpy(np.array(uniform)), SMALL))
        got = open_maker(opened, SMALL, config, train=True)(1, INDICES).images
        assert np.array_equal(got.permute(0, 2, 3, 1).numpy(), expected)
        again = open_maker(opened, SMALL, other(config, augment="off"), train=True)(
            0, INDICES
        ).images
        assert torch.equal(again, plain), (
            "rows may be the storage's own memory, which stays as it is"
        )


def test_rows_that_belong_to_the_storage_are_copied_before_they_are_changed() -> None:
    """A storage may hand out its own memory, as one that is mapped does."""
    images = torch.full((4, 28, 28, 1), 200, dtype=torch.uint8)
    view: Any = Sized(
        4, labels=torch.arange(4), shape=(28, 28, 1), read=lambda indices, out=None: images
    )
    PixelMaker(view, SMALL, config_of(augment="cpu"), train=True)(0, torch.arange(4))
    assert (images == 200).all()


@pytest.mark.parametrize("flips", [True, False])
def test_a_crop_is_mirrored_only_where_that_keeps_its_class(flips: bool) -> None:
    info = dataclasses.replace(DATASETS["photos"], flips=flips)
    unused: Any = MemoryStorage(torch.zeros((1, 1, 1, 3), dtype=torch.uint8), torch.zeros(1))
    make = EncodedMaker(unused, info, photos_config(augment="cpu"), train=True)
    crops = [make.crop(0, index)(375, 500) for index in range(200)]
    assert (
        70 < sum(crop.flip for crop in crops) < 130
        if flips
        else not any(crop.flip for crop in crops)
    )
    assert len({crop[:4] for crop in crops}) > 190
    assert all(crop.top + crop.height <= 375 and crop.left + crop.width <= 500 for crop in crops)
    test = EncodedMaker(unused, info, photos_config(augment="cpu"), train=False)
    assert test.crop(0, 1)(375, 500) == transforms.centre_crop(375, 500, 224)
