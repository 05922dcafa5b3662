"""The short spellings of the commands of `tournament`."""

import pytest

from vitprof.cli.tournament.spelling import in_full


@pytest.mark.parametrize(
    ("short", "full"),
    [
        (
            "tournament --vary workers=0,2 -- python train.py --resume 3",
            "tournament script --vary workers=0,2 -- python train.py --resume 3",
        ),
        ("tournament -- python train.py", "tournament script -- python train.py"),
        ("tournament --resume 7", "tournament resume 7"),
        ("tournament --resume=7 --yes", "tournament resume 7 --yes"),
        ("tournament --yes --resume 7 --json", "tournament resume 7 --yes --json"),
        ("tournament --resume 7 -- python train.py", "tournament resume 7 -- python train.py"),
        ("tournament --resume", "tournament resume"),
    ],
)
def test_short_spellings(short: str, full: str) -> None:
    assert " ".join(in_full(short.split())) == full


@pytest.mark.parametrize(
    "line",
    [
        "tournament --strategies memory,workers",
        "tournament script --vary workers=0,2 -- python train.py",
        "tournament resume 7 -- python train.py",
        # not a script of that name: the options are given too early
        "tournament --steps 5 script -- python train.py",
        "tournament --name script -- python train.py",
        "watch -- python train.py --resume 7",
        "run --resume 7",
        "",
    ],
)
def test_all_others_stay_as_they_are(line: str) -> None:
    assert in_full(line.split()) == line.split()
