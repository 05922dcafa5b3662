"""ImageFolderStorage: what torchvision's own ImageFolder gives, held back only by a throttle."""

import pickle
import shutil
from pathlib import Path

import pytest
import torch
from torchvision import datasets, transforms

from tests.engine.storage.preparing import PHOTOS as INFO
from tests.engine.storage.preparing import Counting, damage_file
from vitprof.engine.storage.contract import Place
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


@pytest.mark.parametrize(("train", "augment"), [(True, True), (True, False), (False, False), (False, True)])
def test_samples_are_torchvisions(few_photos: Path, train: bool, augment: bool) -> None:
    storage = ImageFolderStorage(INFO, Place(few_photos), train, augment=augment)
    expected = plain(few_photos / ("train" if train else "test"), augment=augment and train)
    assert len(storage) == len(expected) == (INFO.n_train if train else INFO.n_test)
    assert storage.labels.tolist() == expected.targets
    assert storage.pixels == "normalised"
    for i in (0, len(expected) - 1):
        torch.manual_seed(i)
        image, label = storage.dataset()[i]
        torch.manual_seed(i)
        expected_image, expected_label = expected[i]
        assert torch.equal(image, expected_image)
        assert label == expected_label
        assert storage.name_of(i) == expected.samples[i][0]


def test_the_throttle_is_told_of_every_file(few_photos: Path) -> None:
    throttle = Counting()
    storage = ImageFolderStorage(INFO, Place(few_photos, throttle), True)
    samples = storage.dataset()
    assert throttle.reads == []
    assert torch.equal(samples[4][0], ImageFolderStorage(INFO, Place(few_photos), True).dataset()[4][0])
    samples[7]
    assert throttle.reads == [(Path(storage.name_of(i)).stat().st_size, 1) for i in (4, 7)]


def test_unreadable_files_are_named(few_photos: Path) -> None:
    storage = ImageFolderStorage(INFO, Place(few_photos), True)
    path = Path(storage.name_of(5))
    whole = path.read_bytes()
    for damage in ("empty", "half", "cut", "garbage", "missing", "directory"):
        damage_file(path, damage, whole)
        with pytest.raises(SampleError) as caught:
            storage.dataset()[5]
        assert str(caught.value).startswith(f"{path} cannot be read (")
        assert "\n" not in str(caught.value)
    assert storage.dataset()[4][0].shape == (3, 224, 224)


def test_pickled(few_photos: Path) -> None:
    storage = ImageFolderStorage(INFO, Place(few_photos), False)
    copy = pickle.loads(pickle.dumps(storage))
    assert torch.equal(copy.dataset()[1][0], storage.dataset()[1][0])
    assert torch.equal(copy.labels, storage.labels)
    copy.close()


def refused(root: Path) -> str:
    with pytest.raises(DataError) as caught:
        ImageFolderStorage(INFO, Place(root), True)
    assert "\n" not in str(caught.value)
    assert f"delete {root} and it is made again" in str(caught.value)
    return str(caught.value)


def test_folders_that_are_no_image_folder(few_photos: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty" / "train"
    assert refused(tmp_path / "nothing").startswith(f"{tmp_path / 'nothing' / 'train'} cannot be read (No such file")
    empty.mkdir(parents=True)
    assert refused(empty.parent).startswith(f"{empty} has 0 class folders instead of 100")
    for label in range(100):
        (empty / f"class-{label:03d}").mkdir()
    assert refused(empty.parent).startswith(f"{empty} has 0 images instead of 20")
    shutil.rmtree(few_photos / "train" / "class-003")
    assert refused(few_photos).startswith(f"{few_photos / 'train'} has 99 class folders instead of 100")
