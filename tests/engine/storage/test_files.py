"""Image files: PNG of digits, the JPEG files that photos consists of."""

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

from tests.engine.storage.preparing import PHOTOS, Counting, copy_of, damage_file, images_of, place
from tests.engine_fixtures import SMALL, error_in_one_line
from vitprof.engine.storage.contract import Location
from vitprof.engine.storage.files import (
    FilesStorage,
    PtStorage,
    RawFilesStorage,
    open_mapped,
    open_whole,
    sample_path,
)
from vitprof.errors import DataError, SampleError


def test_digits_as_png(shared_home: Path) -> None:
    storage = FilesStorage(SMALL, place("files"), False)
    images = images_of(train=False)
    for i in (0, 57, 99):
        assert np.array_equal(
            np.asarray(Image.open(io.BytesIO(storage.read_encoded(i)))), images[i, :, :, 0]
        )
        assert Path(storage.name_of(i)).read_bytes() == storage.read_encoded(i)
    assert storage.name_of(57).endswith("images/test-000/test-000057.png")


def test_a_damaged_image_file_is_named(few_photos: Path) -> None:
    throttle = Counting()
    storage = FilesStorage(PHOTOS, Location(few_photos, throttle), True)
    assert throttle.reads == [(len(storage.read_encoded(i)), 1) for i in (3, 7)]
    path = Path(storage.name_of(3))
    whole = path.read_bytes()
    for damage, named in (
        ("empty", "is empty"),
        ("missing", "No such file"),
        ("directory", "Is a directory|is empty"),
    ):
        damage_file(path, damage, whole)
        with error_in_one_line(SampleError, match=rf"{re.escape(str(path))}.*({named})"):
            storage.read_encoded(3)
    assert storage.read_encoded(4)
    (few_photos / "none" / "train").mkdir(parents=True)
    with pytest.raises(DataError, match="none"):  # without classes
        FilesStorage(PHOTOS, Location(few_photos / "none"), True)


@pytest.fixture
def root(shared_home: Path, tmp_path: Path) -> Path:
    return copy_of("raw-files", tmp_path)


def test_files_are_the_bare_pixels_in_folders_of_a_thousand(root: Path) -> None:
    assert sample_path(59_999, "x", train=True) == "images/train-059/x"
    assert sample_path(1_000, "x", train=False) == "images/test-001/x"
    assert (root / "images/train-000/train-000123").read_bytes() == images_of()[123].tobytes()
    assert len(os.listdir(root / "images/test-000")) == 100


def test_a_damaged_file_of_pixels_is_named(root: Path) -> None:
    path = root / sample_path(5, "train-000005", train=True)
    whole = path.read_bytes()
    storage = RawFilesStorage(SMALL, Location(root), True)
    before = set(os.listdir("/proc/self/fd"))
    for damage, named in (
        ("empty", "0 bytes instead of 784"),
        ("cut", "783 bytes instead of 784"),
        ("longer", "more than 784 bytes instead of 784"),
        ("missing", "No such file"),
        ("directory", "Is a directory"),
    ):
        damage_file(path, damage, whole)
        with error_in_one_line(SampleError, match=rf"{re.escape(str(path))}.*{named}"):
            storage.read(torch.tensor([4, 5]))
    assert set(os.listdir("/proc/self/fd")) == before
    assert (
        storage.read(torch.tensor([4, 6])).numpy() == images_of()[[4, 6]]
    ).all()  # the others can be read


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
    assert labels[name] == PtStorage(SMALL, Location(pt_root), False).labels[7]
    assert (pt_root / "data" / f"{name}.pt").stat().st_size < 4096


DAMAGED = {
    "empty": "damaged",
    "half": "damaged",
    "garbage": "is refused|damaged",
    "missing": "No such file",
    "directory": "Is a directory|damaged",
}


def test_a_damaged_sample_is_named(pt_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = pt_root / "data" / "train-000005.pt"
    whole = path.read_bytes()
    values: dict[str, tuple[Any, str]] = {
        "object": (Stranger(), "is refused"),
        "shape": (
            torch.zeros(28, 28, dtype=torch.uint8),
            r"holds uint8 \(28, 28\), not uint8 \(28, 28, 1\)",
        ),
        "dtype": (torch.zeros(28, 28, 1), r"holds float32 \(28, 28, 1\)"),
        "list": ([1, 2], "holds a list"),
    }
    storage = PtStorage(SMALL, Location(pt_root), True)
    for damage, named in [
        *((name, named) for name, (_, named) in values.items()),
        *DAMAGED.items(),
    ]:
        damage_file(path, damage, whole)
        if damage in values:
            torch.save(values[damage][0], path)
        with error_in_one_line(SampleError, match=rf"{re.escape(str(path))}.*({named})"):
            storage.read(torch.tensor([4, 5]))
    assert "ran" not in capsys.readouterr().out
    assert storage.read(torch.tensor([4, 6])).shape == (2, 28, 28, 1)


def test_a_label_that_is_missing_or_no_number(pt_root: Path) -> None:
    path = pt_root / "labels.json"
    labels = json.loads(path.read_text())
    others = {name: label for name, label in labels.items() if name != "train-000123"}
    for changed in (
        others,
        *(labels | {"train-000123": label} for label in ("3", 3.5, None, True, [1])),
    ):
        path.write_text(json.dumps(changed))
        with pytest.raises(DataError, match=r"labels\.json has no label for 'train-000123'"):
            PtStorage(SMALL, Location(pt_root), True)
        assert len(PtStorage(SMALL, Location(pt_root), False)) == 100


def test_the_partition_names_an_unknown_file(pt_root: Path) -> None:
    for name, content in (
        ("partition.json", {"train": ["train-000001", "nobody"]}),
        ("labels.json", {"nobody": 3}),
    ):
        path = pt_root / name
        path.write_text(json.dumps(json.loads(path.read_text()) | content))
    storage = PtStorage(SMALL, Location(pt_root), True)
    with pytest.raises(SampleError, match=r"data/nobody\.pt cannot be read \(No such file"):
        storage.read(torch.tensor([0, 1]))


@pytest.mark.parametrize("name", ["partition.json", "labels.json"])
def test_damaged_json_is_named(pt_root: Path, name: str) -> None:
    path = pt_root / name
    for content in (None, b"", b"{", b"[]", b"{}", b'{"train": 3, "validation": "x"}', b"\xff\xfe"):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        with error_in_one_line(DataError, match=re.escape(name)):
            PtStorage(SMALL, Location(pt_root), True)


def test_one_file_for_a_split(single: Path) -> None:
    content = torch.load(single / "train.pt", weights_only=True)
    assert np.array_equal(content["images"].numpy(), images_of())
    assert (content["images"].dtype, content["labels"].dtype) == (torch.uint8, torch.int64)
    assert content["ids"][599] == "train-000599"
    assert not list(single.glob("*.npy"))


def test_neighbours_in_order_are_sliced(single: Path) -> None:
    storage = open_whole(SMALL, Location(single), True)
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


def test_a_damaged_tensor_is_named(single: Path) -> None:
    path = single / "train.pt"
    whole = path.read_bytes()
    images, labels = torch.zeros(3, 28, 28, 1, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64)
    wanted = r"not images uint8 \(3, 28, 28, 1\) and labels int64 \(3,\)"
    values: dict[str, tuple[Any, str]] = {
        "object": ({"images": Stranger()}, "is refused"),
        "tensor": (images, "holds images a NoneType"),
        "keys": ({"images": images, "labels": [1, 2, 3]}, "labels a list"),
        "dtype": (
            {"images": images.float(), "labels": labels},
            rf"holds images float32 .*, {wanted}",
        ),
        "shape": (
            {"images": images[..., 0], "labels": labels},
            rf"holds images uint8 \(3, 28, 28\) .*, {wanted}",
        ),
        "length": (
            {"images": images[:2].clone(), "labels": labels},
            rf"uint8 \(2, 28, 28, 1\) .*, {wanted}",
        ),
        "labels": (
            {"images": images, "labels": labels.float()},
            rf"labels float32 \(3,\), {wanted}",
        ),
        "one": ({"images": images, "labels": labels[0].clone()}, r"labels int64 \(\)"),
    }
    for damage, named in [
        *((name, named) for name, (_, named) in values.items()),
        *DAMAGED.items(),
    ]:
        damage_file(path, damage, whole)
        if damage in values:
            torch.save(values[damage][0], path)
        for opened in (open_mapped, open_whole):
            with error_in_one_line(
                DataError, match=rf"{re.escape(str(path))}.*({named})"
            ) as caught:
                opened(SMALL, Location(single), True)
            assert not isinstance(caught.value, SampleError)
