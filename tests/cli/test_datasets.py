"""`datasets`, and a job on a user's own data set."""

from pathlib import Path

import pytest

from tests.cli.json_objects import told
from tests.command_line import Call, one_line
from tests.datasets.own.test_readers import folder
from vitprof.datasets.own import registry
from vitprof.datasets.own.registry import LookReport, OwnSet
from vitprof.store import RunStore


def test_a_set_is_added_trained_on_listed_and_removed(
    call: Call, mine: RunStore, tmp_path: Path
) -> None:
    spec = folder(tmp_path / "pets")
    status, out, _ = call("datasets", "add", "mine", spec)
    assert (status, out.splitlines()[0]) == (
        0,
        "mine: 23 samples for training, 1 for testing, 3 classes",
    )
    budget = ("--steps", "6", "--no-evaluate", "--isolation", "thread")
    for given, named in (("mine", "mine"), (spec, "mine")):
        ran = call("run", "--dataset", given, "--strategy", "threads", *budget)
        assert ran[0] == 0
        assert "batch 8, as none was named" in ran[2]
        config = mine.runs()[0].config
        assert (config.dataset, config.batch_size) == (named, 8)
    assert "mine: folder:" in call("datasets", "list")[1]
    assert told("datasets", call("datasets", "list", "--json")[1])["datasets"][0]["n_train"] == 23
    assert told("look", call("datasets", "add", "mine", spec, "--json")[1])["look"]["opened"] == 24
    assert call("datasets", "remove", "mine")[0] == 0
    assert "no data set of yours" in call("datasets", "list")[1]
    assert "mine" in call("runs")[1], "its runs stay"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("datasets add x folder:/nowhere", "/nowhere does not exist"),
        ("datasets add digits folder:/", "vitprof has a data set of its own with this name"),
        ("datasets remove x", "you have no such data set; you have none"),
        ("run --dataset folder:/nowhere", "/nowhere does not exist"),
        ("datasets add x folder:s3://me:***@h/x", "give the secret in place of ***"),
    ],
)
def test_a_wrong_one_is_one_line(call: Call, given: str, words: str) -> None:
    assert words in one_line(call, *given.split())


@pytest.mark.parametrize(
    "spec",
    [
        "hdf5:s3://me:hunter2@host/a.h5",
        "webdataset:https://me:hunter2@host/x.tar",
        "folder:https://host/x?token=hunter2",
        "s3://me:hunter2@host/x",
    ],
)
def test_a_secret_in_a_url_is_in_no_error(call: Call, spec: str) -> None:
    for command in (("datasets", "add", "x"), ("run", "--dataset")):
        line = one_line(call, *command, spec)
        assert "***" in line
        assert "hunter2" not in line


def test_a_secret_in_a_url_is_in_no_list(
    call: Call, monkeypatch: pytest.MonkeyPatch, vitprof_home: Path
) -> None:
    spec = "folder:s3://me:hunter2@host/pets"
    own = OwnSet("pets", spec, 90, 10, classes=3, image_size=96, n_bytes=5_000, stamp="a")
    looked = LookReport(own, 100, {"JPEG": 100}, {"RGB": 100}, (96, 96, 96), 0, (), (), 1.0)
    monkeypatch.setattr("vitprof.datasets.own.look.look", lambda *args, **more: looked)
    printed = [
        call("datasets", "add", "pets", spec),
        call("datasets", "add", "pets", spec, "--json"),
        call("datasets", "list"),
        call("datasets", "list", "--json"),
    ]
    assert [status for status, _, _ in printed] == [0] * 4
    assert "hunter2" not in repr(printed)
    assert registry.everything()["pets"].spec == spec
