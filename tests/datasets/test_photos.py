"""vitprof.datasets.photos: the same seed gives the same bytes, natural statistics, made once, and gone on with."""

import io
import itertools
import json
import shutil
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.alarm import cpu_alarm
from tests.engine_fixtures import N_PHOTOS, error_in_one_line
from vitprof.datasets import photos, scenes
from vitprof.datasets.catalog import DATASETS, dataset_info
from vitprof.datasets.on_disk import MANIFEST, prepare
from vitprof.engine.storage.source import open_source
from vitprof.errors import DataError, JobStopped, SampleError

N_TEST = N_PHOTOS // 10
N = 20
LIMIT_S = 60.0
"""For what takes long on a busy machine."""
"""The photos of `few_photos`, which a test may damage."""


@pytest.fixture
def made(photos_home: Path) -> Path:
    """The set that all tests share: read only."""
    return photos_home / "data" / f"photos-{N_PHOTOS}"


def content(root: Path) -> dict[str, bytes]:
    return {name: path.read_bytes() for name, path in photos.image_files(root).items()}


def one_line(kind: type[Exception], n: int = N) -> str:
    with error_in_one_line(kind) as caught:
        prepare("photos", n)
    return str(caught.value)


def opened(path: Path) -> Image.Image:
    with Image.open(path) as image:
        image.load()
    return image


def test_layout(made: Path) -> None:
    found = photos.image_files(made)
    for split, n in (("train", N_PHOTOS), ("test", N_TEST)):
        assert sorted(p.name for p in (made / split).iterdir()) == [
            f"class-{label:03d}" for label in range(100)
        ]
        names = sorted(Path(name).name for name in found if name.startswith(f"{split}/"))
        assert names == [f"{split}-{i:06d}.jpg" for i in range(n)]
    in_class = [
        len(list((made / "train" / photos.class_name(label)).iterdir())) for label in range(100)
    ]
    assert sorted(in_class) == [1] * 80 + [2] * 20
    assert {p.name for p in made.iterdir()} == {"train", "test", MANIFEST}


def test_files_are_as_photographs(made: Path) -> None:
    images = {path: opened(path) for path in photos.image_files(made).values()}
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


def test_natural_statistics(made: Path) -> None:
    """Amplitude falls as 1/f; there are sharp borders, flat regions, and colours about as in ImageNet."""
    pixels = [
        np.asarray(opened(path), np.float32)
        for path in list(photos.image_files(made).values())[:60:2]
    ]
    slopes = []
    for image in pixels:
        grey = image.mean(2)[:256, :256]
        window = np.hanning(256)[:, None] * np.hanning(256)
        spectrum = np.abs(np.fft.rfft2((grey - grey.mean()) * window))
        radius = np.hypot(np.fft.fftfreq(256)[:, None], np.fft.rfftfreq(256)[None, :])
        bands = np.geomspace(8 / 256, 0.35, 9)
        power = [
            spectrum[(radius >= low) & (radius < high)].mean()
            for low, high in itertools.pairwise(bands)
        ]
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


def features(image: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Of a thumbnail: which hues there are, and in which direction brightness changes."""
    x = image.astype(np.float64)
    tint_x, tint_y = x[..., 0] - x[..., 1:].mean(-1), (x[..., 1] - x[..., 2]) * np.sqrt(3) / 2
    hue = (np.arctan2(tint_y, tint_x) / (2 * np.pi) * 20).astype(int) % 20
    hues = np.bincount(hue.ravel(), np.hypot(tint_x, tint_y).ravel(), 20)
    across, down = (np.abs(np.diff(x.mean(-1), axis=axis)).mean() for axis in (1, 0))
    return np.array([*hues / hues.sum(), (across - down) / (across + down)])


def test_classes_can_be_told_apart_in_thumbnails() -> None:
    """By the nearest mean of a few crude features; every 11th class. A network does better, and does not know them."""
    labels = np.arange(0, DATASETS["photos"].classes, 11)
    rng = np.random.default_rng(9)

    def drawn(label: int, n: int) -> NDArray[np.float64]:
        return np.stack(
            [
                features(cv2.resize(scenes.draw(label, rng)[40:280, 60:300], (28, 28)))
                for _ in range(n)
            ]
        )

    means = np.stack([drawn(int(label), 8).mean(0) for label in labels])
    distances = np.stack(
        [((drawn(int(label), 4)[:, None] - means) ** 2).sum(-1) for label in labels]
    )
    assert (
        distances.argmin(-1) == np.arange(len(labels))[:, None]
    ).mean() > 0.5  # by chance: 1 / 10


def test_the_seed_alone_decides_on_bytes_and_samples_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the number of threads; splits differ, too."""
    monkeypatch.setattr(photos, "IMAGES_A_CHUNK", 4)

    def made(seed: int, threads: int) -> dict[str, bytes]:
        root = tmp_path / f"{seed} {threads}"
        root.mkdir()
        photos.make(root, n_train=11, n_test=4, seed=seed, threads=threads)
        return content(root)

    one, other = made(7, threads=1), made(8, threads=1)
    assert (made(7, threads=3), len({*one.values(), *other.values()})) == (one, 30)


def test_stopped_and_gone_on_with(
    few_photos: Path, vitprof_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Complete files are kept, one that was cut short is made again; the result is the same."""
    monkeypatch.setenv("VITPROF_HOME", str(vitprof_home))
    monkeypatch.setattr(photos, "IMAGES_A_CHUNK", 4)
    data = vitprof_home / "data"
    draw = scenes.draw
    n_drawn = itertools.count()
    n_asked = itertools.count()
    stopped = threading.Event()

    def drawn_until_the_stop(*args: Any) -> Any:
        if next(n_drawn) >= 3 * photos.IMAGES_A_CHUNK:
            assert stopped.wait(LIMIT_S)
        return draw(*args)

    def stop() -> bool:
        if next(n_asked) == 2:
            stopped.set()
        return stopped.is_set()

    with monkeypatch.context() as patch:
        patch.setattr(scenes, "draw", drawn_until_the_stop)
        patch.setattr(photos, "job_cores", lambda: 1)  # one thread, which draws one after another
        with pytest.raises(JobStopped, match="kept"):
            prepare("photos", N, stop=stop)
    (partial,) = [p for p in data.iterdir() if p.is_dir()]
    assert partial.name.startswith(f".photos-{N}.partial-")
    kept = list(photos.image_files(partial).values())
    assert photos.IMAGES_A_CHUNK <= len(kept) < N
    kept[0].write_bytes(kept[0].read_bytes()[:1000])
    kept[1].write_bytes(b"")
    inodes = {path.name: path.stat().st_ctime_ns for path in kept[2:]}
    told: list[str] = []
    root = prepare("photos", N, progress=lambda fraction, message: told.append(message))
    assert f"making photos: {len(kept) - 2:,} of {N + N // 10:,}" in told
    assert content(root) == content(few_photos)
    again = {
        p.name: p.stat().st_ctime_ns for p in photos.image_files(root).values() if p.name in inodes
    }
    assert (again, [p.name for p in data.iterdir() if p.is_dir()]) == (inodes, [root.name])


def test_what_another_version_left_is_not_used(
    vitprof_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(photos.IDENTITY, "version", 0)
        patch.setattr(photos, "IMAGES_A_CHUNK", 4)
        with pytest.raises(JobStopped):
            prepare("photos", N, stop=Mock(side_effect=[False, False, *[True] * 9]))
    with pytest.raises(JobStopped):
        prepare("photos", N, stop=lambda: True)
    (partial,) = [p for p in (vitprof_home / "data").iterdir() if p.is_dir()]
    assert not photos.image_files(partial)


def test_damaged_files_are_named(few_photos: Path) -> None:
    path = list(photos.image_files(few_photos).values())[5]
    whole = path.read_bytes()
    for damaged in (whole[:-1], b"", whole + b"x"):
        path.write_bytes(damaged)
        message = one_line(SampleError)
        assert message.startswith(f"{path} is damaged (it differs")
        assert "skip unreadable samples" in message
        assert prepare("photos", N, skip_unreadable=True) == few_photos
    path.unlink()
    message = one_line(DataError)
    assert (
        message
        == f"{path} cannot be read (No such file or directory); delete {few_photos} and it is made again"
    )
    with pytest.raises(DataError, match="No such file"):
        prepare("photos", N, skip_unreadable=True)
    path.write_bytes(whole)
    stranger = path.with_name("zebra.jpg")
    stranger.write_bytes(whole)
    assert one_line(DataError) == f"{stranger} is not one of the set's files; move it away"
    stranger.unlink()
    assert prepare("photos", N) == few_photos
    shutil.rmtree(few_photos / "test")
    assert f"delete {few_photos} and it is made again" in one_line(DataError)


def test_made_once_and_checked_and_sizes_lie_side_by_side(few_photos: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in few_photos.rglob("*")}
    assert prepare("photos", N) == few_photos
    assert {p: p.stat().st_mtime_ns for p in few_photos.rglob("*")} == before
    manifest = json.loads((few_photos / MANIFEST).read_text())
    assert manifest["maker"] == photos.IDENTITY
    assert len(manifest["files"]) == N + N // 10
    other = prepare("photos", 3)
    assert (other.name, len(open_source(dataset_info("photos", 3), other, train=True).ids)) == (
        "photos-3",
        3,
    )
    assert len(open_source(dataset_info("photos", 3), other, train=False).ids) == 1
    assert few_photos.is_dir()


def test_disk_full(vitprof_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        cpu_alarm(2.0),
        pytest.raises(DataError, match=r"^disk full: .* needs 1050\d+\.\d MB and has"),
    ):
        photos.make(tmp_path, n_train=10**9, n_test=0)  # refused before anything is listed
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9 - 5, 5)
    )  # type: ignore[attr-defined]
    assert one_line(DataError).startswith(f"disk full: {vitprof_home / 'data'} needs 3.3 MB")
    assert [p.name for p in (vitprof_home / "data").iterdir()] == [f".photos-{N}.lock"]
