"""vitprof.engine.data.photos: the same seed gives the same bytes, natural statistics, made once, and gone on with."""

import io
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests import ROOT
from tests.alarm import cpu_alarm
from tests.engine_fixtures import N_PHOTOS
from vitprof.config.catalog import DATASETS, dataset_info
from vitprof.engine.data import photos, scenes
from vitprof.engine.data.datasets import MANIFEST, open_source, prepare
from vitprof.errors import DataError, JobStopped, SampleError

N_TEST = N_PHOTOS // 10


@pytest.fixture
def made(photos_home: Path) -> Path:
    """The set that all tests share: read only."""
    return photos_home / "data" / f"photos-{N_PHOTOS}"


@pytest.fixture
def mine(made: Path, vitprof_home: Path) -> Path:
    """A copy of it in this test's home."""
    return Path(shutil.copytree(made, vitprof_home / "data" / made.name))


def content(root: Path) -> dict[str, bytes]:
    return {name: path.read_bytes() for name, path in photos.files(root).items()}


def one_line(kind: type[Exception], n: int = N_PHOTOS) -> str:
    with pytest.raises(kind) as caught:
        prepare("photos", n)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def opened(path: Path) -> Image.Image:
    with Image.open(path) as image:
        image.load()
    return image


def test_layout(made: Path) -> None:
    found = photos.files(made)
    for split, n in (("train", N_PHOTOS), ("test", N_TEST)):
        assert sorted(p.name for p in (made / split).iterdir()) == [f"class-{label:03d}" for label in range(100)]
        names = sorted(Path(name).name for name in found if name.startswith(f"{split}/"))
        assert names == [f"{split}-{i:06d}.jpg" for i in range(n)]
    in_class = [len(list((made / "train" / photos.class_name(label)).iterdir())) for label in range(100)]
    assert sorted(in_class) == [1] * 80 + [2] * 20
    assert {p.name for p in made.iterdir()} == {"train", "test", MANIFEST}


def test_files_are_as_photographs(made: Path) -> None:
    images = {path: opened(path) for path in photos.files(made).values()}
    sizes = np.array([path.stat().st_size for path in images])
    assert 60_000 < sizes.mean() < 140_000
    assert sizes.std() > 0.1 * sizes.mean()
    # what is asked for beforehand is about what is needed
    assert 0.8 < sizes.mean() / photos.BYTES_AN_IMAGE < 1.1
    sides = np.array([image.size for image in images.values()])
    assert 460 < sides.max(1).mean() < 540
    assert 340 < sides.min(1).mean() < 410
    assert 0.1 < (sides[:, 1] > sides[:, 0]).mean() < 0.5
    assert len(np.unique(sides, axis=0)) > 8
    first = next(iter(images.values()))
    assert (first.mode, first.format) == ("RGB", "JPEG")
    # quality 90 with libjpeg's tables, and chroma at half the resolution
    tables = io.BytesIO()
    Image.new("RGB", (8, 8)).save(tables, "JPEG", quality=90)
    with Image.open(tables) as reference:
        assert first.quantization == reference.quantization  # type: ignore[attr-defined]
    assert [layer[1:3] for layer in first.layer] == [(2, 2), (1, 1), (1, 1)]  # type: ignore[attr-defined]


@pytest.mark.slow
def test_natural_statistics(made: Path) -> None:
    """Amplitude falls as 1/f; there are sharp borders, flat regions, and colours about as in ImageNet."""
    pixels = [np.asarray(opened(path), np.float32) for path in list(photos.files(made).values())[:60]]
    slopes = []
    for image in pixels:
        grey = image.mean(2)[:256, :256]
        window = np.hanning(256)[:, None] * np.hanning(256)
        spectrum = np.abs(np.fft.rfft2((grey - grey.mean()) * window))
        radius = np.hypot(np.fft.fftfreq(256)[:, None], np.fft.rfftfreq(256)[None, :])
        bands = np.geomspace(8 / 256, 0.35, 9)
        power = [spectrum[(radius >= low) & (radius < high)].mean() for low, high in itertools.pairwise(bands)]
        slopes.append(np.polyfit(np.log(np.sqrt(bands[1:] * bands[:-1])), np.log(power), 1)[0])
    # Photographs: -0.8 to -1.5 (Tolhurst et al. 1992, Ophthalmic Physiol. Opt. 12:229)
    assert -1.5 < np.mean(slopes) < -0.8
    flat_share, sharp_share = [], []
    for image in pixels:
        steps = np.abs(np.diff(image.mean(2), axis=1))
        blocks = steps[: steps.shape[0] // 16 * 16, : steps.shape[1] // 16 * 16]
        blocks = blocks.reshape(blocks.shape[0] // 16, 16, -1, 16).mean((1, 3))
        flat_share.append((blocks < 4).mean())
        sharp_share.append((steps > 40).mean())
    assert np.mean(flat_share) > 0.05
    assert np.mean(sharp_share) > 0.005
    flat = np.concatenate([image.reshape(-1, 3)[::50] for image in pixels]) / 255
    assert np.allclose(flat.mean(0), DATASETS["photos"].mean, atol=0.08)
    assert np.allclose(flat.std(0), DATASETS["photos"].std, atol=0.06)


def features(images: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Of thumbnails (n, 28, 28, 3): which hues there are, and in which direction brightness changes."""
    x = images.astype(np.float64)
    tint = np.stack([x[..., 0] - x[..., 1:].mean(-1), (x[..., 1] - x[..., 2]) * np.sqrt(3) / 2], -1)
    angle, strength = np.arctan2(tint[..., 1], tint[..., 0]), np.hypot(tint[..., 0], tint[..., 1])
    bins = ((angle / (2 * np.pi) * 20 + 20) % 20).astype(int)
    hues = np.stack([(strength * (bins == k)).sum((1, 2)) for k in range(20)], 1)
    hues /= hues.sum(1, keepdims=True)
    grey = x.mean(-1)
    across, down = np.abs(np.diff(grey, axis=2)).mean((1, 2)), np.abs(np.diff(grey, axis=1)).mean((1, 2))
    return np.concatenate([hues, ((across - down) / (across + down))[:, None]], 1)


@pytest.mark.slow
def test_classes_can_be_told_apart_in_thumbnails() -> None:
    """By the nearest mean of a few crude features; every 7th class. A network does better, and does not know them."""
    info = DATASETS["photos"]
    labels = np.arange(0, info.classes, 7)
    side = 28
    rng = np.random.default_rng(9)

    def thumbnails(label: int, n: int) -> NDArray[np.uint8]:
        made = []
        for _ in range(n):
            image = Image.fromarray(scenes.draw(int(label), rng))
            width, height = image.size
            top, left = rng.uniform(0, 0.3 * height), rng.uniform(0, 0.3 * width)
            box = (left, top, left + 0.7 * width, top + 0.7 * height)
            image = image.resize((side, side), Image.Resampling.BOX, box=box)
            made.append(np.asarray(image)[:, :: rng.choice((-1, 1))])
        return np.stack(made)

    means = np.stack([features(thumbnails(label, 12)).mean(0) for label in labels])
    right = 0
    for i, label in enumerate(labels):
        found = features(thumbnails(label, 6))
        right += int((((found[:, None] - means) ** 2).sum(-1).argmin(1) == i).sum())
    assert right / (6 * len(labels)) > 0.5  # by chance: 1 / 15


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 3])
def test_same_seed_same_bytes_whatever_the_threads(tmp_path: Path, threads: int) -> None:
    sizes = {"n_train": 2 * photos.IMAGES_A_CHUNK + 3, "n_test": 4}
    for name, n in (("a", None), ("b", threads)):
        (tmp_path / name).mkdir()
        photos.make(tmp_path / name, **sizes, seed=7, threads=n)
    assert content(tmp_path / "a") == content(tmp_path / "b")
    assert len(content(tmp_path / "a")) == sum(sizes.values())


def test_seeds_splits_and_samples_differ(tmp_path: Path) -> None:
    for seed in (1, 2):
        (tmp_path / str(seed)).mkdir()
        photos.make(tmp_path / str(seed), n_train=5, n_test=5, seed=seed)
    files = [*content(tmp_path / "1").values(), *content(tmp_path / "2").values()]
    assert len(set(files)) == 20


@pytest.mark.slow
def test_stopped_and_gone_on_with(made: Path, vitprof_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Complete files are kept, one that was cut short is made again; the result is the same."""
    monkeypatch.setattr(photos, "IMAGES_A_CHUNK", 4)
    data = vitprof_home / "data"
    asked = iter(range(100))
    with pytest.raises(JobStopped, match="kept"):
        prepare("photos", N_PHOTOS, stop=lambda: next(asked) == 2)
    (partial,) = [p for p in data.iterdir() if p.is_dir()]
    assert partial.name.startswith(f".photos-{N_PHOTOS}.partial-")
    kept = list(photos.files(partial).values())
    assert photos.IMAGES_A_CHUNK <= len(kept) < N_PHOTOS
    kept[0].write_bytes(kept[0].read_bytes()[:1000])
    kept[1].write_bytes(b"")
    inodes = {path.name: path.stat().st_ctime_ns for path in kept[2:]}
    told: list[str] = []
    root = prepare("photos", N_PHOTOS, progress=lambda fraction, message: told.append(message))
    assert f"making photos: {len(kept) - 2:,} of {N_PHOTOS + N_TEST:,}" in told
    assert content(root) == content(made)
    again = {p.name: p.stat().st_ctime_ns for p in photos.files(root).values() if p.name in inodes}
    assert again == inodes
    assert [p.name for p in data.iterdir() if p.is_dir()] == [root.name]


def test_what_another_version_left_is_not_used(vitprof_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(photos.IDENTITY, "version", 0)
    asked = iter(range(100))
    with pytest.raises(JobStopped):
        prepare("photos", N_PHOTOS, stop=lambda: next(asked) == 2)
    monkeypatch.undo()
    monkeypatch.setenv("VITPROF_HOME", str(vitprof_home))
    with pytest.raises(JobStopped):
        prepare("photos", N_PHOTOS, stop=lambda: True)
    (partial,) = [p for p in (vitprof_home / "data").iterdir() if p.is_dir()]
    assert not photos.files(partial)


@pytest.mark.slow
def test_killed_while_making(made: Path, vitprof_home: Path) -> None:
    code = f"""
import os, signal
from vitprof.engine.data import datasets
datasets.prepare("photos", {N_PHOTOS}, progress=lambda f, m: f > 0.4 and os.kill(os.getpid(), signal.SIGKILL))
"""
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    child = subprocess.run([sys.executable, "-c", code], env=env, timeout=120, check=False)
    assert child.returncode == -signal.SIGKILL
    assert not (vitprof_home / "data" / made.name).exists()
    assert content(prepare("photos", N_PHOTOS)) == content(made)


def test_damaged_files_are_named(mine: Path) -> None:
    path = list(photos.files(mine).values())[5]
    whole = path.read_bytes()
    for damaged in (whole[:-1], b"", whole + b"x"):
        path.write_bytes(damaged)
        message = one_line(SampleError)
        assert message.startswith(f"{path} is damaged (size differs")
        assert "skip unreadable samples" in message
        assert prepare("photos", N_PHOTOS, skip_unreadable=True) == mine
    path.unlink()
    message = one_line(DataError)
    assert message == f"{path} is missing; delete {mine} and it is made again"
    with pytest.raises(DataError, match="is missing"):
        prepare("photos", N_PHOTOS, skip_unreadable=True)
    path.write_bytes(whole)
    stranger = path.with_name("zebra.jpg")
    stranger.write_bytes(whole)
    assert one_line(DataError) == f"{stranger} is not one of the set's files; move it away"
    stranger.unlink()
    assert prepare("photos", N_PHOTOS) == mine
    shutil.rmtree(mine / "test")
    assert f"delete {mine} and it is made again" in one_line(DataError)


def test_made_once_and_checked_and_sizes_lie_side_by_side(mine: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in mine.rglob("*")}
    assert prepare("photos", N_PHOTOS) == mine
    assert {p: p.stat().st_mtime_ns for p in mine.rglob("*")} == before
    manifest = json.loads((mine / MANIFEST).read_text())
    assert manifest["maker"] == photos.IDENTITY
    assert len(manifest["files"]) == N_PHOTOS + N_TEST
    other = prepare("photos", 3)
    assert other.name == "photos-3"
    assert len(open_source(dataset_info("photos", 3), other, train=True).ids) == 3
    assert len(open_source(dataset_info("photos", 3), other, train=False).ids) == 1
    assert mine.is_dir()


def test_disk_full(vitprof_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with cpu_alarm(2.0), pytest.raises(DataError, match=r"^disk full: .* needs 1050\d+\.\d MB and has"):
        photos.make(tmp_path, n_train=10**9, n_test=0)  # refused before anything is listed
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9 - 5, 5))  # type: ignore[attr-defined]
    assert one_line(DataError).startswith(f"disk full: {vitprof_home / 'data'} needs 14.9 MB")
    assert [p.name for p in (vitprof_home / "data").iterdir()] == [f".photos-{N_PHOTOS}.lock"]
