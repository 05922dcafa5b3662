"""Image files: PNG of digits, the JPEG files that photos consists of."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.engine.storage.preparing import PHOTOS, few_photos, images_of, place  # noqa: F401
from tests.engine.storage.test_storages import Meter
from tests.engine_fixtures import SMALL, shared_home  # noqa: F401
from vitprof.engine.data.datasets import open_source
from vitprof.engine.storage.contract import Place
from vitprof.engine.storage.files import FilesStorage
from vitprof.errors import DataError, SampleError


def test_digits_as_png(shared_home: Path) -> None:  # noqa: F811
    storage = FilesStorage(SMALL, place("files"), False)
    images = images_of(train=False)
    for i in (0, 57, 99):
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(storage.read_encoded(i)))), images[i, :, :, 0])
        assert Path(storage.name_of(i)).read_bytes() == storage.read_encoded(i)
    assert storage.name_of(57).endswith("images/test-000/test-000057.png")


@pytest.mark.parametrize("train", [True, False])
def test_photos_are_read_where_they_are(few_photos: Path, train: bool) -> None:  # noqa: F811
    where = place("files", PHOTOS)
    assert where.root == few_photos
    storage = FilesStorage(PHOTOS, where, train)
    source = open_source(PHOTOS, few_photos, train=train)
    assert len(storage) == len(source.ids) == len(storage.labels)
    assert [storage.read_encoded(i) for i in range(len(storage))] == source.encoded(0, len(storage))
    assert np.array_equal(storage.labels.numpy(), source.labels)
    assert [Path(storage.name_of(i)).stem for i in range(len(storage))] == source.ids


def test_a_slow_drive_is_told_what_is_read(few_photos: Path) -> None:  # noqa: F811
    meter = Meter()
    storage = FilesStorage(PHOTOS, Place(few_photos, meter), True)
    files = [storage.read_encoded(i) for i in (3, 7)]
    assert (meter.n_bytes, meter.n_files) == (sum(map(len, files)), 2)


@pytest.mark.parametrize(
    ("damage", "named"), [("missing", "No such file"), ("empty", "is empty"), ("directory", "Is a directory|is empty")]
)
def test_a_damaged_file_is_named(few_photos: Path, damage: str, named: str) -> None:  # noqa: F811
    storage = FilesStorage(PHOTOS, Place(few_photos), True)
    path = Path(storage.name_of(3))
    path.unlink()
    if damage == "empty":
        path.touch()
    elif damage == "directory":
        path.mkdir()
    with pytest.raises(SampleError, match=rf"{re.escape(str(path))}.*({named})") as caught:
        storage.read_encoded(3)
    assert "\n" not in str(caught.value)
    assert storage.read_encoded(4)


def test_a_folder_without_classes(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    with pytest.raises(DataError, match=re.escape(str(tmp_path))):
        FilesStorage(PHOTOS, Place(tmp_path), True)
