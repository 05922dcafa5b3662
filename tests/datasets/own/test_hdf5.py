"""HDF5 files as people have them: labels of every shape, pixels of every kind, and refusals."""

import io
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.datasets.own.test_readers import jpeg
from vitprof.datasets.own.look import look
from vitprof.datasets.own.readers import open_spec
from vitprof.errors import ConfigError

N = 12
SIDES = (40, 36)
CLASSES = 3
RNG = np.random.default_rng(7)
PIXELS: NDArray[np.uint8] = RNG.integers(0, 256, (N, *SIDES, 3), np.uint8)
GREY = np.ascontiguousarray(PIXELS[..., 0])
CLEAR = np.concatenate([PIXELS, GREY[..., None]], axis=3)
NUMBERS = np.arange(N) % CLASSES
NAMES = np.array(["cat", "dog", "Œuf"])[NUMBERS]
ONE_HOT = np.eye(CLASSES, dtype=np.float32)[NUMBERS]
TEXTS = h5py.string_dtype()
BYTES = np.array([name.encode() for name in NAMES])
ENUM = h5py.enum_dtype({"cat": 0, "dog": 1, "eel": 2}, np.uint8)


def file_of(top: Path, query: str = "", **datasets: Any) -> str:
    """Writes a file with these datasets, or lets functions write them. Returns its spec."""
    with h5py.File(top / "x.h5", "w") as file:
        for name, values in datasets.items():
            if callable(values):
                values(file, name)
            else:
                file.create_dataset(name.replace("__", "/"), data=values)
    return f"hdf5:{top}/x.h5{'?' if query else ''}{query}"


def samples(spec: str) -> tuple[list[NDArray[Any]], list[str], list[bool]]:
    """Returns the pixels of each sample, its class, and whether it is for training."""
    with closing(open_spec(spec)) as found:
        pixels = [np.asarray(Image.open(io.BytesIO(found.read(e.key)))) for e in found.samples]
        classes = [found.classes[sample.label] for sample in found.samples]
        return pixels, classes, [sample.train for sample in found.samples]


@pytest.mark.parametrize(
    "labels",
    [
        NUMBERS,
        NUMBERS.reshape(1, N),
        NUMBERS.reshape(N, 1),
        NUMBERS.reshape(N, 1, 1).astype(np.uint8),
        NUMBERS.astype(np.float64),
        ONE_HOT,
        ONE_HOT.T.astype(np.int64),
        ONE_HOT.astype(bool),
    ],
    ids=lambda labels: f"{labels.dtype}{labels.shape}",
)
def test_labels_of_every_shape_are_classes(labels: NDArray[Any], tmp_path: Path) -> None:
    pixels, classes, _ = samples(file_of(tmp_path, X=PIXELS, Y=labels))
    assert classes == [str(number) for number in NUMBERS]
    assert np.array_equal(pixels, PIXELS)


@pytest.mark.parametrize(
    ("labels", "dtype", "names"),
    [
        (BYTES, BYTES.dtype, NAMES),
        (BYTES.reshape(N, 1), BYTES.dtype, NAMES),
        (NAMES.astype(object), TEXTS, NAMES),
        (NAMES.astype(object).reshape(1, N), TEXTS, NAMES),
        (NUMBERS, ENUM, np.array(["cat", "dog", "eel"])[NUMBERS]),
        (NUMBERS == 1, bool, (NUMBERS == 1).astype(int).astype(str)),
    ],
)
def test_texts_are_classes_in_the_order_of_the_alphabet(
    labels: NDArray[Any], dtype: Any, names: NDArray[Any], tmp_path: Path
) -> None:
    def write(file: h5py.File, name: str) -> None:
        file.create_dataset(name, data=labels, dtype=dtype)

    spec = file_of(tmp_path, images=PIXELS, labels=write)
    assert samples(spec)[1] == names.tolist()
    with closing(open_spec(spec)) as found:
        assert found.classes == sorted(set(names.tolist()))


UNIT = PIXELS / np.float32(255)
FORMS: dict[str, tuple[NDArray[Any], str, NDArray[np.uint8]]] = {
    "uint8": (PIXELS, "", PIXELS),
    "uint8, channels first": (PIXELS.transpose(0, 3, 1, 2), "", PIXELS),
    "grey": (GREY, "", GREY),
    "grey, one channel last": (GREY[..., None], "", GREY),
    "grey, one channel first": (GREY[:, None], "", GREY),
    "transparent": (CLEAR, "", CLEAR),
    "transparent, channels first": (CLEAR.transpose(0, 3, 1, 2), "", CLEAR),
    "float32 of 0 to 1": (UNIT.astype(np.float32), "", PIXELS),
    "float32 of 0 to 1, channels first": (UNIT.transpose(0, 3, 1, 2), "", PIXELS),
    "float64 of 0 to 1": (PIXELS / 255.0, "", PIXELS),
    "float32 of 0 to 255": (PIXELS.astype(np.float32), "", PIXELS),
    "float16 of 0 to 1, given": (UNIT.astype(np.float16), "white=1", PIXELS),
    "int64": (PIXELS.astype(np.int64), "", PIXELS),
    "uint16 of 8 bits": (PIXELS.astype(np.uint16), "", PIXELS),
    "uint16 of 16 bits": (PIXELS.astype(np.uint16) * 257, "white=65535", PIXELS),
    "12 bits": (np.rint(PIXELS / 255 * 4095).astype(np.int16), "white=4095", PIXELS),
    "normalised": ((UNIT * 2 - 1).astype(np.float32), "black=-1&white=1", PIXELS),
    "masks": (GREY > 127, "", ((GREY > 127) * 255).astype(np.uint8)),
}


@pytest.mark.parametrize("form", FORMS)
def test_pixels_of_every_kind_are_those_of_the_file(form: str, tmp_path: Path) -> None:
    values, query, expected = FORMS[form]
    assert np.array_equal(samples(file_of(tmp_path, query, X=values, Y=NUMBERS))[0], expected)


def test_a_layout_that_is_given_decides(tmp_path: Path) -> None:
    low = PIXELS[:, :3]  # (N, 3, 36, 3): channels first or last
    assert np.array_equal(samples(file_of(tmp_path, "layout=nhwc", X=low, Y=NUMBERS))[0], low)
    first = samples(file_of(tmp_path, "layout=NCHW", X=low, Y=NUMBERS))[0]
    assert np.array_equal(first, low.transpose(0, 2, 3, 1))
    narrow = GREY[..., :3]
    assert np.array_equal(samples(file_of(tmp_path, "layout=NHW", X=narrow, Y=NUMBERS))[0], narrow)


def test_image_files_in_a_file_stay_as_they_are(tmp_path: Path) -> None:
    images = [jpeg(seed) for seed in range(N)]

    def pieces(file: h5py.File, name: str) -> None:
        made = file.create_dataset(name, (N,), h5py.vlen_dtype(np.uint8))
        for at, data in enumerate(images):
            made[at] = np.frombuffer(data, np.uint8)

    def opaque(file: h5py.File, name: str) -> None:
        longest = max(map(len, images))
        file[name] = np.array([[np.void(data.ljust(longest, b"\0"))] for data in images])

    for write in (pieces, opaque):
        spec = file_of(tmp_path, images=write, labels=NUMBERS, names=NAMES.astype(object))
        with closing(open_spec(spec)) as found:
            read = [found.read(sample.key).rstrip(b"\0") for sample in found.samples]
        assert read == images
        assert look("mine", spec).formats == {"JPEG": N}


SPLITS: dict[str, dict[str, NDArray[Any]]] = {
    "X_train": {"X_train": PIXELS, "Y_train": NUMBERS[None], "X_test": UNIT, "Y_test": ONE_HOT},
    "train_set_x": {
        "train_set_x": PIXELS,
        "train_set_y": NUMBERS,
        "test_set_x": PIXELS,
        "test_set_y": NUMBERS,
        "list_classes": BYTES[:CLASSES],
    },
    "groups": {
        "train__images": PIXELS,
        "train__labels": NUMBERS,
        "val__images": PIXELS,
        "val__labels": NUMBERS,
    },
    "joined": {"xtrain": PIXELS, "ytrain": NUMBERS, "xtest": PIXELS, "ytest": NUMBERS},
    "camels": {"trainX": PIXELS, "trainY": NUMBERS, "testX": PIXELS, "testY": NUMBERS},
}


@pytest.mark.parametrize("names", SPLITS)
def test_splits_are_those_that_names_say(names: str, tmp_path: Path) -> None:
    pixels, classes, train = samples(file_of(tmp_path, **SPLITS[names]))
    assert train == [True] * N + [False] * N
    assert classes == [str(number) for number in [*NUMBERS, *NUMBERS]]
    assert np.array_equal(pixels, [*PIXELS, *PIXELS])


@pytest.mark.parametrize(
    "datasets",
    [
        {"X_train": PIXELS, "Y_train": NUMBERS},
        {"a__b__X": PIXELS, "a__b__y": NUMBERS},
        {"image": PIXELS, "label": NUMBERS, "x": NUMBERS * 1.5},
        {"images": PIXELS, "image_labels": NUMBERS, "ids": NUMBERS},
        {"X": PIXELS, "Y": NUMBERS, "X_test": PIXELS[:3]},
        {"X": PIXELS, "Y": NUMBERS, "data": PIXELS[:5]},
    ],
)
def test_of_several_datasets_the_names_and_shapes_say_which(
    datasets: Mapping[str, NDArray[Any]], tmp_path: Path
) -> None:
    pixels, classes, train = samples(file_of(tmp_path, **datasets))
    assert np.array_equal(pixels, PIXELS)
    assert classes == [str(number) for number in NUMBERS]
    assert sum(train) < N, "each tenth of a class is kept for testing"


def test_what_was_made_of_it_is_said(tmp_path: Path) -> None:
    lines = look("mine", file_of(tmp_path, X=UNIT, Y=NUMBERS, X_test=PIXELS)).lines()
    assert "X: 0 is black and 1 is white, in 8 bits" in lines
    assert "X_test has no labels: left out" in lines
    lines = look("mine", file_of(tmp_path, X=PIXELS.astype(np.int32), Y=NUMBERS)).lines()
    assert "X: 0 is black and 255 is white; if another value is, add white=VALUE" in lines
    both = SPLITS["groups"] | {"test__images": PIXELS, "test__labels": NUMBERS}
    assert (
        "test/images is left out: val is what is tested on"
        in look("mine", file_of(tmp_path, **both)).lines()
    )


def huge(*shape: int, dtype: Any = np.uint8) -> Callable[[h5py.File, str], None]:
    """A dataset of which nothing was ever written; reading it whole would take all memory."""

    def write(file: h5py.File, name: str) -> None:
        file.create_dataset(name, shape, dtype, chunks=tuple(min(side, 64) for side in shape))

    return write


SQUARE = np.eye(N)[np.roll(np.arange(N), 1)]
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("", {"X": PIXELS, "Y": NUMBERS[:5]}, "there is no label for each image; choose with images="),
    ("", {"X": np.moveaxis(PIXELS, 0, -1), "Y": NUMBERS}, "the samples are along the last axis"),
    ("", {"X": PIXELS, "Y": ONE_HOT * 0.5}, "Y (12, 3) of float32 is not one-hot"),
    ("", {"X": PIXELS, "Y": np.ones((N, CLASSES))}, "is not one-hot, a 1 among zeros"),
    ("", {"X": PIXELS, "Y": NUMBERS * 0.5}, "Y (12,) of float64 has 0.5 for sample 1, which is no"),
    ("", {"X": PIXELS, "Y": np.full(N, np.nan)}, "has nan for sample 0, which is no class"),
    ("", {"X": PIXELS, "Y": np.zeros((N, 2, 2))}, "has more than a class, or one-hot (N, C)"),
    ("", {"X": PIXELS, "Y": SQUARE}, "its rows and its columns are both one-hot for 12 samples"),
    ("", {"X": PIXELS, "Y": NUMBERS + 1j}, "texts or numbers are read as labels"),
    ("", {"X": PIXELS, "Y": np.stack([BYTES, BYTES], 1)}, "a text for each sample is read"),
    (
        "",
        {"X": UNIT * 2 - 1, "Y": NUMBERS},
        "has values from -1 to 1; say which are black and white",
    ),
    ("", {"X": UNIT * 1.001, "Y": NUMBERS}, "say which are black and white, as black=0&white=4095"),
    (
        "",
        {"X": PIXELS.astype(np.uint16) * 16, "Y": NUMBERS},
        "has values from 0 to 4080; say which",
    ),
    (
        "",
        {"X": (GREY > 9).astype(int), "Y": NUMBERS},
        "has values from 0 to 1; say which are black",
    ),
    ("", {"X": np.where(UNIT > 0.5, np.nan, UNIT), "Y": NUMBERS}, "a value that is no number in"),
    (
        "",
        {"X": PIXELS[:, :3], "Y": NUMBERS},
        "channels first or last; add layout=NCHW or layout=NHWC",
    ),
    ("layout=NHW", {"X": PIXELS, "Y": NUMBERS}, "X (12, 40, 36, 3) of uint8 is not NHW; of NHWC"),
    ("layout=up", {"X": PIXELS, "Y": NUMBERS}, "is not UP; of NHWC, NCHW and NHW, C is 1, 3 or 4"),
    ("", {"X": PIXELS[..., :2], "Y": NUMBERS}, "has neither 1 nor 3 nor 4 channels"),
    ("", {"X": PIXELS[0], "Y": np.arange(40)}, "is one image, or grey ones 3 px wide; if they are"),
    (
        "",
        {"X": PIXELS.reshape(N, -1), "Y": NUMBERS},
        "a row of numbers for each sample; store them",
    ),
    ("", {"X": PIXELS[:, None], "Y": NUMBERS}, "has more than an image for each sample"),
    ("", {"X": PIXELS[:, :0], "Y": NUMBERS}, "X (12, 0, 36, 3) of uint8 has no pixels"),
    ("white=0", {"X": UNIT, "Y": NUMBERS}, "give the value that is white, above that of black"),
    ("black=1", {"X": UNIT, "Y": NUMBERS}, "give the value that is white, above that of black"),
    ("white=x", {"X": UNIT, "Y": NUMBERS}, "white=x is no number; give the value that is white"),
    (
        "size=3",
        {"X": UNIT, "Y": NUMBERS},
        "hdf5 has no option size; it takes images, labels, layout",
    ),
    (
        "images=Z",
        {"X": PIXELS, "Y": NUMBERS},
        "no dataset 'Z'; choose with images= one of X (12, 40",
    ),
    (
        "images=a",
        {"a": PIXELS, "b": NUMBERS},
        "no dataset's name says that it has the labels; choose",
    ),
    ("", {"a": PIXELS, "b": NUMBERS}, "choose with images= one of a (12, 40, 36, 3) of uint8, b"),
    ("", {}, "it has no dataset"),
    (
        "",
        {"X": PIXELS, "data": PIXELS, "Y": NUMBERS},
        "several of its datasets may be the images: X",
    ),
    (
        "",
        {"X": PIXELS, "Y": NUMBERS, "label": NUMBERS},
        "may be the labels: Y (12,) of int64, label",
    ),
    (
        "",
        {"X": PIXELS, "Y": NUMBERS, "train__X": PIXELS, "train__Y": NUMBERS},
        "several of its datasets may be the images: X (12, 40, 36, 3) of uint8, train/X",
    ),
    ("", {"X_train": PIXELS, "Y_test": NUMBERS}, "are of different splits; choose with images="),
    (
        "",
        {"X_val": PIXELS, "Y_val": NUMBERS, "X_test": PIXELS, "Y_test": NUMBERS},
        "it has the splits val, test, and none to train on",
    ),
    ("", {"X": PIXELS, "Y": huge(10**14)}, "Y (100000000000000,) of uint8: there is no label for"),
    ("", {"X": huge(10**14, 8, 8), "Y": huge(10**14)}, "at most 20,000,000 samples are read"),
    ("", {"X": PIXELS, "Y": huge(N, 10**12)}, "at most 100,000 classes are read"),
    ("", {"X": huge(10**5, 8, 8), "Y": huge(10**5, 10**5)}, "store a class number for each sample"),
    ("", {"X": huge(N, 10**6, 10**6), "Y": NUMBERS}, "a sample of at most 1 GiB is read"),
]


REFUSED_NAMES = [f"{number}: {words[:40]}" for number, (_, _, words) in enumerate(REFUSED)]
"""Without what a file holds: the address of a function in a test's name differs from process to process."""


@pytest.mark.parametrize(("query", "datasets", "words"), REFUSED, ids=REFUSED_NAMES)
def test_what_is_ambiguous_or_no_image_is_refused_in_one_line(
    query: str, datasets: dict[str, Any], words: str, tmp_path: Path
) -> None:
    spec = file_of(tmp_path, query, **datasets)
    with pytest.raises(ConfigError) as caught:
        open_spec(spec)
    line = str(caught.value)
    assert (words in line, str(tmp_path / "x.h5") in line, "\n" in line) == (True, True, False), (
        line
    )


def test_a_value_that_is_no_pixel_is_found_as_its_sample_is_read(tmp_path: Path) -> None:
    """The scale is judged by some samples; no other one is cut off to it."""
    many = np.zeros((200, *SIDES), np.float32)
    many[1, 3, 4] = 1.5
    spec = file_of(tmp_path, X=many, Y=np.arange(200) % CLASSES)
    with closing(open_spec(spec)) as found, pytest.raises(ValueError, match="outside 0 to 1; say"):
        found.read(("", 1))
    (line,) = look("mine", spec).unreadable
    assert line.endswith(
        "ValueError: X has 1.5 in sample 1, outside 0 to 1; say with black= and white= which values "
        "are black and white"
    )


def test_one_sample_is_a_data_set(tmp_path: Path) -> None:
    for labels in (np.array([[1]]), np.array([[0, 1, 0]])):
        _, classes, _ = samples(file_of(tmp_path, X=PIXELS[:1], Y=labels))
        assert classes == ["1"]
