"""ImageFolderStorage: what torchvision's own ImageFolder gives, held back only by a throttle."""

import pickle
from pathlib import Path

import pytest
import torch
from torchvision import datasets, transforms

from tests.engine.storage.preparing import PHOTOS as INFO
from tests.engine.storage.preparing import Counting, damage_file
from tests.engine_fixtures import error_in_one_line
from vitprof.engine.storage.contract import Location
from vitprof.engine.storage.torchvision_datasets import ImageFolderStorage
from vitprof.errors import DataError, SampleError


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def plain(root: Path, *, augment: bool) -> datasets.ImageFolder:
    """As every tutorial writes it."""
    crop = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()]
    if not augment:
        crop = [transforms.Resize(256), transforms.CenterCrop(224)]
    normalise = transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    return datasets.ImageFolder(
        str(root), transforms.Compose([*crop, transforms.ToTensor(), normalise]), allow_empty=True
    )


@pytest.mark.parametrize(
    ("train", "augment"), [(True, True), (True, False), (False, False), (False, True)]
)
def test_samples_are_torchvisions_also_in_a_worker(
    few_photos: Path, train: bool, augment: bool
) -> None:
    storage = ImageFolderStorage(INFO, Location(few_photos), train, augment=augment)
    expected = plain(few_photos / ("train" if train else "test"), augment=augment and train)
    assert len(storage) == len(expected) == (INFO.n_train if train else INFO.n_test)
    assert storage.labels.tolist() == expected.targets
    assert storage.pixels == "normalised"
    sent: ImageFolderStorage = pickle.loads(pickle.dumps(storage))
    assert torch.equal(sent.labels, storage.labels)
    for i in (0, len(expected) - 1):
        torch.manual_seed(i)
        image, label = sent.dataset()[i]
        torch.manual_seed(i)
        expected_image, expected_label = expected[i]
        assert torch.equal(image, expected_image)
        assert label == expected_label
        assert storage.name_of(i) == expected.samples[i][0]
    sent.close()


def test_the_throttle_is_told_of_every_file(few_photos: Path) -> None:
    throttle = Counting()
    storage = ImageFolderStorage(INFO, Location(few_photos, throttle), True)
    samples = storage.dataset()
    assert throttle.reads == []
    assert torch.equal(
        samples[4][0], ImageFolderStorage(INFO, Location(few_photos), True).dataset()[4][0]
    )
    samples[7]
    assert throttle.reads == [(Path(storage.name_of(i)).stat().st_size, 1) for i in (4, 7)]


def test_unreadable_files_are_named(few_photos: Path) -> None:
    storage = ImageFolderStorage(INFO, Location(few_photos), True)
    path = Path(storage.name_of(5))
    whole = path.read_bytes()
    for damage in ("empty", "half", "cut", "garbage", "missing", "directory"):
        damage_file(path, damage, whole)
        with error_in_one_line(SampleError, match=rf"^{path} cannot be read \("):
            storage.dataset()[5]
    assert storage.dataset()[4][0].shape == (3, 224, 224)


def test_a_folder_that_is_no_image_folder(tmp_path: Path) -> None:
    """What else may be wrong with one: data/test_contract.py, of the source that this is made of."""
    (tmp_path / "train").mkdir()
    with error_in_one_line(DataError, match="has 0 class folders instead of 100"):
        ImageFolderStorage(INFO, Location(tmp_path), True)
