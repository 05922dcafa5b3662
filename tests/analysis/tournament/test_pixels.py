"""What is said of another decoder's pixels."""

import json

import pytest

from vitprof.analysis.tournament.pixels import (
    DecodedFiles,
    of_reports,
    pixels_words,
    together,
    why_refused,
    why_unused,
)


def test_the_last_report_of_each_process_counts() -> None:
    first = {"pid": 1, "who": "/0", "decoded": 1, "compared": 1}
    last = first | {"decoded": 30, "compared": 20, "stayed": 2, "why": "its mode is L"}
    other = {"pid": 2, "who": "/1", "decoded": 4, "compared": 4, "differ": 1, "largest": 3}
    found = of_reports(json.dumps(report) for report in (first, other, last))
    assert found == DecodedFiles(34, 2, "its mode is L", 24, 1, 3)
    assert together([]) == DecodedFiles()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (DecodedFiles(), ""),
        (DecodedFiles(stayed=3, why="its mode is L"), ""),
        (DecodedFiles(40, compared=40), "same pixels as Pillow's in 40 JPEG files compared"),
        (DecodedFiles(40), "its pixels were not compared with Pillow's"),
        (
            DecodedFiles(40, 1, "its mode is L", compared=20, differ=7, largest=3),
            "pixels differ by at most 3 of 255 from Pillow's, in 7 of 20 JPEG files compared; at least 1 JPEG file "
            "stayed with Pillow, the first because its mode is L",
        ),
    ],
)
def test_pixels_in_words(files: DecodedFiles, words: str) -> None:
    assert pixels_words(files) == words


def test_what_is_refused_and_what_was_not_tried() -> None:
    assert why_refused("opencv", DecodedFiles(40, compared=40)) == ""
    refused = why_refused("opencv", DecodedFiles(40, compared=40, differ=1, largest=2))
    assert "differ by up to 2 of 255 from Pillow's in 1 of the 40 JPEG files compared" in refused
    assert why_unused("opencv", DecodedFiles(1)) == ""
    unused = why_unused("opencv", DecodedFiles(stayed=5, why="its mode is CMYK"))
    assert unused.endswith(
        "at least 5 JPEG files stayed with Pillow, the first because its mode is CMYK"
    )
