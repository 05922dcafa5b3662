"""ImageFolderStorage: what torchvision's own ImageFolder gives, held back only by a throttle."""

import pickle
import shutil
from pathlib import Path

import pytest
import torch
from torchvision import datasets, transforms

from tests.engine.storage.writer_helpers import Counting
from tests.engine_fixtures import N_PHOTOS
from vitprof.config.catalog import dataset_info
from vitprof.engine.storage.contract import Place
from vitprof.engine.storage.torchvision_datasets import ImageFolderStorage
from vitprof.errors import DataError, SampleError

INFO = dataset_info("photos", N_PHOTOS)


@pytest.fixture
def made(photos_home: Path) -> Path:
    torch.set_num_threads(1)
    return photos_home / "data" / INFO.directory


@pytest.fixture
def mine(made: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(made, tmp_path / "mine"))


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
def test_samples_are_torchvisions(made: Path, train: bool, augment: bool) -> None:
    storage = ImageFolderStorage(INFO, Place(made), train, augment=augment)
    expected = plain(made / ("train" if train else "test"), augment=augment and train)
    assert len(storage) == len(expected) == (INFO.n_train if train else INFO.n_test)
    assert storage.labels.tolist() == expected.targets
    assert storage.pixels == "normalised"
    for i in (0, 3, len(expected) - 1):
        torch.manual_seed(i)
        image, label = storage.dataset()[i]
        torch.manual_seed(i)
        expected_image, expected_label = expected[i]
        assert torch.equal(image, expected_image)
        assert label == expected_label
        assert storage.name_of(i) == expected.samples[i][0]


def test_the_throttle_is_told_of_every_file(made: Path) -> None:
    throttle = Counting()
    storage = ImageFolderStorage(INFO, Place(made, throttle), True)
    samples = storage.dataset()
    assert throttle.told == []
    assert torch.equal(samples[4][0], ImageFolderStorage(INFO, Place(made), True).dataset()[4][0])
    samples[7]
    assert throttle.told == [(Path(storage.name_of(i)).stat().st_size, 1) for i in (4, 7)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["empty", "half", "end", "text", "gone", "directory"])
def test_unreadable_files_are_named(mine: Path, kind: str) -> None:
    storage = ImageFolderStorage(INFO, Place(mine), True)
    path = Path(storage.name_of(5))
    whole = path.read_bytes()
    path.unlink()
    if kind == "directory":
        path.mkdir()
    elif kind != "gone":
        path.write_bytes({"empty": b"", "half": whole[: len(whole) // 2], "end": whole[:-2], "text": b"<html>"}[kind])
    with pytest.raises(SampleError) as caught:
        storage.dataset()[5]
    assert str(caught.value).startswith(f"{path} cannot be read (")
    assert "\n" not in str(caught.value)
    assert storage.dataset()[4][0].shape == (3, 224, 224)


def test_pickled(made: Path) -> None:
    storage = ImageFolderStorage(INFO, Place(made), False)
    copy = pickle.loads(pickle.dumps(storage))
    assert torch.equal(copy.dataset()[3][0], storage.dataset()[3][0])
    assert torch.equal(copy.labels, storage.labels)
    copy.close()


def refused(root: Path) -> str:
    with pytest.raises(DataError) as caught:
        ImageFolderStorage(INFO, Place(root), True)
    assert "\n" not in str(caught.value)
    assert f"delete {root} and it is made again" in str(caught.value)
    return str(caught.value)


def test_folders_that_are_no_image_folder(mine: Path, tmp_path: Path) -> None:
    assert refused(tmp_path / "nothing").startswith(f"cannot read {tmp_path / 'nothing' / 'train'}: No such file")
    (tmp_path / "empty" / "train").mkdir(parents=True)
    assert refused(tmp_path / "empty").startswith(
        f"cannot read {tmp_path / 'empty' / 'train'}: it has no class folders"
    )
    for label in range(100):
        (tmp_path / "empty" / "train" / f"class-{label:03d}").mkdir()
    assert refused(tmp_path / "empty").startswith(f"{tmp_path / 'empty' / 'train'} has 0 images instead of 120")
    shutil.rmtree(mine / "train" / "class-003")
    assert refused(mine).startswith(f"{mine / 'train'} has 99 class folders instead of 100")
