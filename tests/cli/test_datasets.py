"""`datasets`, and a job on a user's own data set."""

from pathlib import Path

import pytest

from tests.cli.json_objects import told
from tests.command_line import Call, one_line
from tests.datasets.own.test_readers import folder
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
    budget = ("--batch-size", "4", "--steps", "6", "--no-evaluate", "--isolation", "thread")
    for given, named in (("mine", "mine"), (spec, "mine")):
        assert call("run", "--dataset", given, "--strategy", "threads", *budget)[0] == 0
        assert mine.runs()[0].config.dataset == named
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
    ],
)
def test_a_wrong_one_is_one_line(call: Call, given: str, words: str) -> None:
    assert words in one_line(call, *given.split())
