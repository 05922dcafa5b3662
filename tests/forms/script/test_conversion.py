"""Samples in other forms: stored by this process, as by a script's, and read in their place."""

import copy
import dataclasses
import json
import os
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from torchvision import datasets, transforms

from vitprof.forms import FORMS, is_installed, module_of, stored
from vitprof.forms.script.conversion import stored_in_forms
from vitprof.forms.script.dataset import spread
from vitprof.forms.script.opened_files import opening
from vitprof.forms.script.sample_values import CROPPED as LARGER
from vitprof.forms.script.sample_values import different
from vitprof.forms.values import from_bytes
from vitprof.watch.fetch_times import name_of
from vitprof.watch.stored_samples import StoredSamples

N, AS_IT_IS = 24, ""


class Made(Dataset[Any]):
    """A dataset whose samples a function makes, transformed where it has a transform."""

    def __init__(self, make: Callable[[int], Any], transform: Any = None) -> None:
        self.make, self.transform = make, transform

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        if self.transform is None:
            return self.make(index)
        return {"image": self.transform(self.make(index)), "label": index}


def image(index: int) -> Image.Image:
    pixels = np.random.default_rng(index).integers(0, 255, (5, 7, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((70 + index, 60))


def of_all_kinds(index: int) -> Any:
    numbers = (
        torch.full((index % 3, 2), float(index), dtype=torch.bfloat16),
        np.arange(3) + index,
        np.int16(index),
    )
    texts = {
        "name": "é" * (index % 2),
        "raw": b"\x00" * index,
        "part": index / 3,
        "even": index % 2 == 0,
        "mask": None,
    }
    return {"image": image(index), "numbers": numbers, "texts": texts, "label": index}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of JPEG files, as ImageFolder wants it."""
    for index in range(N):
        path = tmp_path / "images" / f"class-{index % 2}" / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image(index).save(path)
    return tmp_path / "images"


def convert(
    dataset: Any, to: Path, *forms: str, samples: int | None = N, side: int | None = None
) -> dict[str, Any]:
    to.mkdir(exist_ok=True)
    request = {"directory": str(to), "forms": forms, "samples": samples, "side": side}
    found = stored_in_forms(dataset, request, name_of)
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def in_place_of(dataset: Any, to: Path, found: dict[str, Any], form: str) -> StoredSamples:
    known = {
        "form": form,
        "folder": str(to / form),
        "n": found["n"],
        "samples": found["samples"],
    }
    return StoredSamples(
        dataset,
        known | {name: found["forms"].get(form, {}).get(name) for name in ("number", "same")},
    )


def seeded(dataset: Any, index: Any) -> Any:
    random.seed(3)
    torch.manual_seed(3)
    return dataset.__getitems__(index) if isinstance(index, list) else dataset[index]


@pytest.mark.parametrize("form", FORMS)
def test_each_form_gives_back_what_went_into_it(form: str, tmp_path: Path) -> None:
    if not is_installed(form):
        pytest.skip(f"{FORMS[form].package} is not installed")
    module = module_of(form)
    samples = Made(of_all_kinds)
    stored.convert(samples, tmp_path / form, module.Writer, module.Reader, part=10)
    read = stored.Samples(tmp_path / form, module.Reader)
    assert len(read) == N
    assert [different(samples[i], read[i]) for i in (5, 23, 0, 9, 10)] == [[]] * 5
    context = (
        "spawn" if form == "lance" else "fork"
    )  # after it was read here: a worker opens the files itself
    loader = DataLoader(
        read, batch_size=6, collate_fn=list, num_workers=1, multiprocessing_context=context
    )
    assert [
        different(samples[i], each)
        for i, each in enumerate(sample for batch in loader for sample in batch)
    ] == [[]] * N
    assert type(read[1]["numbers"][2]) is np.int16
    read[1]["numbers"][0].add_(1)  # as of the Dataset's own, which are new each time


CROPPED = transforms.Compose(
    [transforms.RandomResizedCrop(20), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
)
RESIZED = transforms.Compose(
    [transforms.Resize(30), transforms.CenterCrop(20), transforms.ToTensor()]
)


def test_images_are_stored_before_the_first_random_transform(folder: Path, tmp_path: Path) -> None:
    dataset, to = datasets.ImageFolder(str(folder), CROPPED), tmp_path / "plan"
    found = convert(dataset, to, "memmap", "lmdb", "jpeg", samples=10)
    assert (found["cut"], found["n"], found["samples"]) == ("before RandomResizedCrop", 10, N)
    forms = found["forms"]
    assert {name: (form["why"], form["payload"]) for name, form in forms.items()} == {
        "memmap": ("", "Cut"),
        "lmdb": ("", "FilesOf"),
        "jpeg": ("", "Smaller"),
    }
    assert len(forms["memmap"]["seconds"]) == 10
    chosen = spread(N, 10)
    assert found["files"] == {
        os.path.realpath(p): os.path.getsize(p) for p in (dataset.samples[i][0] for i in chosen)
    }
    for form, same in (("memmap", True), ("lmdb", True), ("jpeg", False), (AS_IT_IS, True)):
        instead = in_place_of(dataset, to, found, form)
        assert len(instead) == N
        for index in (0, 3, 13):  # over and over the ten
            expected, read = seeded(dataset, chosen[index % 10]), seeded(instead, index)
            assert (not different(expected, read)) is same
            assert (expected[0].shape, expected[1]) == (read[0].shape, read[1])
        assert not different(seeded(pickle.loads(pickle.dumps(instead)), 2), seeded(instead, 2))
    small = from_bytes("file RGB", to_rows(to / "jpeg")[0])
    assert min(small.size) == round(20 * LARGER)
    assert dataset.transform is CROPPED
    assert isinstance(instead, datasets.ImageFolder)


def to_rows(folder: Path) -> Any:
    reader = module_of("memmap").Reader(folder / "part-00000", ["0.jpg", "1.bin"])
    return reader.read(0)


def test_what_is_the_same_each_time_is_stored_where_it_is_smallest(
    folder: Path, tmp_path: Path
) -> None:
    """After the crop, and before the tensor of floats, of four times the bytes."""
    dataset = datasets.ImageFolder(str(folder), copy.copy(RESIZED))
    found = convert(dataset, tmp_path / "plan", "pt", "hdf5")
    assert (found["cut"], [form["same"] for form in found["forms"].values()]) == (
        "before ToTensor",
        [2, 2],
    )
    files = convert(dataset, tmp_path / "files", "lmdb", "jpeg")["forms"]
    assert {form["cut"] for form in files.values()} == {"before Resize"}, (
        "files are stored before all transforms"
    )
    instead = in_place_of(dataset, tmp_path / "plan", found, "hdf5")
    assert not different(dataset[5], instead[5])
    batch = instead.__getitems__([4, 4 + N])
    assert not different(batch[0], batch[1])
    whole = convert(
        TensorDataset(torch.arange(N * 3).reshape(N, 3)), tmp_path / "whole", "memmap", "jpeg"
    )
    assert (whole["cut"], whole["files"], whole["forms"]["memmap"]["number"]) == ("whole", {}, None)
    assert whole["forms"]["jpeg"]["why"] == "its samples are no images before they are transformed"


def test_a_transform_that_is_no_compose_and_a_batch_that_is_read_together(tmp_path: Path) -> None:
    def noisy(value: Any) -> Any:
        return transforms.functional.to_tensor(value) + torch.rand(1)

    def small(value: Any) -> Any:
        return value.resize((3, 2))

    fixed = Made(image, small)
    found = convert(fixed, tmp_path / "fixed", "memmap", samples=8)
    assert (found["cut"], not hasattr(small, "transforms")) == ("after all transforms", True)
    assert not different(fixed[3], in_place_of(fixed, tmp_path / "fixed", found, "memmap")[1])

    class Together(Made):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [("together", self[index]) for index in indices]

    dataset = Together(image, noisy)
    found = convert(dataset, tmp_path, "memmap", "webdataset", samples=8)
    assert found["cut"] == "before noisy"
    assert found["forms"]["webdataset"]["payload"] == "Cut"  # it reads no file
    as_it_is, instead = (
        in_place_of(dataset, tmp_path, found, form) for form in (AS_IT_IS, "memmap")
    )
    (word, first), (_, second) = seeded(as_it_is, [1, 9])
    assert word == "together"
    assert (first["label"], second["label"]) == (spread(N, 8)[1], spread(N, 8)[1])
    assert not different(seeded(instead, [1, 9]), [first, second])


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from range(N)


class StreamOfKnownLength(Stream):
    def __len__(self) -> int:
        return N


@pytest.mark.parametrize(
    ("dataset", "why"),
    [
        (StreamOfKnownLength(), "its samples have no index, so they can only be read in its own"),
        (
            Made(lambda index: torch.rand(3)),
            "its samples differ each time they are read, and not because of one tra",
        ),
        (
            Made(lambda index: (image(index), torch.rand(1)), lambda pair: pair),
            "its samples differ each time they are",
        ),
        (Stream(), "its samples have no index, so they can only be read in its own order"),
    ],
    ids=["stream of known length", "random", "in part", "stream"],
)
def test_what_cannot_be_stored_is_refused(dataset: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=why):
        convert(dataset, tmp_path, "memmap")


def test_a_form_that_does_not_fit_says_why(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        FORMS, "hdf5", dataclasses.replace(FORMS["hdf5"], package="no_such_package")
    )
    strange = convert(
        Made(lambda index: (index, SimpleNamespace(a=1))), tmp_path / "a", "memmap", "hdf5"
    )["forms"]
    assert strange["memmap"]["why"] == "TypeError: a value of type SimpleNamespace cannot be stored"
    assert strange["hdf5"]["why"] == "no_such_package is not installed in the script's Python"
    palette = convert(Made(lambda index: image(index).convert("P")), tmp_path / "p", "memmap")[
        "forms"
    ]["memmap"]
    assert palette["why"] == "TypeError: a value of type Image cannot be stored"
    mixed = convert(
        Made(lambda index: index if index < 20 else str(index)),
        tmp_path / "b",
        "memmap",
        samples=None,
    )
    assert "sample 20 has other values than sample 0" in mixed["forms"]["memmap"]["why"]
    dataset = datasets.ImageFolder(str(folder), CROPPED)
    large = convert(dataset, tmp_path / "c", "jpeg", side=60)["forms"]["jpeg"]["why"]
    assert large == "its images are not larger than 60 pixels"
    usage = shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    full = convert(dataset, tmp_path / "d", "memmap")["forms"]["memmap"]["why"]
    assert full.startswith("there is no room: it takes about 0.0 GB")


def test_all_samples_are_stored_once_and_never_among_the_files(
    folder: Path, tmp_path: Path
) -> None:
    dataset, to = datasets.ImageFolder(str(folder), CROPPED), tmp_path / "all"
    assert convert(dataset, to, "lmdb", samples=None)["forms"]["lmdb"]["why"] == ""
    part = to / "part-00000" / "data.mdb"
    written = part.stat().st_mtime_ns
    assert convert(dataset, to, "lmdb", samples=None)["forms"]["lmdb"]["why"] == ""
    assert part.stat().st_mtime_ns == written
    smaller = [
        convert(dataset, tmp_path / "small", "jpeg", samples=None, side=side) for side in (30, 40)
    ]
    assert [found["forms"]["jpeg"]["why"] for found in smaller] == [
        "",
        f"{tmp_path / 'small'} holds other samples: they are stored in another form, "
        "size or order of transforms; choose a new folder, or remove it",
    ]
    other = convert(Made(image), to, "lmdb", samples=None)["forms"]["lmdb"]["why"]
    assert other.startswith(f"{to} holds other samples: their values are of other types")
    with pytest.raises(ValueError, match="is in the folder of its files; choose another one"):
        convert(dataset, folder / "new", "lmdb", samples=None)
    with opening() as opened:
        read = stored.Samples(to, module_of("lmdb").Reader)[7]
    assert opened == [str(part)], "none of the Dataset's own files"
    assert not different(
        read, (Image.open(dataset.samples[7][0]).convert("RGB"), dataset.samples[7][1])
    )


class Numbers(Dataset[Any]):
    """A dataset of numbers in a list, which a test changes."""

    def __init__(self, n: int) -> None:
        self.numbers = list(range(n))

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(self.numbers[index])


def why_not(dataset: Any, to: Path, form: str = "pt") -> str:
    """Returns why all samples cannot be stored in a folder; "" where they are."""
    made = convert(dataset, to, form, samples=None)["forms"][form]
    return str(made["why"])


def test_samples_of_before_are_compared_with_the_dataset_as_it_is_now(tmp_path: Path) -> None:
    dataset, to = Numbers(600), tmp_path / "all"
    assert why_not(dataset, to) == ""
    assert convert(dataset, to, "pt", samples=None)["forms"]["pt"]["earlier"] == 600
    dataset.numbers[100:150] = [-1] * 50
    changed = why_not(dataset, to)
    assert changed.startswith(f"{to} holds other samples: sample 102 has changed since; choose a ")
    dataset.numbers = list(range(599, -1, -1))
    assert "sample 0 has changed since" in why_not(dataset, to)
    dataset.numbers = list(range(601))
    assert "holds other samples: 600, and the Dataset has 601 now; choose" in why_not(dataset, to)
    dataset.numbers = list(range(600))
    assert "they are stored in another form" in why_not(dataset, to, "memmap")
    assert why_not(dataset, to) == ""


def test_an_attempt_that_was_ended_goes_on_unless_samples_have_changed(tmp_path: Path) -> None:
    dataset = Numbers(30)
    module = module_of("pt")
    stored.convert(dataset, tmp_path, module.Writer, module.Reader, part=10)
    shutil.rmtree(tmp_path / "part-00002")
    dataset.numbers[12] = -1
    with pytest.raises(ValueError, match="sample 12 has changed since"):
        stored.convert(dataset, tmp_path, module.Writer, module.Reader, part=10)
    assert not (tmp_path / "part-00002").exists()
    dataset.numbers[12] = 12
    stored.convert(dataset, tmp_path, module.Writer, module.Reader, part=10)
    samples = stored.Samples(tmp_path, module.Reader)
    assert [int(samples[index]) for index in range(30)] == list(range(30))


def test_a_part_that_cannot_be_read_is_named_and_stored_again_once_it_is_removed(
    tmp_path: Path,
) -> None:
    to = tmp_path / "all"
    assert why_not(Numbers(30), to) == ""
    part = to / "part-00000"
    shutil.rmtree(part)
    part.mkdir()
    damaged = why_not(Numbers(30), to)
    assert damaged.startswith(f"{part} cannot be read ([Errno 2] No such file or directory")
    assert damaged.endswith("; remove it, and it is stored again")
    part.rmdir()
    assert why_not(Numbers(30), to) == ""


def test_a_folder_that_another_process_stores_into_is_left_alone(tmp_path: Path) -> None:
    to = tmp_path / "all"
    to.mkdir()
    with stored.locked(to):
        line = f"another process is storing samples in {to}; wait until it has ended"
        assert why_not(Numbers(30), to) == line
        assert [path.name for path in to.iterdir()] == ["stored.lock"]
    assert why_not(Numbers(30), to) == ""


def test_a_full_drive_is_named_whatever_a_library_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)

    def fills(writer: Any, values: Any) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=4096))
        raise RuntimeError("basic_ios::clear: iostream error")

    monkeypatch.setattr(module_of("pt").Writer, "add", fills)
    line = f"the drive of {tmp_path} is full; make room, and the same command goes on"
    assert why_not(Numbers(30), tmp_path / "all") == line


@pytest.mark.parametrize(
    ("key", "to_do"),
    [
        ("a.jpg", "keep a list of the names in the Dataset, have the sampler give positions in it"),
        (slice(0, 8), "have the sampler give a number for each sample"),
    ],
)
def test_samples_that_have_names_and_no_numbers_are_not_stored(
    tmp_path: Path, key: object, to_do: str
) -> None:
    request = {"directory": str(tmp_path), "forms": ["pt"], "samples": None, "side": None}
    with pytest.raises(ValueError) as caught:
        stored_in_forms(torch.ones(4, 2), request, name_of, [key])
    asked = f"its sampler asks for samples by {key!r}, and not by number"
    line = f"{asked}: stored samples have numbers alone; {to_do}"
    assert str(caught.value).startswith(line)
