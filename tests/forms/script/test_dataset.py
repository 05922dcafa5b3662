"""What a Dataset is said to be: looked at in this process, as in a script's."""

import gc
import io
import json
import weakref
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    TensorDataset,
    default_collate,
)
from torchvision import datasets, transforms

from vitprof.experiments.script_data.facts import DatasetFacts
from vitprof.forms.script import dataset
from vitprof.recording import codec
from vitprof.watch.data_report import keys_of
from vitprof.watch.fetch_times import name_of, transform_times
from vitprof.watch.patches import making
from vitprof.watch.script_objects import ScriptLoader

N = 40
LOADER = {"batch_size": 8, "num_workers": 0}


class Pair(NamedTuple):
    image: Any
    label: int


class By(Dataset[Any]):
    """A dataset whose samples a function makes."""

    def __init__(self, make: Any, n: int = N) -> None:
        self.make, self.n = make, n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from ((torch.full((3,), float(i)), i) for i in range(N))


def facts(of: Any, keys: Sequence[Any] = (), **loader: Any) -> DatasetFacts:
    """What is said of a dataset, on the way that it takes to the command."""
    known = LOADER | loader
    seen = dataset.described(of, default_collate, known, name_of, transform_times, keys)
    found = json.loads(json.dumps(seen))
    return codec.from_plain(DatasetFacts, found)


def said(of: Any, **loader: Any) -> str:
    return "\n".join(facts(of, **loader).sentences())


def whole(index: int) -> Any:
    tokens = torch.arange(64) * 700 + index
    return {
        "tokens": tokens,
        "text": "a" * index,
        "pair": Pair(np.zeros((1, 100 + index % 2), np.float32), index),
    }


def test_what_is_in_a_sample_is_named_truly() -> None:
    found = facts(By(whole))
    assert [(leaf.path, leaf.kinds, leaf.dtypes, leaf.narrow) for leaf in found.leaves] == [
        ("['tokens']", ("tensor",), ("int64",), "uint16"),
        ("['text']", ("str",), ("",), ""),
        ("['pair'].image", ("array",), ("float32",), ""),
        ("['pair'].label", ("int",), ("",), ""),
    ]
    words = "\n".join(found.sentences())
    assert (
        "['tokens']: tensor int64 (64,), 512 B; its values fit in uint16: 4 times the bytes"
        in words
    )
    assert "['pair'].image: array float32 (1, 100 to 101)" in words
    assert (found.samples, found.n_read, found.is_random) == (N, dataset.MOST_SAMPLES, False)
    assert "Workers: by fork yes; by spawn or forkserver yes" in words


def test_images_in_files_are_decoded_transformed_and_read_from_the_drive(tmp_path: Path) -> None:
    making.time_composes()
    for i in range(N):
        path = tmp_path / "images" / f"c{i % 2}" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(i).integers(0, 255, (90, 120, 3), np.uint8)).save(
            path
        )
    crop = transforms.Compose([transforms.RandomResizedCrop(48), transforms.ToTensor()])
    found = facts(datasets.ImageFolder(tmp_path / "images", crop))
    assert list(found.transforms_s) == ["RandomResizedCrop", "ToTensor"]
    assert 0 < found.decode_s < np.median(found.sample_s)
    assert (found.files_opened, len(found.files), found.leaves[0].narrow) == (
        1,
        dataset.MOST_SAMPLES,
        "uint8",
    )
    assert found.read_bytes == pytest.approx(
        np.median([path.stat().st_size for path in tmp_path.rglob("*.jpg")]), rel=0.1
    )
    assert (found.random, found.n_random) == (("[0]",), dataset.TWICE)
    assert "differ, at [0]" in "\n".join(found.sentences())


def test_one_after_the_other_without_a_length() -> None:
    found = facts(Stream())
    assert (found.samples, found.by_index, found.n_read, found.is_random) == (
        None,
        False,
        32,
        False,
    )
    assert (
        "Stream (tests.forms.script.test_dataset): it does not say how many samples"
        in found.sentences()[0]
    )


def test_what_is_open_and_cannot_be_sent(tmp_path: Path) -> None:
    gc.collect()  # what other tests opened: the first files are named only
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.zeros((N, 4))
    zipfile.ZipFile(tmp_path / "a.zip", "w").close()
    with h5py.File(tmp_path / "a.h5") as file, zipfile.ZipFile(tmp_path / "a.zip") as archive:
        held = By(lambda index: file["x"][index])
        held.file, held.more = file, {"zip": archive, "closed": io.BytesIO()}  # type: ignore[attr-defined]
        found = facts(held)
        assert found.handles == ("h5py.File in .file", "zipfile.ZipFile in .more['zip']")
        assert str(tmp_path / "a.h5") in found.held_files
    assert (found.pickle.works, found.fork.works) == (False, True)
    assert "by spawn or forkserver no: " in "\n".join(found.sentences())


def some(index: int) -> int:
    if index > 20:
        raise OSError("it is\nbroken")
    return index


def test_samples_that_cannot_be_read_are_named() -> None:
    found = facts(By(some))
    assert (len(found.failed) + found.n_read, found.failed[0]) == (
        32,
        "sample 21: OSError: it is broken",
    )
    assert "cannot be read: sample 21: OSError: it is broken" in "\n".join(found.sentences())
    with pytest.raises(ValueError, match="sample 0: ZeroDivisionError"):
        facts(By(lambda _: 1 // 0))
    with pytest.raises(ValueError, match="it has no sample"):
        facts(By(some, n=0))


def test_workers_of_the_script_show_that_they_work() -> None:
    before = torch.get_num_threads()
    try:
        words = said(TensorDataset(torch.rand(N, 3)), num_workers=2)
        assert torch.get_num_threads() == 1, "as in a worker"
    finally:
        torch.set_num_threads(before)
    assert "Time for a sample in one thread, as in a worker: " in words
    assert "by fork yes, the script's own" in words


NAMES = [f"image {number}" for number in range(N)]


class Named(By):
    """Knows its samples by their names."""

    def __init__(self) -> None:
        super().__init__(lambda name: (torch.full((3,), 1.0), NAMES.index(name)))


class InSlices(By):
    """Gives whole batches."""

    def __init__(self) -> None:
        super().__init__(lambda rows: torch.arange(120.0).reshape(N, 3)[rows.start : rows.stop])


SLICES = [slice(first, first + 8) for first in range(0, N, 8)]


@pytest.mark.parametrize(
    ("loader", "first", "n"),
    [
        (DataLoader(Named(), 8, sampler=NAMES), "'image 0'", 32),
        (DataLoader(Named(), batch_sampler=[NAMES[:20], NAMES[20:]]), "'image 0'", 32),
        (DataLoader(InSlices(), batch_size=None, sampler=SLICES), "slice(0, 8, None)", 5),
        (DataLoader(By(lambda pair: torch.ones(pair[1])), sampler=[(0, 4)]), "(0, 4)", 1),
    ],
)
def test_samples_are_asked_for_as_the_scripts_sampler_does(
    loader: DataLoader[Any], first: str, n: int
) -> None:
    """By names, slices or tuples: by number there may be none."""
    for of in (loader, iter(loader)):
        keys = keys_of(ScriptLoader({}, (weakref.ref(of),)))
        found = facts(loader.dataset, keys)
        assert (found.key, found.n_read, found.failed, found.fork.works) == (first, n, (), True)
    assert f"read by what its sampler gives, such as {first}" in found.sentences()[0]


def test_numbers_of_a_sampler_are_no_keys() -> None:
    samples = TensorDataset(torch.rand(N, 3))
    for loader in (
        DataLoader(samples, 8, shuffle=True),
        DataLoader(samples, batch_size=None),
        DataLoader(samples, sampler=list(np.arange(N))),
        DataLoader(samples, sampler=list(torch.arange(N))),
    ):
        assert keys_of(ScriptLoader({}, (weakref.ref(loader),))) == []
    gone = DataLoader(samples)
    reference = weakref.ref(gone)
    del gone
    assert keys_of(ScriptLoader({}, (reference,))) == []


def test_indices_are_spread_evenly() -> None:
    assert dataset.spread(3, 32) == [0, 1, 2]
    assert dataset.spread(1000, 3) == [0, 499, 999]
