"""JPEG files decoded by another library in place of Pillow: the same image for the script, or Pillow's as ever."""

import dataclasses
import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, JpegImagePlugin

from tests.watch.decoded_script import write_files
from tests.watch.watching import Host
from vitprof.recording.decoded_files import DecodedFiles
from vitprof.watch import decoding
from vitprof.watch.decoding import Decoding, Files

ROTATED = Image.Exif()
ROTATED[0x0112] = 6
"""Orientation of a photograph of a turned camera: Pillow leaves the pixels as they are."""


def picture(mode: str = "RGB", size: tuple[int, int] = (90, 61)) -> Image.Image:
    few = np.random.default_rng(3).integers(0, 256, (8, 11, 3), np.uint8)
    return Image.fromarray(few).resize(size, Image.Resampling.BICUBIC).convert(mode)


def encoded(mode: str = "RGB", **how: Any) -> bytes:
    file = io.BytesIO()
    picture(mode).save(file, "JPEG", **({"quality": 90, "exif": ROTATED} | how))
    return file.getvalue()


def test_what_a_process_reports_is_what_a_recording_has() -> None:
    assert dataclasses.asdict(Files()) == dataclasses.asdict(DecodedFiles())


class Tried:
    """A decoder in Pillow, with what it reports."""

    def __init__(self, name: str = "simplejpeg", first: int = 0) -> None:
        self.lines: list[str] = []
        self.before: list[str] = []
        """What other processes have reported before."""
        self.decoding = Decoding(name, "it", first, self.lines.append, lambda: self.before)

    @property
    def report(self) -> dict[str, Any]:
        return json.loads(self.lines[-1])


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tried]:
    """Puts a decoder into Pillow for a test."""
    kind = JpegImagePlugin.JpegImageFile
    by_pillow = kind.load

    def put(name: str = "simplejpeg", first: int = 0) -> Tried:
        monkeypatch.setattr(kind, "load", by_pillow)
        made = Tried(name, first)
        decoding.put_in(kind, made.decoding)
        return made

    decoding.open_decoder.cache_clear()
    return put


def without(read: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What comes of a function where Pillow decodes."""
    with monkeypatch.context() as plain:
        kind = JpegImagePlugin.JpegImageFile
        plain.setattr(kind, "load", getattr(kind.load, "__wrapped__", kind.load))
        return read()


def all_of(image: Image.Image) -> dict[str, Any]:
    """What a script may read of an image, once it is loaded."""
    access = image.load()
    assert access is not None
    first = access[0, 0]
    names = ("mode", "size", "format", "filename", "info", "readonly", "fp", "tile", "is_animated")
    known = {name: getattr(image, name, None) for name in names}
    known["exif"] = dict(image.getexif())
    return known | {"class": type(image), "first": first, "pixels": np.asarray(image).tobytes()}


@pytest.mark.parametrize("name", decoding.OPEN)
@pytest.mark.parametrize(
    "how", [{}, {"progressive": True}, {"subsampling": 0}, {"quality": 100}, {"restart": 1}]
)
def test_an_image_is_as_the_script_knows_it(
    name: str,
    how: dict[str, Any],
    tried: Callable[..., Tried],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "it.jpg"
    path.write_bytes(encoded(**({"restart_marker_blocks": 3} if "restart" in how else how)))
    expected = without(lambda: all_of(Image.open(path)), monkeypatch)
    by_library = tried(name)
    found = all_of(Image.open(path))
    assert by_library.report["decoded"] == 1
    pixels = [np.frombuffer(each.pop("pixels"), np.uint8) for each in (found, expected)]
    assert np.abs(pixels[0].astype(int) - pixels[1]).max() <= 3, "libjpeg-turbo has no difference"
    assert np.abs(np.subtract(found.pop("first"), expected.pop("first"))).max() <= 3
    assert found == expected
    converted = Image.open(path).convert("RGB")
    assert np.asarray(converted).tobytes() == pixels[0].tobytes()


@pytest.mark.parametrize("tail", [b"", b"tail", bytes(70_000), encoded()])
def test_a_file_object_is_left_where_pillow_leaves_it(
    tail: bytes, tried: Callable[..., Tried], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (300, 300, 3), np.uint8)
    large = io.BytesIO()
    Image.fromarray(noise).save(large, "JPEG", quality=95)
    path = tmp_path / "it.jpg"

    def positions() -> list[int]:
        found = []
        for first in (encoded(), large.getvalue()):
            path.write_bytes(first + tail)
            with path.open("rb") as opened:
                for file in (opened, io.BytesIO(first + tail)):
                    Image.open(file).load()
                    found.append(file.tell())
        return found

    expected = without(positions, monkeypatch)
    by_library = tried()
    assert positions() == expected
    assert by_library.report["decoded"] == 4


def read_in_zip(data: bytes) -> Image.Image:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("it.jpg", data)
    return Image.open(zipfile.ZipFile(file).open("it.jpg"))


def drafted(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    image.draft("RGB", (40, 30))
    return image


def damaged(data: bytes) -> bytes:
    """A marker that is none in the compressed data: OpenCV gives the part before it, and says nothing."""
    middle = len(data) - 300
    return data[:middle] + b"\xff\x06" * 4 + data[middle + 8 :]


@pytest.mark.parametrize(
    ("read", "why"),
    [
        (lambda: Image.open(io.BytesIO(encoded("L"))), "its mode is L"),
        (lambda: Image.open(io.BytesIO(encoded("CMYK"))), "its mode is CMYK"),
        (lambda: Image.open(io.BytesIO(encoded(keep_rgb=True))), "its colours are not YCbCr"),
        (lambda: drafted(encoded()), "draft() was called"),
        (lambda: read_in_zip(encoded()), "it is read from an object of class ZipExtFile"),
        (lambda: Image.open(io.BytesIO(encoded()[:-2])), "it is truncated or damaged"),
        (lambda: Image.open(io.BytesIO(encoded()[:-200])), "it is truncated or damaged"),
        (lambda: Image.open(io.BytesIO(damaged(encoded()))), "it is truncated or damaged"),
        (
            lambda: Image.open(io.BytesIO(encoded() + bytes(2**21))),
            "its file has much more in it than a picture",
        ),
    ],
)
@pytest.mark.parametrize("name", decoding.OPEN)
def test_other_files_stay_with_pillow_errors_too(
    name: str,
    read: Callable[[], Image.Image],
    why: str,
    tried: Callable[..., Tried],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def result() -> Any:
        try:
            return all_of(read())
        except OSError as error:
            return str(error)

    expected = without(result, monkeypatch)
    by_library = tried(name, first=5)
    found = result()
    if isinstance(found, dict):
        del found["fp"], expected["fp"]
    assert found == expected
    report = by_library.report
    assert (report["decoded"], report["stayed"]) == (0, 1)
    assert report["why"].startswith(why)


def test_several_pictures_in_a_file_and_other_formats_are_pillows(
    tried: Callable[..., Tried], tmp_path: Path
) -> None:
    path = tmp_path / "two.mpo"
    picture().save(path, save_all=True, append_images=[picture()])
    by_library = tried(first=1)
    with Image.open(path) as image:
        image.load()
        image.seek(1)
        image.load()
    picture().save(tmp_path / "it.png")
    Image.open(tmp_path / "it.png").load()
    assert by_library.lines == []


def brighter(data: bytes) -> NDArray[np.uint8]:
    """A decoder that differs in one pixel, by 3."""
    pixels: NDArray[np.uint8] = decoding._simplejpeg()(data).copy()
    green = int(pixels[7, 9, 1])
    pixels[7, 9, 1] = green + 3 if green < 128 else green - 3
    return pixels


def test_the_first_files_are_compared_and_few_after_them(
    tried: Callable[..., Tried], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = encoded()
    expected = np.asarray(Image.open(io.BytesIO(data))).astype(int)
    monkeypatch.setitem(decoding.OPEN, "another", lambda: brighter)
    monkeypatch.setattr(decoding, "SPARSELY", 5)
    by_library = tried("another", first=2)
    for number in range(1, 12):
        found = np.asarray(Image.open(io.BytesIO(data)))
        assert np.abs(found - expected).max() == 3, "the script has the library's pixels each time"
        compared = by_library.report["compared"]
        assert compared == (number if number < 3 else 2 + number // 5)
    report = by_library.report
    assert (report["differ"], report["largest"], report["pid"]) == (4, 3, os.getpid())


def test_a_worker_of_the_next_epoch_compares_no_first_files(tried: Callable[..., Tried]) -> None:
    by_library = tried(first=2)
    by_library.before = [json.dumps({"who": f"{os.environ.get('RANK', '')}/"})]
    Image.open(io.BytesIO(encoded())).load()
    assert (by_library.report["decoded"], by_library.report["compared"]) == (1, 0)


def test_a_library_that_is_missing_or_fails_leaves_the_files_to_pillow(
    tried: Callable[..., Tried], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> Any:
        raise ImportError("No module named 'another'")

    monkeypatch.setitem(decoding.OPEN, "another", missing)
    expected = np.asarray(Image.open(io.BytesIO(encoded())))
    by_library = tried("another")
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(encoded()))), expected)
    assert by_library.report["why"].startswith("decoder=another cannot be imported (No module ")
    with pytest.raises(ValueError, match=r"-m pip install it$"):
        decoding.check_decoder({"name": "another", "package": "it"})
    decoding.check_decoder(None)
    for wrong in (lambda data: None, lambda data: np.zeros((3, 4, 3), np.uint8)):
        decoding.open_decoder.cache_clear()
        monkeypatch.setitem(decoding.OPEN, "another", lambda wrong=wrong: wrong)
        by_library = tried("another")
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(encoded()))), expected)
        assert by_library.report["why"] == "another does not decode it"


@pytest.mark.parametrize("workers", [0, 1])
def test_a_trial_decodes_in_the_process_or_in_its_worker(
    workers: int, host: Host, tmp_path: Path
) -> None:
    write_files(tmp_path)
    told = tmp_path / "told"
    scripts = host.running("tests.watch.decoded_script")

    def run(wanted: dict[str, Any]) -> Any:
        env = {"VITPROF_WATCH_OVERRIDES": json.dumps(wanted), "VITPROF_WATCH_TELL": str(told)}
        return scripts.run("train", env=env, folder=str(tmp_path), workers=workers)

    first = run({})
    watched = first.note("environment")[0]["watched"]
    wanted = {"place": watched["made_place"], "nth": None, "arguments": {}, "cache_bytes": None}
    decoder = {"name": "simplejpeg", "package": "simplejpeg", "first": 6}
    second = run({**wanted, "decoder": decoder})
    assert (second.status, second.complaint) == (0, "")
    assert second.note("environment")[0]["watched"]["made_changed"]
    assert json.loads(second.returned) == json.loads(first.returned), "the losses are the same"
    topics, texts = zip(*map(json.loads, told.read_text().splitlines()), strict=True)
    assert set(topics) == {"pixels"}
    reports = [json.loads(text) for text in texts]
    last = {report["pid"]: report for report in reports}
    # The worker of the second epoch compares none.
    assert [report["compared"] for report in last.values()] == ([6] if not workers else [6, 0])
    assert max(report["largest"] for report in reports) == 0
    assert reports[-1]["why"] == "its mode is L"
