"""The model and the batch that a command line gets for a user's own images, and what it says about that."""

from pathlib import Path
from typing import Any

import pytest

from vitprof.cli.common.fitted import Fitted, find_fitting
from vitprof.datasets.own import registry
from vitprof.datasets.own.registry import OwnSet

SETTINGS = {"dataset": "pets", "device": "cpu"}


@pytest.fixture
def pets(vitprof_home: Path) -> None:
    """540 images of 224 px, 60 more to test."""
    own = OwnSet("pets", "folder:/pets", 540, 60, classes=3, image_size=224, n_bytes=9, stamp="a")
    registry.add(own)


@pytest.mark.usefixtures("pets")
@pytest.mark.parametrize(
    ("named", "taken", "words"),
    [
        ([], {"model": "ti/16", "batch_size": 16}, "model ViT ti/16, batch 16"),
        (["batch_size", "workers"], {"model": "ti/16"}, "model ViT ti/16"),
        (["model"], {"batch_size": 16}, "batch 16"),
    ],
)
def test_what_is_not_named_is_fitted_and_said(
    named: list[str], taken: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted = find_fitting(SETTINGS, named=named)
    assert fitted.settings == taken
    fitted.show()
    said = capsys.readouterr()
    assert said.out == "", "it may be one JSON object"
    assert said.err == f"600 images of 224 x 224: {words}, as none was named\n"


@pytest.mark.usefixtures("pets")
def test_nothing_is_said_where_all_is_named_or_the_set_is_vitprofs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert find_fitting(SETTINGS, named=["model", "batch_size"]) == Fitted()
    for name in ("digits", "unknown"):
        assert find_fitting({**SETTINGS, "dataset": name}, named=[]) == Fitted()
    Fitted().show()
    assert capsys.readouterr() == ("", "")
