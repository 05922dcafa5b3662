"""vitprof.datasets.on_disk: a data set's own samples, in one order everywhere, and errors that name the file."""

import functools
import io
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import ImageFolder

from tests.engine.storage.preparing import PHOTOS as INFO
from tests.engine.storage.preparing import damage_file
from tests.engine_fixtures import SMALL, error_in_one_line
from vitprof.datasets import on_disk
from vitprof.datasets.mnist import read_split
from vitprof.engine.decoders import open_decoder
from vitprof.engine.storage.source import PhotosSource, open_source
from vitprof.engine.transforms import centre_crop
from vitprof.errors import DataError, SampleError


@pytest.mark.usefixtures("small_home")
@pytest.mark.parametrize("train", [True, False])
def test_digits(train: bool) -> None:
    root = on_disk.prepare("digits")
    source = open_source(SMALL, root, train=train)
    images, labels = read_split(root, train)
    assert np.array_equal(source.labels, labels)
    assert source.ids[:2] == (
        ["train-000000", "train-000001"] if train else ["test-000000", "test-000001"]
    )
    assert len(set(source.ids)) == len(labels)
    assert np.array_equal(source.pixels(3, 9), images[3:9, :, :, None])
    for encoded, image in zip(source.encoded(3, 9), images[3:9], strict=True):
        with Image.open(io.BytesIO(encoded)) as file:
            assert file.format == "PNG"
            assert np.array_equal(np.asarray(file), image)


@pytest.mark.parametrize("train", [True, False])
def test_photos_are_in_imagefolders_order(few_photos: Path, train: bool) -> None:
    source = open_source(INFO, few_photos, train=train)
    assert isinstance(source, PhotosSource)
    folder = ImageFolder(str(few_photos / ("train" if train else "test")), allow_empty=True)
    assert [str(source.path(i)) for i in range(len(source.ids))] == [
        path for path, _ in folder.samples
    ]
    assert source.labels.dtype == np.int64
    assert source.labels.tolist() == folder.targets
    assert len(source.ids) == (INFO.n_train if train else INFO.n_test)
    assert source.ids == [Path(path).stem for path, _ in folder.samples]
    for i in (0, len(source.ids) - 1):
        assert source.path(i).parent.name == f"class-{source.labels[i]:03d}"


def test_photos_pixels_and_bytes(few_photos: Path) -> None:
    source = PhotosSource(INFO, few_photos, True)
    encoded = source.encoded(7, 20)
    assert encoded == [source.path(i).read_bytes() for i in range(7, 20)]
    pixels = source.pixels(7, 20)
    assert pixels.shape == (13, 224, 224, 3)
    assert pixels.dtype == np.uint8
    one = np.empty((224, 224, 3), np.uint8)
    for image, file in zip(pixels, encoded, strict=True):
        open_decoder("simplejpeg")(file, functools.partial(centre_crop, size=224), one)
        assert np.array_equal(image, one)
    assert source.pixels(4, 4).shape == (0, 224, 224, 3)
    assert len(source.pixels(INFO.n_train - 1, INFO.n_train + 5)) == 1


def test_unreadable_photos_are_named(few_photos: Path) -> None:
    source = PhotosSource(INFO, few_photos, True)
    path = source.path(9)
    whole = path.read_bytes()
    for damage in ("half", "garbage"):
        damage_file(path, damage, whole)
        with error_in_one_line(SampleError, match=rf"^{path} cannot be read \("):
            source.pixels(0, INFO.n_train)
    assert source.pixels(0, 9).shape[0] == 9
    for damage, named in (
        ("empty", "it is empty"),
        ("missing", "No such file"),
        ("directory", "Is a directory"),
    ):
        damage_file(path, damage, whole)
        for read in (source.encoded, source.pixels):
            with pytest.raises(SampleError, match=named):
                read(8, 10)


def refused(root: Path, what: str, *, train: bool = True) -> None:
    split = root / ("train" if train else "test")
    with error_in_one_line(
        DataError, match=f"^{split} {what}.*; delete {root} and it is made again"
    ):
        open_source(INFO, root, train=train)


def test_missing_folders(few_photos: Path, tmp_path: Path) -> None:
    refused(tmp_path / "nothing", r"cannot be read \(No such file")
    (tmp_path / "train").write_text("mine")
    refused(tmp_path, r"cannot be read \(Not a directory")
    (few_photos / "train" / "class-100").mkdir()
    refused(few_photos, "has 101 class folders instead of 100")
    (few_photos / "train" / "class-100").rmdir()
    next(few_photos.glob("train/*/*.jpg")).unlink()
    refused(few_photos, "has 19 images instead of 20")
    shutil.rmtree(few_photos / "test")
    (few_photos / "test").mkdir()
    refused(few_photos, "has 0 class folders", train=False)
