"""The sidebar's form for a data set of one's own."""

from pathlib import Path

import pytest

from tests.datasets.own.test_readers import folder
from tests.ui.dashboard import app, click
from vitprof.datasets import catalog
from vitprof.store import RunStore


@pytest.fixture(autouse=True)
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITPROF_DATA_ROOTS", str(tmp_path / "root"))


def test_a_folder_is_looked_at_and_chosen(store: RunStore, tmp_path: Path) -> None:
    at = app()
    assert at.button(key="own-look").disabled
    at.text_input(key="own-spec").input(
        folder(tmp_path / "root" / "pets").removeprefix("folder:")
    ).run()
    click(at, "own-look")
    assert at.selectbox(key="set-dataset").value == "pets"
    assert at.number_input(key="set-batch_size").value == 23, "batches of 128 are too large for it"
    assert any("23 samples for training" in caption.value for caption in at.caption)
    assert (catalog.dataset_info("pets").classes, at.button(key="run-button").disabled) == (
        3,
        False,
    )


@pytest.mark.parametrize(
    ("given", "name", "words"),
    [
        ("/nowhere", "", "it is not below"),
        ("root", "digits", "has a data set of its own with this name"),
        ("os:getcwd", "x", "only on the command line"),
        ("zip:x/y", "", "write it as folder"),
    ],
)
def test_what_cannot_be_read_is_one_line(
    store: RunStore, tmp_path: Path, given: str, name: str, words: str
) -> None:
    at = app()
    at.text_input(key="own-spec").input(given.replace("root", f"{tmp_path}/root")).run()
    field = at.text_input(key="own-name").input(name)
    assert field.proto.ignore_rerun, "what is typed comes with the button, and redraws nothing"
    click(at, "own-look")
    assert [words in error.value for error in at.error] == [True]
    assert len(catalog.DATASETS) == 3
