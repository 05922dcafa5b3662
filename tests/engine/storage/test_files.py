"""Image files: PNG of digits, the JPEG files that photos consists of."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.engine.storage.preparing import PHOTOS, copy_of, damage_file, images_of, place
from tests.engine.storage.writer_helpers import Counting
from tests.engine_fixtures import SMALL
from vitprof.engine.storage.contract import Place
from vitprof.engine.storage.files import FilesStorage, PtStorage, RawFilesStorage, open_mapped, open_whole, sample_path
from vitprof.errors import DataError, SampleError


def test_digits_as_png(shared_home: Path) -> None:
    storage = FilesStorage(SMALL, place("files"), False)
    images = images_of(train=False)
    for i in (0, 57, 99):
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(storage.read_encoded(i)))), images[i, :, :, 0])
        assert Path(storage.name_of(i)).read_bytes() == storage.read_encoded(i)
    assert storage.name_of(57).endswith("images/test-000/test-000057.png")


@pytest.mark.parametrize(
    ("damage", "named"), [("missing", "No such file"), ("empty", "is empty"), ("directory", "Is a directory|is empty")]
)
def test_what_is_read_is_told_to_the_drive_and_a_damaged_file_is_named(
    few_photos: Path, damage: str, named: str
) -> None:
    throttle = Counting()
    storage = FilesStorage(PHOTOS, Place(few_photos, throttle), True)
    assert throttle.told == [(len(storage.read_encoded(i)), 1) for i in (3, 7)]
    path = Path(storage.name_of(3))
    damage_file(path, damage)
    with pytest.raises(SampleError, match=rf"{re.escape(str(path))}.*({named})") as caught:
        storage.read_encoded(3)
    assert "\n" not in str(caught.value)
    assert storage.read_encoded(4)
    (few_photos / "none" / "train").mkdir(parents=True)
    with pytest.raises(DataError, match="none"):  # without classes
        FilesStorage(PHOTOS, Place(few_photos / "none"), True)


NOBODY = 65534


@pytest.fixture
def root(shared_home: Path, tmp_path: Path) -> Path:
    return copy_of("raw-files", tmp_path)


def test_files_are_the_bare_pixels_in_folders_of_a_thousand(root: Path) -> None:
    assert sample_path(59_999, "x", train=True) == "images/train-059/x"
    assert sample_path(1_000, "x", train=False) == "images/test-001/x"
    assert (root / "images/train-000/train-000123").read_bytes() == images_of()[123].tobytes()
    assert len(os.listdir(root / "images/test-000")) == 100


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ("missing", "No such file"),
        ("empty", "0 bytes instead of 784"),
        ("cut", "783 bytes instead of 784"),
        ("longer", "more than 784 bytes instead of 784"),
        ("directory", "Is a directory"),
    ],
)
def test_a_damaged_file_of_pixels_is_named(root: Path, damage: str, named: str) -> None:
    path = root / sample_path(5, "train-000005", train=True)
    damage_file(path, damage)
    storage = RawFilesStorage(SMALL, Place(root), True)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(SampleError, match=rf"{re.escape(str(path))}.*{named}") as caught:
        storage.read(torch.tensor([4, 5]))
    assert "\n" not in str(caught.value)
    assert set(os.listdir("/proc/self/fd")) == before
    assert (storage.read(torch.tensor([4, 6])).numpy() == images_of()[[4, 6]]).all()  # the others can be read


def test_a_file_that_may_not_be_read(root: Path) -> None:
    path = root / sample_path(5, "train-000005", train=True)
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    path.chmod(0)
    storage = RawFilesStorage(SMALL, Place(root), True)
    as_root = os.geteuid() == 0
    try:
        if as_root:  # whom no permission stops
            os.seteuid(NOBODY)
        with pytest.raises(SampleError, match=rf"{re.escape(str(path))} cannot be read \(Permission denied\)"):
            storage.read(torch.tensor([5]))
    finally:
        if as_root:
            os.seteuid(0)


class Stranger:
    """What a .pt file must not hold: loading it would run what it says."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("ran",)


@pytest.fixture
def pt_root(shared_home: Path, tmp_path: Path) -> Path:
    return copy_of("pt", tmp_path)


@pytest.fixture
def single(shared_home: Path, tmp_path: Path) -> Path:
    return copy_of("pt-single", tmp_path)


def test_files_as_in_the_tutorial(pt_root: Path) -> None:
    partition = json.loads((pt_root / "partition.json").read_text())
    labels = json.loads((pt_root / "labels.json").read_text())
    assert {name: len(ids) for name, ids in partition.items()} == {"train": 600, "validation": 100}
    name = partition["validation"][7]
    image = torch.load(pt_root / "data" / f"{name}.pt", weights_only=True)
    assert np.array_equal(image.numpy(), images_of(train=False)[7])
    assert labels[name] == PtStorage(SMALL, Place(pt_root), False).labels[7]
    assert (pt_root / "data" / f"{name}.pt").stat().st_size < 4096


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ("missing", "No such file"),
        ("empty", "damaged"),
        ("half", "damaged"),
        ("garbage", "is refused|damaged"),
        ("directory", "Is a directory|damaged"),
        ("object", "is refused"),
        ("shape", r"holds uint8 \(28, 28\), not uint8 \(28, 28, 1\)"),
        ("dtype", r"holds float32 \(28, 28, 1\)"),
        ("list", "holds a list"),
    ],
)
def test_a_damaged_sample_is_named(pt_root: Path, damage: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = pt_root / "data" / "train-000005.pt"
    values = {
        "object": Stranger(),
        "shape": torch.zeros(28, 28, dtype=torch.uint8),
        "dtype": torch.zeros(28, 28, 1),
        "list": [1, 2],
    }
    damage_file(path, damage)
    if damage in values:
        torch.save(values[damage], path)
    storage = PtStorage(SMALL, Place(pt_root), True)
    with pytest.raises(SampleError, match=rf"{re.escape(str(path))}.*({named})") as caught:
        storage.read(torch.tensor([4, 5]))
    assert "\n" not in str(caught.value)
    assert "ran" not in capsys.readouterr().out
    assert storage.read(torch.tensor([4, 6])).shape == (2, 28, 28, 1)


def test_a_label_that_is_missing_or_no_number(pt_root: Path) -> None:
    path = pt_root / "labels.json"
    labels = json.loads(path.read_text())
    others = {name: label for name, label in labels.items() if name != "train-000123"}
    for changed in (others, *(labels | {"train-000123": label} for label in ("3", 3.5, None, True, [1]))):
        path.write_text(json.dumps(changed))
        with pytest.raises(DataError, match=r"labels\.json has no label for 'train-000123'"):
            PtStorage(SMALL, Place(pt_root), True)
        assert len(PtStorage(SMALL, Place(pt_root), False)) == 100


def test_the_partition_names_an_unknown_file(pt_root: Path) -> None:
    for name, content in (("partition.json", {"train": ["train-000001", "nobody"]}), ("labels.json", {"nobody": 3})):
        path = pt_root / name
        path.write_text(json.dumps(json.loads(path.read_text()) | content))
    storage = PtStorage(SMALL, Place(pt_root), True)
    with pytest.raises(SampleError, match=r"data/nobody\.pt cannot be read \(No such file"):
        storage.read(torch.tensor([0, 1]))


@pytest.mark.parametrize("name", ["partition.json", "labels.json"])
def test_damaged_json_is_named(pt_root: Path, name: str) -> None:
    path = pt_root / name
    for content in (None, b"", b"{", b"[]", b"{}", b'{"train": 3, "validation": "x"}', b"\xff\xfe"):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(DataError, match=re.escape(name)) as caught:
            PtStorage(SMALL, Place(pt_root), True)
        assert "\n" not in str(caught.value)


def test_one_file_for_a_split(single: Path) -> None:
    content = torch.load(single / "train.pt", weights_only=True)
    assert np.array_equal(content["images"].numpy(), images_of())
    assert (content["images"].dtype, content["labels"].dtype) == (torch.uint8, torch.int64)
    assert content["ids"][599] == "train-000599"
    assert not list(single.glob("*.npy"))


def test_neighbours_in_order_are_sliced(single: Path) -> None:
    storage = open_whole(SMALL, Place(single), True)
    images = images_of()
    first = storage.read(torch.tensor([0])).data_ptr()
    batch = storage.read(torch.arange(100, 164))
    assert batch.data_ptr() == first + 100 * 784  # shares memory with the storage
    assert np.array_equal(batch.numpy(), images[100:164])
    for indices in ([100, 102, 101, 103], [3, 2], [5, 5, 7], [0, 2, 1, 3]):
        gathered = storage.read(torch.tensor(indices))
        assert np.array_equal(gathered.numpy(), images[indices])
        assert gathered.data_ptr() != first + indices[0] * 784
    with pytest.raises(IndexError):
        storage.read(torch.arange(590, 601))
    with pytest.raises(IndexError):
        storage.read(torch.tensor([-1, 0]))


@pytest.mark.slow
@pytest.mark.parametrize("opened", [open_mapped, open_whole])
@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ("missing", "No such file"),
        ("empty", "damaged"),
        ("half", "damaged"),
        ("garbage", "is refused|damaged"),
        ("directory", "Is a directory|damaged"),
        ("object", "is refused"),
        ("tensor", "holds no images and labels"),
        ("keys", "holds no images and labels"),
        ("dtype", r"holds images float32"),
        ("shape", r"holds images uint8 \(3, 28, 28\), not uint8 \(3, 28, 28, 1\)"),
        ("length", r"holds images uint8 \(2, 28, 28, 1\), not uint8 \(3, 28, 28, 1\)"),
        ("labels", r"holds labels float32 \(3,\)"),
    ],
)
def test_a_damaged_tensor_is_named(single: Path, opened: Any, damage: str, named: str) -> None:
    path = single / "train.pt"
    images, labels = torch.zeros(3, 28, 28, 1, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64)
    values = {
        "object": {"images": Stranger()},
        "tensor": images,
        "keys": {"images": images, "labels": [1, 2, 3]},
        "dtype": {"images": images.float(), "labels": labels},
        "shape": {"images": images[..., 0], "labels": labels},
        "length": {"images": images[:2].clone(), "labels": labels},
        "labels": {"images": images, "labels": labels.float()},
    }
    damage_file(path, damage)
    if damage in values:
        torch.save(values[damage], path)
    with pytest.raises(DataError, match=rf"{re.escape(str(path))}.*({named})") as caught:
        opened(SMALL, Place(single), True)
    assert not isinstance(caught.value, SampleError)
    assert "\n" not in str(caught.value)
