"""Names of the user's own data sets: kept, found by their runs, refused."""

import dataclasses
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vitprof.config.estimates import source_bytes
from vitprof.datasets import catalog
from vitprof.datasets.own import registry
from vitprof.datasets.own.layout import OwnMaker, facts_of
from vitprof.datasets.own.registry import OwnSet
from vitprof.errors import ConfigError, DataError, VitprofError

PETS = OwnSet(
    "pets",
    "folder:/d/pets",
    n_train=90,
    n_test=10,
    classes=3,
    image_size=96,
    n_bytes=5_000,
    stamp="a",
)


def test_a_set_is_chosen_by_its_name_and_one_that_was_removed_is_still_found() -> None:
    assert tuple(catalog.DATASETS) == registry.VITPROFS, "which cannot be asked there"
    registry.add(PETS)
    info = catalog.dataset_info("pets")
    assert (list(catalog.DATASETS)[-1], len(catalog.DATASETS)) == ("pets", 4)
    assert (info.n_train, info.classes, info.image_size, info.directory) == (90, 3, 96, "own-pets")
    assert (info.title, source_bytes(info)) == ("pets (your own, folder)", 5_000)
    registry.remove("pets")
    assert ("pets" in list(catalog.DATASETS), catalog.DATASETS["pets"]) == (False, info), (
        "its runs know it"
    )
    with pytest.raises(ConfigError, match="you have no such data set; you have none"):
        registry.remove("pets")
    with pytest.raises(ConfigError, match="choose one of digits, mnist, photos"):
        catalog.dataset_info("cats")


@pytest.mark.parametrize("name", ["digits", "photos", "", "a b", "../x", "x" * 61, "-x"])
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"choose another one|a name has letters"):
        registry.ensure_name(name)


def test_a_spec_has_one_name() -> None:
    assert registry.name_of("folder:/d/pets") == "pets"
    registry.add(PETS)
    assert (registry.name_of("folder:/d/pets"), registry.name_of("folder:/e/pets/")) == (
        "pets",
        "pets-2",
    )
    assert registry.name_of("webdataset:/d/w-{0..1}.tar") == "w-0-1-tar"
    assert registry.name_of("folder:/") == "folder"
    registry.add(dataclasses.replace(PETS, name=registry.name_of("folder:/漢"), spec="folder:/漢"))
    assert registry.name_of("folder:/漢字") == "my-data-2", "the first one stays"


def test_what_is_added_at_the_same_time_stays() -> None:
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(lambda n: registry.add(dataclasses.replace(PETS, name=f"pets-{n}")), range(40))
        )
    assert len(registry.listed()) == 40


def test_a_damaged_file_is_one_line_and_the_sets_of_vitprof_stay() -> None:
    registry.add(PETS)
    registry.path().write_text('{"pets": 3}')
    assert list(catalog.DATASETS) == ["digits", "mnist", "photos"]
    assert facts_of(catalog.dataset_info("digits")) == {}, "jobs on these go on"
    with pytest.raises(VitprofError, match=r"datasets\.json is damaged"):
        catalog.dataset_info("pets")


def test_an_imported_runs_set_is_known_but_not_read_here(tmp_path: Path) -> None:
    with registry.guests():
        registry.introduce(PETS)
        registry.remember("pets")
        registry.remember("cats")
    assert (catalog.dataset_info("pets").classes, list(registry.listed())) == (3, [])
    with pytest.raises(
        DataError,
        match=r"another machine's; if you have it .*vitprof datasets add pets folder:/d/pets$",
    ):
        OwnMaker(registry.everything()["pets"]).make(tmp_path)
    registry.add(PETS)
    with registry.guests():
        registry.introduce(dataclasses.replace(PETS, classes=9))
        registry.remember("pets")
        assert registry.everything()["pets"] == PETS, "one's own stays"
        with pytest.raises(ConfigError, match="cannot be"):
            registry.introduce(dataclasses.replace(PETS, n_train=0))


def test_the_password_in_a_url_is_kept_for_reading_and_never_shown(tmp_path: Path) -> None:
    spec = "folder:s3://me:hunter2@host/pets"
    registry.add(dataclasses.replace(PETS, spec=spec))
    own = registry.everything()["pets"]
    assert own.spec == spec, "it is read with it"
    assert stat.S_IMODE(registry.path().stat().st_mode) == 0o600
    info = catalog.dataset_info("pets")
    shown = [own.to_add, info.title, info.note, facts_of(info), OwnMaker(own).IDENTITY]
    with registry.guests():
        registry.introduce(dataclasses.replace(own, name="cats"))
        registry.remember("cats")
    shown.append(registry.everything()["cats"])
    assert "me:***@host/pets" in own.to_add
    assert "hunter2" not in repr(shown)
    assert registry.name_of("folder:https://me:hunter2@host") == "me-host"


def test_the_set_of_a_run_in_a_file_is_known_while_the_file_is_read() -> None:
    with registry.guests():
        registry.introduce(PETS)
        with registry.guests():  # as reading does within an import
            registry.introduce(dataclasses.replace(PETS, name="cats"))
        assert catalog.dataset_info("cats").classes == catalog.dataset_info("pets").classes == 3
        assert registry.name_of("folder:/e/pets") == "pets-2"
        registry.add(dataclasses.replace(PETS, name="dogs"))
    assert list(registry.everything()) == ["dogs"]
    assert "cats" not in registry.path().read_text()
