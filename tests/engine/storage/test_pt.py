"""PyTorch's own files: one for each sample, or one for a whole split."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.storage.preparing import copy_of, damage_file, images_of
from tests.engine_fixtures import SMALL
from vitprof.engine.storage.contract import Place
from vitprof.engine.storage.pt import PtStorage, open_mapped, open_whole
from vitprof.errors import DataError, SampleError


class Stranger:
    """What a .pt file must not hold: loading it would run what it says."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("ran",)


@pytest.fixture
def root(shared_home: Path, tmp_path: Path) -> Path:
    return copy_of("pt", tmp_path)


@pytest.fixture
def single(shared_home: Path, tmp_path: Path) -> Path:
    return copy_of("pt-single", tmp_path)


def test_files_as_in_the_tutorial(root: Path) -> None:
    partition = json.loads((root / "partition.json").read_text())
    labels = json.loads((root / "labels.json").read_text())
    assert {name: len(ids) for name, ids in partition.items()} == {"train": 600, "validation": 100}
    name = partition["validation"][7]
    image = torch.load(root / "data" / f"{name}.pt", weights_only=True)
    assert np.array_equal(image.numpy(), images_of(train=False)[7])
    assert labels[name] == PtStorage(SMALL, Place(root), False).labels[7]
    assert (root / "data" / f"{name}.pt").stat().st_size < 4096


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
def test_a_damaged_sample_is_named(root: Path, damage: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = root / "data" / "train-000005.pt"
    values = {
        "object": Stranger(),
        "shape": torch.zeros(28, 28, dtype=torch.uint8),
        "dtype": torch.zeros(28, 28, 1),
        "list": [1, 2],
    }
    damage_file(path, damage)
    if damage in values:
        torch.save(values[damage], path)
    storage = PtStorage(SMALL, Place(root), True)
    with pytest.raises(SampleError, match=rf"{re.escape(str(path))}.*({named})") as caught:
        storage.read(torch.tensor([4, 5]))
    assert "\n" not in str(caught.value)
    assert "ran" not in capsys.readouterr().out
    assert storage.read(torch.tensor([4, 6])).shape == (2, 28, 28, 1)


def test_a_label_is_missing_for_an_id(root: Path) -> None:
    path = root / "labels.json"
    labels = json.loads(path.read_text())
    del labels["train-000123"]
    path.write_text(json.dumps(labels))
    with pytest.raises(DataError, match=r"labels\.json has no label for 'train-000123'"):
        PtStorage(SMALL, Place(root), True)
    assert len(PtStorage(SMALL, Place(root), False)) == 100


@pytest.mark.parametrize("label", ["3", 3.5, None, True, [1]])
def test_a_label_that_is_no_number(root: Path, label: object) -> None:
    path = root / "labels.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"train-000123": label}))
    with pytest.raises(DataError, match=r"labels\.json has no label for 'train-000123'"):
        PtStorage(SMALL, Place(root), True)


def test_the_partition_names_an_unknown_file(root: Path) -> None:
    for name, content in (("partition.json", {"train": ["train-000001", "nobody"]}), ("labels.json", {"nobody": 3})):
        path = root / name
        path.write_text(json.dumps(json.loads(path.read_text()) | content))
    storage = PtStorage(SMALL, Place(root), True)
    with pytest.raises(SampleError, match=r"data/nobody\.pt cannot be read \(No such file"):
        storage.read(torch.tensor([0, 1]))


@pytest.mark.parametrize("name", ["partition.json", "labels.json"])
@pytest.mark.parametrize("content", [None, "", "{", "[]", "{}", '{"train": 3, "validation": "x"}', b"\xff\xfe"])
def test_damaged_json_is_named(root: Path, name: str, content: str | bytes | None) -> None:
    path = root / name
    path.unlink()
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=re.escape(name)) as caught:
        PtStorage(SMALL, Place(root), True)
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
def test_a_damaged_file_is_named(single: Path, opened: Any, damage: str, named: str) -> None:
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
