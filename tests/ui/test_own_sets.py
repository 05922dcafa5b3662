"""The sidebar's form for a data set of one's own."""

from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests.datasets.own.test_readers import folder
from tests.ui.dashboard import app, click, read
from vitprof.config import estimates
from vitprof.config.strategies import STRATEGIES
from vitprof.datasets import catalog
from vitprof.datasets.own import registry
from vitprof.store import RunStore
from vitprof.ui.profile.settings import takes


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
    assert at.number_input(key="set-batch_size").value == 8, "batches of 128 are too large for it"
    assert any("23 samples for training" in caption.value for caption in at.caption)
    assert (catalog.dataset_info("pets").classes, at.button(key="run-button").disabled) == (
        3,
        False,
    )


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dashboard of this machine alone, without folders that somebody set."""
    monkeypatch.delenv("VITPROF_DATA_ROOTS")
    monkeypatch.setattr("vitprof.ui.gate.serves_this_machine_only", lambda: True)


def test_a_folder_elsewhere_is_asked_for_once(store: RunStore, tmp_path: Path, alone: None) -> None:
    spec = folder(tmp_path / "data" / "pets").removeprefix("folder:")
    at = app()
    at.text_input(key="own-spec").input(spec).run()
    click(at, "own-look")
    assert [info.value.replace("\\", "") for info in at.info] == [f"Allow reading {spec}?"]
    assert "pets" not in catalog.DATASETS, "nothing is read before the answer"
    click(at, "own-allow")
    assert at.selectbox(key="set-dataset").value == "pets"
    below = registry.everything()["pets"].below.split(":")
    assert spec in below, "jobs read there, too"
    at.text_input(key="own-name").input("again").run()
    click(at, "own-look")
    assert not at.info, "it was asked once"
    assert at.selectbox(key="set-dataset").value == "again"


def test_a_link_out_of_the_allowed_folder_is_not_followed(
    store: RunStore, tmp_path: Path, alone: None
) -> None:
    spec = Path(folder(tmp_path / "data" / "pets").removeprefix("folder:"))
    elsewhere = Path(folder(tmp_path / "other" / "more").removeprefix("folder:"))
    inside = next(iter(sorted(spec.iterdir())))
    (inside / "linked.jpg").symlink_to(next(elsewhere.rglob("*.jpg")))
    at = app()
    at.text_input(key="own-spec").input(str(spec)).run()
    click(at, "own-look")
    click(at, "own-allow")
    assert is_said(at, "out of the folders that may be read: left out")


def test_nobody_is_asked_where_folders_were_set(store: RunStore, tmp_path: Path) -> None:
    spec = folder(tmp_path / "data" / "pets").removeprefix("folder:")
    at = app()
    at.text_input(key="own-spec").input(spec).run()
    click(at, "own-look")
    assert not at.info
    assert ["it is not below" in error.value for error in at.error] == [True]
    assert not [box for box in at.selectbox if box.key == "own-below"], "nor is it listed"


def test_folders_are_picked(store: RunStore, tmp_path: Path, alone: None) -> None:
    folder(tmp_path / "data" / "pets")
    (tmp_path / "data" / ".hidden").mkdir()
    at = app()
    at.text_input(key="own-spec").input(str(tmp_path / "data")).run()
    assert at.selectbox(key="own-below").options == ["pets"]
    at.selectbox(key="own-below").set_value("pets").run()
    assert at.text_input(key="own-spec").value == f"{tmp_path}/data/pets"
    click(at, "own-up")
    assert at.text_input(key="own-spec").value == f"{tmp_path}/data"


def pets(name: str, side: int) -> None:
    registry.add(
        registry.OwnSet(name, f"folder:/data/{name}", 540, 60, 3, side, 30_000_000, stamp="0")
    )


def suited(at: AppTest) -> tuple[object, ...]:
    return (
        at.selectbox(key="set-model").value,
        at.number_input(key="set-batch_size").value,
        at.number_input(key="set-least_steps").value,
    )


def test_folders_are_named_by_their_last_names(
    store: RunStore, tmp_path: Path, alone: None
) -> None:
    """The sidebar is narrow: whole paths took three lines."""
    inside = tmp_path / "photos"
    (inside / "cats").mkdir(parents=True)
    at = app()
    at.text_input(key="own-spec").input(str(inside)).run()
    folders = at.selectbox(key="own-below")
    assert (folders.label, folders.options) == ("Folders in photos", ["cats"])
    assert str(inside) in read(folders.help)
    assert read(at.button(key="own-up").label) == f"Up to {tmp_path.name}"


def is_said(at: AppTest, words: str) -> bool:
    return any(words in caption.value.replace("\\", "") for caption in at.caption)


def test_own_images_get_a_model_and_a_batch_of_their_size(store: RunStore) -> None:
    pets("pets", 224)
    at = app()
    assert suited(at) == ("tiny", 128, 0)
    at.selectbox(key="set-dataset").set_value("pets").run()
    assert suited(at) == ("ti/16", 16, 30)
    words = "600 images of 224 x 224: model ViT ti/16, batch 16."
    assert is_said(at, words)
    at.selectbox(key="set-dataset").set_value("digits").run()
    assert suited(at) == ("tiny", 128, 0), "what was set for the images goes with them"
    at.selectbox(key="set-dataset").set_value("pets").run()
    at.number_input(key="set-batch_size").set_value(64).run()
    assert not is_said(at, words)
    at.selectbox(key="set-dataset").set_value("digits").run()
    assert suited(at) == ("tiny", 64, 0), "what was chosen by hand stays"


@pytest.mark.parametrize(
    ("damaged", "words", "button"),
    [
        (1, "1 of 24 images can't be read.", "Skip it"),
        (2, "2 of 24 images can't be read.", "Skip them"),
    ],
)
def test_images_that_cannot_be_read_are_skipped_before_run(
    store: RunStore, tmp_path: Path, damaged: int, words: str, button: str
) -> None:
    spec = Path(folder(tmp_path / "root" / "pets").removeprefix("folder:"))
    for path in sorted(spec.rglob("*.*"))[:damaged]:
        path.write_bytes(b"no image")
    at = app()
    at.text_input(key="own-spec").input(str(spec)).run()
    click(at, "own-look")
    assert at.button(key="run-button").disabled
    assert [error.value.replace("\\", "") for error in at.error] == [words]
    assert at.button(key="own-skip").label == button
    click(at, "own-skip")
    assert not at.error
    assert not at.button(key="run-button").disabled
    assert at.checkbox(key="set-skip_unreadable").value


def test_only_what_is_made_is_said_to_be_made() -> None:
    linked = registry.OwnSet("pets", "folder:/pets", 540, 60, 3, 224, 60_000_000, "0", made_bytes=0)
    for own, words in (
        (linked, []),
        (replace(linked, made_bytes=30_000_000), ["unpacks pets first (about 28.6 MiB on disk)"]),
    ):
        registry.add(own)
        info = catalog.dataset_info("pets")
        plan = STRATEGIES["per-sample"]
        needs = estimates.footprint(plan.combination(info), info)
        assert takes(needs, info) == words


def test_of_a_large_set_more_may_be_unreadable() -> None:
    own = registry.OwnSet("pets", "folder:/pets", 4500, 500, 3, 224, 1, "0")
    assert own.unreadable_words == ""
    some = replace(own, unreadable=2, opened=300)
    assert some.unreadable_words == "At least 2 of 5,000 images can't be read"


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
