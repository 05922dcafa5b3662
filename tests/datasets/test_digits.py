"""vitprof.datasets.digits: the same seed gives the same bytes, and the set is what it says."""

import threading
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from vitprof.datasets import digits, mnist
from vitprof.datasets.mnist import read_split
from vitprof.errors import DataError, JobStopped


def content(root: Path) -> dict[str, bytes]:
    return {name: (mnist.raw_dir(root) / name).read_bytes() for name in mnist.FILES}


@pytest.fixture(scope="session")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set a tenth of its real size."""
    root = tmp_path_factory.mktemp("full")
    digits.make(root, n_train=6000, n_test=1000)
    return root


def test_full_set(full: Path) -> None:
    """As torchvision reads it too."""
    from torchvision.datasets import MNIST

    for train, n in ((True, 6000), (False, 1000)):
        images, labels = read_split(full, train)
        assert (images.shape, images.dtype) == ((n, 28, 28), np.uint8)
        assert labels.dtype == np.int64
        assert np.bincount(labels).tolist() == [n // 10] * 10
        # Shuffled: every batch of 1,000 has each class about 100 times (binomial standard deviation 9.5).
        in_batches = np.stack(
            [np.bincount(batch, minlength=10) for batch in labels.reshape(-1, 1000)]
        )
        assert in_batches.min() > 50
        assert in_batches.max() < 150
        # The catalogue normalises with MNIST's 0.1307 and 0.3081; the pixels must be near enough for that.
        assert 0.10 < (images / np.float32(255)).mean() < 0.18
        assert 0.20 < (images / np.float32(255)).std() < 0.35
        theirs = MNIST(str(full), train=train, download=False)
        assert np.array_equal(theirs.data.numpy(), images)
        assert np.array_equal(theirs.targets.numpy(), labels)
        picture, label = theirs[7]
        assert np.array_equal(np.asarray(picture), images[7])
        assert label == labels[7]
    # No image is in both splits, or twice.
    images = np.concatenate([read_split(full, train)[0] for train in (True, False)])
    assert len({image.tobytes() for image in images}) == len(images)


def test_classes_can_be_told_apart_but_not_by_a_template(full: Path) -> None:
    (images, labels), (others, truth) = read_split(full, True), read_split(full, False)
    means = np.stack([images[labels == digit].mean(0) for digit in range(10)]).reshape(10, -1)
    flat = others.reshape(len(others), -1).astype(np.float32)
    nearest = (flat @ means.T - (means**2).sum(1) / 2).argmax(1)
    assert 0.3 < (nearest == truth).mean() < 0.9


def test_the_seed_alone_decides_on_the_bytes_and_splits_differ(tmp_path: Path) -> None:
    """Not the number of threads; and no global random state is used."""
    np.random.seed(1)
    before = np.random.get_state()[1].tobytes()

    def made(seed: int, threads: int) -> dict[str, bytes]:
        n = 2 * digits.IMAGES_A_CHUNK + 345
        digits.make(tmp_path, n_train=n, n_test=n, seed=seed, threads=threads)
        return content(tmp_path)

    one, other = made(7, threads=1), made(8, threads=1)
    assert made(7, threads=3) == one
    assert all(one[name] != other[name] for name in mnist.FILES)
    assert one[mnist.FILES[0]] != one[mnist.FILES[2]]
    assert one[mnist.FILES[1]] != one[mnist.FILES[3]]
    assert np.random.get_state()[1].tobytes() == before


def test_blocks_of_images_change_no_pixel(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = (np.arange(100) % 10).astype(np.uint8)
    bank = digits.glyphs()
    drawn = digits.distort(bank, labels, np.random.default_rng(3))
    for images_a_block in (1, 7, 100):
        monkeypatch.setattr(digits, "IMAGES_A_BLOCK", images_a_block)
        again = digits.distort(bank, labels, np.random.default_rng(3))
        assert np.array_equal(again, drawn)


def test_glyphs_have_a_margin_and_differ() -> None:
    bank = digits.glyphs()
    assert bank.shape == (
        10,
        len(digits.HEIGHTS_PX) * len(digits.STROKES),
        digits.CANVAS,
        digits.CANVAS,
    )
    assert bank.dtype == np.float32
    assert (bank.min(), bank.max()) == (0, 1)
    ring = np.ones((digits.CANVAS, digits.CANVAS), bool)
    ring[1:-1, 1:-1] = False
    assert not bank[:, :, ring].any()  # what is outside the canvas is taken from this ring
    flat = bank.reshape(-1, digits.CANVAS**2)
    assert len(np.unique(flat, axis=0)) == len(flat)


def test_bilinear_sampling_is_exact_on_the_grid_and_between() -> None:
    bank = digits.glyphs().reshape(-1, digits.CANVAS, digits.CANVAS)
    glyph = np.array([3, 40])
    y, x = (a.astype(np.float32)[None].repeat(2, 0) for a in np.mgrid[8:28, 8:28])
    on_grid = digits._bilinear(bank.reshape(-1), x.copy(), y.copy(), glyph)
    assert np.array_equal(on_grid, bank[glyph, 8:28, 8:28])
    between = digits._bilinear(bank.reshape(-1), x + np.float32(0.25), y + np.float32(0.5), glyph)
    rows = (bank[glyph, 8:28] + bank[glyph, 9:29]) / 2
    assert np.allclose(between, 0.75 * rows[:, :, 8:28] + 0.25 * rows[:, :, 9:29], atol=1e-6)
    outside = digits._bilinear(bank.reshape(-1), x - 1000, y + 1000, glyph)
    assert not outside.any()


def test_tiny_sets(tmp_path: Path) -> None:
    for n_train, n_test in ((0, 0), (1, 0), (3, 7)):
        digits.make(tmp_path, n_train=n_train, n_test=n_test)
        assert read_split(tmp_path, True)[0].shape == (n_train, 28, 28)
        assert read_split(tmp_path, False)[1].shape == (n_test,)
    with pytest.raises(DataError, match="No such file or directory"):
        digits.make(tmp_path / "nothing", n_train=1, n_test=1)


def test_progress_rises_to_one_chunk_by_chunk(tmp_path: Path) -> None:
    told, n = Mock(), digits.IMAGES_A_CHUNK
    digits.make(tmp_path, n_train=3 * n, n_test=n, progress=told)
    assert [call.args[0] for call in told.call_args_list] == [0, 0.25, 0.5, 0.75, 1]
    assert told.call_args.args[1] == "drawing digits: 4,000 of 4,000"


@pytest.mark.parametrize("chunks", [0, 5])
def test_stop_ends_it_and_its_threads(tmp_path: Path, chunks: int) -> None:
    asked = iter(range(100))
    with pytest.raises(JobStopped, match="digits"):
        digits.make(
            tmp_path,
            n_train=20 * digits.IMAGES_A_CHUNK,
            n_test=10,
            stop=lambda: next(asked) == chunks,
        )
    assert next(asked) == chunks + 1
    assert not [t.name for t in threading.enumerate() if t.name.startswith("vitprof-digits")]
